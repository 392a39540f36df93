// runtime/cli/policy_flags.h: the flags that set how a run is laid out. generate, score, bench and plan share them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "policy/layout/policy.h"
#include "runtime/engine/machine_options.h"

namespace CLI {
class App;
}

namespace weft::runtime {

struct PolicyFlags {
  std::string policy_file, retention, attention, experts, schedule, weight_dtype, weight_arithmetic, kv_dtype, kv_keys;
  std::string device_memory, host_memory, disk_memory;
  std::vector<double> percent;
  std::optional<int> gpu_batch_size, num_gpu_batches, weight_group;
  std::optional<std::int64_t> max_num_batched_tokens;
  std::vector<std::string> or_kv_dtypes, or_weight_dtypes;
  bool no_overlap = false, compress_weight = false, compress_cache = false;
  MachineOptions machine{.disk_directory = ""};

  void add_to(CLI::App& app);
  /// Adds --or-kv-dtype and --or-weight-dtype, for commands that plan.
  void add_choices_to(CLI::App& app);
  /// The policy of the file and the flags; a flag overrides the file. Without --weight-dtype, --weight-arithmetic is
  /// for the format that the weights of `model` have with --dtype. Throws UsageError, and what read_model_spec()
  /// throws.
  policy::PartialPolicy policy(const std::filesystem::path& model, const std::string& dtype) const;
  /// The formats of --or-kv-dtype, with --kv-keys applied, and of --or-weight-dtype, with --weight-group and
  /// --weight-arithmetic applied. Throw UsageError.
  std::vector<policy::KvFormat> other_kv_formats() const;
  std::vector<std::optional<policy::WeightFormat>> other_weight_formats() const;
  /// `machine` with the memory that the flags ask for. Throws UsageError.
  MachineOptions machine_options() const;

 private:
  std::optional<DType> key_type() const;
  void set_details(policy::KvFormat& format) const;
  std::array<std::optional<std::uint64_t>, 3> memory() const;
  void set_details(std::optional<policy::WeightFormat>& format) const;
  void settle_share(policy::PartialPolicy& policy, const std::filesystem::path& model) const;
  void set_weight_format(policy::PartialPolicy& policy, const std::filesystem::path& model,
                         const std::string& dtype) const;
};

}  // namespace weft::runtime

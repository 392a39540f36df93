// runtime/cli/policy_flags.h: the flags that say how a run is laid out; generate, score, bench and plan share them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "policy/policy.h"
#include "runtime/engine/machine_options.h"

namespace CLI {
class App;
}

namespace weft::runtime {

struct PolicyFlags {
  std::string policy_file, retention, attention, schedule, weight_dtype, weight_arithmetic, kv_dtype, kv_keys;
  std::string device_memory, host_memory, disk_memory;
  std::vector<double> percent;
  std::optional<int> gpu_batch_size, num_gpu_batches, weight_group;
  std::optional<bool> kv_rotate;
  std::vector<std::string> or_kv_dtypes, or_weight_dtypes;
  bool no_overlap = false, compress_weight = false, compress_cache = false;
  MachineOptions machine{.disk_directory = ""};

  void add_to(CLI::App& app);
  /// --or-kv-dtype and --or-weight-dtype, of commands that plan.
  void add_choices_to(CLI::App& app);
  /// The policy file under the flags: a flag beats the file. Throws UsageError.
  policy::PartialPolicy policy() const;
  /// Of --or-kv-dtype, with what --kv-rotate and --kv-keys say; of --or-weight-dtype, with --weight-group and
  /// --weight-arithmetic. Throw UsageError.
  std::vector<policy::KvFormat> other_kv_formats() const;
  std::vector<std::optional<policy::WeightFormat>> other_weight_formats() const;
  /// `machine`, with the memory that the flags ask for. Throws UsageError.
  MachineOptions machine_options() const;

 private:
  std::optional<DType> key_type() const;
  void set_details(policy::KvFormat& format) const;
  std::array<std::optional<std::uint64_t>, 3> memory() const;
  void set_details(std::optional<policy::WeightFormat>& format) const;
  void set_weight_format(policy::PartialPolicy& policy) const;
};

}  // namespace weft::runtime

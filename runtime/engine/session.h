// runtime/engine/session.h: one job on one machine: owns the backend, the disk, the memory and the executor, in that
// order.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kernels/backend.h"
#include "offload/disk_store.h"
#include "policy/layout/footprint.h"
#include "policy/layout/policy.h"
#include "runtime/base/stop.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/machine_options.h"
#include "runtime/model/model_source.h"

namespace weft::runtime {

/// `reason`, if given, receives why this backend was chosen.
std::unique_ptr<kernels::Backend> make_backend(const MachineOptions& options, std::string* reason = nullptr);
std::unique_ptr<offload::DiskStore> make_disk(const MachineOptions& options);
/// Bytes of each tier that a run may take if the user names no budget. The backend's own overhead counts as free.
policy::Budgets free_bytes(const kernels::Backend& backend, const std::string& disk_directory);

/// Throws UsageError if options.memory asks for more than there is. All of the host's memory counts, in use or not; of
/// a GPU's memory only what is free.
void require_memory(const MachineOptions& options, const kernels::Backend& backend);

/// The part of a job's policy that is decided, and the job's workload under its retention.
struct Decision {
  policy::PartialPolicy policy;
  policy::Workload work;
};
/// Called once the backend exists; `free` is free_bytes().
using Decide = std::function<Decision(kernels::Backend& backend, const policy::Budgets& free)>;

class Session {
 public:
  /// Completes the policy, allocates everything and loads the weights. `source` must outlive the session. Throws what
  /// the parts throw, CapacityError before anything is allocated if the policy does not fit, and Interrupted after
  /// `stop`, which must outlive it too, was set.
  Session(const ModelSource& source, const Decide& decide, const MachineOptions& machine, const std::atomic<bool>& stop,
          const OnLoaded& on_loaded = {});

  Executor& executor() { return *executor_; }
  Layers& layers() { return *layers_; }
  const policy::Policy& policy() const { return policy_; }
  const policy::Footprint& footprint() const { return footprint_; }
  const Storage& storage() const { return *storage_; }
  kernels::Backend& backend() const { return *backend_; }
  const std::string& backend_reason() const { return backend_reason_; }  ///< why this backend was chosen
  const offload::DiskStore& disk() const { return *disk_; }
  const ModelSource& source() const { return source_; }
  /// Throws DataError if the run reads weights from files that have changed since it began, IoError, or Interrupted.
  void require_weights() const;
  /// The policy and the device memory that it takes, in one line.
  std::string plan_line() const;
  /// The time that a run may still take after it was asked to stop.
  GracePeriod& grace() { return grace_; }
  double load_seconds() const { return load_seconds_; }
  /// The bytes of the packed copy from which it reads; 0 without one.
  std::uint64_t copy_bytes() const { return copy_ ? sizing_.copy_bytes : 0; }

  /// The budgets of a sequence under the policy's retention. Throws UsageError if the sequence is too long for rolled
  /// positions.
  LayerKeeps keep(std::int64_t prompt, std::int64_t generation) const;

 private:
  const ModelSource& source_;
  const std::atomic<bool>& stop_;
  policy::Workload workload_;
  std::string backend_reason_;
  GracePeriod grace_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<offload::DiskStore> disk_;
  policy::SizingInputs sizing_;
  policy::Policy policy_;
  policy::Footprint footprint_;
  std::unique_ptr<PackedCopy> copy_;  // of the units that are at home on disk, if they are quantised
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<Layers> layers_;
  std::unique_ptr<HostExperts> host_experts_;  // null unless the host computes experts
  std::unique_ptr<Executor> executor_;
  double load_seconds_ = 0;
};

}  // namespace weft::runtime

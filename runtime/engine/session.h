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
#include "policy/footprint.h"
#include "policy/policy.h"
#include "runtime/base/stop.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/machine_options.h"
#include "runtime/engine/model_source.h"

namespace weft::runtime {

/// `reason`, if given, gets why it is this backend.
std::unique_ptr<kernels::Backend> make_backend(const MachineOptions& options, std::string* reason = nullptr);
std::unique_ptr<offload::DiskStore> make_disk(const MachineOptions& options);
/// What a run may take of each tier when the user names no budget; the backend's own overhead counts as free.
policy::Budgets free_bytes(const kernels::Backend& backend, const std::string& disk_directory);

/// Throws UsageError where options.memory asks for more than there is: of host memory, used or not; of a GPU's, free.
void require_memory(const MachineOptions& options, const kernels::Backend& backend);

/// How a job is laid out, as far as that is decided, and the job under that retention.
struct Decision {
  policy::PartialPolicy policy;
  policy::Workload work;
};
/// Asked once the backend is there; `free` is free_bytes().
using Decide = std::function<Decision(kernels::Backend& backend, const policy::Budgets& free)>;

class Session {
 public:
  /// Completes the policy, allocates everything and loads the weights. `source` must outlive the session. Throws what
  /// the parts throw; CapacityError before anything is allocated if the policy does not fit, Interrupted after `stop`
  /// was set.
  Session(const ModelSource& source, const Decide& decide, const MachineOptions& machine, const std::atomic<bool>& stop,
          const OnLoaded& on_loaded = {});

  Executor& executor() { return *executor_; }
  Layers& layers() { return *layers_; }
  const policy::Policy& policy() const { return policy_; }
  const policy::Footprint& footprint() const { return footprint_; }
  const Storage& storage() const { return *storage_; }
  kernels::Backend& backend() const { return *backend_; }
  const std::string& backend_reason() const { return backend_reason_; }  ///< why it is this one
  const offload::DiskStore& disk() const { return *disk_; }
  const ModelSource& source() const { return source_; }
  /// Throws DataError if the run reads weights from files that have changed since it began.
  void require_weights() const;
  /// What was chosen for the user, in one line.
  std::string plan_line() const;
  /// How long a run may go on after it was asked to stop.
  Grace& grace() { return grace_; }
  double load_seconds() const { return load_seconds_; }

  /// Budget of a sequence under the policy's retention.
  LayerKeeps keep(std::int64_t prompt, std::int64_t generation) const;

 private:
  const ModelSource& source_;
  policy::Workload workload_;
  std::string backend_reason_;
  Grace grace_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<offload::DiskStore> disk_;
  policy::SizingInputs sizing_;
  policy::Policy policy_;
  policy::Footprint footprint_;
  std::unique_ptr<PackedCopy> copy_;  // of units at home on disk, where they are quantised
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<Layers> layers_;
  std::unique_ptr<Executor> executor_;
  double load_seconds_ = 0;
};

}  // namespace weft::runtime

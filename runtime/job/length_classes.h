// runtime/job/length_classes.h: requests of very different lengths, planned and run apart.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/job/job_options.h"
#include "runtime/job/job_plan.h"

namespace weft::runtime {

/// Every place of a block has room for the longest request, so a few long ones would make the blocks of all small.
/// Therefore a job may run in classes of lengths, the longest first, each with a layout of its own. The answers do not
/// depend on that.
struct LengthClasses {
  struct One {
    std::vector<std::uint32_t> todo;  ///< ascending
    double seconds = 0;               ///< predicted; 0 if there is one class alone
  };
  std::vector<One> all;
  std::optional<policy::Machine> machine;  ///< that was measured for this

  /// The predicted seconds of the classes after this one.
  double later_seconds(std::size_t index) const;
  /// The requests of the classes after this one, ascending.
  std::vector<std::uint32_t> later(std::size_t index) const;
};

/// Splits `todo` if that is predicted to take less time in all, with what it takes to load the weights once more.
/// Leaves it whole if the policy fixes the block or there is to be a trace, which shows one layout. If it splits,
/// `options` get the retention of the plan, which is that of all classes. Throws what planning throws.
LengthClasses length_classes(JobOptions& options, const ModelSource& source, const RequestFile& requests,
                             const std::vector<std::uint32_t>& todo, bool resumes,
                             std::optional<policy::Machine> machine);

}  // namespace weft::runtime

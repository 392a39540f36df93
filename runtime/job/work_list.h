// runtime/job/work_list.h: the choices that a job computes, in the order in which they take places.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "policy/layout/footprint.h"
#include "runtime/requests/requests.h"

namespace weft::runtime {

/// One choice of a request. It takes a place.
struct WorkItem {
  std::uint32_t request, choice;
};

/// Puts requests in the order in which they take places that are refilled. (Blocks that run to their end take them in
/// the order of the file.) Equal prompts are neighbours, because they share a prefill. The longest answers go first, so
/// that few places are empty for long at the end, and neighbours, which share a batch, are about equally long; in a job
/// that scores, where continuations are short and prompts are not, the longest prompts do. With `sharing`, prompts that
/// begin alike are neighbours: all of them if their prefix has more tokens than their answers, else those of each
/// length.
void put_in_order(std::vector<std::uint32_t>& indices, const RequestFile& requests, bool sharing);

/// The choices of requests in this order, as planning counts them: at most `most` groups of neighbours. `sharing`:
/// whether prefixes are shared.
std::vector<policy::WorkGroup> groups_of(std::span<const std::uint32_t> order, const RequestFile& requests,
                                         bool sharing, std::size_t most = 32);

/// The lengths of the prompts of all choices, the longest first.
std::vector<policy::PromptLength> prompt_lengths_of(std::span<const std::uint32_t> order, const RequestFile& requests);

/// Every choice of some requests, with those of a request next to each other. Takes 4 bytes a request, however many
/// choices it has. `requests` must outlive it.
class WorkList {
 public:
  WorkList(std::vector<std::uint32_t> order, const RequestFile& requests)
      : order_(std::move(order)), requests_(requests) {
    for (const std::uint32_t request : order_) left_ += requests_.entry(request).n;
  }

  /// A position in the list, from the first item to the last. A copy moves independently. The list must outlive it.
  class Walk {
   public:
    explicit Walk(const WorkList& list) : list_(&list), left_(list.left_) {}
    std::size_t left() const { return left_; }
    /// Must not be called at the end.
    WorkItem next() {
      const WorkItem item{list_->order_[at_], choice_};
      --left_;
      if (++choice_ == list_->requests_.entry(item.request).n) choice_ = 0, ++at_;
      return item;
    }

   private:
    const WorkList* list_;
    std::size_t at_ = 0, left_;
    std::uint32_t choice_ = 0;
  };

 private:
  std::vector<std::uint32_t> order_;
  const RequestFile& requests_;
  std::size_t left_ = 0;
};

}  // namespace weft::runtime

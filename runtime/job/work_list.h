// runtime/job/work_list.h: the choices that a job computes, in the order in which they take places.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/requests/requests.h"

namespace weft::runtime {

/// One choice of a request. It takes a place.
struct WorkItem {
  std::uint32_t request, choice;
};

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

#include "runtime/base/line_stream.h"

#include <algorithm>
#include <span>

namespace weft::runtime {

bool LineStream::next() {
  skip_rest();
  if (at_ >= file_.size()) return false;
  offset_ = at_;
  ++number_;
  open_ = true;
  whole_ = false;
  return true;
}

void LineStream::skip_rest() {
  while (open_) piece();
}

std::string_view LineStream::piece() {
  if (!open_) return {};
  if (at_ >= begin_ + buffer_.size()) {
    begin_ = at_;
    buffer_.swap(before_);
    buffer_.resize(std::min<std::uint64_t>(kBytes, file_.size() - at_));
    file_.read(begin_, std::as_writable_bytes(std::span(buffer_)));
  }
  const std::string_view rest = std::string_view(buffer_.data(), buffer_.size()).substr(at_ - begin_);
  const std::size_t newline = rest.find('\n');
  if (newline == 0 || rest.empty()) {
    open_ = false;
    whole_ = newline == 0;
    at_ += whole_ ? 1 : 0;
    return {};
  }
  const std::string_view given = rest.substr(0, newline);
  at_ += given.size();
  return given;
}

}  // namespace weft::runtime

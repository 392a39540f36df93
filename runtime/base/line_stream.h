// runtime/base/line_stream.h: the lines of a file, of any length, without ever holding a whole one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/input_file.h"

namespace weft::runtime {

/// Goes once through the lines of a file, which must outlive it. Lines end with \n, the last one may lack it. What is
/// appended to the file after it was opened is not seen.
class LineStream {
 public:
  explicit LineStream(const InputFile& file) : file_(file) {}

  /// Goes to the next line, past what is left of the present one. False after the last. Throws IoError.
  bool next();
  /// The next bytes of the line, without its newline; empty at its end. Good until the call after the next.
  /// Throws IoError.
  std::string_view piece();
  /// Goes to the end of the line. Throws IoError.
  void skip_rest();

  std::uint64_t offset() const { return offset_; }  ///< of the line's first byte
  std::size_t number() const { return number_; }    ///< of the line, from 1
  /// The offset after the line and its newline. Known at its end.
  std::uint64_t end() const { return at_; }
  /// Whether the line has a newline. Known at its end.
  bool whole() const { return whole_; }

 private:
  static constexpr std::size_t kBytes = 1 << 20;

  const InputFile& file_;
  std::vector<char> buffer_, before_;  // bytes [begin_, begin_ + buffer_.size()) of the file; those before them
  std::uint64_t begin_ = 0;
  std::uint64_t at_ = 0;  // the next byte to give
  std::uint64_t offset_ = 0;
  std::size_t number_ = 0;
  bool whole_ = true, open_ = false;  // open_: the line has bytes that were not given
};

}  // namespace weft::runtime

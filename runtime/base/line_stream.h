// runtime/base/line_stream.h: reads the lines of a file, of any length, without holding a whole line in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/input_file.h"

namespace weft::runtime {

/// Goes once through the lines of a file, which must outlive it. Lines end with \n; the last one may lack it. Bytes
/// that are appended after the file was opened are not seen.
class LineStream {
 public:
  explicit LineStream(const InputFile& file) : file_(file) {}

  /// Skips the rest of the current line and goes to the next. Returns false after the last line. Throws IoError.
  bool next();
  /// The next bytes of the line, without its newline; empty at its end. They stay valid until the call after the next.
  /// Throws IoError.
  std::string_view piece();
  /// Skips to the end of the line. Throws IoError.
  void skip_rest();

  std::uint64_t offset() const { return offset_; }  ///< offset of the line's first byte
  std::size_t number() const { return number_; }    ///< number of the line, from 1
  /// The offset after the line and its newline. Known once the line has been read to its end.
  std::uint64_t end() const { return at_; }
  /// Whether the line has a newline. Known once the line has been read to its end.
  bool whole() const { return whole_; }

 private:
  static constexpr std::size_t kBytes = 1 << 20;

  const InputFile& file_;
  // buffer_ holds the bytes [begin_, begin_ + buffer_.size()) of the file, before_ the bytes before them.
  std::vector<char> buffer_, before_;
  std::uint64_t begin_ = 0;
  std::uint64_t at_ = 0;  // the next byte to return
  std::uint64_t offset_ = 0;
  std::size_t number_ = 0;
  bool whole_ = true, open_ = false;  // open_: the line has bytes left to return
};

}  // namespace weft::runtime

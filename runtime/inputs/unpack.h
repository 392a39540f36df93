// runtime/inputs/unpack.h: a file's bytes in pieces, unpacked if it is compressed by gzip or zstd.
#pragma once

#include <memory>
#include <string_view>

#include "runtime/base/input_file.h"

namespace weft::runtime {

/// Whether the file begins as gzip's and zstd's files do.
bool is_packed(const InputFile& file);

/// Goes once through a file, which must outlive it. How a file is packed is seen from its first bytes.
class Unpacker {
 public:
  explicit Unpacker(const InputFile& file);
  ~Unpacker();
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;

  /// The next bytes, which stay valid until the next call; empty at the end. Throws UsageError where the packed data is
  /// damaged or cut short, IoError.
  std::string_view next();

  class Form;  ///< a way of packing

 private:
  std::unique_ptr<Form> form_;
};

}  // namespace weft::runtime

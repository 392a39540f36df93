#include "runtime/inputs/unpack.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "kernels/error.h"

namespace weft::runtime {
namespace {

constexpr std::size_t kPiece = 1 << 18;
constexpr std::string_view kGzip = "\x1F\x8B", kZstd = "\x28\xB5\x2F\xFD";

std::string first_bytes(const InputFile& file) {
  std::string bytes(std::min<std::uint64_t>(file.size(), 4), '\0');
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace

/// Reads the file; as it is here it unpacks nothing.
class Unpacker::Form {
 public:
  explicit Form(const InputFile& file) : file_(file) {}
  virtual ~Form() = default;
  virtual std::string_view next() { return read() ? std::string_view(in_) : std::string_view{}; }

 protected:
  /// Reads the next piece into in_. Returns false at the end.
  bool read() {
    in_.resize(std::min<std::uint64_t>(kPiece, file_.size() - at_));
    if (in_.empty()) return false;
    file_.read(at_, std::as_writable_bytes(std::span(in_)));
    at_ += in_.size();
    return true;
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw UsageError(file_.path().string() + ": " + what +
                     "; wanted a whole file of gzip or zstd, or one that is not packed");
  }
  [[noreturn]] void refuse_cut() const { refuse("ends amid its packed data"); }
  [[noreturn]] void refuse_damaged(const char* why) const {
    refuse("the packed data before byte " + std::to_string(at_) + " is damaged (" + (why ? why : "unknown") + ")");
  }

  const InputFile& file_;
  std::uint64_t at_ = 0;
  std::string in_, out_ = std::string(kPiece, '\0');
};

namespace {

class Gzip final : public Unpacker::Form {
 public:
  explicit Gzip(const InputFile& file) : Form(file) {
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) throw std::bad_alloc();  // 15 + 16: gzip's header
  }
  ~Gzip() override { inflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  std::string_view next() override {
    while (true) {
      if (stream_.avail_in == 0) {
        if (!read()) {
          if (!between_) refuse_cut();
          return {};
        }
        stream_.next_in = reinterpret_cast<Bytef*>(in_.data());
        stream_.avail_in = static_cast<uInt>(in_.size());
      }
      if (between_) {  // files that follow each other are one; zeros may fill up the last block of a tape or a disk
        while (stream_.avail_in > 0 && *stream_.next_in == 0) ++stream_.next_in, --stream_.avail_in;
        if (stream_.avail_in == 0) continue;
        inflateReset(&stream_);
      }
      between_ = false;
      stream_.next_out = reinterpret_cast<Bytef*>(out_.data());
      stream_.avail_out = static_cast<uInt>(out_.size());
      const int state = inflate(&stream_, Z_NO_FLUSH);
      if (state == Z_MEM_ERROR) throw std::bad_alloc();
      if (state != Z_OK && state != Z_STREAM_END && state != Z_BUF_ERROR) refuse_damaged(stream_.msg);
      between_ = state == Z_STREAM_END;
      if (const std::size_t made = out_.size() - stream_.avail_out; made > 0) return {out_.data(), made};
    }
  }

 private:
  z_stream stream_{};
  bool between_ = false;
};

class Zstd final : public Unpacker::Form {
 public:
  explicit Zstd(const InputFile& file) : Form(file), stream_(ZSTD_createDStream()) {
    if (!stream_) throw std::bad_alloc();
  }
  ~Zstd() override { ZSTD_freeDStream(stream_); }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;

  std::string_view next() override {
    while (true) {
      if (piece_.pos == piece_.size && !full_) {
        if (!read()) {
          if (!between_) refuse_cut();
          return {};
        }
        piece_ = {in_.data(), in_.size(), 0};
      }
      ZSTD_outBuffer out{out_.data(), out_.size(), 0};
      const std::size_t left = ZSTD_decompressStream(stream_, &out, &piece_);
      if (ZSTD_isError(left)) refuse_damaged(ZSTD_getErrorName(left));
      between_ = left == 0;
      full_ = out.pos == out.size;  // there may be more of what is read already
      if (out.pos > 0) return {out_.data(), out.pos};
    }
  }

 private:
  ZSTD_DStream* stream_;
  ZSTD_inBuffer piece_{nullptr, 0, 0};
  bool between_ = false, full_ = false;
};

}  // namespace

bool is_packed(const InputFile& file) {
  const std::string first = first_bytes(file);
  return first.starts_with(kGzip) || first.starts_with(kZstd);
}

Unpacker::Unpacker(const InputFile& file) {
  const std::string first = first_bytes(file);
  if (first.starts_with(kGzip)) form_ = std::make_unique<Gzip>(file);
  else if (first.starts_with(kZstd)) form_ = std::make_unique<Zstd>(file);
  else form_ = std::make_unique<Form>(file);
}

Unpacker::~Unpacker() = default;

std::string_view Unpacker::next() { return form_->next(); }

}  // namespace weft::runtime

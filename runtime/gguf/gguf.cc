#include "runtime/gguf/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <string_view>

#include "runtime/base/quote.h"
#include "runtime/base/utf8.h"

namespace weft::runtime {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint64_t kMostEntries = 1 << 16, kMostTensors = 1 << 20, kMostHeader = std::uint64_t{256} << 20;
constexpr std::uint64_t kLongestKey = 65535, kLongestName = 1024, kLongestText = std::uint64_t{64} << 20;
constexpr std::uint64_t kMostAlignment = 1 << 16;
constexpr const char* kAlignmentKey = "general.alignment";
constexpr int kMostSizes = 4;

enum class Type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, list, u64, i64, f64, count };
constexpr std::array<std::uint64_t, static_cast<std::size_t>(Type::count)> kBytes{1, 1, 2, 2, 4, 4, 4,
                                                                                  1, 8, 0, 8, 8, 8};  // at least

/// Takes the header's bytes from the file, in order.
class Header {
 public:
  explicit Header(const InputFile& file) : file_(file), end_(std::min(file.size(), kMostHeader)) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t rest() const { return end_ - position_; }
  [[noreturn]] void refuse(GgufFault fault, const std::string& what) const {
    throw GgufError(fault, file_.path().string() + ": " + what);
  }

  /// The next bytes, valid until the next call.
  std::string_view take(std::uint64_t bytes, const std::string& what) {
    if (bytes > rest())
      refuse(end_ == kMostHeader ? GgufFault::too_large : GgufFault::too_short,
             what + " at byte " + std::to_string(position_) + " needs " + std::to_string(bytes) + " bytes, " +
                 (end_ == kMostHeader ? "a header may have " + std::to_string(kMostHeader)
                                      : "the file has " + std::to_string(rest()) + " more"));
    if (position_ < first_ || position_ + bytes > first_ + buffer_.size()) fill(bytes);
    const std::string_view taken(buffer_.data() + (position_ - first_), static_cast<std::size_t>(bytes));
    position_ += bytes;
    return taken;
  }
  template <class T> T number(const std::string& what) {
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }
  std::string text(std::uint64_t longest, const std::string& what) {
    const auto length = number<std::uint64_t>("the length of " + what);
    if (length > longest && length <= rest())
      refuse(GgufFault::too_large, what + " at byte " + std::to_string(position_) + " has " + std::to_string(length) +
                                       " bytes, at most " + std::to_string(longest));
    return std::string(take(length, what));
  }

 private:
  void fill(std::uint64_t bytes) {
    constexpr std::uint64_t kPiece = 1 << 20;
    first_ = position_;
    buffer_.resize(static_cast<std::size_t>(std::min(std::max(bytes, kPiece), rest())));
    file_.read(first_, std::as_writable_bytes(std::span(buffer_)));
  }

  const InputFile& file_;
  std::uint64_t end_, position_ = 0, first_ = 0;
  std::string buffer_;
};

/// Reads the entries of the metadata.
class MetadataReader {
 public:
  explicit MetadataReader(Header& header) : header_(header) {}

  void read_entry(std::map<std::string, GgufValue>& metadata) {
    std::string key = header_.text(kLongestKey, "a key of the metadata");
    if (key.empty() || !is_utf8(key))
      header_.refuse(GgufFault::bad_key, "a key of the metadata that ends at byte " +
                                             std::to_string(header_.position()) + " is empty or no UTF-8");
    place_ = "the metadata's " + in_quotes(key);
    const auto type = read_type();
    GgufValue value = type == Type::list ? read_list() : read_value(type);
    if (!metadata.emplace(std::move(key), std::move(value)).second)
      header_.refuse(GgufFault::duplicate_key, place_ + " is there twice");
  }

 private:
  Type read_type() {
    const auto type = header_.number<std::uint32_t>("the type of " + place_);
    if (type >= static_cast<std::uint32_t>(Type::count))
      header_.refuse(GgufFault::bad_value_type, place_ + " has the type " + std::to_string(type) + ", wanted 0 to 12");
    return static_cast<Type>(type);
  }

  std::int64_t read_integer(Type type) {
    switch (type) {
      case Type::u8: return header_.number<std::uint8_t>(place_);
      case Type::i8: return header_.number<std::int8_t>(place_);
      case Type::u16: return header_.number<std::uint16_t>(place_);
      case Type::i16: return header_.number<std::int16_t>(place_);
      case Type::u32: return header_.number<std::uint32_t>(place_);
      case Type::i32: return header_.number<std::int32_t>(place_);
      case Type::i64: return header_.number<std::int64_t>(place_);
      case Type::boolean: {
        const auto value = header_.number<std::uint8_t>(place_);
        if (value > 1)
          header_.refuse(GgufFault::bad_value, place_ + " is a bool of " + std::to_string(value) + ", wanted 0 or 1");
        return value;
      }
      default: {
        const auto value = header_.number<std::uint64_t>(place_);
        if (value > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
          header_.refuse(GgufFault::bad_value, place_ + " is " + std::to_string(value) + ", wanted less than 2^63");
        return static_cast<std::int64_t>(value);
      }
    }
  }
  double read_float(Type type) {
    return type == Type::f32 ? double{header_.number<float>(place_)} : header_.number<double>(place_);
  }

  GgufValue read_value(Type type) {
    if (type == Type::text) return header_.text(kLongestText, place_);
    if (type == Type::f32 || type == Type::f64) return read_float(type);
    const std::int64_t value = read_integer(type);
    if (type == Type::boolean) return value != 0;
    return value;
  }

  template <class T, class Read> std::vector<T> read_items(std::uint64_t count, const Read& read) {
    std::vector<T> items;
    items.reserve(static_cast<std::size_t>(count));
    for (std::uint64_t i = 0; i < count; ++i) items.push_back(read());
    return items;
  }

  GgufValue read_list() {
    const Type type = read_type();
    const auto count = header_.number<std::uint64_t>("the length of " + place_);
    if (type == Type::list)
      header_.refuse(GgufFault::bad_value_type, place_ + " is a list of lists, which is not read");
    if (count > header_.rest() / kBytes[static_cast<std::size_t>(type)])
      header_.refuse(GgufFault::too_short, place_ + " is a list of " + std::to_string(count) + ", the file has " +
                                               std::to_string(header_.rest()) + " more bytes");
    if (type == Type::text) return read_items<std::string>(count, [&] { return header_.text(kLongestText, place_); });
    if (type == Type::f32 || type == Type::f64) return read_items<double>(count, [&] { return read_float(type); });
    return read_items<std::int64_t>(count, [&] { return read_integer(type); });
  }

  Header& header_;
  std::string place_;
};

/// Reads an entry of the list of tensors. Its offset is still that after the header.
GgufTensor read_tensor_entry(Header& header) {
  GgufTensor tensor{.name = header.text(kLongestName, "a tensor's name"), .shape = {}};
  const std::string where = "tensor " + in_quotes(tensor.name);
  if (tensor.name.empty() || !is_utf8(tensor.name))
    header.refuse(GgufFault::bad_name, where + " has no name, or one that is no UTF-8");
  const auto sizes = header.number<std::uint32_t>("the number of sizes of " + where);
  if (sizes < 1 || sizes > kMostSizes)
    header.refuse(GgufFault::bad_shape, where + " has " + std::to_string(sizes) + " sizes, wanted 1 to 4");
  std::uint64_t elements = 1;
  constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
  for (std::uint32_t i = 0; i < sizes; ++i) {
    const auto size = header.number<std::uint64_t>("a size of " + where);
    if (size == 0 || size > kMost / elements)
      header.refuse(GgufFault::bad_shape,
                    where + " has a size of " + std::to_string(size) + ", wanted 1 or more and less than 2^60 in all");
    elements *= size;
    tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
  }
  const auto type = header.number<std::uint32_t>("the type of " + where);
  tensor.format = block_format(type);
  if (!tensor.format)
    header.refuse(GgufFault::bad_type, where + " is stored as " + block_format_name(type) +
                                           ", which is not read; read are " + block_format_names() +
                                           ": use a file in one of these");
  const auto of_block = static_cast<std::int64_t>(tensor.format->numbers);
  if (tensor.shape.back() % of_block != 0)
    header.refuse(GgufFault::bad_shape, where + " has rows of " + std::to_string(tensor.shape.back()) +
                                            " numbers, which do not fill blocks of " + std::to_string(of_block) + " (" +
                                            tensor.format->name + ")");
  tensor.bytes = elements / static_cast<std::uint64_t>(of_block) * static_cast<std::uint64_t>(tensor.format->bytes);
  tensor.offset = header.number<std::uint64_t>("the offset of " + where);
  return tensor;
}

/// Turns offsets into places in the file, and checks them.
/// The next multiple of the alignment.
std::uint64_t aligned(std::uint64_t bytes, std::uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// What the tensors' offsets are multiples of. A later part need not say it: llama.cpp's tools then pad it by the
/// default, gguf-py as the first part says. Only the one that was used leads to the end of the file.
std::uint64_t alignment_of(const Gguf& gguf, std::uint64_t of_first, std::uint64_t file_bytes) {
  const auto own = static_cast<std::uint64_t>(
      gguf.integer(kAlignmentKey, 0, std::numeric_limits<std::int64_t>::max(), kDefaultAlignment));
  if (gguf.metadata.contains(kAlignmentKey)) return own;
  std::uint64_t end = 0;
  for (const GgufTensor& tensor : gguf.tensors)
    if (tensor.offset <= file_bytes && tensor.bytes <= file_bytes) end = std::max(end, tensor.offset + tensor.bytes);
  const auto fits = [&](std::uint64_t alignment) {
    const std::uint64_t begin = aligned(gguf.header_bytes, alignment);
    return begin + end == file_bytes || begin + aligned(end, alignment) == file_bytes;
  };
  return !fits(own) && fits(of_first) ? of_first : own;
}

void place_tensors(Gguf& gguf, const Header& header, std::uint64_t file_bytes) {
  const std::uint64_t alignment = gguf.alignment;
  if (!std::has_single_bit(alignment) || alignment > kMostAlignment)
    header.refuse(GgufFault::bad_alignment, "'general.alignment' is " + std::to_string(alignment) +
                                                ", wanted a power of two up to " + std::to_string(kMostAlignment));
  const std::uint64_t begin = aligned(gguf.header_bytes, alignment);
  std::vector<const GgufTensor*> sorted;
  for (GgufTensor& tensor : gguf.tensors) {
    const std::string where = "tensor " + in_quotes(tensor.name);
    if (tensor.offset % alignment != 0)
      header.refuse(GgufFault::bad_offset, where + " begins at offset " + std::to_string(tensor.offset) +
                                               ", wanted a multiple of " + std::to_string(alignment));
    if (begin > file_bytes || tensor.offset > file_bytes - begin || tensor.bytes > file_bytes - begin - tensor.offset)
      header.refuse(GgufFault::past_end, where + " of " + std::to_string(tensor.bytes) + " bytes at offset " +
                                             std::to_string(tensor.offset) + " ends beyond the file of " +
                                             std::to_string(file_bytes) + " bytes; download it again");
    tensor.offset += begin;
    sorted.push_back(&tensor);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (std::size_t i = 1; i < sorted.size(); ++i)
    if (sorted[i - 1]->offset + sorted[i - 1]->bytes > sorted[i]->offset)
      header.refuse(GgufFault::overlap, "tensors " + in_quotes(sorted[i - 1]->name) + " and " +
                                            in_quotes(sorted[i]->name) + " overlap at byte " +
                                            std::to_string(sorted[i]->offset));
}

}  // namespace

bool is_gguf(const std::filesystem::path& path) {
  std::array<char, 4> magic{};
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::ifstream(path, std::ios::binary).read(magic.data(), magic.size());
  return std::string_view(magic.data(), magic.size()) == kMagic;
}

Gguf read_gguf(const InputFile& file, std::uint64_t alignment_of_first) {
  Header header(file);
  Gguf gguf{.path = file.path(), .metadata = {}, .tensors = {}};
  if (header.take(kMagic.size(), "the first word") != kMagic)
    header.refuse(GgufFault::wrong_magic, "is no GGUF file: it does not begin with GGUF");
  const auto version = header.number<std::uint32_t>("the version");
  if (version != 2 && version != 3)
    header.refuse(GgufFault::bad_version, (version & 0xFFFF) == 0
                                              ? "is a GGUF file for big-endian machines, which is not read"
                                              : "is GGUF of version " + std::to_string(version) + "; read are 2 and 3");
  const auto tensors = header.number<std::uint64_t>("the number of tensors");
  const auto entries = header.number<std::uint64_t>("the number of entries of the metadata");
  if (tensors > kMostTensors || entries > kMostEntries)
    header.refuse(GgufFault::too_large, "says that it has " + std::to_string(tensors) + " tensors and " +
                                            std::to_string(entries) + " entries of metadata, at most " +
                                            std::to_string(kMostTensors) + " and " + std::to_string(kMostEntries));
  MetadataReader metadata(header);
  for (std::uint64_t i = 0; i < entries; ++i) metadata.read_entry(gguf.metadata);
  std::set<std::string> names;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    gguf.tensors.push_back(read_tensor_entry(header));
    if (!names.insert(gguf.tensors.back().name).second)
      header.refuse(GgufFault::duplicate_tensor, "tensor " + in_quotes(gguf.tensors.back().name) + " is there twice");
  }
  gguf.header_bytes = header.position();
  gguf.state = file.state();
  gguf.alignment = alignment_of(gguf, alignment_of_first, file.size());
  place_tensors(gguf, header, file.size());
  return gguf;
}

}  // namespace weft::runtime

// runtime/checkpoint/safetensors.cc: a state machine over nlohmann's lexer. It builds nothing that the format does not
// have.
#include "runtime/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "offload/memory.h"
#include "policy/base/json.h"
#include "runtime/base/quote.h"
#include "runtime/checkpoint/checkpoint_error.h"

namespace weft::runtime {

using nlohmann::json;

namespace {

constexpr std::uint64_t kPrefix = 8;  // the header's length, little-endian
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;
constexpr std::size_t kMostTensors = 1'000'000, kMostNameBytes = 1024, kMostHeaderDimensions = 8;
constexpr std::uint64_t kMostRows = std::uint64_t{1} << 48;
constexpr std::size_t kMostMetadataBytes = std::size_t{16} << 20;
constexpr std::string_view kWhiteSpace = " \t\r\n";

// The format's types that are smaller than a byte. Weft computes with none of them.
constexpr std::array<std::string_view, 3> kPartsOfBytes{"F4", "F6_E2M3", "F6_E3M2"};

// The other types, with the bytes of one element.
constexpr std::array<std::pair<std::string_view, unsigned>, 19> kDtypes{{
    {"BOOL", 1},        {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1}, {"F8_E4M3FNUZ", 1},
    {"F8_E5M2FNUZ", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},     {"BF16", 2},    {"I32", 4},     {"U32", 4},
    {"F32", 4},         {"C64", 8}, {"F64", 8}, {"I64", 8},     {"U64", 8},
}};

const char* remedy(Fault fault) {
  switch (fault) {
    case Fault::wrong_file: return "";
    case Fault::too_small:
    case Fault::header_past_end:
    case Fault::data_past_end: return " (cut off? download it again)";
    case Fault::header_too_large: return " (not a safetensors file?)";
    default: return "; the file is damaged or badly made: download it again, or write it with the safetensors package";
  }
}

[[noreturn]] void fail(Fault fault, const std::string& where, const std::string& what) {
  throw CheckpointError(fault, where + ": " + what + remedy(fault));
}

/// Describes a file that is not a safetensors file, if its first bytes show what it is.
const char* other_kind(std::string_view head) {
  const auto begins = [head](std::string_view magic) { return head.substr(0, magic.size()) == magic; };
  if (begins("version https://git-lfs")) return "a git-lfs pointer, not the file itself: run git lfs pull";
  if (begins("PK\x03\x04")) return "a zip archive (a PyTorch .bin checkpoint?): convert it to safetensors";
  if (begins("\x80\x02\x8A\x0A")) return "a Python pickle (an old PyTorch .bin checkpoint?): convert it to safetensors";
  if (begins("GGUF")) return "a GGUF file: use the safetensors checkpoint that it was made from";
  // '<' alone could also be the length 60.
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  if (begins("<") && head.size() > 1 && (head[1] == '!' || head[1] == '?' || letter(head[1])))
    return "an HTML or XML page, not a checkpoint: download it again, with access to it";
  return nullptr;
}

/// Takes nlohmann's events, after which the functions are named, and refuses the first that the format does not allow
/// at its place.
class HeaderReader {
 public:
  HeaderReader(std::uint64_t data_bytes, std::uint64_t data_begin, const std::string& where)
      : where_(where), data_bytes_(data_bytes), data_begin_(data_begin) {}

  std::vector<TensorInfo> take() { return std::move(tensors_); }
  void keep_metadata(Metadata* metadata) { metadata_ = metadata; }

  bool null() {
    if (at_ != At::metadata) return refuse_value();
    at_ = At::tensor;  // as the format's own library reads it
    return true;
  }
  bool boolean(bool) { return refuse_value(); }
  bool number_integer(std::int64_t) { return refuse_value(); }  // only negative ones come here
  bool binary(json::binary_t&) { return refuse_value(); }

  bool number_unsigned(std::uint64_t value) {
    if (at_ == At::dimension) {
      if (shape_.size() == kMostHeaderDimensions)
        fail(Fault::bad_shape, where_,
             tensor() + " has more than " + std::to_string(kMostHeaderDimensions) + " dimensions");
      shape_.push_back(value);
    } else if (at_ == At::offset && offsets_.size() < 2) {
      offsets_.push_back(value);
    } else {
      return refuse_value();
    }
    return true;
  }

  bool number_float(double, const std::string& token) {
    const bool whole = token.find_first_not_of("0123456789") == std::string::npos;
    if (at_ == At::dimension && whole) fail(Fault::shape_too_large, where_, tensor() + " has a dimension over 64 bits");
    return refuse_value();
  }

  bool string(std::string& value) {
    if (at_ == At::dtype) {
      const auto known = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& d) { return d.first == value; });
      if (std::find(kPartsOfBytes.begin(), kPartsOfBytes.end(), value) != kPartsOfBytes.end())
        throw CheckpointError(Fault::bad_dtype,
                              where_ + ": " + tensor() + " is stored as " + value +
                                  ", which Weft does not compute with; get the checkpoint in bfloat16 "
                                  "or float16");
      if (known == kDtypes.end())
        fail(Fault::bad_dtype, where_, tensor() + " has the unknown dtype " + in_quotes(value));
      current_.dtype = std::move(value);
      element_bytes_ = known->second;
      at_ = At::field;
    } else if (at_ == At::metadata_value) {
      if (value.size() > kMostMetadataBytes)
        fail(Fault::bad_metadata, where_, "__metadata__ of " + in_quotes(metadata_key_) + " is over 16 MiB");
      if (metadata_) (*metadata_)[metadata_key_] = std::move(value);
      at_ = At::metadata_key;
    } else {
      return refuse_value();
    }
    return true;
  }

  bool start_object(std::size_t) {
    switch (at_) {
      case At::begin: at_ = At::tensor; return true;
      case At::entry: at_ = At::field; return true;
      case At::metadata: at_ = At::metadata_key; return true;
      default: return refuse_value();
    }
  }

  bool end_object() {
    if (at_ == At::field) finish_tensor();
    at_ = At::tensor;  // the lexer refuses whatever follows the outermost object
    return true;
  }

  bool start_array(std::size_t) {
    if (at_ == At::shape) at_ = At::dimension;
    else if (at_ == At::offsets) at_ = At::offset;
    else return refuse_value();
    return true;
  }

  bool end_array() {
    if (at_ == At::offset && offsets_.size() != 2) refuse_value();
    at_ = At::field;
    return true;
  }

  bool key(std::string& name) {
    if (at_ == At::metadata_key) {
      if (!metadata_keys_.insert(name).second)
        fail(Fault::duplicate_field, where_, "__metadata__ has " + in_quotes(name) + " twice");
      metadata_key_ = name;
      at_ = At::metadata_value;
    } else if (at_ == At::field) {
      begin_field(name);
    } else if (name == "__metadata__") {
      if (std::exchange(has_metadata_, true)) fail(Fault::duplicate_field, where_, "__metadata__ appears twice");
      at_ = At::metadata;
    } else {
      begin_tensor(name);
    }
    return true;
  }

  /// nlohmann's own message shows a piece of the file, so only the place is kept.
  bool parse_error(std::size_t position, const std::string&, const json::exception&) {
    fail(Fault::invalid_json, where_,
         "the header is not valid JSON at byte " + std::to_string(kPrefix + (position > 0 ? position - 1 : 0)));
  }

 private:
  enum class At : std::uint8_t {
    begin,
    tensor,
    entry,
    field,
    dtype,
    shape,
    dimension,
    offsets,
    offset,
    metadata,
    metadata_key,
    metadata_value
  };

  std::string tensor() const { return "tensor " + in_quotes(current_.name); }

  void begin_tensor(const std::string& name) {
    if (name.empty() || name.size() > kMostNameBytes)
      fail(Fault::bad_name, where_,
           "a tensor has a name of " + std::to_string(name.size()) + " bytes, wanted 1 to " +
               std::to_string(kMostNameBytes));
    if (tensors_.size() == kMostTensors)
      fail(Fault::too_many_tensors, where_, "there are more than " + std::to_string(kMostTensors) + " tensors");
    current_ = {};
    current_.name = name;
    shape_.clear();
    offsets_.clear();
    has_dtype_ = has_shape_ = has_offsets_ = false;
    at_ = At::entry;
  }

  void begin_field(const std::string& name) {
    const auto once = [&](bool& has, At next) {
      if (std::exchange(has, true))
        fail(Fault::duplicate_field, where_, tensor() + " has " + in_quotes(name) + " twice");
      at_ = next;
    };
    if (name == "dtype") once(has_dtype_, At::dtype);
    else if (name == "shape") once(has_shape_, At::shape);
    else if (name == "data_offsets") once(has_offsets_, At::offsets);
    else fail(Fault::unknown_field, where_, tensor() + " has the unknown field " + in_quotes(name));
  }

  /// Refuses a value of the wrong type or in the wrong place. The lexer ensures that every state gets some value or
  /// end.
  bool refuse_value() {
    switch (at_) {
      case At::entry: fail(Fault::bad_entry, where_, "the entry of " + tensor() + " is not an object");
      case At::dtype: fail(Fault::bad_dtype, where_, tensor() + " has a dtype that is not a string");
      case At::shape:
      case At::dimension:
        fail(Fault::bad_shape, where_, tensor() + " has a shape that is not an array of whole numbers");
      case At::offsets:
      case At::offset: fail(Fault::bad_offsets, where_, tensor() + " has data_offsets that are not two whole numbers");
      case At::metadata: fail(Fault::bad_metadata, where_, "__metadata__ is not an object");
      case At::metadata_value:
        fail(Fault::bad_metadata, where_, "__metadata__ of " + in_quotes(metadata_key_) + " is not a string");
      default: fail(Fault::not_an_object, where_, "the header is not an object");
    }
  }

  std::uint64_t needed_bytes() const {
    if (std::find(shape_.begin(), shape_.end(), 0u) != shape_.end()) return 0;
    std::uint64_t bytes = element_bytes_;
    for (const std::uint64_t dimension : shape_)
      if (dimension > kMostRows || __builtin_mul_overflow(bytes, dimension, &bytes))
        fail(Fault::shape_too_large, where_, tensor() + " has a shape that no file can hold");
    return bytes;
  }

  void finish_tensor() {
    for (const auto& [has, field] :
         {std::pair{has_dtype_, "dtype"}, {has_shape_, "shape"}, {has_offsets_, "data_offsets"}})
      if (!has) fail(Fault::missing_field, where_, tensor() + " has no '" + field + "'");
    const std::uint64_t begin = offsets_[0], end = offsets_[1], bytes = needed_bytes();
    if (end < begin) fail(Fault::bad_offsets, where_, tensor() + " ends before it begins");
    if (end > data_bytes_)
      fail(Fault::data_past_end, where_,
           tensor() + " ends at byte " + std::to_string(end) + " of the data, but the file has " +
               std::to_string(data_bytes_) + " bytes of data");
    if (end - begin != bytes)
      fail(Fault::size_mismatch, where_,
           tensor() + ": shape and dtype need " + std::to_string(bytes) + " bytes but data_offsets give " +
               std::to_string(end - begin));
    // Only an empty tensor can have a dimension that does not fit; no model needs one.
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    for (const std::uint64_t dimension : shape_)
      current_.shape.push_back(static_cast<std::int64_t>(std::min(dimension, kMost)));
    current_.offset = data_begin_ + begin;
    current_.bytes = bytes;
    tensors_.push_back(std::move(current_));
  }

  const std::string& where_;
  const std::uint64_t data_bytes_, data_begin_;
  At at_ = At::begin;
  bool has_metadata_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::set<std::string> metadata_keys_;
  std::string metadata_key_;
  Metadata* metadata_ = nullptr;
  TensorInfo current_;
  unsigned element_bytes_ = 0;
  std::vector<std::uint64_t> shape_, offsets_;
  std::vector<TensorInfo> tensors_;
};

void check_names(std::vector<TensorInfo>& tensors, const std::string& where) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != tensors.end())
    fail(Fault::duplicate_tensor, where, "tensor " + in_quotes(twice->name) + " appears twice");
}

/// Sorts by offset. An empty tensor shares its beginning with the next one, hence the second key.
void check_layout(std::vector<TensorInfo>& tensors, std::uint64_t data_begin, std::uint64_t file_bytes,
                  const std::string& where) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::pair{a.offset, a.bytes} < std::pair{b.offset, b.bytes};
  });
  std::uint64_t reached = data_begin;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset < reached)
      fail(Fault::overlap, where, "tensor " + in_quotes(tensor.name) + " overlaps the one before it");
    if (tensor.offset > reached)
      fail(Fault::hole, where,
           "there is a hole of " + std::to_string(tensor.offset - reached) + " bytes before tensor " +
               in_quotes(tensor.name));
    reached = tensor.offset + tensor.bytes;
  }
  if (reached != file_bytes)
    fail(Fault::trailing_data, where,
         "there are " + std::to_string(file_bytes - reached) + " bytes after the last tensor");
}

void check_first_byte(std::string_view header, const std::string& where) {
  const std::size_t first = header.find_first_not_of(kWhiteSpace);
  if (first == std::string_view::npos) fail(Fault::header_empty, where, "the header is empty");
  if (header[first] != '{') {  // this refuses a byte order mark too, which nlohmann would skip
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    const auto byte = static_cast<unsigned char>(header[first]);
    fail(Fault::not_an_object, where,
         std::string("the header begins with byte 0x") + kDigits[byte / 16] + kDigits[byte % 16] + ", not with '{'");
  }
  // nlohmann would take NUL for the end of the text.
  if (const auto nul = header.find('\0'); nul != std::string_view::npos)
    fail(Fault::invalid_json, where, "the header is not valid JSON at byte " + std::to_string(kPrefix + nul));
}

}  // namespace

std::uint64_t safetensors_header_bytes(std::string_view head, std::uint64_t file_bytes, const std::string& where) {
  const auto refuse = [&](Fault fault, const std::string& what) {
    if (const char* kind = other_kind(head)) fail(Fault::wrong_file, where, std::string("this is ") + kind);
    fail(fault, where, what);
  };
  const std::string size = std::to_string(file_bytes);
  if (file_bytes < kPrefix || head.size() < kPrefix)
    refuse(Fault::too_small, "the file has " + size + " bytes; a safetensors file has at least 8");
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < kPrefix; ++i) bytes |= std::uint64_t{static_cast<unsigned char>(head[i])} << (8 * i);
  // The limit is checked before the file's end, because a file of another kind nearly always breaks it.
  if (bytes > kMostHeaderBytes)
    refuse(Fault::header_too_large, "header length " + std::to_string(bytes) + " is over the limit of " +
                                        std::to_string(kMostHeaderBytes) + " bytes");
  if (bytes > file_bytes - kPrefix)
    refuse(Fault::header_past_end,
           "header length " + std::to_string(bytes) + " is past the end of the " + size + "-byte file");
  if (bytes == 0) refuse(Fault::header_empty, "the header is empty");
  return bytes;
}

std::vector<TensorInfo> parse_safetensors_header(std::string_view header, std::uint64_t file_bytes,
                                                 const std::string& where, Metadata* metadata) {
  check_first_byte(header, where);
  const std::uint64_t data_begin = kPrefix + header.size();
  HeaderReader reader(file_bytes - data_begin, data_begin, where);
  reader.keep_metadata(metadata);
  json::sax_parse(header.begin(), header.end(), &reader);
  std::vector<TensorInfo> tensors = reader.take();
  check_names(tensors, where);
  check_layout(tensors, data_begin, file_bytes, where);
  return tensors;
}

std::vector<TensorInfo> read_safetensors(const InputFile& file, Metadata* metadata) {
  const std::string where = file.path().string();
  std::string head(static_cast<std::size_t>(std::min<std::uint64_t>(kSafetensorsHeadBytes, file.size())), '\0');
  file.read(0, std::as_writable_bytes(std::span(head)));
  std::string header(static_cast<std::size_t>(safetensors_header_bytes(head, file.size(), where)), '\0');
  file.read(kPrefix, std::as_writable_bytes(std::span(header)));
  return parse_safetensors_header(header, file.size(), where, metadata);
}

std::string safetensors_head(const nlohmann::ordered_json& header) {
  std::string text = policy::to_line(header);
  text.append((offload::kPage - (kPrefix + text.size()) % offload::kPage) % offload::kPage, ' ');
  const std::uint64_t length = text.size();
  std::string bytes(kPrefix, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + text;
}

}  // namespace weft::runtime

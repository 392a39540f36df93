#include "runtime/pieces/model_file.h"

#include <bit>
#include <cmath>
#include <unordered_set>

#include "kernels/error.h"
#include "runtime/base/utf8.h"

namespace weft::runtime {

namespace {

constexpr std::size_t kMostPieces = std::size_t{1} << 22;

/// A field of a message. A number or the bytes of a text, by its wire type.
struct Field {
  std::uint32_t number = 0;
  enum class Wire : std::uint8_t { varint, fixed64, bytes, fixed32 } wire = Wire::varint;
  std::uint64_t value = 0;
  std::string_view bytes;
  std::size_t at = 0;  // where the field begins in the file
};

/// Reads the fields of a message that lies in a file at [begin, end).
class Fields {
 public:
  Fields(std::string_view file, std::size_t begin, std::size_t end, const std::string& where)
      : file_(file), at_(begin), end_(end), where_(where) {}

  [[noreturn]] void refuse(std::size_t at, const std::string& what) const {
    throw DataError(where_ + ": byte " + std::to_string(at) + ": " + what);
  }

  /// Reads the next field; false at the end of the message.
  bool next(Field& field) {
    if (at_ == end_) return false;
    field = {};
    field.at = at_;
    const std::uint64_t tag = varint("a field's tag");
    if (tag >> 3 == 0 || tag >> 3 > 0x1FFFFFFF) refuse(field.at, "field " + std::to_string(tag >> 3) + " cannot be");
    field.number = static_cast<std::uint32_t>(tag >> 3);
    switch (tag & 7) {
      case 0:
        field.wire = Field::Wire::varint;
        field.value = varint("a number");
        return true;
      case 1:
        field.wire = Field::Wire::fixed64;
        field.value = fixed(8);
        return true;
      case 2: {
        field.wire = Field::Wire::bytes;
        const std::uint64_t size = varint("a size");
        if (size > end_ - at_)
          refuse(field.at, "field " + std::to_string(field.number) + " has " + std::to_string(size) + " bytes, but " +
                               std::to_string(end_ - at_) + " are left");
        field.bytes = file_.substr(at_, size);
        at_ += size;
        return true;
      }
      case 5:
        field.wire = Field::Wire::fixed32;
        field.value = fixed(4);
        return true;
      default:
        refuse(field.at, "wire type " + std::to_string(tag & 7) + " of field " + std::to_string(field.number) +
                             " is not one of 0, 1, 2 and 5");
    }
  }

  void expect(const Field& field, Field::Wire wire, const char* name) const {
    static constexpr const char* kNames[] = {"varint", "fixed64", "bytes", "fixed32"};
    if (field.wire != wire)
      // append(): for a sum of strings g++ 12 warns of bounds that it does not leave.
      refuse(field.at, std::string(name)
                           .append(" is ")
                           .append(kNames[static_cast<int>(field.wire)])
                           .append(", wanted ")
                           .append(kNames[static_cast<int>(wire)]));
  }
  bool boolean(const Field& field, const char* name) const {
    expect(field, Field::Wire::varint, name);
    return field.value != 0;
  }
  std::int32_t integer(const Field& field, const char* name) const {
    expect(field, Field::Wire::varint, name);
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(field.value));  // negative ones have ten bytes
  }
  std::string text(const Field& field, const char* name) const {
    expect(field, Field::Wire::bytes, name);
    if (field.bytes.size() > kLongestPiece)
      refuse(field.at, std::string(name) + " has " + std::to_string(field.bytes.size()) + " bytes, at most " +
                           std::to_string(kLongestPiece));
    if (!is_utf8(field.bytes)) refuse(field.at, std::string(name) + " is not UTF-8");
    return std::string(field.bytes);
  }
  /// The fields of a message within this one.
  Fields inside(const Field& field, const char* name) const {
    expect(field, Field::Wire::bytes, name);
    const auto begin = static_cast<std::size_t>(field.bytes.data() - file_.data());
    return {file_, begin, begin + field.bytes.size(), where_};
  }

 private:
  std::uint64_t varint(const char* what) {
    const std::size_t begin = at_;
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
      if (at_ == end_) refuse(begin, std::string(what) + " is cut off");
      const auto byte = static_cast<unsigned char>(file_[at_++]);
      if (shift == 63 && byte > 1) break;
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    refuse(begin, std::string(what) + " has more than 64 bits");
  }
  std::uint64_t fixed(std::size_t size) {
    if (size > end_ - at_) refuse(at_, "a number of " + std::to_string(size) + " bytes is cut off");
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i)
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(file_[at_++])) << (8 * i);
    return value;
  }

  std::string_view file_;
  std::size_t at_, end_;
  const std::string& where_;
};

PieceModel::Piece read_piece(Fields fields, std::size_t at) {
  PieceModel::Piece piece;
  for (Field field; fields.next(field);) {
    if (field.number == 1) piece.text = fields.text(field, "a piece");
    else if (field.number == 2) {
      fields.expect(field, Field::Wire::fixed32, "a score");
      piece.score = std::bit_cast<float>(static_cast<std::uint32_t>(field.value));
      if (!std::isfinite(piece.score)) fields.refuse(field.at, "a score is not finite");
    } else if (field.number == 3) {
      const std::int32_t type = fields.integer(field, "a type");
      if (type < 1 || type > 6) fields.refuse(field.at, "type " + std::to_string(type) + " of a piece is not 1 to 6");
      piece.type = static_cast<PieceModel::Type>(type);
    }
  }
  if (piece.text.empty()) fields.refuse(at, "a piece has no text");
  return piece;
}

void read_trainer(Fields fields, PieceModel& model) {
  for (Field field; fields.next(field);) {
    switch (field.number) {
      case 3: {
        const std::int32_t type = fields.integer(field, "model_type");
        if (type < 1 || type > 4) fields.refuse(field.at, "model_type " + std::to_string(type) + " is not 1 to 4");
        model.algorithm = static_cast<PieceModel::Algorithm>(type);
        break;
      }
      case 24: model.whitespace_as_suffix = fields.boolean(field, "treat_whitespace_as_suffix"); break;
      case 35: model.byte_fallback = fields.boolean(field, "byte_fallback"); break;
      case 40: model.unknown_id = fields.integer(field, "unk_id"); break;
      case 41: model.begin_id = fields.integer(field, "bos_id"); break;
      case 42: model.end_id = fields.integer(field, "eos_id"); break;
      case 45: model.unknown = fields.text(field, "unk_piece"); break;
      case 46: model.begin = fields.text(field, "bos_piece"); break;
      case 47: model.end = fields.text(field, "eos_piece"); break;
      default: break;  // how it was trained
    }
  }
}

void read_normalizer(Fields fields, PieceModel& model) {
  for (Field field; fields.next(field);) {
    switch (field.number) {
      case 2:
        fields.expect(field, Field::Wire::bytes, "precompiled_charsmap");
        model.charsmap = field.bytes;
        break;
      case 3: model.dummy_prefix = fields.boolean(field, "add_dummy_prefix"); break;
      case 4: model.removes_extra_spaces = fields.boolean(field, "remove_extra_whitespaces"); break;
      case 5: model.escapes_spaces = fields.boolean(field, "escape_whitespaces"); break;
      default: break;  // names, and rules that the charsmap was made of
    }
  }
}

}  // namespace

PieceModel read_piece_model(std::string_view bytes, const std::string& where) {
  PieceModel model;
  std::unordered_set<std::string> texts;
  Fields fields(bytes, 0, bytes.size(), where);
  for (Field field; fields.next(field);) {
    if (field.number == 1) {
      PieceModel::Piece piece = read_piece(fields.inside(field, "a piece"), field.at);
      if (!texts.insert(piece.text).second)
        fields.refuse(field.at, "the text of piece " + std::to_string(model.pieces.size()) + " is that of another one");
      if (model.pieces.size() == kMostPieces)
        fields.refuse(field.at, "more than " + std::to_string(kMostPieces) + " pieces");
      model.pieces.push_back(std::move(piece));
    } else if (field.number == 2) {
      read_trainer(fields.inside(field, "trainer_spec"), model);
    } else if (field.number == 3) {
      read_normalizer(fields.inside(field, "normalizer_spec"), model);
    }
  }
  if (model.pieces.empty()) fields.refuse(bytes.size(), "no pieces, so this is no model of SentencePiece");
  return model;
}

}  // namespace weft::runtime

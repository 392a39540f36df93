#include "runtime/pieces/charsmap.h"

#include <utf8proc.h>

#include "kernels/error.h"
#include "runtime/base/utf8.h"

namespace weft::runtime {

namespace {

std::uint32_t word_at(std::string_view bytes, std::size_t at) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < 4; ++i)
    word |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return word;
}

// The parts of a unit of the double array.
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t label(std::uint32_t unit) { return unit & (1u << 31 | 0xFF); }
std::uint32_t offset(std::uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }
std::uint32_t value(std::uint32_t unit) { return unit & 0x7FFFFFFF; }

}  // namespace

Charsmap::Charsmap(std::string_view bytes) {
  if (bytes.size() < 4) throw UsageError("ends at byte " + std::to_string(bytes.size()) + ", before its size");
  const std::uint32_t size = word_at(bytes, 0);
  if (size == 0 || size % 4 != 0 || size > bytes.size() - 4)
    throw UsageError("has at byte 0 an array of " + std::to_string(size) + " bytes, wanted a multiple of 4 up to " +
                     std::to_string(bytes.size() - 4));
  texts_ = bytes.substr(4 + size);
  if (!is_utf8(texts_)) throw UsageError("has texts from byte " + std::to_string(4 + size) + " that are not UTF-8");
  units_.resize(size / 4);
  for (std::size_t i = 0; i < units_.size(); ++i) units_[i] = word_at(bytes, 4 + 4 * i);
}

/// What stands for the shortest entry that the text begins with. Places outside the array are no entries.
std::optional<std::string_view> Charsmap::replacement(std::string_view text) const {
  std::size_t node = offset(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || label(units_[node]) != byte) return {};
    const std::uint32_t unit = units_[node];
    node ^= offset(unit);
    if (!has_leaf(unit)) continue;
    if (node >= units_.size() || value(units_[node]) >= texts_.size()) return {};
    const std::string_view found = std::string_view(texts_).substr(value(units_[node]));
    return found.substr(0, found.find('\0'));
  }
  return {};
}

void Charsmap::apply_to_grapheme(std::string_view grapheme, std::string& out) const {
  constexpr std::size_t kShort = 5;  // bytes of a grapheme that is looked up as a whole
  if (grapheme.size() <= kShort)
    if (const auto text = replacement(grapheme)) {
      out += *text;
      return;
    }
  for (std::size_t at = 0; at < grapheme.size();) {
    const std::string_view one = grapheme.substr(at, utf8_at(grapheme, at).bytes);
    out += replacement(one).value_or(one);
    at += one.size();
  }
}

std::string Charsmap::apply(std::string_view utf8) const {
  std::string out;
  out.reserve(utf8.size());
  std::size_t begin = 0;
  utf8proc_int32_t state = 0, before = 0;
  for (std::size_t at = 0; at < utf8.size();) {
    const Utf8Char next = utf8_at(utf8, at);
    const auto code = static_cast<utf8proc_int32_t>(next.code);
    if (at > 0 && utf8proc_grapheme_break_stateful(before, code, &state) != 0) {
      apply_to_grapheme(utf8.substr(begin, at - begin), out);
      begin = at;
    }
    before = code;
    at += next.bytes;
  }
  if (begin < utf8.size()) apply_to_grapheme(utf8.substr(begin), out);
  return out;
}

}  // namespace weft::runtime

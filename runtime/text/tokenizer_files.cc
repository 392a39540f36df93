// runtime/text/tokenizer_files.cc: reads vocab.json and merges.txt.
#include "runtime/text/tokenizer_files.h"

#include <array>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/utf8.h"
#include "runtime/pieces/merges.h"

namespace weft::runtime {

namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 22;
constexpr std::size_t kLongestName = std::size_t{64} << 10;

/// GPT-2 keeps the printable characters of Latin-1 and moves the other bytes, in order, to U+0100 and up.
struct Alphabet {
  std::array<char32_t, 256> of_byte{};
  std::array<std::int16_t, 0x200> to_byte{};

  constexpr Alphabet() {
    to_byte.fill(-1);
    char32_t moved = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      of_byte[byte] = printable ? static_cast<char32_t>(byte) : moved++;
      to_byte[of_byte[byte]] = static_cast<std::int16_t>(byte);
    }
  }
};
constexpr Alphabet kAlphabet;

/// Quotes a name for a message, on one line and short.
std::string shown(const std::string& name) {
  constexpr std::size_t kShort = 60;
  const std::string text = with_replacements(name.substr(0, kShort));
  const std::string line = policy::to_line(nlohmann::json(text));
  return "'" + line.substr(1, line.size() - 2) + (name.size() > kShort ? "...'" : "'");
}

/// Takes the next line off `rest`. A carriage return at the end of the line is removed too.
std::string_view take_line(std::string_view& rest) {
  const std::size_t end = rest.find('\n');
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

}  // namespace

std::string alphabet_of_byte(unsigned char byte) {
  const char32_t code = kAlphabet.of_byte[byte];
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

std::string bytes_of_name(std::string_view name) {
  std::string bytes;
  for (std::size_t at = 0; at < name.size();) {
    const Utf8Char next = utf8_at(name, at);
    if (next.code >= kAlphabet.to_byte.size() || kAlphabet.to_byte[next.code] < 0) return std::string(name);
    bytes += static_cast<char>(kAlphabet.to_byte[next.code]);
    at += next.bytes;
  }
  return bytes;
}

std::string name_of_byte(Names names, unsigned char byte) {
  if (names == Names::bytes) return alphabet_of_byte(byte);
  constexpr const char* digits = "0123456789ABCDEF";
  return {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
}

Vocabulary vocabulary_from(const nlohmann::json& entries, const std::string& where) {
  if (!entries.is_object())
    throw DataError(where + ": must be an object of token to id, got " + policy::describe(entries));
  if (entries.size() > static_cast<std::size_t>(kMostTokens))
    throw DataError(where + ": has " + std::to_string(entries.size()) + " tokens, at most " +
                    std::to_string(kMostTokens));

  Vocabulary vocabulary;
  vocabulary.reserve(entries.size());
  std::unordered_map<std::int32_t, std::string> owners;
  for (const auto& entry : entries.items()) {
    const std::string& name = entry.key();
    const nlohmann::json& id = entry.value();
    if (name.empty() || name.size() > kLongestName)
      throw DataError(where + ": token " + shown(name) + " has " + std::to_string(name.size()) +
                      " bytes, wanted 1 to " + std::to_string(kLongestName));
    if (!id.is_number_integer() || id < 0 || id >= kMostTokens)
      throw DataError(where + ": the id of token " + shown(name) + " must be an integer from 0 to " +
                      std::to_string(kMostTokens - 1) + ", got " + policy::describe(id));
    const auto [owner, is_new] = owners.emplace(id.get<std::int32_t>(), name);
    if (!is_new)
      throw DataError(where + ": token id " + std::to_string(owner->first) + " is used by " + shown(owner->second) +
                      " and " + shown(name));
    vocabulary.emplace(name, owner->first);
  }
  return vocabulary;
}

void add_merge(BpeMerges& merges, const std::string& left, const std::string& right, const Vocabulary& vocabulary,
               const std::string& where) {
  const auto id_of = [&](const std::string& name, const char* role) {
    const auto found = vocabulary.find(name);
    if (found == vocabulary.end()) throw DataError(where + role + " is not in the vocabulary");
    return found->second;
  };
  const std::int32_t left_id = id_of(left, "the first token"), right_id = id_of(right, "the second token");
  if (!merges.add(left_id, right_id, id_of(left + right, "what it makes")))
    throw DataError(where + "the same merge appears twice");
  if (merges.size() > kMostMerges) throw DataError(where + "more than " + std::to_string(kMostMerges) + " merges");
}

void add_merge(BpeMerges& merges, std::string_view line, const Vocabulary& vocabulary, const std::string& where) {
  const std::size_t space = line.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string::npos)
    throw DataError(where + "is not two tokens with a space between");
  add_merge(merges, std::string(line.substr(0, space)), std::string(line.substr(space + 1)), vocabulary, where);
}

TokenizerParts read_gpt2_files(const ModelTexts& files) {
  TokenizerParts parts;
  const std::string where = files.where("vocab.json");
  parts.vocabulary = vocabulary_from(
      policy::parse_json(files.read("vocab.json", kLargestTokenizer), where, policy::Blame::data, {.depth = 32}),
      where);
  const std::string text = files.read("merges.txt", kLargestTokenizer);
  std::string_view rest = text;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = take_line(rest);
    if (!line.starts_with("#version"))
      add_merge(parts.merges, line, parts.vocabulary,
                files.where("merges.txt") + " line " + std::to_string(number) + ": ");
  }
  parts.added = read_added_tokens(files, parts.vocabulary);
  return parts;
}

}  // namespace weft::runtime

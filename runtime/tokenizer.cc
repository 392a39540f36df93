// runtime/tokenizer.cc: added tokens first, then words, then byte pairs.
#include "runtime/tokenizer.h"

#include <algorithm>
#include <utility>

#include "kernels/error.h"
#include "runtime/tokenizer_pretokenize.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

bool is_space_at(std::string_view text, std::size_t at, std::size_t& bytes) {
  const Utf8Char found = utf8_at(text, at);
  bytes = found.bytes;
  return found.state == Utf8::valid && char_class(found.code) == CharClass::space;
}

/// Where the white space that ends at `end` begins, not before `floor`.
std::size_t space_begin(std::string_view text, std::size_t floor, std::size_t end) {
  while (end > floor) {
    std::size_t at = end - 1, bytes = 0;
    while (at > floor && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (!is_space_at(text.substr(0, end), at, bytes) || at + bytes != end) break;
    end = at;
  }
  return end;
}

std::size_t space_end(std::string_view text, std::size_t at) {
  std::size_t bytes = 0;
  while (at < text.size() && is_space_at(text, at, bytes)) at += bytes;
  return at;
}

}  // namespace

bool Tokenizer::present(const fs::path& folder) {
  return fs::exists(folder / "vocab.json") || fs::exists(folder / "tokenizer.json");
}

Tokenizer Tokenizer::load(const fs::path& folder) {
  if (!fs::exists(folder / "vocab.json")) {
    if (fs::exists(folder / "tokenizer.json"))
      throw DataError((folder / "tokenizer.json").string() +
                      ": this format is not read; put the vocab.json and merges.txt of the same model beside it");
    throw DataError(
        folder.string() +
        ": has no vocab.json and merges.txt, so there is no tokenizer; copy them from the model's download");
  }
  if (!fs::exists(folder / "merges.txt"))
    throw DataError(folder.string() + ": has vocab.json but no merges.txt; copy it from the model's download");
  const Vocabulary vocabulary = read_vocabulary(folder / "vocab.json");
  return Tokenizer(vocabulary, read_merges(folder / "merges.txt", vocabulary), read_added_tokens(folder, vocabulary));
}

Tokenizer::Tokenizer(const Vocabulary& vocabulary, BpeMerges merges, AddedTokens added)
    : merges_(std::move(merges)), added_(std::move(added.tokens)), first_(added.first) {
  std::int32_t last = -1;
  for (const auto& [name, id] : vocabulary) last = std::max(last, id);
  for (const AddedToken& token : added_) last = std::max(last, token.id);
  pieces_.resize(static_cast<std::size_t>(last) + 1);
  special_.resize(pieces_.size());

  for (const auto& [name, id] : vocabulary) pieces_[id] = bytes_of_name(name);
  for (int byte = 0; byte < 256; ++byte)
    byte_ids_[byte] = vocabulary.at(alphabet_of_byte(static_cast<unsigned char>(byte)));
  for (const AddedToken& token : added_) {
    // An added token's text is not written in the alphabet, yet Hugging Face's decoder reads it as if it were.
    pieces_[token.id] = token.special ? std::string() : bytes_of_name(token.text);
    special_[token.id] = token.special;
    begins_added_[token.normalized][static_cast<unsigned char>(token.text[0])] = true;
  }
  std::sort(added_.begin(), added_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.text.size() != b.text.size() ? a.text.size() > b.text.size() : a.text < b.text;
  });
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view utf8, bool add_first_token) const {
  Ids ids;
  ids.reserve(utf8.size() / 4 + 1);
  if (add_first_token && first_) ids.push_back(*first_);
  BpeMerges::Scratch scratch;
  encode_pass(utf8, /*normalized=*/false, ids, scratch);
  return ids;
}

/// The leftmost added token at `from` or later, and of several there the longest; white space that it takes included.
Tokenizer::Match Tokenizer::find_added(std::string_view text, std::size_t from, bool normalized) const {
  const auto& begins = begins_added_[normalized];
  for (std::size_t at = from; at < text.size(); ++at) {
    if (!begins[static_cast<unsigned char>(text[at])]) continue;
    for (const AddedToken& token : added_) {
      if (token.normalized != normalized || text.compare(at, token.text.size(), token.text) != 0) continue;
      const std::size_t end = at + token.text.size();
      return {token.strip_left ? space_begin(text, from, at) : at, token.strip_right ? space_end(text, end) : end,
              &token};
    }
  }
  return {text.size(), text.size(), nullptr};
}

/// Cuts the text at the added tokens of this pass; what is between goes through the second pass, and then into words.
void Tokenizer::encode_pass(std::string_view text, bool normalized, Ids& ids, BpeMerges::Scratch& scratch) const {
  for (std::size_t at = 0; at < text.size();) {
    const Match match = find_added(text, at, normalized);
    const std::string_view between = text.substr(at, match.begin - at);
    if (normalized) encode_words(between, ids, scratch);
    else encode_pass(between, /*normalized=*/true, ids, scratch);
    if (match.token != nullptr) ids.push_back(match.token->id);
    at = match.end;
  }
}

void Tokenizer::encode_words(std::string_view text, Ids& ids, BpeMerges::Scratch& scratch) const {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = word_length(text, at), from = ids.size();
    for (const char c : text.substr(at, length)) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    merges_.apply(ids, from, scratch);
    at += length;
  }
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string bytes;
  for (const std::int32_t id : ids) bytes += piece(id);
  return with_replacements(bytes);
}

std::string_view Tokenizer::piece(std::int32_t id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= pieces_.size()) return {};
  return pieces_[id];
}

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && static_cast<std::size_t>(id) < special_.size() && special_[id];
}

}  // namespace weft::runtime

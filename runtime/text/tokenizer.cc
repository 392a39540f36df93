// runtime/text/tokenizer.cc: finds added tokens first, then words, then byte pairs.
#include "runtime/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "kernels/error.h"
#include "runtime/text/tokenizer_nfc.h"
#include "runtime/text/tokenizer_pretokenize.h"

namespace weft::runtime {

namespace {

/// The byte that a name such as <0x0A> stands for, as Rust reads the two digits; -1 if it is another name.
int byte_of_name(std::string_view name) {
  if (name.size() != 6 || !name.starts_with("<0x") || name[5] != '>') return -1;
  int value = 0;
  for (std::size_t at = name[3] == '+' ? 4 : 3; at < 5; ++at) {
    const char c = name[at], lower = static_cast<char>(c | 0x20);
    if (c >= '0' && c <= '9') value = value * 16 + (c - '0');
    else if (lower >= 'a' && lower <= 'f') value = value * 16 + (lower - 'a' + 10);
    else return -1;
  }
  return value;
}

bool is_word_at(std::string_view text, std::size_t at) {
  const Utf8Char found = utf8_at(text, at);
  return found.state == Utf8::valid && is_word(found.code);
}

/// Whether the character that ends at `end` belongs to a word.
bool is_word_before(std::string_view text, std::size_t end) {
  if (end == 0) return false;
  std::size_t at = end - 1;
  while (at > 0 && end - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return is_word_at(text.substr(0, end), at);
}

}  // namespace

bool Tokenizer::present(const ModelTexts& files) {
  return files.has("vocab.json") || files.has("tokenizer.json") || files.has("tokenizer.model");
}

std::string Tokenizer::missing(const ModelTexts& files) {
  const std::string name = files.place().string();
  if (!files.in_folder())
    return name + ": has no vocabulary, so there is no tokenizer; give a model with one, such as a checkpoint folder";
  return name +
         ": has no tokenizer.json, no tokenizer.model and no vocab.json with merges.txt, so there is no tokenizer; "
         "copy "
         "them from the model's download";
}

Tokenizer Tokenizer::load(const ModelTexts& files) {
  if (files.has("tokenizer.json")) return Tokenizer(read_tokenizer_json(files));
  if (!files.has("vocab.json") && files.has("tokenizer.model")) return Tokenizer(read_tokenizer_model(files));
  if (!files.has("vocab.json")) throw DataError(missing(files));
  if (!files.has("merges.txt"))
    throw DataError(files.place().string() + ": has vocab.json but no merges.txt; copy it from the model's download");
  return Tokenizer(read_gpt2_files(files));
}

Tokenizer::Tokenizer(TokenizerParts parts)
    : names_(parts.names), normalizer_(std::move(parts.normalizer)), prefix_space_(parts.prefix_space),
      pattern_(parts.pattern), steps_(std::move(parts.steps)), whole_words_(parts.whole_words),
      byte_fallback_(parts.byte_fallback), decoding_(std::move(parts.decoding)), unigram_(std::move(parts.unigram)),
      unknown_(parts.unknown), fuse_unknown_(parts.fuse_unknown), merges_(std::move(parts.merges)),
      first_(parts.added.first) {
  std::int32_t last = -1;
  for (const auto& [name, id] : parts.vocabulary) last = std::max(last, id);
  for (const AddedToken& token : parts.added.tokens) last = std::max(last, token.id);
  pieces_.resize(static_cast<std::size_t>(last) + 1);
  if (names_ == Names::sentences && decoding_.bytes) is_byte_.resize(pieces_.size());
  if (decoding_.begin == Decoding::Begin::loses_marks) first_pieces_.resize(pieces_.size());
  read_vocabulary(parts.vocabulary);
  read_added(std::move(parts.added.tokens));
}

/// Keeps what an id adds to a text.
void Tokenizer::set_piece(std::int32_t id, const std::string& name) {
  std::string& piece = pieces_[id];
  if (names_ == Names::bytes) {
    piece = bytes_of_name(name);
    return;
  }
  const int byte = is_byte_.empty() ? -1 : byte_of_name(name);
  if (byte >= 0) piece.assign(1, static_cast<char>(byte));
  else piece = decoding_.mark.empty() ? name : replaced(name, decoding_.mark, " ");
  if (!is_byte_.empty()) is_byte_[id] = byte >= 0;
  if (!first_pieces_.empty()) first_pieces_[id] = decoding_.mark.empty() ? name : replaced(name, decoding_.mark, "");
}

void Tokenizer::read_vocabulary(const Vocabulary& vocabulary) {
  for (const auto& [name, id] : vocabulary) {
    set_piece(id, name);
    if (names_ == Names::sentences) ids_.emplace(name, id);
    else if (whole_words_) ids_.emplace(pieces_[id], id);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto known = vocabulary.find(name_of_byte(names_, static_cast<unsigned char>(byte)));
    byte_ids_[byte] = known == vocabulary.end() ? -1 : known->second;
  }
}

void Tokenizer::read_added(std::vector<AddedToken> tokens) {
  std::array<std::vector<std::string>, 2> texts;
  for (AddedToken& token : tokens) {
    Start start = Start::text;
    std::string text = token.normalized ? normalized(normalizer_, token.text, start) : token.text;
    // An added token's text is not written in the alphabet, yet Hugging Face's decoder reads it as if it were.
    set_piece(token.id, text);
    if (token.special) {
      pieces_[token.id].clear();
      if (!is_byte_.empty()) is_byte_[token.id] = false;
      special_[token.id] = token.text;
    }
    texts[token.normalized].push_back(std::move(text));
    added_[token.normalized].tokens.push_back(std::move(token));
  }
  for (std::size_t pass = 0; pass < added_.size(); ++pass) added_[pass].texts = TextIndex(std::move(texts[pass]));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view utf8, bool add_first_token) const {
  Ids ids;
  ids.reserve(utf8.size() / 4 + 1);
  if (add_first_token && first_) ids.push_back(*first_);
  Scratch scratch;
  encode_pass(utf8, /*normalized=*/false, Start::text, ids, scratch);
  return ids;
}

std::vector<std::int32_t> Tokenizer::encode_after(std::span<const std::int32_t> before, std::string_view utf8) const {
  Ids ids;
  Scratch scratch;
  const Start start = before.empty() ? Start::text : special_.contains(before.back()) ? Start::segment : Start::middle;
  encode_pass(utf8, /*normalized=*/false, start, ids, scratch);
  return ids;
}

std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>> Tokenizer::encode_pair(std::string_view prompt,
                                                                                       std::string_view continuation,
                                                                                       bool add_first_token) const {
  Ids before = encode(prompt.substr(0, space_begin(prompt, 0, prompt.size())), add_first_token);
  if (before.empty()) before = encode(prompt, add_first_token);
  const Ids all = encode(std::string(prompt) + std::string(continuation), add_first_token);
  return {before, Ids(all.begin() + static_cast<std::ptrdiff_t>(std::min(before.size(), all.size())), all.end())};
}

/// The leftmost added token at `from` or later, and the longest if several begin there, with the white space that it
/// takes. None is taken before `floor`, where the token before it ended with its own.
Tokenizer::Match Tokenizer::find_added(std::string_view text, std::size_t from, std::size_t floor,
                                       const Pass& pass) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    const auto [number, bytes] = pass.texts.longest_prefix(text.substr(at));
    if (bytes == 0) continue;
    const AddedToken& token = pass.tokens[number];
    const std::size_t end = at + bytes;
    if (token.single_word && (is_word_before(text, at) || (end < text.size() && is_word_at(text, end)))) {
      at = end - 1;  // as in Hugging Face's library, no token is found within it
      continue;
    }
    const std::size_t begin = !token.strip_left ? at : floor < at ? space_begin(text, floor, at) : floor;
    // A floor behind the token ends white space that has the token in it.
    return {begin, !token.strip_right ? end : floor > end ? floor : space_end(text, end), end, &token};
  }
  return {text.size(), text.size(), text.size(), nullptr};
}

/// Cuts the text at the added tokens of this pass. The text between them goes through the second pass, and then into
/// words. As in Hugging Face's library, a token of white space is found even where the token before it took that space,
/// and the text goes on after the later of the two.
void Tokenizer::encode_pass(std::string_view text, bool normalized, Start start, Ids& ids, Scratch& scratch) const {
  for (std::size_t search = 0, done = 0; done < text.size() || search < text.size();) {
    const Match match = find_added(text, search, done, added_[normalized]);
    if (done < match.begin)
      encode_between(text.substr(done, match.begin - done), normalized, done == 0 ? start : Start::segment, ids,
                     scratch);
    if (match.token == nullptr) return;
    if (match.begin < match.end) ids.push_back(match.token->id);  // else the token before took all of it
    search = match.token_end;
    done = match.end;
  }
}

/// Encodes a text without added tokens of this pass.
void Tokenizer::encode_between(std::string_view text, bool normalized, Start start, Ids& ids, Scratch& scratch) const {
  if (!normalized) {
    const std::string changed = runtime::normalized(normalizer_, text, start);
    encode_pass(changed, /*normalized=*/true, start, ids, scratch);
  } else if (prefix_space_ && start != Start::middle && text[0] != ' ') {
    encode_words(" " + std::string(text), start, ids, scratch);
  } else {
    encode_words(text, start, ids, scratch);
  }
}

void Tokenizer::encode_words(std::string_view text, Start start, Ids& ids, Scratch& scratch) const {
  if (!steps_.empty()) {
    for (const std::string& word : split_by(steps_, text, start, scratch.regex)) encode_word(word, ids, scratch);
    return;
  }
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = word_length(pattern_, text, at);
    encode_word(text.substr(at, length), ids, scratch);
    at += length;
  }
}

void Tokenizer::encode_word(std::string_view word, Ids& ids, Scratch& scratch) const {
  if (unigram_) {
    scratch.parts.clear();
    unigram_->cut(word, scratch.parts, scratch.unigram);
    for (const Unigram::Part& part : scratch.parts)
      if (part.id >= 0) ids.push_back(part.id);
      else if (!push_bytes(part.text, ids) && unknown_) ids.push_back(*unknown_);
    return;
  }
  if (whole_words_) {
    if (const auto known = ids_.find(std::string(word)); known != ids_.end()) {
      ids.push_back(known->second);
      return;
    }
  }
  const std::size_t from = ids.size();
  push_symbols(word, ids);
  merges_.apply(ids, from, scratch.merges);
}

/// Adds the tokens of single bytes that stand for a text, if the tokenizer falls back on them and has all.
bool Tokenizer::push_bytes(std::string_view text, Ids& ids) const {
  const auto id_of = [this](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  if (!byte_fallback_ || std::any_of(text.begin(), text.end(), [&](char c) { return id_of(c) < 0; })) return false;
  for (const char c : text) ids.push_back(id_of(c));
  return true;
}

/// Adds the ids with which merging begins: bytes, or characters of the vocabulary and the bytes of all others.
void Tokenizer::push_symbols(std::string_view word, Ids& ids) const {
  bool pending = false;  // a token for what is unknown is still to come; Hugging Face's library puts bytes before it
  const auto flush = [&] {
    if (std::exchange(pending, false)) ids.push_back(*unknown_);
  };
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t bytes = names_ == Names::bytes ? 1 : utf8_at(word, at).bytes;
    const std::string_view one = word.substr(at, bytes);
    at += bytes;
    std::int32_t id = -1;
    if (names_ == Names::bytes) id = byte_ids_[static_cast<unsigned char>(one[0])];
    else if (const auto known = ids_.find(std::string(one)); known != ids_.end()) id = known->second;
    if (id >= 0) {
      flush();
      ids.push_back(id);
    } else if (!push_bytes(one, ids) && unknown_) {
      if (!fuse_unknown_) flush();
      pending = true;
    }
  }
  flush();
}

}  // namespace weft::runtime

// runtime/text/tokenizer.cc: finds added tokens first, then words, then byte pairs.
#include "runtime/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "kernels/error.h"
#include "runtime/text/tokenizer_nfc.h"
#include "runtime/text/tokenizer_pretokenize.h"

namespace weft::runtime {

namespace {

constexpr std::string_view kSpaceMark = "\u2581";

/// Turns a name of Names::sentences into text.
std::string with_spaces(std::string_view name) {
  std::string text;
  for (std::size_t at = 0; at < name.size();) {
    const bool mark = name.substr(at).starts_with(kSpaceMark);
    text += mark ? ' ' : name[at];
    at += mark ? kSpaceMark.size() : 1;
  }
  return text;
}

bool is_space_at(std::string_view text, std::size_t at, std::size_t& bytes) {
  const Utf8Char found = utf8_at(text, at);
  bytes = found.bytes;
  return found.state == Utf8::valid && char_class(found.code) == CharClass::space;
}

/// The beginning of the white space that ends at `end`, but not before `floor`.
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

bool Tokenizer::present(const ModelTexts& files) { return files.has("vocab.json") || files.has("tokenizer.json"); }

std::string Tokenizer::missing(const ModelTexts& files) {
  const std::string name = files.place().string();
  if (!files.in_folder())
    return name + ": has no vocabulary, so there is no tokenizer; give a model with one, such as a checkpoint folder";
  if (files.has("tokenizer.model"))
    return name +
           ": has only SentencePiece's tokenizer.model, which Weft does not read; transformers makes a tokenizer.json "
           "of it: python3 -c \"from transformers import AutoTokenizer as T; T.from_pretrained('" +
           name + "').save_pretrained('" + name + "')\"";
  return name +
         ": has no tokenizer.json and no vocab.json with merges.txt, so there is no tokenizer; copy them from the "
         "model's download";
}

Tokenizer Tokenizer::load(const ModelTexts& files) {
  if (files.has("tokenizer.json")) return Tokenizer(read_tokenizer_json(files));
  if (!files.has("vocab.json")) throw DataError(missing(files));
  if (!files.has("merges.txt"))
    throw DataError(files.place().string() + ": has vocab.json but no merges.txt; copy it from the model's download");
  return Tokenizer(read_gpt2_files(files));
}

Tokenizer::Tokenizer(TokenizerParts parts)
    : names_(parts.names), normalizer_(parts.normalizer), prefix_(parts.prefix), pattern_(parts.pattern),
      steps_(std::move(parts.steps)), metaspace_(parts.metaspace), whole_words_(parts.whole_words),
      strips_space_(parts.strips_space), unknown_(parts.unknown), fuse_unknown_(parts.fuse_unknown),
      merges_(std::move(parts.merges)), first_(parts.added.first) {
  const auto bytes_of = [&](const std::string& name) {
    return names_ == Names::bytes ? bytes_of_name(name) : with_spaces(name);
  };
  std::int32_t last = -1;
  for (const auto& [name, id] : parts.vocabulary) last = std::max(last, id);
  for (const AddedToken& token : parts.added.tokens) last = std::max(last, token.id);
  pieces_.resize(static_cast<std::size_t>(last) + 1);

  for (const auto& [name, id] : parts.vocabulary) {
    pieces_[id] = bytes_of(name);
    if (names_ == Names::sentences) ids_.emplace(name, id);
    else if (whole_words_) ids_.emplace(pieces_[id], id);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto known = parts.vocabulary.find(name_of_byte(names_, static_cast<unsigned char>(byte)));
    byte_ids_[byte] = known == parts.vocabulary.end() ? -1 : known->second;
    if (names_ == Names::sentences) pieces_[byte_ids_[byte]] = std::string(1, static_cast<char>(byte));
  }
  for (AddedToken& token : parts.added.tokens) {
    std::string text = token.normalized ? normalize(token.text, Start::text) : token.text;
    // An added token's text is not written in the alphabet, yet Hugging Face's decoder reads it as if it were.
    pieces_[token.id] = token.special ? std::string() : bytes_of(text);
    if (token.special) special_[token.id] = token.text;
    Pass& pass = added_[token.normalized];
    pass.tokens.push_back({std::move(token), std::move(text)});
  }
  for (Pass& pass : added_) {
    std::sort(pass.tokens.begin(), pass.tokens.end(), [](const Added& a, const Added& b) { return a.text < b.text; });
    for (std::uint32_t i = 0; i < pass.tokens.size(); ++i) {
      auto& [begin, end] = pass.from[static_cast<unsigned char>(pass.tokens[i].text[0])];
      if (end == 0) begin = i;
      end = i + 1;
    }
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view utf8, bool add_first_token) const {
  Ids ids;
  ids.reserve(utf8.size() / 4 + 1);
  if (add_first_token && first_) ids.push_back(*first_);
  BpeMerges::Scratch scratch;
  encode_pass(utf8, /*normalized=*/false, Start::text, ids, scratch);
  return ids;
}

std::vector<std::int32_t> Tokenizer::encode_after(std::span<const std::int32_t> before, std::string_view utf8) const {
  Ids ids;
  BpeMerges::Scratch scratch;
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

/// Writes spaces as SentencePiece does.
std::string Tokenizer::marked(std::string_view text, Start start) const {
  const bool begins = text.starts_with(' ') || text.starts_with(kSpaceMark);
  const bool prefixed = prefix_ == Prefix::always || (prefix_ == Prefix::missing && !begins) ||
                        (prefix_ == Prefix::first && !begins && start == Start::text);
  std::string out;
  if (prefixed && start != Start::middle) out = kSpaceMark;
  for (const char c : text)
    if (c == ' ') out += kSpaceMark;
    else out += c;
  return out;
}

std::string Tokenizer::normalize(std::string_view text, Start start) const {
  if (text.empty() || normalizer_ == Normalizer::none) return std::string(text);
  return normalizer_ == Normalizer::nfc ? nfc(text) : marked(text, start);
}

/// The longest token that `text` begins with, or null. It takes one search per byte, however many tokens there are.
const Tokenizer::Added* Tokenizer::longest_added(std::string_view text, const Pass& pass) const {
  auto [first, last] = pass.from[static_cast<unsigned char>(text[0])];
  const Added* longest = nullptr;
  for (std::size_t depth = 1; first < last; ++depth) {  // tokens [first, last) begin with `depth` bytes of the text
    for (; first < last && pass.tokens[first].text.size() == depth; ++first) longest = &pass.tokens[first];
    if (depth == text.size()) break;
    const auto byte_of = [depth](const Added& token) { return static_cast<unsigned char>(token.text[depth]); };
    const auto next = static_cast<unsigned char>(text[depth]);
    const auto begin = pass.tokens.begin() + first, end = pass.tokens.begin() + last;
    const auto low = std::partition_point(begin, end, [&](const Added& token) { return byte_of(token) < next; });
    const auto high = std::partition_point(low, end, [&](const Added& token) { return byte_of(token) == next; });
    first = static_cast<std::uint32_t>(low - pass.tokens.begin());
    last = static_cast<std::uint32_t>(high - pass.tokens.begin());
  }
  return longest;
}

/// The leftmost added token at `from` or later, and the longest if several begin there, with the white space that it
/// takes. None is taken before `floor`, where the token before it ended with its own.
Tokenizer::Match Tokenizer::find_added(std::string_view text, std::size_t from, std::size_t floor,
                                       bool normalized) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    const Added* const found = longest_added(text.substr(at), added_[normalized]);
    if (!found) continue;
    const AddedToken& token = found->token;
    const std::size_t end = at + found->text.size();
    const std::size_t begin = token.strip_left ? std::max(space_begin(text, 0, at), floor) : at;
    return {begin, token.strip_right ? space_end(text, end) : end, end, &token};
  }
  return {text.size(), text.size(), text.size(), nullptr};
}

/// Cuts the text at the added tokens of this pass. The text between them goes through the second pass, and then into
/// words. As in Hugging Face's library, a token of white space is found even where the token before it took that space,
/// and the text goes on after the later of the two.
void Tokenizer::encode_pass(std::string_view text, bool normalized, Start start, Ids& ids,
                            BpeMerges::Scratch& scratch) const {
  for (std::size_t search = 0, done = 0; done < text.size() || search < text.size();) {
    const Match match = find_added(text, search, done, normalized);
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
void Tokenizer::encode_between(std::string_view text, bool normalized, Start start, Ids& ids,
                               BpeMerges::Scratch& scratch) const {
  if (!normalized && normalizer_ != Normalizer::none)
    encode_pass(normalize(text, start), /*normalized=*/true, start, ids, scratch);
  else if (!normalized) encode_pass(text, /*normalized=*/true, start, ids, scratch);
  else if (metaspace_) encode_words(marked(text, start), ids, scratch);
  else if (names_ == Names::bytes && prefix_ == Prefix::missing && start != Start::middle && text[0] != ' ')
    encode_words(" " + std::string(text), ids, scratch);
  else encode_words(text, ids, scratch);
}

void Tokenizer::encode_words(std::string_view text, Ids& ids, BpeMerges::Scratch& scratch) const {
  if (!steps_.empty()) {
    Regex::Scratch memory;
    for (const std::string& word : split_by(steps_, text, memory)) encode_word(word, ids, scratch);
    return;
  }
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = word_length(pattern_, text, at);
    encode_word(text.substr(at, length), ids, scratch);
    at += length;
  }
}

void Tokenizer::encode_word(std::string_view word, Ids& ids, BpeMerges::Scratch& scratch) const {
  if (whole_words_) {
    if (const auto known = ids_.find(std::string(word)); known != ids_.end()) {
      ids.push_back(known->second);
      return;
    }
  }
  const std::size_t from = ids.size();
  push_symbols(word, ids);
  merges_.apply(ids, from, scratch);
}

/// Adds the ids with which merging begins: bytes, or characters of the vocabulary and the bytes of all others.
void Tokenizer::push_symbols(std::string_view word, Ids& ids) const {
  const std::size_t begin = ids.size();
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t bytes = names_ == Names::bytes ? 1 : utf8_at(word, at).bytes;
    const auto known = names_ == Names::bytes ? ids_.end() : ids_.find(std::string(word.substr(at, bytes)));
    if (known != ids_.end()) {
      ids.push_back(known->second);
    } else {
      for (const char c : word.substr(at, bytes)) {
        const std::int32_t id = byte_ids_[static_cast<unsigned char>(c)];
        if (id >= 0) ids.push_back(id);
        else if (unknown_ && !(fuse_unknown_ && ids.size() > begin && ids.back() == *unknown_))
          ids.push_back(*unknown_);
      }
    }
    at += bytes;
  }
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  IncrementalDecoder decoder(*this);
  std::string text;
  for (const std::int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

std::string Tokenizer::decode_shown(std::span<const std::int32_t> ids) const {
  IncrementalDecoder decoder(*this, SpecialTokens::shown);
  std::string text;
  for (const std::int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

std::string Tokenizer::decode_after(std::span<const std::int32_t> before, std::span<const std::int32_t> ids) const {
  IncrementalDecoder decoder(*this);
  decoder.follow(before);
  std::string text;
  for (const std::int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

std::string_view Tokenizer::piece(std::int32_t id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= pieces_.size()) return {};
  return pieces_[id];
}

std::string_view Tokenizer::shown_piece(std::int32_t id) const {
  const auto special = special_.find(id);
  return special == special_.end() ? piece(id) : special->second;
}

std::optional<std::int32_t> Tokenizer::special_token(std::string_view text) const {
  for (const auto& [id, special] : special_)
    if (special == text) return id;
  return {};
}

bool Tokenizer::is_byte(std::int32_t id) const {
  const std::string_view bytes = piece(id);
  return names_ == Names::sentences && bytes.size() == 1 && byte_ids_[static_cast<unsigned char>(bytes[0])] == id;
}

std::string_view IncrementalDecoder::piece(std::int32_t id) const {
  return special_ == SpecialTokens::shown ? tokenizer_->shown_piece(id) : tokenizer_->piece(id);
}

void IncrementalDecoder::follow(std::span<const std::int32_t> prompt) {
  begun_ = std::any_of(prompt.begin(), prompt.end(), [this](std::int32_t id) { return !piece(id).empty(); });
}

std::string IncrementalDecoder::push(std::int32_t id) {
  const std::string_view bytes = piece(id);
  if (tokenizer_->names() == Names::bytes) return stream_.push(bytes);
  if (tokenizer_->is_byte(id)) {
    bytes_ += bytes;
    return {};
  }
  if (bytes.empty()) return {};
  std::string text = without_first_space(take_bytes() + std::string(bytes));
  begun_ = true;
  return text;
}

std::string IncrementalDecoder::pending() const {
  return is_utf8(bytes_) ? without_first_space(bytes_) : std::string();
}

std::string IncrementalDecoder::finish() {
  if (tokenizer_->names() == Names::bytes) return stream_.finish();
  std::string rest = without_first_space(take_bytes());
  begun_ = false;
  return rest;
}

std::string IncrementalDecoder::take_bytes() {
  std::string text, bytes = std::exchange(bytes_, {});
  if (is_utf8(bytes)) return bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) text += "\uFFFD";
  return text;
}

std::string IncrementalDecoder::without_first_space(std::string text) const {
  if (!begun_ && tokenizer_->strips_space() && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

}  // namespace weft::runtime

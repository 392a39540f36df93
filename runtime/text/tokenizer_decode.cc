// runtime/text/tokenizer_decode.cc: ids become text again.
#include <algorithm>
#include <utility>

#include "runtime/base/utf8.h"
#include "runtime/text/tokenizer.h"

namespace weft::runtime {

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

std::string Tokenizer::decode_after(std::span<const std::int32_t> before, std::span<const std::int32_t> ids,
                                    SpecialTokens special) const {
  IncrementalDecoder decoder(*this, special);
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
  return id >= 0 && static_cast<std::size_t>(id) < is_byte_.size() && is_byte_[id];
}

std::string_view Tokenizer::first_piece(std::int32_t id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= first_pieces_.size() || special_.contains(id)) return shown_piece(id);
  return first_pieces_[id];
}

std::string_view IncrementalDecoder::piece(std::int32_t id, SpecialTokens special) const {
  return special == SpecialTokens::shown ? tokenizer_->shown_piece(id) : tokenizer_->piece(id);
}

void IncrementalDecoder::follow(std::span<const std::int32_t> prompt) {
  begun_ =
      std::any_of(prompt.begin(), prompt.end(), [this](std::int32_t id) { return !piece(id, beginning_).empty(); });
}

std::string IncrementalDecoder::push(std::int32_t id) {
  const std::string_view bytes = piece(id, special_);
  if (tokenizer_->names() == Names::bytes) return stream_.push(bytes);
  if (tokenizer_->is_byte(id)) {
    bytes_ += bytes;
    return {};
  }
  if (bytes.empty()) return {};
  const bool loses_marks = !begun_ && tokenizer_->decoding_begin() == Decoding::Begin::loses_marks;
  std::string text = take_bytes();
  const bool begins = !text.empty() || !piece(id, beginning_).empty();
  text += loses_marks ? tokenizer_->first_piece(id) : bytes;
  if (!begins) return text;
  text = without_first_space(std::move(text));
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
  if (!begun_ && tokenizer_->decoding_begin() == Decoding::Begin::loses_space && text.starts_with(' '))
    text.erase(0, 1);
  return text;
}

}  // namespace weft::runtime

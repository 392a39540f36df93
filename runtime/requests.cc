#include "runtime/requests.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/json.h"
#include "runtime/hash.h"

namespace weft::runtime {
namespace {

using policy::Blame;
using policy::Fields;

constexpr std::size_t kLongestLine = 16 << 20;
constexpr std::size_t kReadBytes = 1 << 20;
constexpr std::int64_t kMostTokens = 1 << 24;

std::vector<std::int32_t> ids_of(Fields& fields, const std::string& key, int vocab) {
  const std::string wanted = "a list of token ids from 0 to " + std::to_string(vocab - 1);
  const auto& list = fields.at(key);
  if (!list.is_array() || list.empty()) fields.refuse_field(key, "a non-empty list of token ids");
  std::vector<std::int32_t> ids;
  ids.reserve(list.size());
  for (const auto& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= vocab) fields.refuse_field(key, wanted);
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

std::vector<std::string> stop_strings_of(Fields& fields) {
  const auto& value = fields.at("stop");
  const auto list = value.is_string() ? nlohmann::json::array({value}) : value;
  if (!list.is_array() || list.size() > 16) fields.refuse_field("stop", "a string or a list of at most 16 strings");
  std::vector<std::string> stops;
  for (const auto& stop : list) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty() ||
        stop.get_ref<const std::string&>().size() > 512)
      fields.refuse_field("stop", "strings of 1 to 512 bytes");
    stops.push_back(stop.get<std::string>());
  }
  return stops;
}

}  // namespace

void for_each_line(const std::filesystem::path& path,
                   const std::function<void(std::string_view, std::uint64_t, std::size_t)>& line) {
  const InputFile file(path);
  std::string buffer;
  std::uint64_t offset = 0;  // of the buffer's first byte
  std::size_t number = 1;
  for (std::uint64_t read = 0; read < file.size() || !buffer.empty();) {
    std::size_t begin = 0;
    for (std::size_t end; (end = buffer.find('\n', begin)) != std::string::npos; begin = end + 1, ++number) {
      const std::size_t length = end - begin - (end > begin && buffer[end - 1] == '\r' ? 1 : 0);
      line(std::string_view(buffer).substr(begin, length), offset + begin, number);
    }
    buffer.erase(0, begin);
    offset += begin;
    if (buffer.size() > kLongestLine)
      throw UsageError(path.string() + ":" + std::to_string(number) +
                       ": the line is longer than 16 MiB; write one JSON object per line");
    if (read == file.size()) {
      if (!buffer.empty()) line(buffer, offset, number);
      return;
    }
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(kReadBytes, file.size() - read));
    const std::size_t kept = buffer.size();
    buffer.resize(kept + count);
    file.read(read, std::as_writable_bytes(std::span(buffer).subspan(kept)));
    read += count;
  }
}

RequestFile::RequestFile(const std::filesystem::path& path, RequestKind kind, const Tokenizer* tokenizer,
                         const policy::ModelSpec& model, std::int64_t default_max_tokens)
    : path_(path), kind_(kind), tokenizer_(tokenizer), model_(model), default_max_tokens_(default_max_tokens),
      file_(path) {
  for_each_line(path, [&](std::string_view line, std::uint64_t offset, std::size_t number) {
    if (line.find_first_not_of(" \t") == std::string_view::npos) return;
    fingerprint_ = mix(fingerprint_ ^ hash(line));
    const Request request = parse(line, number);
    by_hash_.emplace_back(mix(hash(request.id)), static_cast<std::uint32_t>(entries_.size()));
    entries_.push_back({offset, static_cast<std::uint32_t>(line.size()), static_cast<std::uint32_t>(number),
                        static_cast<std::uint32_t>(request.prompt.size()),
                        static_cast<std::uint32_t>(request.max_tokens)});
  });
  if (entries_.empty()) throw UsageError(path.string() + ": no requests; write one JSON object per line");
  refuse_repeated_ids();
}

void RequestFile::refuse_repeated_ids() {
  std::sort(by_hash_.begin(), by_hash_.end());
  for (std::size_t i = 1; i < by_hash_.size(); ++i)
    for (std::size_t j = i; j-- > 0 && by_hash_[j].first == by_hash_[i].first;)
      if (id_of(by_hash_[i].second) == id_of(by_hash_[j].second))
        throw UsageError(path_.string() + ":" + std::to_string(entries_[by_hash_[i].second].line) + ": id " +
                         id_of(by_hash_[i].second).substr(0, 80) + " is also that of line " +
                         std::to_string(entries_[by_hash_[j].second].line) + "; ids must be unique");
}

Request RequestFile::parse(std::string_view line, std::size_t number) const {
  const std::string where = path_.string() + ":" + std::to_string(number);
  const nlohmann::json json =
      policy::parse_json(line, where, Blame::usage, {.depth = 32, .byte_order_mark = number == 1});
  Fields fields(json, where, Blame::usage);
  Request request;
  const auto& id = fields.at("id");
  if (!id.is_number_integer() && !(id.is_string() && id.get_ref<const std::string&>().size() <= 512))
    fields.refuse_field("id", "an integer or a string of at most 512 bytes");
  request.id = policy::to_line(id);

  const auto tokens = [&](const std::string& text_key, const std::string& ids_key, bool add_first) {
    const bool text = fields.has(text_key), ids = fields.has(ids_key);
    if (text == ids)
      throw UsageError(where + ": wanted either '" + text_key + "' or '" + ids_key + "', found " +
                       (text ? "both" : "neither"));
    if (ids) return ids_of(fields, ids_key, model_.vocab);
    if (!tokenizer_)
      throw UsageError(where + ": '" + text_key + "' needs a tokenizer and the model folder has none; use '" + ids_key +
                       "'");
    return tokenizer_->encode(fields.text(text_key), add_first);
  };
  request.prompt = tokens("prompt", "prompt_ids", true);
  if (request.prompt.empty()) throw UsageError(where + ": the prompt has no tokens");
  for (const std::int32_t token : request.prompt)
    if (token >= model_.vocab)
      throw UsageError(where + ": the prompt has token " + std::to_string(token) + ", the model's vocabulary has " +
                       std::to_string(model_.vocab));
  const std::int64_t room = model_.positions - static_cast<std::int64_t>(request.prompt.size());
  if (room < 1)
    throw UsageError(where + ": the prompt has " + std::to_string(request.prompt.size()) +
                     " tokens; the model's context is " + policy::context_text(model_) +
                     ", one of which must be left for an answer");
  if (kind_ == RequestKind::score) {
    request.continuation = tokens("continuation", "continuation_ids", false);
    if (request.continuation.empty()) throw UsageError(where + ": the continuation has no tokens");
    request.max_tokens = static_cast<std::int64_t>(request.continuation.size());
  } else {
    const bool said = fields.has("max_tokens");
    request.max_tokens = said ? fields.integer("max_tokens", 1, kMostTokens) : std::min(default_max_tokens_, room);
    request.sampling.temperature = static_cast<float>(fields.number("temperature", 0, 100, 0.0));
    request.sampling.top_p = static_cast<float>(fields.number("top_p", 0, 1, 1.0));
    if (request.sampling.top_p <= 0) fields.refuse_field("top_p", "a number over 0, at most 1");
    request.sampling.top_k = static_cast<std::int32_t>(fields.integer("top_k", 0, INT32_MAX, 0));
    request.sampling.key =
        mix(static_cast<std::uint64_t>(fields.integer("seed", 0, INT64_MAX, 0))) ^ mix(hash(request.id));
    if (fields.has("stop")) request.stop_strings = stop_strings_of(fields);
    if (!request.stop_strings.empty() && !tokenizer_)
      throw UsageError(where + ": 'stop' needs a tokenizer and the model folder has none; use 'stop_token_ids'");
    if (fields.has("stop_token_ids") && !fields.at("stop_token_ids").empty())
      request.stop_ids = ids_of(fields, "stop_token_ids", model_.vocab);
  }
  fields.refuse_unknown();
  if (request.max_tokens > room)
    throw UsageError(where + ": the prompt has " + std::to_string(request.prompt.size()) + " tokens and " +
                     std::to_string(request.max_tokens) + " are to follow; the model's context is " +
                     policy::context_text(model_));
  return request;
}

std::string RequestFile::line_of(std::size_t index) const {
  std::string line(entries_[index].bytes, '\0');
  file_.read(entries_[index].offset, std::as_writable_bytes(std::span(line)));
  return line;
}

Request RequestFile::read(std::size_t index) const {
  const Entry& entry = entries_[index];
  Request request = parse(line_of(index), entry.line);
  if (request.prompt.size() != entry.prompt_tokens || request.max_tokens != entry.max_tokens)
    throw UsageError(path_.string() + ":" + std::to_string(entry.line) +
                     ": the line changed while the run was using it");
  return request;
}

std::string RequestFile::id_of(std::size_t index) const {
  const auto json =
      policy::parse_json(line_of(index), path_.string(), Blame::usage, {.depth = 32, .byte_order_mark = true});
  return policy::to_line(json.at("id"));
}

std::optional<std::size_t> RequestFile::find(const std::string& id) const {
  const std::uint64_t wanted = mix(hash(id));
  for (auto it = std::lower_bound(by_hash_.begin(), by_hash_.end(), std::pair{wanted, std::uint32_t{0}});
       it != by_hash_.end() && it->first == wanted; ++it)
    if (id_of(it->second) == id) return it->second;
  return {};
}

}  // namespace weft::runtime

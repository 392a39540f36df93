#include "runtime/requests/requests.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/hash.h"
#include "runtime/base/line_stream.h"
#include "runtime/base/stop.h"
#include "runtime/requests/request_checks.h"

namespace weft::runtime {
namespace {

constexpr std::size_t kLongestLine = 16 << 20;
constexpr std::size_t kMostListed = 20;              // refused lines in a message
constexpr std::size_t kMostStrictRequests = 50'000;  // OpenAI's limits
constexpr std::uint64_t kMostStrictBytes = 200'000'000;

std::uint32_t check_of(std::string_view text) { return static_cast<std::uint32_t>(mix(hash(text))); }

bool has_id(const nlohmann::json& line) {
  const auto id = line.find("id");
  return id != line.end() && !id->is_null();
}

std::uint32_t check_of(const std::vector<std::int32_t>& tokens) {
  return check_of({reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(std::int32_t)});
}

}  // namespace

void for_each_line(const InputFile& file,
                   const std::function<void(std::string_view, std::uint64_t, std::size_t)>& line) {
  std::string joined;
  for (LineStream lines(file); lines.next();) {
    std::string_view text = lines.piece(), more = lines.piece();
    if (!more.empty()) joined = text;
    for (; !more.empty(); more = lines.piece()) {
      text = joined += more;
      if (joined.size() > kLongestLine)
        throw UsageError(file.path().string() + ":" + std::to_string(lines.number()) +
                         ": the line is longer than 16 MiB; write one JSON object per line");
    }
    if (lines.whole() && text.ends_with('\r')) text.remove_suffix(1);
    line(text, lines.offset(), lines.number());
  }
}

RequestFile::RequestFile(InputFile file, RequestKind kind, const Tokenizer* tokenizer, const policy::ModelSpec& model,
                         std::int64_t default_max_tokens, OpenAiRules openai, OnBadRequest on_bad,
                         const std::atomic<bool>* stop, std::vector<policy::Retention> retentions, LineOrigins origins,
                         RequestDefaults defaults)
    : path_(file.path()), origins_(std::move(origins)),
      forms_(tokenizer ? std::make_unique<FormCompiler>(*tokenizer, model.vocab, model.eos) : nullptr),
      rules_{kind,
             tokenizer,
             model,
             default_max_tokens,
             std::move(openai),
             std::move(retentions),
             std::move(defaults),
             forms_.get()},
      file_(std::move(file)) {
  PrefixIndex prefixes;
  for_each_line(file_, [&](std::string_view line, std::uint64_t offset, std::size_t number) {
    if (stop && *stop) throw Interrupted{};
    if (line.find_first_not_of(" \t") == std::string_view::npos) return;
    fingerprint_ = mix(fingerprint_ ^ hash(line));
    if (entries_.empty()) refuse_other_formats(line, number);
    check(line, offset, number, prefixes);
  });
  prefixes.each_leader([this](std::size_t request, std::uint32_t tokens) {  // what others have found later
    entries_[request].prefix_tokens = std::max(entries_[request].prefix_tokens, tokens);
  });
  if (entries_.empty())
    throw UsageError(path_.string() +
                     ": no requests; write one JSON object per line, or rows below the header of a CSV");
  if (rules_.openai.strict) refuse_beyond_limits();
  refuse_missing_ids();
  refuse_repeated_ids();
  if (on_bad == OnBadRequest::fail) refuse_bad();
}

std::string RequestFile::where(std::size_t number) const { return origins_.place(path_.string(), number); }

void RequestFile::refuse_other_formats(std::string_view line, std::size_t number) const {
  if (line.starts_with("\xFF\xFE") || line.starts_with("\xFE\xFF"))
    throw UsageError(where(number) + ": this is UTF-16; write the file as UTF-8");
  if (line.starts_with("\x1F\x8B") || line.starts_with("\x28\xB5\x2F\xFD"))
    throw UsageError(path_.string() + ": is compressed; unpack it first");
  const auto begin = line.find_first_not_of(" \t\xEF\xBB\xBF");
  if (begin != std::string_view::npos && line[begin] == '[')
    throw UsageError(where(number) + ": this is JSON, not JSONL: it begins with a list; write one object per line");
}

void RequestFile::check(std::string_view line, std::uint64_t offset, std::size_t number, PrefixIndex& prefixes) {
  Entry entry{.offset = offset,
              .bytes = static_cast<std::uint32_t>(line.size()),
              .line = static_cast<std::uint32_t>(number),
              .check = check_of(line)};
  try {
    const nlohmann::json json = parse(line, number);
    if (!dialect_ && json.is_object()) recognise(json);
    if (json.is_object()) entry.id = has_id(json) || dialect() == Dialect::openai ? Id::given : Id::absent;
    if (const auto id = id_of(json, number)) ids_.add(*id, entries_.size());
    read_chat_template(json);
    const Request request = request_of(json, line, number);
    entry.holds_line = !request.metadata.empty() || request.rules.any();
    entry.has_form = request.grammar.has_value();
    entry.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
    entry.max_tokens = static_cast<std::uint32_t>(request.max_tokens);
    entry.n = static_cast<std::uint32_t>(request.n);
    entry.logprobs = static_cast<std::int8_t>(std::max(request.logprobs, request.prompt_logprobs));
    entry.prompt_hash = check_of(request.prompt);
    const PrefixIndex::Match match = prefixes.add(entries_.size(), request.prompt);
    entry.prefix = match.leader, entry.prefix_tokens = match.tokens;
    if (const auto first = rules_.tokenizer ? rules_.tokenizer->first_token() : std::nullopt;
        first && request.prompt_text && request.prompt.size() > 1 && request.prompt[0] == *first)
      doubled_first_tokens_ += request.prompt[1] == *first;
  } catch (const BadRequest&) {
    entry.verdict = Verdict::refused;  // the reason is found again when it is reported, so that no text is kept
  }
  entries_.push_back(entry);
}

void RequestFile::recognise(const nlohmann::json& line) {
  dialect_ = dialect_of(line);
  const bool openai = dialect_ == Dialect::openai;
  if (openai && rules_.kind == RequestKind::score)
    throw UsageError(path_.string() + ": holds OpenAI's request lines; weft score reads only its own");
  if (openai && !rules_.tokenizer)
    throw NoTokenizer(path_.string(), "the text of OpenAI's request lines", rules_.openai.files,
                      "Weft's own lines with 'prompt_ids'");
  if (openai && rules_.defaults.chat)
    throw UsageError(path_.string() +
                     ": holds OpenAI's request lines, whose url says which are conversations; leave "
                     "out --chat");
  if (!openai && rules_.openai.strict)
    throw UsageError(path_.string() + ": holds Weft's own request lines; --strict-openai is for OpenAI's");
}

/// Reads the model's chat template once a line needs it.
void RequestFile::read_chat_template(const nlohmann::json& line) {
  const bool prompts = rules_.defaults.chat && rules_.kind == RequestKind::generate;
  const bool needed = dialect() == Dialect::openai ||
                      (line.is_object() && (line.contains("messages") || (prompts && line.contains("prompt"))));
  if (!needed || has_conversations_) return;
  has_conversations_ = true;
  if (!rules_.openai.files) return;
  rules_.openai.chat = rules_.openai.chat_template.empty()
                           ? ChatTemplate::load(*rules_.openai.files)
                           : ChatTemplate::load_as(rules_.openai.chat_template, *rules_.openai.files);
}

void RequestFile::refuse_beyond_limits() const {
  if (entries_.size() > kMostStrictRequests)
    throw UsageError(path_.string() + ": has " + std::to_string(entries_.size()) +
                     " requests, --strict-openai allows 50000; split the file");
  if (file_.size() > kMostStrictBytes)
    throw UsageError(path_.string() + ": has " + std::to_string(file_.size()) +
                     " bytes, --strict-openai allows 200 MB; split the file");
}

/// Refuses lines without an id if others have one. If no line has one, the place of a line is its id.
void RequestFile::refuse_missing_ids() {
  const auto given = [](const Entry& entry) { return entry.id == Id::given; };
  if (std::none_of(entries_.begin(), entries_.end(), given)) return;
  for (Entry& entry : entries_)
    if (entry.id == Id::absent) entry.verdict = Verdict::no_id;
  ids_.remove_if([this](std::size_t index) { return entries_[index].verdict == Verdict::no_id; });
}

void RequestFile::refuse_repeated_ids() {
  ids_.sort([this](std::size_t index) { return id_of(index); },
            [this](std::size_t, std::size_t index) { entries_[index].verdict = Verdict::repeated_id; });
  entries_.shrink_to_fit();
}

void RequestFile::refuse_bad() const {
  std::vector<std::string> list;
  std::size_t count = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!refused(i) || ++count > kMostListed) continue;
    const Refusal refused_for = refusal(i);
    list.push_back(where(refused_for.line) + ": " + refused_for.reason);
  }
  if (count == 1) throw UsageError(list.front());
  if (count > 1)
    throw UsageError(path_.string() + ": " + std::to_string(count) + " of " + std::to_string(entries_.size()) +
                         " requests are refused" + (count > kMostListed ? ", the first 20 are:" : ":"),
                     list);
}

nlohmann::json RequestFile::parse(std::string_view line, std::size_t number) const {
  const std::string place = where(number);
  try {
    return policy::parse_json(line, place, policy::Blame::usage, {.depth = 32, .byte_order_mark = number == 1});
  } catch (const UsageError& error) {
    throw BadRequest(place, "invalid_json_line", "", std::string(error.what()).substr(place.size() + 2));
  }
}

Request RequestFile::request_of(const nlohmann::json& line, std::string_view text, std::size_t number) const {
  const std::string place = where(number);
  try {
    return dialect() == Dialect::openai ? read_openai_request(line, text, place, rules_)
                                        : read_native_request(line, text, place, default_id(number), rules_);
  } catch (const BadRequest&) {
    throw;
  } catch (const NoTokenizer&) {  // all other lines will lack it too
    throw;
  } catch (const UsageError& error) {
    const auto* const of_field = dynamic_cast<const policy::FieldError*>(&error);
    throw BadRequest(place, "invalid_value", of_field ? of_field->field() : "",
                     std::string(error.what()).substr(place.size() + 2));
  }
}

std::optional<std::string> RequestFile::id_of(const nlohmann::json& line, std::size_t number) const {
  return id_of_line(line, number, dialect(), rules_.openai.strict);
}

/// Only for entries in ids_.
std::string RequestFile::id_of(std::size_t index) const {
  const std::size_t number = entries_[index].line;
  return id_of(parse(line_of(index), number), number).value_or("null");
}

std::string RequestFile::line_of(std::size_t index) const {
  std::string line(entries_[index].bytes, '\0');
  file_.read(entries_[index].offset, std::as_writable_bytes(std::span(line)));
  if (check_of(line) != entries_[index].check)
    throw UsageError(where(entries_[index].line) + ": the line changed while the run was using it");
  return line;
}

Request RequestFile::read(std::size_t index) const {
  const std::size_t number = entries_[index].line;
  const std::string line = line_of(index);
  return request_of(parse(line, number), line, number);
}

Refusal RequestFile::refusal(std::size_t index) const {
  const Entry& entry = entries_[index];
  const std::string line = line_of(index), key = dialect() == Dialect::openai ? "custom_id" : "id";
  Refusal refusal{.id = "null", .line = entry.line, .code = {}, .param = key, .reason = {}};
  if (entry.verdict == Verdict::no_id) {
    refusal.code = "missing_required_parameter";
    refusal.reason = "'id' is missing, and other lines have one; give all lines an id or none";
    return refusal;
  }
  try {
    const nlohmann::json json = parse(line, entry.line);
    const std::string id = id_of(json, entry.line).value_or("null");
    if (entry.verdict == Verdict::repeated_id) {
      refusal.code = "duplicate_custom_id";
      refusal.reason = key + " " + id.substr(0, 80) + " is also that of line " +
                       std::to_string(entries_[*find(id)].line) + "; ids must be unique";
      return refusal;
    }
    refusal.id = id;
    if (dialect() == Dialect::native) refusal.metadata = metadata_of(json);
    request_of(json, line, entry.line);
  } catch (const BadRequest& bad) {
    refusal.code = bad.code;
    refusal.param = bad.param;
    refusal.reason = std::string(bad.what()).substr(where(entry.line).size() + 2);
  }
  return refusal;
}

std::optional<std::size_t> RequestFile::find(const std::string& id) const {
  return ids_.find(id, [this](std::size_t index) { return id_of(index); });
}

std::optional<std::size_t> RequestFile::find_line(std::uint64_t line) const {
  const auto it = std::lower_bound(entries_.begin(), entries_.end(), line,
                                   [](const Entry& entry, std::uint64_t wanted) { return entry.line < wanted; });
  if (it == entries_.end() || it->line != line) return {};
  return static_cast<std::size_t>(it - entries_.begin());
}

}  // namespace weft::runtime

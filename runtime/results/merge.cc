#include "runtime/results/merge.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/files.h"
#include "runtime/base/hash.h"
#include "runtime/base/input_file.h"
#include "runtime/base/line_stream.h"
#include "runtime/base/standard_streams.h"
#include "runtime/base/stop.h"
#include "runtime/requests/id_index.h"
#include "runtime/requests/request_checks.h"
#include "runtime/requests/requests.h"
#include "runtime/results/line_sums.h"
#include "runtime/results/run_record.h"

namespace weft::runtime {
namespace {

constexpr std::size_t kWriteBytes = 1 << 20;
constexpr std::size_t kMostNamed = 5;
constexpr std::string_view kMark = "\xef\xbb\xbf";  // a byte order mark

std::string place(const std::filesystem::path& path, std::size_t line) {
  return path.string() + ":" + std::to_string(line);
}

nlohmann::json object_of(std::string_view line, const std::filesystem::path& path, std::size_t number) {
  const std::string where = place(path, number);
  auto json = policy::parse_json(line, where, policy::Blame::usage, {.byte_order_mark = number == 1});
  if (!json.is_object()) throw UsageError(where + ": not an object");
  return json;
}

bool is_answer(const nlohmann::json& object) {
  if (!object.contains("id") && !object.contains("custom_id")) return false;
  constexpr std::array marks{"token_ids", "choices", "logprobs", "response", "error"};
  return std::any_of(marks.begin(), marks.end(), [&](const char* mark) { return object.contains(mark); });
}

/// The places and ids of the lines of a request file, which is all that can be known of it without a model. A line
/// whose id cannot be read, or is that of an earlier line, can only have been refused, by its number.
class RequestLines {
 public:
  RequestLines(const RequestInput& input, const std::atomic<bool>& stop) : file_(open_requests(input, stop).file) {
    bool some_say_theirs = false;
    for_each_line(file_, [&](std::string_view line, std::uint64_t offset, std::size_t number) {
      if (stop) throw Interrupted{};
      if (line.find_first_not_of(" \t") == std::string_view::npos) return;
      fingerprint_ = mix(fingerprint_ ^ hash(line));
      if (!dialect_) dialect_ = dialect_in(line, number);
      const auto [id, said] = read_id(line, number);
      some_say_theirs |= said;
      if (id) ids_.add(*id, lines_.size());
      lines_.push_back({offset, static_cast<std::uint32_t>(line.size()), static_cast<std::uint32_t>(number)});
    });
    if (lines_.empty())
      throw UsageError(file_.path().string() + ": no requests; give the file that the shards answered");
    if (some_say_theirs)  // then a line without one was refused
      ids_.remove_if([this](std::size_t index) { return !read_id(text(index), line(index)).second; });
    ids_.sort([this](std::size_t index) { return id(index); }, [](std::size_t, std::size_t) {});
  }

  const std::filesystem::path& path() const { return file_.path(); }
  std::size_t size() const { return lines_.size(); }
  /// As a run's record names them.
  std::string description() const { return describe_requests(lines_.size(), fingerprint_); }
  std::size_t line(std::size_t index) const { return lines_[index].number; }
  std::optional<std::size_t> find(const std::string& id) const {
    return ids_.find(id, [this](std::size_t index) { return this->id(index); });
  }
  std::optional<std::size_t> find_line(std::uint64_t number) const {
    const auto it = std::lower_bound(lines_.begin(), lines_.end(), number,
                                     [](const Line& line, std::uint64_t wanted) { return line.number < wanted; });
    if (it == lines_.end() || it->number != number) return {};
    return static_cast<std::size_t>(it - lines_.begin());
  }
  /// The id as JSON; null if it cannot be read.
  std::string id(std::size_t index) const { return read_id(text(index), line(index)).first.value_or("null"); }

 private:
  struct Line {
    std::uint64_t offset;
    std::uint32_t bytes, number;
  };

  std::optional<Dialect> dialect_in(std::string_view text, std::size_t number) const {
    try {
      return dialect_of(object_of(text, path(), number));
    } catch (const UsageError&) {
      return {};
    }
  }
  /// The id, and whether the line itself has it.
  std::pair<std::optional<std::string>, bool> read_id(std::string_view text, std::size_t number) const {
    if (!dialect_) return {};
    try {
      const auto json = object_of(text, path(), number);
      return {id_of_line(json, number, *dialect_, false), json.contains("id") || dialect_ == Dialect::openai};
    } catch (const UsageError&) {
      return {};
    }
  }
  std::string text(std::size_t index) const {
    std::string text(lines_[index].bytes, '\0');
    file_.read(lines_[index].offset, std::as_writable_bytes(std::span(text)));
    return text;
  }

  InputFile file_;
  std::optional<Dialect> dialect_;  // that of the first line that is an object
  std::vector<Line> lines_;
  std::uint64_t fingerprint_ = 0;
  IdIndex ids_;
};

/// The line and the part that answer each request.
class AnswerLines {
 public:
  AnswerLines(const RequestLines& requests, const std::vector<std::filesystem::path>& parts,
              const std::atomic<bool>& stop)
      : requests_(requests), stop_(stop), lines_(requests.size()) {
    require_alike(parts);
    for (const auto& part : parts) {
      parts_.emplace_back(part);
      sums_ = SumFile::read(part);
      std::string unsummed;  // the first line without a checksum
      std::size_t summed = 0;
      for (LineStream lines(parts_.back()); lines.next();) {
        if (stop) throw Interrupted{};
        if (add(lines)) ++summed;
        else if (unsummed.empty()) unsummed = place(part, lines.number());
      }
      // If every checksum has its line, those of other lines were lost, as all are if there is no such file.
      if (!unsummed.empty() && summed < sums_.size())
        throw UsageError(unsummed + ": is not what was written; --resume=repair of this shard runs it again");
    }
    require_all();
  }

  void write(const std::filesystem::path& output) const {
    if (output == kPipe) {
      StandardOutput pipe(&stop_);
      return write_to(pipe);
    }
    AtomicFile file(output);
    write_to(file);
    file.commit();
  }

 private:
  template <class Out> void write_to(Out& file) const {
    std::string text;
    for (const Line& line : lines_) {
      if (stop_) throw Interrupted{};
      for (std::uint64_t done = 0; done < line.bytes;) {
        const std::uint64_t count = std::min<std::uint64_t>(line.bytes - done, kWriteBytes);
        const std::size_t begin = text.size();
        text.resize(begin + count);
        parts_[line.part - 1].read(line.offset + done, std::as_writable_bytes(std::span(text).subspan(begin)));
        done += count;
        if (text.size() < kWriteBytes) continue;
        file.append(text);
        text.clear();
      }
      text += '\n';
    }
    file.append(text);
  }

  struct Line {
    std::uint64_t offset = 0, bytes = 0;  // without its newline
    std::uint32_t number = 0, part = 0;   // part: a place in parts_, from 1; 0 for none
  };

  /// Refuses shards of other requests, or of different models, retentions or lengths of answers.
  void require_alike(const std::vector<std::filesystem::path>& parts) const {
    std::optional<RunRecord> first;
    std::filesystem::path path;
    for (const auto& part : parts) {
      auto record = RunRecord::read(part);
      if (!record) continue;
      record->unset("shard");
      if (const std::string* asked = record->find("requests"); asked && *asked != requests_.description())
        throw UsageError(part.string() + ": answers other requests (" + *asked + ") than those of " +
                         requests_.path().string() + " (" + requests_.description() +
                         "), which may have changed since; give what the shards answered, each file after an " +
                         "--input of its own");
      if (!first) {
        first = std::move(record);
        path = part;
      } else if (const std::string words = first->difference(*record); !words.empty()) {
        throw UsageError(part.string() + ": belongs to another job than " + path.string() + ": " + words);
      }
    }
  }

  /// Adds a line of the last part. Returns whether it has a checksum.
  bool add(LineStream& lines) {
    const InputFile& part = parts_.back();
    const std::string where = place(part.path(), lines.number());
    nlohmann::json json;
    std::string refused;
    char last = 0;
    LineSum sum;
    const auto pieces = [&] {
      const std::string_view piece = lines.piece();
      if (!piece.empty()) last = piece.back();
      sum.add(piece);
      return piece;
    };
    try {
      json = policy::skim_json(pieces, where, policy::Blame::usage, {.byte_order_mark = lines.number() == 1});
    } catch (const UsageError& bad) {
      refused = bad.what();
    }
    lines.skip_rest();
    if (!lines.whole()) throw UsageError(where + ": is cut short; finish this shard with --resume first");
    if (!refused.empty()) throw UsageError(refused);
    if (!json.is_object()) throw UsageError(where + ": not an object");
    if (!is_answer(json))
      throw UsageError(where + ": not a result of weft generate or weft score; give the outputs of the shards");
    const nlohmann::json& said = json.at(json.contains("custom_id") ? "custom_id" : "id");
    const std::string id = policy::to_line(said).substr(0, 80);
    const auto request =
        said.is_null() ? requests_.find_line(refused_line(json)) : requests_.find(policy::to_line(said));
    if (!request)
      throw UsageError(where + ": answers " + id + ", which is not in " + requests_.path().string() +
                       "; give the requests that the shards answered");
    Line& line = lines_[*request];
    if (line.part > 0)
      throw UsageError(where + ": answers " + id + " a second time, after " +
                       place(parts_[line.part - 1].path(), line.number) + "; give each shard's output once");
    line = {lines.offset(), lines.end() - lines.offset() - (last == '\r' ? 2 : 1),
            static_cast<std::uint32_t>(lines.number()), static_cast<std::uint32_t>(parts_.size())};
    if (has_mark(part, lines.offset())) line.offset += kMark.size(), line.bytes -= kMark.size();
    sum.add("\n");
    return sums_.contains(sum.value());
  }

  /// Whether a byte order mark is at that place, where only the first line of a file may have one.
  static bool has_mark(const InputFile& part, std::uint64_t offset) {
    std::array<char, kMark.size()> begin{};
    if (offset != 0 || part.size() < begin.size()) return false;
    part.read(0, std::as_writable_bytes(std::span(begin)));
    return std::string_view(begin.data(), begin.size()) == kMark;
  }

  void require_all() const {
    std::size_t missing = 0;
    std::string names;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (lines_[i].part > 0) continue;
      if (++missing > kMostNamed) continue;
      names +=
          (missing > 1 ? ", " : "") + requests_.id(i).substr(0, 80) + " of line " + std::to_string(requests_.line(i));
    }
    if (missing > 0)
      throw UsageError(requests_.path().string() + ": " + std::to_string(missing) + " of " +
                       std::to_string(lines_.size()) + " requests are not answered: " + names +
                       (missing > kMostNamed ? ", ..." : "") + "; give all shards' outputs, each finished by --resume");
  }

  const RequestLines& requests_;
  const std::atomic<bool>& stop_;
  std::vector<InputFile> parts_;
  SumSet sums_;              // those of the last part
  std::vector<Line> lines_;  // by request
};

}  // namespace

std::size_t merge(const RequestInput& input, const std::vector<std::filesystem::path>& parts,
                  const std::filesystem::path& output, const std::atomic<bool>& stop) {
  try {
    const RequestLines requests(input, stop);
    AnswerLines(requests, parts, stop).write(output);
    return requests.size();
  } catch (const Interrupted&) {
    return 0;
  }
}

}  // namespace weft::runtime

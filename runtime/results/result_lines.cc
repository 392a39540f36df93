#include "runtime/results/result_lines.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/files.h"
#include "runtime/base/line_stream.h"
#include "runtime/base/own_file.h"
#include "runtime/base/stop.h"
#include "runtime/results/result_line.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kLineBegin = "{\"id\":";
constexpr std::size_t kCopyBytes = 1 << 20;

/// Passes the bytes of a range to `write` piece by piece.
template <class Write> void copy(const InputFile& from, Span range, const Write& write) {
  std::string piece;
  while (range.bytes > 0) {
    piece.resize(std::min<std::uint64_t>(range.bytes, kCopyBytes));
    from.read(range.offset, std::as_writable_bytes(std::span(piece)));
    write(piece);
    range.offset += piece.size();
    range.bytes -= piece.size();
  }
}

/// The offset after the last newline.
std::uint64_t end_of_whole_lines(const InputFile& file) {
  std::string piece;
  for (std::uint64_t end = file.size(); end > 0; end -= piece.size()) {
    piece.resize(std::min<std::uint64_t>(end, kCopyBytes));
    file.read(end - piece.size(), std::as_writable_bytes(std::span(piece)));
    if (const auto newline = piece.rfind('\n'); newline != std::string::npos) return end - piece.size() + newline + 1;
  }
  return 0;
}

/// Whether `tail`, which does not end in a newline, begins as a result does. NUL bytes at its end do not count.
bool begins_as_result(LineStream& tail) {
  std::string begin;
  bool nul = false;
  for (std::string_view piece = tail.piece(); !piece.empty(); piece = tail.piece()) {
    const std::string_view text = piece.substr(0, piece.find_last_not_of('\0') + 1);
    if (nul && !text.empty()) return false;  // text after NUL bytes
    nul = text.size() < piece.size();
    if (begin.size() < kLineBegin.size()) begin += text.substr(0, kLineBegin.size() - begin.size());
  }
  return begin == kLineBegin.substr(0, begin.size());
}

struct Line {
  std::optional<std::size_t> request;  // none for a refusal that is tried again
  bool refused = false;
  std::uint64_t sum = 0;
};

/// Reads the request that the current line answers. Throws UsageError, whose message begins with `where`.
Line read_answer(LineStream& lines, const RequestFile& requests, const std::string& where, bool retry) {
  char last = 0;
  LineSum sum;
  const auto json = policy::skim_json(
      [&] {
        const std::string_view piece = lines.piece();
        if (!piece.empty()) last = piece.back();
        sum.add(piece);
        return piece;
      },
      where, policy::Blame::usage);
  if (last == '\r') throw UsageError(where + ": lines end in \\r\\n; something rewrote this file, undo that");
  sum.add("\n");
  if (retry && json.is_object() && is_refusal(json)) return {{}, true, sum.value()};
  return {answered_request(json, requests, where), is_refusal(json), sum.value()};
}

/// A line that has no checksum in the set.
struct Unsummed {
  std::size_t number;
  Span span;
  Line line;
};

/// Accepts the lines without a checksum, or puts them with the damaged ones.
void judge(const std::vector<Unsummed>& lines, bool take, const fs::path& output, ResultScan& scan) {
  for (const auto& [number, span, line] : lines) {
    if (take) {
      scan.unsummed.push_back(line.sum);
      continue;
    }
    scan.done[*line.request] = false;
    scan.refused -= line.refused ? 1 : 0;
    const auto place = std::lower_bound(scan.damaged.begin(), scan.damaged.end(), span.offset,
                                        [](const Span& other, std::uint64_t offset) { return other.offset < offset; });
    if (place == scan.damaged.begin())
      scan.first_damage = output.string() + ":" + std::to_string(number) +
                          ": is not what was written: " + SumFile::place(output).filename().string() +
                          " has no such checksum (byte " + std::to_string(span.offset) +
                          "); if the output was put back from a copy, put that file back too or remove it";
    scan.damaged.insert(place, span);
  }
}

}  // namespace

ResultScan scan_results(const fs::path& output, const RequestFile& requests, const ScanOptions& options) {
  ResultScan scan;
  scan.done.assign(requests.size(), false);
  const InputFile file(output);
  const std::uint64_t last_newline_end = end_of_whole_lines(file);
  std::vector<Unsummed> unsummed;
  std::size_t summed = 0;
  for (LineStream lines(file); lines.next();) {
    if (options.stop && *options.stop) throw Interrupted{};
    const std::string where = output.string() + ":" + std::to_string(lines.number());
    const std::uint64_t offset = lines.offset();
    std::string damage;
    try {
      if (offset >= last_newline_end) {
        if (!begins_as_result(lines)) throw UsageError(where + ": not the beginning of a result");
        break;
      }
      const Line line = read_answer(lines, requests, where, options.retry);
      const Span span{offset, lines.end() - offset};
      const bool known = options.sums && options.sums->contains(line.sum);
      if (line.request && scan.done[*line.request]) throw UsageError(where + ": answers a request a second time");
      summed += known ? 1 : 0;
      if (line.request) {
        scan.done[*line.request] = true;
        scan.refused += line.refused ? 1 : 0;
        if (!known) unsummed.push_back({lines.number(), span, line});
        if (options.on_answer) options.on_answer(*line.request, span);
      } else {
        scan.failed.push_back(span);
      }
    } catch (const UsageError& bad) {
      damage = bad.what();
    }
    lines.skip_rest();
    scan.whole = lines.end();
    if (damage.empty()) continue;
    if (scan.damaged.empty()) scan.first_damage = damage + " (byte " + std::to_string(offset) + ")";
    scan.damaged.push_back({offset, lines.end() - offset});
  }
  judge(unsummed, !options.sums || summed == options.sums->size(), output, scan);
  return scan;
}

fs::path sorted_place(const fs::path& output) {
  const std::string suffix = ".jsonl", name = output.string();
  return (name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : name) + ".sorted" + suffix;
}

void write_sorted(const fs::path& output, const fs::path& sorted, const RequestFile& requests, std::size_t count,
                  const std::atomic<bool>* stop) {
  std::vector<Span> place(requests.size());
  const SumSet sums = SumFile::read(output);
  const ResultScan scan = scan_results(
      output, requests,
      {.sums = &sums, .on_answer = [&](std::size_t request, Span line) { place[request] = line; }, .stop = stop});
  if (!scan.damaged.empty()) throw UsageError(scan.first_damage + "; cannot be put in order");
  if (std::count(scan.done.begin(), scan.done.end(), true) != static_cast<std::ptrdiff_t>(count))
    throw UsageError(output.string() + ": lacks answers and cannot be put in order; --resume gets them");
  const InputFile from(output);
  AtomicFile to(sorted, {.link = AtomicFile::Link::refuse, .only_writer = true});
  std::string text;
  for (const Span& line : place) {
    if (stop && *stop) throw Interrupted{};
    copy(from, line, [&](const std::string& piece) {
      text += piece;
      if (text.size() < kCopyBytes) return;
      to.append(text);
      text.clear();
    });
  }
  to.append(text);
  to.commit();
}

void set_aside(const fs::path& output, const ResultScan& scan) {
  const InputFile from(output);
  const fs::path place = output.string() + ".bad";
  const auto fail = [&](const char* what) {
    throw IoError(place.string() + ": cannot " + what + ": " + std::generic_category().message(errno));
  };
  const int bad =
      ::open(place.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
  if (bad < 0) fail(errno == ELOOP ? "be opened: it is a symbolic link" : "be opened");
  struct Closing {
    int fd;
    ~Closing() { ::close(fd); }
  } const closing{bad};
  check_own(place, bad);
  make_private(place, bad);
  const auto write = [&](std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = ::write(bad, text.data(), text.size());
      if (count < 0 && errno != EINTR) fail("be written");
      if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
    }
  };
  AtomicFile good(output, {.only_writer = true});
  std::uint64_t kept = 0;
  std::vector<Span> ranges = scan.damaged;
  ranges.insert(ranges.end(), scan.failed.begin(), scan.failed.end());
  std::sort(ranges.begin(), ranges.end(), [](const Span& a, const Span& b) { return a.offset < b.offset; });
  for (const Span& range : ranges) {
    copy(from, {kept, range.offset - kept}, [&](const std::string& piece) { good.append(piece); });
    std::string last;
    copy(from, range, [&](const std::string& piece) { write(last = piece); });
    if (last.back() != '\n') write("\n");
    kept = range.offset + range.bytes;
  }
  copy(from, {kept, scan.whole - kept}, [&](const std::string& piece) { good.append(piece); });
  if (::fsync(bad) != 0) fail("be flushed to disk");
  good.commit();
}

}  // namespace weft::runtime

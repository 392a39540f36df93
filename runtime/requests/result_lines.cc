#include "runtime/requests/result_lines.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "kernels/error.h"
#include "policy/json.h"
#include "runtime/base/files.h"
#include "runtime/base/line_stream.h"
#include "runtime/requests/result_line.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kLineBegin = "{\"id\":";
constexpr std::size_t kCopyBytes = 1 << 20;

/// Gives `write` the bytes of a range piece by piece.
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

/// Whether `tail`, which ends in no newline, begins as a result does. NUL bytes at its end do not count.
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

/// The request that the present line answers. Throws UsageError, which `where` begins.
std::size_t read_answer(LineStream& lines, const RequestFile& requests, const std::string& where) {
  char last = 0;
  const auto json = policy::skim_json(
      [&] {
        const std::string_view piece = lines.piece();
        if (!piece.empty()) last = piece.back();
        return piece;
      },
      where, policy::Blame::usage);
  if (last == '\r') throw UsageError(where + ": lines end in \\r\\n; something rewrote this file, undo that");
  return answered_request(json, requests, where);
}

}  // namespace

ResultScan scan_results(const fs::path& output, const RequestFile& requests, const OnAnswer& on_answer) {
  ResultScan scan;
  scan.done.assign(requests.size(), false);
  const InputFile file(output);
  const std::uint64_t last_newline_end = end_of_whole_lines(file);
  for (LineStream lines(file); lines.next();) {
    const std::string where = output.string() + ":" + std::to_string(lines.number());
    const std::uint64_t offset = lines.offset();
    std::string damage;
    try {
      if (offset >= last_newline_end) {
        if (!begins_as_result(lines)) throw UsageError(where + ": not the beginning of a result");
        break;
      }
      const std::size_t request = read_answer(lines, requests, where);
      if (scan.done[request]) throw UsageError(where + ": answers a request a second time");
      scan.done[request] = true;
      if (on_answer) on_answer(request, {offset, lines.end() - offset});
    } catch (const UsageError& bad) {
      damage = bad.what();
    }
    lines.skip_rest();
    scan.whole = lines.end();
    if (damage.empty()) continue;
    if (scan.damaged.empty()) scan.first_damage = damage + " (byte " + std::to_string(offset) + ")";
    scan.damaged.push_back({offset, lines.end() - offset});
  }
  return scan;
}

fs::path sorted_place(const fs::path& output) {
  const std::string suffix = ".jsonl", name = output.string();
  return (name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : name) + ".sorted" + suffix;
}

void write_sorted(const fs::path& output, const fs::path& sorted, const RequestFile& requests, std::size_t count) {
  std::vector<Span> place(requests.size());
  const ResultScan scan =
      scan_results(output, requests, [&](std::size_t request, Span line) { place[request] = line; });
  if (!scan.damaged.empty()) throw UsageError(scan.first_damage + "; cannot be put in order");
  if (std::count(scan.done.begin(), scan.done.end(), true) != static_cast<std::ptrdiff_t>(count))
    throw UsageError(output.string() + ": lacks answers and cannot be put in order; --resume gets them");
  const InputFile from(output);
  AtomicFile to(sorted, {.mode = 0600, .only_writer = true});
  std::string text;
  for (const Span& line : place)
    copy(from, line, [&](const std::string& piece) {
      text += piece;
      if (text.size() < kCopyBytes) return;
      to.append(text);
      text.clear();
    });
  to.append(text);
  to.commit();
}

void set_aside(const fs::path& output, const ResultScan& scan) {
  const InputFile from(output);
  const fs::path place = output.string() + ".bad";
  const auto fail = [&](const char* what) {
    throw IoError(place.string() + ": cannot " + what + ": " + std::generic_category().message(errno));
  };
  const int bad = ::open(place.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (bad < 0) fail("be opened");
  struct Closing {
    int fd;
    ~Closing() { ::close(fd); }
  } const closing{bad};
  const auto write = [&](std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = ::write(bad, text.data(), text.size());
      if (count < 0 && errno != EINTR) fail("be written");
      if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
    }
  };
  AtomicFile good(output, {.mode = 0600, .only_writer = true});
  std::uint64_t kept = 0;
  for (const Span& range : scan.damaged) {
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

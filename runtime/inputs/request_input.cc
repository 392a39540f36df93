#include "runtime/inputs/request_input.h"

#include <algorithm>

#include "kernels/error.h"
#include "runtime/base/files.h"
#include "runtime/base/standard_streams.h"
#include "runtime/base/stop.h"
#include "runtime/inputs/csv.h"
#include "runtime/inputs/unpack.h"

namespace weft::runtime {
namespace {

/// By its name, in letters of either case.
bool is_table(std::string path) {
  std::transform(path.begin(), path.end(), path.begin(),
                 [](char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  return path.ends_with(".csv") || path.ends_with(".csv.gz") || path.ends_with(".csv.zst");
}

/// Puts files together, and notes where lines come from.
class Joined {
 public:
  Joined(const RequestInput& input, const std::atomic<bool>& stop)
      : columns_(input.columns), stop_(stop), spool_(input.name(), "--input " + input.name()) {}

  void add(const std::string& path) {
    const InputFile file(path);
    Unpacker bytes(file);
    origins_.add_path(path);
    is_table(path) ? add_table(path, bytes) : add_lines(bytes);
    ++paths_;
  }
  OpenedRequests finish() && { return {std::move(spool_).finish(), std::move(origins_)}; }

 private:
  void add_lines(Unpacker& bytes) {
    origins_.add(next_line_, paths_, 1);
    bool first = true, whole = true;
    for (std::string_view piece = bytes.next(); !piece.empty(); piece = bytes.next()) {
      if (stop_) throw Interrupted{};
      if (first && paths_ > 0 && piece.starts_with("\xEF\xBB\xBF")) piece.remove_prefix(3);  // may begin a file alone
      first = false;
      if (piece.empty()) continue;
      spool_.append(piece);
      next_line_ += static_cast<std::uint64_t>(std::count(piece.begin(), piece.end(), '\n'));
      whole = piece.ends_with('\n');
    }
    if (whole) return;
    spool_.append("\n");
    ++next_line_;
  }

  void add_table(const std::string& path, Unpacker& bytes) {
    CsvReader csv([&] { return bytes.next(); }, path);
    std::vector<std::string> fields;
    if (!csv.read(fields)) throw UsageError(path + ": is empty; wanted a line with the names of columns");
    const RequestTable table(columns_, fields, path + ":" + std::to_string(csv.line()));
    std::string lines;
    while (csv.read(fields)) {
      if (stop_) throw Interrupted{};
      if (fields.size() != table.columns())
        csv.refuse(csv.line(), "the record has " + std::to_string(fields.size()) + " fields, the header " +
                                   std::to_string(table.columns()));
      origins_.add(next_line_++, paths_, csv.line());
      lines += table.line(fields);
      if (lines.size() < kTogether) continue;
      spool_.append(lines);
      lines.clear();
    }
    spool_.append(lines);
  }

  static constexpr std::size_t kTogether = 1 << 18;
  const TableColumns& columns_;
  const std::atomic<bool>& stop_;
  Spool spool_;
  LineOrigins origins_;
  std::uint64_t next_line_ = 1;
  std::size_t paths_ = 0;
};

}  // namespace

bool RequestInput::is_pipe() const { return paths.size() == 1 && paths.front() == kPipe; }

std::string RequestInput::name() const {
  if (paths.size() < 2) return paths.empty() ? "" : paths.front();
  return paths.front() + " and " + std::to_string(paths.size() - 1) + (paths.size() > 2 ? " others" : " other");
}

void RequestInput::require() const {
  if (!columns.prompt.empty() && !columns.prompt_template.empty())
    throw UsageError("--prompt-column and --prompt-template: give one of them");
  if (columns.given() && std::none_of(paths.begin(), paths.end(), is_table))
    throw UsageError("--input " + name() + ": is no table; " +
                     (!columns.prompt.empty()            ? "--prompt-column"
                      : !columns.prompt_template.empty() ? "--prompt-template"
                                                         : "--continuation-column") +
                     " wants a file that is called NAME.csv");
  for (const std::string& path : paths) {
    if (path == kPipe && paths.size() > 1)
      throw UsageError("--input -: standard input is one input of its own; leave out the files");
    if (path != kPipe) require_input("--input", path);
  }
}

void LineOrigins::add(std::uint64_t line, std::size_t path, std::uint64_t from) {
  if (!runs_.empty() && runs_.back().path == path && runs_.back().from + (line - runs_.back().line) == from) return;
  runs_.push_back({line, from, path});
}

std::string LineOrigins::place(const std::string& whole, std::uint64_t line) const {
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), line,
                                      [](std::uint64_t wanted, const Run& run) { return wanted < run.line; });
  if (after == runs_.begin()) return whole + ":" + std::to_string(line);
  const Run& run = *(after - 1);
  return paths_[run.path] + ":" + std::to_string(run.from + (line - run.line));
}

OpenedRequests open_requests(const RequestInput& input, const std::atomic<bool>& stop) {
  if (input.is_pipe()) return {spool_standard_input(stop), {}};
  if (input.paths.size() == 1 && !is_table(input.paths.front())) {
    InputFile file(std::filesystem::path(input.paths.front()));
    if (!is_packed(file)) return {std::move(file), {}};
  }
  Joined joined(input, stop);
  for (const std::string& path : input.paths) joined.add(path);
  return std::move(joined).finish();
}

}  // namespace weft::runtime

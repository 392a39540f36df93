// runtime/inputs/request_input.h: the requests that --input names: files of requests, packed or not, tables, or
// standard input.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/input_file.h"
#include "runtime/inputs/request_table.h"

namespace weft::runtime {

struct RequestInput {
  RequestInput() = default;
  RequestInput(std::string path) : paths{std::move(path)} {}                 // NOLINT: one name is an input
  RequestInput(const std::filesystem::path& path) : paths{path.string()} {}  // NOLINT: the same

  std::vector<std::string> paths;
  TableColumns columns;

  bool is_pipe() const;
  std::string name() const;  ///< "a.csv", or "a.csv and 2 others"
  /// Throws UsageError unless all paths are regular files, or the one path is standard input.
  void require() const;
};

/// The places that the lines of a file that was put together come from. Empty for a file that is its own.
class LineOrigins {
 public:
  /// Line `line` of the whole, and those after it, come from line `from` of `path`, and those after it. Call it in the
  /// order of lines.
  void add(std::uint64_t line, std::size_t path, std::uint64_t from);
  void add_path(std::string path) { paths_.push_back(std::move(path)); }
  /// "prompts.csv:7" for a line of the whole; `whole` is the name if there are no origins.
  std::string place(const std::string& whole, std::uint64_t line) const;

 private:
  struct Run {
    std::uint64_t line, from;
    std::size_t path;
  };
  std::vector<std::string> paths_;
  std::vector<Run> runs_;  // one for all lines that follow each other in both
};

struct OpenedRequests {
  InputFile file;
  LineOrigins origins;
};

/// Opens the requests as one file of JSON lines. A single file that is not packed and no table (NAME.csv) is opened as
/// it is. All else goes to a Spool first, tables as Weft's own lines. Throws UsageError for a bad file, Interrupted
/// once `stop` is set.
OpenedRequests open_requests(const RequestInput& input, const std::atomic<bool>& stop);

}  // namespace weft::runtime

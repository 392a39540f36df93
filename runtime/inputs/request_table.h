// runtime/inputs/request_table.h: a table's records as request lines.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace weft::runtime {

/// The columns that make a request. At most one of `prompt` and `prompt_template` is given; without either it is the
/// column "prompt".
struct TableColumns {
  std::string prompt, prompt_template;
  std::string continuation;  ///< only weft score and its merge have one; may be empty
  bool given() const { return !prompt.empty() || !prompt_template.empty() || !continuation.empty(); }
};

/// Makes one of Weft's own request lines of a record. Columns that are not the prompt's or the continuation's are its
/// metadata; with a template all are.
class RequestTable {
 public:
  /// `names`: the header. Throws UsageError, whose text begins with `where`, for a name that comes twice, a template
  /// that is none, and a column that is not there.
  RequestTable(const TableColumns& columns, std::vector<std::string> names, const std::string& where);

  /// A line with its newline. `fields` are as many as there are names.
  std::string line(const std::vector<std::string>& fields) const;
  std::size_t columns() const { return names_.size(); }

 private:
  void read_template(const std::string& text, const std::string& where);
  std::size_t find(const std::string& flag, const std::string& name, const std::string& where) const;

  static constexpr std::size_t kNone = SIZE_MAX;
  std::vector<std::string> names_;
  std::vector<std::pair<std::string, std::size_t>> pieces_;  // text, and the column whose text follows, or kNone
  std::size_t prompt_ = kNone, continuation_ = kNone;
};

}  // namespace weft::runtime

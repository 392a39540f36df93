// runtime/inputs/csv.h: records of a CSV file as RFC 4180 has them. Debian's libraries for CSV are C APIs of
// callbacks or guess where the RFC is strict; the grammar is four rules.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::runtime {

/// Goes once through a file of records: fields between commas, with quotes around what has commas, quotes (doubled) or
/// newlines in it. Lines end with \n or \r\n. Blank lines are no records.
class CsvReader {
 public:
  /// `next` returns the next bytes, and none at the end. Messages begin with `name` and the line.
  CsvReader(std::function<std::string_view()> next, std::string name)
      : next_(std::move(next)), name_(std::move(name)) {}

  /// Reads a record. Returns false at the end. Throws UsageError for what is no CSV in UTF-8, and for a record over
  /// 16 MiB.
  bool read(std::vector<std::string>& fields);
  /// The number, from 1, of the line on which the last record began.
  std::size_t line() const { return line_; }
  [[noreturn]] void refuse(std::size_t line, const std::string& what) const;

 private:
  static constexpr int kEnd = -1;

  int get();
  void put(int c);
  int read_quoted();
  int read_plain(int c);
  void check(const std::vector<std::string>& fields) const;

  std::function<std::string_view()> next_;
  std::string name_;
  std::string_view piece_;
  std::string field_;
  std::size_t bytes_ = 0;               // of the record so far
  std::size_t line_ = 0, at_line_ = 1;  // at_line_: that of the next character
  bool begun_ = false;
};

}  // namespace weft::runtime

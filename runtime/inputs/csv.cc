#include "runtime/inputs/csv.h"

#include <utility>

#include "kernels/error.h"
#include "runtime/base/utf8.h"

namespace weft::runtime {
namespace {

constexpr std::size_t kLargestRecord = 16 << 20;

}  // namespace

void CsvReader::refuse(std::size_t line, const std::string& what) const {
  throw UsageError(name_ + ":" + std::to_string(line) + ": " + what);
}

int CsvReader::get() {
  if (piece_.empty()) piece_ = next_();
  if (!begun_) {  // a byte order mark begins no name; all pieces but the last are long
    if (piece_.starts_with("\xFF\xFE") || piece_.starts_with("\xFE\xFF"))
      refuse(1, "this is UTF-16; write the file as UTF-8");
    if (piece_.starts_with("\xEF\xBB\xBF")) piece_.remove_prefix(3);
    begun_ = true;
  }
  if (piece_.empty()) return kEnd;
  const char c = piece_.front();
  piece_.remove_prefix(1);
  if (c == '\n') ++at_line_;
  return static_cast<unsigned char>(c);
}

void CsvReader::put(int c) {
  if (++bytes_ > kLargestRecord) refuse(line_, "the record is longer than 16 MiB; is a quote not closed?");
  field_.push_back(static_cast<char>(c));
}

/// Reads a field whose first quote is read. Returns the character after its last one.
int CsvReader::read_quoted() {
  const std::size_t begin = at_line_;
  while (true) {
    int c = get();
    if (c == kEnd) refuse(begin, "a quoted field has no closing quote");
    if (c == '"' && (c = get()) != '"') {
      if (c != ',' && c != '\n' && c != '\r' && c != kEnd)
        refuse(at_line_,
               "text follows a closing quote; wanted a comma or the end of the line (a quote within a field is "
               "written twice)");
      return c;
    }
    put(c);
  }
}

/// Reads a field whose first character is `c`. Returns the character after it.
int CsvReader::read_plain(int c) {
  for (; c != ',' && c != '\n' && c != '\r' && c != kEnd; c = get()) {
    if (c == '"')
      refuse(at_line_,
             "a quote amid a field without quotes; wanted quotes around the field, and this one written twice");
    put(c);
  }
  return c;
}

bool CsvReader::read(std::vector<std::string>& fields) {
  while (true) {
    fields.clear();
    bytes_ = 0;
    line_ = at_line_;
    int c = get();
    if (c == kEnd) return false;
    bool quoted = false;
    while (true) {
      field_.clear();
      quoted |= c == '"';
      c = c == '"' ? read_quoted() : read_plain(c);
      if (c == '\r' && (c = get()) != '\n' && c != kEnd)
        refuse(at_line_, "a carriage return without a newline; wanted quotes around a field that has one");
      fields.push_back(field_);
      if (c != ',') break;
      c = get();
    }
    if (fields.size() == 1 && fields.front().empty() && !quoted) continue;
    check(fields);
    return true;
  }
}

void CsvReader::check(const std::vector<std::string>& fields) const {
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (!is_utf8(fields[i])) refuse(line_, "field " + std::to_string(i + 1) + " is not UTF-8");
}

}  // namespace weft::runtime

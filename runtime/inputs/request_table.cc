#include "runtime/inputs/request_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/quote.h"

namespace weft::runtime {
namespace {

constexpr std::size_t kMostNamed = 10;  // columns in a message

std::string json_text(const std::string& text) { return policy::to_line(nlohmann::json(text)); }

std::string list_of(const std::vector<std::string>& names) {
  std::string list;
  for (std::size_t i = 0; i < std::min(names.size(), kMostNamed); ++i)
    list += (i > 0 ? ", " : "") + in_quotes(names[i]);
  return list + (names.size() > kMostNamed ? " and " + std::to_string(names.size() - kMostNamed) + " others" : "");
}

}  // namespace

RequestTable::RequestTable(const TableColumns& columns, std::vector<std::string> names, const std::string& where)
    : names_(std::move(names)) {
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (std::find(names_.begin(), names_.begin() + static_cast<std::ptrdiff_t>(i), names_[i]) !=
        names_.begin() + static_cast<std::ptrdiff_t>(i))
      throw UsageError(where + ": two columns are called " + in_quotes(names_[i]) + "; rename one");
  if (!columns.continuation.empty()) continuation_ = find("--continuation-column", columns.continuation, where);
  if (!columns.prompt_template.empty()) {
    read_template(columns.prompt_template, where);
  } else {
    prompt_ = find("--prompt-column", columns.prompt.empty() ? "prompt" : columns.prompt, where);
    pieces_ = {{"", prompt_}};
  }
}

std::size_t RequestTable::find(const std::string& flag, const std::string& name, const std::string& where) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end())
    throw UsageError(where + ": there is no column " + in_quotes(name) + ", the columns are " + list_of(names_) + "; " +
                     flag + " names another" + (flag == "--prompt-column" ? ", --prompt-template joins several" : ""));
  return static_cast<std::size_t>(found - names_.begin());
}

/// {name} is a column; {{ and }} are braces.
void RequestTable::read_template(const std::string& text, const std::string& where) {
  std::string before;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool brace = c == '{' || c == '}';
    if (brace && i + 1 < text.size() && text[i + 1] == c) {
      before += c;
      ++i;
    } else if (c == '{') {
      const std::size_t end = text.find('}', i);
      if (end == std::string::npos)
        throw UsageError("--prompt-template: the brace at byte " + std::to_string(i + 1) +
                         " is not closed; {name} stands for a column, {{ and }} for braces");
      pieces_.emplace_back(std::move(before), find("--prompt-template", text.substr(i + 1, end - i - 1), where));
      before.clear();
      i = end;
    } else if (c == '}') {
      throw UsageError("--prompt-template: the brace at byte " + std::to_string(i + 1) +
                       " closes nothing; {name} stands for a column, {{ and }} for braces");
    } else {
      before += c;
    }
  }
  if (!before.empty() || pieces_.empty()) pieces_.emplace_back(std::move(before), kNone);
}

std::string RequestTable::line(const std::vector<std::string>& fields) const {
  std::string prompt, metadata;
  for (const auto& [text, column] : pieces_) {
    prompt += text;
    if (column != kNone) prompt += fields[column];
  }
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (i != prompt_ && i != continuation_)
      metadata += (metadata.empty() ? "" : ",") + json_text(names_[i]) + ":" + json_text(fields[i]);
  std::string line = "{\"prompt\":" + json_text(prompt);
  if (continuation_ != kNone) line += ",\"continuation\":" + json_text(fields[continuation_]);
  if (!metadata.empty()) line += ",\"metadata\":{" + metadata + "}";
  return line + "}\n";
}

}  // namespace weft::runtime

// runtime/template/template.h: runs chat templates, which are programs in Jinja from anywhere. A template sees what it
// is given and nothing else: no files, no clock. Its steps, its memory and its depth are bounded.
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/template/lexer.h"

namespace weft::runtime::jinja {

/// The things that a template may ask for besides its variables.
struct Surroundings {
  std::optional<std::tm> now;  ///< the time that strftime_now() tells
};
/// Thrown if a template calls strftime_now() and no date is given.
struct DateWanted : TemplateError {
  using TemplateError::TemplateError;
};

struct Tree;

/// A template, read once. Const calls may run on many threads at once.
class Template {
 public:
  /// Reads a template with the settings of transformers: trim_blocks, lstrip_blocks, break and continue, {% generation
  /// %}. Throws TemplateError for what is no template.
  explicit Template(std::string_view source);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  Template(const Template&) = delete;
  Template& operator=(const Template&) = delete;

  /// Whether an expression of the template has this name, attribute or text.
  bool mentions(std::string_view word) const;
  /// Whether a loop goes through what has this name or is this part of something, as in message.content.
  bool loops_over(std::string_view word) const;
  /// The text that jinja2 makes of the template with these variables, an object. Throws TemplateError, which is a
  /// TemplateRefusal if the template called raise_exception.
  std::string render(const nlohmann::ordered_json& variables, const Surroundings& around = {}) const;

 private:
  std::unique_ptr<Tree> tree_;
};

}  // namespace weft::runtime::jinja

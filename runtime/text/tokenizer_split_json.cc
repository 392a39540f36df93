// runtime/text/tokenizer_split_json.cc: reads the components of a pre-tokenizer that is a sequence.
#include <array>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/utf8.h"
#include "runtime/text/tokenizer_files.h"

namespace weft::runtime {

using nlohmann::json;
using policy::Fields;

namespace {

Cut cut_of(Fields& fields, const std::string& fallback) {
  constexpr std::array<std::pair<const char*, Cut>, 5> cuts{{{"Isolated", Cut::isolated},
                                                             {"Removed", Cut::removed},
                                                             {"Contiguous", Cut::contiguous},
                                                             {"MergedWithPrevious", Cut::to_previous},
                                                             {"MergedWithNext", Cut::to_next}}};
  const std::string name = fields.text("behavior", fallback);
  for (const auto& [known, cut] : cuts)
    if (name == known) return cut;
  fields.refuse_field("behavior", "Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext");
}

SplitStep split_step(Fields& fields, const std::string& where) {
  SplitStep step{
      .kind = SplitStep::Kind::pattern, .cut = cut_of(fields, "Isolated"), .invert = fields.boolean("invert", false)};
  const json& pattern = fields.at("pattern");
  Fields of_pattern(pattern, where + ": 'pattern'", policy::Blame::data);
  if (of_pattern.has("String")) {
    step.kind = SplitStep::Kind::text;
    step.text = of_pattern.text("String");
    if (step.text.empty()) throw DataError(where + " splits at an empty text, which is not supported");
    return step;
  }
  try {
    step.regex = std::make_shared<const Regex>(of_pattern.text("Regex"));
  } catch (const UsageError& error) {
    throw DataError(where + ": " + error.what());
  }
  return step;
}

SplitStep spaces_step(Fields& fields, const std::string& where) {
  return {.kind = SplitStep::Kind::spaces,
          .cut = Cut::to_next,
          .text = replacement_of(fields, where),
          .prefix = scheme_of(fields),
          .split = fields.boolean("split", true)};
}

}  // namespace

std::string replacement_of(Fields& fields, const std::string& where) {
  const std::string text = fields.text("replacement");
  if (text.empty() || utf8_at(text, 0).bytes != text.size())
    throw DataError(where + " has a Metaspace whose replacement is not one character");
  return text;
}

SplitStep::Prefix scheme_of(Fields& fields) {
  const std::string scheme = fields.text("prepend_scheme", "always");
  if (scheme == "never" || !fields.boolean("add_prefix_space", true)) return SplitStep::Prefix::never;
  if (scheme == "always") return SplitStep::Prefix::always;
  if (scheme != "first") fields.refuse_field("prepend_scheme", "always, first or never");
  return SplitStep::Prefix::first;
}

std::vector<SplitStep> split_steps(const std::vector<const json*>& components, Names names, const std::string& where) {
  std::vector<SplitStep> steps;
  bool bytes = false;
  for (const json* one : components) {
    Fields fields(*one, where, policy::Blame::data);
    const std::string type = fields.text("type");
    if (type == "Split") {
      steps.push_back(split_step(fields, where));
    } else if (type == "Digits") {
      const bool each = fields.boolean("individual_digits", false);
      steps.push_back({.kind = SplitStep::Kind::digit, .cut = each ? Cut::isolated : Cut::contiguous});
    } else if (type == "Punctuation") {
      steps.push_back({.kind = SplitStep::Kind::punctuation, .cut = cut_of(fields, "Isolated")});
    } else if (type == "Metaspace" && names == Names::sentences) {
      steps.push_back(spaces_step(fields, where));
    } else if (type == "WhitespaceSplit" && names == Names::sentences) {
      steps.push_back({.kind = SplitStep::Kind::words, .cut = Cut::removed});
    } else if (type == "ByteLevel" && names == Names::bytes && !bytes) {
      bytes = true;
      if (fields.boolean("add_prefix_space", true))
        throw DataError(where + " has add_prefix_space true in a sequence, which is not supported");
      steps.push_back(
          {.kind = fields.boolean("use_regex", true) ? SplitStep::Kind::gpt2_bytes : SplitStep::Kind::bytes});
    } else {
      throw DataError(where + " has " + type.substr(0, 40) + (names == Names::bytes ? " in a sequence" : "") +
                      ", which is not supported");
    }
  }
  if (!bytes && names == Names::bytes)
    throw DataError(where + " has no ByteLevel in its sequence, which is not supported");
  return steps;
}

}  // namespace weft::runtime

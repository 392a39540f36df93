#include "runtime/template/template.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/template/ast.h"
#include "runtime/template/evaluator.h"

namespace weft::runtime::jinja {

namespace {

constexpr std::uint64_t kUnits = 2'000'000;  // what any template may take; see Meter

/// Units by what the template is given: long conversations take more steps.
std::uint64_t units_for(const nlohmann::ordered_json& json) {
  if (json.is_string()) return 200 + json.get_ref<const std::string&>().size() / 2;
  std::uint64_t units = 200;
  if (json.is_structured())
    for (const auto& item : json) units += units_for(item);
  return units;
}

}  // namespace

Template::Template(std::string_view source) : tree_(std::make_unique<Tree>(parse(source))) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

bool Template::mentions(std::string_view word) const { return tree_->words.find(word) != tree_->words.end(); }

bool Template::loops_over(std::string_view word) const { return tree_->looped.find(word) != tree_->looped.end(); }

std::string Template::render(const nlohmann::ordered_json& variables, const Surroundings& around) const {
  return Evaluator(*tree_, around, kUnits + units_for(variables)).run(variables);
}

}  // namespace weft::runtime::jinja

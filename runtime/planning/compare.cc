#include "runtime/planning/compare.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <map>

#include "runtime/planning/plan.h"

namespace weft::runtime {
namespace {

/// One model and one length of prompts and answers.
struct Group {
  const PublishedRow* row = nullptr;                   // any of its rows, for model and lengths
  std::map<std::string, double> published, simulated;  // tokens/s by system, from its best row
  double full = 0, h2o = 0;                            // predictions for this planner's policies
};

std::vector<Group> groups_of(const std::vector<PublishedResult>& results) {
  std::vector<Group> groups;
  for (const PublishedResult& result : results) {
    const PublishedRow& row = result.row;
    if (row.run.weight_bits != 16 || row.run.kv_bits != 16) continue;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return group.row->model == row.model && group.row->run.prompt == row.run.prompt &&
             group.row->run.generation == row.run.generation;
    });
    Group& group =
        same == groups.end() ? groups.emplace_back(Group{.row = &row, .published = {}, .simulated = {}}) : *same;
    double& published = group.published[row.system];
    if (row.tokens_per_second <= published) continue;
    published = row.tokens_per_second;
    group.simulated[row.system] = result.simulated.tokens_per_second;
  }
  return groups;
}

double best_of(const PublishedRow& row, const policy::Machine& machine, const char* rule) {
  const auto source = open_model(row.model_file, "float16", "random:1");
  PlanRequest request{.source = *source,
                      .machine = machine,
                      .policy = {},
                      .free = {machine.bytes},
                      .work =
                          [&](const policy::Retention& retention) {
                            return policy::alike({}, row.run.prompt, row.run.generation, retention,
                                                 source->spec.windows);
                          },
                      .retentions = {}};
  request.policy.retention = policy::Retention::from_text(rule);
  return make_plan(request).best().prediction.tokens_per_second();
}

double of(const std::map<std::string, double>& speeds, const char* system) {
  const auto found = speeds.find(system);
  return found == speeds.end() ? 0 : found->second;
}

std::string cell(double value) { return value > 0 ? fmt::format("{:.1f}", value) : "-"; }
std::string ratio(double a, double b) { return a > 0 && b > 0 ? fmt::format("{:.1f}x", a / b) : "-"; }

}  // namespace

std::string comparison_table(const std::vector<PublishedResult>& results, const policy::Machine& machine) {
  std::vector<Group> groups = groups_of(results);
  std::string text = fmt::format(
      "tokens/s published; Weft: its planner's prediction for {} ({})\n{:<9} {:<9} {:>10} {:>9} {:>8} {:>6} {:>10} "
      "{:>9}\n",
      machine.name, machine.measured ? "measured machine" : "rates not measured", "model", "workload", "Accelerate",
      "DeepSpeed", "FlexGen", "H2O", "Weft full", "Weft H2O");
  const auto workload = [](const Group& group) {
    return fmt::format("{}+{}", group.row->run.prompt, group.row->run.generation);
  };
  for (Group& group : groups) {
    group.full = best_of(*group.row, machine, "full");
    group.h2o = best_of(*group.row, machine, "h2o:0.1:0.1");
    text += fmt::format("{:<9} {:<9} {:>10} {:>9} {:>8} {:>6} {:>10} {:>9}\n", group.row->model, workload(group),
                        cell(of(group.published, "Accelerate")), cell(of(group.published, "DeepSpeed")),
                        cell(of(group.published, "FlexGen")), cell(of(group.published, "H2O")), cell(group.full),
                        cell(group.h2o));
  }
  text += fmt::format(
      "\nratios: H2O over others, published (simulated by FlexGen's arithmetic), and Weft H2O, predicted, over others, "
      "published\n{:<9} {:<9} {:>20} {:>20} {:>20} {:>11} {:>11} {:>9} {:>7}\n",
      "model", "workload", "H2O/Accelerate", "H2O/DeepSpeed", "H2O/FlexGen", "/Accelerate", "/DeepSpeed", "/FlexGen",
      "/H2O");
  for (const Group& group : groups) {
    text += fmt::format("{:<9} {:<9}", group.row->model, workload(group));
    for (const char* other : {"Accelerate", "DeepSpeed", "FlexGen"})
      text += fmt::format(" {:>20}", ratio(of(group.published, "H2O"), of(group.published, other)) + " (" +
                                         ratio(of(group.simulated, "H2O"), of(group.simulated, other)) + ")");
    text += fmt::format(" {:>11} {:>11} {:>9} {:>7}\n", ratio(group.h2o, of(group.published, "Accelerate")),
                        ratio(group.h2o, of(group.published, "DeepSpeed")),
                        ratio(group.h2o, of(group.published, "FlexGen")), ratio(group.h2o, of(group.published, "H2O")));
  }
  return text;
}

}  // namespace weft::runtime

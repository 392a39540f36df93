#include "runtime/analyze/analysis.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "policy/layout/policy.h"
#include "runtime/analyze/attention_profile.h"
#include "runtime/analyze/layer_budgets.h"
#include "runtime/analyze/layer_losses.h"
#include "runtime/base/input_file.h"
#include "runtime/base/stop.h"
#include "runtime/engine/session.h"
#include "runtime/requests/requests.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kLeastWindow = 64;

/// Cuts the tokens of the input's lines into windows of one length that all begin with the tokenizer's first token.
class Windows {
 public:
  Windows(const ModelSource& source, std::int64_t window) : source_(source), window_(window) {
    if (source.tokenizer) first_ = source.tokenizer->encode("", true);
    std::erase_if(first_, [&](std::int32_t id) { return id >= source.spec.vocab; });
  }

  /// Calls use(tokens) for each window of one line, until it returns false.
  template <class Use>
  void of_line(std::string_view line, const std::string& where, std::size_t number, const Use& use) {
    const std::vector<std::int32_t> ids = ids_of(line, where, number);
    const std::size_t step = static_cast<std::size_t>(window_) - first_.size();
    std::size_t begin = 0;
    for (; begin + step <= ids.size(); begin += step) {
      std::vector<std::int32_t> tokens = first_;
      tokens.insert(tokens.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin),
                    ids.begin() + static_cast<std::ptrdiff_t>(begin + step));
      if (!use(std::move(tokens))) return;
    }
    left_out_ += ids.size() - begin;
  }
  std::uint64_t left_out() const { return left_out_; }

 private:
  std::vector<std::int32_t> ids_of(std::string_view line, const std::string& where, std::size_t number) const {
    const auto json =
        policy::parse_json(line, where, policy::Blame::usage, {.depth = 32, .byte_order_mark = number == 1});
    policy::Fields fields(json, where, policy::Blame::usage);
    if (fields.has("id")) fields.at("id");
    std::vector<std::int32_t> ids;
    if (fields.has("ids")) {
      const auto& list = fields.at("ids");
      const int vocab = source_.spec.vocab;
      const auto is_id = [vocab](const nlohmann::json& id) { return id.is_number_integer() && id >= 0 && id < vocab; };
      if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_id))
        fields.refuse_field("ids", "a list of ids from 0 to " + std::to_string(vocab - 1));
      ids = list.get<std::vector<std::int32_t>>();
    } else if (const std::string text = fields.text("text"); source_.tokenizer) {
      ids = source_.tokenizer->encode(text, false);
      for (const std::int32_t id : ids)
        if (id >= source_.spec.vocab)
          fields.refuse_field("text",
                              "of tokens below " + std::to_string(source_.spec.vocab) + ", which the model has");
    } else {
      throw UsageError(where + ": has text, and " + source_.path +
                       " has no tokenizer; give {\"ids\": [...]}, or put tokenizer.json there");
    }
    fields.refuse_unknown();
    return ids;
  }

  const ModelSource& source_;
  const std::int64_t window_;
  std::vector<std::int32_t> first_;
  std::uint64_t left_out_ = 0;
};

ordered_json rounded(double number) { return std::round(number * 1e6) / 1e6; }

template <class Numbers> ordered_json rounded_list(const Numbers& numbers) {
  ordered_json list = ordered_json::array();
  for (const double number : numbers) list.push_back(rounded(number));
  return list;
}

ordered_json to_json(const KvHeadProfile& kv) {
  return {{"exponent", rounded(kv.exponent)},
          {"top_fifth", rounded(kv.top_fifth)},
          {"overlap", rounded(kv.overlap)},
          {"held", rounded_list(kv.held)}};
}

KvHeadProfile mean_of(const std::vector<KvHeadProfile>& all) {
  KvHeadProfile mean;
  const double each = 1.0 / static_cast<double>(all.size());
  for (const KvHeadProfile& kv : all) {
    mean.exponent += each * kv.exponent, mean.top_fifth += each * kv.top_fifth, mean.overlap += each * kv.overlap;
    for (std::size_t i = 0; i < kShares.size(); ++i) mean.held[i] += each * kv.held[i];
  }
  return mean;
}

HeadProfile mean_of(const std::vector<HeadProfile>& all) {
  HeadProfile mean;
  const double each = 1.0 / static_cast<double>(all.size());
  for (const HeadProfile& head : all) {
    mean.sparsity += each * head.sparsity;
    for (std::size_t i = 0; i < kShares.size(); ++i) mean.best[i] += each * head.best[i];
  }
  return mean;
}

std::vector<double> mean_of(const std::vector<std::vector<double>>& curves) {
  std::vector<double> mean(curves.front().size());
  for (const std::vector<double>& curve : curves)
    for (std::size_t step = 0; step < mean.size(); ++step) mean[step] += curve[step] / double(curves.size());
  return mean;
}

ordered_json to_json(const HeadProfile& head) {
  return {{"sparsity", rounded(head.sparsity)}, {"best", rounded_list(head.best)}};
}

ordered_json to_json(const LayerProfile& layer, int index) {
  ordered_json json{{"layer", index}};
  json.update(to_json(mean_of(layer.heads)));
  json.update(to_json(mean_of(layer.kv_heads)));
  json["ranked"] = rounded_list(layer.ranked);
  for (const HeadProfile& head : layer.heads) policy::array_at(json, "heads").push_back(to_json(head));
  for (const KvHeadProfile& kv : layer.kv_heads) policy::array_at(json, "kv_heads").push_back(to_json(kv));
  return json;
}

/// The retention that divides the budget best, and what it keeps.
ordered_json divided(const AttentionProfile& profile, const std::vector<double>& losses,
                     const AnalysisOptions& options) {
  const bool among_heads = options.divide != AnalysisOptions::Divide::layers;
  std::vector<std::vector<std::vector<double>>> kept;  // [layers][1 or KV heads][kBudgetSteps]
  for (const LayerProfile& layer : profile.layers) {
    std::vector<std::vector<double>>& heads = kept.emplace_back();
    for (const KvHeadProfile& kv : layer.kv_heads) heads.push_back(kv.kept);
    if (!among_heads) heads = {mean_of(heads)};
  }
  const LayerBudgets budgets = layer_budgets(kept, losses, *options.budget);
  ordered_json json{{"budget", *options.budget},
                    {"retention", budgets.retention.to_json()},
                    {"kept", rounded_list(budgets.kept)},
                    {"kept_evenly", rounded_list(budgets.kept_evenly)}};
  if (!losses.empty())
    json.update({{"losses", rounded_list(losses)},
                 {"loss", rounded(budgets.loss)},
                 {"loss_evenly", rounded(budgets.loss_evenly)}});
  for (const auto& heads : kept) policy::array_at(json, "kept_at_64ths").push_back(rounded_list(mean_of(heads)));
  return json;
}

struct Shape {
  std::int64_t window = 0, queries = 0;
};

Shape shape_of(const AnalysisOptions& options, const policy::ModelSpec& spec) {
  const std::int64_t longest = spec.positions - 1;  // one more token follows
  Shape shape;
  shape.window = options.window.value_or(std::min<std::int64_t>(2048, longest));
  if (shape.window < kLeastWindow || shape.window > longest)
    throw UsageError("--window must be from " + std::to_string(kLeastWindow) + " to " + std::to_string(longest) +
                     ", the model's context without the token that follows; got " + std::to_string(shape.window));
  shape.queries = options.queries.value_or(std::min<std::int64_t>(64, shape.window / 2));
  if (shape.queries < 1 || shape.queries > shape.window / 2)
    throw UsageError("--queries must be from 1 to half of --window, " + std::to_string(shape.window / 2) + "; got " +
                     std::to_string(shape.queries));
  if (options.budget && !(*options.budget >= 0.001 && *options.budget <= 1))
    throw UsageError("--budget must be a share of all tokens from 0.001 to 1, got " + std::to_string(*options.budget));
  if (options.most_tokens < 0) throw UsageError("--max-tokens must be 0 or more");
  return shape;
}

/// The layout for one window at a time, which keeps the scores of all tokens.
Decision one_window(std::int64_t window, const std::vector<int>& windows) {
  Decision decision;
  decision.policy.gpu_batch_size = decision.policy.num_gpu_batches = 1;
  decision.policy.continuous = false;
  decision.policy.max_batched_tokens = window;  // the observer sees whole windows
  decision.policy.retention = policy::Retention::from_text("h2o:" + std::to_string(window) + ":1");
  decision.work = policy::alike(1, window, 1, *decision.policy.retention, windows);
  return decision;
}

void run_window(Session& session, std::vector<std::int32_t> tokens) {
  std::vector<Sequence> block(1);
  block[0].prompt_tokens = std::ssize(tokens);
  block[0].max_tokens = 1;
  block[0].keep = session.keep(block[0].prompt_tokens, 1);
  block[0].tokens = std::move(tokens);
  session.executor().run(block, [](const Sequence&) {});
}

}  // namespace

ordered_json run_analysis(const AnalysisOptions& options, const std::atomic<bool>& stop,
                          const AnalysisProgress& progress) {
  const auto source = open_model(options.model, options.dtype, options.weights);
  const auto [window, queries] = shape_of(options, source->spec);
  const InputFile input(options.input);
  if (options.budget && options.divide == AnalysisOptions::Divide::heads && source->spec.kv_heads == 1)
    throw UsageError("--divide heads: the model has one KV head a layer, which leaves nothing to divide; take layers");
  if (options.budget && options.divide != AnalysisOptions::Divide::layers && source->spec.global_head_dim > 0)
    throw UsageError("--divide " + std::string(options.divide == AnalysisOptions::Divide::heads ? "heads" : "both") +
                     ": the model's layers differ in their heads; take layers");
  const bool measures_losses = options.budget && options.divide != AnalysisOptions::Divide::heads;
  Session session(
      *source,
      [&, length = window](kernels::Backend&, const policy::Budgets&) {
        return measures_losses ? LayerLosses::decision(length, source->spec) : one_window(length, source->spec.windows);
      },
      options.machine, stop);
  AttentionObserver observer(source->spec, window, queries, options.budget.has_value(), session.layers().ops());
  const auto see = [&](int layer, const kernels::ColumnSums& op) { observer.see(layer, op); };
  std::optional<LayerLosses> losses;
  if (measures_losses) losses.emplace(session, *options.budget);
  Windows windows(*source, window);
  std::int64_t read = 0;
  const auto enough = [&] { return options.most_tokens > 0 && read >= options.most_tokens; };
  for_each_line(input, [&](std::string_view line, std::uint64_t, std::size_t number) {
    if (line.find_first_not_of(" \t") == std::string_view::npos || enough()) return;
    windows.of_line(line, options.input + ":" + std::to_string(number), number, [&](std::vector<std::int32_t> tokens) {
      if (stop) throw Interrupted{};
      read += std::ssize(tokens);
      session.layers().set_on_prompts(see);
      run_window(session, tokens);
      session.layers().set_on_prompts({});
      if (losses) losses->see(tokens);
      if (progress) progress(read);
      return !enough();
    });
  });
  if (read == 0)
    throw UsageError("--input " + options.input + ": no line has the " + std::to_string(window) +
                     " tokens of a window; give a smaller --window or longer texts");
  const AttentionProfile profile = observer.profile();
  ordered_json report{{"model", options.model},   {"dtype", name_of(source->type)},
                      {"window", window},         {"windows", profile.windows},
                      {"tokens", profile.tokens}, {"tokens_left_out", windows.left_out()},
                      {"queries", queries},       {"budgets", kShares},
                      {"ranks", profile.ranks},   {"uniform", to_json(profile.uniform)}};
  report.at("uniform")["ranked"] = rounded_list(profile.uniform_ranked);
  for (std::size_t layer = 0; layer < profile.layers.size(); ++layer)
    policy::array_at(report, "layers").push_back(to_json(profile.layers[layer], static_cast<int>(layer)));
  if (options.budget) report["by_layer"] = divided(profile, losses ? losses->losses() : std::vector<double>{}, options);
  return report;
}

namespace {

/// "1.5, 0.5"; for lists "(1.5, 0.5), (1, 1)"
std::string joined(const ordered_json& numbers, const char* format, double scale) {
  std::string text;
  for (const ordered_json& number : numbers)
    text += (text.empty() ? "" : ", ") + (number.is_array()
                                              ? "(" + joined(number, format, scale) + ")"
                                              : fmt::format(fmt::runtime(format), scale * number.get<double>()));
  return text;
}

}  // namespace

std::string analysis_table(const ordered_json& report) {
  std::string text = fmt::format("{:>6} {:>9}  {:^31}  {:^31}  {:>8} {:>9} {:>8}\n", "", "below 1 %",
                                 "attention on the best", "held of the first half by", "power", "best", "same");
  text += fmt::format("{:>6} {:>9} ", "layer", "of a row");
  for (int twice = 0; twice < 2; ++twice) {
    for (const double share : kShares) text += fmt::format(" {:>6.0f}%", 100 * share);
    text += "  ";
  }
  text += fmt::format("{:>7} {:>9} {:>8}\n", "law", "fifth", "heavy");
  const auto row = [&](const std::string& name, const ordered_json& of) {
    const auto percent = [](const ordered_json& value) { return fmt::format("{:.1f}%", 100 * value.get<double>()); };
    text += fmt::format("{:>6} {:>9} ", name, of.contains("sparsity") ? percent(of.at("sparsity")) : "");
    for (std::size_t i = 0; i < kShares.size(); ++i)
      text += fmt::format(" {:>7}", of.contains("best") ? percent(of.at("best").at(i)) : "");
    text += "  ";
    for (const auto& share : of.at("held")) text += fmt::format(" {:>7}", percent(share));
    text += fmt::format("  {:>7.2f} {:>9} {:>8}\n", of.at("exponent").get<double>(), percent(of.at("top_fifth")),
                        percent(of.at("overlap")));
  };
  for (const auto& layer : report.at("layers")) row(std::to_string(layer.at("layer").get<int>()), layer);
  row("even", report.at("uniform"));
  if (!report.contains("by_layer")) return text;
  const ordered_json& divided = report.at("by_layer");
  text += fmt::format("\nof {:.4g}% of all tokens on average the {} get {} times as much\n",
                      100 * divided.at("budget").get<double>(),
                      divided.at("retention").at("layers").at(0).is_array() ? "layers' heads" : "layers",
                      joined(divided.at("retention").at("layers"), "{}", 1));
  text += fmt::format("and keep {}% of the attention; evenly they would keep {}%\n",
                      joined(divided.at("kept"), "{:.1f}", 100), joined(divided.at("kept_evenly"), "{:.1f}", 100));
  if (divided.contains("losses"))
    text += fmt::format("the even budget costs {} nats a token in one layer alone\n",
                        joined(divided.at("losses"), "{:.4f}", 1));
  return text;
}

}  // namespace weft::runtime

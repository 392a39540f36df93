#include "runtime/planning/published.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "policy/layout/policy.h"
#include "runtime/base/files.h"
#include "runtime/model/model_source.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

using policy::Fields;
using policy::FlexGenRun;

constexpr double kMostSeconds = 1e9, kMostTokensPerSecond = 1e9;
constexpr int kMostTokens = 1 << 20;

/// The word at `key`, which must be one of `words`.
std::string choice(Fields& fields, const std::string& key, const std::vector<std::string>& words,
                   std::optional<std::string> fallback = {}) {
  std::string word = fields.text(key, std::move(fallback));
  if (std::find(words.begin(), words.end(), word) == words.end())
    fields.refuse_field(key, fmt::format("one of {}", fmt::join(words, ", ")));
  return word;
}

/// Reads FlexGen's six percentages and returns those of the device. Nothing is on disk here, so each pair sums to 100.
std::array<double, 3> device_percents(Fields& fields) {
  const nlohmann::json& list = fields.at("percent");
  const std::string wanted = "six numbers from 0 to 100: weights, cache, activations on device and host, each pair 100";
  if (!list.is_array() || list.size() != 6) fields.refuse_field("percent", wanted);
  std::array<double, 3> device{};
  for (std::size_t kind = 0; kind < 3; ++kind) {
    const nlohmann::json &on_device = list[2 * kind], &on_host = list[2 * kind + 1];
    if (!on_device.is_number() || !on_host.is_number() || on_device < 0 || on_host < 0 ||
        on_device.get<double>() + on_host.get<double>() != 100)
      fields.refuse_field("percent", wanted);
    device[kind] = on_device.get<double>();
  }
  return device;
}

FlexGenRun run_from(Fields& fields, const std::string& system, const policy::ModelSpec& spec) {
  const auto integer = [&](const char* key, int low, int high, std::optional<std::int64_t> fallback = {}) {
    return static_cast<int>(fields.integer(key, low, high, fallback));
  };
  FlexGenRun run;
  if (system == "Accelerate") run.system = FlexGenRun::System::accelerate;
  if (system == "DeepSpeed") run.system = FlexGenRun::System::deepspeed;
  run.prompt = integer("prompt_len", 1, kMostTokens);
  run.generation = integer("gen_len", 1, kMostTokens);
  run.gpu_batch_size = integer("gpu_batch_size", 1, policy::kMostSequences);
  run.num_gpu_batches = integer("num_gpu_batches", 1, policy::kMostSequences);
  const auto [weights, kv, activations] = device_percents(fields);
  run.weights_on_device =
      run.system == FlexGenRun::System::flexgen ? policy::flexgen_weights_on_device(spec, weights) : weights / 100;
  run.kv_on_device = kv / 100;
  run.activations_on_device = activations / 100;
  run.attention_on_host = choice(fields, "attention", {"device", "host"}, "device") == "host";
  if (system == "H2O") run.slots = 2 * static_cast<int>(run.prompt * fields.number("hh_ratio", 1.0 / run.prompt, 1));
  run.weight_bits = integer("weight_bits", 4, 16, 16);
  run.kv_bits = integer("kv_bits", 4, 16, 16);
  run.timed_steps = integer("timed_steps", 0, kMostTokens, 0);
  return run;
}

PublishedRow row_from(const nlohmann::json& json, const std::string& where, const fs::path& models_folder) {
  Fields fields(json, where, policy::Blame::usage);
  PublishedRow row;
  row.system = choice(fields, "system", {"Accelerate", "DeepSpeed", "FlexGen", "H2O"});
  row.model = fields.text("model");
  row.model_file = models_folder / (row.model + ".json");
  if (!fs::exists(row.model_file))
    throw UsageError(where + ": 'model' names " + row.model_file.string() + ", and there is no such file");
  row.spec = read_model_spec(row.model_file);
  row.run = run_from(fields, row.system, row.spec);
  row.tokens_per_second = fields.number("tokens_per_second", 1e-6, kMostTokensPerSecond);
  if (fields.has("prefill_seconds")) row.prefill_seconds = fields.number("prefill_seconds", 1e-6, kMostSeconds);
  if (fields.has("decode_seconds")) row.decode_seconds = fields.number("decode_seconds", 1e-6, kMostSeconds);
  row.kind = choice(fields, "kind", {"measured", "projected", "unknown"});
  row.source = fields.text("source");
  fields.refuse_unknown();
  row.run.require_valid(where);
  return row;
}

void read_rows(const fs::path& file, const fs::path& models_folder, std::vector<PublishedRow>& rows) {
  const nlohmann::json json = read_json("published figures:", file);
  Fields fields(json, file.string(), policy::Blame::usage);
  fields.integer("version", 1, 1, 1);
  fields.text("about");
  const nlohmann::json& list = fields.at("rows");
  if (!list.is_array()) fields.refuse_field("rows", "a list");
  fields.refuse_unknown();
  for (std::size_t i = 0; i < list.size(); ++i)
    rows.push_back(row_from(list[i], file.string() + ": rows[" + std::to_string(i) + "]", models_folder));
}

/// The system and what it stores in 4 bits: "H2O w4".
std::string name_of(const PublishedRow& row) {
  return row.system + (row.run.weight_bits == 4 ? " w4" : "") + (row.run.kv_bits == 4 ? " kv4" : "");
}

std::string workload_of(const PublishedRow& row) { return fmt::format("{}+{}", row.run.prompt, row.run.generation); }

std::string batch_of(const PublishedRow& row) {
  return row.run.num_gpu_batches == 1 ? std::to_string(row.run.gpu_batch_size)
                                      : fmt::format("{}x{}", row.run.gpu_batch_size, row.run.num_gpu_batches);
}

}  // namespace

policy::FlexGenMachine read_flexgen_machine(const fs::path& file) {
  return policy::FlexGenMachine::from_json(read_json("FlexGen's machine:", file), file.string());
}

std::vector<PublishedRow> read_published(const fs::path& folder_or_file, const fs::path& models_folder) {
  std::vector<fs::path> files;
  std::error_code ignored;  // read_json() reports what is wrong with a file
  if (fs::is_directory(folder_or_file, ignored)) {
    std::error_code failed;
    files = entries_of(folder_or_file, failed);
    if (failed) throw IoError(folder_or_file.string() + ": cannot list this folder: " + failed.message());
    std::erase_if(files, [](const fs::path& file) { return file.extension() != ".json"; });
    std::sort(files.begin(), files.end());
    if (files.empty()) throw UsageError(folder_or_file.string() + ": there is no *.json in this folder");
  } else {
    files.push_back(folder_or_file);
  }
  std::vector<PublishedRow> rows;
  for (const fs::path& file : files) read_rows(file, models_folder, rows);
  return rows;
}

std::vector<PublishedResult> simulate_published(const fs::path& folder_or_file, const policy::FlexGenMachine& machine,
                                                const fs::path& models_folder) {
  std::vector<PublishedResult> results;
  for (PublishedRow& row : read_published(folder_or_file, models_folder)) {
    const policy::FlexGenTimes times = policy::flexgen_times(row.spec, machine, row.run);
    results.push_back({std::move(row), times});
  }
  return results;
}

std::string published_table(const std::vector<PublishedResult>& results) {
  std::string text =
      fmt::format("{:<15} {:<9} {:<9} {:>6} {:>10} {:>10} {:>6} {:<9} {:<22} {}\n", "tokens/s", "model", "workload",
                  "batch", "published", "simulated", "ratio", "kind", "decode waits for", "source");
  for (const auto& [row, times] : results)
    text += fmt::format("{:<15} {:<9} {:<9} {:>6} {:>10.2f} {:>10.2f} {:>6.2f} {:<9} {:<22} {}\n", name_of(row),
                        row.model, workload_of(row), batch_of(row), row.tokens_per_second, times.tokens_per_second,
                        times.tokens_per_second / row.tokens_per_second, row.kind, times.layer.bound(), row.source);
  const auto has_seconds = [](const PublishedResult& result) {
    return result.row.prefill_seconds || result.row.decode_seconds;
  };
  if (std::none_of(results.begin(), results.end(), has_seconds)) return text;
  const auto cells = [](const std::optional<double>& published, double simulated) {
    return published ? fmt::format("{:>9.0f} {:>9.0f} {:>5.2f}", *published, simulated, simulated / *published)
                     : fmt::format("{:>9} {:>9.0f} {:>5}", "-", simulated, "-");
  };
  text += fmt::format("\n{:<15} {:<9} {:<9} {:>6} {:>9} {:>9} {:>5} {:>9} {:>9} {:>5}\n", "seconds", "model",
                      "workload", "batch", "prefill", "simulated", "ratio", "decode", "simulated", "ratio");
  for (const PublishedResult& result : results)
    if (has_seconds(result))
      text += fmt::format("{:<15} {:<9} {:<9} {:>6} {} {}\n", name_of(result.row), result.row.model,
                          workload_of(result.row), batch_of(result.row),
                          cells(result.row.prefill_seconds, result.simulated.prefill),
                          cells(result.row.decode_seconds, result.simulated.decode));
  return text;
}

}  // namespace weft::runtime

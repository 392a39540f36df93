#include "runtime/results/run_record.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/files.h"
#include "runtime/base/hash.h"
#include "runtime/base/own_file.h"
#include "runtime/base/quote.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kFormat = 1;
constexpr std::size_t kLargest = 1 << 20;

std::string quoted(const std::string* value) { return value ? in_quotes(*value) : "not said"; }

void read_fields(policy::Fields& top, const fs::path& path, RunRecord& record) {
  record.created = top.text("created");
  if (top.has("durable_bytes"))
    record.durable_bytes = static_cast<std::uint64_t>(top.integer("durable_bytes", 0, INT64_MAX));
  if (top.has("kernels")) {
    const auto& names = top.at("kernels");
    const bool texts =
        names.is_array() && std::all_of(names.begin(), names.end(), [](const auto& name) { return name.is_string(); });
    if (!texts) top.refuse_field("kernels", "a list of names");
    record.kernels = names.get<std::vector<std::string>>();
  }
  if (top.has("weights"))
    for (const auto& [name, value] : top.at("weights").items()) {
      policy::Fields pin(value, path.string() + ": weights", policy::Blame::usage);
      const auto state = FileState::from_text(pin.text("state"));
      if (!state) pin.refuse_field("state", "five numbers");
      WeightsPin& added = record.weights.emplace_back(WeightsPin{name, *state});
      if (pin.has("crc32c")) added.checksum = static_cast<std::uint32_t>(pin.integer("crc32c", 0, UINT32_MAX));
      pin.refuse_unknown();
    }
  const auto& run = top.at("run");
  policy::Fields fields(run, path.string() + ": run", policy::Blame::usage);
  for (const auto& [name, value] : run.items()) record.fields.emplace_back(name, fields.text(name));
  top.refuse_unknown();
}

}  // namespace

void RunRecord::set(const std::string& name, const std::string& value) {
  const auto it = std::find_if(fields.begin(), fields.end(), [&](const auto& field) { return field.first == name; });
  if (it == fields.end()) fields.emplace_back(name, value);
  else it->second = value;
}

void RunRecord::unset(const std::string& name) {
  std::erase_if(fields, [&](const auto& field) { return field.first == name; });
}

const std::string* RunRecord::find(const std::string& name) const {
  const auto it = std::find_if(fields.begin(), fields.end(), [&](const auto& field) { return field.first == name; });
  return it == fields.end() ? nullptr : &it->second;
}

std::string RunRecord::difference(const RunRecord& now) const {
  const auto compare = [&](const std::string& name) -> std::string {
    const std::string *was = find(name), *is = now.find(name);
    if (was && is && *was == *is) return "";
    return in_quotes(name) + " was " + quoted(was) + " and is now " + quoted(is);
  };
  for (const auto* each : {&now.fields, &fields})
    for (const auto& [name, value] : *each)
      if (std::string words = compare(name); !words.empty()) return words;
  return "";
}

fs::path RunRecord::place(const fs::path& output) { return output.string() + ".run.json"; }

std::optional<RunRecord> RunRecord::read(const fs::path& output) {
  const fs::path path = place(output);
  const std::string remedy =
      "; it is no whole record of a run: remove it and use --resume=adopt if the output is right";
  RunRecord record;
  std::int64_t format = 0;
  try {
    const auto text = read_own_file(path, kLargest);
    if (!text) return {};
    const auto json = policy::parse_json(*text, path.string(), policy::Blame::usage, {.depth = 8});
    policy::Fields top(json, path.string(), policy::Blame::usage);
    format = top.integer("format", 1, INT64_MAX);
    if (format == kFormat) read_fields(top, path, record);
  } catch (const NotOwn&) {
    throw;
  } catch (const UsageError& bad) {
    throw UsageError(bad.what() + remedy);
  } catch (const DataError& bad) {  // not a regular file, or too large for a record
    throw UsageError(bad.what() + remedy);
  }
  if (format != kFormat)
    throw UsageError(path.string() + ": is of format " + std::to_string(format) + ", this program knows " +
                     std::to_string(kFormat) + "; go on with the version that wrote it");
  return record;
}

void RunRecord::write(const fs::path& output) const {
  nlohmann::ordered_json run = nlohmann::ordered_json::object();
  for (const auto& [name, value] : fields) run[name] = value;
  nlohmann::ordered_json json{{"format", kFormat}, {"created", created}};
  if (durable_bytes) json["durable_bytes"] = *durable_bytes;
  json["run"] = std::move(run);
  if (!kernels.empty()) json["kernels"] = kernels;
  for (const WeightsPin& pin : weights) {
    nlohmann::ordered_json& pinned = policy::object_at(json, "weights")[pin.name];
    pinned = {{"state", pin.state.text()}};
    if (pin.checksum) pinned["crc32c"] = *pin.checksum;
  }
  write_file_atomically(place(output), policy::to_pretty(json) + "\n",
                        {.link = AtomicFile::Link::refuse, .only_writer = true});
}

std::string describe_requests(std::size_t count, std::uint64_t fingerprint) {
  return std::to_string(count) + ", " + to_hex(fingerprint);
}

std::string utc_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace weft::runtime

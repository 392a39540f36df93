#include "runtime/job/format_choice.h"

#include <utility>
#include <vector>

#include "runtime/base/standard_streams.h"
#include "runtime/job/job_plan.h"
#include "runtime/job/job_record.h"
#include "runtime/planning/log.h"

namespace weft::runtime {
namespace {

/// The index in `all` of the entry whose `text` is what the record has under `name`; -1 if there is none.
template <class T, class Text>
int place_in(const std::vector<T>& all, const RunRecord& record, const char* name, const Text& text) {
  const std::string* const was = record.find(name);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::optional<std::string> is = text(all[i]);
    if (is ? was && *was == *is : !was) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

FormatChoice choose_formats(JobOptions& options, const ModelSource& source, const RequestFile& requests) {
  FormatChoice chosen;
  if (options.kv_formats.empty() && options.weight_formats.empty()) return chosen;
  std::vector<std::unique_ptr<ModelSource>> others;
  std::vector<const ModelSource*> sources{&source};
  for (const auto& format : options.weight_formats) {
    others.push_back(open_model(options.model, options.dtype, options.weights, format));
    sources.push_back(others.back().get());
  }
  std::vector<policy::KvFormat> kv_formats{options.policy.kv_format.value_or(policy::KvFormat{})};
  kv_formats.insert(kv_formats.end(), options.kv_formats.begin(), options.kv_formats.end());
  int of_source = 0, of_kv = 0;
  const auto begun =
      options.resume.on && options.output != kPipe ? RunRecord::read(options.output) : std::optional<RunRecord>{};
  if (begun) {
    of_source = place_in(sources, *begun, "weight_dtype", [](const ModelSource* s) { return weights_text(*s); });
    of_kv = place_in(kv_formats, *begun, "kv", [&](const auto& format) { return kv_text(format, source.type); });
    if (of_source < 0 || of_kv < 0) of_source = of_kv = 0;  // comparing the records then reports it
  } else {
    std::vector<std::uint32_t> mine;
    for (std::size_t i = 0; i < requests.size(); ++i)
      if (options.shard.has(i) && !requests.refused(i)) mine.push_back(static_cast<std::uint32_t>(i));
    if (!mine.empty()) {
      const auto backend = make_backend(options.machine);
      JobPlan plan(options, source, requests, mine, false);
      plan.allow({sources.begin() + 1, sources.end()});
      const Planned planned = plan.choose(*backend, free_bytes(*backend, options.machine.disk_directory));
      chosen.machine = plan.machine();
      while (sources[static_cast<std::size_t>(of_source)] != planned.source) ++of_source;
      while (!(kv_formats[static_cast<std::size_t>(of_kv)] == planned.kv_format)) ++of_kv;
    }
  }
  options.policy.kv_format = kv_formats[static_cast<std::size_t>(of_kv)];
  options.policy.weight_format = sources[static_cast<std::size_t>(of_source)]->weight_format;
  options.kv_formats.clear();
  options.weight_formats.clear();
  if (of_source > 0) chosen.source = std::move(others[static_cast<std::size_t>(of_source) - 1]);
  if (!options.quiet)
    log_info("{}: weights {}, keys and values {}", begun ? "as the run was begun" : "the fastest of what is allowed",
             options.policy.weight_format ? policy::to_text(*options.policy.weight_format) : name_of(source.type),
             policy::to_text(*options.policy.kv_format, source.type));
  return chosen;
}

}  // namespace weft::runtime

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "policy/layout/kv_share.h"
#include "runtime/base/files.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/policy_flags.h"
#include "runtime/model/model_source.h"
#include "runtime/planning/log.h"

namespace weft::runtime {
namespace {

template <class Number> Number checked(Number value, Number least, Number most, const char* flag) {
  if (value < least || value > most)
    throw UsageError(std::string(flag) + " must be from " + std::to_string(least) + " to " + std::to_string(most) +
                     ", got " + std::to_string(value));
  return value;
}
int checked_size(int value, const char* flag) { return checked(value, 1, policy::kMostSequences, flag); }

/// The format that weights of the files at `model` have without --weight-dtype, if an arithmetic can be chosen for it.
std::optional<policy::WeightFormat> stored_format(const std::filesystem::path& model, const std::string& dtype) {
  const ModelFiles files = ModelFiles::open(model);
  policy::ModelSpec spec = read_model_spec(files);
  if (auto levels = runtime::format_of(spec.quantisation, std::nullopt, model)) return levels;
  if (!spec.names_dtype && files.may_have_weights()) complete_from_files(spec, files.open_checkpoint());
  const DType type = dtype_named(dtype, spec.dtype);
  return type == DType::bf16 ? std::optional(policy::WeightFormat{.dtype = type}) : std::nullopt;
}

}  // namespace

void refuse_beside(const CLI::App& command, const std::string& flag, std::initializer_list<std::string_view> allowed,
                   const std::string& why) {
  if (command.count(flag) == 0) return;
  for (const CLI::Option* option : command.get_options())
    if (const std::string name = option->get_name();
        option->count() > 0 && name != flag && std::find(allowed.begin(), allowed.end(), name) == allowed.end())
      throw UsageError(flag + " excludes " + name + ": " + why);
}

void PolicyFlags::add_to(CLI::App& app) {
  app.add_option("--policy", policy_file, "Policy file, as JSON; flags override it")->group("Policy");
  app.add_option("--percent", percent,
                 "FlexGen's six percentages: weights, KV cache and activations, each on device and host; the rest is "
                 "on disk")
      ->expected(6)
      ->excludes("--policy")
      ->group("Policy");
  app.add_option("--gpu-batch-size", gpu_batch_size, "Sequences that one compute op works on")->group("Policy");
  app.add_option("--num-gpu-batches", num_gpu_batches, "Gpu batches that share one pass over the weights")
      ->group("Policy");
  app.add_option(
         "--retention", retention,
         "What stays in the KV cache; 12 is a number of tokens, 0.1 a share of them:\n"
         "  full                      everything\n"
         "  recent:N                  the newest; a step keeps no scores\n"
         "  h2o:HEAVY:RECENT          the newest, and what was attended to most; a step updates a score a slot\n"
         "  heavy:N                   the same without the newest; costs the same\n"
         "  h2o-flexgen:HEAVY:RECENT  FlexGen's variant of h2o; costs the same\n"
         "  tova:N                    what the last token attended to; costs what h2o does\n"
         "  defensive:HEAVY:RECENT    what one row or head attended to most; costs what h2o does\n"
         "  snapkv:HEAVY:RECENT       of a prompt what its last rows attended to, and all that comes after; a step\n"
         "                            keeps no scores, but slots for all answers\n"
         "  keydiff:HEAVY:RECENT      keys unlike the mean key; prompts need no scores of attention, a step reads a\n"
         "                            score a slot and updates a sum of keys a head\n"
         "  random:HEAVY:RECENT       the newest, and others at random; a step updates a score a slot\n"
         "  auto:SHARE                what lost least when measured among what takes SHARE of the full cache's bytes "
         "in\n"
         "                            16 bits; it chooses --kv-dtype as well\n"
         "Parameters of policy files may follow, as in h2o:0.1:0.1:window=32:sinks=4. layers=full,1.5,0.5/0.8 has an\n"
         "entry for each layer, or one for each of its KV heads with strokes between them: a factor of HEAVY and\n"
         "RECENT, 1 on average, or full. full:read=0.1 has a step read a tenth of the tokens in full and the others "
         "by\n"
         "few bits, with --kv-dtype int8. positions=rolled lets answers go on past the model's context.")
      ->group("Policy");
  auto* const kv_type =
      app.add_option(
             "--kv-dtype", kv_dtype,
             "Type that keys and values are stored in: auto (the type that the model is computed in), float16, "
             "bfloat16, float32, int8 or int4; int8:4:2 has 4 bits of the keys and 2 of the values of tokens that "
             "--retention keeps cold, or does not read in full")
          ->group("Policy");
  app.add_flag("--compress-cache", compress_cache, "FlexGen's name for --kv-dtype int4")
      ->excludes(kv_type)
      ->group("Policy");
  app.add_option(
         "--kv-keys", kv_keys,
         "Type that keys are stored in with --kv-dtype int4: int8 (the default), or int4, which takes less memory "
         "and costs quality")
      ->group("Policy");
  app.add_option("--attention", attention,
                 "Where KV that is not on the device is attended: device, host, or the host's share, such as 0.6")
      ->group("Policy");
  app.add_option("--experts", experts,
                 "Where the experts of a model that has some are computed after a block's first sweep: device, "
                 "host, or the host's share, such as 0.5, which has its home in host memory; planned if left out")
      ->group("Policy");
  app.add_option(
         "--max-num-batched-tokens", max_num_batched_tokens,
         "Prompt tokens of a gpu batch that are computed at once; longer prompts go through each layer in chunks "
         "of so many, and other prompts begin later. By default 2048, or as many as keep the device busy, and "
         "524288")
      ->group("Policy");
  app.add_option("--schedule", schedule,
                 "continuous: a finished sequence gives its place to the next request; static: a block runs to its end")
      ->group("Policy");
  CLI::Option* const dtype =
      app.add_option(
             "--weight-dtype", weight_dtype,
             "Type that weights are stored in: auto (that of --dtype), float16, bfloat16, float32, int8 or int4; "
             "int8 and int4 quantise the matrices of the layers. auto keeps the format of a checkpoint that is "
             "quantised, such as float8")
          ->group("Policy");
  app.add_flag("--compress-weight", compress_weight, "FlexGen's name for --weight-dtype int4")
      ->excludes(dtype)
      ->group("Policy");
  app.add_option("--weight-group", weight_group,
                 "Group size for int8 and int4 weights: 16, 32, 64 (default) or 128 numbers of a row share a scale")
      ->group("Policy");
  app.add_option(
         "--weight-arithmetic", weight_arithmetic,
         "For int8 and int4 weights: int8 (the default) also rounds the numbers that they are multiplied with to 8 "
         "bits, which is faster; exact does not; bfloat16 rounds both to bfloat16, on processors that can multiply it. "
         "For bfloat16 weights: bfloat16 (the default on such processors) rounds those numbers to bfloat16; exact does "
         "not")
      ->group("Policy");
  app.add_flag("--no-overlap", no_overlap, "Run one op at a time, to see what overlap gains")->group("Policy");

  app.add_option("--backend", machine.backend, "auto, cpu or cuda")->capture_default_str()->group("Machine");
  app.add_option("--threads", machine.threads, "CPU threads; 0: one per core, less up to three cores that feed a GPU")
      ->capture_default_str()
      ->group("Machine");
  app.add_flag(
         "--deterministic", machine.deterministic,
         "Have no answer depend on what else is computed with it, on a GPU too (a CPU's never does); slower there")
      ->group("Machine");
  app.add_option("--device-memory", device_memory, "Device memory that the run may use, such as 4GiB")
      ->group("Machine");
  app.add_option("--host-memory", host_memory, "Host memory that the run may use")->group("Machine");
  app.add_option("--disk-memory", disk_memory, "Disk space that the run may use")->group("Machine");
  app.add_option("--disk-dir", machine.disk_directory, "Folder for spilled buffers; by default the output's folder")
      ->group("Machine");
  app.add_option("--disk-engine", machine.disk_engine, "auto, io_uring, threads or buffered")
      ->capture_default_str()
      ->group("Machine");
}

void PolicyFlags::add_choices_to(CLI::App& app) {
  app.add_option("--or-kv-dtype", or_kv_dtypes,
                 "Another acceptable --kv-dtype; the plan takes the fastest; may be repeated")
      ->group("Policy");
  app.add_option("--or-weight-dtype", or_weight_dtypes,
                 "Another acceptable --weight-dtype; the plan takes the fastest; may be repeated")
      ->group("Policy");
}

/// Applies the flags for the storage and the arithmetic of quantised weights to `format`.
void PolicyFlags::set_details(std::optional<policy::WeightFormat>& format) const {
  if (!format) return;
  if (weight_group && format->quantised()) policy::set_group(*format, *weight_group, "--weight-group");
  if (const auto arithmetic = policy::arithmetic_named(weight_arithmetic, format->dtype))
    format->arithmetic = *arithmetic;
}

/// Applies the flags for weights to `policy`.
void PolicyFlags::set_weight_format(policy::PartialPolicy& policy, const std::filesystem::path& model,
                                    const std::string& dtype) const {
  const std::string name = compress_weight ? "int4" : weight_dtype;
  if (!name.empty()) policy.weight_format = policy::weight_format_from_text(name, "--weight-dtype");
  if (name.empty() && !policy.weight_format && !weight_arithmetic.empty() && !model.empty())
    policy.weight_format = stored_format(model, dtype);
  // A detail applies to those acceptable formats that have it.
  auto all = other_weight_formats();
  all.insert(all.begin(), policy.weight_format);
  std::erase(all, std::nullopt);
  if (weight_group && std::none_of(all.begin(), all.end(), [](const auto& format) { return format->quantised(); }))
    throw UsageError("--weight-group: is only for --weight-dtype int8 and int4");
  const auto knows = [&](const auto& format) {
    return policy::arithmetic_named(weight_arithmetic, format->dtype).has_value();
  };
  if (!weight_arithmetic.empty() && std::none_of(all.begin(), all.end(), knows)) {
    if (all.empty())
      throw UsageError(
          "--weight-arithmetic: is only for --weight-dtype int8, int4 and bfloat16, and for models that have such "
          "weights; float16 and float32 are always computed exactly");
    policy::arithmetic_from_text(weight_arithmetic, all.front()->dtype, "--weight-arithmetic");  // refuses it
  }
  set_details(policy.weight_format);
}

std::vector<std::optional<policy::WeightFormat>> PolicyFlags::other_weight_formats() const {
  std::vector<std::optional<policy::WeightFormat>> formats;
  for (const std::string& name : or_weight_dtypes) {
    formats.push_back(policy::weight_format_from_text(name, "--or-weight-dtype"));
    set_details(formats.back());
  }
  return formats;
}

/// The type of --kv-keys; nothing without the flag, and nothing with auto.
std::optional<DType> PolicyFlags::key_type() const {
  return kv_keys.empty() ? std::nullopt : policy::dtype_from_text(kv_keys, "--kv-keys");
}

/// Applies --kv-keys to `format`.
void PolicyFlags::set_details(policy::KvFormat& format) const {
  if (format.dtype == DType::i4 && key_type()) format.keys = key_type();
}

std::vector<policy::KvFormat> PolicyFlags::other_kv_formats() const {
  std::vector<policy::KvFormat> formats;
  for (const std::string& name : or_kv_dtypes) {
    formats.push_back(policy::KvFormat::from_text(name, "--or-kv-dtype"));
    set_details(formats.back());
  }
  return formats;
}

namespace {

/// A retention that cools or selects and a format go together, and what the format leaves open is set.
void set_coarse_bits(policy::PartialPolicy& policy) {
  const policy::Retention retention = policy.retention.value_or(policy::Retention{});
  policy::KvFormat format = policy.kv_format.value_or(policy::KvFormat{});
  policy::check(retention, format);
  const bool needed = retention.cools() || retention.selects();
  if (format.coarse && !needed)
    throw UsageError(
        "kv: bits of cold tokens are given, but the retention keeps none; add cold=1.0 or read=0.1 to --retention");
  if (!needed || format.coarse) return;
  format.coarse = policy::kCoarseBits;
  policy.kv_format = format;
}

}  // namespace

/// Chooses the retention and the format of auto:SHARE.
void PolicyFlags::settle_share(policy::PartialPolicy& policy, const std::filesystem::path& model) const {
  if (!policy.kv_share) return;
  if (!or_kv_dtypes.empty())
    throw UsageError("--or-kv-dtype: the retention 'auto' chooses the type of keys and values; leave one of them out");
  const double share = *policy.kv_share;
  const auto choice = policy::settle_kv_share(policy, read_model_spec(model).head_dim);
  log_info("auto:{} is --retention {} --kv-dtype {}", share, choice->retention, choice->format);
}

policy::PartialPolicy PolicyFlags::policy(const std::filesystem::path& model, const std::string& dtype) const {
  policy::PartialPolicy file, flags;
  if (!policy_file.empty()) {
    file = policy::PartialPolicy::from_json(read_json("--policy", policy_file), policy_file);
  }
  if (!percent.empty()) flags.set_percent({percent[0], percent[1], percent[2], percent[3], percent[4], percent[5]});
  if (gpu_batch_size) flags.gpu_batch_size = checked_size(*gpu_batch_size, "--gpu-batch-size");
  if (num_gpu_batches) flags.num_gpu_batches = checked_size(*num_gpu_batches, "--num-gpu-batches");
  flags.kv_share = policy::kv_share_from_text(retention, "--retention");
  if (!retention.empty() && !flags.kv_share) flags.retention = policy::Retention::from_text(retention);
  if (!kv_dtype.empty() || compress_cache || !kv_keys.empty()) {
    const policy::KvFormat said = file.kv_format.value_or(policy::KvFormat{});
    policy::KvFormat format = said;
    if (compress_cache) format = policy::KvFormat::of(DType::i4);
    if (!kv_dtype.empty()) format = policy::KvFormat::from_text(kv_dtype, "--kv-dtype");
    if (format.quantised() && said.rotate) format.rotate = said.rotate;
    if (format.dtype == DType::i4 && said.keys) format.keys = said.keys;
    set_details(format);
    // With other formats, the flag is for them too. Otherwise check() refuses it if it does not fit the format.
    if (or_kv_dtypes.empty() && key_type()) format.keys = key_type();
    flags.kv_format = format;
  }
  if (!attention.empty()) flags.attention_on_host = policy::host_share_from_text(attention, "--attention");
  if (!experts.empty()) flags.experts_on_host = policy::host_share_from_text(experts, "--experts");
  if (!schedule.empty()) flags.continuous = policy::continuous_from_text(schedule, "--schedule");
  if (max_num_batched_tokens)
    flags.max_batched_tokens = checked(*max_num_batched_tokens, policy::kFewestBatchedTokens,
                                       policy::kMostBatchedTokens, "--max-num-batched-tokens");
  if (no_overlap) flags.overlap = false;
  flags.budgets = memory();
  policy::PartialPolicy both = flags.over(file);
  if (machine.deterministic && !both.experts_on_host)
    both.experts_on_host = 0;  // a GPU refuses a share; none is chosen
  set_weight_format(both, model, dtype);
  settle_share(both, model);
  set_coarse_bits(both);
  policy::check(both.kv_format.value_or(policy::KvFormat{}), !kv_keys.empty() ? "--kv-keys" : policy_file + ": kv");
  return both;
}

std::array<std::optional<std::uint64_t>, 3> PolicyFlags::memory() const {
  const std::array<std::pair<const char*, const std::string*>, 3> flags{
      {{"--device-memory", &device_memory}, {"--host-memory", &host_memory}, {"--disk-memory", &disk_memory}}};
  std::array<std::optional<std::uint64_t>, 3> bytes;
  for (std::size_t tier = 0; tier < flags.size(); ++tier)
    if (!flags[tier].second->empty()) bytes[tier] = policy::bytes_from_text(*flags[tier].second, flags[tier].first);
  return bytes;
}

MachineOptions PolicyFlags::machine_options() const {
  MachineOptions options = machine;
  options.memory = memory();
  return options;
}

}  // namespace weft::runtime

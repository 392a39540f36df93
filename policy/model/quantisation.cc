#include "policy/model/quantisation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "kernels/error.h"
#include "policy/model/quantisation_part.h"

namespace weft::policy {
namespace {

using nlohmann::json;
using Packing = Quantisation::Packing;
using Part = QuantisationPart;

constexpr std::size_t kMostPlain = 1 << 16, kMostName = 256;

[[noreturn]] void refuse_method(const std::string& where, const std::string& what) {
  throw DataError(
      where + " " + what +
      "; read are compressed-tensors (pack-quantized, int-quantized, nvfp4- and mxfp4-pack-quantized, "
      "float-quantized), gptq, awq, mxfp4, modelopt (NVFP4, FP8), bitsandbytes, fp8, and what weft convert writes: " +
      kInstead);
}

/// `other` if only that key is present, otherwise `key`.
std::string one_of(Part& fields, const std::string& key, const std::string& other) {
  return !fields.has(key) && fields.has(other) ? other : key;
}

/// The levels of 4 or 8 bits.
DType read_bits(Part& fields, const std::string& key) {
  const std::int64_t bits = fields.integer(key, 1, 64);
  if (bits != 4 && bits != 8) fields.unread(key, "4 or 8");
  return bits == 4 ? DType::i4 : DType::i8;
}

/// A group that Weft's memory does not have is several of 32, 64 or 128 there, as large as they can be.
void read_group(Part& fields, const std::string& key, Quantisation& to) {
  const std::int64_t group = fields.integer(key, -1, 1 << 20);
  to.whole_rows = group == -1;
  to.group = kWholeRowGroup, to.repeats = 1;
  if (to.whole_rows) return;
  if (group == 0 || group % 32 != 0) fields.unread(key, "-1 or a multiple of 32");
  while (group % to.group != 0) to.group /= 2;
  to.repeats = static_cast<int>(group / to.group);
}

bool same_groups(const Quantisation& a, const Quantisation& b) {
  return a.group == b.group && a.repeats == b.repeats && a.whole_rows == b.whole_rows;
}

/// Checks "dynamic": patterns of tensor names with the settings that differ there. A pattern that begins with "-:"
/// marks tensors as not quantised; it is skipped, because the tensors themselves show that.
void read_dynamic(Part& fields, const Quantisation& base) {
  if (fields.absent("dynamic")) return;
  const json& rules = fields.at("dynamic");
  if (!rules.is_object()) fields.refuse_field("dynamic", "an object");
  for (const auto& [pattern, rule] : rules.items()) {
    if (pattern.starts_with("-:")) continue;
    const std::string name = fields.where + ".dynamic: " + describe(json(pattern));
    Part part(rule, name);
    if (const int bits = bits_of(base.dtype); part.has("bits") && part.integer("bits", 1, 64) != bits)
      throw DataError(name + ": 'bits' differs from the " + std::to_string(bits) +
                      " of the rest; a mixture of bits is not read: " + kInstead);
    Quantisation other = base;
    if (part.has("group_size")) read_group(part, "group_size", other);
    if (!same_groups(other, base))
      throw DataError(name + ": 'group_size' differs from that of the rest, which is not read: " + kInstead);
  }
}

/// Whether "meta" names GPTQModel as the writer: {"quantizer": ["gptqmodel:2.0.0"]}.
bool by_gptqmodel(Part& fields) {
  if (fields.absent("meta")) return false;
  const json& meta = fields.at("meta");
  const auto quantizer = meta.is_object() ? meta.find("quantizer") : meta.end();
  if (!meta.is_object() || quantizer == meta.end()) return false;
  const auto says = [](const json& text) {
    return text.is_string() && in_small_letters(text.get<std::string>()).starts_with("gptqmodel");
  };
  return says(*quantizer) || (quantizer->is_array() && std::any_of(quantizer->begin(), quantizer->end(), says));
}

Quantisation read_gptq(Part& fields) {
  Quantisation found{.dtype = read_bits(fields, "bits"), .uniform = true};
  read_group(fields, "group_size", found);
  const std::string key = one_of(fields, "checkpoint_format", "format");
  const std::string format = fields.word(key, "gptq");
  if (format != "gptq" && format != "gptq_v2") fields.unread(key, "gptq or gptq_v2");
  found.packing = format == "gptq" ? Packing::gptq : Packing::gptq_v2;
  if (fields.flag("is_marlin_format", false)) fields.unread("is_marlin_format", "false");
  if (fields.word("pack_dtype", "int32") != "int32") fields.unread("pack_dtype", "int32");
  found.reordered = fields.flag("desc_act", false);
  found.whole_words = found.packing == Packing::gptq && by_gptqmodel(fields);
  read_dynamic(fields, found);
  return found;
}

Quantisation read_awq(Part& fields) {
  Quantisation found{.packing = Packing::awq, .dtype = DType::i4, .uniform = true};
  const std::string bits = one_of(fields, "bits", "w_bit");
  if (fields.integer(bits, 1, 64) != 4) fields.unread(bits, "4");
  read_group(fields, one_of(fields, "group_size", "q_group_size"), found);
  for (const char* key : {"version", "checkpoint_format", "format"})
    if (fields.word(key, "gemm") != "gemm") fields.unread(key, "gemm");
  if (!fields.flag("zero_point", true)) fields.unread("zero_point", "true");
  return found;
}

/// One of compressed-tensors' config_groups.
Quantisation read_scheme(Part& fields) {
  for (const char* key : {"input_activations", "output_activations"})
    if (!fields.absent(key)) fields.unread(key, "null, as only weights are read quantised");
  if (fields.word("format", "pack-quantized") != "pack-quantized") fields.unread("format", "pack-quantized");
  Part weights(fields.at("weights"), fields.where + ".weights");
  Quantisation found{.packing = Packing::compressed_tensors, .uniform = true};
  if (weights.word("type", "int") != "int") weights.unread("type", "int");
  found.dtype = read_bits(weights, "num_bits");
  if (weights.has("dynamic") && weights.at("dynamic") != json(false)) weights.unread("dynamic", "false");
  const std::string strategy = weights.word("strategy", weights.absent("group_size") ? "channel" : "group");
  if (strategy == "channel") found.whole_rows = true, found.group = kWholeRowGroup;
  else if (strategy == "group") read_group(weights, "group_size", found);
  else weights.unread("strategy", "group or channel");
  found.zero_points = !weights.flag("symmetric", true);
  if (!weights.absent("actorder") && weights.at("actorder") != json(false)) {
    const json& order = weights.at("actorder");
    const std::string name = order.is_string() ? in_small_letters(order.get<std::string>()) : "";
    found.reordered = order == json(true) || name == "group" || name == "dynamic";
    if (!found.reordered && name != "weight" && name != "static")
      weights.refuse_field("actorder", "null, weight, static, group or dynamic");
  }
  return found;
}

Quantisation read_packed_integers(Part& fields) {
  std::optional<Quantisation> all;
  fields.for_each_group([&](Part& group) {
    const Quantisation found = read_scheme(group);
    if (!all) all = found;
    if (found.dtype != all->dtype || !same_groups(found, *all))
      throw DataError(group.where +
                      ": its bits or groups differ from those of another; a mixture is not read: " + kInstead);
    all->zero_points &= found.zero_points;
    all->reordered |= found.reordered;
  });
  return *all;
}

/// Signed bytes with a scale for each row. Activations are not quantised, as with floats of 8 bits.
Quantisation read_signed_bytes(Part& fields) {
  fields.for_each_group([](Part& group) {
    if (group.word("format", "int-quantized") != "int-quantized") group.unread("format", "int-quantized");
    Part weights(group.at("weights"), group.where + ".weights");
    if (weights.word("type", "int") != "int") weights.unread("type", "int");
    if (weights.integer("num_bits", 1, 64) != 8) weights.unread("num_bits", "8");
    if (weights.word("strategy", "tensor") != "channel") weights.unread("strategy", "channel");
    if (!weights.flag("symmetric", true)) weights.unread("symmetric", "true");
  });
  return {.packing = Packing::compressed_tensors,
          .dtype = DType::i8,
          .group = kWholeRowGroup,
          .whole_rows = true,
          .uniform = true};
}

Quantisation read_compressed_tensors(Part& fields) {
  for (const char* key : {"sparsity_config", "transform_config"}) {
    if (fields.absent(key)) continue;
    const json& value = fields.at(key);
    const bool dense = value.is_object() && (value.empty() || (value.contains("format") && value["format"] == "dense"));
    if (!dense) fields.unread(key, "empty");
  }
  const std::string format = fields.word("format", "");
  if (format == "pack-quantized") return read_packed_integers(fields);
  if (format == "int-quantized") return read_signed_bytes(fields);
  if (format == "float-quantized") return read_float_quantized(fields);
  if (format == "nvfp4-pack-quantized" || format == "mxfp4-pack-quantized") return read_fp4(fields);
  fields.unread("format",
                "pack-quantized, int-quantized, nvfp4-pack-quantized, mxfp4-pack-quantized or float-quantized");
}

/// A list of tensors' names, sorted; empty if there is none.
std::vector<std::string> read_names(Part& fields, const std::string& key) {
  std::vector<std::string> found;
  if (fields.absent(key)) return found;
  const json& names = fields.at(key);
  if (!names.is_array() || names.size() > kMostPlain) fields.refuse_field(key, "a list of names");
  for (const json& name : names) {
    if (!name.is_string() || name.get_ref<const std::string&>().size() > kMostName)
      fields.refuse_field(key, "a list of names");
    found.push_back(name.get<std::string>());
  }
  std::sort(found.begin(), found.end());
  return found;
}

constexpr std::int64_t kWithTables = 2;  // the version of copies in which levels stand for others
constexpr std::int64_t kWithHead = 3;    // the version of copies in which the head has levels, maybe with such tables
constexpr std::int64_t kWithGroups = 4;  // the version of copies in which groups differ, maybe with all of these

LevelTable table_named(Part& fields, const char* key, const std::string& name) {
  for (const LevelTable table : kLevelTableKinds)
    if (name == name_of(table)) return table;
  fields.refuse_field(key, "even, e2m1, iq4_nl or nf4");
}

DType level_type(Part& fields, const char* key) {
  const std::string name = fields.text(key);
  for (const DType type : {DType::i4, DType::i8, DType::f8})
    if (name == name_of(type)) return type;
  fields.refuse_field(key, "int4, int8 or float8");
}

void read_groups(Part& fields, Quantisation& to) {
  Part others(fields.at("modules_by_group_size"), fields.where + ".modules_by_group_size");
  std::size_t known = 0;
  for (const int group : kGroupSizeKinds) {
    const std::string key = std::to_string(group);
    known += others.absent(key) ? 0 : 1;
    for (const std::string& name : read_names(others, key)) to.other_groups[name] = group;
  }
  if (known != fields.at("modules_by_group_size").size())
    fields.refuse_field("modules_by_group_size", std::string("lists by group sizes of ") + kGroupSizes);
}

Quantisation read_weft(Part& fields) {
  Quantisation found{.packing = Packing::weft};
  const auto version = fields.integer("version", 1, kWithGroups);
  found.dtype = level_type(fields, "dtype");
  found.group = static_cast<int>(fields.integer("group_size", 1, 1 << 20));
  if (!is_group_size(found.group)) fields.refuse_field("group_size", kGroupSizes);
  found.uniform = fields.flag("uniform", false);
  found.plain = read_names(fields, "modules_to_not_convert");
  found.int8 = read_names(fields, "modules_in_int8");
  if (version == kWithGroups) read_groups(fields, found);
  if (version == kWithHead || (version > kWithHead && !fields.absent("head_dtype")))
    found.head = level_type(fields, "head_dtype");
  if (version < kWithTables || (version > kWithTables && fields.absent("level_table"))) return found;
  found.table = table_named(fields, "level_table", fields.text("level_table"));
  if (fields.absent("modules_by_level_table")) return found;
  Part others(fields.at("modules_by_level_table"), fields.where + ".modules_by_level_table");
  for (const LevelTable table : kLevelTableKinds)
    for (const std::string& name : read_names(others, name_of(table))) found.other_tables[name] = table;
  return found;
}

}  // namespace

std::string in_small_letters(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

std::string Part::word(const std::string& key, const std::string& fallback) {
  return absent(key) ? fallback : in_small_letters(text(key));
}

void Part::for_each_group(const std::function<void(Part& group)>& body) {
  const json& groups = at("config_groups");
  if (!groups.is_object() || groups.empty()) refuse_field("config_groups", "an object that is not empty");
  for (const auto& [name, value] : groups.items()) {
    Part group(value, where + ".config_groups." + name.substr(0, 40));
    body(group);
  }
}

void Part::unread(const std::string& key, const std::string& wanted) {
  const std::string found = describe(at(key));
  throw DataError(where + ": '" + key + "' must be " + wanted + ", got " + found + "; " + kInstead);
}

const char* name_of(Packing packing) {
  switch (packing) {
    case Packing::none: return "none";
    case Packing::weft: return "weft";
    case Packing::compressed_tensors: return "compressed-tensors";
    case Packing::gptq: return "GPTQ";
    case Packing::gptq_v2: return "GPTQ (gptq_v2)";
    case Packing::awq: return "AWQ";
    case Packing::gguf: return "GGUF";
    case Packing::mxfp4: return "MXFP4";
    case Packing::nvfp4: return "NVFP4";
    case Packing::bitsandbytes: return "bitsandbytes";
    case Packing::fp8: return "FP8";
  }
  return "?";
}

Quantisation quantisation_from_config(const json& config, const std::string& where) {
  Part fields(config, where);
  const std::string method = fields.word("quant_method", "");
  if (method == "weft") return read_weft(fields);
  if (method == "gptq") return read_gptq(fields);
  if (method == "awq") return read_awq(fields);
  if (method == "compressed-tensors") return read_compressed_tensors(fields);
  if (method == "fp8" || method == "fbgemm_fp8") return read_fp8(fields);
  if (method == "mxfp4") return mxfp4();
  if (method == "modelopt" || method == "modelopt_fp4") return read_modelopt(fields);
  if (method == "bitsandbytes") return read_bitsandbytes(fields);
  if (method.empty()) refuse_method(where, "names no quant_method");
  refuse_method(where, "is that of '" + method.substr(0, 40) + "'");
}

nlohmann::ordered_json to_config(const Quantisation& quantisation) {
  const bool has_tables = quantisation.table != LevelTable::even || !quantisation.other_tables.empty();
  nlohmann::ordered_json config = {{"quant_method", "weft"},
                                   {"version", !quantisation.other_groups.empty() ? kWithGroups
                                               : quantisation.head                ? kWithHead
                                               : has_tables                       ? kWithTables
                                                                                  : 1},
                                   {"dtype", name_of(quantisation.dtype)},
                                   {"group_size", quantisation.group}};
  if (quantisation.uniform) config["uniform"] = true;
  if (quantisation.head) config["head_dtype"] = name_of(*quantisation.head);
  if (!quantisation.plain.empty()) config["modules_to_not_convert"] = quantisation.plain;
  if (!quantisation.int8.empty()) config["modules_in_int8"] = quantisation.int8;
  if (has_tables) config["level_table"] = name_of(quantisation.table);
  for (const auto& [name, table] : quantisation.other_tables)
    array_at(object_at(config, "modules_by_level_table"), name_of(table)).push_back(name);
  for (const auto& [name, group] : quantisation.other_groups)
    array_at(object_at(config, "modules_by_group_size"), std::to_string(group)).push_back(name);
  return config;
}

}  // namespace weft::policy

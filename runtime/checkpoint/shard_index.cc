// runtime/checkpoint/shard_index.cc
#include "runtime/checkpoint/shard_index.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "policy/base/json.h"
#include "runtime/base/files.h"
#include "runtime/base/quote.h"
#include "runtime/checkpoint/checkpoint_error.h"

namespace weft::runtime {

using nlohmann::json;

namespace {

constexpr std::size_t kMostIndexBytes = std::size_t{64} << 20, kMostIndexedNameBytes = 1024, kMostShardNameBytes = 255;
constexpr int kIndexDepth = 8;

[[noreturn]] void fail_index(Fault fault, const std::string& message) { throw CheckpointError(fault, message); }

bool is_plain_name(std::string_view name, std::string_view suffix) {
  const auto letter_or_digit = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (name.empty() || name.size() > kMostShardNameBytes || !letter_or_digit(name[0])) return false;
  if (!std::all_of(name.begin(), name.end(), [&](char c) { return letter_or_digit(c) || c == '.' || c == '-'; }))
    return false;
  return name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix;
}

std::map<std::string, std::string> read_weight_map(const json& root, const std::string& where,
                                                   std::string_view suffix) {
  if (!root.is_object()) fail_index(Fault::bad_index, where + ": wanted an object, got " + policy::describe(root));
  const auto found = root.find("weight_map");
  if (found == root.end())
    fail_index(Fault::bad_index, where + ": there is no 'weight_map', so the index does not say where a tensor is");
  if (!found->is_object() || found->empty())
    fail_index(Fault::bad_index,
               where + ": 'weight_map' must be an object of tensor names and shards, got " + policy::describe(*found));
  std::map<std::string, std::string> map;
  for (const auto& [name, shard] : found->items()) {
    if (name.empty() || name.size() > kMostIndexedNameBytes)
      fail_index(Fault::bad_index,
                 where + ": a tensor has a name of " + std::to_string(name.size()) + " bytes, wanted 1 to 1024");
    const std::string entry = where + ": weight_map entry " + in_quotes(name);
    if (!shard.is_string()) fail_index(Fault::bad_index, entry + " is not a string, wanted the name of a shard");
    const auto& file = shard.get_ref<const std::string&>();
    if (!is_plain_name(file, suffix))
      fail_index(Fault::bad_shard_name, entry + " names " + in_quotes(file) +
                                            "; shards must be plain file names that end in " + std::string(suffix));
    map.emplace(name, file);
  }
  return map;
}

std::optional<std::uint64_t> stated_bytes(const json& root, const std::string& where) {
  const auto metadata = root.find("metadata");
  if (metadata == root.end() || metadata->is_null()) return {};
  if (!metadata->is_object())
    fail_index(Fault::bad_index, where + ": 'metadata' must be an object, got " + policy::describe(*metadata));
  const auto total = metadata->find("total_size");
  if (total == metadata->end()) return {};
  // Some writers make it a float.
  if (total->is_number_float() && total->get<double>() >= 0 && total->get<double>() < 1e18)
    return static_cast<std::uint64_t>(total->get<double>());
  if (!total->is_number_unsigned())
    fail_index(Fault::bad_index, where + ": 'total_size' must be a number of bytes, got " + policy::describe(*total));
  return total->get<std::uint64_t>();
}

/// Notes missing numbers of shards: next to model-00002-of-00003.safetensors, numbers 1 and 3 hold some tensor in a
/// whole checkpoint.
std::vector<std::string> missing_numbers(const std::map<std::string, std::size_t>& shards, const std::string& where,
                                         std::string_view suffix) {
  constexpr std::size_t kDigits = 5, kMostNotes = 3;
  constexpr std::string_view kOf = "-of-";
  constexpr std::size_t kTail = 1 + kDigits + kOf.size() + kDigits;
  const auto number = [](std::string_view digits) {
    int value = 0;
    for (const char c : digits) value = c >= '0' && c <= '9' && value >= 0 ? value * 10 + (c - '0') : -1;
    return value;
  };
  std::set<std::pair<std::string, int>> sets;  // the text before the number, and how many shards there should be
  for (const auto& [shard, count] : shards) {
    const std::string_view stem = std::string_view(shard).substr(0, shard.size() - suffix.size());
    if (stem.size() <= kTail) continue;
    const std::string_view tail = stem.substr(stem.size() - kTail);
    const int of = number(tail.substr(kTail - kDigits)), index = number(tail.substr(1, kDigits));
    if (tail[0] == '-' && tail.substr(1 + kDigits, kOf.size()) == kOf && index >= 0 && of >= 0)
      sets.emplace(stem.substr(0, stem.size() - kTail), of);
  }
  const auto padded = [](int value) {
    const std::string digits = std::to_string(value);
    return std::string(kDigits - digits.size(), '0') + digits;
  };
  std::vector<std::string> notes;
  for (const auto& [prefix, of] : sets)
    for (int i = 1; i <= of; ++i) {
      const std::string shard = prefix + "-" + padded(i) + std::string(kOf) + padded(of) + std::string(suffix);
      if (!shards.count(shard))
        notes.push_back(where + ": no tensor is in shard " + in_quotes(shard) + "; the index may be incomplete");
      if (notes.size() == kMostNotes) return notes;
    }
  return notes;
}

}  // namespace

ShardIndex read_shard_index(const std::filesystem::path& index, std::string_view suffix) {
  const std::string where = index.string();
  const json root =
      policy::parse_json(read_file(index, kMostIndexBytes), where, policy::Blame::data, {.depth = kIndexDepth});
  ShardIndex named;
  named.shard_of = read_weight_map(root, where, suffix);
  named.stated_bytes = stated_bytes(root, where);
  for (const auto& [name, shard] : named.shard_of) ++named.tensors_of[shard];
  named.notes = missing_numbers(named.tensors_of, where, suffix);
  return named;
}

}  // namespace weft::runtime

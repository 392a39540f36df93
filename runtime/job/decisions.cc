#include "runtime/job/decisions.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "policy/base/json.h"

namespace weft::runtime {
namespace {

using offload::KvShape;
using offload::Tier;
using policy::bytes_to_text;
using policy::Footprint;

/// "9 on the device, 3 on the host"
std::string homes(const std::vector<Tier>& home) {
  std::string text;
  for (const Tier tier : offload::kTiers)
    if (const auto count = std::count(home.begin(), home.end(), tier); count > 0)
      text += fmt::format("{}{} on the {}", text.empty() ? "" : ", ", count, name_of(tier));
  return text;
}

/// "3 slots of 1.5 MiB on the device"; empty if the run needs no such window.
std::string window(const char* of, const policy::Window& window) {
  if (window.slots == 0) return {};
  return fmt::format("window of {}: {} slots of {} on the {}", of, window.slots, bytes_to_text(window.slot_bytes),
                     name_of(window.tier));
}

/// "20", or "8 to 61" if layers or heads differ.
std::string from_to(const std::vector<std::uint64_t>& numbers, const std::function<std::string(std::uint64_t)>& text) {
  const auto [least, most] = std::ranges::minmax(numbers);
  return least == most ? text(least) : text(least) + " to " + text(most);
}

std::string kv_buffer_bytes(const Footprint& footprint) {
  std::vector<std::uint64_t> bytes;
  for (int layer = 0; layer < std::ssize(footprint.kv_shapes); ++layer)
    bytes.push_back(footprint.kv_buffer_bytes(layer));
  return from_to(bytes, bytes_to_text);
}

std::string kv_slots(const Footprint& footprint) {
  std::vector<std::uint64_t> slots;
  for (const auto& runs : footprint.kv_shapes)
    for (const KvShape& shape : runs) slots.push_back(static_cast<std::uint64_t>(shape.slots));
  return from_to(slots, [](std::uint64_t n) { return std::to_string(n); });
}

void add_windows(const Footprint& footprint, std::vector<std::string>& lines) {
  for (const std::string& line :
       {window("weight units", footprint.unit), window("KV buffers", footprint.kv),
        window("activations", footprint.activation), window("weight units, staging", footprint.unit_staging),
        window("KV buffers, staging", footprint.kv_staging),
        window("activations, staging", footprint.activation_staging),
        window("KV buffers that the host attends", footprint.host_kv)})
    if (!line.empty()) lines.push_back(line);
}

/// The first buffers have the prompts of a pass in prefill; the others may be smaller.
std::string activations(const Footprint& footprint) {
  const std::vector<Tier>& home = footprint.shape.activation_home;
  const int all = footprint.shape.batches, first = footprint.shape.batches_of_pass(true);
  std::string buffers = fmt::format("{} buffers of {}", first, bytes_to_text(footprint.activation_buffer_bytes(0)));
  if (first < all)
    buffers += fmt::format(" and {} of {}", all - first, bytes_to_text(footprint.activation_buffer_bytes(first)));
  return "activations: " + buffers + ", " + homes(home);
}

}  // namespace

std::vector<std::string> decisions(const Session& session) {
  const Footprint& footprint = session.footprint();
  const policy::Policy& policy = session.policy();
  std::vector<std::string> lines{
      "backend " + session.backend().name() + ": " + session.backend_reason(),
      session.disk().engine_line(),
      "policy: " + policy::to_line(policy.to_json()),
      fmt::format("weights: {} units, {}", footprint.shape.unit_home.size(), homes(footprint.shape.unit_home)),
      fmt::format("KV cache: {} buffers of {}, {}; {} slots of {} a sequence, layer and KV head",
                  footprint.shape.kv_home.size(), kv_buffer_bytes(footprint), homes(footprint.shape.kv_home),
                  kv_slots(footprint), policy::to_text(policy.kv_format, footprint.kv_shapes.front().front().dtype)),
      activations(footprint)};
  add_windows(footprint, lines);
  lines.push_back(fmt::format("work space: {} for chunks of at most {} tokens and pieces of {}, {} for the output",
                              bytes_to_text(footprint.workspace.chunk), footprint.workspace.chunk_tokens,
                              footprint.workspace.piece_tokens, bytes_to_text(footprint.workspace.output.bytes)));
  if (footprint.workspace.unpacked.bytes > 0)
    lines.back() += ", " + bytes_to_text(footprint.workspace.unpacked.bytes) + " for weights that are unpacked";
  for (const Tier tier : offload::kTiers)
    lines.push_back(fmt::format("{}: {} of {}", name_of(tier), bytes_to_text(footprint[tier]),
                                bytes_to_text(policy.budgets[tier])));
  return lines;
}

}  // namespace weft::runtime

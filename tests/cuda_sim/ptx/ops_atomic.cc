// tests/cuda_sim/ptx/ops_atomic.cc: atom, red, fences.
#include <algorithm>

#include "machine.h"

namespace cusim::ptx {
namespace {

enum Operation : std::uint8_t {
  add,
  smallest,
  largest,
  conjunction,
  disjunction,
  difference,
  exchange,
  compare,
  increment
};
constexpr std::pair<std::string_view, Operation> kOperations[] = {
    {"add", add},        {"min", smallest},  {"max", largest}, {"and", conjunction}, {"or", disjunction},
    {"xor", difference}, {"exch", exchange}, {"cas", compare}, {"inc", increment}};

template <class T> T updated(Operation operation, T old, T b, T c) {
  switch (operation) {
    case add: return static_cast<T>(old + b);
    case smallest: return std::min(old, b);
    case largest: return std::max(old, b);
    case exchange: return b;
    case compare: return old == b ? c : old;
    case increment: return old >= b ? T{0} : static_cast<T>(old + 1);
    default: break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (operation == conjunction) return static_cast<T>(old & b);
    if (operation == disjunction) return static_cast<T>(old | b);
    if (operation == difference) return static_cast<T>(old ^ b);
  }
  return old;
}

// Operands: [result,] address, b[, c]. Others may update the same word on the host, and blocks of other streams.
template <Space kSpace, class T> void update(Warp& w, const Instruction& i, unsigned lanes) {
  const int first = i.has_result ? 1 : 0;
  const auto operation = static_cast<Operation>(i.option);
  each_lane(lanes, [&](int lane) {
    auto* const p = reinterpret_cast<T*>(
        reach(w, i, lane, kSpace, address_of(w, i, i.operands[first], lane), sizeof(T), Access::update));
    const T b = w.values<T>(i.operands[first + 1])[lane];
    const T c = operation == compare ? w.values<T>(i.operands[first + 2])[lane] : T{};
    T old, wanted;
    __atomic_load(p, &old, __ATOMIC_SEQ_CST);
    do wanted = updated(operation, old, b, c);
    while (!__atomic_compare_exchange(p, &old, &wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    if (i.has_result) w.lanes<T>(i.operands[0])[lane] = old;
    if constexpr (std::is_integral_v<T>) wide_atomics += operation == add && sizeof(T) == 8;
  });
}

template <Space kSpace> Handler handler(std::string_view type) {
  if (type == "u32" || type == "b32") return update<kSpace, std::uint32_t>;
  if (type == "s32") return update<kSpace, std::int32_t>;
  if (type == "u64" || type == "b64") return update<kSpace, std::uint64_t>;
  if (type == "s64") return update<kSpace, std::int64_t>;
  if (type == "f32") return update<kSpace, float>;
  if (type == "f64") return update<kSpace, double>;
  return nullptr;
}

void nothing(Warp&, const Instruction&, unsigned) {}

}  // namespace

bool decode_atomic(Decoder& d) {
  const Parsed& p = d.parsed();
  Instruction& made = d.made();
  if (p.base() == "membar" || p.base() == "fence") {
    made.run = nothing;
    return true;
  }
  if ((p.base() != "atom" && p.base() != "red") || p.parts.size() < 3) return false;
  Space space = Space::generic;
  bool known = false;
  for (std::size_t part = 1; part + 1 < p.parts.size(); ++part) {
    constexpr std::string_view kOrders[] = {"relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys"};
    const auto* const found = std::find_if(std::begin(kOperations), std::end(kOperations),
                                           [&](const auto& o) { return o.first == p.parts[part]; });
    if (found != std::end(kOperations)) {
      made.option = found->second;
      known = true;
    } else if (!take_space(p.parts[part], space) &&
               std::find(std::begin(kOrders), std::end(kOrders), p.parts[part]) == std::end(kOrders)) {
      return false;
    }
  }
  made.has_result = p.base() == "atom";
  made.run = space == Space::global   ? handler<Space::global>(p.type())
             : space == Space::shared ? handler<Space::shared>(p.type())
                                      : handler<Space::generic>(p.type());
  const std::size_t address = made.has_result ? 1 : 0, wanted = address + (made.option == compare ? 3 : 2);
  if (!known || made.run == nullptr || p.fields.size() != wanted) return false;
  if (made.has_result) d.add_field(0, type_bytes(p.type()));
  d.add_address(address);
  for (std::size_t field = address + 1; field < wanted; ++field) d.add_field(field, type_bytes(p.type()));
  return true;
}

}  // namespace cusim::ptx

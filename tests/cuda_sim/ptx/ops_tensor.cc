// tests/cuda_sim/ptx/ops_tensor.cc: matrices over the lanes of a warp: mma, ldmatrix, stmatrix.
//
// A lane's group is lane / 4 and its place in it lane % 4. A register of a factor holds 4 bytes: kPer elements next to
// each other along k, from k = kPer * place. Registers count rows (by 8) first and then k (by 4 * kPer), as the PTX ISA
// has it for mma.
#include <algorithm>

#include "cuda_bf16.h"
#include "machine.h"

namespace cusim::ptx {
namespace {

struct Half {
  static constexpr int kPer = 2;
  static float value(std::uint32_t r, int n) { return from_half_bits(static_cast<std::uint16_t>(r >> (16 * n))); }
};
struct Bfloat {
  static constexpr int kPer = 2;
  static float value(std::uint32_t r, int n) { return from_bfloat_bits(static_cast<std::uint16_t>(r >> (16 * n))); }
};
struct Tf32 {  // the lower bits are not looked at
  static constexpr int kPer = 1;
  static float value(std::uint32_t r, int) { return std::bit_cast<float>(r & 0xffffe000); }
};
struct Signed {
  static constexpr int kPer = 4;
  static std::int32_t value(std::uint32_t r, int n) { return static_cast<std::int8_t>(r >> (8 * n)); }
};
struct Unsigned {
  static constexpr int kPer = 4;
  static std::int32_t value(std::uint32_t r, int n) { return static_cast<std::uint8_t>(r >> (8 * n)); }
};

/// d = a * b + c over `kRows` rows and 8 columns; the operands begin where these say.
template <class A, class B, class Sum, int kRows>
void multiply(Warp& w, const Operand* d, const Operand* a, const Operand* b, const Operand* c, int k_registers) {
  Sum x[16][64], y[64][8], z[16][8];
  constexpr int kHalves = kRows / 8;
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, place = lane % 4;
    for (int r = 0; r < k_registers; ++r)
      for (int n = 0; n < A::kPer; ++n) {
        const int k = 4 * A::kPer * r + A::kPer * place + n;
        for (int half = 0; half < kHalves; ++half)
          x[group + 8 * half][k] = A::value(w.values<std::uint32_t>(a[kHalves * r + half])[lane], n);
        y[k][group] = B::value(w.values<std::uint32_t>(b[r])[lane], n);
      }
    for (int r = 0; r < 2 * kHalves; ++r) z[group + 8 * (r / 2)][2 * place + r % 2] = w.values<Sum>(c[r])[lane];
  }
  for (int row = 0; row < kRows; ++row)
    for (int k = 0; k < 4 * A::kPer * k_registers; ++k)
      for (int column = 0; column < 8; ++column) z[row][column] += x[row][k] * y[k][column];
  for (int lane = 0; lane < 32; ++lane)
    for (int r = 0; r < 2 * kHalves; ++r) w.lanes<Sum>(d[r])[lane] = z[lane / 4 + 8 * (r / 2)][2 * (lane % 4) + r % 2];
}

// d, a, b, c; `option` registers of k.
template <class A, class B, class Sum, int kRows> void mma(Warp& w, const Instruction& i, unsigned) {
  const int sums = kRows / 4, factors = i.option * (kRows / 8);
  const Operand* const o = i.operands;
  multiply<A, B, Sum, kRows>(w, o, o + sums, o + sums + factors, o + sums + factors + i.option, i.option);
  ++w.block->counts.tensor_operations;
}

template <class A, class Sum> Handler mma_of(std::string_view b, int rows) {
  if constexpr (std::is_same_v<Sum, std::int32_t>) {
    if (rows == 16) return b == "s8" ? mma<A, Signed, Sum, 16> : mma<A, Unsigned, Sum, 16>;
    return b == "s8" ? mma<A, Signed, Sum, 8> : mma<A, Unsigned, Sum, 8>;
  } else {
    return rows == 16 ? mma<A, A, Sum, 16> : nullptr;
  }
}

bool decode_mma(Decoder& d) {
  const Parsed& p = d.parsed();  // mma.sync.aligned.SHAPE.row.col[.satfinite].D.A.B.C
  if (p.parts.size() != 10 || p.parts[1] != "sync" || p.parts[4] != "row" || p.parts[5] != "col") return false;
  const std::string_view shape = p.parts[3], a = p.parts[7], b = p.parts[8];
  const int rows = shape.substr(0, 5) == "m16n8" ? 16 : shape.substr(0, 4) == "m8n8" ? 8 : 0;
  const int k = std::atoi(std::string(shape.substr(shape.rfind('k') + 1)).c_str());
  const bool integer = a == "s8" || a == "u8";
  const int per = integer ? 4 : a == "tf32" ? 1 : 2;
  if (rows == 0 || k % (4 * per) != 0 || p.parts[6] != (integer ? "s32" : "f32") || p.parts[9] != p.parts[6])
    return false;
  Instruction& made = d.made();
  made.option = static_cast<std::uint8_t>(k / (4 * per));
  if (a == "f16" && b == a) made.run = mma_of<Half, float>(b, rows);
  if (a == "bf16" && b == a) made.run = mma_of<Bfloat, float>(b, rows);
  if (a == "tf32" && b == a) made.run = mma_of<Tf32, float>(b, rows);
  if (a == "s8" && (b == a || b == "u8")) made.run = mma_of<Signed, std::int32_t>(b, rows);
  if (a == "u8" && (b == a || b == "s8")) made.run = mma_of<Unsigned, std::int32_t>(b, rows);
  const auto sums = static_cast<std::size_t>(rows / 4), halves = static_cast<std::size_t>(rows / 8);
  if (made.run == nullptr || p.fields.size() != 4 || p.fields[0].size() != sums || p.fields[3].size() != sums ||
      p.fields[1].size() != made.option * halves || p.fields[2].size() != made.option)
    return false;
  for (std::size_t field = 0; field < 4; ++field) d.add_field(field, 4);
  made.orders_memory = true;  // every result depends on every lane
  return true;
}

// --------------------------------------------------------------------------------------------------------- ldmatrix

enum Matrices : std::uint8_t { transposed = 1, stores = 2 };

// Eight lanes name the rows of each matrix. Registers and address, or for stmatrix the address first.
void move_matrices(Warp& w, const Instruction& i, unsigned) {
  const bool is_store = i.option & stores;
  const Operand& base = i.operands[is_store ? 0 : i.elements];
  const Operand* const registers = i.operands + (is_store ? 1 : 0);
  std::array<std::uint64_t, 32> addresses{};
  for (int matrix = 0; matrix < i.elements; ++matrix) {
    std::uint16_t tile[8][8];
    const auto element = [&](int lane, int n) -> std::uint16_t& {
      const int group = lane / 4, pair = 2 * (lane % 4) + n;
      return i.option & transposed ? tile[pair][group] : tile[group][pair];
    };
    const auto rows = [&](Access access, auto move) {
      for (int row = 0; row < 8; ++row) {
        const int lane = 8 * matrix + row;
        addresses[lane] = address_of(w, i, base, lane);
        move(reach(w, i, lane, Space::shared, addresses[lane], 16, access), tile[row]);
      }
    };
    if (is_store) {
      for (int lane = 0; lane < 32; ++lane)
        for (int n = 0; n < 2; ++n)
          element(lane, n) = static_cast<std::uint16_t>(w.values<std::uint32_t>(registers[matrix])[lane] >> (16 * n));
      rows(Access::write, [](std::byte* memory, std::uint16_t* row) { std::memcpy(memory, row, 16); });
    } else {
      rows(Access::read, [](const std::byte* memory, std::uint16_t* row) { std::memcpy(row, memory, 16); });
      for (int lane = 0; lane < 32; ++lane)
        w.lanes<std::uint32_t>(registers[matrix])[lane] =
            static_cast<std::uint32_t>(element(lane, 1)) << 16 | element(lane, 0);
    }
  }
  if (w.block->counting) w.block->count_shared(addresses, i.elements == 4 ? ~0u : (1u << (8 * i.elements)) - 1, 16);
}

bool decode_matrices(Decoder& d) {
  const Parsed& p = d.parsed();
  Instruction& made = d.made();
  const bool is_store = p.base() == "stmatrix";
  for (std::size_t part = 1; part + 1 < p.parts.size(); ++part) {
    const std::string_view name = p.parts[part];
    if (name == "x1" || name == "x2" || name == "x4") made.elements = static_cast<std::uint8_t>(name[1] - '0');
    else if (name == "trans") made.option |= transposed;
    else if (name != "sync" && name != "aligned" && name != "m8n8" && name != "shared" && name != "shared::cta")
      return false;
  }
  const std::size_t values = is_store ? 1 : 0;
  if (p.type() != "b16" || p.fields.size() != 2 || p.fields[values].size() != made.elements) return false;
  if (is_store) made.option |= stores;
  made.run = move_matrices;
  if (is_store) d.add_address(0);
  d.add_field(values, 4);
  if (!is_store) d.add_address(1);
  return true;
}

}  // namespace

bool decode_tensor(Decoder& d) {
  const std::string_view base = d.parsed().base();
  const bool known = base == "mma" ? decode_mma(d) : (base == "ldmatrix" || base == "stmatrix") && decode_matrices(d);
  if (known) d.made().kind = Kind::collective;
  return known;
}

}  // namespace cusim::ptx

// kernels/ops.h: the kernel ops. One struct per op with its shapes, and WEFT_KERNEL_OPS, the list of them all. class
// Ops has one pure run() for each, and each backend's class declares one twin for each, so that a missing twin does not
// link. ops.cc has the checks that all twins share: check(op) throws UsageError.
//
// Matrices are [rows, cols] views. `tokens` counts the rows of a ragged call: the sequences' tokens one after another,
// without padding. Activations are f32 on the CPU; a GPU's twins also take those of 16 bits where an op's comment says
// `activations`. Weights are f32, f16 or bf16, and those of Linear also i8 or i4. KV is of one of these five types.
// On the CPU a row of the result depends on that row's inputs alone, whatever the other rows, the number of rows, the
// number of threads or the capacity of a KV buffer (batch invariance).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention_ops.h"
#include "kernels/expert_ops.h"
#include "kernels/sample_ops.h"
#include "kernels/tensor.h"

namespace weft::kernels {

class Stream;  // kernels/backend.h

enum class Activation : std::uint8_t { none, relu, relu_squared, gelu, gelu_tanh, quick_gelu, silu, tanh };

/// out = in, converted.   in, out [rows, cols]
struct Convert {
  ConstView in;
  View out;
};

/// x += y.   x [rows, cols] f32;  y [rows, cols] of any float type
struct Add {
  View x;
  ConstView y;
};

/// x *= factor; then, with a cap, x = cap * tanh(x / cap). A factor of 0 clears x, whatever it was.
///   x [rows, cols] f32
///   by [1, 1] of any float type, or empty: a further factor, which memory of the device holds
struct Scale {
  View x;
  float factor = 1, cap = 0;
  ConstView by = {};
};

/// x *= y.   x, y [rows, cols] activations of one type
struct Multiply {
  View x;
  ConstView y;
};

/// out[to[i]] = table[ids[i]], converted; without `to` out[i].   table [rows of the table, cols]; out [rows, cols]
///   ids, to [ids]   to may be empty
/// The table may be host memory of allocate_host() on every backend.
struct Gather {
  ConstView table;
  std::span<const std::int32_t> ids, to;
  View out;
};

/// Normalises each row to mean 0 and variance 1, then scales and shifts it.
///   x, out [rows, cols] of one type, or x f32 and out of any float type; out may be x if their types are equal
///   weight [n, cols], of which row r of x takes row r mod n; bias [1, cols]; each may be empty (scale 1, shift 0)
/// The sums are fp32 in every dtype; eps is added to the variance. With `rms` the mean is not subtracted: the row is
/// divided by its root mean square (RMSNorm, arXiv 1910.07467). With `plus_one` the scale is 1 + weight, as in Gemma.
struct LayerNorm {
  ConstView x, weight, bias;
  View out;
  float eps = 1e-5f;
  bool rms = false, plus_one = false;
};

/// Takes heads out of rows in which the heads of several matrices alternate: out's head h = in's head first + h * step.
///   in [tokens, a multiple of head_dim], out [tokens, heads * head_dim] activations of one type
struct TakeHeads {
  ConstView in;
  int first = 0, step = 1, head_dim = 0;
  View out;
};

/// Rotary position embedding (RoFormer, arXiv 2104.09864), in place: in every head the numbers i and i + n turn by
/// position * frequencies[i] radians, where n is the number of frequencies; numbers from 2 n on stay. If pairs
/// `alternate`, the numbers 2 i and 2 i + 1 turn. The numbers that turn are multiplied by `magnitude` (YaRN's attention
/// factor, arXiv 2309.00071).
///   x [tokens, heads * head_dim] activations     position [tokens]     frequencies [n], 2 n <= head_dim
struct Rotary {
  View x;
  std::span<const std::int32_t> position;
  std::span<const float> frequencies;
  int head_dim = 0;
  bool alternate = false;
  float magnitude = 1;
};

/// Multiplies every head by a Hadamard matrix, in place, which spreads outliers over its numbers (QuaRot, arXiv
/// 2404.00456). There is one matrix for each power of two in head_dim, the largest first, each divided by the root of
/// its size. The op is therefore its own inverse and keeps products of two heads. It works in fp32, butterflies of
/// distance 1 first.
///   x [tokens, heads * head_dim] f32
struct Hadamard {
  View x;
  int head_dim = 0;
};

/// out = activation(x weight^T + bias), or out += that if `accumulate`.
///   x [tokens, in]   weight [out, in] row-major, as checkpoints have it, or quantised   bias [1, out] or empty
///   out [tokens, out]
/// x and out are activations and do not overlap; with `accumulate` out is f32. Sums are fp32. A GPU may round one to
/// out's type before its bias or its activation. On the CPU the order of summation along `in` is the same for every
/// number of tokens.
struct Linear {
  ConstView x, weight, bias;
  View out;
  Activation activation = Activation::none;
  bool accumulate = false;
  /// The CPU's arithmetic. One that does not apply to this type of weights means exact. A GPU always multiplies 16-bit
  /// numbers.
  Arithmetic arithmetic = Arithmetic::exact;
};

/// Products of one x: out = x weight^T + bias for each part. A GPU computes parts of one shape and type whose matrices
/// lie at equal distances as one product.
struct LinearGroup {
  struct Part {
    ConstView weight, bias;
    View out;
  };
  ConstView x;
  std::span<const Part> parts;
  Arithmetic arithmetic = Arithmetic::exact;

  Linear linear(const Part& part) const {
    return {.x = x, .weight = part.weight, .bias = part.bias, .out = part.out, .arithmetic = arithmetic};
  }
};

/// out = the numbers that the levels stand for, each rounded to 16 bits. It serves weights that many products use.
///   weight [out, in] quantised   out [out, in] f16, its rows next to each other
struct UnpackWeights {
  ConstView weight;
  View out;
};

/// X(Op) for every op.
#define WEFT_KERNEL_OPS(X) \
  X(Convert)               \
  X(Add)                   \
  X(Scale)                 \
  X(Multiply)              \
  X(Gather)                \
  X(LayerNorm)             \
  X(TakeHeads)             \
  X(Rotary)                \
  X(Hadamard)              \
  X(Linear)                \
  X(LinearGroup)           \
  X(UnpackWeights)         \
  X(Route)                 \
  X(AddRows)               \
  X(GateRows)              \
  X(ClampedGate)           \
  X(PrefillAttention)      \
  X(ColumnSums)            \
  X(KeepPrompt)            \
  X(DecodeAttention)       \
  X(Reposition)            \
  X(Sample)                \
  X(LogProbs)              \
  X(TopLogProbs)

// Each throws UsageError, which names the op and both shapes, if an op's shapes or types disagree.
#define WEFT_DECLARE_CHECK(Op) void check(const Op&);
WEFT_KERNEL_OPS(WEFT_DECLARE_CHECK)
#undef WEFT_DECLARE_CHECK

/// A backend's arithmetic. On the CPU an op is done when run() returns. On a GPU it is queued on the stream: spans that
/// are read are copied at once, and spans that are written must be memory of Backend::allocate_host().
class Ops {
 public:
  virtual ~Ops() = default;
#define WEFT_DECLARE_RUN(Op) virtual void run(const Op&, Stream&) const = 0;
  WEFT_KERNEL_OPS(WEFT_DECLARE_RUN)
#undef WEFT_DECLARE_RUN
};
/// Declares the run() of one op in a class of twins.
#define WEFT_DECLARE_TWIN(Op) void run(const Op&, Stream&) const override;

}  // namespace weft::kernels

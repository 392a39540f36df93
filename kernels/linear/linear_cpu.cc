#include "kernels/linear/linear_cpu.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "kernels/linear/linear_pass.h"
#include "kernels/linear/linear_quantised.h"
#include "kernels/linear/linear_tiles.h"
#include "kernels/machine/cpu_features.h"

namespace weft::kernels {
namespace {

bool has_levels(const Linear& op) { return is_quantised(op.weight.dtype) && op.weight.dtype != DType::f8; }

bool is_bf16_product(const Linear& op) {
  return op.arithmetic == Arithmetic::bfloat16 && op.weight.cols > 0 && op.weight.cols % 2 == 0 &&
         (has_levels(op) || (op.weight.dtype == DType::bf16 && op.weight.stride % 2 == 0));
}

bool is_integer_product(const Linear& op) { return has_levels(op) && op.arithmetic == Arithmetic::int8; }

const LinearKernels* kernels_of(LinearPath path) {
  if (path == LinearPath::amx && cpu_has_amx() && integer_kernels_amx() != nullptr) return linear_kernels_avx512();
  if (path == LinearPath::avx512 && cpu_has_avx512()) return linear_kernels_avx512();
  if (path == LinearPath::avx2 && cpu_has_avx2()) return linear_kernels_avx2();
  return nullptr;
}

/// Whether products of one x can be computed in one go: by integers, those with groups of one size; by AMX as bfloat16,
/// all that have levels, or all that have none; else those whose weights are stored alike.
bool go_together(const Linear& a, const Linear& b, LinearPath path) {
  if (is_integer_product(a) != is_integer_product(b)) return false;
  if (is_integer_product(a)) return a.weight.group == b.weight.group;
  if (path == LinearPath::automatic) {
    if (is_bf16_product(a) != is_bf16_product(b)) return false;
    if (is_bf16_product(a) && multiplies_by_tiles()) return has_levels(a) == has_levels(b);
  }
  return a.weight.dtype == b.weight.dtype && a.weight.group == b.weight.group && a.weight.table == b.weight.table;
}

/// Whether AMX is faster than vectors with so many rows. A register takes 64 levels of a row, but no more than a group.
bool are_for_tiles(std::int64_t rows, int group) { return group >= 32 && rows > (group == 32 ? 32 : 12); }

/// Computes products of one x in integer arithmetic. A processor with AVX-512 but no VNNI takes AVX2.
void linear_int8(std::span<const Linear> products, ThreadPool& pool, LinearPath path) {
  const bool any = path == LinearPath::automatic;
  if ((path == LinearPath::amx || (any && are_for_tiles(products.front().x.rows, products.front().weight.group))) &&
      kernels_of(LinearPath::amx) != nullptr)
    return linear_integer(products, *integer_kernels_amx(), linear_kernels_avx512()->finish_sums, pool);
  if ((any || path == LinearPath::avx512) && cpu_has_avx512_vnni() && integer_kernels_avx512() != nullptr)
    return linear_integer(products, *integer_kernels_avx512(), linear_kernels_avx512()->finish_sums, pool);
  if (path != LinearPath::plain && cpu_has_avx2() && integer_kernels_avx2() != nullptr)
    return linear_integer(products, *integer_kernels_avx2(), linear_kernels_avx2()->finish_sums, pool);
  linear_integer(products, *integer_kernels_plain(), finish_plain, pool);
}

/// The same in Arithmetic::bfloat16. Rows of the weights must be whole pairs.
void linear_bf16(std::span<const Linear> products, ThreadPool& pool) {
  if (multiplies_by_tiles()) return linear_tiles(products, *tile_kernels_amx(), pool);
  if (!multiplies_bf16())
    throw UsageError("linear: this processor does not multiply bfloat16 numbers (AVX512-BF16); use exact arithmetic");
  if (has_levels(products.front())) return linear_by(*pair_kernels_avx512(), products, pool);
  std::vector<Linear> pairs(products.begin(), products.end());
  for (Linear& op : pairs)
    op.weight = ConstView(op.weight.data, DType::f32, op.weight.rows, op.weight.cols / 2, op.weight.stride / 2);
  linear_by(*pair_kernels_avx512(), pairs, pool);
}

/// Computes products that go_together(), and have outputs.
void linear_together(std::span<const Linear> products, ThreadPool& pool, LinearPath path) {
  const Linear& first = products.front();
  if (is_integer_product(first)) return linear_int8(products, pool, path);
  if (path == LinearPath::automatic && is_bf16_product(first)) return linear_bf16(products, pool);
  static const LinearPath best = linear_paths().front();
  if (path == LinearPath::automatic) path = best;
  if (path == LinearPath::plain) {
    for (const Linear& op : products) linear_exact_plain(op, pool);
    return;
  }
  const LinearKernels* const kernels = kernels_of(path);
  if (kernels == nullptr)
    throw UsageError(std::string("linear: this processor does not have ") + name_of(path) + "; use " + name_of(best));
  linear_by(*kernels, products, pool);
}

}  // namespace

bool multiplies_by_tiles() { return cpu_has_amx() && tile_kernels_amx() != nullptr; }

bool multiplies_bf16() { return cpu_has_avx512_bf16() && pair_kernels_avx512() != nullptr; }

const char* name_of(LinearPath path) {
  switch (path) {
    case LinearPath::automatic: return "automatic";
    case LinearPath::amx: return "amx";
    case LinearPath::avx512: return "avx512";
    case LinearPath::avx2: return "avx2";
    case LinearPath::plain: return "plain";
  }
  return "?";
}

std::vector<LinearPath> linear_paths() {
  std::vector<LinearPath> paths;
  for (const LinearPath path : {LinearPath::amx, LinearPath::avx512, LinearPath::avx2})
    if (kernels_of(path) != nullptr) paths.push_back(path);
  paths.push_back(LinearPath::plain);
  return paths;
}

void linear_cpu(const Linear& op, ThreadPool& pool, LinearPath path) {
  if (op.x.rows > 0 && op.weight.rows > 0) linear_together({&op, 1}, pool, path);
}

void linear_group_cpu(const LinearGroup& op, ThreadPool& pool, LinearPath path) {
  if (op.x.rows == 0) return;
  std::vector<Linear> products;
  for (const LinearGroup::Part& part : op.parts)
    if (part.weight.rows > 0) products.push_back(op.linear(part));
  for (auto first = products.begin(); first != products.end();) {
    const auto end = std::stable_partition(first, products.end(), [like = *first, path](const Linear& product) {
      return go_together(like, product, path);
    });
    linear_together({first, end}, pool, path);
    first = end;
  }
}

}  // namespace weft::kernels

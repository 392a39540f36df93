// That threads of a product write cache lines of their own: else cores take lines from each other, and a second thread
// gains half of what it could.
#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "kernels/linear/linear_quantised.h"
#include "kernels/machine/cpu_features.h"
#include "kernels/quantised.h"

using namespace weft;
using namespace weft::kernels;

namespace {

/// Who wrote which cache lines while rows were quantised.
struct Writers {
  std::mutex mutex;
  std::map<std::uintptr_t, std::thread::id> of_line;
  std::int64_t shared = 0;
  std::map<std::thread::id, int> calls;

  void wrote(const void* from, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(from);
    for (std::uintptr_t line = begin / 64; line <= (begin + bytes - 1) / 64; ++line)
      shared += of_line.emplace(line, std::this_thread::get_id()).first->second != std::this_thread::get_id();
  }
};
Writers* writers = nullptr;  // of the test that runs
const IntegerKernels* watched = nullptr;

void quantise_and_tell(const QuantiseRow& q) {
  watched->quantise(q);
  {
    const std::lock_guard lock(writers->mutex);
    ++writers->calls[std::this_thread::get_id()];
    for (std::int64_t g = 0; g < q.groups; ++g) {
      const bool together = watched->begin != nullptr;  // the levels of a row's group
      for (std::int64_t quad = 0; quad < q.group / kQuad; ++quad)
        writers->wrote(q.to + g * q.group * q.rows + quad * kQuad * (together ? 1 : q.rows), kQuad);
      writers->wrote(q.scale + g * q.rows, sizeof(float));
      writers->wrote(q.sum + g * q.rows, sizeof(float));
    }
  }
  std::this_thread::sleep_for(std::chrono::microseconds(20));  // so that the others get their turn
}

/// The kernels that this processor has.
std::vector<const IntegerKernels*> runnable() {
  std::vector<const IntegerKernels*> found{integer_kernels_plain()};
  if (cpu_has_amx() && integer_kernels_amx() != nullptr) found.push_back(integer_kernels_amx());
  if (cpu_has_avx512_vnni() && integer_kernels_avx512() != nullptr) found.push_back(integer_kernels_avx512());
  if (cpu_has_avx2() && integer_kernels_avx2() != nullptr) found.push_back(integer_kernels_avx2());
  return found;
}

}  // namespace

TEST_CASE("threads that quantise rows for an integer product share no cache line", "[linear][quantised]") {
  const int group = GENERATE(32, 64);
  const std::int64_t m = GENERATE(1, 13, 30), columns = GENERATE(600, 1088), outputs = 512;
  CAPTURE(group, m, columns);
  std::vector<float> x(static_cast<std::size_t>(m * columns)), out(static_cast<std::size_t>(m * outputs));
  std::mt19937 generator(1);
  for (float& number : x) number = static_cast<float>(generator() % 100) / 50 - 1;
  const QuantisedLayout layout{DType::i8, group, outputs, columns};
  std::vector<std::byte> weights(static_cast<std::size_t>(layout.bytes()) + 64);
  std::byte* const aligned = weights.data() + (64 - reinterpret_cast<std::uintptr_t>(weights.data()) % 64) % 64;
  Linear op{.x = ConstView(x.data(), DType::f32, m, columns),
            .weight = ConstView(aligned, DType::i8, outputs, columns),
            .bias = {},
            .out = View(out.data(), DType::f32, m, outputs)};
  op.weight.group = group;
  for (const IntegerKernels* kernels : runnable()) {
    CAPTURE(kernels->name);
    IntegerKernels telling = *kernels;
    telling.quantise = quantise_and_tell;
    Writers found;
    writers = &found, watched = kernels;
    ThreadPool pool(3);
    for (int again = 0; again < 50 && found.calls.size() < 2; ++again) {
      found.of_line.clear(), found.shared = 0, found.calls.clear();
      linear_integer({&op, 1}, telling, finish_plain, pool);
      if (m <= kernels->rows) break;  // may be one part
    }
    if (m > kernels->rows) CHECK(found.calls.size() > 1);
    CHECK(found.shared == 0);
  }
}

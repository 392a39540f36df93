// tests/cuda_sim/backend_test.cc: what only the simulator shows of the GPU as a machine.
#include "kernels/backend.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cusim.h"
#include "kernels/error.h"
#include "kernels/machine/cuda.h"
#include "kernels/machine/host_machine.h"
#include "tests/cuda_sim/reset_after.h"
#include "tests/support/numbers.h"

using namespace weft;
using kernels::Backend;
using test::normal;

TEST_CASE("a GPU's backend leaves cores to the threads that feed it, and says so", "[gpu]") {
  const int cores = kernels::processors(), left = std::min(3, cores / 4);
  const auto backend = kernels::make_cuda_backend({.threads = 0}), all = kernels::make_cuda_backend({.threads = cores});
  if (left == 0) CHECK(backend->core_shares().empty());
  else
    CHECK_THAT(backend->core_shares(), Catch::StartsWith(std::to_string(cores - left) + " thread") &&
                                           Catch::Contains(", " + std::to_string(left) + " of ") &&
                                           Catch::Contains("left to feed the GPU"));
  CHECK(all->core_shares().empty());
}

TEST_CASE("a size that is none is refused as memory that is not there", "[gpu][faults]") {
  const test::ResetAfter reset_after;
  const auto backend = kernels::make_cuda_backend({.threads = 1});
  CHECK_THROWS_AS(backend->allocate_device(SIZE_MAX), CapacityError);
  CHECK_THROWS_AS(backend->allocate_device(SIZE_MAX / 2), CapacityError);
}

namespace {

/// x += y, for `steps` steps whose signatures come in turn, each `each` times; what x then holds.
float after_steps(Backend& backend, int steps, int signatures, int each = 1) {
  const auto device = backend.allocate_device(2 * sizeof(float)), host = backend.allocate_host(2 * sizeof(float));
  auto* const numbers = reinterpret_cast<float*>(host->data());
  numbers[0] = 0, numbers[1] = 1;
  const auto stream = backend.make_stream();
  const auto done = backend.make_event();
  const auto wait = [&] {
    backend.record(*done, *stream);
    backend.synchronize(*done);
  };
  backend.copy(device->data(), host->data(), device->bytes(), *stream);
  wait();
  const View x(device->data(), DType::f32, 1, 1), y(device->data() + sizeof(float), DType::f32, 1, 1);
  for (int step = 0; step < steps; ++step) {
    backend.repeat(*stream, static_cast<std::uint64_t>(step / each % signatures), [&] {
      backend.ops().run(kernels::Add{x, y}, *stream);
    });
    wait();
  }
  backend.copy(host->data(), device->data(), sizeof(float), *stream);
  wait();
  return numbers[0];
}

}  // namespace

TEST_CASE("of the steps that repeat only so many are recorded as the device has memory set aside for",
          "[gpu][graphs]") {
  const test::ResetAfter reset_after;
  const auto backend = kernels::make_cuda_backend({.threads = 1});
  const auto before = cusim::stats();
  const auto launched = [&] { return cusim::stats().graphs - before.graphs; };
  SECTION("a few, always the same: all are graphs in the end") {
    CHECK(after_steps(*backend, 8 * 10, 8) == 80.0f);
    CHECK(launched() == 8 * 6);
  }
  SECTION("a signature that comes a few times is not worth a graph") {
    CHECK(after_steps(*backend, 500 * 4, 500) == 2000.0f);
    CHECK(launched() == 0);
  }
  SECTION("many: the graphs that are used least go") {
    CHECK(after_steps(*backend, 12 * 6, 12) == 72.0f);
    CHECK(cusim::stats().executables_peak == 8);
  }
  SECTION("large ones: no more than the memory that counts as the backend's own") {
    cusim::config().graph_node_bytes = 50 << 20;
    const auto live = cusim::stats().device_live;
    CHECK(after_steps(*backend, 8 * 10, 8) == 80.0f);
    CHECK(cusim::stats().device_peak - live < backend->device_overhead());
    CHECK(launched() == 3 * 6);
  }
  SECTION("large ones that come one after another: those that no step uses any more make room") {
    cusim::config().graph_node_bytes = 50 << 20;
    const auto live = cusim::stats().device_live;
    CHECK(after_steps(*backend, 30 * 10, 10, /*each=*/30) == 300.0f);
    CHECK(cusim::stats().device_peak - live < backend->device_overhead());
    CHECK(launched() > 10 * 8);
  }
  SECTION("where no memory is left steps go on without") {
    cusim::config().graph_node_bytes = std::size_t{8} << 30;
    CHECK(after_steps(*backend, 8 * 10, 8) == 80.0f);
    CHECK(launched() == 0);
  }
  CHECK(cusim::stats().executables_live == before.executables_live);
  CHECK(cusim::stats().device_live == before.device_live);
  CHECK(cusim::take_findings().empty());
}

TEST_CASE("where a driver keeps the memory of graphs, those that no step uses any more still make room",
          "[gpu][graphs]") {
  const test::ResetAfter reset_after;
  const auto before = cusim::stats();
  {
    const auto backend = kernels::make_cuda_backend({.threads = 1});
    cusim::config().graph_node_bytes = 50 << 20;
    const auto live = cusim::stats().device_live;
    SECTION("for other graphs, which then take no more") {
      cusim::config().keeps_graph_memory = true;
      CHECK(after_steps(*backend, 30 * 10, 10, /*each=*/30) == 300.0f);
      CHECK(cusim::stats().graphs - before.graphs > 10 * 8);
    }
    SECTION("for ever: then one more is made, and those that are there stay") {
      cusim::config().loses_graph_memory = true;
      CHECK(after_steps(*backend, 30 * 10, 10, /*each=*/30) == 300.0f);
      CHECK(cusim::stats().graphs - before.graphs == 4 * 26);
    }
    CHECK(cusim::stats().device_peak - live < backend->device_overhead());
  }
  CHECK(cusim::stats().executables_live == before.executables_live);
  CHECK(cusim::take_findings().empty());
}

namespace {

/// A stream, memory that ops may use, and waiting for them.
struct Bench {
  Backend& backend;
  std::unique_ptr<kernels::Stream> stream = backend.make_stream();
  std::unique_ptr<kernels::Event> done = backend.make_event();

  void wait() {
    backend.record(*done, *stream);
    backend.synchronize(*done);
  }
  std::unique_ptr<kernels::Memory> device(const kernels::Memory& host) {
    auto memory = backend.allocate_device(host.bytes());
    backend.copy(memory->data(), host.data(), host.bytes(), *stream);
    wait();
    return memory;
  }
};

}  // namespace

TEST_CASE("batch-invariant, a product's row does not depend on where it lies, whatever a row's bytes",
          "[gpu][deterministic]") {
  const test::ResetAfter reset_after;
  cusim::config().products_by_shape = true;
  const auto backend = kernels::make_cuda_backend({.threads = 1, .batch_invariant = true});
  Bench bench{*backend};
  constexpr std::int64_t rows = 6, in = 236, columns = 19;  // 472 bytes of x and 76 of the result: not whole words
  const auto halves = [&](std::int64_t count, unsigned seed) {
    const auto host = backend->allocate_host(static_cast<std::size_t>(count) * sizeof(f16));
    const auto numbers = normal(count, seed);
    for (std::size_t i = 0; i < numbers.size(); ++i) reinterpret_cast<f16*>(host->data())[i] = f16(numbers[i]);
    return bench.device(*host);
  };
  const auto x = halves(rows * in, 1), weight = halves(columns * in, 2);
  const auto out = backend->allocate_device(rows * columns * sizeof(float));
  const auto host = backend->allocate_host(out->bytes());
  const auto multiplied = [&](std::int64_t rows_at_once) {
    for (std::int64_t row = 0; row < rows; row += rows_at_once)
      backend->ops().run(kernels::Linear{.x = ConstView(x->data(), DType::f16, rows, in).slice(row, rows_at_once),
                                         .weight = ConstView(weight->data(), DType::f16, columns, in),
                                         .bias = {},
                                         .out = View(out->data(), DType::f32, rows, columns).slice(row, rows_at_once)},
                         *bench.stream);
    backend->copy(host->data(), out->data(), out->bytes(), *bench.stream);
    bench.wait();
    return std::vector<std::byte>(host->data(), host->data() + host->bytes());
  };
  const auto together = multiplied(rows);
  CHECK(multiplied(1) == together);
  CHECK(multiplied(3) == together);
}

TEST_CASE("sampling takes few atomics on 64 bits, and none without a cut", "[gpu][sampling]") {
  const auto backend = kernels::make_cuda_backend({.threads = 1});
  Bench bench{*backend};
  constexpr int vocab = 5000;
  const auto host = backend->allocate_host(vocab * sizeof(float)), token = backend->allocate_host(sizeof(std::int32_t));
  auto* const logits = reinterpret_cast<float*>(host->data());
  for (int i = 0; i < vocab; ++i) logits[i] = static_cast<float>(i * 7919 % 1000) / 100;
  const auto device = bench.device(*host);
  const auto atomics = [&](const kernels::SampleParams& params) {
    const auto before = cusim::stats().wide_atomics;
    const View rows(device->data(), DType::f32, 1, vocab);
    backend->ops().run(kernels::Sample{.logits = rows,
                                       .params = {&params, 1},
                                       .token = {reinterpret_cast<std::int32_t*>(token->data()), 1},
                                       .logit = {}},
                       *bench.stream);
    bench.wait();
    return cusim::stats().wide_atomics - before;
  };
  CHECK(atomics({.temperature = 1}) == 0);
  CHECK(atomics({.temperature = 1, .top_p = 0.9f}) < 2 * vocab);
  CHECK(atomics({.temperature = 1, .top_k = 50}) < 2 * vocab);
}

TEST_CASE("attention of prompts meets in no bank, and two of its blocks fit the smallest card", "[gpu][prefill]") {
  const auto backend = kernels::make_cuda_backend({.threads = 1});
  Bench bench{*backend};
  const int dim = GENERATE(32, 64, 96, 128);
  constexpr int tokens = 150, heads = 2;
  const auto host = backend->allocate_host(static_cast<std::size_t>(tokens * heads * dim) * sizeof(float));
  std::memset(host->data(), 0, host->bytes());
  const auto q = bench.device(*host), k = bench.device(*host), out = bench.device(*host), lse = bench.device(*host);
  const std::int32_t offsets[] = {0, tokens};
  const View queries(q->data(), DType::f32, tokens, heads * dim), keys(k->data(), DType::f16, tokens, heads * dim),
      outs(out->data(), DType::f32, tokens, heads * dim), sums(lse->data(), DType::f32, heads, tokens);
  const auto before = cusim::stats();
  backend->ops().run(kernels::PrefillAttention{queries, keys, keys, offsets, heads, heads, dim, 1, outs, sums},
                     *bench.stream);
  backend->ops().run(kernels::ColumnSums{queries, keys, sums, offsets, heads, heads, dim, 1, 0, sums}, *bench.stream);
  bench.wait();
  const auto after = cusim::stats();
  CHECK(after.bank_conflicts == before.bank_conflicts);
  REQUIRE(after.blocks > before.blocks);
  // Two thread blocks fit a multiprocessor, which has 64 KiB or, in later chips, more.
  const std::size_t most = cusim::config().architecture < 80 ? 32 << 10 : 64 << 10;
  CHECK((after.shared_bytes - before.shared_bytes) / (after.blocks - before.blocks) <= most);
}

TEST_CASE("a warp with two strips of a prompt gives the bits of one with one", "[gpu][attention]") {
  const test::ResetAfter reset_after;
  const int dim = GENERATE(64, 96, 128);
  const DType dtype = GENERATE(DType::f16, DType::bf16);
  constexpr int tokens = 333, heads = 4, kv_heads = 2;
  const int observation = GENERATE(0, 70);
  CAPTURE(dim, name_of(dtype), observation);
  std::vector<std::vector<float>> results[2];
  std::vector<std::uint64_t> blocks;
  for (const int architecture : {75, 90}) {
    cusim::config().architecture = architecture;
    const auto backend = kernels::make_cuda_backend({.threads = 1});
    Bench bench{*backend};
    const auto host = backend->allocate_host(std::size_t{tokens} * heads * dim * sizeof(float));
    const auto numbers = [&](int cols, DType type, unsigned seed) {
      const auto x = normal(std::int64_t{tokens} * cols, seed);
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (type == DType::f32) reinterpret_cast<float*>(host->data())[i] = x[i];
        else if (type == DType::f16) reinterpret_cast<f16*>(host->data())[i] = f16(x[i]);
        else reinterpret_cast<bf16*>(host->data())[i] = bf16(x[i]);
      }
      auto memory = bench.device(*host);
      bench.wait();
      return memory;
    };
    const auto q = numbers(heads * dim, DType::f32, 1), k = numbers(kv_heads * dim, dtype, 2),
               v = numbers(kv_heads * dim, dtype, 3), out = numbers(1, DType::f32, 4), lse = numbers(1, DType::f32, 4),
               score = numbers(1, DType::f32, 4);
    const std::int32_t offsets[] = {0, 300, tokens};
    const View sums(lse->data(), DType::f32, heads, tokens), scores(score->data(), DType::f32, kv_heads, tokens),
        result(out->data(), DType::f32, tokens, heads * dim);
    const ConstView queries(q->data(), DType::f32, tokens, heads * dim), keys(k->data(), dtype, tokens, kv_heads * dim),
        values(v->data(), dtype, tokens, kv_heads * dim);
    const auto before = cusim::stats().blocks;
    backend->ops().run(
        kernels::PrefillAttention{queries, keys, values, offsets, heads, kv_heads, dim, 0.1f, result, sums},
        *bench.stream);
    backend->ops().run(
        kernels::ColumnSums{queries, keys, sums, offsets, heads, kv_heads, dim, 0.1f, observation, scores},
        *bench.stream);
    bench.wait();
    auto& kept = results[architecture == 90];
    for (const auto& [view, count] :
         {std::pair{result, tokens * heads * dim}, {sums, tokens * heads}, {scores, tokens * kv_heads}}) {
      backend->copy(host->data(), view.data, static_cast<std::size_t>(count) * sizeof(float), *bench.stream);
      bench.wait();
      const auto* const got = reinterpret_cast<const float*>(host->data());
      kept.emplace_back(got, got + count);
    }
    blocks.push_back(cusim::stats().blocks - before);
  }
  CHECK(results[0] == results[1]);
  // A block has twice the rows. Turing's code has no bfloat16 and no two strips.
  if (dtype == DType::f16 && !cusim::config().ptx.ends_with("75")) CHECK(blocks[1] < blocks[0]);
}

TEST_CASE("alike products of one x are one, where their matrices lie at equal distances", "[gpu][linear]") {
  const auto backend = kernels::make_cuda_backend({.threads = 1});
  Bench bench{*backend};
  constexpr int rows = 3, in = 16, out = 8;
  const auto host = backend->allocate_host(64 << 10);
  std::memset(host->data(), 0, host->bytes());
  const auto memory = bench.device(*host);
  // x; three matrices, each with its bias after it; a place for three results.
  const auto at = [&](int bytes) { return memory->data() + bytes; };
  const bool even = GENERATE(true, false);
  std::vector<kernels::LinearGroup::Part> parts;
  for (int p = 0; p < 3; ++p) {
    const int from = 4096 + p * 512 + (even || p < 2 ? 0 : 64), to = 16384 + p * 1024;
    parts.push_back({ConstView(at(from), DType::f16, out, in), ConstView(at(from + out * in * 2), DType::f16, 1, out),
                     View(at(to), DType::f32, rows, out)});
  }
  const auto before = cusim::stats();
  backend->ops().run(kernels::LinearGroup{ConstView(at(0), DType::f32, rows, in), parts}, *bench.stream);
  bench.wait();
  const auto after = cusim::stats();
  CHECK(after.products - before.products == (even ? 1 : 2));
  CHECK(after.kernels - before.kernels == (even ? 2 : 4));  // x and the biases in other types
}

TEST_CASE("the larger the card the more rows fill it", "[gpu]") {
  const test::ResetAfter reset_after;
  const auto rows = [](int multiprocessors) {
    cusim::config().multiprocessors = multiprocessors;
    return kernels::make_cuda_backend({.threads = 1})->rows_that_fill();
  };
  CHECK(rows(4) == 512);
  CHECK(rows(40) == 1024);   // T4
  CHECK(rows(108) == 2048);  // A100
  CHECK(rows(132) == 2048);  // H100
  CHECK(rows(148) == 4096);  // B200
}

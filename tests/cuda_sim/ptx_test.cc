// nvcc's PTX on the CPU: that it computes what the device would, and that each kind of mistake is found.
#include "ptx.h"

#include <cmath>
#include <random>

#include "tests/cuda_sim/ptx_kernels.h"
#include "tests/cuda_sim/support.h"

using namespace weft::test;
using Catch::Contains;

namespace {

const std::string kFolders = WEFT_TEST_PTX;

/// Kernels run as the PTX of one architecture.
struct AsPtx {
  Restore restore;
  explicit AsPtx(int architecture) {
    cusim::reset();
    cusim::config().ptx = kFolders + "/" + std::to_string(architecture);
  }
  ~AsPtx() { cusim::reset(); }
};

std::vector<float> ramp(std::size_t n) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i);
  return values;
}

template <class... P, class... A> std::string findings_of(void (*kernel)(P...), unsigned threads, A&&... args) {
  static_cast<void>(run(kernel, 1, threads, 0, std::forward<A>(args)...));
  std::string all = findings();
  cusim::reset();
  return all;
}

std::vector<std::uint32_t> bits(std::size_t n) {
  std::mt19937 generator(5);
  std::vector<std::uint32_t> values(n);
  for (std::uint32_t& value : values) value = static_cast<std::uint32_t>(generator() >> (generator() % 4 * 8));
  return values;
}

std::vector<std::uint64_t> numbers_of(const std::vector<std::uint32_t>& in) {
  const Device<std::uint32_t> device_in(in);
  const Device<std::uint64_t> out(in.size() / 3 * kNumbers);
  REQUIRE(run(numbers, static_cast<unsigned>(in.size() / 96), 32, 0, device_in.data, out.data) == cudaSuccess);
  CHECK(findings().empty());
  return out.fetch();
}

template <class T> std::vector<T> small_numbers(std::size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<T> values(n);
  for (T& value : values) value = static_cast<T>(static_cast<int>(generator() % 17) - 8);
  return values;
}
std::vector<__half> halves(const std::vector<float>& from) { return std::vector<__half>(from.begin(), from.end()); }

/// a[rows, depth] * b; b[depth, 8] by rows or by columns.
template <class Sum, class T>
std::vector<Sum> product(const std::vector<T>& a, const std::vector<T>& b, std::size_t depth, bool by_columns) {
  std::vector<Sum> c(a.size() / depth * 8);
  for (std::size_t i = 0; i < c.size(); ++i)
    for (std::size_t k = 0; k < depth; ++k)
      c[i] += static_cast<Sum>(a[i / 8 * depth + k]) *
              static_cast<Sum>(by_columns ? b[i % 8 * depth + k] : b[k * 8 + i % 8]);
  return c;
}

}  // namespace

TEST_CASE("PTX computes what the host's compiler made of the source", "[ptx]") {
  const AsPtx as(GENERATE(75, 80, 90));
  const std::vector<std::uint32_t> in = bits(96 * 20);
  const std::vector<std::uint64_t> by_ptx = numbers_of(in);
  cusim::config().ptx.clear();
  const std::vector<std::uint64_t> by_host = numbers_of(in);
  int wrong = 0;
  for (std::size_t i = 0; i < by_ptx.size(); ++i) {
    const auto n = static_cast<int>(i % kNumbers);
    const auto number = [](std::uint64_t word) { return std::bit_cast<float>(static_cast<std::uint32_t>(word)); };
    const float a = number(by_ptx[i]), b = number(by_host[i]);
    const bool same = n < kExact ? by_ptx[i] == by_host[i] : std::abs(a - b) <= 2e-5f * std::max(1.0f, std::abs(b));
    if (!same && ++wrong < 5) {
      CAPTURE(i / kNumbers, n, by_ptx[i], by_host[i], a, b);
      CHECK(same);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("PTX multiplies on tensor cores by the documented fragments", "[ptx]") {
  const AsPtx as(GENERATE(75, 80, 90));
  const std::vector<float> a = small_numbers<float>(256, 1), b = small_numbers<float>(128, 2);
  {
    const Device<__half> device_a(halves(a)), device_b(halves(b));
    const Device<float> c(128);
    const int stride = GENERATE(16, 24);
    REQUIRE(run(multiply_halves, 1, 32, 0, device_a.data, device_b.data, c.data, stride, stride) == cudaSuccess);
    CHECK(c.fetch() == product<float>(a, b, 16, false));
  }
  {
    const std::vector<float> few_a(a.begin(), a.begin() + 128), few_b(b.begin(), b.begin() + 64);
    const Device<__half> device_a(halves(few_a)), device_b(halves(few_b));
    const Device<float> c(128);
    REQUIRE(run(multiply_small_halves, 1, 32, 0, device_a.data, device_b.data, c.data) == cudaSuccess);
    CHECK(c.fetch() == product<float>(few_a, few_b, 8, true));
  }
  const std::vector<std::int8_t> bytes_a = small_numbers<std::int8_t>(512, 3),
                                 bytes_b = small_numbers<std::int8_t>(256, 4);
  const Device<std::int8_t> device_a(bytes_a), device_b(bytes_b);
  const Device<std::int32_t> c(128);
  if (cusim::config().ptx != kFolders + "/75") {
    REQUIRE(run(multiply_bytes, 1, 32, 0, device_a.data, device_b.data, c.data) == cudaSuccess);
    CHECK(c.fetch() == product<std::int32_t>(bytes_a, bytes_b, 32, true));
  }
  const Device<std::int32_t> small(64);
  REQUIRE(run(multiply_small_bytes, 1, 32, 0, device_a.data, device_b.data, small.data) == cudaSuccess);
  const std::vector<std::int8_t> few_a(bytes_a.begin(), bytes_a.begin() + 128),
      few_b(bytes_b.begin(), bytes_b.begin() + 128);
  CHECK(small.fetch() == product<std::int32_t>(few_a, few_b, 16, true));
  CHECK(findings().empty());
}

TEST_CASE("a fragment that is read at a wrong stride is found", "[ptx]") {
  const AsPtx as(80);
  const std::vector<float> a = small_numbers<float>(256, 1), b = small_numbers<float>(128, 2);
  const Device<__half> device_a(halves(a)), device_b(halves(b));
  const Device<float> c(128);
  // Into the padding, which nobody has written; past the tile; and within it, where only the product shows it.
  CHECK_THAT(findings_of(multiply_halves, 32, device_a.data, device_b.data, c.data, 24, 16),
             Contains("uninitialised shared memory") && Contains("ldmatrix") && Contains("ptx_kernels.cu:"));
  CHECK_THAT(findings_of(multiply_halves, 32, device_a.data, device_b.data, c.data, 16, -16),
             Contains("shared memory overrun"));
  CHECK(findings_of(multiply_halves, 32, device_a.data, device_b.data, c.data, 16, 8).empty());
  CHECK(c.fetch() != product<float>(a, b, 16, false));
}

TEST_CASE("a missing barrier is found, whichever warp runs first", "[ptx]") {
  const AsPtx as(GENERATE(75, 80, 90));
  cusim::config().order = GENERATE(cusim::Order::forward, cusim::Order::reverse, cusim::Order::random);
  const Device<float> in(ramp(128)), out(128);
  CHECK(findings_of(neighbours, 128, in.data, out.data, 32, true).empty());
  CHECK(out.fetch()[100] == 4);
  CHECK(findings_of(neighbours, 128, in.data, out.data, 0, false).empty());  // everybody his own
  CHECK_THAT(findings_of(neighbours, 128, in.data, out.data, 32, false),
             Contains("missing barrier") || Contains("uninitialised"));
  CHECK_THAT(findings_of(neighbours, 128, in.data, out.data, 1, false),
             Contains("missing barrier") && Contains("wrote at ptx_kernels.cu"));
  CHECK(findings_of(neighbours_in_warp, 32, in.data, out.data, true).empty());
  CHECK_THAT(findings_of(neighbours_in_warp, 32, in.data, out.data, false), Contains("missing barrier"));
}

TEST_CASE("an asynchronous copy is not there before its wait", "[ptx]") {
  const AsPtx as(GENERATE(80, 90));
  const Device<float> in(ramp(128)), out(128);
  CHECK(findings_of(neighbours_by_copy, 32, in.data, out.data, true).empty());
  CHECK(out.fetch()[3] == 124);
  CHECK_THAT(findings_of(neighbours_by_copy, 32, in.data, out.data, false), Contains("uninitialised shared memory"));
}

TEST_CASE("addresses that are misaligned or out of bounds are found", "[ptx]") {
  const AsPtx as(GENERATE(75, 80, 90));
  const Device<float> in(ramp(132)), out(32);
  CHECK(findings_of(read_vector, 32, in.data, out.data).empty());
  CHECK(out.fetch()[1] == 4 + 5 + 6 + 7);
  CHECK_THAT(findings_of(read_vector, 32, in.data + 1, out.data), Contains("misaligned address"));
  CHECK_THAT(findings_of(read_vector, 32, in.data + 8, out.data),
             Contains("illegal address") && Contains("thread (31,0,0)"));
  CHECK(findings_of(write_at, 32, out.data, 31).empty());
  CHECK_THAT(findings_of(write_at, 32, out.data, 32), Contains("illegal address"));
  CHECK_THAT(findings_of(write_at, 32, out.data, -1), Contains("illegal address"));
  CHECK(findings_of(write_shared_at, 32, out.data, 7).empty());
  CHECK_THAT(findings_of(write_shared_at, 32, out.data, 8), Contains("shared memory overrun"));
  CHECK_THAT(findings_of(write_shared_at, 32, out.data, -1), Contains("shared memory overrun"));
  CHECK(findings_of(read_unwritten, 32, out.data, 32).empty());
  CHECK_THAT(findings_of(read_unwritten, 32, out.data, 31),
             Contains("uninitialised shared memory") && Contains("thread (31,0,0)"));
}

TEST_CASE("lanes that are absent from what they are named in are found", "[ptx]") {
  const AsPtx as(GENERATE(75, 80, 90));
  const Device<int> out(64);
  CHECK(findings_of(shuffle_with_mask, 32, out.data, ~0u).empty());
  CHECK(out.fetch()[6] == 7);
  CHECK_THAT(findings_of(shuffle_with_mask, 32, out.data, 0x7fffffffu),
             Contains("warp mask") && Contains("thread (31,0,0)"));
  CHECK_THAT(findings_of(shuffle_with_mask, 31, out.data, ~0u), Contains("warp mask"));
  CHECK(findings_of(shuffle_lanes_below, 32, out.data, 32).empty());
  CHECK_THAT(findings_of(shuffle_lanes_below, 32, out.data, 31), Contains("warp divergence"));
  CHECK(findings_of(barrier_below, 64, out.data, 64).empty());
  CHECK_THAT(findings_of(barrier_below, 64, out.data, 32), Contains("barrier divergence"));
  CHECK_THAT(findings_of(barrier_below, 64, out.data, 40), Contains("barrier divergence"));
}

TEST_CASE("lanes that part meet again", "[ptx]") {
  const AsPtx as(GENERATE(75, 80, 90));
  std::vector<int> turns(32);
  for (int i = 0; i < 32; ++i) turns[static_cast<std::size_t>(i)] = i * 7 % 31;
  const Device<int> device_turns(turns), out(32), by_host(32);
  CHECK(findings_of(uneven_loops, 32, device_turns.data, out.data).empty());
  cusim::config().ptx.clear();
  CHECK(findings_of(uneven_loops, 32, device_turns.data, by_host.data).empty());
  CHECK(out.fetch() == by_host.fetch());
}

TEST_CASE("what PTX cannot run is refused by name", "[ptx]") {
  const AsPtx as(80);
  const Device<int> out(128);
  CHECK(findings_of(bounded, 64, out.data).empty());
  CHECK_THAT(findings_of(bounded, 65, out.data), Contains("launch bounds"));
  CHECK_THAT(findings_of(sleeps, 32, out.data), Contains("not known") && Contains("nanosleep"));
  cusim::config().ptx = kFolders;
  CHECK_THAT(findings_of(bounded, 64, out.data), Contains("no file of PTX has the kernel") && Contains("bounded"));
}

TEST_CASE("requests to memory are counted", "[ptx]") {
  const AsPtx as(GENERATE(75, 80, 90));
  cusim::config().ptx_counts = true;
  const Device<float> in(ramp(32 * 33)), out(32);
  for (const auto& [stride, sectors, passes] :
       {std::array{1, 4, 1}, std::array{2, 8, 2}, std::array{32, 32, 32}, std::array{33, 32, 1}}) {
    cusim::clear_ptx_counts();
    CHECK(findings_of(columns, 32, in.data, out.data, stride).empty());
    const auto counts = cusim::ptx_counts();
    REQUIRE(counts.size() == 1);
    const cusim::PtxCounts& c = counts.begin()->second;
    CHECK(c.launches == 1);
    CHECK(c.instructions > 5);
    CHECK(c.instructions < 60);
    CHECK(c.global_requests == 2);
    CHECK(c.global_bytes == 2 * 128);
    CHECK(c.sectors == static_cast<unsigned>(sectors) + 4);
    CHECK(c.shared_requests == 2);
    CHECK(c.shared_passes == 2u * static_cast<unsigned>(passes));
    CHECK(c.least_passes == 2);
  }
}

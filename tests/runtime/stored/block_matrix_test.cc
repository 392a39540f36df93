// tests/runtime/stored/block_matrix_test.cc: the blocks of GGUF files against what PyPI's gguf reads out of them
// (scripts/fixtures/make_gguf_golden.py).
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "kernels/error.h"
#include "kernels/quantised.h"
#include "kernels/tensor.h"
#include "runtime/checkpoint/model_files.h"
#include "runtime/gguf/block_format.h"
#include "runtime/stored/stored_matrix.h"
#include "tests/support/files.h"
#include "tests/support/gguf.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;
using Catch::Matchers::Contains;

namespace {

std::vector<float> floats_of(const Checkpoint& checkpoint, const std::string& name) {
  const std::vector<std::byte> bytes = checkpoint.read_tensor(*checkpoint.find(name));
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

}  // namespace

TEST_CASE("GGUF's blocks mean the numbers that gguf reads out of them", "[runtime][gguf]") {
  const Checkpoint checkpoint = Checkpoint::open(data_path("gguf/blocks.gguf"));
  std::size_t formats = 0;
  for (const auto& list : {formats_of_32(), formats_of_256(), formats_with_tables()})
    for (const BlockFormat& format : list) {
      CAPTURE(format.name);
      ++formats;
      const MatrixFormat* const stored = matrix_format(checkpoint, {}, format.name);
      REQUIRE(stored == &kBlocks);
      const auto matrix = stored->open(checkpoint, {}, format.name, 5, 512);
      const std::vector<float> wanted = floats_of(checkpoint, format.name + std::string(".numbers"));
      std::vector<float> numbers;
      matrix->read_numbers(0, 5, numbers);
      CHECK(numbers == wanted);
      matrix->read_numbers(3, 2, numbers);
      CHECK(std::equal(numbers.begin(), numbers.end(), wanted.begin() + 3 * 512));

      StoredLevels rows;
      matrix->read_levels(0, 5, rows);
      CHECK(*std::max_element(rows.levels.begin(), rows.levels.end()) <= (format.type == DType::i4 ? 15 : 255));
      const auto is_fp16 = [](float x) { return static_cast<float>(f16(x)) == x; };
      if (format.exact) {
        CHECK(std::all_of(rows.scales.begin(), rows.scales.end(), is_fp16));
        CHECK(std::all_of(rows.minima.begin(), rows.minima.end(), is_fp16));
      } else {  // what fp16 rounds
        for (const float scale : rows.scales)
          CHECK(std::abs(static_cast<float>(f16(scale)) - scale) <= std::max(std::abs(scale) / 2048, 0x1p-25f));
      }
    }
  CHECK(formats == 16);
  CHECK(block_format_names() ==
        "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, TQ1_0, "
        "TQ2_0, IQ4_NL, IQ4_XS, MXFP4, NVFP4");
}

namespace {

/// The numbers that Weft's memory has for those of a matrix.
std::vector<float> kept_of(const StoredMatrix& matrix) {
  const StoredForm& form = matrix.form();
  const QuantisedLayout layout{form.type, form.group, matrix.rows(), matrix.cols(), form.table};
  std::vector<std::byte> tile(static_cast<std::size_t>(layout.bytes()));
  StoredLevels stored;
  matrix.read_levels(0, matrix.rows(), stored);
  std::vector<GroupScale> scales;
  for (std::size_t i = 0; i < stored.scales.size(); ++i)
    scales.push_back(kernels::rounded_scale(stored.scales[i], stored.minima[i]).value());
  kernels::pack_tile(layout, {stored.levels.data(), scales.data()}, matrix.rows(), tile.data());
  std::vector<float> kept(static_cast<std::size_t>(matrix.rows() * matrix.cols()));
  for (std::int64_t row = 0; row < matrix.rows(); ++row)
    kernels::dequantise_row(layout, tile.data(), row, kept.data() + row * matrix.cols());
  return kept;
}

}  // namespace

TEST_CASE("what memory has of GGUF's blocks is as near to their numbers as the documentation says", "[runtime][gguf]") {
  const Checkpoint checkpoint = Checkpoint::open(data_path("gguf/blocks.gguf"));
  for (const auto& list : {formats_of_32(), formats_of_256(), formats_with_tables()})
    for (const BlockFormat& format : list) {
      CAPTURE(format.name);
      const std::vector<float> wanted = floats_of(checkpoint, format.name + std::string(".numbers"));
      const auto matrix = kBlocks.open(checkpoint, {}, format.name, 5, 512);
      const std::vector<float> kept = kept_of(*matrix);
      double worst = 0;  // of the largest number of its group, and of what a scale below 6e-5 may lose
      const auto size = static_cast<std::size_t>(format.group);
      for (std::size_t group = 0; group < wanted.size(); group += size) {
        double most = 0x1p-25 * 1024 * 32, off = 0;
        for (std::size_t i = group; i < group + size; ++i) {
          most = std::max(most, std::abs(double{wanted[i]}));
          off = larger_error(off, std::abs(double{kept[i]} - double{wanted[i]}));
        }
        worst = larger_error(worst, off / most);
      }
      CHECK((worst > 0) == !format.exact);
      CHECK(worst <= (format.group == 16 && !format.zero ? 1.0 / 512 : 1.0 / 1024));  // Q2_K's minima are large
    }
}

TEST_CASE("a GGUF file's scale that is not finite is refused", "[runtime][gguf]") {
  GgufFile file = tiny_gguf();
  std::string blocks(34 * 2, '\0');
  blocks[34 + 1] = '\x7C';  // the second block's scale is infinite
  file.tensor("x", {32, 2}, 8, blocks);
  const TemporaryFolder folder;
  write_text(folder / "x.gguf", file.bytes());
  const Checkpoint checkpoint = Checkpoint::open(folder / "x.gguf");
  std::vector<float> numbers;
  const auto matrix = kBlocks.open(checkpoint, {}, "x", 2, 32);
  CHECK_NOTHROW(matrix->read_numbers(0, 1, numbers));
  CHECK_THROWS_WITH(matrix->read_numbers(0, 2, numbers), Contains("a scale of row 1 is not finite"));
}

TEST_CASE("levels of 0 in a GGUF file stay 0 where fp16 rounds their scale", "[runtime][gguf]") {
  const Checkpoint checkpoint = Checkpoint::open(data_path("gguf/blocks.gguf"));
  for (const auto& [name, zero] : {std::pair{"Q6_K", 32.0f}, {"IQ4_XS", 128.0f}}) {
    CAPTURE(name);
    const auto matrix = kBlocks.open(checkpoint, {}, name, 5, 512);
    StoredLevels levels;
    matrix->read_levels(0, 5, levels);
    REQUIRE(levels.minima.size() == levels.scales.size());
    for (std::size_t i = 0; i < levels.scales.size(); ++i) {
      CHECK(levels.minima[i] == -zero * levels.scales[i]);
      CHECK(static_cast<float>(f16(levels.minima[i])) == levels.minima[i]);
    }
  }
}

TEST_CASE("a matrix of NVFP4 in a GGUF file may have a scale of its own, and so may each of its experts",
          "[runtime][gguf]") {
  // Two rows of 64: scales 1, 2, 0 and "no number", which counts as 0; all numbers are 1.5 and -6 in turns of 8.
  const std::string row = std::string("\x38\x40\x00\x7F", 4) + std::string(32, '\xF3');
  const auto open = [&](const std::vector<float>& scales, std::uint64_t experts, const std::string& rows) {
    GgufFile file = tiny_gguf();
    std::string bytes;
    for (const float scale : scales) bytes += bytes_of_number(scale);
    if (experts > 0) file.tensor("x.weight", {64, 2 / experts, experts}, 40, rows);
    else file.tensor("x.weight", {64, 2}, 40, rows);
    if (!scales.empty()) file.tensor("x.scale", {scales.size()}, 0, bytes);
    file.tensor("x.input_scale", {1}, 0, bytes_of_number(3.0f));
    return file.bytes();
  };
  const TemporaryFolder folder;
  const auto numbers_of = [&](const std::string& bytes) {
    write_text(folder / "x.gguf", bytes);
    const Checkpoint checkpoint = Checkpoint::open(folder / "x.gguf");
    CHECK(checkpoint.find("x.input_scale") == nullptr);
    std::vector<float> numbers;
    StoredLevels levels;
    const auto matrix = kBlocks.open(checkpoint, {}, "x.weight", 2, 64);
    matrix->read_levels(0, 2, levels);
    CHECK(matrix->form().exact == (checkpoint.find("x.weight.scale") == nullptr));
    CHECK((levels.levels[0] == 3 && levels.levels[8] == 15));
    matrix->read_numbers(0, 2, numbers);
    return std::vector<float>{numbers[0], numbers[8], numbers[16], numbers[32], numbers[48], numbers[64], numbers[72]};
  };
  CHECK(numbers_of(open({}, 0, row + row)) == std::vector<float>{1.5f, -6, 3, 0, 0, 1.5f, -6});
  CHECK(numbers_of(open({0.5f}, 0, row + row)) == std::vector<float>{0.75f, -3, 1.5f, 0, 0, 0.75f, -3});
  CHECK(numbers_of(open({0.5f, 2}, 2, row + row)) == std::vector<float>{0.75f, -3, 1.5f, 0, 0, 3, -12});
  CHECK_THROWS_WITH(numbers_of(open({1, 1, 1}, 0, row + row)),
                    Contains("tensor 'x.weight.scale'") && Contains("2 rows"));
  CHECK_THROWS_WITH(numbers_of(open({INFINITY}, 0, row + row)), Contains("a scale of row 0 is not finite"));
  std::string negative = row;
  negative[1] = '\xB8';  // a scale has no sign
  CHECK_THROWS_WITH(numbers_of(open({}, 0, row + negative)), Contains("a scale of row 1 is not finite"));
}

TEST_CASE("scales of GGUF's small groups that are not finite are refused", "[runtime][gguf]") {
  for (const auto& [type, bytes, at, name] :
       {std::tuple{10u, 84u, 81u, "Q2_K"}, {10u, 84u, 83u, "Q2_K"}, {14u, 210u, 209u, "Q6_K"}}) {
    CAPTURE(name, at);
    GgufFile file = tiny_gguf();
    std::string blocks(2 * bytes, '\1');
    blocks[bytes + at] = '\x7C';  // of the second block: infinite, or no number
    file.tensor("x", {256, 2}, type, blocks);
    const TemporaryFolder folder;
    write_text(folder / "x.gguf", file.bytes());
    const Checkpoint checkpoint = Checkpoint::open(folder / "x.gguf");
    const auto matrix = kBlocks.open(checkpoint, {}, "x", 2, 256);
    StoredLevels levels;
    CHECK_NOTHROW(matrix->read_levels(0, 1, levels));
    CHECK_THROWS_WITH(matrix->read_levels(0, 2, levels), Contains("a scale of row 1 is not finite"));
  }
}

TEST_CASE("a block of zeros in a GGUF file's MXFP4 has a scale that fp16 holds", "[runtime][gguf]") {
  GgufFile file = tiny_gguf();
  const std::string zeros(17, '\0');  // with the smallest scale
  file.tensor("x", {32, 2}, 39, zeros + "\x7F" + std::string(16, '\x21'));
  const TemporaryFolder folder;
  write_text(folder / "x.gguf", file.bytes());
  const Checkpoint checkpoint = Checkpoint::open(folder / "x.gguf");
  StoredLevels levels;
  kBlocks.open(checkpoint, {}, "x", 2, 32)->read_levels(0, 2, levels);
  CHECK(levels.scales == std::vector<float>{0, 0.5f});
  CHECK(levels.minima == std::vector<float>{0, -8});
}

TEST_CASE("a GGUF model in several files is the one in one file", "[runtime][gguf]") {
  const Checkpoint whole = Checkpoint::open(data_path("gguf/llama-mixed.gguf"));
  const auto first = data_path("gguf/llama-parts-00001-of-00003.gguf");
  const Checkpoint parts = Checkpoint::open(first);
  REQUIRE(parts.files().size() == 3);
  REQUIRE(parts.size() == whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    CHECK(parts.tensors()[i].name == whole.tensors()[i].name);
    CHECK(parts.read_tensor(parts.tensors()[i]) == whole.read_tensor(whole.tensors()[i]));
  }
  CHECK_THROWS_WITH(Checkpoint::open(data_path("gguf/llama-parts-00002-of-00003.gguf")),
                    Contains("is part 2 of 3; give the first, whose name ends in -00001-of-00003.gguf"));
  const TemporaryFolder folder;
  std::filesystem::copy_file(first, folder / "x-00001-of-00003.gguf");
  CHECK_THROWS_WITH(Checkpoint::open(folder / "x-00001-of-00003.gguf"), Contains("x-00002-of-00003.gguf"));
  std::filesystem::copy_file(first, folder / "x-00002-of-00003.gguf");
  CHECK_THROWS_WITH(Checkpoint::open(folder / "x-00001-of-00003.gguf"),
                    Contains("says that it is part 1 of 3, wanted 2 of 3"));
  std::filesystem::copy_file(first, folder / "x.gguf");
  CHECK_THROWS_WITH(Checkpoint::open(folder / "x.gguf"), Contains("its name must end in -00001-of-00003.gguf"));
}

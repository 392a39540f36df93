// tests/runtime/checkpoint/stored_matrix_test.cc: matrices that are not stored as plain rows of floats: the blocks of
// GGUF files against what PyPI's gguf reads out of them (scripts/fixtures/make_gguf_golden.py), and numbers of 8 bits.
#include "runtime/checkpoint/stored_matrix.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "kernels/error.h"
#include "kernels/tensor.h"
#include "runtime/checkpoint/model_files.h"
#include "runtime/gguf/block_format.h"
#include "tests/support/files.h"
#include "tests/support/gguf.h"
#include "tests/support/safetensors.h"

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

/// A safetensors file of tensors with the given headers, such as "\"dtype\":\"F32\",\"shape\":[1]", and bytes.
struct Tensor {
  std::string name, header, bytes;
};
std::string safetensors_of(const std::vector<Tensor>& tensors) {
  std::string header, data;
  for (const Tensor& tensor : tensors) {
    header += (header.empty() ? "{" : ",") + ("\"" + tensor.name + "\":{" + tensor.header) + ",\"data_offsets\":[" +
              std::to_string(data.size()) + ",";
    data += tensor.bytes;
    header += std::to_string(data.size()) + "]}";
  }
  return with_length(header + "}", data);
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
  CHECK(formats == 10);
  CHECK(block_format_names() == "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL, MXFP4");
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

TEST_CASE("numbers of 8 bits times their scales", "[runtime]") {
  // 0x38 is 1, 0x39 is 1.125, 0x01 is 2^-9, 0xFE is -448
  const std::int64_t rows = 130, cols = 256;
  std::string numbers(static_cast<std::size_t>(rows * cols), '\x38');
  numbers[0] = '\x39', numbers[1] = '\x01', numbers[2] = '\xFE';
  const std::string shape = "\"dtype\":\"F8_E4M3\",\"shape\":[130,256]";
  const auto read = [&](const std::string& scale_name, const std::string& scale_header,
                        const std::vector<float>& scales, std::int64_t first, std::int64_t count) {
    std::string bytes;
    for (const float scale : scales) bytes += bytes_of_number(scale);
    const TemporaryFolder folder;
    write_text(folder / "model.safetensors",
               safetensors_of(
                   {{"m.weight", shape, numbers}, {"m." + scale_name, "\"dtype\":\"F32\"," + scale_header, bytes}}));
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    const MatrixFormat* const format = matrix_format(checkpoint, {}, "m.weight");
    REQUIRE(format == &kFloat8);
    checkpoint.demand(format->needs(checkpoint, {}, "m.weight", rows, cols));
    std::vector<float> found;
    format->open(checkpoint, {}, "m.weight", rows, cols)->read_numbers(first, count, found);
    return found;
  };
  const auto blocks = read("weight_scale_inv", "\"shape\":[2,2]", {2, 3, 5, 7}, 0, 130);
  CHECK(blocks[0] == 2.25f);
  CHECK(blocks[1] == 2 * 0x1p-9f);
  CHECK(blocks[2] == -896);
  CHECK(blocks[127] == 2);
  CHECK(blocks[128] == 3);
  CHECK(blocks[127 * 256 + 255] == 3);
  CHECK(blocks[128 * 256 + 127] == 5);
  CHECK(blocks[129 * 256 + 128] == 7);
  CHECK(read("weight_scale_inv", "\"shape\":[2,2]", {2, 3, 5, 7}, 127, 2) ==
        std::vector<float>(blocks.begin() + 127 * 256, blocks.begin() + 129 * 256));
  CHECK(read("weight_scale", "\"shape\":[]", {0.5f}, 0, 1)[2] == -224);
  CHECK(read("weight_scale", "\"shape\":[1]", {0.5f}, 129, 1)[0] == 0.5f);
  std::vector<float> each(130);
  for (std::size_t row = 0; row < each.size(); ++row) each[row] = static_cast<float>(row);
  CHECK(read("weight_scale", "\"shape\":[130,1]", each, 128, 2)[256] == 129);
  CHECK_THROWS_WITH(read("weight_scale", "\"shape\":[3]", {1, 2, 3}, 0, 1), Contains("wanted [130]"));
  CHECK_THROWS_WITH(read("other", "\"shape\":[1]", {1}, 0, 1), Contains("'m.weight' is stored as F8_E4M3 without"));
  numbers[5] = '\x7F';
  CHECK_THROWS_WITH(read("weight_scale", "\"shape\":[1]", {1}, 0, 1),
                    Contains("the number at row 0, column 5 is not finite"));
}

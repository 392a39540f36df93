// tests/runtime/stored/stored_matrix_test.cc: matrices of a safetensors file that are not stored as plain rows of
// floats: numbers of 4 and 8 bits.
#include "runtime/stored/stored_matrix.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/error.h"
#include "kernels/quantised.h"
#include "kernels/tensor.h"
#include "runtime/checkpoint/model_files.h"
#include "runtime/gguf/block_format.h"
#include "tests/support/files.h"
#include "tests/support/gguf.h"
#include "tests/support/numbers.h"
#include "tests/support/safetensors.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;
using Catch::Matchers::Contains;

namespace {

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

namespace {

/// A matrix of a safetensors file of `tensors`, whose name is m.weight.
struct Stored {
  TemporaryFolder folder;
  Checkpoint checkpoint;
  std::unique_ptr<StoredMatrix> matrix;

  Stored(const std::vector<Tensor>& tensors, const policy::Quantisation& how, std::int64_t rows, std::int64_t cols)
      : checkpoint([&] {
          write_text(folder / "model.safetensors", safetensors_of(tensors));
          return Checkpoint::open(folder.path());
        }()) {
    const MatrixFormat* const format = matrix_format(checkpoint, how, "m.weight");
    REQUIRE(format);
    checkpoint.demand(format->needs(checkpoint, how, "m.weight", rows, cols));
    matrix = format->open(checkpoint, how, "m.weight", rows, cols);
    matrix->check();
  }
  std::vector<float> numbers(std::int64_t first, std::int64_t count) const {
    std::vector<float> found;
    matrix->read_numbers(first, count, found);
    return found;
  }
};

/// All numbers of E2M1, by their bits.
const std::vector<float> kE2M1{0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0f, -0.5, -1, -1.5, -2, -3, -4, -6};
const std::string kPairs = "\x10\x32\x54\x76\x98\xBA\xDC\xFE";  // these, one after another

std::vector<float> times(float scale, const std::vector<float>& numbers) {
  std::vector<float> found;
  for (const float number : numbers) found.push_back(number * scale);
  return found;
}

}  // namespace

TEST_CASE("MXFP4 is levels of a table, in one tensor for several matrices too", "[runtime]") {
  const policy::Quantisation how{.packing = policy::Quantisation::Packing::mxfp4, .dtype = DType::i4, .group = 32};
  const std::string numbers = kPairs + kPairs + std::string(16, '\x08') + kPairs + kPairs + kPairs + kPairs;
  std::string scales("\x7F\x00\x80\x70", 4);  // 1, of zeros, 2, 2^-15
  const auto wanted = [](const std::vector<float>& found) {
    std::vector<float> twice = kE2M1;
    twice.insert(twice.end(), kE2M1.begin(), kE2M1.end());
    CHECK(std::vector(found.begin(), found.begin() + 32) == twice);
    CHECK(std::vector(found.begin() + 32, found.begin() + 64) == std::vector<float>(32, 0.0f));
    CHECK(std::vector(found.begin() + 64, found.begin() + 96) == times(2, twice));
    CHECK(std::vector(found.begin() + 96, found.end()) == times(0x1p-15f, twice));
  };
  const auto blocks = [&](const std::string& shape, const std::string& of_scales) {
    return std::vector<Tensor>{{"m.weight_blocks", "\"dtype\":\"U8\",\"shape\":" + shape, numbers},
                               {"m.weight_scales", "\"dtype\":\"U8\",\"shape\":" + of_scales, scales}};
  };
  const auto packed = [&](const std::string& type) {
    return std::vector<Tensor>{{"m.weight_packed", "\"dtype\":\"U8\",\"shape\":[2,32]", numbers},
                               {"m.weight_scale", "\"dtype\":\"" + type + "\",\"shape\":[2,2]", scales}};
  };
  for (const auto& tensors : {blocks("[2,2,16]", "[2,2]"), packed("U8"), packed("F8_E8M0")}) {
    const Stored stored(tensors, how, 2, 64);
    wanted(stored.numbers(0, 2));
    const std::vector<float> all = stored.numbers(0, 2), second = stored.numbers(1, 1);
    CHECK(std::equal(second.begin(), second.end(), all.begin() + 64));
    StoredLevels levels;
    stored.matrix->read_levels(0, 2, levels);
    CHECK(levels.scales == std::vector<float>{0.5f, 0, 1, 0x1p-16f});  // fp16 holds them
    CHECK((stored.matrix->form().type == DType::i4 && stored.matrix->form().table == LevelTable::e2m1));
    const auto& table = level_table(LevelTable::e2m1);
    for (std::size_t i = 0; i < all.size(); ++i)
      CHECK(std::fma(levels.scales[i / 32], float(table[levels.levels[i]]), levels.minima[i / 32]) == all[i]);
  }
  wanted(Stored(blocks("[2,1,2,16]", "[2,1,2]"), how, 2, 64).numbers(0, 2));  // two experts of a row each
  CHECK_THROWS_WITH(Stored(blocks("[2,1,2,16]", "[2,2]"), how, 2, 64),
                    Contains("'m.weight_scales' is [2, 2], wanted [2, 1, 2]"));
  CHECK_THROWS_WITH(Stored(blocks("[1,4,16]", "[1,4]"), how, 2, 64), Contains("is [1, 4, 16], wanted [2, 2, 16]"));
  CHECK_THROWS_WITH(Stored(blocks("[4,16]", "[4]"), how, 2, 64), Contains("is [4, 16], wanted [2, 2, 16]"));
  CHECK_THROWS_WITH(Stored(packed("I8"), how, 2, 64), Contains("stored as I8, wanted U8 or F8_E8M0"));
  CHECK_THROWS_WITH(Stored(packed("U8"), how, 2, 48), Contains("rows of 48 numbers do not fill groups of 32"));
  scales[3] = '\xFF';
  CHECK_THROWS_WITH(Stored(packed("U8"), how, 2, 64).numbers(1, 1),
                    Contains("the scale of row 1, group 1 is not a number"));
  scales[3] = '\xFE';
  CHECK_THROWS_WITH(Stored(packed("U8"), how, 2, 64).numbers(0, 2), Contains("a number of row 1 is too large"));
}

TEST_CASE("NVFP4 has two scales, the matrix's as a factor or a divisor", "[runtime]") {
  const policy::Quantisation how{.packing = policy::Quantisation::Packing::nvfp4};
  const auto stored = [&](const char* numbers, const char* of_matrix, float scale, const std::string& groups,
                          const char* shape = "[1]") {
    return Stored({{numbers, "\"dtype\":\"U8\",\"shape\":[2,16]", kPairs + kPairs + kPairs + kPairs},
                   {"m.weight_scale", "\"dtype\":\"F8_E4M3\",\"shape\":[2,2]", groups},
                   {of_matrix, std::string("\"dtype\":\"F32\",\"shape\":") + shape, bytes_of_number(scale)}},
                  how, 2, 32);
  };
  const std::string groups("\x38\x39\x00\xB8", 4);  // 1, 1.125, 0, -1
  const auto check = [](const Stored& matrix, float scale) {
    const std::vector<float> found = matrix.numbers(0, 2);
    CHECK(std::vector(found.begin(), found.begin() + 16) == times(scale, kE2M1));
    CHECK(std::vector(found.begin() + 16, found.begin() + 32) == times(1.125f * scale, kE2M1));
    CHECK(std::vector(found.begin() + 32, found.begin() + 48) == std::vector<float>(16, 0.0f));
    CHECK(std::vector(found.begin() + 48, found.end()) == times(-scale, kE2M1));
    CHECK(matrix.numbers(1, 1) == std::vector(found.begin() + 32, found.end()));
    const StoredForm& form = matrix.matrix->form();
    CHECK((form.type == DType::i4 && form.group == 16 && form.table == LevelTable::e2m1 && !form.exact));
    StoredLevels levels;
    matrix.matrix->read_levels(0, 2, levels);
    const auto& table = level_table(LevelTable::e2m1);
    for (std::size_t i = 0; i < found.size(); ++i)  // fp16 holds these scales
      CHECK(std::fma(levels.scales[i / 16], float(table[levels.levels[i]]), levels.minima[i / 16]) == found[i]);
  };
  check(stored("m.weight_packed", "m.weight_global_scale", 4, groups), 0.25f);
  check(stored("m.weight", "m.weight_scale_2", 4, groups), 4);
  check(stored("m.weight", "m.weight_scale_2", 0.5f, groups, "[]"), 0.5f);
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  for (const float scale : {0.0f, nan, std::numeric_limits<float>::infinity()})
    CHECK_THROWS_WITH(stored("m.weight", "m.weight_scale_2", scale, groups).numbers(0, 1),
                      Contains("m.weight_scale_2': the scale of the matrix is 0, or not finite"));
  CHECK_THROWS_WITH(stored("m.weight_packed", "m.weight_global_scale", 1e-38f, groups).numbers(0, 1),
                    Contains("the scale of row 0, group 0 is not finite"));
  CHECK_THROWS_WITH(stored("m.weight", "m.weight_scale_2", 1, "\x38\x38\x38\x7F").numbers(1, 1),
                    Contains("'m.weight_scale': the scale of row 1, group 1 is not finite"));
  CHECK_THROWS_WITH(stored("m.weight", "m.weight_global_scale", 1, groups),
                    Contains("'m.weight_scale_2' [1] is missing"));
}

TEST_CASE("bitsandbytes' blocks run on from row to row", "[runtime]") {
  const policy::Quantisation how{.packing = policy::Quantisation::Packing::bitsandbytes};
  // 3 rows of 5 numbers in blocks of 4: 4 blocks, the last of 3 numbers. Levels 15 to 1; the first is in a high half.
  const std::string levels = "\xFE\xDC\xBA\x98\x76\x54\x32\x10";
  std::string table, largest;
  for (int i = 0; i < 16; ++i) table += bytes_of_number(float(i));
  for (const float size : {1.0f, 2.0f, 4.0f, 8.0f}) largest += bytes_of_number(size);
  const auto f32 = [](const std::string& shape) { return "\"dtype\":\"F32\",\"shape\":" + shape; };
  const auto u8 = [](std::size_t count) { return "\"dtype\":\"U8\",\"shape\":[" + std::to_string(count) + "]"; };
  const auto with = [&](const std::string& state, std::vector<Tensor> more) {
    more.push_back({"m.weight", "\"dtype\":\"U8\",\"shape\":[8,1]", levels});
    more.push_back({"m.weight.quant_map", f32("[16]"), table});
    more.push_back({"m.weight.quant_state.bitsandbytes__nf4", u8(state.size()), state});
    return Stored(more, how, 3, 5);
  };
  const auto plain = [&](const std::string& state) {
    return with(state, {{"m.weight.absmax", f32("[4]"), largest}}).numbers(0, 3);
  };
  const std::string state = R"({"quant_type":"nf4","blocksize":4,"dtype":"float16","shape":[3,5]})";
  const std::vector<float> wanted{15, 14, 13, 12, 22, 20, 18, 16, 28, 24, 20, 16, 24, 16, 8};
  CHECK(plain(state) == wanted);
  const Stored matrix = with(state, {{"m.weight.absmax", f32("[4]"), largest}});
  CHECK(matrix.numbers(1, 1) == std::vector(wanted.begin() + 5, wanted.begin() + 10));
  CHECK(matrix.numbers(1, 2) == std::vector(wanted.begin() + 5, wanted.end()));

  // The same largest numbers, as bytes: 0.5 + outer * finer.
  std::string finer;
  for (int i = 0; i < 256; ++i) finer += bytes_of_number(float(i) / 2);
  const std::string nested = R"({"quant_type":"nf4","blocksize":4,"dtype":"float16","shape":[3,5],"nested_blocksize":3,
      "nested_dtype":"float32","nested_offset":0.5})";
  std::vector<Tensor> doubled{{"m.weight.absmax", u8(4), "\x01\x03\x07\x05"},
                              {"m.weight.nested_quant_map", f32("[256]"), finer},
                              {"m.weight.nested_absmax", f32("[2]"), bytes_of_number(1.0f) + bytes_of_number(3.0f)}};
  CHECK(with(nested, doubled).numbers(0, 3) == wanted);
  CHECK(with(nested, doubled).numbers(2, 1) == std::vector(wanted.begin() + 10, wanted.end()));
  doubled[2].bytes = bytes_of_number(1.0f) + bytes_of_number(std::numeric_limits<float>::infinity());
  CHECK_NOTHROW(with(nested, doubled).numbers(0, 1));
  CHECK_THROWS_WITH(with(nested, doubled).numbers(2, 1), Contains("nested_absmax': element 1 is not finite"));
  doubled.pop_back();
  CHECK_THROWS_WITH(with(nested, doubled), Contains("'m.weight.nested_absmax' [2] is missing"));

  CHECK_THROWS_WITH(plain(R"({"blocksize":2,"shape":[3,5]})"), Contains("'m.weight.absmax' is [4], wanted [8]"));
  CHECK_THROWS_WITH(plain(R"({"blocksize":0,"shape":[3,5]})"), Contains("'blocksize' must be an integer from 1"));
  CHECK_THROWS_WITH(plain(R"({"blocksize":4,"shape":[5,3]})"), Contains("'shape' must be [3, 5]"));
  CHECK_THROWS_WITH(plain(R"({"blocksize":4})"), Contains("'shape' is missing"));
  CHECK_THROWS_WITH(plain("{"), Contains("quant_state.bitsandbytes__nf4"));
  CHECK_THROWS_WITH(plain(state + std::string(5000, ' ')), Contains("in at most 4096 bytes"));
  CHECK_THROWS_WITH(with(state, {}), Contains("'m.weight.absmax' [4] is missing"));
}

TEST_CASE("levels of NF4 are kept where rows are whole groups, and those of other tables are not", "[runtime]") {
  const policy::Quantisation how{
      .packing = policy::Quantisation::Packing::bitsandbytes, .dtype = DType::i4, .group = 64, .uniform = true};
  constexpr std::array<float, 16> kTable{
      -1,          -0.69619280f, -0.52507305f, -0.39491749f, -0.28444138f, -0.18477343f, -0.09105004f, 0,
      0.07958030f, 0.16093020f,  0.24611230f,  0.33791524f,  0.44070983f,  0.56261700f,  0.72295684f,  1};
  const auto stored = [&](std::int64_t rows, std::int64_t cols, int block, bool other = false) {
    std::string table, largest, levels(static_cast<std::size_t>(rows * cols / 2), '\0');
    for (std::size_t i = 0; i < 16; ++i) table += bytes_of_number(other && i == 3 ? -0.4f : kTable[i]);
    const std::int64_t blocks = (rows * cols + block - 1) / block;
    for (std::int64_t i = 0; i < blocks; ++i) largest += bytes_of_number(kOneOfNf4 * std::ldexp(1.0f, int(i)));
    for (std::size_t i = 0; i < levels.size(); ++i) levels[i] = static_cast<char>((i * 7 % 16) << 4 | i * 5 % 16);
    const std::string state = R"({"quant_type":"nf4","blocksize":)" + std::to_string(block) + R"(,"shape":[)" +
                              std::to_string(rows) + "," + std::to_string(cols) + "]}";
    const auto u8 = [](std::size_t count) { return "\"dtype\":\"U8\",\"shape\":[" + std::to_string(count); };
    return Stored({{"m.weight", u8(levels.size()) + ",1]", levels},
                   {"m.weight.quant_map", "\"dtype\":\"F32\",\"shape\":[16]", table},
                   {"m.weight.absmax", "\"dtype\":\"F32\",\"shape\":[" + std::to_string(blocks) + "]", largest},
                   {"m.weight.quant_state.bitsandbytes__nf4", u8(state.size()) + "]", state}},
                  how, rows, cols);
  };
  for (const int block : {64, 128, 256}) {
    const Stored matrix = stored(3, 128, block);
    const StoredForm& form = matrix.matrix->form();
    CHECK((form.type == DType::i4 && form.group == 64 && form.table == LevelTable::nf4 && !form.exact));
    StoredLevels levels;
    matrix.matrix->read_levels(1, 2, levels);
    const std::vector<float> wanted = matrix.numbers(1, 2);
    CHECK(levels.scales.size() == 4);
    const auto& table = level_table(LevelTable::nf4);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const float scale = levels.scales[i / 64];  // fp16 holds it: the largest number is kOneOfNf4 times as much
      CHECK(std::abs(std::fma(scale, float(table[levels.levels[i]]), levels.minima[i / 64]) - wanted[i]) <=
            0.51f * scale);
      CHECK((levels.levels[i] != 7 || wanted[i] == 0));
    }
  }
  for (const Stored& matrix : {stored(2, 96, 64), stored(2, 128, 32), stored(2, 128, 64, true)})
    CHECK_FALSE(matrix.matrix->has_levels());
}

TEST_CASE("bitsandbytes' rows of signed bytes keep their levels", "[runtime]") {
  const policy::Quantisation how{
      .packing = policy::Quantisation::Packing::bitsandbytes, .dtype = DType::i8, .group = 128, .whole_rows = true};
  const auto stored = [&](float second) {
    return Stored({{"m.weight", "\"dtype\":\"I8\",\"shape\":[2,8]",
                    "\x7F\x81\x80" + std::string(5, '\x01') + "\x02" + std::string(7, '\0')},
                   {"m.SCB", "\"dtype\":\"F32\",\"shape\":[2]", bytes_of_number(127.0f) + bytes_of_number(second)}},
                  how, 2, 8);
  };
  CHECK(stored(63.5f).numbers(0, 2) == std::vector<float>{127, -127, -128, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0});
  StoredLevels levels;
  stored(63.5f).matrix->read_levels(1, 1, levels);
  CHECK(levels.levels == std::vector<std::uint8_t>{130, 128, 128, 128, 128, 128, 128, 128});
  CHECK((levels.scales == std::vector{0.5f} && levels.minima == std::vector{-64.0f}));
  CHECK_THROWS_WITH(stored(std::numeric_limits<float>::quiet_NaN()).numbers(1, 1),
                    Contains("m.SCB': the scale of row 1 is not finite"));
}

TEST_CASE("compressed-tensors' rows of signed bytes keep their levels", "[runtime]") {
  const policy::Quantisation how{.packing = policy::Quantisation::Packing::compressed_tensors,
                                 .dtype = DType::i8,
                                 .group = 128,
                                 .whole_rows = true};
  const auto stored = [&](const std::string& shape) {
    return Stored(
        {{"m.weight", "\"dtype\":\"I8\",\"shape\":[2,8]",
          "\x7F\x81\x80" + std::string(5, '\x01') + "\x02" + std::string(7, '\0')},
         {"m.weight_scale", "\"dtype\":\"F32\",\"shape\":" + shape, bytes_of_number(1.0f) + bytes_of_number(0.5f)}},
        how, 2, 8);
  };
  CHECK(stored("[2,1]").numbers(0, 2) == std::vector<float>{127, -127, -128, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0});
  StoredLevels levels;
  stored("[2,1]").matrix->read_levels(1, 1, levels);
  CHECK(levels.levels == std::vector<std::uint8_t>{130, 128, 128, 128, 128, 128, 128, 128});
  CHECK((levels.scales == std::vector{0.5f} && levels.minima == std::vector{-64.0f}));
  CHECK_THROWS_WITH(stored("[1,2]"), Contains("'m.weight_scale' is [1, 2], wanted [2, 1]"));
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
  CHECK(read("weight_scale_inv", "\"shape\":[1,1]", {4}, 0, 130) == read("weight_scale", "\"shape\":[]", {4}, 0, 130));
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
  CHECK(read("weight_scale", "\"shape\":[2,2]", {2, 3, 5, 7}, 0, 130) == blocks);  // as compressed-tensors names them
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

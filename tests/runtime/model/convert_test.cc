#include "runtime/model/convert.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>

#include "kernels/error.h"
#include "runtime/checkpoint/checkpoint_error.h"
#include "runtime/engine/storage.h"
#include "runtime/model/model_source.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
namespace fs = std::filesystem;

namespace {

const std::atomic<bool> kGoOn{false};

/// The first tensor in which two sources of one model differ, or nothing.
std::string difference(const runtime::ModelSource& a, const runtime::ModelSource& b) {
  for (std::size_t unit = 0; unit < a.units.size(); ++unit) {
    std::vector<std::byte> of_a(a.weights->unit_bytes()[unit]), of_b(b.weights->unit_bytes()[unit]);
    a.weights->make(unit, of_a.data());
    b.weights->make(unit, of_b.data());
    const auto views_a = a.weights->views(unit, of_a.data()), views_b = b.weights->views(unit, of_b.data());
    for (const policy::TensorSpec& tensor : a.units[unit].tensors) {
      const ConstView &x = views_a[static_cast<std::size_t>(tensor.role)],
                      &y = views_b[static_cast<std::size_t>(tensor.role)];
      const auto bytes = static_cast<std::size_t>(x.rows * x.cols) * size_of(x.dtype);
      if (x.dtype != y.dtype || x.rows != y.rows || x.cols != y.cols || std::memcmp(x.data, y.data, bytes) != 0)
        return tensor.name;
    }
  }
  return "";
}

bool one_read_per_unit(const runtime::ModelSource& source) {
  const std::vector<offload::FileId> files(source.checkpoint->files().size());
  for (std::size_t unit = 0; unit < source.units.size(); ++unit)
    if (!source.weights->in_files(unit) || source.weights->parts(unit, files).size() != 1) return false;
  return true;
}

}  // namespace

TEST_CASE("a converted checkpoint holds the same weights, each unit one range of one file", "[runtime]") {
  const std::string name = GENERATE("sharded-bf16", "prenorm-tied-f16", "llama-f32", "neox-sequential-f32",
                                    "qwen2-tied-f16", "llama-sharded-linear-f32", "postnorm-projections-f16");
  const std::string dtype = GENERATE("auto", "float32", "bfloat16");
  CAPTURE(name, dtype);
  const TemporaryFolder folder;
  const fs::path from = data_path("golden") / name, to = folder / "packed";
  const runtime::Converted done = runtime::convert_checkpoint(from, to, dtype, kGoOn);
  const auto original = runtime::open_model(from, dtype, ""), packed = runtime::open_model(to, "auto", "");
  CHECK(done.tensors == packed->checkpoint->size());
  CHECK(done.tensors + done.left_out == original->checkpoint->size());
  CHECK(done.bytes == packed->checkpoint->total_bytes());
  if (dtype == "float32") {  // "auto" makes float16 of it
    CHECK(difference(*original, *runtime::open_model(to, dtype, "")) == "");
  } else {
    CHECK(packed->type == original->type);
    CHECK(difference(*original, *packed) == "");
    CHECK(one_read_per_unit(*packed));
  }
  CHECK_FALSE(fs::exists(folder / "packed.partial"));
}

TEST_CASE("a checkpoint whose matrices lie column by column is refused, and converted", "[runtime]") {
  const TemporaryFolder folder;
  const fs::path from = data_path("torch_bin/transposed"), to = folder / "packed";
  CHECK_THROWS_WITH(runtime::open_model(from, "auto", ""), Catch::Contains("weft convert writes a copy that is"));
  runtime::convert_checkpoint(from, to, "auto", kGoOn);
  const auto original = runtime::open_model(data_path("golden/no-bias-head12-bf16"), "auto", "");
  CHECK(difference(*original, *runtime::open_model(to, "auto", "")) == "");
}

TEST_CASE("the tokenizer's files and the other configuration come along", "[runtime]") {
  const TemporaryFolder folder;
  const fs::path from = folder / "demo", to = folder / "packed", secret = "vocab.json";
  fs::copy(source_path("models/demo"), from);
  fs::permissions(from / secret, fs::perms::owner_read | fs::perms::owner_write);
  runtime::convert_checkpoint(from, to, "auto", kGoOn);
  CHECK(fs::status(to / secret).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  const auto original = runtime::open_model(from, "auto", ""), packed = runtime::open_model(to, "auto", "");
  REQUIRE(packed->tokenizer);
  CHECK(packed->tokenizer->encode("the sea", true) == original->tokenizer->encode("the sea", true));
  CHECK(packed->spec.eos == original->spec.eos);
}

TEST_CASE("what cannot be converted leaves nothing behind", "[runtime]") {
  const TemporaryFolder folder;
  const fs::path from = data_path("golden/prenorm-tied-f16"), to = folder / "packed";
  const std::atomic<bool> stop{true};
  CHECK_THROWS_AS(runtime::convert_checkpoint(from, to, "auto", stop), runtime::Interrupted);
  CHECK_FALSE(fs::exists(to));
  CHECK_FALSE(fs::exists(folder / "packed.partial"));

  CHECK_THROWS_WITH(runtime::convert_checkpoint(folder / "absent", to, "auto", kGoOn),
                    Catch::Contains("no such folder"));
  CHECK_THROWS_WITH(runtime::convert_checkpoint(from, folder / "no/where", "auto", kGoOn),
                    Catch::Contains("there is no folder"));
  CHECK_THROWS_WITH(runtime::convert_checkpoint(from, to, "int8", kGoOn), Catch::Contains("--dtype must be"));
  fs::create_directory(folder / "packed.partial");
  write_text(folder / "packed.partial/notes", "somebody's");
  CHECK_THROWS_WITH(runtime::convert_checkpoint(from, to, "auto", kGoOn),
                    Catch::Contains("was not made by a conversion"));
  write_text(folder / "packed.partial/.weft-convert", "");  // what a killed conversion leaves is removed
  runtime::convert_checkpoint(from, to, "auto", kGoOn);
  fs::create_directory(folder / "again.partial");  // one that was killed before its mark was there
  runtime::convert_checkpoint(from, folder / "again", "auto", kGoOn);
  CHECK_THROWS_WITH(runtime::convert_checkpoint(from, to, "auto", kGoOn), Catch::Contains("exists"));
  CHECK(fs::exists(to / "model.safetensors"));
}

TEST_CASE("a number that float16 does not hold is not converted, and leaves nothing behind", "[runtime]") {
  const TemporaryFolder folder;
  const fs::path from = folder / "large", to = folder / "packed", file = from / "model.safetensors";
  fs::copy(data_path("golden/llama-f32"), from);
  const auto tensors = runtime::Checkpoint::open(from).tensors();
  const auto tensor = std::find_if(tensors.begin(), tensors.end(),
                                   [](const auto& t) { return t.name == "model.layers.1.mlp.down_proj.weight"; });
  const std::int64_t at = 3 * tensor->shape[1] + 2;
  const float large = -1e5f;
  {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(tensor->offset) + 4 * at);
    stream.write(reinterpret_cast<const char*>(&large), sizeof(large));
  }
  const auto said = Catch::Contains(
      "'model.layers.1.mlp.down_proj.weight', row 3, column 2: -1e+05 is too large for "
      "float16; give --dtype bfloat16");
  CHECK_THROWS_WITH(runtime::convert_checkpoint(from, to, "auto", kGoOn), said);
  CHECK_THROWS_AS(runtime::convert_checkpoint(from, to, "auto", kGoOn), DataError);
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
  runtime::convert_checkpoint(from, to, "bfloat16", kGoOn);
  CHECK(difference(*runtime::open_model(from, "bfloat16", ""), *runtime::open_model(to, "auto", "")) == "");
}

namespace {

constexpr policy::WeightFormat kInt4{.dtype = DType::i4, .group = 32};

/// A byte of a file, changed.
void flip(const fs::path& file, std::uint64_t at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(stream.get() ^ 0x10);
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(byte);
}

/// Everything that a run reads of the weights, in the order of the units.
std::string bytes_of_file(const runtime::ModelSource& source) {
  std::string all;
  const std::vector<offload::FileId> files(source.checkpoint->files().size());
  for (std::size_t unit = 0; unit < source.units.size(); ++unit)
    for (const offload::FilePart& part : source.weights->parts(unit, files)) {
      std::string bytes(part.extent.bytes, '\0');
      source.checkpoint->read_range(0, part.extent.offset, std::as_writable_bytes(std::span(bytes)));
      all += bytes;
    }
  return all;
}

}  // namespace

TEST_CASE("a quantised copy holds what a run would make, and is told apart", "[runtime][quantised]") {
  const std::string name = GENERATE("prenorm-tied-f16", "llama-f32", "neox-parallel-f16", "sharded-bf16");
  CAPTURE(name);
  const TemporaryFolder folder;
  const fs::path from = data_path("golden") / name, to = folder / "packed";
  const auto done = runtime::convert_checkpoint(from, to, "auto", kGoOn, true, kInt4);
  const auto packed = runtime::open_model(to, "auto", ""), original = runtime::open_model(from, "auto", "", kInt4);
  CHECK(one_read_per_unit(*packed));
  CHECK_FALSE(packed->packs());
  CHECK(original->packs());
  CHECK(packed->weight_format == kInt4);
  CHECK(done.bytes == packed->weight_bytes());
  const auto made =
      runtime::Weights::to_pack(original->spec, original->units, *original->checkpoint, original->type, kInt4);
  std::string wanted;
  for (std::size_t unit = 0; unit < original->units.size(); ++unit) {
    std::string bytes(made.unit_bytes()[unit], '\0');
    made.make(unit, reinterpret_cast<std::byte*>(bytes.data()));
    wanted += bytes;
  }
  CHECK(bytes_of_file(*packed) == wanted);
  packed->checkpoint->verify(kGoOn);
  for (std::size_t unit = 0; unit < original->units.size(); ++unit) {
    if (original->units[unit].kind != policy::Unit::Kind::attention) continue;
    const auto norm = packed->weights->numbers(unit, policy::Role::norm1_weight);
    CHECK(norm.size() == static_cast<std::size_t>(original->spec.hidden));
    CHECK(norm == original->weights->numbers(unit, policy::Role::norm1_weight));
  }

  CHECK_THROWS_WITH(runtime::open_model(to, "auto", "", policy::WeightFormat{.dtype = DType::i8}),
                    Catch::Contains("is packed as int4 in groups of 32"));
  CHECK_THROWS_WITH(runtime::convert_checkpoint(to, folder / "again", "auto", kGoOn), Catch::Contains("already"));
}

TEST_CASE("damage to a quantised copy is found, wherever it is", "[runtime][quantised]") {
  const TemporaryFolder folder;
  const fs::path to = folder / "packed", file = to / "model.safetensors";
  runtime::convert_checkpoint(data_path("golden/prenorm-tied-f16"), to, "auto", kGoOn, true, kInt4);
  const auto size = fs::file_size(file);
  const auto found = [&] {
    try {
      runtime::open_model(to, "auto", "")->checkpoint->verify(kGoOn);
    } catch (const runtime::CheckpointError&) {
      return true;
    } catch (const DataError&) {  // a header that names other units
      return true;
    }
    return false;
  };
  CHECK_FALSE(found());
  for (const std::uint64_t at :
       {std::uint64_t{9}, std::uint64_t{70}, std::uint64_t{4096}, size / 2, size - 300, size - 13, size - 1}) {
    CAPTURE(at, size);
    flip(file, at);
    CHECK(found());
    flip(file, at);
  }
  fs::resize_file(file, size - 4096);
  CHECK(found());
}

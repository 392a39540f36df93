// What the units of a model hold: random numbers, converted tensors, or ranges of the checkpoint's own files.
#include "runtime/model/weights.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "kernels/error.h"
#include "kernels/machine/mapped_memory.h"
#include "runtime/model/model_source.h"
#include "tests/support/files.h"
#include "tests/support/numbers.h"
#include "tests/support/safetensors.h"

using namespace weft;
using namespace weft::test;
using policy::Role;
using policy::Unit;
using runtime::Checkpoint;
using runtime::Weights;

namespace {

policy::ModelSpec small_model() {
  return policy::model_from_config(
      nlohmann::json::parse(R"({"model_type":"opt","hidden_size":24,"num_hidden_layers":2,"ffn_dim":40,
    "num_attention_heads":3,"vocab_size":301,"max_position_embeddings":30,"tie_word_embeddings":false})"),
      "config.json");
}

float value_at(const ConstView& view, std::int64_t i) {
  switch (view.dtype) {
    case DType::f16: return static_cast<float>(view.as<f16>()[i]);
    case DType::bf16: return static_cast<float>(view.as<bf16>()[i]);
    default: return view.as<float>()[i];
  }
}

std::vector<float> values_of(const ConstView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.rows * view.cols));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_at(view, static_cast<std::int64_t>(i));
  return values;
}

/// Every tensor of the model as numbers, whatever units it is cut into; pieces are joined in order.
std::map<std::string, std::vector<float>> tensors_of(const Weights& weights, const std::vector<Unit>& units,
                                                     const std::function<void(std::size_t, std::byte*)>& load) {
  std::map<std::string, std::vector<float>> tensors;
  for (std::size_t u = 0; u < units.size(); ++u) {
    std::vector<std::byte> block(weights.unit_bytes()[u]);
    load(u, block.data());
    const auto views = weights.views(u, block.data());
    for (const policy::TensorSpec& spec : units[u].tensors) {
      const ConstView& view = views[static_cast<std::size_t>(spec.role)];
      REQUIRE(view.rows == spec.rows);
      REQUIRE(view.cols == spec.cols);
      REQUIRE(static_cast<const std::byte*>(view.data) +
                  spec.elements() * static_cast<std::int64_t>(size_of(view.dtype)) <=
              block.data() + block.size());
      const std::vector<float> values = values_of(view);
      auto& whole = tensors[spec.name];
      whole.insert(whole.end(), values.begin(), values.end());
    }
  }
  return tensors;
}

std::map<std::string, std::vector<float>> made(const Weights& weights, const std::vector<Unit>& units) {
  return tensors_of(weights, units, [&](std::size_t u, std::byte* to) { weights.make(u, to); });
}

/// The same tensors in one unit each, tables whole.
std::vector<Unit> one_tensor_each(const std::vector<Unit>& units) {
  std::vector<Unit> each;
  for (const Unit& unit : units)
    for (const policy::TensorSpec& spec : unit.tensors) {
      if (spec.first_row == 0) each.push_back({.kind = unit.kind, .layer = unit.layer, .tensors = {spec}});
      else each.back().tensors[0].rows += spec.rows;
    }
  return each;
}

/// A number that a checkpoint has in the place of a random one.
struct Planted {
  std::string tensor;
  std::size_t index = 0;
  float number = 0;
};

/// A checkpoint of random numbers, and these numbers as the file's type holds them. `shift`: bytes before the first
/// tensor.
struct Stored {
  TemporaryFolder folder;
  std::map<std::string, std::vector<float>> numbers;

  Stored(const std::vector<Unit>& units, DType dtype, std::size_t shift = 0, const Planted& planted = {}) {
    nlohmann::ordered_json header;
    std::string data;
    if (shift > 0) {
      header["unused"] = {{"dtype", "U8"}, {"shape", {shift}}, {"data_offsets", {0, shift}}};
      data.assign(shift, 'x');
    }
    std::uint64_t seed = 1;
    for (const Unit& unit : one_tensor_each(units)) {
      const policy::TensorSpec& spec = unit.tensors[0];
      std::vector<float> values = rounded(normal(spec.elements(), seed++), dtype);
      if (spec.name == planted.tensor) values[planted.index] = planted.number;
      numbers[spec.name] = values;
      const std::size_t begin = data.size();
      for (const float x : values) {
        const std::uint32_t bits = dtype == DType::f16    ? f16(x).bits
                                   : dtype == DType::bf16 ? bf16(x).bits
                                                          : std::bit_cast<std::uint32_t>(x);
        data.append(reinterpret_cast<const char*>(&bits), size_of(dtype));
      }
      std::vector<std::int64_t> shape{spec.rows, spec.cols};
      if (spec.name.ends_with("bias") || spec.name.find("layer_norm") != std::string::npos) shape = {spec.cols};
      header[(spec.name == "lm_head.weight" ? "" : "model.decoder.") + spec.name] = {
          {"dtype", dtype == DType::f16    ? "F16"
                    : dtype == DType::bf16 ? "BF16"
                                           : "F32"},
          {"shape", shape},
          {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    write_text(folder / "model.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
  }
};

}  // namespace

TEST_CASE("random weights have their mean and deviation", "[runtime]") {
  policy::ModelSpec model = small_model();
  model.hidden = model.embed = 256;
  model.heads = model.kv_heads = 4;
  model.head_dim = 64;
  model.ffn = 1024;
  const std::vector<Unit> units = policy::model_units(model);
  const DType type = GENERATE(DType::f32, DType::f16, DType::bf16);
  const auto tensors = made(Weights(model, units, 7, type), units);
  struct Row {
    const char* name;
    double mean, deviation;
  };
  for (const Row& row : {Row{"layers.0.self_attn.q_proj.weight", 0, 1 / std::sqrt(256.0)},
                         {"layers.1.fc2.weight", 0, 1 / std::sqrt(1024.0)},
                         {"layers.0.fc1.bias", 0, 0.02},
                         {"embed_tokens.weight", 0, 0.02},
                         {"layers.1.final_layer_norm.weight", 1, 0.02}}) {
    CAPTURE(row.name, name_of(type));
    const std::vector<float>& values = tensors.at(row.name);
    const auto n = double(values.size());
    double sum = 0, squares = 0, fourth = 0;
    for (const float x : values) sum += double(x);
    for (const float x : values) {
      const double d = double(x) - sum / n;
      squares += d * d;
      fourth += d * d * d * d;
    }
    const double deviation = std::sqrt(squares / n),
                 step = type == DType::bf16 ? row.mean / 256 : 0;  // around 1 bf16 is coarse
    CHECK(std::abs(sum / n - row.mean) < 5 * row.deviation / std::sqrt(n) + step);
    CHECK(deviation == Approx(row.deviation).epsilon(5 / std::sqrt(2 * n) + (step > 0 ? 0.1 : 0)));
    if (n > 100'000)
      CHECK(fourth / n / std::pow(deviation, 4) == Approx(3).epsilon(0.05));  // the normal distribution's
  }
}

TEST_CASE("random weights depend on seed, tensor and element alone", "[runtime]") {
  const policy::ModelSpec model = small_model();
  const std::vector<Unit> units = policy::model_units(model), each = one_tensor_each(units);
  REQUIRE(units.front().tensors.front().rows < model.vocab);  // the table is in pieces
  const auto cut = made(Weights(model, units, 7, DType::f32), units);
  CHECK(cut == made(Weights(model, each, 7, DType::f32), each));
  const auto other = made(Weights(model, units, 8, DType::f32), units);
  for (const auto& [name, values] : cut) {
    CAPTURE(name);
    CHECK(values != other.at(name));
    for (const auto& [second, others] : cut)
      if (second != name && others.size() == values.size()) CHECK(values != others);
  }
}

TEST_CASE("a checkpoint of the wanted type is its own storage", "[runtime]") {
  const policy::ModelSpec model = small_model();
  const std::vector<Unit> units = policy::model_units(model);
  const auto [stored, type] = GENERATE(table<DType, DType>({{DType::f16, DType::f16},
                                                            {DType::bf16, DType::bf16},
                                                            {DType::f32, DType::f32},
                                                            {DType::f16, DType::f32},
                                                            {DType::bf16, DType::f32}}));
  const Stored file(units, stored, GENERATE(std::size_t{0}, std::size_t{1000}));
  const Checkpoint checkpoint = Checkpoint::open(file.folder.path());
  const Weights weights(model, units, checkpoint, type);
  CAPTURE(name_of(stored), name_of(type));
  const bool aligned = checkpoint.find("model.decoder.embed_tokens.weight")->offset % size_of(stored) == 0;
  CHECK(weights.converts() == !aligned);
  const std::string bytes = read_text(file.folder / "model.safetensors");
  const std::vector<offload::FileId> files(1);
  const auto tensors = tensors_of(weights, units, [&](std::size_t u, std::byte* to) {
    if (!weights.in_files(u)) return weights.make(u, to);
    for (const offload::FilePart& part : weights.parts(u, files)) {
      REQUIRE(part.extent.offset + part.extent.bytes <= bytes.size());
      REQUIRE(part.offset + part.extent.bytes <= weights.unit_bytes()[u]);
      CHECK(part.offset % offload::kPage == part.extent.offset % offload::kPage);  // so that direct reads land in place
      std::memcpy(to + part.offset, bytes.data() + part.extent.offset, part.extent.bytes);
    }
  });
  CHECK(tensors == file.numbers);
}

TEST_CASE("other types are converted with one rounding", "[runtime]") {
  const policy::ModelSpec model = small_model();
  const std::vector<Unit> units = policy::model_units(model);
  const auto [stored, type] = GENERATE(table<DType, DType>(
      {{DType::bf16, DType::f16}, {DType::f32, DType::f16}, {DType::f32, DType::bf16}, {DType::f16, DType::bf16}}));
  const Stored file(units, stored);
  const Checkpoint checkpoint = Checkpoint::open(file.folder.path());
  const Weights weights(model, units, checkpoint, type);
  CAPTURE(name_of(stored), name_of(type));
  CHECK(weights.converts());
  for (std::size_t u = 0; u < units.size(); ++u) CHECK_FALSE(weights.in_files(u));
  for (const auto& [name, values] : made(weights, units)) {
    CAPTURE(name);
    CHECK(values == rounded(file.numbers.at(name), type));
  }
}

TEST_CASE("a number that the wanted type does not hold is refused by tensor, row and column", "[runtime]") {
  const policy::ModelSpec model = small_model();
  const std::vector<Unit> units = policy::model_units(model);
  constexpr std::size_t kRow = 37, kColumn = 5;
  struct Case {
    const char* tensor;
    DType stored, type;
    float number;
    const char* refused;  // null: converted
  };
  const Case c = GENERATE(values<Case>(
      {{"layers.1.fc1.weight", DType::f32, DType::f16, 3e5f, "3e+05 is too large for float16; give --dtype bfloat16"},
       {"layers.1.fc1.weight", DType::f32, DType::f16, -65520, "-65520 is too large for float16"},
       {"layers.1.fc1.weight", DType::f32, DType::f16, 65519.99f, nullptr},
       {"lm_head.weight", DType::bf16, DType::f16, 0x1p17f, "131072 is too large for float16"},
       {"layers.1.fc1.weight", DType::f32, DType::f16, std::numeric_limits<float>::infinity(), nullptr},
       {"layers.1.fc1.weight", DType::f32, DType::bf16, 3.4e38f,
        "3.4e+38 is too large for bfloat16; give --dtype float32"},
       {"layers.1.fc1.weight", DType::f32, DType::bf16, 3e38f, nullptr}}));
  CAPTURE(c.tensor, c.number);
  const Stored file(units, c.stored, 0, {c.tensor, kRow * 24 + kColumn, c.number});
  const Checkpoint checkpoint = Checkpoint::open(file.folder.path());
  const Weights weights(model, units, checkpoint, c.type);
  if (c.refused)
    CHECK_THROWS_WITH(made(weights, units),
                      Catch::Matchers::Contains(std::string(c.tensor) + "', row 37, column 5: " + c.refused));
  else CHECK(made(weights, units).at(c.tensor) == rounded(file.numbers.at(c.tensor), c.type));
}

TEST_CASE("int4 quantises the matrices of layers to 4 bits, what makes the values to 8", "[runtime]") {
  const policy::ModelSpec model = small_model();
  const std::vector<Unit> units = policy::model_units(model);
  const DType dtype = GENERATE(DType::i4, DType::i8);
  const Weights weights(model, units, 1, DType::f16, policy::WeightFormat{.dtype = dtype, .group = 32});
  for (std::size_t u = 0; u < units.size(); ++u)
    for (const policy::TensorSpec& spec : units[u].tensors) {
      CAPTURE(spec.name);
      const bool of_layer = units[u].kind == Unit::Kind::attention || units[u].kind == Unit::Kind::mlp;
      DType wanted = of_layer && spec.form == policy::Form::matrix ? dtype : DType::f16;
      if (spec.role == Role::v_weight) wanted = DType::i8;
      CHECK(weights.tensor_dtype(u, spec.role) == wanted);
    }
}

namespace {

/// Large enough for units of several pieces.
policy::ModelSpec wide_model() {
  return policy::model_from_config(
      nlohmann::json::parse(R"({"model_type":"opt","hidden_size":320,"num_hidden_layers":1,"ffn_dim":1000,
    "num_attention_heads":5,"vocab_size":301,"max_position_embeddings":30,"tie_word_embeddings":false})"),
      "config.json");
}

std::vector<std::byte> made_on(const Weights& weights, std::size_t unit, int threads, std::byte before) {
  std::vector<std::byte> bytes(weights.unit_bytes()[unit], before);
  weights.make(unit, bytes.data(), runtime::kNeverStopped, threads);
  return bytes;
}

}  // namespace

TEST_CASE("a unit has the same bytes on one thread and on many, whatever was in its memory", "[runtime]") {
  const policy::ModelSpec model = wide_model();
  const std::vector<Unit> units = policy::model_units(model);
  const DType dtype = GENERATE(DType::f16, DType::i8, DType::i4);
  std::optional<policy::WeightFormat> format;
  if (is_quantised(dtype)) format = policy::WeightFormat{.dtype = dtype, .group = 64};
  const Stored file(units, DType::f32);
  const Checkpoint checkpoint = Checkpoint::open(file.folder.path());
  for (const Weights& weights :
       {Weights(model, units, 5, DType::f16, format), Weights(model, units, checkpoint, DType::f16, format)})
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      if (weights.in_files(unit)) continue;
      const auto wanted = made_on(weights, unit, 1, std::byte{0xAA});
      for (const int threads : {0, 2, 7}) CHECK(made_on(weights, unit, threads, std::byte{0x55}) == wanted);
    }
}

namespace {

/// Levels and scales of rows and columns that a matrix does not have.
bool clear_beyond(const QuantisedLayout& layout, const std::byte* bytes) {
  bool clear = true;
  const auto zero = [](std::byte byte) { return byte == std::byte{0}; };
  for (std::int64_t row = 0; row < layout.tiles() * 16; ++row)
    for (std::int64_t g = 0; g < layout.groups(); ++g) {
      const std::byte* const group = bytes + row / 16 * layout.tile_bytes() + g * layout.group_bytes();
      if (row >= layout.rows)
        for (const std::int64_t at : {row % 16 * 2, 32 + row % 16 * 2}) clear &= zero(group[at]) && zero(group[at + 1]);
      for (std::int64_t i = row < layout.rows ? std::min<std::int64_t>(layout.group, layout.cols - g * layout.group)
                                              : 0;
           i < layout.group; ++i) {
        const auto place = layout.place(row % 16, i);
        clear &= (std::to_integer<int>(group[64 + place.byte]) >> place.shift & levels_of(layout.dtype)) == 0;
      }
    }
  return clear;
}

}  // namespace

TEST_CASE("quantised random weights have the deviation of plain ones, all levels, and nothing beyond", "[runtime]") {
  const policy::ModelSpec model = wide_model();
  const std::vector<Unit> units = policy::model_units(model);
  const policy::WeightFormat format{.dtype = DType::i4, .group = 64};  // values are made by int8
  const Weights weights(model, units, 5, DType::f16, format), others(model, units, 6, DType::f16, format);
  std::map<std::string, std::vector<std::byte>> all;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    CHECK(weights.quantised_elements(unit) == 0);
    const auto bytes = made_on(weights, unit, 3, std::byte{0x55}), other = made_on(others, unit, 1, std::byte{0});
    for (const policy::TensorSpec& spec : units[unit].tensors) {
      const ConstView view = weights.views(unit, bytes.data())[static_cast<std::size_t>(spec.role)];
      if (!is_quantised(view.dtype)) continue;
      CAPTURE(spec.name, name_of(view.dtype));
      const QuantisedLayout layout = QuantisedLayout::of(view);
      const std::byte* const data = view.as<std::byte>();
      CHECK(clear_beyond(layout, data));
      all[spec.name].assign(data, data + layout.bytes());
      const auto at = static_cast<std::ptrdiff_t>(weights.tensor_offset(unit, spec.role));
      CHECK_FALSE(std::equal(data, data + layout.bytes(), other.begin() + at));
      std::vector<float> meant(static_cast<std::size_t>(spec.cols));
      std::set<float> distinct;
      double sum = 0, squares = 0;
      for (std::int64_t row = 0; row < spec.rows; ++row) {
        kernels::dequantise_row(layout, data, row, meant.data());
        for (const float x : meant) sum += double(x), squares += double(x) * double(x), distinct.insert(x);
      }
      const double n = double(spec.rows * spec.cols), wanted = 1 / std::sqrt(double(spec.cols));
      CHECK(std::abs(sum / n) < 5 * wanted / std::sqrt(n) + wanted / 1000);
      CHECK(std::sqrt(squares / n) == Approx(wanted).epsilon(5 / std::sqrt(2 * n) + 0.001));
      CHECK(distinct.size() > (view.dtype == DType::i4 ? 15U : 200U));
    }
  }
  for (const auto& [name, bytes] : all)
    for (const auto& [second, more] : all) CHECK((name == second || bytes != more));
  const Stored file(units, DType::f16);
  const Checkpoint checkpoint = Checkpoint::open(file.folder.path());
  const Weights stored(model, units, checkpoint, DType::f16, format);
  std::int64_t elements = 0;
  for (std::size_t unit = 0; unit < units.size(); ++unit) elements += stored.quantised_elements(unit);
  CHECK(elements == 4 * 320 * 320 + 2 * 320 * 1000);
}

TEST_CASE("a stop is seen while a unit is made", "[runtime]") {
  policy::ModelSpec model = small_model();
  model.hidden = model.embed = 8192;
  model.ffn = 32768;
  const std::vector<Unit> units = policy::model_units(model);
  const Weights weights(model, units, 1, DType::f16);
  const auto mlp = std::find_if(units.begin(), units.end(), [](const Unit& u) { return u.kind == Unit::Kind::mlp; });
  const auto unit = static_cast<std::size_t>(mlp - units.begin());
  const kernels::MappedMemory memory(weights.unit_bytes()[unit]);  // seconds of work, of which a blink is done
  std::atomic<bool> stop{false};
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    stop = true;
  });
  CHECK_THROWS_AS(weights.make(unit, memory.data(), stop), runtime::Interrupted);
  other.join();
}

TEST_CASE("a checkpoint of another shape is refused by tensor", "[runtime]") {
  policy::ModelSpec model = small_model();
  const Stored file(policy::model_units(model), DType::f16);
  const Checkpoint checkpoint = Checkpoint::open(file.folder.path());
  model.ffn = 48;
  const std::vector<Unit> units = policy::model_units(model);
  using Catch::Matchers::Contains;
  CHECK_THROWS_AS(Weights(model, units, checkpoint, DType::f16), DataError);
  CHECK_THROWS_WITH(Weights(model, units, checkpoint, DType::f16),
                    Contains("layers.0.fc1.weight") && Contains("48") && Contains("40"));
}

TEST_CASE("the head is found under the name of its files and under that of a state_dict", "[runtime]") {
  policy::TensorSpec head;
  head.role = policy::Role::head;
  head.name = "embed_out.weight";
  const auto found = [&](const std::string& stored) {
    const TemporaryFolder folder;
    write_text(folder / "model.safetensors", with_length("{" + stored + "}", "12345678"));
    return stored_name(small_model(), Checkpoint::open(folder.path()), head);
  };
  const std::string file = entry("embed_out.weight", 0, 4, "F32"), memory = entry("lm_head.weight", 4, 8, "F32");
  CHECK(found(file + "," + entry("w", 4, 8, "F32")) == "embed_out.weight");
  CHECK(found(entry("w", 0, 4, "F32") + "," + memory) == "lm_head.weight");
  CHECK(found(file + "," + memory) == "embed_out.weight");
  CHECK(found(entry("w", 0, 8, "F32")) == "embed_out.weight");
}

TEST_CASE("random weights of a config that is quantised take what those of its checkpoint take", "[runtime]") {
  const char* const name = GENERATE("moe-gpt-oss-mxfp4-bf16", "llama-mxfp4-bf16", "llama-gptq-f16", "llama-awq-f16");
  CAPTURE(name);
  const auto folder = data_path("quantised") / name;
  const auto stored = runtime::open_model(folder, "auto", ""),
             random = runtime::open_model(folder / "config.json", "auto", "random:1");
  for (std::size_t u = 0; u < stored->units.size(); ++u)
    if (!stored->weights->in_files(u)) CHECK(stored->weights->unit_bytes()[u] == random->weights->unit_bytes()[u]);
}

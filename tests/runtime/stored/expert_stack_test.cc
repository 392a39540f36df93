// tests/runtime/stored/expert_stack_test.cc: the tensors of one expert in tensors of all experts, in every order in
// which files have them.
#include "runtime/stored/expert_stack.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "runtime/stored/stored_tensor.h"
#include "tests/support/model_config.h"
#include "tests/support/safetensors.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;
using policy::Role;

namespace {

constexpr int kExperts = 3, kHidden = 8, kWidth = 4;

/// A number that says whose it is.
float number(int expert, int part, int row, int col) {
  return static_cast<float>(1000 * expert + 100 * (part + 1) + 10 * row + col);
}

struct Stacked {
  std::string name, shape;
  std::vector<float> numbers;
};
std::string file_of_stacks(const std::vector<Stacked>& stacks) {
  std::string header, data;
  for (const Stacked& stack : stacks) {
    header += std::string(header.empty() ? "{" : ",") + "\"" + stack.name + R"(":{"dtype":"F32","shape":)" +
              stack.shape + R"(,"data_offsets":[)" + std::to_string(data.size()) + ",";
    data.append(reinterpret_cast<const char*>(stack.numbers.data()), stack.numbers.size() * sizeof(float));
    header += std::to_string(data.size()) + "]}";
  }
  return with_length(header + "}", data);
}

/// Numbers in the order of loops over experts, and within over two more sizes.
std::vector<float> filled(int rows, int cols, const std::function<float(int, int, int)>& at) {
  std::vector<float> numbers;
  for (int e = 0; e < kExperts; ++e)
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < cols; ++c) numbers.push_back(at(e, r, c));
  return numbers;
}

policy::ModelSpec model_of(const std::string& type) {
  return from(R"({"model_type":")" + type + R"(","hidden_size":8,"intermediate_size":4,"moe_intermediate_size":4,)" +
              R"("num_attention_heads":2,"num_key_value_heads":1,"head_dim":4,"num_hidden_layers":1,"vocab_size":9,)" +
              R"("num_local_experts":3,"num_experts":3,"num_experts_per_tok":2})");
}

/// The numbers of an expert's tensor, read by two rows at a time.
std::vector<float> numbers_of(const policy::ModelSpec& model, const Checkpoint& checkpoint,
                              const policy::TensorSpec& spec) {
  const StoredTensor stored = stored_tensor(model, spec, checkpoint);
  std::vector<float> all, some;
  for (std::int64_t row = 0; row < spec.rows; row += 2) {
    const std::int64_t rows = std::min<std::int64_t>(2, spec.rows - row);
    if (stored.matrix) stored.matrix->read_numbers(row, rows, some);
    else some = read_floats(checkpoint, *stored.info, (stored.first_row + row) * spec.cols, rows * spec.cols);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

/// Compares every tensor of every expert. `spread`: whether matrices, gate and up are no plain rows of their file.
void check(const std::string& type, const std::vector<Stacked>& stacks, bool spread) {
  CAPTURE(type);
  const TemporaryFolder folder;
  write_text(folder / "model.safetensors", file_of_stacks(stacks));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const policy::ModelSpec model = model_of(type);
  std::vector<TensorNeed> needs;
  int compared = 0;
  for (const policy::Unit& unit : policy::model_units(model))
    for (const policy::TensorSpec& spec : unit.tensors) {
      if (unit.kind != policy::Unit::Kind::experts || !find_stack(model, checkpoint, spec)) continue;
      CAPTURE(spec.name);
      const auto these = needs_of(model, spec, checkpoint);
      needs.insert(needs.end(), these.begin(), these.end());
      const bool down = spec.role == Role::down_weight || spec.role == Role::down_bias;
      const int part = down ? 2 : spec.role == Role::up_weight || spec.role == Role::up_bias ? 1 : 0;
      const bool bias = spec.form == policy::Form::vector;
      std::vector<float> wanted;
      for (int r = 0; r < spec.rows; ++r)
        for (int c = 0; c < spec.cols; ++c)
          wanted.push_back(bias ? -number(spec.of_layer, part, c, 0) : number(spec.of_layer, part, r, c));
      CHECK(numbers_of(model, checkpoint, spec) == wanted);
      CHECK((stored_tensor(model, spec, checkpoint).matrix != nullptr) == (spread && spec.role != Role::down_bias));
      ++compared;
    }
  CHECK(compared >= 3 * kExperts);
  checkpoint.demand(needs);
}

}  // namespace

TEST_CASE("experts are found in a tensor of all of them", "[runtime][experts]") {
  const std::string mlp = "model.layers.0.mlp.experts.", sparse = "model.layers.0.block_sparse_moe.";
  const auto one_after_other =
      filled(2 * kWidth, kHidden, [](int e, int r, int c) { return number(e, r / kWidth, r % kWidth, c); });
  const auto down = filled(kHidden, kWidth, [](int e, int r, int c) { return number(e, 2, r, c); });
  check("qwen3_moe", {{mlp + "gate_up_proj", "[3,8,8]", one_after_other}, {mlp + "down_proj", "[3,8,4]", down}}, false);
  check("granitemoe",
        {{sparse + "input_linear.weight", "[3,8,8]", one_after_other},
         {sparse + "output_linear.weight", "[3,8,4]", down}},
        false);
  // As GGUF files have them.
  const auto gate = filled(kWidth, kHidden, [](int e, int r, int c) { return number(e, 0, r, c); }),
             up = filled(kWidth, kHidden, [](int e, int r, int c) { return number(e, 1, r, c); });
  check("olmoe",
        {{mlp + "*.gate_proj.weight", "[3,4,8]", gate},
         {mlp + "*.up_proj.weight", "[3,4,8]", up},
         {mlp + "*.down_proj.weight", "[3,8,4]", down}},
        false);
  // As gpt-oss has them: columns of gate and up take turns, and there are biases.
  check(
      "gpt_oss",
      {{mlp + "gate_up_proj", "[3,8,8]",
        filled(kHidden, 2 * kWidth, [](int e, int c, int r) { return number(e, r % 2, r / 2, c); })},
       {mlp + "gate_up_proj_bias", "[3,8]",
        filled(1, 2 * kWidth, [](int e, int, int r) { return -number(e, r % 2, r / 2, 0); })},
       {mlp + "down_proj", "[3,4,8]", filled(kWidth, kHidden, [](int e, int c, int r) { return number(e, 2, r, c); })},
       {mlp + "down_proj_bias", "[3,8]", filled(1, kHidden, [](int e, int, int r) { return -number(e, 2, r, 0); })}},
      true);
}

TEST_CASE("experts are read transposed where their shape fits in no other way", "[runtime][experts]") {
  const TemporaryFolder folder;
  write_text(folder / "model.safetensors",
             file_of_stacks({{"model.layers.0.mlp.experts.down_proj", "[3,4,8]",
                              filled(kWidth, kHidden, [](int e, int c, int r) { return number(e, 2, r, c); })}}));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const policy::ModelSpec model = model_of("qwen3_moe");
  int compared = 0;
  for (const policy::Unit& unit : policy::model_units(model))
    for (const policy::TensorSpec& spec : unit.tensors) {
      if (spec.role != Role::down_weight) continue;
      std::vector<float> wanted;
      for (int r = 0; r < kHidden; ++r)
        for (int c = 0; c < kWidth; ++c) wanted.push_back(number(spec.of_layer, 2, r, c));
      checkpoint.demand(needs_of(model, spec, checkpoint));
      CHECK(numbers_of(model, checkpoint, spec) == wanted);
      ++compared;
    }
  CHECK(compared == kExperts);
}

TEST_CASE("a tensor of experts of another shape is refused by name", "[runtime][experts]") {
  const TemporaryFolder folder;
  const std::string name = "model.layers.0.mlp.experts.down_proj";
  write_text(folder / "model.safetensors", file_of_stacks({{name, "[3,5,8]", std::vector<float>(120)}}));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const policy::ModelSpec model = model_of("qwen3_moe");
  for (const policy::Unit& unit : policy::model_units(model))
    for (const policy::TensorSpec& spec : unit.tensors)
      if (spec.role == Role::down_weight)
        CHECK_THROWS_WITH(checkpoint.demand(needs_of(model, spec, checkpoint)),
                          Catch::Contains(name) && Catch::Contains("[3, 8, 4]"));
}

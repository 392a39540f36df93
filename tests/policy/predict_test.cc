// Costs and predictions, against arithmetic by hand.
#include "policy/planner/predict.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "tests/policy/machines.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::policy;
using offload::Lane;
using test::kGiB;
using test::Made;
using test::predicted;

namespace {

Policy policy_of(int size, int batches, Fractions weights, Fractions kv = {}) {
  Policy policy;
  policy.gpu_batch_size = size;
  policy.num_gpu_batches = batches;
  policy.weights = weights;
  policy.kv = kv;
  policy.budgets.bytes = {64 * kGiB, 64 * kGiB, 64 * kGiB};
  return policy;
}

double busy(const Phase& phase, Lane lane) { return phase.busy[static_cast<std::size_t>(lane)]; }

double streamed_bytes(const Made& made) {
  double bytes = 0;
  for (std::size_t u = 0; u < made.units.size(); ++u)
    if (made.units[u].streamed) bytes += double(made.sizing.unit_bytes[u]);
  return bytes;
}

test::Rates without_launches() { return {.launch = 1e-12}; }

}  // namespace

TEST_CASE("predict: a resident model at one sequence reads its weights once a token", "[predict]") {
  const Made made(test::decoder(24, 2048, 32, 50272), 16, 17, 1,
                  test::machine_of(without_launches(), {64 * kGiB, 64 * kGiB, 64 * kGiB}));
  const Prediction result = predicted(made, policy_of(1, 1, {}));
  const double weights = 16 * streamed_bytes(made) / 250e9;  // 2 flop a row for 2 bytes
  CHECK(busy(result.decode, Lane::device_compute) == Approx(weights).epsilon(0.02));
  CHECK(result.decode.seconds == Approx(busy(result.decode, Lane::device_compute)).epsilon(1e-6));
  CHECK(busy(result.decode, Lane::host_to_device) == 0);
  CHECK(result.tokens == 17);
  CHECK(result.tokens_per_second() == Approx(17 / (result.prefill.seconds + result.decode.seconds)));
}

TEST_CASE("predict: weights on the host come over the link once a sweep, whatever the batches", "[predict]") {
  const Made made(test::decoder(24, 2048, 32, 50272), 64, 33, 32,
                  test::machine_of(without_launches(), {64 * kGiB, 64 * kGiB, 64 * kGiB}));
  for (const int batches : {1, 4, 8}) {
    const Prediction result = predicted(made, policy_of(32 / batches, batches, {{0, 1, 0}}));
    const double link = 32 * streamed_bytes(made) / 12e9;
    CHECK(busy(result.decode, Lane::host_to_device) == Approx(link).epsilon(1e-6));
    CHECK(result.decode.seconds >= link * (1 - 1e-9));
    CHECK(result.decode.seconds <= 1.05 * link);  // everything else overlaps with it
    CHECK(result.decode.longest() == Lane::host_to_device);
  }
  Policy serial = policy_of(8, 4, {{0, 1, 0}});
  serial.overlap = false;
  const Prediction result = predicted(made, serial);
  double sum = 0;
  for (const double seconds : result.decode.busy) sum += seconds;
  CHECK(result.decode.seconds == Approx(sum).epsilon(1e-6));
}

TEST_CASE("predict: prompts that fill the device take the weights once a pass, and room for a pass", "[predict]") {
  const Made made(test::decoder(24, 2048, 32, 50272), 512, 33, 32,
                  test::machine_of(without_launches(), {64 * kGiB, 64 * kGiB, 64 * kGiB}));
  const Policy policy = policy_of(8, 4, {{0, 1, 0}});
  const policy::Footprint print = policy::footprint(made.model, made.units, policy, made.work, made.sizing);
  CHECK(print.shape.prefill_batches == 1);
  CHECK(print.prefill_hidden_bytes == 8 * 512 * 2048 * 4);
  CHECK(print.activation_bytes() == print.prefill_hidden_bytes + 3 * print.decode_hidden_bytes);
  CHECK(print.decode_hidden_bytes == 8 * 2048 * 4);
  const Prediction result = predicted(made, policy);
  CHECK(busy(result.prefill, Lane::host_to_device) == Approx(4 * streamed_bytes(made) / 12e9).epsilon(1e-6));
  CHECK(busy(result.decode, Lane::host_to_device) == Approx(32 * streamed_bytes(made) / 12e9).epsilon(1e-6));
  // A pass over weights on the disk would take too long, and sequences that begin amid others' decode need all the
  // room.
  CHECK(policy::footprint(made.model, made.units, policy_of(8, 4, {{0, 0, 1}}), made.work, made.sizing)
            .shape.prefill_batches == 4);
  policy::Workload resumed = made.work;
  resumed.resumes = true;
  CHECK(policy::footprint(made.model, made.units, policy, resumed, made.sizing).decode_hidden_bytes ==
        print.prefill_hidden_bytes);
}

TEST_CASE("predict: prompts that begin in several sweeps take the weights once for each", "[predict]") {
  const Made made(test::decoder(24, 2048, 32, 50272), 512, 33, 8,
                  test::machine_of(without_launches(), {64 * kGiB, 64 * kGiB, 64 * kGiB}));
  Policy policy = policy_of(8, 1, {{0, 1, 0}});
  const Prediction at_once = predicted(made, policy);
  policy.max_batched_tokens = 1024;
  const Prediction two_by_two = predicted(made, policy);
  CHECK(busy(two_by_two.prefill, Lane::host_to_device) == Approx(4 * busy(at_once.prefill, Lane::host_to_device)));
  CHECK(busy(two_by_two.prefill, Lane::device_compute) ==
        Approx(busy(at_once.prefill, Lane::device_compute)).epsilon(0.05));
  policy.max_batched_tokens = 64;  // one by one
  CHECK(busy(predicted(made, policy).prefill, Lane::host_to_device) ==
        Approx(8 * busy(at_once.prefill, Lane::host_to_device)));
}

TEST_CASE("predict: prompts attend at the rate of bfloat16 where weights and KV are of it", "[predict]") {
  const auto prefill = [](DType type, bool measured, std::optional<WeightFormat> format) {
    policy::Machine machine = test::machine_of(without_launches(), {64 * kGiB, 64 * kGiB, 64 * kGiB}, true);
    if (measured) machine.device.prefill_bfloat16.points = {{1, 1, 4 * machine.device.prefill_attention.at(1, 1)}};
    policy::ModelSpec model = test::decoder(24, 2048, 32, 50272);
    model.dtype = type;
    Made made(model, 2000, 17, 1, machine);
    made.sizing.kv = type;
    made.sizing.weight_format = format;
    return busy(predicted(made, policy_of(1, 1, {})).prefill, Lane::device_compute);
  };
  const double slow = prefill(DType::bf16, false, {});
  const double attention = 24 * 32 * 4.0 * 64 * 2000 * 2001 / 2 / 10e12;  // layers x heads x 4 x head_dim x pairs
  CHECK(slow - prefill(DType::bf16, true, {}) == Approx(0.75 * attention).epsilon(1e-3));
  CHECK(prefill(DType::f16, true, {}) == prefill(DType::f16, false, {}));
  const WeightFormat exact{.dtype = DType::bf16, .arithmetic = Arithmetic::exact};
  CHECK(prefill(DType::bf16, true, exact) == prefill(DType::bf16, false, exact));
  WeightFormat levels{.dtype = DType::i4, .group = 32};
  CHECK(prefill(DType::bf16, true, levels) == prefill(DType::bf16, false, levels));
  levels.arithmetic = Arithmetic::bfloat16;
  CHECK(prefill(DType::bf16, true, levels) == Approx(prefill(DType::bf16, true, {})).epsilon(1e-3));
}

TEST_CASE("predict: KV at home on the host, attended there or brought over", "[predict]") {
  const Made made(test::decoder(24, 2048, 32, 50272), 500, 13, 64,
                  test::machine_of(without_launches(), {64 * kGiB, 64 * kGiB, 64 * kGiB}));
  Policy policy = policy_of(16, 4, {}, {{0, 1, 0}});
  const Prediction link = predicted(made, policy);
  policy.attention_on_host = 1;
  const Prediction host = predicted(made, policy);
  const double kv = 12.0 * 24 * 64 * 512 * 2048 * 2 * 2;  // sweeps x layers x sequences x slots x hidden x (k, v) x 2
  CHECK(busy(link.decode, Lane::host_to_device) == Approx(kv / 12e9).epsilon(0.02));
  CHECK(busy(link.decode, Lane::host_compute) == 0);
  CHECK(busy(host.decode, Lane::host_to_device) == 0);
  CHECK(busy(host.decode, Lane::host_compute) == Approx(kv / 60e9).epsilon(0.02));
  CHECK(host.decode.seconds < link.decode.seconds);
}

TEST_CASE("predict: H2O's budget bounds what attention reads, and full contexts grow", "[predict]") {
  const ModelSpec model = test::decoder(24, 2048, 32, 50272);
  const auto machine = test::machine_of(without_launches(), {64 * kGiB, 64 * kGiB, 64 * kGiB});
  const auto core = [&](const char* text) {
    Policy policy = policy_of(64, 1, {});
    policy.retention = Retention::from_text(text);
    const Made made(model, 512, 513, 64, machine, policy.retention);
    return busy(predicted(made, policy).decode, Lane::device_compute);
  };
  Policy none = policy_of(64, 1, {});
  const Made short_one(model, 1, 513, 64, machine, Retention::from_text("recent:1"));
  none.retention = Retention::from_text("recent:1");
  const double rest = busy(predicted(short_one, none).decode, Lane::device_compute);  // all but attention
  const double each = 24 * 64 * 2048 * 2 * 2 / 250e9 * 512;                           // seconds per visible slot
  CHECK(core("full") - rest == Approx(each * (513 + 1024) / 2).epsilon(0.02));
  CHECK(core("recent:204") - rest == Approx(each * 204).epsilon(0.05));
}

TEST_CASE("predict: each layer's slots bound what its attention reads", "[predict]") {
  const auto busy_of = [](const std::string& text, const Fractions& kv) {
    const auto retention = Retention::from_text(text);
    const Made made(test::decoder(4, 2048, 32, 50272), 512, 513, 64,
                    test::machine_of(without_launches(), {64 * kGiB, 64 * kGiB, 64 * kGiB}), retention);
    Policy policy = policy_of(64, 1, {}, kv);
    policy.retention = retention;
    return predicted(made, policy).decode;
  };
  const auto device = [&](const std::string& text) { return busy(busy_of(text, {}), Lane::device_compute); };
  const double alike = device("h2o:100:100"), full = device("full");
  CHECK(device("h2o:100:100:layers=1,1,1,1") == Approx(alike).epsilon(1e-9));
  CHECK(device("h2o:100:100:layers=0.5,1.5,0.9,1.1") == Approx(alike).epsilon(1e-9));
  // One layer in four reads what all of them read of the full cache.
  CHECK(device("h2o:100:100:layers=full,1,1,1") == Approx(0.75 * alike + 0.25 * full).epsilon(0.01));
  const auto link = [&](const std::string& text) { return busy(busy_of(text, {{0, 1, 0}}), Lane::host_to_device); };
  CHECK(link("h2o:100:100:layers=0.5,1.5,0.9,1.1") == Approx(link("h2o:100:100")).epsilon(0.01));
  CHECK(link("h2o:100:100:layers=full,1,1,1") ==
        Approx(0.75 * link("h2o:100:100") + 0.25 * link("full")).epsilon(0.02));
}

TEST_CASE("predict: 4-bit weights are 0.28 of the bytes, and are multiplied at a rate of their own", "[predict]") {
  Made made(test::decoder(24, 2048, 32, 50272), 64, 33, 32,
            test::machine_of(without_launches(), {64 * kGiB, 64 * kGiB, 64 * kGiB}));
  auto& linear = made.machine.device.linear;
  linear[static_cast<std::size_t>(DType::i4)] = linear[static_cast<std::size_t>(DType::f16)];
  for (RateTable::Point& point : linear[static_cast<std::size_t>(DType::i4)].points) point.rate /= 2;
  const Policy policy = policy_of(8, 4, {{0, 1, 0}});
  const Prediction plain = predicted(made, policy);
  double before = 0, after = 0;
  made.sizing.weight_format = WeightFormat{.dtype = DType::i4, .group = 64};
  for (std::size_t u = 0; u < made.units.size(); ++u) {
    if (made.units[u].layer < 0) continue;
    std::uint64_t& bytes = made.sizing.unit_bytes[u];
    before += double(bytes);
    bytes = static_cast<std::uint64_t>(made.units[u].elements()) * 9 / 16;  // 4 bits, a 16th of a scale and a minimum
    after += double(bytes);
  }
  CHECK(after == Approx(0.28125 * before).epsilon(1e-3));
  const Prediction packed = predicted(made, policy);
  CHECK(busy(plain.decode, Lane::host_to_device) - busy(packed.decode, Lane::host_to_device) ==
        Approx(32 * (before - after) / 12e9).epsilon(1e-6));
  CHECK(busy(packed.decode, Lane::device_compute) > 1.5 * busy(plain.decode, Lane::device_compute));
}

TEST_CASE("predict: a GPU unpacks quantised weights once a sweep of many rows and multiplies 16-bit ones",
          "[predict]") {
  Made made(test::decoder(24, 2048, 32, 50272), 64, 33, 32,
            test::machine_of({.flops = 1e15, .launch = 1e-12}, {64 * kGiB, 64 * kGiB, 64 * kGiB}));
  auto& of_int4 = made.machine.device.linear[static_cast<std::size_t>(DType::i4)].points;
  of_int4 = {{1, 1, 1e6}};  // a rate that would be seen
  for (const int batches : {1, 4, 8}) {
    CAPTURE(batches);
    const Policy policy = policy_of(32 / batches, batches, {{0, 1, 0}});
    made.sizing.weight_format.reset();
    made.sizing.unpacked_bytes.clear();
    const Prediction plain = predicted(made, policy);
    made.sizing.weight_format = WeightFormat{.dtype = DType::i4, .group = 64};
    double bytes = 0;
    for (const Unit& unit : made.units) {
      const auto of_unit = unit.layer >= 0 ? static_cast<std::uint64_t>(unit.elements()) * 2 : 0;
      made.sizing.unpacked_bytes.push_back(of_unit);
      bytes += double(of_unit) * (1 + 4.5 / 16);  // written, and read as 4 bits and a 16th of a scale and a minimum
    }
    const auto more = [&](const Prediction& packed, const Phase Prediction::*phase) {
      return busy(packed.*phase, Lane::device_compute) - busy(plain.*phase, Lane::device_compute);
    };
    made.machine.packed_rows = 0;
    const Prediction unpacked = predicted(made, policy);
    CHECK(more(unpacked, &Prediction::prefill) == Approx(bytes / 250e9).epsilon(1e-6));
    CHECK(more(unpacked, &Prediction::decode) == Approx(32 * bytes / 250e9).epsilon(1e-6));
    // Few rows are multiplied by the weights as they lie, which are 4.5 / 16 of the bytes: memory bounds these
    // products.
    made.machine.packed_rows = 32;
    const Prediction packed = predicted(made, policy);
    CHECK(more(packed, &Prediction::prefill) == Approx(bytes / 250e9).epsilon(1e-6));
    double elements = 0;
    for (const Unit& unit : made.units)
      for (const TensorSpec& tensor : unit.tensors)
        if (quantises(unit, tensor)) elements += double(tensor.elements());
    CHECK(more(packed, &Prediction::decode) ==
          Approx(-32 * batches * elements * 2 * (1 - 4.5 / 16) / 250e9).epsilon(1e-3));
    made.machine.packed_rows = 32 / batches - 1;
    CHECK(more(predicted(made, policy), &Prediction::decode) == Approx(32 * bytes / 250e9).epsilon(1e-6));
  }
}

TEST_CASE("predict: products with quantised weights stay below float16's best", "[predict]") {
  const Machine machine = test::machine_of(without_launches(), {64 * kGiB, 64 * kGiB, 64 * kGiB});
  // 20 TFLOP/s at best. In fp16 memory allows 250 GFLOP/s a row, with 4.5 bits for each 16 it allows 889: up to 22
  // rows.
  CHECK(machine.linear_packed(4.5, 1, 2048) == Approx(250e9 * 16 / 4.5));
  CHECK(machine.linear_packed(4.5, 16, 2048) == Approx(16 * 250e9 * 16 / 4.5));
  CHECK(machine.linear_packed(8.5, 32, 2048) == Approx(32 * 250e9 * 16 / 8.5));
  CHECK(machine.linear_packed(4.5, 32, 2048) == Approx(20e12));
  CHECK(machine.linear_packed(4.5, 64, 2048) == Approx(20e12));
}

TEST_CASE("predict: requests beyond whole blocks are counted, and sequences that end early", "[predict]") {
  Made made(test::decoder(4, 512, 8, 2000), 32, 20, 25,  // slow products, so that every row counts
            test::machine_of({.flops = 1e10}, {64 * kGiB, 64 * kGiB, 64 * kGiB}));
  Policy policy = policy_of(10, 1, {});
  policy.continuous = false;
  const Prediction result = predicted(made, policy);
  CHECK(result.blocks == 3);
  CHECK(result.tokens == 500);
  CHECK(result.seconds > 2 * (result.prefill.seconds + result.decode.seconds));
  CHECK(result.seconds < 3 * (result.prefill.seconds + result.decode.seconds));
  made.work.groups = {{25, 32, 10, 25}};
  CHECK(predicted(made, policy).tokens == 250);
  CHECK(predicted(made, policy).seconds < result.seconds);
}

TEST_CASE("predict: a block that is refilled is never slower, and faster where sequences end early", "[predict]") {
  Made made(test::decoder(4, 512, 8, 2000), 32, 20, 200,
            test::machine_of(without_launches(), {64 * kGiB, 64 * kGiB, 64 * kGiB}));
  Policy policy = policy_of(10, 2, {{0, 1, 0}});
  const auto seconds = [&](bool continuous) {
    policy.continuous = continuous;
    return predicted(made, policy).seconds;
  };
  CHECK(seconds(true) <= 1.01 * seconds(false));
  made.work.groups = {{8, 32, 20, 8}, {192, 32, 7.5, 192}};
  CHECK(seconds(true) < 0.8 * seconds(false));
  policy.continuous = true;
  CHECK(predicted(made, policy).tokens == 1600);
}

TEST_CASE("predict: answers of one token, whose places are filled again and again", "[predict]") {
  Made made(test::decoder(4, 512, 8, 2000), 32, 1, 25'000,
            test::machine_of(without_launches(), {64 * kGiB, 64 * kGiB, 64 * kGiB}));
  const auto rate = [&](int size, int batches) {
    Policy policy = policy_of(size, batches, {{0, 1, 0}});
    policy.continuous = true;
    return predicted(made, policy).tokens_per_second();
  };
  CHECK(std::isfinite(rate(12, 2)));
  CHECK(rate(12, 2) > 0);
  CHECK(rate(64, 8) > rate(12, 2));  // one pass over the weights serves more of them
}

TEST_CASE("simulate: lanes that get in each other's way share their time", "[predict]") {
  Schedule schedule;
  schedule.ops.push_back({.kind = Op::Kind::load, .lane = Lane::disk_read});
  schedule.ops.push_back({.kind = Op::Kind::store, .lane = Lane::disk_write});
  Together together;
  for (auto& row : together) row.fill(1);
  const auto seconds = [](const Op& op, bool) { return op.lane == Lane::disk_read ? 3.0 : 1.0; };
  CHECK(simulate(schedule, seconds, together).seconds() == Approx(3));
  together[0][1] = 0.5;
  together[1][0] = 0.25;
  // The write takes 4 s while the read runs too. The read does 2 s of its work meanwhile, and the last second alone.
  const Trace trace = simulate(schedule, seconds, together);
  CHECK(trace.spans[1].end == Approx(4));
  CHECK(trace.spans[0].end == Approx(5));
}

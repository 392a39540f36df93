// Layers that attend to keys and values of an earlier layer: where these lie once, and where each layer has its own.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/job/kv_rows.h"
#include "runtime/model/model_source.h"
#include "tests/runtime/engine/slot_records.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using runtime::SlotRecords;

namespace {

struct Record {
  std::vector<std::byte> bytes;
  std::uint32_t slots = 0;
  bool operator==(const Record&) const = default;
};

policy::PartialPolicy policy_with(const std::string& retention, const policy::KvFormat& format,
                                  const policy::Fractions& kv) {
  policy::PartialPolicy policy;
  policy.gpu_batch_size = 3, policy.num_gpu_batches = 2;
  policy.weights = policy.activations = policy::Fractions{};
  policy.kv = kv, policy.kv_format = format;
  policy.attention_on_host = 0;
  policy.retention = policy::Retention::from_text(retention);
  return policy;
}

constexpr std::int64_t kCompared = 2;  // of each gpu batch's three

/// Prompts of several lengths, the longest of which is longer than a sliding window. What is compared ends before its
/// gpu batch, whose last sweep need not be stored.
std::vector<Prompt> prompts_past_window(int vocab) {
  std::vector<Prompt> prompts(6);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    for (std::size_t t = 0; t < 5 + 9 * (i % 3); ++t)
      prompts[i].ids.push_back(static_cast<std::int32_t>((7 * t + 13 * i) % static_cast<std::size_t>(vocab - 4) + 4));
    prompts[i].tokens = i % 3 < kCompared ? 12 + static_cast<std::int64_t>(i % 2) : 20;
  }
  return prompts;
}

/// Clears the rows of slots without a token, which have no meaning.
void clear_empty(Record& record, const offload::KvShape& shape) {
  const auto parts = shape.with_rows().parts();
  const auto heads = static_cast<std::size_t>(shape.kv_heads), slots = std::size_t{record.slots};
  std::byte* const bytes = record.bytes.data();
  for (std::size_t slot = 0; slot < heads * slots; ++slot) {
    std::int32_t position = 0;
    std::memcpy(&position, bytes + positions_in_record(shape, slots) + slot * sizeof position, sizeof position);
    if (position >= 0) continue;
    std::fill_n(bytes + slot * parts[0].bytes, parts[0].bytes, std::byte{0});
    std::fill_n(bytes + heads * slots * parts[0].bytes + slot * parts[1].bytes, parts[1].bytes, std::byte{0});
  }
}

/// What every layer holds for the sequences that are compared, in order.
std::vector<Record> records(runtime::Session& session) {
  SlotRecords rows(session.storage(), session.footprint(), session.backend());
  std::vector<Record> all;
  for (const SlotRecords::Run& run : SlotRecords::runs(session.footprint()))
    for (int batch = 0; batch < 2; ++batch)
      for (std::int64_t sequence = 0; sequence < kCompared; ++sequence) {
        Record record;
        const auto bytes = rows.read(run, batch, sequence, record.slots);
        record.bytes.assign(bytes.begin(), bytes.end());
        clear_empty(record, session.footprint().kv_runs(run.layer)[static_cast<std::size_t>(run.run)]);
        all.push_back(std::move(record));
      }
  return all;
}

/// Puts them into the buffers of another run.
void restore(runtime::Session& session, const std::vector<Record>& all) {
  SlotRecords rows(session.storage(), session.footprint(), session.backend());
  std::size_t next = 0;
  for (const SlotRecords::Run& run : SlotRecords::runs(session.footprint()))
    for (int batch = 0; batch < 2; ++batch) {
      rows.open(run.layer, batch, false);
      for (std::int64_t sequence = 0; sequence < kCompared; ++sequence, ++next)
        REQUIRE(rows.write(run.run, sequence, {.hot = all[next].slots}, all[next].bytes));
      rows.close();
    }
}

}  // namespace

TEST_CASE("keys and values that layers share lie once on the device, and records are those of a copy for each layer",
          "[runtime]") {
  const auto [name, format] =
      GENERATE(table<std::string, policy::KvFormat>({{"gemma4-slides-shared-bf16", {}},
                                                     {"gemma4-slides-shared-f32", {}},
                                                     {"gemma4-slides-shared-f32", policy::KvFormat::of(DType::i8)},
                                                     {"gemma4-slides-shared-bf16", policy::KvFormat::of(DType::i4)}}));
  if (on_gpu() && !exhaustive() && (name == "gemma4-slides-shared-bf16") == format.dtype.has_value()) return;
  CAPTURE(name, format.dtype.has_value());
  const TemporaryFolder spill;
  const auto source = runtime::open_model(data_path("golden") / name, "auto", "");
  const auto engine_of = [&](const std::string& retention, const policy::Fractions& kv) {
    return std::make_unique<Engine>(
        *source, policy_with(retention, format, kv), prompts_past_window(source->spec.vocab),
        runtime::MachineOptions{.backend = backend_name(), .disk_directory = spill.path().string()});
  };
  const auto lent = engine_of("full", {});
  const std::vector<Answer> answers = lent->run();
  const auto& print = lent->session().footprint();
  for (int layer = 0; layer < source->spec.layers; ++layer) {
    const bool shares = source->spec.shares_kv(layer);
    CHECK(print.kv_runs(layer).front().lent == shares);
    CHECK(print.lender(layer) == (shares ? source->spec.kv_source(layer) : layer));
  }
  const auto held = records(lent->session());
  for (const policy::Fractions& kv : {policy::Fractions{{0, 1, 0}}, policy::Fractions{{0.4, 0.3, 0.3}}}) {
    CAPTURE(kv.device());
    const auto own = engine_of("full", kv);
    const std::vector<Answer> same = own->run();
    CHECK(own->session().footprint().kv_bytes() > print.kv_bytes());
    for (std::size_t i = 0; i < answers.size(); ++i) CHECK(difference(answers[i], same[i]).empty());
    CHECK(records(own->session()) == held);
    CHECK(SlotRecords::kind(own->session().footprint()) == SlotRecords::kind(print));
    // A run that goes on from records of the other kind.
    restore(own->session(), held);
    CHECK(records(own->session()) == held);
    restore(lent->session(), records(own->session()));
    CHECK(records(lent->session()) == held);
  }
  // Layers that choose among their tokens choose for themselves.
  CHECK(engine_of("h2o:0.2:0.2", {})->session().footprint().kv_lender.empty());
}

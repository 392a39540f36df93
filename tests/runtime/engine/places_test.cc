// The places of a block in random jobs whose prompts begin alike, with a shadow of what every slot holds.
#include "runtime/engine/places.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>

using namespace weft;
using runtime::Finish;
using runtime::Places;
using runtime::Sequence;

namespace {

using Ids = std::vector<std::int32_t>;

struct Drawn {
  Ids ids;
  std::int64_t prefix = 0, answer = 0;
};

/// Prompts over beginnings of which some begin as others do, in any order or as a job has them.
std::vector<Drawn> draw_prompts(std::mt19937& random) {
  const auto between = [&](int a, int b) { return a + static_cast<int>(random() % static_cast<unsigned>(b - a + 1)); };
  const auto more = [&](Ids ids, int count) {
    for (int i = 0; i < count; ++i) ids.push_back(between(10, 3000));
    return ids;
  };
  const Ids common = more({}, between(0, 1) * between(64, 150));
  std::vector<Ids> beginnings;
  for (int i = between(1, 6); i > 0; --i) {
    Ids from = more(common, between(40, 350));
    beginnings.push_back(from);
    for (int longer = between(0, 4); longer > 0; --longer) {
      beginnings.push_back(more(from, between(5, 120)));
      if (between(0, 1) == 0) from = beginnings.back();
    }
  }
  std::vector<Drawn> prompts;
  const bool equally_long = between(0, 1) == 0;
  for (int i = between(10, 200); i > 0; --i) {
    const Ids& from = beginnings[static_cast<std::size_t>(between(0, static_cast<int>(beginnings.size()) - 1))];
    Drawn prompt{.ids = from, .answer = equally_long ? 2 : between(1, 12)};
    const int kind = between(0, 9);  // 1: the beginning itself
    if (kind == 0) prompt.ids = more({}, between(1, 60));
    else if (kind == 2) prompt.ids.resize(static_cast<std::size_t>(between(1, static_cast<int>(from.size()))));
    else if (kind > 2) prompt.ids = more(from, between(1, 12));
    prompts.push_back(prompt);
  }
  if (between(0, 2) > 0) std::sort(prompts.begin(), prompts.end(), [](auto& a, auto& b) { return a.ids < b.ids; });
  for (Drawn& one : prompts)
    for (const Drawn& other : prompts) {
      if (&one == &other) continue;
      const auto end = one.ids.begin() + static_cast<std::ptrdiff_t>(std::min(one.ids.size(), other.ids.size()));
      const std::int64_t alike = std::mismatch(one.ids.begin(), end, other.ids.begin()).first - one.ids.begin();
      one.prefix = std::min(std::max(one.prefix, alike), static_cast<std::int64_t>(one.ids.size()) - 1);
    }
  return prompts;
}

bool begins_with(const Ids& ids, const Ids& with, std::int64_t count) {
  return static_cast<std::int64_t>(std::min(ids.size(), with.size())) >= count &&
         std::equal(with.begin(), with.begin() + count, ids.begin());
}

}  // namespace

TEST_CASE("places: slots have the prefixes that are taken from them, and a sweep has no more rows than room",
          "[runtime]") {
  std::mt19937 random(GENERATE(range(1u, 61u)));
  const std::vector<Drawn> prompts = draw_prompts(random);
  std::int64_t longest = 0, longest_prefix = 0;
  for (const Drawn& prompt : prompts) {
    longest = std::max(longest, static_cast<std::int64_t>(prompt.ids.size()));
    longest_prefix = std::max(longest_prefix, prompt.prefix);
  }
  const int size = 2 + static_cast<int>(random() % 38), batches = 1 + static_cast<int>(random() % 2);
  const Places::Shape shape{.gpu_batch_size = size,
                            .num_gpu_batches = batches,
                            .admitted_tokens = std::int64_t{64} << random() % 5,
                            .first_tokens = std::int64_t{64} << random() % 5,
                            .prefix_tokens = longest_prefix,
                            .prefix_step = random() % 2 == 0 ? 1 : 64,
                            .finds_alike = true,
                            .holds_prefixes = true};
  std::size_t next = 0;
  const auto begin = [&](Sequence& place) {
    const Drawn& prompt = prompts[next++];
    place = {};
    place.tokens = prompt.ids, place.prompt_tokens = static_cast<std::int64_t>(prompt.ids.size());
    place.prefix_tokens = prompt.prefix, place.max_tokens = prompt.answer, place.keep = {{kernels::Keep{}}};
  };
  std::vector<Sequence> block(std::min(prompts.size(), static_cast<std::size_t>(size * batches)));
  for (Sequence& place : block) begin(place);
  const runtime::Waiting waiting{.count = static_cast<std::int64_t>(prompts.size() - block.size()), .next = begin};
  Places places(shape, block, waiting);

  std::map<std::pair<int, std::int32_t>, Ids> slots;
  std::int64_t answered = 0, held = 0, alike = 0;
  for (int sweep = 0; places.any_alive() && sweep < 2000; ++sweep)
    for (int b = 0; b < batches; ++b) {
      if (!places.alive(b)) continue;
      places.gather(b, sweep == 0);
      const runtime::BatchRows& rows = places.rows(b);
      const std::span<Sequence> all = places.batch(b);
      const std::int64_t room =
          sweep == 0 ? std::max(shape.first_tokens, longest) : size + shape.admitted_tokens + longest;
      CHECK(rows.rows() <= room);
      const auto slots_of = [&](std::int32_t place) -> Ids& { return slots[{b, place}]; };
      for (std::size_t row = 0; row < rows.alike.size(); ++row) {
        const auto [place, count] = rows.alike[row];
        if (!begins_with(slots_of(place), slots_of(rows.sequence[row]), count)) FAIL("alike names other slots");
        if (place != rows.sequence[row]) ++alike;
      }
      // Prompts are written in the order of their rows, and a prefix is taken right before the first that has it.
      auto prefix = rows.prefixes.begin();
      for (std::int64_t s = rows.begun; s < rows.own(); ++s) {
        const Sequence& sequence = all[static_cast<std::size_t>(rows.sequence[static_cast<std::size_t>(s)])];
        if (prefix != rows.prefixes.end() && prefix->first == s && prefix->held_in >= 0) {
          if (!begins_with(slots_of(prefix->held_in), sequence.tokens, prefix->tokens)) FAIL("no such prefix is held");
          ++held;
        }
        const bool shares = prefix != rows.prefixes.end() && prefix->first <= s;
        const std::int64_t own =
            rows.offsets[static_cast<std::size_t>(s) + 1] - rows.offsets[static_cast<std::size_t>(s)];
        if (own + (shares ? prefix->tokens : 0) != sequence.prompt_tokens) FAIL("rows are not those of the prompt");
        slots_of(rows.sequence[static_cast<std::size_t>(s)]) = sequence.tokens;
        if (shares && prefix->last == s + 1) ++prefix;
      }
      for (std::int64_t s = rows.own(); s < rows.live(); ++s) {
        const std::int32_t place = rows.sequence[static_cast<std::size_t>(s)];
        slots_of(place) = all[static_cast<std::size_t>(place)].tokens;
      }
      for (const std::int32_t place : rows.sequence) {
        Sequence& sequence = all[static_cast<std::size_t>(place)];
        sequence.tokens.push_back(7);
        if (sequence.generated() < sequence.max_tokens) continue;
        sequence.finish = Finish::length, sequence.tokens.clear();  // as one whose answer is being written
        places.finished(b), ++answered;
      }
    }
  CHECK(answered == static_cast<std::int64_t>(prompts.size()));
  if (waiting.count > size) CHECK(held > 0);
  if (size > 9) CHECK(alike > 0);
}

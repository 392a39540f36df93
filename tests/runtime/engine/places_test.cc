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

/// Prompts over a tree of beginnings, in the order of a job: those that begin alike are neighbours, mostly.
std::vector<Drawn> draw_prompts(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto more = [&](Ids& ids, int count) {
    for (int i = 0; i < count; ++i) ids.push_back(below(1000));
  };
  std::vector<Ids> beginnings(1);
  for (int i = 0; i < 5; ++i) {
    Ids longer = beginnings[static_cast<std::size_t>(below(static_cast<int>(beginnings.size())))];
    more(longer, 20 + below(120));
    beginnings.push_back(longer);
  }
  std::vector<Drawn> prompts;
  for (int i = 0; i < 120; ++i) {
    Drawn prompt{.ids = beginnings[static_cast<std::size_t>(below(6))], .answer = 1 + below(5)};
    more(prompt.ids, 1 + below(i % 7 == 0 ? 90 : 9));
    prompts.push_back(prompt);
    if (below(8) == 0) prompts.push_back(prompts.back());  // an equal one
  }
  if (below(4) > 0)
    std::sort(prompts.begin(), prompts.end(), [](const auto& a, const auto& b) { return a.ids < b.ids; });
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
  std::mt19937 random(GENERATE(range(1u, 21u)));
  const std::vector<Drawn> prompts = draw_prompts(random);
  std::int64_t longest = 0, longest_prefix = 0;
  for (const Drawn& prompt : prompts) {
    longest = std::max(longest, static_cast<std::int64_t>(prompt.ids.size()));
    longest_prefix = std::max(longest_prefix, prompt.prefix);
  }
  const int size = 1 + static_cast<int>(random() % 30), batches = 1 + static_cast<int>(random() % 3);
  const Places::Shape shape{.gpu_batch_size = size,
                            .num_gpu_batches = batches,
                            .admitted_tokens = 64 + static_cast<std::int64_t>(random() % 500),
                            .first_tokens = 400,
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
  if (size * batches < 60) CHECK(held > 0);
  if (size > 3) CHECK(alike > 0);
}

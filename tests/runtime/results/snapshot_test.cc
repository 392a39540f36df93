// tests/runtime/results/snapshot_test.cc: sequences in flight, read as they were written or refused.
#include "runtime/results/snapshot.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "kernels/error.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;
using Catch::Matchers::Contains;

namespace {

constexpr std::size_t kRecords = 2;
const SnapshotKind kKind{.run = "a run", .retention = "full", .kv = "2 heads", .records = kRecords};

std::vector<std::byte> record(std::size_t sequence, std::size_t number) {
  std::vector<std::byte> bytes(5 + 3 * sequence + number);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(31 * i + 7 * sequence + 1);
  return bytes;
}

std::vector<SavedSequence> sequences() {
  SavedSequence scored, generated;
  scored.request = 7, scored.prompt_crc = 5, scored.keep = {3, 4, 1, 0};
  scored.generated = {1, 2}, scored.logprobs = {-0.5f, -1.25f}, scored.greedy = {1, 0};
  generated.request = 1ull << 40, generated.choice = 127, generated.prompt_crc = 6;
  generated.generated = {9};
  generated.token_logprobs = {.chosen = {-2}, .top = {{{4, -0.5f}, {5, -1.5f}}}};
  return {scored, generated};
}

SavedChoice ended() {
  SavedChoice saved{.request = 7, .choice = {}, .index = 2};
  saved.choice.text = "a\xFF\0b", saved.choice.has_text = true, saved.choice.tokens = {3, 4};
  saved.choice.finish = "stop";
  saved.choice.logprobs = ChoiceLogprobs{.chosen = {-1, -2}, .top = {{}, {{1, -3}}}};
  return saved;
}

void write(const std::filesystem::path& path) {
  SnapshotWriter writer(path, kKind, 1 << 20);
  const auto all = sequences();
  for (std::size_t i = 0; i < all.size(); ++i) {
    writer.begin(all[i]);
    for (std::size_t number = 0; number < kRecords; ++number)
      writer.record(40 + static_cast<unsigned>(number), record(i, number));
  }
  writer.ended(ended());
  writer.commit();
  CHECK(writer.bytes() == std::filesystem::file_size(path));
}

bool same(const ChoiceLogprobs& a, const ChoiceLogprobs& b) {
  return a.chosen == b.chosen &&
         std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(), [](const auto& x, const auto& y) {
           return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                             [](auto p, auto q) { return p.token == q.token && p.logprob == q.logprob; });
         });
}

/// Whether a file is taken as whole, with all that it holds.
bool is_whole(const std::filesystem::path& path) try {
  const Snapshot snapshot(path);
  for (std::size_t i = 0; i < snapshot.size(); ++i)
    for (std::size_t number = 0; number < static_cast<std::size_t>(snapshot.kind().records); ++number) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(snapshot.record(i, number).bytes));
      snapshot.read(i, number, bytes);
    }
  return true;
} catch (const DataError&) {
  return false;
}

}  // namespace

TEST_CASE("a snapshot reads as it was written", "[runtime]") {
  const TemporaryFolder folder;
  const auto path = folder / "out.inflight";
  for (int again = 0; again < 2; ++again) {
    write(path);
    const Snapshot snapshot(path);
    CHECK(snapshot.kind() == kKind);
    const auto all = sequences();
    REQUIRE(snapshot.size() == all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const SavedSequence& read = snapshot.sequence(i);
      CHECK(read.request == all[i].request);
      CHECK(read.choice == all[i].choice);
      CHECK(read.prompt_crc == all[i].prompt_crc);
      CHECK(read.keep.heavy == all[i].keep.heavy);
      CHECK(read.generated == all[i].generated);
      CHECK(read.logprobs == all[i].logprobs);
      CHECK(read.greedy == all[i].greedy);
      CHECK(same(read.token_logprobs, all[i].token_logprobs));
      for (std::size_t number = 0; number < kRecords; ++number) {
        CHECK(snapshot.record(i, number).slots == 40 + static_cast<unsigned>(number));
        std::vector<std::byte> bytes(static_cast<std::size_t>(snapshot.record(i, number).bytes));
        snapshot.read(i, number, bytes);
        CHECK(bytes == record(i, number));
      }
    }
    REQUIRE(snapshot.ended().size() == 1);
    const SavedChoice &was = ended(), &is = snapshot.ended()[0];
    CHECK(is.request == was.request);
    CHECK(is.index == was.index);
    CHECK(is.choice.text == was.choice.text);
    CHECK(is.choice.has_text == was.choice.has_text);
    CHECK(is.choice.tokens == was.choice.tokens);
    CHECK(std::string(is.choice.finish) == was.choice.finish);
    REQUIRE(is.choice.logprobs);
    CHECK(same(*is.choice.logprobs, *was.choice.logprobs));
  }
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0600);
}

TEST_CASE("a snapshot that is cut short or changed in any bit is refused", "[runtime]") {
  const TemporaryFolder folder;
  const auto path = folder / "out.inflight";
  write(path);
  const std::string whole = read_text(path);
  REQUIRE(is_whole(path));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    write_text(path, std::string_view(whole).substr(0, size));
    CHECK_FALSE(is_whole(path));
  }
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    CAPTURE(bit);
    std::string changed = whole;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    write_text(path, changed);
    CHECK_FALSE(is_whole(path));
  }
  write_text(path, whole + "x");
  CHECK_FALSE(is_whole(path));
}

TEST_CASE("what no run saves is told from what one does", "[runtime]") {
  using runtime::fits;
  const runtime::ChoiceLogprobs none, one{.chosen = {-1.0F}, .top = {{{3, -1.0F}, {0, -2.0F}}}};
  CHECK(fits(none, 1, -1, 8));
  CHECK(fits(one, 1, 2, 8));
  CHECK_FALSE(fits(one, 1, -1, 8));  // nobody asked
  CHECK_FALSE(fits(none, 1, 0, 8));
  CHECK_FALSE(fits(one, 2, 2, 8));
  CHECK_FALSE(fits(one, 1, 1, 8));  // too many alternatives
  CHECK_FALSE(fits(one, 1, 2, 3));  // an id beyond the vocabulary
  CHECK_FALSE(fits({.chosen = {-1.0F}, .top = {}}, 1, 0, 8));
  CHECK(runtime::are_ids(std::vector<std::int32_t>{0, 7}, 8));
  CHECK_FALSE(runtime::are_ids(std::vector<std::int32_t>{0, 8}, 8));
  CHECK_FALSE(runtime::are_ids(std::vector<std::int32_t>{-1}, 8));
}

TEST_CASE("a snapshot whose beginning is damaged is still known as one", "[runtime]") {
  const TemporaryFolder folder;
  const auto path = folder / "out.inflight";
  write(path);
  std::string text = read_text(path);
  text[0] ^= 1;
  write_text(path, text);
  CHECK_NOTHROW(Snapshot::require_own(path));
  CHECK_THROWS_AS(Snapshot(path), DataError);
  write_text(path, "somebody's notes, which are longer than a snapshot's end");
  CHECK_THROWS_AS(Snapshot::require_own(path), UsageError);
}

TEST_CASE("a snapshot that is not committed leaves the one before, and other files are no snapshots", "[runtime]") {
  const TemporaryFolder folder;
  const auto path = folder / "out.inflight", other = folder / "other", link = folder / "link";
  write(path);
  const std::string before = read_text(path);
  {
    SnapshotWriter writer(path, kKind, 0);
    writer.begin(sequences()[0]);
    writer.record(1, record(0, 0));
  }
  CHECK(read_text(path) == before);

  write_text(other, "somebody's notes");
  CHECK_THROWS_WITH(Snapshot::require_own(other), Contains("is another file than this would write"));
  Snapshot::remove(other);
  CHECK(read_text(other) == "somebody's notes");
  CHECK_THROWS_AS(Snapshot(other), DataError);

  std::filesystem::create_symlink(path, link);
  CHECK_THROWS_WITH(Snapshot(link), Contains("is a symbolic link"));
  CHECK_THROWS_AS(SnapshotWriter(link, kKind, 0), UsageError);
  CHECK_THROWS_AS(Snapshot::require_own(link), UsageError);
  Snapshot::remove(link);
  CHECK(std::filesystem::is_symlink(link));

  CHECK_NOTHROW(Snapshot::require_own(folder / "nothing"));
  Snapshot::remove(path);
  CHECK_FALSE(std::filesystem::exists(path));
}

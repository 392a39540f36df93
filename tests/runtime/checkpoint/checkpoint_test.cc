// tests/runtime/checkpoint/checkpoint_test.cc: checkpoints, sound and broken; a broken one must name its very fault.
#include "runtime/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <set>
#include <sstream>

#include "runtime/checkpoint/checkpoint_error.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/support/files.h"
#include "tests/support/safetensors.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;

namespace {

struct Expectation {
  std::string name, verdict, phrase;
};
std::vector<Expectation> expectations() {
  std::istringstream table(read_text(data_path("checkpoint/expected.tsv")));
  std::vector<Expectation> rows;
  for (std::string line; std::getline(table, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    Expectation row;
    std::getline(std::getline(std::getline(fields, row.name, '\t'), row.verdict, '\t'), row.phrase);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

TEST_CASE("every broken safetensors file is refused with the fault that the table expects", "[runtime]") {
  const auto rows = expectations();
  std::set<std::string> files, listed;
  for (const auto& file : fs::directory_iterator(data_path("checkpoint/cases")))
    files.insert(file.path().filename().string());
  for (const auto& row : rows) listed.insert(row.name);
  CHECK(files == listed);
  std::size_t bad = 0;
  for (const auto& row : rows) {
    CAPTURE(row.name, row.phrase);
    const TemporaryFolder folder;
    fs::create_symlink(data_path("checkpoint/cases/" + row.name),
                       folder / "model.safetensors");  // as in the hub's cache
    if (row.verdict == "ok") {
      const Checkpoint checkpoint = Checkpoint::open(folder.path());
      CHECK(std::to_string(checkpoint.size()) + " tensors " + std::to_string(checkpoint.total_bytes()) + " bytes" ==
            row.phrase);
      continue;
    }
    ++bad;
    const DataRefusal refusal = refusal_of(folder.path());
    CHECK(refusal.fault == row.verdict);
    CHECK_THAT(refusal.message,
               Catch::StartsWith((folder / "model.safetensors").string() + ": ") && Catch::Contains(row.phrase));
    CHECK(refusal.message.find('\n') == std::string::npos);
  }
  CHECK(rows.size() == 94);
  CHECK(bad == 83);
}

TEST_CASE("a sound file gives its tensors, sorted, where they are", "[runtime]") {
  const TemporaryFolder folder;
  write_text(
      folder / "model.safetensors",
      with_length(
          "{\"__metadata__\":{\"format\":\"pt\"},\"w\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[1,5]}," +
              entry("a", 0, 1) + "," + entry("\\u00e9\\n", 5, 6) + "}  ",
          "012345"));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  CHECK(checkpoint.format() == Checkpoint::Format::safetensors);
  CHECK(checkpoint.files() == std::vector<fs::path>{folder / "model.safetensors"});
  CHECK(checkpoint.notes().empty());
  REQUIRE(checkpoint.size() == 3);
  CHECK(checkpoint.total_bytes() == 6);
  const TensorInfo* w = checkpoint.find("w");
  REQUIRE(w);
  CHECK(w->dtype == "BF16");
  CHECK(w->shape == std::vector<std::int64_t>{2, 1});
  CHECK(w->bytes == 4);
  const auto bytes = checkpoint.read_tensor(*w);
  CHECK(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) == "1234");
  CHECK(weight_dtype(*w) == DType::bf16);
  CHECK(refusal_of([&] { weight_dtype(*checkpoint.find("a")); }).fault == "bad-dtype");
  CHECK(checkpoint.find("\u00e9\n"));
  CHECK_FALSE(checkpoint.find("b"));
  CHECK_FALSE(checkpoint.find(""));
}

TEST_CASE("what a model needs is demanded with all that is wrong at once", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / "model.safetensors",
             with_length("{" + entry("w", 0, 8, "F32") + "," + entry("i", 8, 9) + "}", "123456789"));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const auto demand = [&](const std::vector<TensorNeed>& needs) {
    return refusal_of([&] { checkpoint.demand(needs); });
  };
  CHECK(demand({{"w", {2}}}).fault.empty());
  const DataRefusal refusal = demand({{"w", {2}}, {"v", {3, 4}}, {"w", {2, 1}}, {"i", {1}}});
  CHECK(refusal.fault == "missing-tensor");
  CHECK_THAT(refusal.message, Catch::Contains("'v' [3, 4] is missing; 'w' is [2], wanted [2, 1]; 'i' is stored as U8"));
  CHECK(demand({{"w", {1}}}).fault == "bad-shape");
  const std::vector<TensorNeed> many(25, TensorNeed{"m", {}});
  CHECK_THAT(demand(many).message, Catch::EndsWith("and 5 more"));
}

TEST_CASE("a folder without a readable checkpoint says what is missing", "[runtime]") {
  const TemporaryFolder folder;
  DataRefusal refusal = refusal_of(folder / "nowhere");
  CHECK(refusal.fault == "missing-file");
  CHECK_THAT(refusal.message, Catch::Contains("nowhere: no such directory"));
  refusal = refusal_of(folder.path());
  CHECK(refusal.fault == "missing-file");
  CHECK_THAT(refusal.message, Catch::Contains("neither model.safetensors nor model.safetensors.index.json"));
  write_text(folder / kFirst, file_of({"x"}));
  CHECK_THAT(refusal_of(folder.path()).message, Catch::Contains("is there, but model.safetensors.index.json is not"));
  CHECK(refusal_of(folder / kFirst).fault == "not-a-file");
  fs::create_symlink("gone", folder / "model.safetensors");
  CHECK(refusal_of(folder.path()).fault == "missing-file");
}

TEST_CASE("a link to nowhere is named, with the place that it leads to", "[runtime]") {
  const TemporaryFolder folder;
  fs::create_symlink("../../blobs/0123", folder / "model.safetensors");
  const DataRefusal refusal = refusal_of(folder.path());
  CHECK(refusal.fault == "missing-file");
  CHECK_THAT(refusal.message, Catch::Contains("model.safetensors: is a link to ../../blobs/0123, which is not there"));
}

TEST_CASE("weights that were touched are compared whole, or refused", "[runtime]") {
  const TemporaryFolder folder;
  const fs::path path = folder / kFirst;
  const std::string text = file_of({"x"});
  write_text(path, text);
  const Checkpoint file = Checkpoint::open_file(path);
  CHECK_NOTHROW(file.require_unchanged());
  const bool known = GENERATE(true, false);
  if (known) REQUIRE(file.know(0, file.checksum(0, kNeverStopped)));
  const auto time = fs::last_write_time(path);
  const auto differs = [&] { CHECK_THROWS_WITH(file.require_unchanged(), Catch::Contains("has changed since")); };
  fs::permissions(path, fs::perms(0640));  // another ctime, and nothing else
  if (!known) return differs();
  CHECK_NOTHROW(file.require_unchanged());
  fs::last_write_time(path, time + std::chrono::seconds(1));
  CHECK_NOTHROW(file.require_unchanged());
  std::string changed = text;
  changed.back() = static_cast<char>(changed.back() ^ 1);
  std::ofstream(path, std::ios::in | std::ios::out | std::ios::binary) << changed;  // in place
  fs::last_write_time(path, time);
  differs();
  const std::atomic<bool> stop{true};
  CHECK_THROWS_AS(file.require_unchanged(stop), Interrupted);
  CHECK_FALSE(file.know(0, 0));
}

TEST_CASE("what is no regular file is refused and never waited for", "[runtime]") {
  const TemporaryFolder folder;
  const fs::path path = folder / "model.safetensors";
  SECTION("a directory") { fs::create_directory(path); }
  SECTION("a pipe") { REQUIRE(::mkfifo(path.c_str(), 0600) == 0); }
  SECTION("a device without an end") { fs::create_symlink("/dev/zero", path); }
  CHECK(refusal_of(folder.path()).fault == "not-a-file");
  fs::rename(path, folder / "part.safetensors");
  write_text(folder / kIndex, index_of({{"x", "part.safetensors"}}));
  CHECK(refusal_of(folder.path()).fault == "not-a-file");
}

TEST_CASE("a file that may not be read is a failure of input, not of data", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / "model.safetensors", file_of({"x"}));
  fs::permissions(folder.path(), fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec);
  fs::permissions(folder / "model.safetensors", fs::perms::none);
  const bool root = ::geteuid() == 0;  // who may read everything
  if (root) REQUIRE(::seteuid(65534) == 0);
  const DataRefusal refusal = refusal_of(folder.path());
  if (root) REQUIRE(::seteuid(0) == 0);
  CHECK(refusal.fault == "io");
  CHECK_THAT(refusal.message, Catch::Contains("cannot open: Permission denied"));
}

TEST_CASE("a folder that may not be entered is a failure of input, not of data", "[runtime]") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "closed");
  write_text(folder / "closed" / "model.safetensors", file_of({"x"}));
  fs::permissions(folder.path(), fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec);
  fs::permissions(folder / "closed", fs::perms::none);
  const bool root = ::geteuid() == 0;
  if (root) REQUIRE(::seteuid(65534) == 0);
  const DataRefusal refusal = refusal_of(folder / "closed");
  if (root) REQUIRE(::seteuid(0) == 0);
  fs::permissions(folder / "closed", fs::perms::owner_all);
  CHECK(refusal.fault == "io");
  CHECK_THAT(refusal.message, Catch::Contains("Permission denied"));
}

TEST_CASE("files over 4 GiB are read at their offsets", "[runtime]") {
  const TemporaryFolder folder;
  const fs::path path = folder / "model.safetensors";
  constexpr std::uint64_t kLarge = std::uint64_t{5} << 30;
  const std::string start =
      with_length("{" + entry("large", 0, kLarge) + "," + entry("last", kLarge, kLarge + 4, "F32") + "}", "");
  write_text(path, start);
  SECTION("whole") {
    fs::resize_file(path, start.size() + kLarge);
    std::ofstream(path, std::ios::binary | std::ios::app) << "tail";
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    const auto bytes = checkpoint.read_tensor(*checkpoint.find("last"));
    CHECK(std::memcmp(bytes.data(), "tail", 4) == 0);
    CHECK(checkpoint.find("last")->offset == start.size() + kLarge);
  }
  SECTION("two bytes short") {
    fs::resize_file(path, start.size() + kLarge + 2);
    CHECK(refusal_of(folder.path()).fault == "data-past-end");
  }
  SECTION("with a header of zeros") {
    write_text(path, start.substr(0, 8));
    fs::resize_file(path, kLarge);
    CHECK(refusal_of(folder.path()).fault == "not-an-object");
  }
  SECTION("with a header that says more than is there") {
    write_text(path, std::string("\xFF\xFF\xFF\x7F\x00\x00\x00\x00", 8));
    fs::resize_file(path, kLarge);
    CHECK(refusal_of(folder.path()).fault == "header-too-large");
  }
}

TEST_CASE("a file that becomes shorter during a run is an error that says so", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / "model.safetensors", file_of({"x", "y"}));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const auto size = fs::file_size(folder / "model.safetensors");
  fs::resize_file(folder / "model.safetensors", size - 1);
  CHECK(checkpoint.read_tensor(*checkpoint.find("x")).size() == 1);
  const DataRefusal refusal = refusal_of([&] { checkpoint.read_tensor(*checkpoint.find("y")); });
  CHECK(refusal.fault == "io");
  CHECK_THAT(refusal.message, Catch::Contains("it had " + std::to_string(size) + " bytes when it was opened and has " +
                                              std::to_string(size - 1) + " now"));
}

TEST_CASE("a replaced file is still read as it was when opened", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / "model.safetensors", file_of({"x"}));
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  write_text(folder / "new", "something else");
  fs::rename(folder / "new", folder / "model.safetensors");
  CHECK(checkpoint.read_tensor(*checkpoint.find("x")).at(0) == std::byte{'a'});
}

TEST_CASE("the checkpoints that transformers wrote are read", "[runtime]") {
  const auto open = [](const std::string& name) { return Checkpoint::open(data_path("golden/" + name)); };
  const auto dtype = [](const Checkpoint& checkpoint, const std::string& name) {
    return weight_dtype(*checkpoint.find(name + "decoder.layers.0.fc1.weight"));
  };
  const Checkpoint single = open("prenorm-tied-f32"), sharded = open("sharded-bf16"), base = open("absent-keys-f16");
  CHECK(single.format() == Checkpoint::Format::safetensors);
  CHECK(dtype(single, "model.") == DType::f32);
  CHECK(sharded.format() == Checkpoint::Format::sharded_safetensors);
  CHECK(sharded.files().size() > 2);
  CHECK(sharded.notes().empty());
  CHECK(dtype(sharded, "model.") == DType::bf16);
  CHECK(dtype(base, "") == DType::f16);
  CHECK_FALSE(open("postnorm-projections-f16").find("model.decoder.final_layer_norm.weight"));
}

TEST_CASE("more than a million tensors are refused", "[runtime]") {
  std::string header = "{";
  for (int i = 0; i <= 1'000'000; ++i)
    header += (i ? ",\"t" : "\"t") + std::to_string(i) + "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
  header += "}";
  CHECK(refusal_of([&] { parse_safetensors_header(header, 8 + header.size(), "file"); }).fault == "too-many-tensors");
}

TEST_CASE("any changed byte of a sound file is refused or gives ranges within the file", "[runtime]") {
  std::mt19937 random(1);
  const std::string sound = file_of({"alpha", "beta", "gamma"});
  std::size_t accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string file = sound;
    if (round % 4 == 0) file.resize(random() % sound.size());
    else file[random() % file.size()] = static_cast<char>(random() % 256);
    try {
      const std::string head = file.substr(0, kSafetensorsHeadBytes);
      const auto bytes = static_cast<std::size_t>(safetensors_header_bytes(head, file.size(), "file"));
      std::uint64_t reached = 8 + bytes;
      for (const TensorInfo& tensor : parse_safetensors_header(file.substr(8, bytes), file.size(), "file")) {
        REQUIRE(tensor.offset == reached);
        reached += tensor.bytes;
      }
      REQUIRE(reached == file.size());
      ++accepted;
    } catch (const CheckpointError&) {}
  }
  CHECK(accepted > 0);
  CHECK(accepted < 10000);
}

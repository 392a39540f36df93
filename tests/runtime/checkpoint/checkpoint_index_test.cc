// tests/runtime/checkpoint/checkpoint_index_test.cc: checkpoints in shards, and their indices, sound and broken.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "tests/support/safetensors.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;

TEST_CASE("shards are read through their index", "[runtime]") {
  const TemporaryFolder folder;
  fill_sharded(folder);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  CHECK(checkpoint.format() == Checkpoint::Format::sharded_safetensors);
  CHECK(checkpoint.files() == std::vector<fs::path>{folder / kFirst, folder / kSecond});
  CHECK(checkpoint.notes().empty());
  REQUIRE(checkpoint.size() == 3);
  CHECK(checkpoint.find("z")->file == 1);
  CHECK(checkpoint.read_tensor(*checkpoint.find("y")).at(0) == std::byte{'b'});
  CHECK(checkpoint.read_tensor(*checkpoint.find("z")).at(0) == std::byte{'a'});
}

TEST_CASE("oddities of an index that harm nothing are noted", "[runtime]") {
  const TemporaryFolder folder;
  fill_sharded(folder);
  SECTION("a wrong sum") {
    write_text(folder / kIndex,
               index_of({{"x", kFirst}, {"y", kFirst}, {"z", kSecond}}, "\"metadata\":{\"total_size\":1000000000},"));
    const auto notes = Checkpoint::open(folder.path()).notes();
    REQUIRE(notes.size() == 1);
    CHECK_THAT(notes[0], Catch::Contains("total_size says 1000000000 bytes, the tensors have 3"));
  }
  SECTION("a sum written as a float, and other metadata") {
    write_text(folder / kIndex, index_of({{"x", kFirst}, {"y", kFirst}, {"z", kSecond}},
                                         "\"metadata\":{\"total_size\":3.0,\"total_parameters\":3},"));
    CHECK(Checkpoint::open(folder.path()).notes().empty());
  }
  SECTION("tensors that it leaves out, even twice") {
    write_text(folder / kSecond, file_of({"z", "mask"}));
    write_text(folder / kFirst, file_of({"x", "y", "mask"}));
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    REQUIRE(checkpoint.notes().size() == 1);
    CHECK_THAT(checkpoint.notes()[0], Catch::Contains("2 tensors of the shards are not in the index"));
    CHECK_FALSE(checkpoint.find("mask"));
  }
  const auto opens_with = [&](const std::string& phrase) {
    Checkpoint checkpoint = Checkpoint::open(folder.path());
    REQUIRE(checkpoint.notes().size() == 1);
    CHECK_THAT(checkpoint.notes()[0], Catch::Contains(phrase));
    return checkpoint;
  };
  SECTION("a tensor that no shard has, which only a model that needs it is refused for") {
    write_text(folder / kFirst, file_of({"x"}));
    const Checkpoint checkpoint = opens_with("1 tensors of the index are in no shard, such as 'y'");
    CHECK(checkpoint.size() == 2);
    const std::vector<runtime::TensorNeed> needs{{"y", {1}}};
    CHECK_THROWS_WITH(checkpoint.demand(needs),
                      Catch::Contains("'y' [1] is missing") && Catch::Contains("tensors of the index are in no shard"));
  }
  SECTION("a tensor in another shard than it says") {
    write_text(folder / kIndex, index_of({{"x", kFirst}, {"y", kSecond}, {"z", kSecond}}));
    const Checkpoint checkpoint = opens_with("1 tensors are in another shard than the index says");
    CHECK(checkpoint.find("y")->file == 0);
  }
  SECTION("a tensor in two shards, of which the one that it names counts") {
    write_text(folder / kSecond, file_of({"z", "x"}));
    CHECK(Checkpoint::open(folder.path()).find("x")->file == 0);
    write_text(folder / kIndex, index_of({{"x", kSecond}, {"y", kFirst}, {"z", kSecond}}));
    CHECK(Checkpoint::open(folder.path()).find("x")->file == 1);
  }
  SECTION("a number left out") {
    write_text(folder / kIndex, index_of({{"x", kFirst}, {"y", kFirst}}));
    opens_with("no tensor is in shard '" + kSecond + "'");
  }
  SECTION("a single file in the same folder, which wins") {
    write_text(folder / "model.safetensors", file_of({"single"}));
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    CHECK(checkpoint.format() == Checkpoint::Format::safetensors);
    CHECK(checkpoint.notes().size() == 1);
    CHECK(checkpoint.find("single"));
  }
  SECTION("shards without numbers, as links") {
    fs::rename(folder / kFirst, folder / "blob");
    fs::create_symlink(folder / "blob", folder / "a.safetensors");
    write_text(folder / kIndex, index_of({{"x", "a.safetensors"}, {"y", "a.safetensors"}}));
    CHECK(Checkpoint::open(folder.path()).size() == 2);
  }
}

TEST_CASE("a shard name that could leave the folder is refused", "[runtime]") {
  const TemporaryFolder folder;
  fill_sharded(folder);
  fs::create_directory(folder / "a");
  write_text(folder / "a" / "b.safetensors", file_of({"x"}));
  const std::string name =
      GENERATE(as<std::string>{}, "../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".hidden.safetensors", "",
               ".safetensors", "a\\u0000.safetensors", "a\\\\b.safetensors", "-x.safetensors", "a b.safetensors",
               "x.bin", "\\u00e9.safetensors", "x\\n.safetensors", std::string(300, 'a') + ".safetensors");
  CAPTURE(name);
  write_text(folder / kIndex, index_of({{"x", name}, {"z", kSecond}}));
  const DataRefusal refusal = refusal_of(folder.path());
  CHECK(refusal.fault == "bad-shard-name");
  CHECK_THAT(refusal.message, Catch::Contains("weight_map entry 'x' names") && Catch::Contains("plain file names"));
  CHECK(refusal.message.find('\n') == std::string::npos);
}

TEST_CASE("an index of another form is refused", "[runtime]") {
  const TemporaryFolder folder;
  fill_sharded(folder);
  const auto [text, fault, phrase] = GENERATE(table<std::string, std::string, std::string>({
      {"[]", "bad-index", "wanted an object"},
      {"{}", "bad-index", "no 'weight_map'"},
      {"{\"weight_map\":{}}", "bad-index", "'weight_map' must be"},
      {"{\"weight_map\":[]}", "bad-index", "'weight_map' must be"},
      {"{\"weight_map\":null}", "bad-index", "'weight_map' must be"},
      {"{\"weight_map\":{\"x\":1}}", "bad-index", "entry 'x' is not a string"},
      {"{\"weight_map\":{\"x\":[]}}", "bad-index", "entry 'x' is not a string"},
      {"{\"weight_map\":{\"x\":null}}", "bad-index", "entry 'x' is not a string"},
      {"{\"weight_map\":{\"\":\"x.safetensors\"}}", "bad-index", "name of 0 bytes"},
      {"{\"weight_map\":{\"" + std::string(1025, 'n') + "\":\"x.safetensors\"}}", "bad-index", "name of 1025 bytes"},
      {"{\"metadata\":[],\"weight_map\":{\"x\":\"x.safetensors\"}}", "bad-index", "'metadata' must be"},
      {"{\"metadata\":{\"total_size\":-1},\"weight_map\":{\"x\":\"x.safetensors\"}}", "bad-index",
       "'total_size' must be"},
      {"{\"metadata\":{\"total_size\":\"x\"},\"weight_map\":{\"x\":\"x.safetensors\"}}", "bad-index",
       "'total_size' must be"},
      {"{\"weight_map\":{\"x\":\"x.safetensors\",\"\\u0078\":\"x.safetensors\"}}", "other", "twice"},
      {"{\"weight_map\":{\"x\":" + std::string(100000, '[') + std::string(100000, ']') + "}}", "other", "nested"},
      {"{\"weight_map\":", "other", ""},
      {"", "other", ""},
  }));
  CAPTURE(text.substr(0, 100));
  write_text(folder / kIndex, text);
  const DataRefusal refusal = refusal_of(folder.path());
  CHECK(refusal.fault == fault);
  CHECK_THAT(refusal.message, Catch::StartsWith((folder / kIndex).string()) && Catch::Contains(phrase));
}

TEST_CASE("an index of 100 MB is refused unread", "[runtime]") {
  const TemporaryFolder folder;
  fill_sharded(folder);
  fs::resize_file(folder / kIndex, 100'000'000);
  CHECK(refusal_of(folder.path()).fault == "other");
}

TEST_CASE("shards that do not fit their index are refused", "[runtime]") {
  const TemporaryFolder folder;
  fill_sharded(folder);
  const auto refused = [&](const std::string& fault, const std::string& phrase) {
    const DataRefusal refusal = refusal_of(folder.path());
    CHECK(refusal.fault == fault);
    CHECK_THAT(refusal.message, Catch::Contains(phrase));
  };
  SECTION("missing") {
    fs::remove(folder / kFirst);
    refused("missing-file", kFirst + ": no such file; 2 tensors");
  }
  SECTION("a link to nowhere") {
    fs::remove(folder / kSecond);
    fs::create_symlink("gone", folder / kSecond);
    refused("missing-file", kSecond);
  }
  SECTION("a folder") {
    fs::remove(folder / kSecond);
    fs::create_directory(folder / kSecond);
    refused("not-a-file", kSecond + ": is a directory, wanted a regular file");
  }
  SECTION("a pipe, which is not waited for") {
    fs::remove(folder / kSecond);
    REQUIRE(::mkfifo((folder / kSecond).c_str(), 0600) == 0);
    refused("not-a-file", kSecond + ": is a pipe, wanted a regular file");
  }
  SECTION("cut off") {
    fs::resize_file(folder / kSecond, fs::file_size(folder / kSecond) - 1);
    refused("data-past-end", kSecond);
  }
}

// tests/runtime/checkpoint/torch_bin_test.cc: PyTorch's checkpoints, broken and sound; the sound ones as PyTorch reads
// them.
#include "runtime/checkpoint/torch_bin.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <sstream>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/pickle.h"
#include "tests/support/files.h"
#include "tests/support/safetensors.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;

namespace {

std::vector<std::vector<std::string>> table(const fs::path& path) {
  std::istringstream text(read_text(path));
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(text, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::vector<std::string>& row = rows.emplace_back();
    for (std::string field; std::getline(fields, field, '\t');) row.push_back(field);
  }
  return rows;
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string case_of(const std::string& name) { return read_text(data_path("torch_bin/cases/" + name + ".bin")); }

}  // namespace

TEST_CASE("every broken PyTorch file is refused with the fault that the table expects", "[runtime]") {
  const auto rows = table(data_path("torch_bin/expected.tsv"));
  std::set<std::string> files, listed;
  for (const auto& file : fs::directory_iterator(data_path("torch_bin/cases")))
    files.insert(file.path().filename().string());
  std::size_t bad = 0;
  for (const auto& row : rows) {
    REQUIRE(row.size() == 3);
    CAPTURE(row[0], row[2]);
    listed.insert(row[0]);
    const TemporaryFolder folder;
    fs::create_symlink(data_path("torch_bin/cases/" + row[0]), folder / "pytorch_model.bin");  // as in the hub's cache
    if (row[1] == "ok") {
      CHECK(refusal_of(folder.path()).message.empty());
      const Checkpoint checkpoint = Checkpoint::open(folder.path());
      CHECK(std::to_string(checkpoint.size()) + " tensors " + std::to_string(checkpoint.total_bytes()) + " bytes" ==
            row[2]);
      continue;
    }
    ++bad;
    const DataRefusal refusal = refusal_of(folder.path());
    CHECK(refusal.fault == row[1]);
    CHECK_THAT(refusal.message,
               Catch::StartsWith((folder / "pytorch_model.bin").string() + ": ") && Catch::Contains(row[2]));
    CHECK(refusal.message.find('\n') == std::string::npos);
  }
  CHECK(files == listed);
  CHECK(bad == 135);
}

TEST_CASE("what PyTorch wrote is what PyTorch reads, in every form", "[runtime]") {
  const std::string form = GENERATE(as<std::string>{}, "zip", "legacy", "sharded");
  CAPTURE(form);
  const Checkpoint checkpoint = Checkpoint::open(data_path("torch_bin/written/" + form));
  CHECK(checkpoint.format() ==
        (form == "sharded" ? Checkpoint::Format::sharded_torch_bin : Checkpoint::Format::torch_bin));
  CHECK(checkpoint.notes().empty());
  const auto rows = table(data_path("torch_bin/written/expected.tsv"));
  CHECK(checkpoint.size() == rows.size());
  for (const auto& row : rows) {
    CAPTURE(row[0]);
    const TensorInfo* tensor = checkpoint.find(row[0]);
    REQUIRE(tensor);
    CHECK(tensor->dtype == row[1]);
    std::vector<std::int64_t> shape;
    for (std::size_t i = 2; i < row.size(); ++i) shape.push_back(std::stoll(row[i]));
    CHECK(tensor->shape == shape);
    const std::string expected = read_text(data_path("torch_bin/written/expected/" + row[0]));
    CHECK(tensor->bytes == expected.size());
    CHECK(text_of(checkpoint.read_tensor(*tensor)) == expected);
    CHECK(tensor->strides.empty() == (row[0] != "transposed" && row[0] != "permuted" && row[0] != "column"));
    if (!tensor->strides.empty()) continue;
    std::vector<std::byte> bytes(expected.size());
    checkpoint.read_range(tensor->file, tensor->offset, bytes);
    CHECK(text_of(bytes) == expected);
  }
  if (form != "sharded") CHECK(checkpoint.find("tied")->offset == checkpoint.find("table")->offset);
}

TEST_CASE("a byte of a storage that has changed is found by its checksum", "[runtime]") {
  const std::string form = GENERATE("zip", "sharded");
  const TemporaryFolder folder;
  fs::copy(data_path("torch_bin/written/" + form), folder.path());
  const Checkpoint sound = Checkpoint::open(folder.path());
  CHECK_NOTHROW(sound.verify(false));
  CHECK_THROWS_AS(sound.verify(true), Interrupted);
  for (const char* name : {"table", "column", "dtype.BOOL", "weight"}) {
    const TensorInfo* tensor = sound.find(name);
    const fs::path path = sound.files()[tensor->file];
    const std::string before = read_text(path);
    for (const std::uint64_t at : {tensor->offset, tensor->offset + tensor->bytes - 1}) {
      CAPTURE(form, name, at);
      std::string changed = before;
      changed[at] = static_cast<char>(changed[at] ^ 1);
      write_text(path, changed);
      const DataRefusal refusal = refusal_of([&] { Checkpoint::open(folder.path()).verify(false); });
      CHECK(refusal.fault == "bad-checksum");
      CHECK_THAT(refusal.message, Catch::StartsWith(path.string() + ": the record 'data/"));
    }
    write_text(path, before);
  }
}

TEST_CASE("a file from before PyTorch 1.6 has no checksums", "[runtime]") {
  CHECK_NOTHROW(Checkpoint::open(data_path("torch_bin/written/legacy")).verify(false));
}

TEST_CASE("a model's tensor that is not row-major is refused by its name", "[runtime]") {
  const Checkpoint checkpoint = Checkpoint::open(data_path("torch_bin/written/zip"));
  const std::vector<TensorNeed> needs{{"transposed", {6, 4}}, {"table", {5, 8}}};
  const DataRefusal refusal = refusal_of([&] { checkpoint.demand(needs); });
  CHECK(refusal.fault == "bad-shape");
  CHECK_THAT(refusal.message, Catch::Contains("'transposed' is not row-major"));
  CHECK(refusal.message.find("'table'") == std::string::npos);
}

TEST_CASE("safetensors come before PyTorch files, a single file before shards", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / "pytorch_model.bin.index.json", index_of({{"w", "a.bin"}}));
  write_text(folder / "a.bin", case_of("good"));
  CHECK(Checkpoint::open(folder.path()).format() == Checkpoint::Format::sharded_torch_bin);
  write_text(folder / "pytorch_model.bin", case_of("good"));
  const Checkpoint single = Checkpoint::open(folder.path());
  CHECK(single.format() == Checkpoint::Format::torch_bin);
  REQUIRE(single.notes().size() == 1);
  CHECK_THAT(single.notes()[0],
             Catch::EndsWith("pytorch_model.bin is read, pytorch_model.bin.index.json next to it is not"));
  fill_sharded(folder);
  CHECK(Checkpoint::open(folder.path()).format() == Checkpoint::Format::sharded_safetensors);
  write_text(folder / "model.safetensors", file_of({"x"}));
  CHECK(Checkpoint::open(folder.path()).format() == Checkpoint::Format::safetensors);
  CHECK(Checkpoint::open(folder.path()).notes().size() == 3);
}

TEST_CASE("an index of PyTorch files names plain .bin files that are there", "[runtime]") {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& shard, const std::string& tensor = "w") {
    write_text(folder / "pytorch_model.bin.index.json", index_of({{tensor, shard}}));
    return refusal_of(folder.path()).fault;
  };
  write_text(folder / "a.bin", case_of("good"));
  CHECK(refusal("a.bin").empty());
  CHECK(refusal("a.safetensors") == "bad-shard-name");
  CHECK(refusal("../a.bin") == "bad-shard-name");
  CHECK(refusal("b.bin") == "missing-file");
  CHECK(refusal("a.bin", "v").empty());
  CHECK_THAT(Checkpoint::open(folder.path()).notes().at(0), Catch::Contains("1 tensors of the index are in no shard"));
  CHECK(refusal("m-00001-of-00002.bin") == "missing-file");
}

TEST_CASE("of the 256 opcodes a pickle may hold 31", "[runtime]") {
  const std::string allowed =
      "\x63\x28\x29\x7d\x5d\x74\x85\x86\x87\x4e\x88\x89\x4a\x4b\x4d\x8a\x47\x58\x71\x72\x68\x6a\x73"
      "\x75\x61\x65\x51\x52\x62\x2e";  // and the protocol, once and first
  for (int opcode = 0; opcode < 256; ++opcode) {
    CAPTURE(opcode);
    const std::string text = std::string("\x80\x02", 2) + static_cast<char>(opcode) + std::string(8, '\0');
    const DataRefusal refusal = refusal_of([&] { read_pickle({text, 0, "file", false}); });
    const bool refused = refusal.message.find("file byte 2: opcode") == 0;
    CHECK(refused == (allowed.find(static_cast<char>(opcode)) == std::string::npos));
    if (refused) CHECK(refusal.fault == "refused-opcode");
  }
}

TEST_CASE("a PyTorch file cut anywhere, or with any byte changed, ends in a refusal or in tensors inside it",
          "[runtime]") {
  const std::string name = GENERATE(as<std::string>{}, "good", "good_legacy", "good_transposed");
  const std::string sound = case_of(name);
  const TemporaryFolder folder;
  const fs::path path = folder / "pytorch_model.bin";
  for (std::size_t at = 0; at < sound.size(); ++at) {
    CAPTURE(name, at);
    write_text(path, sound.substr(0, at));
    CHECK_FALSE(refusal_of(folder.path()).fault.empty());
    for (const int flip : {0x01, 0x80, 0xFF}) {
      std::string text = sound;
      text[at] = static_cast<char>(text[at] ^ flip);
      write_text(path, text);
      const DataRefusal refusal = refusal_of([&] {
        const Checkpoint checkpoint = Checkpoint::open(folder.path());
        for (const TensorInfo& tensor : checkpoint.tensors()) checkpoint.read_tensor(tensor);
      });
      CHECK(refusal.fault != "io");
      CHECK(refusal.fault != "other");
    }
  }
}

// tests/runtime/checkpoint/model_files_test.cc: what --model may name.
#include "runtime/checkpoint/model_files.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <optional>

#include "kernels/error.h"
#include "tests/support/files.h"
#include "tests/support/gguf.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

/// An environment variable for as long as this lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (before_) ::setenv(name_, before_->c_str(), 1);
    else ::unsetenv(name_);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("a model's files are a folder, a GGUF file or a config alone", "[runtime]") {
  const TemporaryFolder folder;
  const std::string config = R"({"model_type": "opt"})";
  write_text(folder / "config.json", config);
  write_text(folder / "shape.json", config);
  write_text(folder / "x.gguf", tiny_gguf().bytes());
  const ModelFiles in_folder = ModelFiles::open(folder.path()), alone = ModelFiles::open(folder / "shape.json"),
                   gguf = ModelFiles::open(folder / "x.gguf");
  CHECK(in_folder.may_have_weights());
  CHECK(in_folder.texts().where("config.json") == (folder / "config.json").string());
  CHECK(in_folder.fingerprints().size() == 1);
  CHECK_FALSE(alone.may_have_weights());
  CHECK(alone.texts().read("config.json", 100) == config);
  CHECK(alone.texts().where("config.json") == (folder / "shape.json").string());
  CHECK(alone.fingerprints().at(0).second == in_folder.fingerprints().at(0).second);
  CHECK(gguf.may_have_weights());
  CHECK(gguf.texts().where("config.json") == (folder / "x.gguf").string() + " (as config.json)");
  CHECK_FALSE(gguf.texts().has("tokenizer.json"));
  CHECK_THROWS_WITH(gguf.texts().read("config.json", 10), Contains("at most 10"));
  const auto before = gguf.fingerprints();
  REQUIRE(before.size() == 1);
  write_text(folder / "x.gguf", tiny_gguf().integer("more", 1).bytes());
  CHECK(ModelFiles::open(folder / "x.gguf").fingerprints() != before);
  CHECK_THROWS_WITH(ModelFiles::open(folder / "none"), Contains("there is no such folder or file"));
}

TEST_CASE("ORG/NAME is found in the cache of the Hugging Face Hub", "[runtime]") {
  const TemporaryFolder folder;
  const fs::path model = folder.path() / "hub" / "models--weft-test--tiny";
  fs::create_directories(model / "snapshots" / "abc");
  fs::create_directories(model / "refs");
  write_text(model / "refs" / "main", "abc\n");
  const fs::path wanted = model / "snapshots" / "abc";
  {
    const Variable none("HF_HUB_CACHE", ""), home("HF_HOME", folder.path().string());
    CHECK(ModelFiles::open("weft-test/tiny").path() == wanted);
    CHECK_THROWS_WITH(ModelFiles::open("weft-test/other"),
                      Contains("hf download weft-test/other; looked for in " + folder.path().string()));
    CHECK_THROWS_WITH(ModelFiles::open("weft-test/tiny/more"), !Contains("hf download"));
  }
  const Variable cache("HF_HUB_CACHE", (folder.path() / "hub").string());
  CHECK(ModelFiles::open("weft-test/tiny").path() == wanted);
  write_text(model / "refs" / "main", "gone");
  CHECK_THROWS_WITH(ModelFiles::open("weft-test/tiny"), Contains("there is no such folder, although"));
  for (const char* wrong : {"", "../../x", ".."}) {
    write_text(model / "refs" / "main", wrong);
    CHECK_THROWS_WITH(ModelFiles::open("weft-test/tiny"), Contains("names no snapshot"));
  }
}

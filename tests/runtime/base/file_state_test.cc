#include "runtime/base/file_state.h"

#include <catch2/catch.hpp>

#include "tests/support/files.h"

using namespace weft::test;
using weft::runtime::FileState;

TEST_CASE("a file's state tells another file, a write and a new mode apart", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / "f", "one");
  const FileState before = FileState::of(folder / "f").value();
  CHECK(FileState::of(folder / "f") == before);
  CHECK(FileState::from_text(before.text()) == before);
  CHECK(before.size == 3);
  std::filesystem::permissions(folder / "f", std::filesystem::perms(0400));
  const FileState touched = FileState::of(folder / "f").value();
  CHECK(touched != before);
  CHECK(touched.modified == before.modified);
  std::filesystem::permissions(folder / "f", std::filesystem::perms(0600));
  write_text(folder / "f", "two");
  CHECK(FileState::of(folder / "f")->modified != before.modified);
  std::filesystem::copy_file(folder / "f", folder / "g");
  CHECK_FALSE(FileState::of(folder / "g")->same_file(before));
  CHECK_FALSE(FileState::of(folder / "none"));
}

TEST_CASE("text that is no state is refused", "[runtime]") {
  for (const char* text : {"", "1 2 3 4", "1 2 3 4 5 6", "1 2 3 4 x", "a b c d e"})
    CHECK_FALSE(FileState::from_text(text));
}

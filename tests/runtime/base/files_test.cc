// tests/runtime/base/files_test.cc
#include "runtime/base/files.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "kernels/error.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("read_file gives all bytes, up to its limit", "[runtime]") {
  TemporaryFolder folder;
  const std::string bytes("a\0b\n", 4);
  write_text(folder / "f", bytes);
  CHECK(read_file(folder / "f", 4) == bytes);
  CHECK_THROWS_AS(read_file(folder / "f", 3), DataError);
  CHECK_THROWS_WITH(read_file(folder / "f", 3), Contains("f: is larger than 3 bytes"));
  write_text(folder / "empty", "");
  CHECK(read_file(folder / "empty", 0).empty());
  CHECK(read_file("/proc/self/stat", 1 << 16).size() > 10);  // its size is said to be 0
}

TEST_CASE("read_file refuses what is no regular file, without waiting for it", "[runtime]") {
  TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(read_file(folder / "pipe", 10), Contains("pipe: is a pipe, wanted a regular file"));
  CHECK_THROWS_WITH(read_file(folder.path(), 10), Contains("is a directory, wanted a regular file"));
  CHECK_THROWS_WITH(read_file("/dev/zero", 10), Contains("is a device, wanted a regular file"));
  CHECK_THROWS_AS(read_file(folder / "absent", 10), IoError);
  CHECK_THROWS_WITH(read_file(folder / "absent", 10), Contains("absent: cannot open: No such file or directory"));
}

TEST_CASE("write_file_atomically replaces the whole file and leaves nothing else", "[runtime]") {
  TemporaryFolder folder;
  write_file_atomically(folder / "f", "one");
  CHECK(read_text(folder / "f") == "one");
  fs::permissions(folder / "f", fs::perms(0640));
  write_file_atomically(folder / "f", "two");
  CHECK(read_text(folder / "f") == "two");
  CHECK(fs::status(folder / "f").permissions() == fs::perms(0640));
  CHECK(entries(folder.path()) == 1);
}

TEST_CASE("write_file_atomically keeps a symbolic link and refuses what is no file", "[runtime]") {
  TemporaryFolder folder;
  write_text(folder / "target", "old");
  fs::create_symlink("target", folder / "link");
  write_file_atomically(folder / "link", "new");
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(read_text(folder / "target") == "new");
  CHECK_THROWS_AS(write_file_atomically(folder.path(), "x"), UsageError);
  CHECK_THROWS_WITH(write_file_atomically("/dev/null", "x"),
                    Contains("/dev/null: is a device and will not be replaced by a file"));
  CHECK_THROWS_WITH(write_file_atomically(folder / "absent/f", "x"), Contains("cannot create"));
  CHECK(entries(folder.path()) == 2);
}

TEST_CASE("a side file follows no link, and a file that must be new replaces nothing", "[runtime]") {
  TemporaryFolder folder;
  write_text(folder / "target", "old");
  fs::create_symlink("target", folder / "link");
  CHECK_THROWS_WITH(write_file_atomically(folder / "link", "new", {.link = AtomicFile::Link::refuse}),
                    Contains("link: is a symbolic link and will not be followed"));
  AtomicFile file(folder / "new", {.replace = false});
  write_text(folder / "new", "came first");
  file.append("late");
  CHECK_THROWS_WITH(file.commit(), Contains("cannot create: File exists"));
  CHECK(read_text(folder / "target") == "old");
  CHECK(read_text(folder / "new") == "came first");
}

TEST_CASE("a new file is private", "[runtime]") {
  TemporaryFolder folder;
  write_file_atomically(folder / "f", "x");
  CHECK(fs::status(folder / "f").permissions() == fs::perms(0600));
}

TEST_CASE("an AtomicFile that is not committed leaves nothing", "[runtime]") {
  TemporaryFolder folder;
  write_text(folder / "f", "old");
  {
    AtomicFile file(folder / "f");
    file.append("new");
    CHECK(read_text(folder / "f") == "old");
  }
  CHECK(read_text(folder / "f") == "old");
  CHECK(entries(folder.path()) == 1);
  AtomicFile file(folder / "f");
  file.append("new");
  file.append("er");
  file.commit();
  CHECK(read_text(folder / "f") == "newer");
  CHECK(entries(folder.path()) == 1);
}

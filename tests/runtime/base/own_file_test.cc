// Files that an earlier run of this user has made, and what could lie in their place.
#include "runtime/base/own_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/support/files.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;
using Catch::Matchers::Contains;

TEST_CASE("a file of our own is opened, and nothing else in its place", "[runtime]") {
  const TemporaryFolder folder;
  const auto path = folder / "file", other = folder / "other";
  CHECK(open_own(path, O_RDONLY) == -1);
  CHECK_FALSE(read_own_file(path, 9));
  write_text(other, "text");
  SECTION("its own") {
    write_text(path, "text");
    CHECK(read_own_file(path, 4) == "text");
    CHECK_THROWS_AS(read_own_file(path, 3), DataError);
    return;
  }
  std::string words;
  SECTION("a link") {
    std::filesystem::create_symlink("other", path);
    words = "is a symbolic link";
  }
  SECTION("a link to nowhere") {
    std::filesystem::create_symlink("nowhere", path);
    words = "is a symbolic link";
  }
  SECTION("another name of a file") {
    std::filesystem::create_hard_link(other, path);
    words = "several names";
  }
  SECTION("a folder") {
    std::filesystem::create_directory(path);
    words = "no regular file";
  }
  SECTION("a pipe, which is not waited for") {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    words = "no regular file";
  }
  SECTION("another user's") {
    write_text(path, "text");
    if (::geteuid() != 0 || ::chown(path.c_str(), 65534, 65534) != 0) return;
    words = "another user's file";
  }
  CHECK_THROWS_WITH(open_own(path, O_RDONLY), Contains("file: is ") && Contains(words));
  CHECK_THROWS_AS(read_own_file(path, 9), NotOwn);
}

TEST_CASE("a link is followed if this user has made it", "[runtime]") {
  const TemporaryFolder folder;
  const auto path = folder / "link", target = folder / "target";
  CHECK(own_target(path) == path);
  std::filesystem::create_symlink("target", path);
  CHECK_THROWS_AS(own_target(path), IoError);  // to nothing
  write_text(target, "");
  CHECK(own_target(path) == std::filesystem::canonical(target));
  if (::geteuid() != 0 || ::lchown(path.c_str(), 65534, 65534) != 0) return;
  CHECK_THROWS_AS(own_target(path), NotOwn);
}

TEST_CASE("a lock keeps others out until its descriptor is closed", "[runtime]") {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  write_text(path, "");
  const int first = open_own(path, O_RDWR), second = open_own(path, O_RDWR);
  CHECK(lock_file(path, first) == Lock::held);
  CHECK(lock_file(path, second) == Lock::taken);
  ::close(first);
  CHECK(lock_file(path, second) == Lock::held);
  ::close(second);
}

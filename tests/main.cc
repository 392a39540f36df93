// The entry of every test program; compiled once, for Catch2's takes long. A program that tests the CPU leaves out the
// test cases of the tag [gpu], and one that tests a GPU those of [cpu].
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "tests/support/program.h"

int main(int argc, char** argv) {
  Catch::Session session;
  if (const int error = session.applyCommandLine(argc, argv); error != 0) return error;
  const std::string others = weft::test::on_gpu() ? "~[cpu]" : "~[gpu]";
  auto& chosen = session.configData().testsOrTags;
  if (chosen.empty()) chosen.emplace_back();
  for (std::string& tests : chosen) tests = others + tests;
  // ctest names one test at a time: a name that it cannot pass, such as one with a semicolon, would pass as no test at
  // all.
  auto& warnings = session.configData().warnings;
  warnings = static_cast<Catch::WarnAbout::What>(warnings | Catch::WarnAbout::NoTests);
  return session.run();
}

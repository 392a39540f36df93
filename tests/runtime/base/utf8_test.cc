// tests/runtime/base/utf8_test.cc
#include "runtime/base/utf8.h"

#include <catch2/catch.hpp>
#include <random>

using namespace weft::runtime;

TEST_CASE("utf8_at reads every character and no other sequence", "[runtime]") {
  std::size_t valid = 0;
  // All sequences of up to three bytes, and of four with the last two from the edges.
  const unsigned char edges[] = {0x00, 0x41, 0x7F, 0x80, 0xBF, 0xC0, 0xFF};
  for (unsigned first = 0; first < 256; ++first)
    for (unsigned second = 0; second < 256; ++second)
      for (const unsigned char third : edges)
        for (const unsigned char fourth : edges) {
          const char bytes[] = {static_cast<char>(first), static_cast<char>(second), static_cast<char>(third),
                                static_cast<char>(fourth)};
          const Utf8Char found = utf8_at({bytes, 4}, 0);
          if (found.state == Utf8::cut) FAIL("cut, though four bytes are enough for any character");
          if (found.state != Utf8::valid) continue;
          ++valid;
          const bool shortest = found.bytes == (found.code < 0x80      ? 1
                                                : found.code < 0x800   ? 2
                                                : found.code < 0x10000 ? 3
                                                                       : 4);
          const bool character = found.code < 0x110000 && (found.code < 0xD800 || found.code > 0xDFFF);
          if (!shortest || !character) FAIL("U+" << std::hex << static_cast<std::uint32_t>(found.code));
        }
  // 128 of one byte, 30 * 64 of two, (16 * 64 - 32 overlong - 32 surrogates) of three, (5 * 64 - 16 - 48) of four.
  CHECK(valid == 128u * 256 * 49 + 30 * 64 * 49 + 960u * 2 * 7 + 256u * 2 * 2);
}

TEST_CASE("ill-formed sequences become one U+FFFD per maximal subpart", "[runtime]") {
  const std::string mark = "\xEF\xBF\xBD";
  // The example of the Unicode standard, section 3.9, table 3-8 and after.
  CHECK(with_replacements("a\xF1\x80\x80\xE1\x80\xC2"
                          "b\x80"
                          "c\x80\xBF"
                          "d") == "a" + mark + mark + mark + "b" + mark + "c" + mark + mark + "d");
  CHECK(with_replacements("\xC0\xAF\xE0\x80\xBF") == mark + mark + mark + mark + mark);
  CHECK(with_replacements("\xED\xA0\x80") == mark + mark + mark);
  CHECK(with_replacements("\xF4\x91\x92\x93") == mark + mark + mark + mark);
  CHECK(with_replacements("x\xF0\x9F\x98") == "x" + mark);
  CHECK(with_replacements("\xF4\x8F\xBF\xBF") == "\xF4\x8F\xBF\xBF");
}

TEST_CASE("a stream holds back half characters, and its cuts do not matter", "[runtime]") {
  Utf8Stream stream;
  CHECK(stream.push("a\xF0\x9F") == "a");
  CHECK(stream.push("\x98") == "");
  CHECK(stream.push("\x80!") == "\xF0\x9F\x98\x80!");
  CHECK(stream.push("\xC3") == "");
  CHECK(stream.finish() == "\xEF\xBF\xBD");
  CHECK(stream.finish() == "");

  std::mt19937 random(GENERATE(1u, 2u));
  const std::string letters = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xFF\xED\xA0";
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 30, '\0'), pieces;
    for (char& byte : bytes) byte = letters[random() % letters.size()];
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t count = random() % 4;
      pieces += stream.push(std::string_view(bytes).substr(at, count));
      at += count;
    }
    CHECK(pieces + stream.finish() == with_replacements(bytes));
  }
}

#include "kernels/error.h"

#include <catch2/catch.hpp>

using namespace weft;

TEST_CASE("an error's text cannot steer a terminal, nor pass for several lines", "[kernels]") {
  CHECK(printable("plain é 日本 text") == "plain é 日本 text");
  CHECK(printable("\x1B[31mred\r\n\t\x7F") == "\\u001b[31mred\\u000d\\u000a\\u0009\\u007f");
  CHECK(printable("\xC2\x9B csi, \xE2\x80\xAE turned \xE2\x81\xA6") == "\\u009b csi, \\u202e turned \\u2066");
  CHECK(printable("cut \xE2\x80") == "cut \xE2\x80");
  CHECK(printable(std::string(1 << 20, 'x')).size() < 9000);
  CHECK(std::string(DataError("a\nweft: error: forged").what()) == "a\\u000aweft: error: forged");
  CHECK(std::string(UsageError("two:", {"one\n", "two"}).what()) == "two:\none\\u000a\ntwo");
}

#include "runtime/base/line_stream.h"

#include <catch2/catch.hpp>
#include <vector>

#include "tests/support/files.h"

using namespace weft::test;
using weft::runtime::InputFile;
using weft::runtime::LineStream;

TEST_CASE("a line comes in pieces, with its place, whatever its length", "[runtime]") {
  constexpr std::size_t kPiece = 1 << 20;  // of the stream's reads
  const TemporaryFolder folder;
  const auto path = folder / "lines";
  for (const std::size_t length : {kPiece - 2, kPiece - 1, kPiece, kPiece + 1, 3 * kPiece + 7}) {
    CAPTURE(length);
    const std::vector<std::string> lines{"first", std::string(length - 6, 'x'), "", "y", std::string(length, 'z')};
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    text.pop_back();  // the last line is cut short
    write_text(path, text);
    const InputFile file(path);
    LineStream stream(file);
    std::size_t offset = 0;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      REQUIRE(stream.next());
      CHECK(stream.number() == i + 1);
      CHECK(stream.offset() == offset);
      std::string line;
      for (auto piece = stream.piece(); !piece.empty(); piece = stream.piece()) line += piece;
      CHECK((line == lines[i]));
      const bool last = i + 1 == lines.size();
      CHECK(stream.whole() == !last);
      offset += line.size() + (last ? 0 : 1);
      CHECK(stream.end() == offset);
    }
    CHECK_FALSE(stream.next());
  }
}

TEST_CASE("the rest of a line is skipped, by hand or by the next one", "[runtime]") {
  const TemporaryFolder folder;
  const auto path = folder / "lines";
  write_text(path, std::string(2 << 20, 'a') + "\nb\nc");
  const InputFile file(path);
  LineStream stream(file);
  REQUIRE(stream.next());
  CHECK(stream.piece().front() == 'a');
  REQUIRE(stream.next());
  stream.skip_rest();
  CHECK(stream.end() == (2 << 20) + 3);
  REQUIRE(stream.next());
  CHECK(stream.piece() == "c");
  CHECK(stream.piece().empty());
  CHECK_FALSE(stream.whole());
  CHECK_FALSE(stream.next());
}

TEST_CASE("an empty file has no line", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / "lines", "");
  const InputFile file(folder / "lines");
  CHECK_FALSE(LineStream(file).next());
}

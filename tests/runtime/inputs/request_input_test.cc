// Inputs of several files, packed files and tables: the lines that they become, where these come from, what is refused.
#include "runtime/inputs/request_input.h"

#include <zlib.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "runtime/inputs/csv.h"
#include "runtime/requests/requests.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using Catch::Matchers::Equals;
using runtime::RequestInput;

namespace {

const std::atomic<bool> kGoesOn{false};

/// Records of a text that comes in pieces of `cut` bytes.
std::vector<std::vector<std::string>> records(std::string_view text, std::size_t cut) {
  runtime::CsvReader csv(
      [&] {
        const std::string_view piece = text.substr(0, cut);
        text.remove_prefix(piece.size());
        return piece;
      },
      "f.csv");
  std::vector<std::vector<std::string>> all;
  for (std::vector<std::string> fields; csv.read(fields);) all.push_back(fields);
  return all;
}

std::string gzip(const std::string& text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(text.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::vector<std::string> lines_of(const RequestInput& input) {
  const runtime::OpenedRequests opened = runtime::open_requests(input, kGoesOn);
  std::vector<std::string> lines;
  runtime::for_each_line(opened.file,
                         [&](std::string_view text, std::uint64_t, std::size_t) { lines.emplace_back(text); });
  return lines;
}

struct Files {
  TemporaryFolder folder;
  std::string write(const std::string& name, const std::string& text) {
    write_text(folder / name, text);
    return (folder / name).string();
  }
};

}  // namespace

TEST_CASE("records of CSV, wherever they are cut", "[runtime]") {
  const std::size_t cut = GENERATE(1, 2, 3, 100);
  using Records = std::vector<std::vector<std::string>>;
  CHECK(records("a,b\n1,2\r\n\n,\n\"x, \"\"y\"\"\n\r\nz\",\"\"\n", cut) ==
        Records{{"a", "b"}, {"1", "2"}, {"", ""}, {"x, \"y\"\n\r\nz", ""}});
  CHECK(records("a\n\"\"\nlast", cut) == Records{{"a"}, {""}, {"last"}});
  CHECK(records("a,", cut) == Records{{"a", ""}});
  CHECK(records("a,b\r", cut) == Records{{"a", "b"}});
  CHECK(records("", cut).empty());
  CHECK(records("\xEF\xBB\xBF"
                "a\n",
                100) == Records{{"a"}});
}

TEST_CASE("what is no CSV is refused by its line", "[runtime]") {
  const auto [text, words] = GENERATE(table<std::string, std::string>(
      {{"a\n\"b\nc", "f.csv:2: a quoted field has no closing quote"},
       {"a\n\"b\nc\"d\n", "f.csv:3: text follows a closing quote"},
       {"a\nb\"c\n", "f.csv:2: a quote amid a field without quotes"},
       {"a\nb\rc\n", "f.csv:2: a carriage return without a newline"},
       {"a,b\nc,\xFF\n", "f.csv:2: field 2 is not UTF-8"},
       {"\xFF\xFE"
        "a",
        "f.csv:1: this is UTF-16"},
       {"a\n\"" + std::string(17 << 20, 'x'), "f.csv:2: the record is longer than 16 MiB"}}));
  CHECK_THROWS_AS(records(text, 1 << 20), UsageError);
  CHECK_THROWS_WITH(records(text, 1 << 20), Contains(words));
}

TEST_CASE("tables become request lines", "[runtime]") {
  Files files;
  RequestInput input(files.write("t.csv", "q,n,\"x y\"\n\"a \"\"b\"\"\",1,\nc,2,d\n"));
  input.columns.prompt = "q";
  CHECK(lines_of(input) == std::vector<std::string>{R"({"prompt":"a \"b\"","metadata":{"n":"1","x y":""}})",
                                                    R"({"prompt":"c","metadata":{"n":"2","x y":"d"}})"});
  input.columns = {.prompt = "", .prompt_template = "{q} {{{n}}}: {x y}!", .continuation = ""};
  CHECK(nlohmann::json::parse(lines_of(input)[1])["prompt"] == "c {2}: d!");
  CHECK(nlohmann::json::parse(lines_of(input)[1])["metadata"]["q"] == "c");
  input.columns = {.prompt = "q", .prompt_template = "", .continuation = "x y"};
  CHECK(lines_of(input)[1] == R"({"prompt":"c","continuation":"d","metadata":{"n":"2"}})");
  CHECK(lines_of(files.write("p.csv", "prompt\na\n")) == std::vector<std::string>{R"({"prompt":"a"})"});
}

TEST_CASE("tables that make no requests are refused", "[runtime]") {
  Files files;
  const auto refuse = [&](const std::string& text, runtime::TableColumns columns, const std::string& words) {
    RequestInput input(files.write("t.csv", text));
    input.columns = std::move(columns);
    CHECK_THROWS_WITH(lines_of(input), Contains(words));
  };
  refuse("", {}, "t.csv: is empty");
  refuse("a,b\n1,2\n", {}, "t.csv:1: there is no column 'prompt', the columns are 'a', 'b'; --prompt-column");
  refuse("\na,b\n1,2\n", {.prompt = "c", .prompt_template = "", .continuation = ""}, "t.csv:2: there is no column 'c'");
  refuse("a,a\n", {}, "two columns are called 'a'");
  refuse("prompt,b\n\"x\ny\",2\n3\n", {}, "t.csv:4: the record has 1 fields, the header 2");
  refuse("a\n1\n", {.prompt = "", .prompt_template = "{a", .continuation = ""}, "the brace at byte 1 is not closed");
  refuse("a\n1\n", {.prompt = "", .prompt_template = "{a}}", .continuation = ""}, "the brace at byte 4 closes nothing");
  RequestInput input(files.write("t.jsonl", "{}\n"));
  input.columns.prompt = "a";
  CHECK_THROWS_WITH(input.require(), Contains("t.jsonl: is no table; --prompt-column wants"));
  input.columns = {};
  input.paths.push_back("-");
  CHECK_THROWS_WITH(input.require(), Contains("standard input is one input of its own"));
}

TEST_CASE("several files are one, and lines are named as their files have them", "[runtime]") {
  Files files;
  RequestInput input;
  input.paths = {files.write("a.jsonl", "{\"prompt\":\"1\"}\n\n{\"prompt\":\"2\"}"),
                 files.write("b.csv", "prompt\n\"3\n\"\n4\n"),
                 files.write("c.jsonl", "\xEF\xBB\xBF{\"prompt\":\"5\"}\r\n")};
  const runtime::OpenedRequests opened = runtime::open_requests(input, kGoesOn);
  CHECK(opened.file.path() == input.paths[0] + " and 2 others");
  CHECK(lines_of(input).size() == 6);
  const auto place = [&](std::uint64_t line) { return opened.origins.place("all", line); };
  CHECK(place(1) == input.paths[0] + ":1");
  CHECK(place(3) == input.paths[0] + ":3");
  CHECK(place(4) == input.paths[1] + ":2");
  CHECK(place(5) == input.paths[1] + ":4");
  CHECK(place(6) == input.paths[2] + ":1");
  CHECK(runtime::LineOrigins().place("all", 6) == "all:6");
}

TEST_CASE("packed files are unpacked, and damaged ones refused", "[runtime]") {
  Files files;
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += "{\"prompt\":\"" + std::to_string(i * 7919) + "\"}\n";
  const std::string packed = gzip(text);
  CHECK(lines_of(files.write("a.jsonl.gz", packed)).size() == 50'000);
  CHECK(lines_of(files.write("b.jsonl", packed + gzip("{}\n"))).back() == "{}");  // one file behind another
  const std::string zeros(100, '\0');                                             // which fill up a block
  CHECK(lines_of(files.write("z.jsonl", packed + zeros + gzip("{}\n") + zeros)).back() == "{}");
  CHECK_THROWS_WITH(lines_of(files.write("c.gz", packed.substr(0, packed.size() / 2))),
                    Contains("c.gz: ends amid its packed data"));
  std::string damaged = packed;
  damaged[damaged.size() / 2] ^= 0x55;
  CHECK_THROWS_WITH(lines_of(files.write("d.gz", damaged)), Contains("is damaged ("));
  CHECK_THROWS_WITH(lines_of(files.write("e.gz", packed + "rest")), Contains("is damaged ("));
  CHECK_THROWS_AS(lines_of(files.write("f.zst", std::string("\x28\xB5\x2F\xFD rest"))), UsageError);
  CHECK(lines_of(files.write("g.csv.gz", gzip("prompt\na\n"))) == std::vector<std::string>{R"({"prompt":"a"})"});
}

// tests/runtime/text/stop_search_test.cc: the text of an answer, whatever it follows and whatever is looked for in it.
#include "runtime/text/stop_search.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "tests/support/program.h"
#include "tests/support/tokenizer.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;

namespace {

/// The text of ids that follow a prompt, from nothing but the decoding of whole lists.
std::string after(const Tokenizer& tokenizer, const Ids& prompt, const Ids& ids, bool shown) {
  IncrementalDecoder decoder(tokenizer, shown ? SpecialTokens::shown : SpecialTokens::skipped);
  decoder.follow(prompt);
  std::string text;
  for (const std::int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

Ids drawn(std::mt19937& random, const Tokenizer& tokenizer, std::size_t most) {
  Ids ids(random() % (most + 1));
  // Half of them are from the beginning, where special tokens and bytes lie.
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % (random() % 2 ? 300 : tokenizer.size()));
  return ids;
}

}  // namespace

TEST_CASE("bytes at the end of a prompt are no part of the answer", "[runtime]") {
  const Tokenizer tokenizer = Tokenizer::load(data_path("tokenizer/llama2"));
  const Ids answer = tokenizer.encode_after(tokenizer.encode("a", false), " Hello");
  int bytes = 0;
  for (const char* end : {"\n", "\n\n\n", "\xF0\x9F\x98\x80", "\xF0\x9F"}) {
    const Ids prompt = tokenizer.encode("the ball." + std::string(end), true);
    bytes += tokenizer.is_byte(prompt.back());
    CHECK(tokenizer.decode_after(prompt, answer) == " Hello");
    StopSearch search(tokenizer, prompt, {"lo"});
    bool found = false;
    for (const std::int32_t id : answer) found = search.push(id, true);
    REQUIRE(found);
    CHECK(search.text_before(prompt, answer) == " Hel");
  }
  CHECK(bytes >= 1);
  const Tokenizer& demo = demo_tokenizer();
  CHECK(demo.decode_after(demo.encode("caf\xC3", false), demo.encode(" ball", false)) == " ball");
}

TEST_CASE("a stop string may be a special token, or begin before one", "[runtime]") {
  const Tokenizer& tokenizer = demo_tokenizer();
  std::int32_t special = 0;
  while (tokenizer.shown_piece(special) == tokenizer.piece(special)) ++special;
  const std::string name(tokenizer.shown_piece(special));
  REQUIRE(tokenizer.special_token(name) == special);
  Ids ids = tokenizer.encode("the ball", false);
  ids.push_back(special);
  const Ids prompt = tokenizer.encode("a", false);
  for (const auto& [stop, text] : std::vector<std::pair<std::string, std::string>>{
           {name, "the ball"}, {"all" + name, "the b"}, {name.substr(1), "the ball"}}) {
    CAPTURE(stop);
    StopSearch search(tokenizer, prompt, {stop});
    std::size_t pushed = 0;
    while (pushed < ids.size() && !search.push(ids[pushed], true)) ++pushed;
    CHECK(pushed == ids.size() - 1);
    REQUIRE(search.found());
    CHECK(search.text_before(prompt, ids) == text);
  }
}

TEST_CASE("half a character before a special token that is a stop string is U+FFFD, as at an end of the sequence",
          "[runtime]") {
  for (const char* name : {"llama2", "llama3"}) {
    CAPTURE(name);
    const Tokenizer tokenizer = Tokenizer::load(data_path("tokenizer/" + std::string(name)));
    std::int32_t special = 0;
    while (tokenizer.shown_piece(special) == tokenizer.piece(special)) ++special;
    const Ids prompt = tokenizer.encode("a", false);
    Ids ids = tokenizer.encode_after(prompt, " b\xF0\x9F");
    const std::string plain = tokenizer.decode_after(prompt, ids);
    REQUIRE(plain.ends_with("\uFFFD"));
    ids.push_back(special);
    StopSearch search(tokenizer, prompt, {std::string(tokenizer.shown_piece(special))});
    for (const std::int32_t id : ids) search.push(id, true);
    REQUIRE(search.found());
    CHECK(search.text_before(prompt, ids) == plain);
  }
}

TEST_CASE("a space that the answer's text does not have in front ends no answer", "[runtime]") {
  const Tokenizer tokenizer = Tokenizer::load(data_path("tokenizer/llama2"));
  const Ids words = tokenizer.encode("a b", false), first{tokenizer.first_token().value()};
  REQUIRE(tokenizer.piece(words[0]) == " a");
  StopSearch hidden(tokenizer, first, {" "});
  CHECK_FALSE(hidden.push(words[0], true));
  CHECK(hidden.push(words[1], true));
  CHECK(hidden.text_before(first, words) == "a");
  StopSearch shown(tokenizer, first, {" "}, SpecialTokens::shown);
  CHECK(shown.push(words[0], true));
  // Nor does one after a special token that the answer begins with.
  StopSearch after(tokenizer, first, {" "});
  CHECK_FALSE(after.push(first[0], true));
  CHECK_FALSE(after.push(words[0], true));
  CHECK(after.push(words[1], true));
}

TEST_CASE("a stop string of tokens that may end no answer ends none later", "[runtime]") {
  const Tokenizer tokenizer = Tokenizer::load(data_path("tokenizer/llama2"));
  const Ids prompt = tokenizer.encode("a", false);
  const auto byte = [&](char c) {  // held back until it is known what they make
    for (std::int32_t id = 0; id < 300; ++id)
      if (tokenizer.is_byte(id) && tokenizer.piece(id) == std::string(1, c)) return id;
    return -1;
  };
  for (const bool look : {false, true}) {
    StopSearch search(tokenizer, prompt, {"x"});
    CHECK(search.push(byte('x'), look) == look);
    search.restart();
    search.push(byte('x'), false);
    CHECK_FALSE(search.push(byte('y'), true));
    CHECK(search.push(byte('x'), true));
  }
}

TEST_CASE("the text up to a stop string is the text without one, cut", "[runtime]") {
  std::mt19937 random(exhaustive() ? std::random_device()() : 7U);
  for (const char* name : {"llama2", "mistral", "llama3", "opt"}) {
    const Tokenizer tokenizer = Tokenizer::load(data_path("tokenizer/" + std::string(name)));
    int found = 0;
    for (int round = 0; round < (exhaustive() ? 20'000 : 1'500); ++round) {
      const Ids prompt = drawn(random, tokenizer, 4), answer = drawn(random, tokenizer, 12);
      const std::string shown = after(tokenizer, prompt, answer, true);
      std::string stop;
      if (!shown.empty()) {
        const std::size_t from = random() % shown.size();
        stop = with_replacements(shown.substr(from, 1 + random() % 6));
      }
      if (stop.empty() || stop.find("\uFFFD") != std::string::npos) continue;
      StopSearch search(tokenizer, prompt, {stop});
      Ids pushed;
      for (const std::int32_t id : answer) {
        pushed.push_back(id);
        if (search.push(id, true)) break;
      }
      CAPTURE(name, round, prompt, pushed, stop);
      const std::string so_far = after(tokenizer, prompt, pushed, true);
      if (search.found() != (so_far.find(stop) != std::string::npos)) CHECK(search.found());
      if (!search.found()) continue;
      ++found;
      const std::string text = search.text_before(prompt, pushed), plain = tokenizer.decode_after(prompt, pushed);
      if (!plain.starts_with(text)) CHECK(text == plain);
      // Without special tokens among them both are one text.
      const bool special = std::any_of(pushed.begin(), pushed.end(), [&](std::int32_t id) {
        return tokenizer.shown_piece(id) != tokenizer.piece(id);
      });
      if (!special && text != plain.substr(0, plain.find(stop))) CHECK(text == plain.substr(0, plain.find(stop)));
    }
    CHECK(found > 100);
  }
}

TEST_CASE("a prompt and its continuation are read as one text", "[runtime]") {
  for (const char* name : {"llama2", "mistral", "llama3", "opt"}) {
    CAPTURE(name);
    const Tokenizer tokenizer = Tokenizer::load(data_path("tokenizer/" + std::string(name)));
    for (const auto& [prompt, continuation] :
         std::vector<std::pair<std::string, std::string>>{{"The capital of France is", " Paris"},
                                                          {"The capital of France is ", "Paris"},
                                                          {"Par", "is"},
                                                          {"a\n", "b"}}) {
      CAPTURE(prompt);
      const auto [before, rest] = tokenizer.encode_pair(prompt, continuation, true);
      Ids all = before;
      all.insert(all.end(), rest.begin(), rest.end());
      CHECK(before == tokenizer.encode(prompt.substr(0, prompt.find_last_not_of(" \n") + 1), true));
      if (prompt.back() != 'r') CHECK(all == tokenizer.encode(prompt + continuation, true));
    }
    const Ids prompt = tokenizer.encode("The capital of France is", true);
    CHECK(tokenizer.encode_after(prompt, " Paris") ==
          tokenizer.encode_pair("The capital of France is", " Paris", true).second);
  }
}

// tests/support/tokenizer.h: the fixtures of make_tokenizer_fixtures.py, and the checks that every tokenizer must pass.
#pragma once

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "runtime/text/tokenizer.h"
#include "tests/support/files.h"

namespace weft::test {

using Ids = std::vector<std::int32_t>;

/// The demo model's tokenizer.
inline const runtime::Tokenizer& demo_tokenizer() {
  static const runtime::Tokenizer tokenizer = runtime::Tokenizer::load(source_path("models/demo"));
  return tokenizer;
}

inline std::vector<nlohmann::json> lines_of(const std::filesystem::path& path) {
  std::istringstream text(read_text(path));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

inline std::vector<std::string> fixture_strings() {
  std::vector<std::string> strings;
  for (const nlohmann::json& line : lines_of(data_path("tokenizer/strings.jsonl"))) {
    if (line.is_string()) {
      strings.push_back(line.get<std::string>());
      continue;
    }
    strings.emplace_back();
    for (int i = 0; i < line[1].get<int>(); ++i) strings.back() += line[0].get<std::string>();
  }
  return strings;
}

inline std::string incrementally(const runtime::Tokenizer& tokenizer, const Ids& ids) {
  runtime::IncrementalDecoder decoder(tokenizer);
  std::string text;
  for (const std::int32_t id : ids) {
    const std::string piece = decoder.push(id);
    if (runtime::with_replacements(piece) != piece) return "a piece is no UTF-8";
    text += piece;
  }
  return text + decoder.finish();
}

inline void check_decoded(const runtime::Tokenizer& tokenizer, const std::string& name) {
  for (const nlohmann::json& line : lines_of(data_path("tokenizer/" + name + "/decoded.jsonl"))) {
    const Ids ids = line[0].get<Ids>();
    CAPTURE(ids);
    if (tokenizer.decode(ids) != line[1].get<std::string>()) CHECK(tokenizer.decode(ids) == line[1].get<std::string>());
    if (incrementally(tokenizer, ids) != line[1].get<std::string>())
      CHECK(incrementally(tokenizer, ids) == line[1].get<std::string>());
  }
}

/// The message with which a folder is refused, or "accepted".
inline std::string refusal(const std::filesystem::path& folder) {
  try {
    runtime::Tokenizer::load(folder);
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace weft::test

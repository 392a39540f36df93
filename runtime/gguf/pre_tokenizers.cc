// runtime/gguf/pre_tokenizers.cc: the table of pre-tokenizers. Patterns are those of the models' own tokenizer.json.
#include "runtime/gguf/pre_tokenizers.h"

#include <algorithm>

namespace weft::runtime {
namespace {

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";

// DeepSeek's, which cut at each of several patterns in turn.
constexpr const char *kThreeDigits = R"(\p{N}{1,3})", *kLineEnd = R"([\r\n])";
constexpr const char *kKanjiAndKana = "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
                     *kKanjiAndHangul = "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+";
constexpr const char* kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// Letters that have capitals, as they were listed for the first models.
constexpr const char* kDeepSeekLetters =
    R"(\s?[)"
    "A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373"
    "\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481"
    "\u048A-\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B"
    "\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B"
    "\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB"
    "\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128"
    "\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4"
    "\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF"
    "\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3"
    "\U000104D8-\U000104FB\U00010C80-\U00010CB2\U00010CC0-\U00010CF2\U000118A0-\U000118DF"
    "\U0001E900-\U0001E943"
    "]+";
constexpr const char* kDeepSeekMarks = R"(\s?[!-/:-~)"
                                       "\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+";

constexpr std::array kPreTokenizers{
    PreTokenizer{.name = "gpt-2"},
    PreTokenizer{.name = "mellum"},
    PreTokenizer{.name = "granite-docling"},
    PreTokenizer{.name = "exaone4"},
    PreTokenizer{.name = "olmo", .nfc = true},
    PreTokenizer{.name = "smollm", .digits = true},
    PreTokenizer{.name = "refact", .digits = true},
    PreTokenizer{.name = "starcoder", .digits = true},
    PreTokenizer{.name = "command-r", .digits = true, .nfc = true},
    PreTokenizer{.name = "dbrx", .patterns = {kLlama3}},
    PreTokenizer{.name = "glm4", .patterns = {kLlama3}, .whole_words = true},
    PreTokenizer{.name = "chatglm-bpe", .patterns = {kLlama3}},
    PreTokenizer{.name = "llama-bpe", .patterns = {kLlama3}, .whole_words = true, .begins = true},
    PreTokenizer{.name = "llama3", .patterns = {kLlama3}, .whole_words = true, .begins = true},
    PreTokenizer{.name = "llama-v3", .patterns = {kLlama3}, .whole_words = true, .begins = true},
    PreTokenizer{.name = "falcon3", .patterns = {kLlama3}, .whole_words = true, .begins = true},
    PreTokenizer{.name = "midm-2.0", .patterns = {kLlama3}, .whole_words = true, .begins = true},
    PreTokenizer{.name = "smaug-bpe", .patterns = {kLlama3}, .whole_words = true},
    PreTokenizer{.name = "qwen2", .patterns = {kQwen2}, .nfc = true},
    PreTokenizer{.name = "deepseek-r1-qwen", .patterns = {kQwen2}, .nfc = true},
    PreTokenizer{.name = "hunyuan", .patterns = {kQwen2}},
    PreTokenizer{.name = "stablelm2", .patterns = {kQwen2}},
    PreTokenizer{.name = "minimax-m2", .patterns = {kO200k}},
    PreTokenizer{.name = "seed-coder", .patterns = {kSeedCoder}},
    PreTokenizer{.name = "gpt-4o", .patterns = {kO200k}, .whole_words = true},
    PreTokenizer{.name = "llama4", .patterns = {kO200k}, .whole_words = true},
    PreTokenizer{.name = "tekken", .patterns = {kTekken}, .whole_words = true, .begins = true},
    PreTokenizer{.name = "deepseek-llm",
                 .patterns = {kLineEnd, kDeepSeekLetters, kDeepSeekMarks, R"(\s+$)", kKanjiAndHangul},
                 .digits = true},
    PreTokenizer{.name = "deepseek-coder",
                 .patterns = {kLineEnd, R"(\s?\p{L}+)", R"(\s?\p{P}+)", kKanjiAndHangul},
                 .digits = true},
    PreTokenizer{.name = "deepseek-v3", .patterns = {kThreeDigits, kKanjiAndKana, kDeepSeek3}},
    PreTokenizer{.name = "hunyuan-dense", .patterns = {kThreeDigits, kKanjiAndKana, kDeepSeek3}},
};

}  // namespace

const PreTokenizer* pre_tokenizer(std::string_view name) {
  const auto* const found = std::find_if(kPreTokenizers.begin(), kPreTokenizers.end(),
                                         [&](const PreTokenizer& each) { return each.name == name; });
  return found == kPreTokenizers.end() ? nullptr : found;
}

std::string pre_tokenizer_names() {
  std::string names;
  for (const PreTokenizer& each : kPreTokenizers) names += (names.empty() ? "" : ", ") + std::string(each.name);
  return names;
}

}  // namespace weft::runtime

// runtime/text/tokenizer_config.h: reads the small files next to a tokenizer.model as transformers 5 does.
// Each function throws DataError in one line that names the file and the entry.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/model_texts.h"
#include "runtime/pieces/model_file.h"
#include "runtime/text/tokenizer_files.h"

namespace weft::runtime {

/// The classes of transformers by which a tokenizer.model is read.
enum class SentenceClass : std::uint8_t {
  any,    ///< TokenizersBackend: the model's own rules
  llama,  ///< LlamaTokenizer
  gemma,  ///< GemmaTokenizer
};
/// The class that transformers chooses by tokenizer_class and model_type. Refuses others by name.
SentenceClass sentence_class(const ModelTexts& files);

/// The texts that added_tokens_decoder, or else added_tokens.json, gives to ids.
std::map<std::int64_t, std::string> piece_names(const ModelTexts& files);
/// The texts of the tokens that the files next to a tokenizer.model do not mention, by role: those of the class or of
/// the model itself.
std::map<std::string, std::string> default_tokens(const ModelTexts& files);
/// The text of a token by its role, such as unk_token; nothing if the files name none.
std::optional<std::string> config_token(const ModelTexts& files, const char* role);

/// The tokens that are found before any word: those of the files, then the model's own. `names` are the pieces' texts.
AddedTokenTable read_sentence_tokens(const ModelTexts& files, SentenceClass kind, const PieceModel& model,
                                     const std::vector<std::string>& names);

}  // namespace weft::runtime

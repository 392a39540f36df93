#include "runtime/checkpoint/model_files.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <span>

#include "kernels/error.h"
#include "runtime/base/files.h"
#include "runtime/base/hash.h"
#include "runtime/gguf/gguf_texts.h"

namespace weft::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestText = std::size_t{128} << 20, kLargestRef = 4096;

fs::path hub_cache() {
  const auto folder = [](const char* variable) -> fs::path {
    const char* const value = std::getenv(variable);
    return value ? value : "";
  };
  if (const fs::path cache = folder("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const fs::path home = folder("HF_HOME"); !home.empty()) return home / "hub";
  if (const fs::path home = folder("HOME"); !home.empty()) return home / ".cache" / "huggingface" / "hub";
  return {};
}

/// Whether `name` may be that of a model in the Hub: ORG/NAME.
bool may_be_of_hub(const fs::path& name) { return name.is_relative() && std::distance(name.begin(), name.end()) == 2; }

/// The snapshot of ORG/NAME that its branch `main` names; nothing if the cache has none.
std::optional<fs::path> cached_snapshot(const fs::path& name) {
  const fs::path cache = hub_cache();
  if (cache.empty()) return {};
  const fs::path model = cache / ("models--" + name.begin()->string() + "--" + std::next(name.begin())->string());
  const fs::path ref = model / "refs" / "main";
  if (!fs::exists(ref)) return {};
  std::string commit = read_file(ref, kLargestRef);
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == '\r')) commit.pop_back();
  if (commit.empty() || commit.find('/') != std::string::npos || commit.starts_with('.'))
    throw DataError(ref.string() + ": names no snapshot; download the model again (hf download " + name.string() + ")");
  const fs::path snapshot = model / "snapshots" / commit;
  if (!fs::is_directory(snapshot))
    throw DataError(snapshot.string() + ": there is no such folder, although " + ref.string() +
                    " names it; download the model again (hf download " + name.string() + ")");
  return snapshot;
}

fs::path resolved(const fs::path& name, const std::string& flag) {
  if (fs::exists(name)) {
    for (const char* const text : kModelTexts)
      if (const std::string words = dangling_link(name / text); !words.empty()) throw UsageError(words);
    return name;
  }
  const bool hub = may_be_of_hub(name);
  if (hub)
    if (auto snapshot = cached_snapshot(name)) return *std::move(snapshot);
  throw UsageError(flag + name.string() + ": there is no such folder or file" +
                   (hub ? "; a model of the Hugging Face Hub must be downloaded first (hf download " + name.string() +
                              "; looked for in " + hub_cache().string() + ")"
                        : ""));
}

/// A hash of the bytes before the tensors.
std::uint64_t header_hash(const Gguf& gguf) {
  constexpr std::uint64_t kPiece = 1 << 20;
  const InputFile file(gguf.path);
  std::string piece;
  std::uint64_t sum = 0;
  for (std::uint64_t at = 0; at < gguf.header_bytes; at += kPiece) {
    piece.resize(static_cast<std::size_t>(std::min(kPiece, gguf.header_bytes - at)));
    file.read(at, std::as_writable_bytes(std::span(piece)));
    sum = mix(sum ^ hash(piece));
  }
  return sum;
}

}  // namespace

ModelFiles ModelFiles::open(const fs::path& name, const std::string& flag) {
  ModelFiles files;
  files.path_ = resolved(name, flag);
  if (fs::is_directory(files.path_)) {
    files.texts_ = std::make_unique<ModelTexts>(files.path_);
  } else if (is_gguf(files.path_)) {
    files.gguf_ = std::make_unique<GgufModel>(GgufModel::open(files.path_));
    files.texts_ = std::make_unique<ModelTexts>(gguf_texts(*files.gguf_));
  } else {
    files.texts_ = std::make_unique<ModelTexts>(ModelTexts::config_alone(files.path_));
  }
  return files;
}

policy::Quantisation ModelFiles::quantisation() const {
  return gguf_ ? gguf_quantisation(*gguf_) : policy::Quantisation{};
}

std::vector<std::pair<std::string, std::string>> ModelFiles::fingerprints() const {
  std::vector<std::pair<std::string, std::string>> found;
  if (gguf_) {
    for (const Gguf& part : gguf_->parts)
      found.emplace_back(part.path.filename().string() + " (metadata)", to_hex(header_hash(part)));
    return found;
  }
  for (const char* const name : kModelTexts)
    if (texts_->has(name)) found.emplace_back(name, to_hex(mix(hash(texts_->read(name, kLargestText)))));
  return found;
}

}  // namespace weft::runtime

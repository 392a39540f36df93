#include "runtime/model/packed_copy.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/files.h"
#include "runtime/base/hash.h"
#include "runtime/base/own_file.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/model/fingerprint.h"

namespace weft::runtime {
namespace {

namespace fs = std::filesystem;

// Raise this whenever the same numbers are quantised or laid out in another way (kernels/quantised.cc,
// Weights::quantise(), put_levels()).
constexpr int kQuantiser = 4;
constexpr std::string_view kBegin = "weft-packed-", kEnd = ".safetensors";
constexpr const char *kOf = "of", *kModel = "model", *kWeights = "weights";  // in the metadata

/// A hash of what the copy's contents follow from, as far as samples of the weights show that.
std::string made_of(const ModelSource& source) {
  const policy::WeightFormat& format = *source.weight_format;
  const auto& files = source.checkpoint->files();
  const auto is_weights = [&](const std::string& name) {
    return std::any_of(files.begin(), files.end(), [&](const fs::path& file) { return file.filename() == name; });
  };
  std::uint64_t sum = hash(std::to_string(kQuantiser) + " " + name_of(format.dtype) + " " +
                           std::to_string(format.group) + " " + name_of(source.type));
  for (const auto& [name, value] : fingerprints(source))
    if (name == "config.json" || is_weights(name)) sum = mix(sum ^ hash(name + " " + value));
  return to_hex(sum);
}

/// The model's name in a file name: what is not a letter, a digit, a dot or an underscore becomes a dash.
std::string plain_name(const ModelSource& source) {
  constexpr std::size_t most = 80;
  fs::path path = shown_name(source.path);
  if (!path.has_filename()) path = path.parent_path();
  std::string name = path.filename().string().substr(0, most);
  for (char& letter : name)
    if (!std::isalnum(static_cast<unsigned char>(letter)) && letter != '.' && letter != '_') letter = '-';
  return name;
}

std::string place_of_model(const fs::path& path) {
  std::error_code unknown;
  const fs::path real = fs::weakly_canonical(path, unknown);
  return (unknown ? path : real).string();
}

fs::path place_of(const ModelSource& source, const fs::path& folder) {
  const policy::WeightFormat& format = *source.weight_format;
  return folder /
         (std::string(kBegin) + plain_name(source) + "-" + name_of(format.dtype) + "-" + std::to_string(format.group) +
          "-" + name_of(source.type) + "-" + made_of(source) + std::string(kEnd));
}

UnitSizes sizes_of(const ModelSource& source) {
  UnitSizes sizes;
  for (std::size_t unit = 0; unit < source.units.size(); ++unit)
    sizes.push_back(source.weights->in_files(unit) ? std::nullopt : std::optional(source.weights->unit_bytes()[unit]));
  return sizes;
}

/// What a copy says of itself. Reads all weights files for their checksums.
Metadata describe(const ModelSource& source, const std::atomic<bool>& stop) {
  nlohmann::json weights = nlohmann::json::object();
  const Checkpoint& checkpoint = *source.checkpoint;
  for (std::size_t i = 0; i < checkpoint.files().size(); ++i)
    weights[checkpoint.files()[i].filename().string()] = {{"state", checkpoint.state(i).text()},
                                                          {"crc32c", checkpoint.checksum(i, stop)}};
  return {{kOf, made_of(source)}, {kModel, place_of_model(source.path)}, {kWeights, policy::to_line(weights)}};
}

/// Whether a file is the same by its state. The number of its device may be another after each mount.
bool same_state(const FileState& a, FileState b) {
  b.device = a.device;
  return a == b;
}

/// Describes how the weights differ from those that a copy says it is of; empty if they do not.
std::string difference(const Metadata& said, const ModelSource& source, const std::atomic<bool>& stop) {
  const auto text = [&](const char* key) {
    const auto it = said.find(key);
    return it == said.end() ? std::string() : it->second;
  };
  if (text(kOf) != made_of(source)) return "is of another model or in another format";
  const auto weights = policy::parse_json(text(kWeights), "weights", policy::Blame::data, {.depth = 4});
  const Checkpoint& checkpoint = *source.checkpoint;
  for (std::size_t i = 0; i < checkpoint.files().size(); ++i) {
    const std::string name = checkpoint.files()[i].filename().string();
    if (!weights.contains(name)) return "does not know " + name;
    policy::Fields fields(weights.at(name), "weights", policy::Blame::data);
    const auto was = FileState::from_text(fields.text("state"));
    const auto crc = static_cast<std::uint32_t>(fields.integer("crc32c", 0, UINT32_MAX));
    if (was && same_state(*was, checkpoint.state(i))) continue;
    if (!was || was->size != checkpoint.state(i).size || checkpoint.checksum(i, stop) != crc)
      return "is of other contents of " + checkpoint.files()[i].string();
  }
  return "";
}

/// Opens the copy that is there; null if there is none. Throws NotOwn, or what is wrong with it.
std::unique_ptr<PackedCopy> open_earlier(const fs::path& file, const ModelSource& source, const UnitSizes& sizes,
                                         const std::atomic<bool>& stop) {
  const int fd = open_own(file, O_RDONLY);
  if (fd < 0) return nullptr;
  Checkpoint opened = Checkpoint::open_file(InputFile(fd, file));
  if (const std::string words = difference(opened.metadata(), source, stop); !words.empty())
    throw DataError(file.string() + ": " + words);
  auto copy = std::make_unique<PackedCopy>(std::move(opened), sizes);
  copy->file.verify(stop);
  return copy;
}

InputFile reopened(AtomicFile& to, const fs::path& file, bool named) {
  if (named) {
    to.commit();
    return InputFile(open_own(file, O_RDONLY), file);
  }
  const int fd = to.keep_nameless();
  return InputFile(fd, "/proc/self/fd/" + std::to_string(fd));  // the name by which the disk store opens it too
}

}  // namespace

std::unique_ptr<PackedCopy> open_packed_copy(const ModelSource& source, const fs::path& folder,
                                             const std::atomic<bool>& stop) {
  const fs::path file = place_of(source, folder);
  const UnitSizes sizes = sizes_of(source);
  std::string wrong;
  bool named = true;
  try {
    if (auto copy = open_earlier(file, source, sizes, stop)) return copy;
  } catch (const NotOwn& foreign) {
    wrong = foreign.what() + std::string("; this run makes a copy of its own, which goes with it");
    named = false;
  } catch (const Error& damaged) {
    wrong = damaged.what() + std::string("; the copy is made anew");
    ::unlink(file.c_str());  // its space may be needed
  }
  if (!wrong.empty() && source.warn) source.warn(wrong);
  const Metadata said = describe(source, stop);
  AtomicFile to(named ? file : folder / ".weft-own-copy", {.link = AtomicFile::Link::refuse, .replace = named});
  write_packed(
      to, file, [&](std::size_t unit, std::byte* bytes) { source.weights->make(unit, bytes, stop); }, sizes, said, stop,
      source.packing);
  source.checkpoint->require_unchanged(stop);  // before anybody takes it for theirs
  return std::make_unique<PackedCopy>(Checkpoint::open_file(reopened(to, file, named)), sizes);
}

std::uint64_t packed_copy_bytes(const ModelSource& source) {
  std::uint64_t bytes = 0;
  for (const auto& size : sizes_of(source)) bytes += size.value_or(0);
  return bytes;
}

std::uint64_t packed_copy_there(const ModelSource& source, const fs::path& folder) try {
  const int fd = open_own(place_of(source, folder), O_RDONLY);
  return fd < 0 ? 0 : InputFile(fd, folder).size();
} catch (const Error&) {  // another user's
  return 0;
}

std::vector<FoundCopy> packed_copies(const fs::path& path, const fs::path& folder) {
  std::vector<FoundCopy> found;
  std::error_code error;
  for (const fs::path& path_of_copy : entries_of(folder, error)) {
    const std::string name = path_of_copy.filename().string();
    if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) continue;
    try {
      const int fd = open_own(path_of_copy, O_RDONLY);
      if (fd < 0) continue;
      const InputFile file(fd, path_of_copy);
      Metadata said;
      read_safetensors(file, &said);
      if (said[kModel] == place_of_model(path)) found.push_back({path_of_copy, file.size()});
    } catch (const Error&) {  // another user's, or damaged
    }
  }
  if (error) throw IoError(folder.string() + ": cannot be read: " + error.message());
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.file < b.file; });
  return found;
}

}  // namespace weft::runtime

// runtime/checkpoint/torch_bin.cc: finds the storages of a PyTorch file, and the part of a storage that each tensor is.
#include "runtime/checkpoint/torch_bin.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "runtime/base/quote.h"
#include "runtime/checkpoint/checkpoint_error.h"
#include "runtime/checkpoint/pickle.h"
#include "runtime/checkpoint/zip_reader.h"

namespace weft::runtime {

static_assert(std::endian::native == std::endian::little, "storages are used as they lie in the file");

namespace {

using Kind = PickleValue::Kind;

constexpr std::uint64_t kMostPickleBytes = std::uint64_t{64} << 20;
constexpr std::size_t kMostTensorNameBytes = 1024, kShownKeys = 5;
constexpr std::int64_t kMostTensorRows = std::int64_t{1} << 48;
constexpr std::string_view kMagic("\x80\x02\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19.", 15);
constexpr std::string_view kVersion("\x80\x02M\xE9\x03.", 6);

[[noreturn]] void fail_pickle(Fault fault, const std::string& where, const std::string& what) {
  throw CheckpointError(fault, where + ": " + what);
}

std::string read_at(const InputFile& file, std::uint64_t offset, std::uint64_t bytes) {
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

struct Storage {
  std::uint8_t type = 0;
  std::uint64_t elements = 0, offset = 0;
  unsigned element_bytes() const { return kStorageTypes[type].bytes; }
};
using Storages = std::map<std::string, Storage, std::less<>>;

/// Every storage that a pickle names, without its offset in the file. Each key has one type and size, whose bytes fit
/// 63 bits.
Storages storages_of(const Pickle& pickle, const std::string& where) {
  Storages storages;
  for (const PickleValue& value : pickle.values) {
    if (value.kind != Kind::storage) continue;
    const Storage storage{value.type, static_cast<std::uint64_t>(value.integer), 0};
    const std::string what = "storage " + in_quotes(value.text);
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(storage.elements, std::uint64_t{storage.element_bytes()}, &bytes) ||
        bytes > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
      fail_pickle(Fault::bad_storage, where,
                  what + " of " + std::to_string(storage.elements) + " elements is impossibly large");
    const auto [known, fresh] = storages.emplace(value.text, storage);
    if (!fresh && (known->second.type != storage.type || known->second.elements != storage.elements))
      fail_pickle(Fault::bad_storage, where, what + " is named with two types or sizes");
  }
  return storages;
}

std::vector<std::int64_t> integers(const Pickle& pickle, std::uint32_t tuple) {
  std::vector<std::int64_t> values;
  for (const std::uint32_t item : pickle.values[tuple].items) values.push_back(pickle.values[item].integer);
  return values;
}

/// Returns the number of elements, after checking that none is outside the storage and that no two are in one place.
std::uint64_t check_extent(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides,
                           std::uint64_t first, std::uint64_t available, const std::string& where) {
  const auto outside = [&] {
    fail_pickle(Fault::data_past_end, where,
                "it reaches past its storage of " + std::to_string(available) + " elements");
  };
  std::uint64_t count = 1, last = first;
  for (const std::int64_t rows : shape)
    if (rows == 0) count = 0;
  if (first > available) outside();
  if (count == 0) return 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> steps;  // stride, rows - 1
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const auto rows = static_cast<std::uint64_t>(shape[i]), stride = static_cast<std::uint64_t>(strides[i]);
    std::uint64_t reach = 0;
    if (__builtin_mul_overflow(count, rows, &count))
      fail_pickle(Fault::shape_too_large, where, "its size is over 64 bits");
    if (__builtin_mul_overflow(rows - 1, stride, &reach) || __builtin_add_overflow(last, reach, &last)) outside();
    if (rows > 1) steps.emplace_back(stride, rows - 1);
  }
  if (last >= available) outside();
  std::sort(steps.begin(), steps.end());
  std::uint64_t reached = 0;  // no overflow: at most `last`
  for (const auto& [stride, more] : steps) {
    if (stride <= reached) fail_pickle(Fault::overlap, where, "its strides put two elements on one place");
    reached += stride * more;
  }
  return count;
}

bool is_row_major(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides) {
  std::int64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] > 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

TensorInfo tensor_of(const Pickle& pickle, std::string_view name, const PickleValue& value, const Storages& storages,
                     const std::string& file) {
  const std::string where = file + ": tensor " + in_quotes(name);
  const Storage& storage = storages.find(pickle.values[value.items[0]].text)->second;
  TensorInfo tensor;
  tensor.name = name;
  tensor.dtype = kStorageTypes[storage.type].dtype;
  tensor.shape = integers(pickle, value.items[1]);
  std::vector<std::int64_t> strides = integers(pickle, value.items[2]);
  if (tensor.shape.size() != strides.size())
    fail_pickle(Fault::bad_shape, where,
                "it has " + std::to_string(tensor.shape.size()) + " dimensions and " + std::to_string(strides.size()) +
                    " strides");
  if (value.integer < 0) fail_pickle(Fault::bad_offsets, where, "its offset is negative");
  for (std::size_t i = 0; i < strides.size(); ++i) {
    if (tensor.shape[i] < 0 || strides[i] < 0) fail_pickle(Fault::bad_shape, where, "it has a negative size or stride");
    if (tensor.shape[i] > kMostTensorRows) fail_pickle(Fault::shape_too_large, where, "it has a dimension over 2^48");
  }
  const auto first = static_cast<std::uint64_t>(value.integer);
  const std::uint64_t count = check_extent(tensor.shape, strides, first, storage.elements, where);
  tensor.bytes = count * storage.element_bytes();
  tensor.offset = storage.offset + first * storage.element_bytes();
  if (count && !is_row_major(tensor.shape, strides)) tensor.strides = std::move(strides);
  return tensor;
}

/// Lists the keys of the outermost dict, such as "'model', 'optimizer' and 3 more".
std::string keys_of(const Pickle& pickle, const PickleValue& dict) {
  std::string text;
  const std::size_t count = dict.items.size() / 2;
  for (std::size_t i = 0; i < count && i < kShownKeys; ++i) {
    const PickleValue& key = pickle.values[dict.items[2 * i]];
    text += (i ? ", " : "") + (key.kind == Kind::text ? in_quotes(key.text) : std::to_string(key.integer));
  }
  return text + (count > kShownKeys ? " and " + std::to_string(count - kShownKeys) + " more" : "");
}

std::vector<TensorInfo> tensors_of(const Pickle& pickle, const Storages& storages, const std::string& where) {
  const PickleValue& root = pickle.values[pickle.root];
  if (root.kind != Kind::dict && root.kind != Kind::ordered_dict)
    fail_pickle(Fault::not_an_object, where, "it holds no dict of tensors; save model.state_dict()");
  std::vector<TensorInfo> tensors;
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < root.items.size(); i += 2) {
    const PickleValue &key = pickle.values[root.items[i]], &value = pickle.values[root.items[i + 1]];
    if (key.kind != Kind::text || value.kind != Kind::tensor)
      fail_pickle(
          Fault::bad_entry, where,
          "not every entry is a tensor with a name: it holds " + keys_of(pickle, root) + "; save the state_dict alone");
    if (key.text.empty() || key.text.size() > kMostTensorNameBytes)
      fail_pickle(Fault::bad_name, where,
                  "a tensor has a name of " + std::to_string(key.text.size()) + " bytes, wanted 1 to 1024");
    if (!names.insert(key.text).second)
      fail_pickle(Fault::duplicate_tensor, where, "tensor " + in_quotes(key.text) + " appears twice");
    tensors.push_back(tensor_of(pickle, key.text, value, storages, where));
  }
  return tensors;
}

const ZipRecord* find(const std::vector<ZipRecord>& records, std::string_view name) {
  const auto at = std::lower_bound(records.begin(), records.end(), name,
                                   [](const ZipRecord& r, std::string_view n) { return r.name < n; });
  return at != records.end() && at->name == name ? &*at : nullptr;
}

/// Checks the small records that specify how to read data.pkl and the storages.
void check_records(const InputFile& file, const std::vector<ZipRecord>& records, const std::string& where) {
  constexpr std::uint64_t kMostWordBytes = 16;
  const auto word = [&](const ZipRecord& record) {
    std::string text = read_at(file, record.offset, std::min(record.bytes, kMostWordBytes));
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
    return text;
  };
  if (find(records, "constants.pkl") || find(records, "model.json"))
    fail_pickle(Fault::bad_record, where, "it is a TorchScript program; save model.state_dict()");
  const ZipRecord *version = find(records, "version"), *order = find(records, "byteorder");
  if (!version) version = find(records, ".data/version");
  if (!version) fail_pickle(Fault::bad_record, where, "the record 'version' is missing");
  const std::string number = word(*version);
  const bool one_digit = number.size() == 1 && number[0] >= '1' && number[0] <= '9';
  if (!one_digit && number != "10") fail_pickle(Fault::bad_record, where, "the record 'version' is none of 1 to 10");
  const std::string endian = order ? word(*order) : "little";
  if (endian == "big")
    fail_pickle(Fault::bad_record, where, "it is big-endian; convert it on the machine that wrote it");
  if (endian != "little") fail_pickle(Fault::bad_record, where, "the record 'byteorder' is neither little nor big");
  for (const ZipRecord& record : records) {
    const std::string& name = record.name;
    if (name[0] != '.' && name.rfind("data/", 0) != 0 && name != "data.pkl" && name != "version" && name != "byteorder")
      fail_pickle(Fault::bad_record, where, "the record " + in_quotes(name) + " is none that torch.save() writes");
  }
}

TorchFile read_archive(const InputFile& file) {
  const std::string where = file.path().string();
  const std::vector<ZipRecord> records = read_zip(file);
  check_records(file, records, where);
  const ZipRecord* program = find(records, "data.pkl");
  if (!program) fail_pickle(Fault::bad_record, where, "the record 'data.pkl' is missing");
  if (program->bytes > kMostPickleBytes) fail_pickle(Fault::bad_record, where, "the record 'data.pkl' is over 64 MiB");
  const std::string text = read_at(file, program->offset, program->bytes);
  if (crc32(std::as_bytes(std::span(text))) != program->crc)
    fail_pickle(Fault::bad_record, where, "the record 'data.pkl' does not have its checksum; download the file again");

  const Pickle pickle = read_pickle({text, 0, where + ": data.pkl", false});
  Storages storages = storages_of(pickle, where);
  TorchFile result;
  for (auto& [key, storage] : storages) {
    const ZipRecord* record = find(records, "data/" + key);
    if (!record) fail_pickle(Fault::bad_storage, where, "the record 'data/" + key + "' is missing");
    if (record->bytes != storage.elements * storage.element_bytes())
      fail_pickle(Fault::size_mismatch, where,
                  "the record 'data/" + key + "' has " + std::to_string(record->bytes) + " bytes, wanted " +
                      std::to_string(storage.elements * storage.element_bytes()));
    storage.offset = record->offset;
    result.checksums.push_back({0, record->name, record->offset, record->bytes, record->crc});
  }
  std::size_t unused = 0;
  for (const ZipRecord& record : records)
    if (record.name.rfind("data/", 0) == 0 && storages.find(std::string_view(record.name).substr(5)) == storages.end())
      ++unused;
  result.tensors = tensors_of(pickle, storages, where);
  if (unused) result.notes.push_back(where + ": " + std::to_string(unused) + " records belong to no tensor");
  return result;
}

/// Finds the place of each storage in the list of keys, up to the very end of the file.
void place_legacy(const InputFile& file, const Pickle& keys, std::uint64_t at, Storages& storages,
                  const std::string& where) {
  const PickleValue& list = keys.values[keys.root];
  if (list.kind != Kind::list) fail_pickle(Fault::bad_storage, where, "there is no list of storages");
  std::set<std::string_view> placed;
  for (const std::uint32_t item : list.items) {
    const std::string_view key = keys.values[item].text;
    const auto found = storages.find(key);
    const std::string what = "storage " + in_quotes(key);
    if (keys.values[item].kind != Kind::text || found == storages.end())
      fail_pickle(Fault::bad_storage, where, what + " belongs to no tensor");
    if (!placed.insert(key).second) fail_pickle(Fault::bad_storage, where, what + " appears twice");
    Storage& storage = found->second;
    if (file.size() - at < 8)
      fail_pickle(Fault::data_past_end, where, what + " begins past the end: download it again");
    const std::string head = read_at(file, at, 8);
    std::uint64_t elements = 0;
    for (std::size_t i = 0; i < 8; ++i) elements |= std::uint64_t{static_cast<unsigned char>(head[i])} << (8 * i);
    if (elements != storage.elements)
      fail_pickle(Fault::size_mismatch, where,
                  what + " has " + std::to_string(elements) + " elements, wanted " + std::to_string(storage.elements));
    storage.offset = at + 8;
    const std::uint64_t bytes = storage.elements * storage.element_bytes();
    if (file.size() - storage.offset < bytes)
      fail_pickle(Fault::data_past_end, where,
                  what + " of " + std::to_string(bytes) + " bytes ends past the end of the file: download it again");
    at = storage.offset + bytes;
  }
  if (placed.size() != storages.size())
    fail_pickle(Fault::bad_storage, where,
                std::to_string(storages.size() - placed.size()) + " storages of tensors are not in the file");
  if (at != file.size())
    fail_pickle(Fault::trailing_data, where, std::to_string(file.size() - at) + " bytes follow the last storage");
}

TorchFile read_legacy(const InputFile& file) {
  const std::string where = file.path().string();
  const std::string text = read_at(file, 0, std::min(file.size(), kMostPickleBytes));
  const std::string_view view = text;
  if (view.substr(0, kMagic.size()) != kMagic)
    fail_pickle(Fault::wrong_file, where, "it is a Python pickle, but does not begin as torch.save() of old does");
  if (view.substr(kMagic.size(), kVersion.size()) != kVersion)
    fail_pickle(Fault::bad_record, where, "it is of another version than 1001, or cut off");
  const Pickle system = read_pickle({view, kMagic.size() + kVersion.size(), where + ": second header", true});
  const PickleValue& facts = system.values[system.root];
  bool little = false;
  for (std::size_t i = 0; facts.kind == Kind::dict && i < facts.items.size(); i += 2) {
    const PickleValue& value = system.values[facts.items[i + 1]];
    if (system.values[facts.items[i]].text == "little_endian") little = value.kind == Kind::boolean && value.integer;
  }
  if (!little)
    fail_pickle(Fault::bad_record, where, "it is not little-endian; convert it on the machine that wrote it");
  const Pickle pickle = read_pickle({view, system.end, where + ": tensors", true});
  Storages storages = storages_of(pickle, where);
  const Pickle keys = read_pickle({view, pickle.end, where + ": storage keys", true});
  place_legacy(file, keys, keys.end, storages, where);
  return {tensors_of(pickle, storages, where), {}, {}};
}

}  // namespace

TorchFile read_torch_bin(const InputFile& file) {
  const std::string head = read_at(file, 0, std::min<std::uint64_t>(file.size(), 64));
  const auto begins = [&](std::string_view magic) { return head.compare(0, magic.size(), magic) == 0; };
  if (begins("PK\x03\x04")) return read_archive(file);
  if (begins("\x80")) return read_legacy(file);
  const char* kind = "no PyTorch checkpoint: wanted a zip archive or a pickle";
  if (head.empty()) kind = "empty: download it again";
  else if (begins("version https://git-lfs")) kind = "a git-lfs pointer, not the file itself: run git lfs pull";
  else if (begins("<")) kind = "an HTML or XML page, not a checkpoint: download it again, with access to it";
  else if (begins("7z\xBC\xAF") || begins("\x1F\x8B")) kind = "a compressed archive: unpack it";
  else if (head.size() > 8 && head[8] == '{') kind = "a safetensors file: name it model.safetensors";
  fail_pickle(Fault::wrong_file, file.path().string(), std::string("this is ") + kind);
}

}  // namespace weft::runtime

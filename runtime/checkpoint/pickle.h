// runtime/checkpoint/pickle.h: a reader of the few pickles that a state_dict needs. It executes nothing: a table of 13
// entries lists what a pickle may name and call, and each entry gives a value of one of the kinds below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::runtime {

/// The text that holds a pickle, the beginning of messages about it, and which of two formats it has.
struct PickleSource {
  std::string_view text;
  std::size_t begin = 0;  ///< offset in `text` at which the pickle begins
  std::string where;      ///< the beginning of error messages
  /// The five-pickle format: storage references have a sixth element, and more may follow the pickle.
  bool legacy = false;
};

struct PickleValue {
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    floating,
    text,
    tuple,
    list,
    dict,
    ordered_dict,
    function,
    storage_type,
    storage,
    tensor
  };
  Kind kind = Kind::none;
  /// The index into kStorageTypes for a storage or storage type, and the number of a function.
  std::uint8_t type = 0;
  std::int64_t integer = 0;  ///< an integer or boolean, a storage's number of elements, or a tensor's first element
  std::string_view text;     ///< a string, or a storage's key; points into the source's text
  /// Indices of values. A dict has its keys and values in turn; a tensor has storage, size and stride.
  std::vector<std::uint32_t> items;
};

struct StorageType {
  const char *name, *dtype;  ///< the type's names in PyTorch and in safetensors
  unsigned bytes;            ///< size of one element
};
inline constexpr StorageType kStorageTypes[] = {
    {"FloatStorage", "F32", 4}, {"HalfStorage", "F16", 2}, {"BFloat16Storage", "BF16", 2}, {"DoubleStorage", "F64", 8},
    {"LongStorage", "I64", 8},  {"IntStorage", "I32", 4},  {"ShortStorage", "I16", 2},     {"CharStorage", "I8", 1},
    {"ByteStorage", "U8", 1},   {"BoolStorage", "BOOL", 1}};

struct Pickle {
  std::vector<PickleValue> values;
  std::uint32_t root = 0;
  std::size_t end = 0;  ///< offset in the source's text after the pickle
};

/// Reads one pickle of protocol 2. Throws CheckpointError. The values may form cycles; the caller must limit the depth.
/// Memory is at most a multiple of the text's size, and never more than 4,000,000 values and 8,000,000 items.
Pickle read_pickle(const PickleSource& source);

}  // namespace weft::runtime

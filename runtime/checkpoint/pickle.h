// runtime/checkpoint/pickle.h: a reader of the few pickles that a state_dict needs. It executes nothing: what a pickle
// may name and call is a table of 13 entries, and each gives a value of one of the kinds below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::runtime {

/// Which file a pickle is in and where, for messages and for what differs between the two formats.
struct PickleSource {
  std::string_view text;
  std::size_t begin = 0;  ///< where in `text` it begins
  std::string where;      ///< what an error begins with
  bool legacy = false;    ///< another five-pickle file: storage references have a sixth element, more may follow
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
  std::uint8_t type = 0;     ///< of a storage or storage type: which of kStorageTypes; of a function: which
  std::int64_t integer = 0;  ///< an integer or boolean; of a storage: its elements; of a tensor: its first element
  std::string_view text;     ///< into the source's text: a string; of a storage: its key
  /// Indices of values. Of a dict: keys and values in turn. Of a tensor: storage, size and stride.
  std::vector<std::uint32_t> items;
};

struct StorageType {
  const char *name, *dtype;  ///< PyTorch's and safetensors' words
  unsigned bytes;            ///< of an element
};
inline constexpr StorageType kStorageTypes[] = {
    {"FloatStorage", "F32", 4}, {"HalfStorage", "F16", 2}, {"BFloat16Storage", "BF16", 2}, {"DoubleStorage", "F64", 8},
    {"LongStorage", "I64", 8},  {"IntStorage", "I32", 4},  {"ShortStorage", "I16", 2},     {"CharStorage", "I8", 1},
    {"ByteStorage", "U8", 1},   {"BoolStorage", "BOOL", 1}};

struct Pickle {
  std::vector<PickleValue> values;
  std::uint32_t root = 0;
  std::size_t end = 0;  ///< in the source's text
};

/// Reads one pickle of protocol 2. Throws CheckpointError. Cycles are possible among the values; depth is the caller's
/// to limit. Memory is at most a multiple of the text's size and never more than 4,000,000 values and 8,000,000 items.
Pickle read_pickle(const PickleSource& source);

}  // namespace weft::runtime

// tests/support/safetensors.h: small safetensors files and indices, and the refusals of checkpoints.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_error.h"
#include "tests/support/files.h"

namespace weft::test {

namespace fs = std::filesystem;
using runtime::Checkpoint;
using runtime::CheckpointError;

inline std::string with_length(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(std::uint64_t{header.size()} >> (8 * i));
  return file + header + data;
}

inline std::string entry(const std::string& name, std::uint64_t begin, std::uint64_t end,
                         const std::string& dtype = "U8") {
  const std::uint64_t size = dtype == "F32" ? 4 : 1;
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + std::to_string((end - begin) / size) +
         "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

/// A file of tensors of one byte each: 'a', 'b', ... in their order.
inline std::string file_of(const std::vector<std::string>& names) {
  std::string header, data;
  for (std::size_t i = 0; i < names.size(); ++i) {
    header += (i ? "," : "") + entry(names[i], i, i + 1);
    data += static_cast<char>('a' + i);
  }
  return with_length("{" + header + "}", data);
}

struct DataRefusal {
  std::string fault;  ///< "" if nothing was refused; "other" for a DataError without a fault, "io" for an IoError
  std::string message;
};

template <class Function> DataRefusal refusal_of(const Function& function) {
  try {
    function();
  } catch (const CheckpointError& error) {
    CHECK(error.exit_code() == 3);
    return {name_of(error.fault), error.what()};
  } catch (const DataError& error) {
    return {"other", error.what()};
  } catch (const IoError& error) {
    return {"io", error.what()};
  }
  return {};
}
inline DataRefusal refusal_of(const fs::path& directory) {
  return refusal_of([&] { Checkpoint::open(directory); });
}

inline std::string index_of(const std::vector<std::pair<std::string, std::string>>& map, const std::string& more = "") {
  std::string text;
  for (const auto& [name, shard] : map) text += (text.empty() ? "\"" : ",\"") + name + "\":\"" + shard + "\"";
  return "{" + more + "\"weight_map\":{" + text + "}}";
}

inline const std::string kFirst = "model-00001-of-00002.safetensors", kSecond = "model-00002-of-00002.safetensors";
inline const std::string kIndex = "model.safetensors.index.json";

/// Fills a folder with two shards and their index. Tensors x and y are in the first shard, z in the second.
inline void fill_sharded(const TemporaryFolder& folder) {
  write_text(folder / kFirst, file_of({"x", "y"}));
  write_text(folder / kSecond, file_of({"z"}));
  write_text(folder / kIndex, index_of({{"x", kFirst}, {"y", kFirst}, {"z", kSecond}}));
}

}  // namespace weft::test

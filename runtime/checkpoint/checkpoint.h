// runtime/checkpoint/checkpoint.h: the tensors of a checkpoint folder: names, dtypes, shapes, and where their bytes
// are.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"
#include "runtime/base/input_file.h"
#include "runtime/base/stop.h"

namespace weft::runtime {

/// `bytes` bytes at `offset` of files()[file], row-major and without gaps. `dtype` is the file's own word, such as
/// "BF16". The offset is a multiple of nothing: a tensor may begin at any byte.
struct TensorInfo {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::size_t file = 0;
  std::uint64_t offset = 0, bytes = 0;
  /// In elements, where the tensor is not row-major in its file, as a transposed one of PyTorch's; empty where it is.
  /// Then `bytes` are spread over a range that may be longer, and only read_tensor() puts them in order.
  std::vector<std::int64_t> strides = {};
};

/// The dtype of a tensor that is to be computed with. Throws CheckpointError,
/// naming the tensor, unless it is F32, F16 or BF16.
DType weight_dtype(const TensorInfo& tensor);

/// Bytes [offset, offset + bytes) of files()[file] and the CRC-32 that the file says they have.
struct Checksum {
  std::size_t file = 0;
  std::string record;  ///< what the file calls them
  std::uint64_t offset = 0, bytes = 0;
  std::uint32_t crc = 0;
};

/// A tensor that a model cannot do without.
struct TensorNeed {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<std::string> dtypes = {};  ///< any of these; empty: those that are computed with
  bool row_major = false;                ///< whatever Order is asked for
};

/// A folder in the Hugging Face layout with all of its headers read and checked. The files stay open, so that giving
/// one's name to another file does no harm. Constant once open; any thread may read.
class Checkpoint {
 public:
  enum class Format : std::uint8_t { safetensors, sharded_safetensors, torch_bin, sharded_torch_bin };

  /// Takes the first that is there of model.safetensors, model.safetensors.index.json and the shards it names,
  /// pytorch_model.bin, pytorch_model.bin.index.json and its shards; notes() say what was passed over. Throws
  /// CheckpointError with the file and the fault, IoError where the disk fails. Reads headers only.
  static Checkpoint open(const std::filesystem::path& directory);

  /// One safetensors file of any name.
  static Checkpoint open_file(const std::filesystem::path& file);

  Format format() const { return format_; }
  const std::vector<std::filesystem::path>& files() const { return paths_; }
  /// What a user may want to know but no reason to stop, one line each.
  const std::vector<std::string>& notes() const { return notes_; }

  std::size_t size() const { return tensors_.size(); }
  std::uint64_t total_bytes() const;
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  ///< sorted by name
  const TensorInfo* find(std::string_view name) const;                 ///< null if there is none

  enum class Order : std::uint8_t { row_major, any };
  /// Throws CheckpointError naming all of the first twenty that are missing, of another shape, not in this order or of
  /// a dtype that no kernel computes with.
  void demand(std::span<const TensorNeed> needs, Order order = Order::row_major) const;
  /// The names, sorted, that are in the checkpoint and not in `used`.
  std::vector<std::string> unused(std::span<const std::string> used) const;

  bool has_checksums() const { return !checksums_.empty(); }
  /// Reads all bytes that have a checksum, which only PyTorch's own files and packed ones do, and compares it. Throws
  /// CheckpointError, IoError, Interrupted after `stop` was set.
  void verify(const std::atomic<bool>& stop) const;

  /// What the file system said of files()[file] when its header was read.
  const FileState& state(std::size_t file) const { return states_[file]; }
  /// Throws DataError, which says what changed, unless all files are as when their headers were read. A file that only
  /// got another mode or name is read again in three places.
  void require_unchanged() const;
  /// The CRC-32C of all of files()[file]. Throws IoError, Interrupted.
  std::uint32_t checksum(std::size_t file, const std::atomic<bool>& stop) const;
  /// A hash of `before` and of 64 KiB each at the beginning, the middle and the end of files()[file]. Throws IoError.
  std::uint64_t sample(std::size_t file, std::uint64_t before = 0) const;

  /// Bytes [offset, offset + out.size()) of files()[file]. Throws IoError; `out` then holds anything.
  void read_range(std::size_t file, std::uint64_t offset, std::span<std::byte> out) const;
  /// Row-major, even where the file's order is another.
  std::vector<std::byte> read_tensor(const TensorInfo& tensor) const;

 private:
  Checkpoint() = default;
  std::vector<TensorInfo> add_file(const std::filesystem::path& path);
  void look_at_files();
  void open_sharded(const std::filesystem::path& directory, const std::filesystem::path& index);

  Format format_ = Format::safetensors;
  std::vector<InputFile> inputs_;
  std::vector<FileState> states_;       // of inputs_
  std::vector<std::uint64_t> samples_;  // of inputs_
  std::vector<std::filesystem::path> paths_;
  std::vector<TensorInfo> tensors_;
  std::vector<Checksum> checksums_;
  std::vector<std::string> notes_;
};

}  // namespace weft::runtime

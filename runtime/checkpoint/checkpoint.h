// runtime/checkpoint/checkpoint.h: the tensors of a checkpoint folder: names, dtypes, shapes, and where their bytes
// are.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"
#include "runtime/base/input_file.h"
#include "runtime/base/stop.h"

namespace weft::runtime {

struct GgufModel;

/// A tensor of `bytes` bytes at `offset` of files()[file], row-major and without gaps. `dtype` is the file's own word,
/// such as "BF16". The offset has no alignment: a tensor may begin at any byte.
struct TensorInfo {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::size_t file = 0;
  std::uint64_t offset = 0, bytes = 0;
  /// Strides in elements, if the tensor is not row-major in its file, such as a transposed tensor of PyTorch; empty if
  /// it is. With strides, `bytes` are spread over a range that may be longer, and only read_tensor() puts them in
  /// order.
  std::vector<std::int64_t> strides = {};
  /// The rows of a head, if the two halves of each head's rows alternate in the file, as in GGUF files; 0 if they do
  /// not.
  std::int64_t pair_rows = 0;
  bool plus_one = false;  ///< the file has 1 added to each number, as GGUF files have in Gemma's norms
};

/// The end of the name of the tensor that has the scale of a whole matrix, or of each of its experts, in a GGUF file.
inline constexpr const char* kGgufScale = ".scale";

/// The texts in a safetensors file that say what it is.
using Metadata = std::map<std::string, std::string>;

/// The dtype of a tensor that is to be computed with. Throws CheckpointError, which names the tensor, unless it is F32,
/// F16 or BF16.
DType weight_dtype(const TensorInfo& tensor);

/// Bytes [offset, offset + bytes) of files()[file], and the CRC-32 that the file states for them.
struct Checksum {
  std::size_t file = 0;
  std::string record;  ///< the file's name for these bytes
  std::uint64_t offset = 0, bytes = 0;
  std::uint32_t crc = 0;
};

/// A tensor that a model needs.
struct TensorNeed {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<std::string> dtypes = {};  ///< the dtypes allowed; empty: those that kernels compute with
  bool row_major = false;                ///< must be row-major, whatever Order is asked for
};

/// A folder in the Hugging Face layout, or a GGUF file in one or several parts, with all headers read and checked. The
/// files stay open, so that replacing one by another of the same name does no harm. Constant once open, but for what is
/// known of changes; any thread may read.
class Checkpoint {
 public:
  enum class Format : std::uint8_t { safetensors, sharded_safetensors, torch_bin, sharded_torch_bin, gguf };

  /// Opens a GGUF file, whose tensors get the names that they have in Hugging Face's files. In a folder, opens the
  /// first of these that is there: model.safetensors; model.safetensors.index.json with the shards that it names;
  /// pytorch_model.bin; pytorch_model.bin.index.json with its shards. notes() lists what was passed over. Throws
  /// CheckpointError or GgufError with the file and the fault, IoError if the disk fails. Reads headers only.
  static Checkpoint open(const std::filesystem::path& path);
  /// Opens the files of a model whose headers have been read. Throws GgufError if one has changed since, or IoError.
  static Checkpoint open(const GgufModel& model);

  /// Whether a folder holds weights in a file that open() reads. Throws IoError.
  static bool present(const std::filesystem::path& directory);

  /// Opens one safetensors file of any name, or one that is open.
  static Checkpoint open_file(const std::filesystem::path& file) { return open_file(InputFile(file)); }
  static Checkpoint open_file(InputFile file);
  const Metadata& metadata() const { return metadata_; }  ///< empty for a folder of torch_bin files

  Format format() const { return format_; }
  const std::vector<std::filesystem::path>& files() const { return paths_; }
  /// Facts that a user may want to know but that are no reason to stop, one line each.
  const std::vector<std::string>& notes() const { return notes_; }

  std::size_t size() const { return tensors_.size(); }
  std::uint64_t total_bytes() const;
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  ///< sorted by name
  const TensorInfo* find(std::string_view name) const;                 ///< null if there is none

  enum class Order : std::uint8_t { row_major, any };
  /// Throws CheckpointError, which names the first twenty tensors that are missing, have another shape, are not in this
  /// order or have a dtype that is not allowed.
  void demand(std::span<const TensorNeed> needs, Order order = Order::row_major) const;

  bool has_checksums() const { return !checksums_.empty(); }
  /// Reads all bytes that have a checksum and compares it. Only PyTorch's own files and packed files have checksums.
  /// Throws CheckpointError, IoError, or Interrupted after `stop` was set.
  void verify(const std::atomic<bool>& stop) const;

  /// The state of files()[file] in the file system when its header was read.
  const FileState& state(std::size_t file) const { return states_[file]; }
  /// Throws DataError, which states what changed, unless all files hold what they held when their headers were read. A
  /// file that was touched, or whose mode or names changed, is read whole and compared with the checksum that is known
  /// of it. Throws IoError or Interrupted.
  void require_unchanged(const std::atomic<bool>& stop = kNeverStopped) const;
  /// Remembers the checksum() of a file. Returns false if the file was touched meanwhile, so that it cannot be known of
  /// what that was the checksum.
  bool know(std::size_t file, std::uint32_t checksum) const;
  /// The CRC-32C of the whole of files()[file]. Throws IoError or Interrupted.
  std::uint32_t checksum(std::size_t file, const std::atomic<bool>& stop) const;
  /// A hash of `before` and of 64 KiB each at the beginning, the middle and the end of files()[file]. Throws IoError.
  std::uint64_t sample(std::size_t file, std::uint64_t before = 0) const;

  /// Reads bytes [offset, offset + out.size()) of files()[file]. Throws IoError; then the contents of `out` are
  /// undefined.
  void read_range(std::size_t file, std::uint64_t offset, std::span<std::byte> out) const;
  /// Reads a tensor in row-major order, even if the file's order is another.
  std::vector<std::byte> read_tensor(const TensorInfo& tensor) const;

 private:
  Checkpoint() = default;
  std::vector<TensorInfo> add_file(const std::filesystem::path& path);
  std::vector<TensorInfo> add_file(InputFile file);
  std::vector<TensorInfo> read_headers();
  void look_at_files();
  bool is_the_same(std::size_t file, const std::atomic<bool>& stop) const;
  void add_input(const std::filesystem::path& path);
  void open_sharded(const std::filesystem::path& directory, const std::filesystem::path& index);

  Format format_ = Format::safetensors;
  std::vector<InputFile> inputs_;
  std::vector<FileState> states_;  // one per file of inputs_
  /// Guards what is known of changes.
  struct Known {
    std::mutex mutex;
    std::vector<FileState> states;                        // of the last comparison
    std::vector<std::optional<std::uint32_t>> checksums;  // of whole files
  };
  std::unique_ptr<Known> known_ = std::make_unique<Known>();
  Metadata metadata_;
  std::vector<std::filesystem::path> paths_;
  std::vector<TensorInfo> tensors_;
  std::vector<Checksum> checksums_;
  std::vector<std::string> notes_;
};

}  // namespace weft::runtime

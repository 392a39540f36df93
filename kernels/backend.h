// kernels/backend.h: the one seam between CPU and GPU. Memory, streams, events, copies and ops change together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/ops.h"

namespace weft::kernels {

/// An ordered queue of work of one backend. On the CPU work is done by the thread that submits it, at once.
class Stream {
 public:
  virtual ~Stream() = default;
};

/// A point in a stream. Before its first record() it counts as reached.
class Event {
 public:
  virtual ~Event() = default;
};

/// Memory that is freed with the lease. Contents undefined; host memory is 2 MiB aligned, device memory 256 bytes.
class Memory {
 public:
  virtual ~Memory() = default;
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 protected:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Every call may come from any thread; one stream is used by one thread at a time.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;         ///< "cpu", "cuda"
  virtual std::string description() const = 0;  ///< the processor or the card, for reports
  /// What makes this machine slower than it could be and its user may change; empty where there is nothing.
  virtual std::string warning() const { return {}; }

  /// True where the host may read and write device memory, so that a disk read can land in it.
  virtual bool device_is_host_memory() const = 0;
  /// The type of activations that the ops take together with weights of the type `weights`.
  virtual DType activation_type(DType weights) const = 0;
  /// Whether quantised weights are to be unpacked to 16 bits (UnpackWeights) before many products use them. Products
  /// with quantised weights work all the same, but then each unpacks them for itself.
  virtual bool unpacks_weights() const { return false; }

  /// Bytes that could be allocated now.
  virtual std::size_t device_bytes_free() const = 0;
  virtual std::size_t host_bytes_free() const = 0;
  /// Bytes of device memory that the backend takes for itself: context, work spaces of one compute stream.
  virtual std::size_t device_overhead() const = 0;
  /// Rows of a product that keep all of the device busy: how many tokens of prompts it works on at once.
  virtual std::int64_t rows_that_fill() const { return 512; }
  /// Throws CapacityError, which says what was wanted and what is free.
  virtual std::unique_ptr<Memory> allocate_device(std::size_t bytes) = 0;
  /// Host memory that copies to and from the device need no staging for; aligned as O_DIRECT wants it.
  virtual std::unique_ptr<Memory> allocate_host(std::size_t bytes) = 0;
  /// Whether ops of the device may use memory of allocate_host(); not where a GPU's system lets too little be pinned.
  virtual bool device_reaches(const void* host) const = 0;

  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream&) = 0;
  /// Reads device memory, whole words of 16 bytes aligned to them, and does nothing with it: the most that an op that
  /// only reads could reach.
  virtual void read(const void* from, std::size_t bytes, Stream&) = 0;
  virtual void record(Event&, Stream&) = 0;
  virtual void wait(Stream&, const Event&) = 0;  ///< later work of the stream runs after the event
  virtual void synchronize(const Event&) = 0;    ///< the calling thread waits; throws DeviceError if the work failed

  /// Runs `work`, which queues ops on the stream and nothing else. Work of the same signature must queue the same ops
  /// on the same views, with spans of the same lengths and any contents: then a GPU can queue all of it at once after
  /// the first few times. The caller waits for it before it repeats anything else on the stream.
  virtual void repeat(Stream& stream, std::uint64_t signature, const std::function<void()>& work) = 0;

  virtual const Ops& ops() const = 0;       ///< of the device
  virtual const Ops& host_ops() const = 0;  ///< the CPU's, for attention over KV in host memory
  virtual Stream& host_stream() = 0;        ///< to pass to host_ops()
};

struct CpuOptions {
  int threads = 0;                   ///< 0: the cores that this process may use
  bool separate_device = false;      ///< the host does not reach device memory but by copy(), as with a GPU
  double link_bytes_per_second = 0;  ///< paces copy(), to study a slow link anywhere; 0: as fast as memory
};
std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options);

struct CudaOptions {
  int threads = 0;                          ///< of host_ops(); 0: the cores that this process may use
  const char* library = "libweft_cuda.so";  ///< that holds the backend
};
/// Throws DeviceError where there is no GPU, where CUDA's libraries are missing, or in a build without CUDA.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);

/// How the library is entered. It has its own copy of this floor and shares nothing with the program but these classes
/// and the heap. Exceptions that it throws can still be caught by type, because the C++ runtime compares types by name.
using CudaEntry = Backend*(const CudaOptions&);  ///< the caller owns the result
constexpr const char* kCudaEntry = "weft_make_cuda_backend";

}  // namespace weft::kernels

// kernels/backend.h: the one boundary between CPU and GPU. Memory, streams, events, copies and ops change together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/ops.h"

namespace weft::kernels {

/// An ordered queue of work of one backend. On the CPU the thread that submits work does it at once.
class Stream {
 public:
  virtual ~Stream() = default;
};

/// A point in a stream. Before its first record() it counts as reached.
class Event {
 public:
  virtual ~Event() = default;
};

/// Memory that is freed with this object. Its contents are undefined; host memory is aligned to 4 KiB, device memory to
/// 256 bytes.
class Memory {
 public:
  virtual ~Memory() = default;
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 protected:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Every call may come from any thread. One thread at a time uses a stream.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;         ///< "cpu", "cuda"
  virtual std::string description() const = 0;  ///< the processor or the card, for reports
  /// Something that slows this machine down and that its user can change; empty if there is nothing.
  virtual std::string warning() const { return {}; }

  /// The work of a thread, where cores are shared (CoreShares).
  enum class Duty { feeds_device, computes_on_host };
  /// Called by a thread that queues work for the device, or that runs host_ops(), before it does so.
  virtual void settle_thread(Duty) const {}
  /// The way in which cores are shared, in words for a line and a report; empty if all compute.
  virtual std::string core_shares() const { return {}; }

  /// Whether the host may read and write device memory, so that a disk read can land in it.
  virtual bool device_is_host_memory() const = 0;
  /// The type of the rows that enter products with weights of this float type, unless they come as f32. Ops then write
  /// such rows in it, so that no product has to round them first.
  virtual DType product_type(DType weights) const = 0;
  /// Whether quantised weights should be unpacked to 16 bits (UnpackWeights) before many products use them. Products
  /// with quantised weights work all the same, but each then unpacks them for itself.
  virtual bool unpacks_weights() const { return false; }
  /// The rows of x up to which a product with quantised weights needs no unpacking.
  virtual std::int64_t packed_rows() const { return 0; }

  /// Bytes that could be allocated now.
  virtual std::size_t device_bytes_free() const = 0;
  virtual std::size_t host_bytes_free() const = 0;
  /// Bytes of device memory that the backend takes for itself: its context and the work space of one compute stream.
  virtual std::size_t device_overhead() const = 0;
  /// Whether a row's result depends on that row alone, to the last bit.
  virtual bool batch_invariant() const = 0;
  /// Rows of a product that keep the whole device busy: the number of prompt tokens that it works on at once.
  virtual std::int64_t rows_that_fill() const { return 512; }
  /// The tokens of a prefix that prompts share are a multiple of this (kernels::PrefillAttention).
  virtual std::int64_t prefix_step() const { return 1; }
  /// Throws CapacityError, which states what was wanted and what is free.
  virtual std::unique_ptr<Memory> allocate_device(std::size_t bytes) = 0;
  /// Host memory that needs no staging for copies to and from the device; aligned as O_DIRECT requires.
  virtual std::unique_ptr<Memory> allocate_host(std::size_t bytes) = 0;
  /// Whether ops of the device may use `bytes` from `host` on, memory of allocate_host(). False if a GPU's system lets
  /// too little be pinned.
  virtual bool device_reaches(const void* host, std::size_t bytes) const = 0;

  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream&) = 0;
  /// Reads device memory in aligned words of 16 bytes and does nothing with it. Its speed is the ceiling of every op
  /// that only reads.
  virtual void read(const void* from, std::size_t bytes, Stream&) = 0;
  virtual void record(Event&, Stream&) = 0;
  virtual void wait(Stream&, const Event&) = 0;  ///< later work of the stream runs after the event
  virtual void synchronize(const Event&) = 0;    ///< the calling thread waits; throws DeviceError if the work failed

  /// Runs `work`, which queues ops on the stream and nothing else. Work of the same signature must queue the same ops
  /// on the same views; spans must have the same lengths and may have any contents. A GPU can then queue all of it at
  /// once after the first few times. The caller waits for it before it repeats anything else on the stream.
  virtual void repeat(Stream& stream, std::uint64_t signature, const std::function<void()>& work) = 0;

  virtual const Ops& ops() const = 0;       ///< the device's
  virtual const Ops& host_ops() const = 0;  ///< the CPU's, for attention over KV in host memory
  virtual Stream& host_stream() = 0;        ///< the stream for host_ops()
};

struct CpuOptions {
  int threads = 0;                   ///< 0: the cores that this process may use
  bool separate_device = false;      ///< the host reaches device memory only by copy(), as with a GPU
  double link_bytes_per_second = 0;  ///< paces copy(), to study a slow link anywhere; 0: as fast as memory
};
std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options);

struct CudaOptions {
  int threads = 0;                          ///< threads of host_ops(); 0: by share_cores() of host_machine.h
  const char* library = "libweft_cuda.so";  ///< the library with the backend
  bool batch_invariant = false;             ///< a row's result depends on that row alone, as on the CPU
};
/// Throws DeviceError if there is no GPU, if CUDA's libraries are missing, or in a build without CUDA.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);

/// The entry point of the library. The library has a separate copy of these kernels and shares only these classes and
/// the heap with the program. The exceptions that it throws can still be caught by type, because the C++ runtime
/// compares the names of types.
using CudaEntry = Backend*(const CudaOptions&);  ///< the caller owns the result
constexpr const char* kCudaEntry = "weft_make_cuda_backend";

}  // namespace weft::kernels

// tests/support/backends.h: the backends and instruction sets that tests of the kernels run on.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/cpu/kernels.h"
#include "kernels/backend.h"
#include "kernels/machine/cpu_ops.h"
#include "tests/support/program.h"

namespace weft::test {

using kernels::Backend;

/// The CPU with one thread and with two. Programs linked with a GPU backend, simulated or real, have that too. Each
/// backend lives until the program ends.
inline const std::vector<Backend*>& every_backend() {
  static const auto owned = [] {
    std::vector<std::unique_ptr<Backend>> made;
    for (const int threads : {1, 2}) made.push_back(kernels::make_cpu_backend({.threads = threads}));
    if (on_gpu()) made.push_back(kernels::make_cuda_backend({.threads = 2}));
    return made;
  }();
  static const auto all = [] {
    std::vector<Backend*> pointers;
    for (const auto& backend : owned) pointers.push_back(backend.get());
    return pointers;
  }();
  return all;
}

/// Ops, and the memory and the stream that go with them.
class Place {
 public:
  std::string name;
  Backend& backend;
  const kernels::Ops& ops;
  kernels::Stream& stream;
  bool on_host;

  Place(std::string n, Backend& b, const kernels::Ops& o, kernels::Stream& s, bool host)
      : name(std::move(n)), backend(b), ops(o), stream(s), on_host(host) {}

  /// Whether the CPU computes. Then a result has the same bits whatever else is in the call, and a misuse throws.
  bool exact() const { return on_host; }
  /// The type in which numbers of type `stored` are multiplied with fp32 numbers. Tensor cores round the latter to it.
  DType product_type(DType stored) const { return exact() ? DType::f32 : stored; }

  /// Runs one op and waits until it is done.
  template <class Op> void run(const Op& op) const {
    ops.run(op, stream);
    if (!on_host) synchronize();
  }
  void copy(void* to, const void* from, std::size_t bytes) const {
    backend.copy(to, from, bytes, stream);
    synchronize();
  }
  /// Returns host memory for copies to and from the device. Every call returns the same memory.
  std::byte* staging(std::size_t bytes) const {
    if (!staging_ || staging_->bytes() < bytes) staging_ = backend.allocate_host(std::max(bytes, kStaging));
    return staging_->data();
  }

 private:
  static constexpr std::size_t kStaging = 1 << 20;

  void synchronize() const {
    const auto event = backend.make_event();
    backend.record(*event, stream);
    backend.synchronize(*event);
  }
  mutable std::unique_ptr<kernels::Memory> staging_;
};

/// The device's ops of every backend, its host's ops, and the CPU's ops in every instruction set that this processor
/// has.
inline const std::vector<const Place*>& every_place() {
  struct Owner {
    std::vector<std::unique_ptr<kernels::Stream>> streams;
    std::vector<std::unique_ptr<kernels::CpuOps>> ops;
    std::vector<std::unique_ptr<Place>> places;
    std::vector<const Place*> all;
    kernels::ThreadPool pool{2};

    Owner() {
      for (Backend* backend : every_backend()) {
        const std::string name = backend->name() + ", " + backend->description();
        streams.push_back(backend->make_stream());
        add(name, *backend, backend->ops(), *streams.back(), backend->device_is_host_memory());
        if (&backend->host_ops() != &backend->ops())
          add(name + ", host", *backend, backend->host_ops(), backend->host_stream(), true);
      }
      Backend& cpu = *every_backend().front();
      for (const kernels::VectorKernels* vectors : kernels::vector_kernels()) {
        ops.push_back(std::make_unique<kernels::CpuOps>(pool, *vectors));
        add(std::string("cpu, ") + vectors->name, cpu, *ops.back(), *streams.front(), true);
      }
    }
    void add(std::string name, Backend& backend, const kernels::Ops& its_ops, kernels::Stream& stream, bool on_host) {
      places.push_back(std::make_unique<Place>(std::move(name), backend, its_ops, stream, on_host));
      all.push_back(places.back().get());
    }
  };
  static const Owner owner;
  return owner.all;
}

}  // namespace weft::test

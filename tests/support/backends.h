// tests/support/backends.h: every machine that a test of the kernels runs on.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu_ops.h"

namespace weft::test {

using kernels::Backend;

/// The CPU with one thread and with two; each lives until the program ends.
inline const std::vector<Backend*>& every_backend() {
  static const auto owned = [] {
    std::vector<std::unique_ptr<Backend>> made;
    for (const int threads : {1, 2}) made.push_back(kernels::make_cpu_backend({.threads = threads}));
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
struct Place {
  std::string name;
  Backend& backend;
  const kernels::Ops& ops;
  kernels::Stream& stream;
  bool on_host;

  /// Runs one op to its end.
  template <class Op> void run(const Op& op) const {
    ops.run(op, stream);
    if (on_host) return;
    const auto event = backend.make_event();
    backend.record(*event, stream);
    backend.synchronize(*event);
  }
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
        add({name, *backend, backend->ops(), *streams.back(), backend->device_is_host_memory()});
        if (&backend->host_ops() != &backend->ops())
          add({name + ", host", *backend, backend->host_ops(), backend->host_stream(), true});
      }
      Backend& cpu = *every_backend().front();
      for (const kernels::VectorKernels* vectors : kernels::vector_kernels()) {
        ops.push_back(std::make_unique<kernels::CpuOps>(pool, *vectors));
        add({std::string("cpu, ") + vectors->name, cpu, *ops.back(), *streams.front(), true});
      }
    }
    void add(Place place) {
      places.push_back(std::make_unique<Place>(std::move(place)));
      all.push_back(places.back().get());
    }
  };
  static const Owner owner;
  return owner.all;
}

}  // namespace weft::test

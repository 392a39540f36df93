// tests/support/threaded_backend.h: a backend whose streams are threads. As on a GPU, work that is issued is not yet
// done.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "kernels/backend.h"
#include "kernels/error.h"

namespace weft::test {

class ThreadedStream : public kernels::Stream {
 public:
  ThreadedStream() : thread_([this] { work(); }) {}
  ~ThreadedStream() override {
    push({});
    thread_.join();
  }
  void push(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    wake_.notify_one();
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return !queue_.empty(); });
      const auto next = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (!next) return;
      next();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_;
};

class ThreadedEvent : public kernels::Event {
 public:
  std::uint64_t record() {
    const std::lock_guard lock(mutex_);
    return ++recorded_;
  }
  void reach(std::uint64_t generation) {
    const std::lock_guard lock(mutex_);
    reached_ = generation;
    changed_.notify_all();
  }
  std::uint64_t recorded() const {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }
  void await(std::uint64_t generation) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_ >= generation; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::uint64_t recorded_ = 0, reached_ = 0;
};

class ThreadedBackend : public kernels::Backend {
 public:
  std::string name() const override { return "threaded"; }
  std::string description() const override { return "streams are threads"; }
  bool device_is_host_memory() const override { return false; }
  DType product_type(DType) const override { return DType::f32; }
  std::size_t device_bytes_free() const override { return std::size_t{1} << 30; }
  std::size_t host_bytes_free() const override { return std::size_t{1} << 30; }
  std::size_t device_overhead() const override { return 0; }
  bool batch_invariant() const override { return true; }

  std::unique_ptr<kernels::Memory> allocate_device(std::size_t bytes) override { return std::make_unique<Heap>(bytes); }
  std::unique_ptr<kernels::Memory> allocate_host(std::size_t bytes) override { return std::make_unique<Heap>(bytes); }
  bool device_reaches(const void*, std::size_t) const override { return true; }
  std::unique_ptr<kernels::Stream> make_stream() override { return std::make_unique<ThreadedStream>(); }
  std::unique_ptr<kernels::Event> make_event() override { return std::make_unique<ThreadedEvent>(); }

  /// Queues any work, as a kernel launch would.
  static void launch(kernels::Stream& stream, std::function<void()> work) {
    dynamic_cast<ThreadedStream&>(stream).push(std::move(work));
  }
  void copy(void* to, const void* from, std::size_t bytes, kernels::Stream& stream) override {
    launch(stream, [=] { std::memcpy(to, from, bytes); });
  }
  void read(const void*, std::size_t, kernels::Stream&) override {
    throw std::logic_error("this machine reads nothing");
  }
  void record(kernels::Event& event, kernels::Stream& stream) override {
    auto& e = static_cast<ThreadedEvent&>(event);
    launch(stream, [&e, generation = e.record()] { e.reach(generation); });
  }
  void wait(kernels::Stream& stream, const kernels::Event& event) override {
    auto& e = static_cast<const ThreadedEvent&>(event);
    launch(stream, [&e, generation = e.recorded()] { e.await(generation); });
  }
  void synchronize(const kernels::Event& event) override {
    auto& e = static_cast<const ThreadedEvent&>(event);
    e.await(e.recorded());
    if (broken_) throw DeviceError("the device is broken");
  }

  void repeat(kernels::Stream&, std::uint64_t, const std::function<void()>& work) override { work(); }

  const kernels::Ops& ops() const override { throw std::logic_error("this machine cannot calculate"); }
  const kernels::Ops& host_ops() const override { return ops(); }
  kernels::Stream& host_stream() override { return host_stream_; }

  void break_device() { broken_ = true; }

 private:
  struct Heap : kernels::Memory {
    explicit Heap(std::size_t bytes) {
      bytes_ = bytes;
      data_ = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{4096}));
    }
    ~Heap() override { ::operator delete (data_, std::align_val_t{4096}); }
  };
  struct HostStream : kernels::Stream {
  } host_stream_;
  std::atomic<bool> broken_{false};
};

}  // namespace weft::test

// tests/cuda_sim/ptx/shadow.h: a block's shared memory, and who touched each part of it since when.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cusim::ptx {

struct Kernel;

/// What the lanes of a warp know of each other's past, by the warp's own barriers. (Barriers of the block are epochs.)
class WarpClock {
 public:
  void reset();
  /// All that any of them did comes before all that any of them does from now on.
  void synchronise(unsigned lanes);
  std::uint32_t now(int lane) const { return own_[lane]; }
  bool knows(int lane, int other, std::uint32_t time) const { return known_[lane][other] >= time; }

 private:
  std::array<std::uint32_t, 32> own_;
  std::array<std::array<std::uint32_t, 32>, 32> known_;
};

struct Accessor {
  int warp, lane;
  const WarpClock* clock;
  std::uint32_t statement;  ///< of the kernel
};

class SharedSpace {
 public:
  /// Where variables lie for `dynamic_bytes`; every block of the grid has them there.
  void begin_grid(const Kernel& kernel, std::size_t dynamic_bytes);
  /// Fresh memory, which nobody has written.
  void begin_block();
  void barrier() { ++epoch_; }
  std::byte* at(std::uint32_t offset) { return data() + offset; }

  // What is wrong with the access, or nothing. `bytes` are at most 16.
  std::string read(std::uint32_t offset, unsigned bytes, const Accessor& who);
  std::string write(std::uint32_t offset, unsigned bytes, const Accessor& who);
  std::string update(std::uint32_t offset, unsigned bytes, const Accessor& who);  ///< atomically
  /// Until the next write these bytes are as if nobody had written them.
  void forget(std::uint32_t offset, unsigned bytes);
  /// Empty if all bytes are in one variable.
  std::string bounds(std::uint64_t offset, unsigned bytes) const;
  bool raced() const { return raced_; }  ///< whether the last complaint was of a race

 private:
  static constexpr unsigned kGrain = 2;  // bytes whose history is kept together
  struct Accesses {
    std::uint32_t epoch = 0, time = 0, lanes = 0, warp = 0, statement = 0;
  };
  struct Grain {
    Accesses written, read, updated;
  };
  bool conflicts(const Accesses& past, const Accessor& who) const;
  void record(Accesses& past, const Accessor& who) const;
  Accesses fresh(const Accessor& who) const;
  std::string race(const Accesses& past, const char* did, const char* does, std::uint32_t offset);
  std::string name_of(std::uint64_t offset) const;
  bool initialised(const Grain& g) const { return g.written.epoch >= first_epoch_ || g.updated.epoch >= first_epoch_; }
  std::byte* data() { return reinterpret_cast<std::byte*>(memory_.data()); }

  struct alignas(128) Line {
    std::byte bytes[128];
  };
  struct Variable {
    std::string name;
    std::size_t begin, end;
  };
  const Kernel* kernel_ = nullptr;
  std::vector<Line> memory_;
  std::vector<Grain> grains_;
  std::vector<std::uint16_t> variable_at_;  // of each byte; 0: none
  std::vector<Variable> variables_;
  std::uint32_t epoch_ = 0, first_epoch_ = 0;
  bool raced_ = false;
};

}  // namespace cusim::ptx

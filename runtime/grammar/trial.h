// runtime/grammar/trial.h: work that may not end, or take all memory, tried in a process of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace weft::runtime {

struct TrialLimits {
  std::uint64_t seconds = 10, bytes = 1ULL << 30;  ///< processor time; memory beside what this process has
};

/// Calls `work` in a copy of this process. Returns nothing if it has returned; else why not: what it threw, or the
/// limit that it met. Nothing that it changes is kept; it may start no thread. Throws IoError if no process can be
/// started.
std::optional<std::string> try_apart(const std::function<void()>& work, const TrialLimits& limits = {});

}  // namespace weft::runtime

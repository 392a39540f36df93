// tests/cuda_sim/fibers.h: the stacks that device threads run on, and switching between them.
#pragma once

#include "internal.h"

#if !defined(__x86_64__) && !defined(CUSIM_UCONTEXT)
#define CUSIM_UCONTEXT
#endif
#if defined(CUSIM_UCONTEXT)
#include <ucontext.h>
#endif

namespace cusim {

/// One that never had prepare() stands for the stack of the thread that it is switched from.
struct Fiber {
  char* stack = nullptr;
  std::size_t stack_bytes = 0;
  void *tsan = nullptr, *asan = nullptr;
#if defined(CUSIM_UCONTEXT)
  ucontext_t context = {};
#else
  void* stack_pointer = nullptr;
#endif
};

/// A fresh stack, on which the next switch starts `main`; what was on it is abandoned. `number` spreads stacks over
/// the sets of the cache.
void prepare(Fiber& fiber, void (*main)(), int number);
/// Names the calling thread's own stack to the sanitizers.
void adopt_thread(Fiber& fiber);
void switch_fiber(Fiber& from, Fiber& to);
/// The first thing on a fresh stack.
void arrive_on_fresh_stack();

}  // namespace cusim

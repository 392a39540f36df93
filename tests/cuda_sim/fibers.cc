// tests/cuda_sim/fibers.cc
#include "fibers.h"

#include <pthread.h>
#include <sys/mman.h>

namespace cusim {
namespace {

std::size_t stack_bytes() { return address_sanitizer() || thread_sanitizer() ? 256 << 10 : 64 << 10; }

#if defined(CUSIM_UCONTEXT)
void swap_stacks(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }
void arm(Fiber& fiber, void (*main)(), int) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = fiber.stack_bytes;
  makecontext(&fiber.context, main, 0);
}
#else
extern "C" void cusim_swap_stacks(void** save, void* to);
asm(R"(.text
.globl cusim_swap_stacks
.type cusim_swap_stacks,@function
cusim_swap_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cusim_swap_stacks,.-cusim_swap_stacks
)");
void swap_stacks(Fiber& from, Fiber& to) { cusim_swap_stacks(&from.stack_pointer, to.stack_pointer); }
void arm(Fiber& fiber, void (*main)(), int number) {
  // Tops at different cache lines, else all stacks fight for the same sets.
  void** top = reinterpret_cast<void**>(fiber.stack + fiber.stack_bytes - 64 - (number % 32) * 192);
  *--top = nullptr;  // ends backtraces, and aligns the stack as at a call
  *--top = reinterpret_cast<void*>(main);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  fiber.stack_pointer = top;
}
#endif

}  // namespace

void prepare(Fiber& fiber, void (*main)(), int number) {
  if (fiber.stack == nullptr) {
    fiber.stack_bytes = stack_bytes();
    void* const map = mmap(nullptr, fiber.stack_bytes + kPage, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mprotect(map, kPage, PROT_NONE);
    fiber.stack = static_cast<char*>(map) + kPage;
  }
  set_valid(fiber.stack, fiber.stack_bytes, true);
  if (shows_device_threads()) {
    if (fiber.tsan != nullptr) {  // what an abandoned fiber did comes before what follows
      void* const me = __tsan_get_current_fiber();
      __tsan_switch_to_fiber(fiber.tsan, 1);
      __tsan_switch_to_fiber(me, 0);
      __tsan_destroy_fiber(fiber.tsan);
    }
    fiber.tsan = __tsan_create_fiber(0);
  }
  arm(fiber, main, number);
}

void adopt_thread(Fiber& fiber) {
  if (shows_device_threads()) fiber.tsan = __tsan_get_current_fiber();
  if (!address_sanitizer()) return;
  pthread_attr_t attributes;
  void* stack = nullptr;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &stack, &fiber.stack_bytes);
  pthread_attr_destroy(&attributes);
  fiber.stack = static_cast<char*>(stack);
}

void switch_fiber(Fiber& from, Fiber& to) {
  if (address_sanitizer()) __sanitizer_start_switch_fiber(&from.asan, to.stack, to.stack_bytes);
  if (shows_device_threads()) __tsan_switch_to_fiber(to.tsan, 1);  // 1: orders nothing
  swap_stacks(from, to);
  if (address_sanitizer()) __sanitizer_finish_switch_fiber(from.asan, nullptr, nullptr);
}

void arrive_on_fresh_stack() {
  if (address_sanitizer()) __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
}

}  // namespace cusim

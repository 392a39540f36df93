// A library to preload (LD_PRELOAD) that lets one allocation, one mapping or one creation of a thread fail.
//
//   FAIL_KIND   memory: malloc and its kin, and operator new; mapping: mmap; thread: pthread_create
//   FAIL_AT     which call of that kind fails, from 1; 0: none
//   FAIL_MORE   how many calls after that one fail too
//   FAIL_COUNT  a file that gets the number of calls when the process ends
//   FAIL_PLACES a file that then gets the numbers of those calls that were the first from their place in the program:
//   the
//               innermost four functions that were under way
//
// It calls what comes after it in the search order, so it works over the C library and over the address sanitizer.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

enum class Kind { none, memory, mapping, thread };

Kind chosen = Kind::none;
unsigned long first_failure = 0, more_failures = 0;
std::atomic<unsigned long> calls{0};
thread_local int depth __attribute__((tls_model("initial-exec"))) = 0;  // operator new calls malloc: one allocation

/// While alive, what is called from here counts no more.
struct Inner {
  Inner() { ++depth; }
  ~Inner() { --depth; }
};

/// The places seen so far, by a hash, and the first call from each. Without a lock they would be lost to each other.
constexpr std::size_t kMostPlaces = 1 << 16;
std::uint64_t places[kMostPlaces];
unsigned long firsts[kMostPlaces];
std::size_t place_count = 0;
std::atomic_flag places_taken = ATOMIC_FLAG_INIT;
bool wants_places = false;

void note_place(unsigned long number) {
  const Inner inner;  // the first backtrace() allocates
  constexpr int kOwn = 3, kFrames = 4;
  void* frames[kOwn + kFrames];
  const int count = backtrace(frames, kOwn + kFrames);
  std::uint64_t hash = 14695981039346656037u;
  for (int i = 0; i < count; ++i) hash = (hash ^ reinterpret_cast<std::uintptr_t>(frames[i])) * 1099511628211u;
  if (hash == 0) hash = 1;
  while (places_taken.test_and_set()) {}
  std::size_t at = hash % kMostPlaces;
  while (places[at] != 0 && places[at] != hash) at = (at + 1) % kMostPlaces;
  if (places[at] == 0 && place_count < kMostPlaces / 2) {
    places[at] = hash;
    firsts[place_count++] = number;
  }
  places_taken.clear();
}

bool fails(Kind kind) {
  if (kind != chosen || depth > 0) return false;
  const unsigned long number = ++calls;
  if (wants_places) note_place(number);
  return first_failure > 0 && number >= first_failure && number - first_failure <= more_failures;
}

/// What the next library in the search order calls `name`.
template <class Function> Function next(const char* name) {
  const Inner inner;
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// dlsym() may allocate before malloc() is found. What is taken from here is never given back.
alignas(64) char early[64 << 10];
std::size_t early_used = 0;
bool is_early(const void* p) { return p >= early && p < early + sizeof early; }
void* take_early(std::size_t bytes) {
  const std::size_t begin = (early_used + 63) / 64 * 64;
  if (bytes > sizeof early - begin) _exit(99);
  early_used = begin + bytes;
  return early + begin;
}

using Malloc = void* (*)(std::size_t);
using Calloc = void* (*)(std::size_t, std::size_t);
using Realloc = void* (*)(void*, std::size_t);
using Free = void (*)(void*);
using Aligned = void* (*)(std::size_t, std::size_t);
using PosixAligned = int (*)(void**, std::size_t, std::size_t);
using New = void* (*)(std::size_t);
using AlignedNew = void* (*)(std::size_t, std::align_val_t);
using Mmap = void* (*)(void*, std::size_t, int, int, int, off_t);
using GetAttributes = int (*)(pthread_t, pthread_attr_t*);
using CreateThread = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

bool finding = false;  // before there are threads
template <class Function> Function find(Function& known, const char* name) {
  if (!known && !finding) {
    finding = true;
    known = next<Function>(name);
    finding = false;
  }
  return known;
}

__attribute__((constructor)) void begin() {
  const char* kind = std::getenv("FAIL_KIND");
  if (!kind) return;
  if (const char* at = std::getenv("FAIL_AT")) first_failure = std::strtoul(at, nullptr, 10);
  wants_places = std::getenv("FAIL_PLACES") != nullptr;
  if (const char* more = std::getenv("FAIL_MORE")) more_failures = std::strtoul(more, nullptr, 10);
  chosen = std::strcmp(kind, "memory") == 0    ? Kind::memory
           : std::strcmp(kind, "mapping") == 0 ? Kind::mapping
           : std::strcmp(kind, "thread") == 0  ? Kind::thread
                                               : Kind::none;
}

void write_numbers(const char* file, const unsigned long* numbers, std::size_t count) {
  const int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  for (std::size_t i = 0; i < count; ++i) {
    char text[32];
    const int length = std::snprintf(text, sizeof text, "%lu\n", numbers[i]);
    if (fd < 0 || write(fd, text, static_cast<std::size_t>(length)) != length) _exit(98);
  }
  close(fd);
}

__attribute__((destructor)) void end() {
  const unsigned long all = calls.load();
  if (const char* file = std::getenv("FAIL_COUNT")) write_numbers(file, &all, 1);
  if (const char* file = std::getenv("FAIL_PLACES")) write_numbers(file, firsts, place_count);
}

void* out_of_memory() {
  errno = ENOMEM;
  return nullptr;
}

template <class Call> void* allocate(const Call& call) {
  if (fails(Kind::memory)) return out_of_memory();
  const Inner inner;
  return call();
}

void* allocate_new(std::size_t bytes, const char* name, New& real) {
  if (fails(Kind::memory)) throw std::bad_alloc();
  const Inner inner;
  return find(real, name)(bytes);
}

void* allocate_new(std::size_t bytes, std::align_val_t alignment, const char* name, AlignedNew& real) {
  if (fails(Kind::memory)) throw std::bad_alloc();
  const Inner inner;
  return find(real, name)(bytes, alignment);
}

Malloc real_malloc;
Calloc real_calloc;
Realloc real_realloc;
Free real_free;
Aligned real_aligned_alloc, real_memalign;
PosixAligned real_posix_memalign;
New real_new, real_new_array;
AlignedNew real_aligned_new, real_aligned_new_array;
Mmap real_mmap;
CreateThread real_pthread_create;
GetAttributes real_pthread_getattr_np;

}  // namespace

extern "C" {

void* malloc(std::size_t bytes) {
  if (!find(real_malloc, "malloc")) return take_early(bytes);
  return allocate([&] { return real_malloc(bytes); });
}

void* calloc(std::size_t count, std::size_t bytes) {
  if (!find(real_calloc, "calloc")) return take_early(count * bytes);  // zeros
  return allocate([&] { return real_calloc(count, bytes); });
}

void* realloc(void* old, std::size_t bytes) {
  if (is_early(old)) {
    void* moved = malloc(bytes);
    const std::size_t held = static_cast<std::size_t>(early + sizeof early - static_cast<char*>(old));
    if (moved) std::memcpy(moved, old, bytes < held ? bytes : held);
    return moved;
  }
  if (!find(real_realloc, "realloc")) return take_early(bytes);
  return allocate([&] { return real_realloc(old, bytes); });
}

void free(void* p) {
  if (!p || is_early(p)) return;
  if (find(real_free, "free")) real_free(p);
}

void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return allocate([&] { return find(real_aligned_alloc, "aligned_alloc")(alignment, bytes); });
}

void* memalign(std::size_t alignment, std::size_t bytes) {
  return allocate([&] { return find(real_memalign, "memalign")(alignment, bytes); });
}

int posix_memalign(void** p, std::size_t alignment, std::size_t bytes) {
  if (fails(Kind::memory)) return ENOMEM;
  const Inner inner;
  return find(real_posix_memalign, "posix_memalign")(p, alignment, bytes);
}

void* mmap(void* where, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
  if (fails(Kind::mapping)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return find(real_mmap, "mmap")(where, bytes, protection, flags, fd, offset);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
  if (fails(Kind::thread)) return EAGAIN;
  return find(real_pthread_create, "pthread_create")(thread, attributes, start, argument);
}

// The address sanitizer asks for a new thread's stack in this way, and ends the process where the C library has no
// memory for the answer.
int pthread_getattr_np(pthread_t thread, pthread_attr_t* attributes) {
  const Inner inner;
  return find(real_pthread_getattr_np, "pthread_getattr_np")(thread, attributes);
}

}  // extern "C"

void* operator new(std::size_t bytes) { return allocate_new(bytes, "_Znwm", real_new); }
void* operator new[](std::size_t bytes) { return allocate_new(bytes, "_Znam", real_new_array); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_new(bytes, alignment, "_ZnwmSt11align_val_t", real_aligned_new);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate_new(bytes, alignment, "_ZnamSt11align_val_t", real_aligned_new_array);
}

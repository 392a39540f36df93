#include "runtime/grammar/trial.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "kernels/error.h"

namespace weft::runtime {
namespace {

constexpr int kDone = 0, kThrew = 1, kNoMemory = 2;
constexpr std::size_t kMostSaid = 4096;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kLimitsMemory = false;  // sanitizers reserve terabytes
#else
constexpr bool kLimitsMemory = true;
#endif

void limit(__rlimit_resource which, std::uint64_t most) {
  const rlimit both{most, most};
  ::setrlimit(which, &both);
}

/// The bytes of address space that this process has.
std::uint64_t address_space() {
  std::uint64_t pages = 0;
  if (std::FILE* const file = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(file, "%lu", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

void say(int to, std::string_view text) {
  text = text.substr(0, kMostSaid);  // which a pipe takes at once
  [[maybe_unused]] const auto written = ::write(to, text.data(), text.size());
}

[[noreturn]] void run(const std::function<void()>& work, const TrialLimits& limits, std::uint64_t space, int to) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGXCPU, SIGFPE, SIGILL}) std::signal(signal, SIG_DFL);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_IGN);  // the parent decides
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, limits.seconds);
  if (kLimitsMemory && space > 0) limit(RLIMIT_AS, space + limits.bytes);
  try {
    work();
    ::_exit(kDone);
  } catch (const std::bad_alloc&) {
    ::_exit(kNoMemory);
  } catch (const std::exception& error) {
    say(to, error.what());
  } catch (...) {
    say(to, "is not understood");
  }
  ::_exit(kThrew);
}

}  // namespace

std::optional<std::string> try_apart(const std::function<void()>& work, const TrialLimits& limits) {
  std::array<int, 2> ends{};
  const std::uint64_t space = address_space();
  const auto fail = [] { throw IoError("no process can be started: " + std::generic_category().message(errno)); };
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail();
  const pid_t child = ::fork();
  if (child == 0) run(work, limits, space, ends[1]);
  const int error = errno;
  ::close(ends[1]);
  std::string said(child > 0 ? kMostSaid : 0, '\0');
  std::size_t length = 0;
  while (child > 0 && length < said.size()) {  // until the child has ended
    const ssize_t got = ::read(ends[0], said.data() + length, said.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    length += static_cast<std::size_t>(got);
  }
  said.resize(length);
  ::close(ends[0]);
  errno = error;
  if (child < 0) fail();
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kDone) return {};
  if (WIFEXITED(status) && WEXITSTATUS(status) == kThrew) return said.empty() ? "is not understood" : said;
  const std::uint64_t mebibytes = limits.bytes >> 20;
  if (WIFEXITED(status)) return "takes more than " + std::to_string(mebibytes) + " MiB of memory to compile";
  switch (WTERMSIG(status)) {
    case SIGKILL:
    case SIGXCPU: return "takes more than " + std::to_string(limits.seconds) + " s to compile";
    case SIGSEGV: return "is nested too deeply to be compiled";
    default: return "cannot be compiled (signal " + std::to_string(WTERMSIG(status)) + ")";
  }
}

}  // namespace weft::runtime

#include "runtime/serve/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>

#include "kernels/error.h"
#include "runtime/base/files.h"

namespace weft::runtime {
namespace {

constexpr std::size_t kMostSaid = 1 << 20;
constexpr std::string_view kError = "weft: error: ";

[[noreturn]] void fail(const std::string& what) { throw IoError(what + ": " + std::generic_category().message(errno)); }

}  // namespace

Child::Child(const std::vector<std::string>& arguments, std::filesystem::path said) : said_(std::move(said)) {
  std::vector<char*> words{const_cast<char*>("weft")};
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const int out = ::open(said_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (nothing < 0 || out < 0) fail(said_.string() + ": cannot be written");
  const int parent = ::getpid();
  process_ = ::fork();
  if (process_ == 0) {  // only calls that are allowed beside threads
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::setsid();
    if (::getppid() != parent || ::dup2(nothing, 0) < 0 || ::dup2(nothing, 1) < 0 || ::dup2(out, 2) < 0) _exit(130);
    ::execv("/proc/self/exe", words.data());
    _exit(70);
  }
  const int error = errno;
  ::close(nothing);
  ::close(out);
  errno = error;
  if (process_ < 0) fail("no process can be started");
}

Child::~Child() {
  if (ended()) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

std::optional<int> Child::ended() {
  int status = 0;
  if (!code_ && ::waitpid(process_, &status, WNOHANG) == process_)
    code_ = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  return code_;
}

void Child::stop() {
  if (!ended()) ::kill(process_, SIGTERM);
}

std::string Child::error() const {
  const std::string said = read_file(said_, kMostSaid);
  const auto at = said.rfind(kError);
  if (at != std::string::npos) return said.substr(at + kError.size(), said.size() - at - kError.size() - 1);
  return code_ && *code_ < 0 ? "the job was killed by signal " + std::to_string(-*code_)
                             : "the job ended with exit code " + std::to_string(code_.value_or(0));
}

}  // namespace weft::runtime

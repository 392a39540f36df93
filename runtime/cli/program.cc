#include <cxxabi.h>
#include <fcntl.h>
#include <pthread.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <map>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <typeinfo>
#include <vector>

#include "kernels/error.h"
#include "kernels/machine/host_machine.h"
#include "policy/base/json.h"
#include "runtime/base/exit_codes.h"
#include "runtime/base/stop.h"
#include "runtime/base/version.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/other_words.h"
#include "runtime/cli/program.h"
#include "runtime/job/progress.h"

namespace weft::runtime {
namespace {

constexpr int kInternalError = 70;  // sysexits.h's EX_SOFTWARE; 1 means that some requests were refused
constexpr int kNoCapacity = 4;      // the exit code of CapacityError
constexpr std::string_view kOutOfMemoryText =
    "weft: error: out of host memory; lower --device-memory or --host-memory\n";

std::terminate_handler else_terminate = nullptr;

/// Handles a lack of memory that cannot be caught, as in a library's destructors: ends the process as if main() had
/// caught it. Like a kill, that loses nothing. Allocates nothing.
void end_without_memory() {
  const std::type_info* thrown = abi::__cxa_current_exception_type();
  if (!thrown || *thrown != typeid(std::bad_alloc)) return else_terminate();
  static std::atomic_flag said = ATOMIC_FLAG_INIT;
  while (said.test_and_set()) pause();  // another thread is about to end the process
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kOutOfMemoryText.data(), kOutOfMemoryText.size());
  _exit(kNoCapacity);
}

/// Runs before the constructors of CLI11's globals, which allocate.
[[gnu::constructor(101)]] void watch_for_lack_of_memory() { else_terminate = std::set_terminate(end_without_memory); }

/// Formats the message of a log line, which may hold text from any file.
class Printable : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text = printable({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return spdlog::details::make_unique<Printable>(); }
};

/// Lives until the process ends: the thread that waits for signals outlives every job.
std::atomic<bool> stop_requested{false};

/// Opens descriptors 0 to 2 if they are closed. Otherwise a file opened later would get one of them, and output would
/// land in that file. A standard output that was closed still cannot be written.
void open_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    const int mode = fd == STDOUT_FILENO ? O_RDONLY : O_RDWR;
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && ::open("/dev/null", mode) != fd) _exit(kInternalError);
  }
}

/// Switches core dumps off, because a core would hold prompts and answers.
void leave_no_core() {
  rlimit limit{};
  if (getrlimit(RLIMIT_CORE, &limit) != 0) return;
  limit.rlim_cur = 0;
  setrlimit(RLIMIT_CORE, &limit);
}

void make_logger() {
  const auto logger = spdlog::stderr_logger_mt("weft");
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<Printable>('*').set_pattern(
      is_drawn_on(STDERR_FILENO) ? "\r\033[Kweft: %*" : "weft: %*");  // over the line of progress
  logger->set_formatter(std::move(formatter));
  logger->set_error_handler([](const std::string&) {});  // drops a line that there is no memory for
  spdlog::set_default_logger(logger);
}

/// Throws IoError if output failed. What commands print is their result, so a full disk or a closed pipe must not look
/// like success.
void flush_standard_output() {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return;
  throw IoError("standard output cannot be written: " + std::generic_category().message(errno));
}

/// Starts a thread that waits for SIGINT, SIGTERM and SIGHUP. The first signal requests a clean stop, or ends the
/// process with `end_at_once`. A signal that comes again ends it, but not within kOneRequest: GNU timeout signals a
/// process and its group, and a closing terminal is reported by the shell and by the kernel. A signal that the parent
/// had ignored, as nohup does, stays ignored.
void watch_signals(bool end_at_once) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) continue;
    sigaddset(&set, signal);
  }
  pthread_sigmask(SIG_BLOCK, &set, nullptr);  // inherited by every later thread
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  std::thread([set, end_at_once] {
    using Steady = std::chrono::steady_clock;
    constexpr std::chrono::seconds kOneRequest{1};
    std::map<int, Steady::time_point> first;
    for (int signal = 0; sigwait(&set, &signal) == 0;) {
      stop_requested = true;
      const auto [seen, is_new] = first.try_emplace(signal, Steady::now());
      if (end_at_once || (!is_new && Steady::now() - seen->second > kOneRequest)) _exit(130);
    }
  }).detach();
}

/// Refuses empty values. A script's unset variable gives one, which must not be taken for an absent flag.
void refuse_empty_values(CLI::App& app) {
  const CLI::Validator not_empty(
      [](const std::string& value) { return std::string(value.empty() ? "the value is empty" : ""); }, "");
  for (CLI::App* command : app.get_subcommands({}))
    for (CLI::Option* option : command->get_options())
      if (option->get_items_expected_max() > 0) option->check(not_empty);
}

/// Reads whole numbers as decimal: CLI11 would take those with a leading zero as octal, and cut off those that are too
/// large.
void read_whole_numbers(CLI::App& app) {
  const CLI::Validator decimal(
      [](std::string& value) -> std::string {
        std::int64_t number = 0;
        const char *const end = value.data() + value.size(), *begin = value.data() + (value.starts_with('+') ? 1 : 0);
        const auto [at, error] = std::from_chars(begin, end, number);
        if (error == std::errc::result_out_of_range) return "'" + value + "' is too large a number";
        if (error != std::errc() || at != end || value.starts_with("+-")) return "'" + value + "' is no whole number";
        value = std::to_string(number);
        return {};
      },
      "");
  for (CLI::App* command : app.get_subcommands({}))
    for (CLI::Option* option : command->get_options())
      if (option->get_type_name() == "INT" || option->get_type_name() == "UINT") option->transform(decimal);
}

/// Explains in one line what is wrong with the command line.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const auto chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  std::string message = error.what();
  if (const std::vector<std::string> unknown = app.remaining(true); !unknown.empty()) {
    // Values follow their unknown flag on the command line, but CLI11 puts them first.
    const auto first =
        std::find_if(unknown.begin(), unknown.end(), [](const std::string& word) { return word.starts_with('-'); });
    const std::string& flag = first == unknown.end() ? unknown.front() : *first;
    std::vector<std::string> known;
    for (const CLI::Option* option : command.get_options()) known.push_back(option->get_name());
    if (chosen.empty())
      for (const CLI::App* each : app.get_subcommands({})) known.push_back(each->get_name());
    message = "unknown argument '" + flag.substr(0, 80) + "'";
    if (const auto ours = our_words(flag); ours && (chosen.empty() || flag.starts_with('-')))
      message += "; here: " + *ours;
    else if (const auto close = policy::nearest(flag.substr(0, flag.find('=')), known))
      message += "; did you mean " + *close + "?";
  }
  return message + "; see weft " + (chosen.empty() ? "" : command.get_name() + " ") + "--help";
}

int run_command_line(int argc, char** argv) {
  CLI::App app{"Weft generates text in bulk with language models that do not fit on the GPU."};
  app.set_version_flag("--version", program_version());
  app.require_subcommand(1);
  app.footer(exit_codes_text());
  Command command;
  add_generate(app, command);
  add_score(app, command);
  add_merge(app, command);
  add_plan(app, command);
  add_bench(app, command);
  add_inspect(app, command);
  add_analyze(app, command);
  add_tokenize(app, command);
  add_convert(app, command);
  add_serve_batches(app, command);
  refuse_empty_values(app);
  read_whole_numbers(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      app.exit(error);
      flush_standard_output();
      return 0;
    }
    throw UsageError(explain(app, error));
  }
  watch_signals(command.ends_at_once);
  const int code = command.run(stop_requested);
  flush_standard_output();
  return code;
}

}  // namespace

int program(int argc, char** argv) {
  open_standard_descriptors();
  leave_no_core();
  kernels::raise_open_files();
  try {
    make_logger();
    return run_command_line(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "weft: error: %s\n", error.what());
    return error.exit_code();
  } catch (const Interrupted&) {
    std::fputs("weft: stopped\n", stderr);
    return 130;
  } catch (const std::bad_alloc&) {
    std::fputs(kOutOfMemoryText.data(), stderr);
    return kNoCapacity;
  } catch (const std::filesystem::filesystem_error& error) {
    if (error.path1().empty()) std::fprintf(stderr, "weft: error: %s\n", error.what());
    else std::fprintf(stderr, "weft: error: %s: %s\n", error.path1().c_str(), error.code().message().c_str());
    return 6;
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "weft: error: the system refused a thread (%s); lower --threads, or raise ulimit -u\n",
                 error.what());
    return kNoCapacity;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft: internal error: %s\n", error.what());
    return kInternalError;
  }
}

}  // namespace weft::runtime

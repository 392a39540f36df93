#include <pthread.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <new>
#include <thread>

#include "kernels/error.h"
#include "runtime/commands.h"

namespace {

/// Lives until the process ends: the thread that waits for signals outlives every job.
std::atomic<bool> stop_requested{false};

/// One thread waits for SIGINT and SIGTERM: the first asks for a clean stop, the second ends the process.
void watch_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);  // inherited by every later thread
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  std::thread([set] {
    for (int signal = 0; sigwait(&set, &signal) == 0;) {
      if (stop_requested.exchange(true)) _exit(130);
    }
  }).detach();
}

int run(int argc, char** argv) {
  CLI::App app{"Weft generates text in bulk with language models that do not fit on the GPU."};
  app.set_version_flag("--version", "weft " WEFT_VERSION);
  app.require_subcommand(1);
  weft::runtime::Command command;
  weft::runtime::add_generate(app, command);
  weft::runtime::add_score(app, command);
  weft::runtime::add_bench(app, command);
  weft::runtime::add_inspect(app, command);
  weft::runtime::add_tokenize(app, command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  watch_signals();
  return command(stop_requested);
}

}  // namespace

int main(int argc, char** argv) {
  const auto logger = spdlog::stderr_logger_mt("weft");
  logger->set_pattern("weft: %v");
  spdlog::set_default_logger(logger);
  try {
    return run(argc, argv);
  } catch (const weft::Error& error) {
    std::fprintf(stderr, "weft: error: %s\n", error.what());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    std::fputs("weft: error: out of host memory; lower --device-memory or --host-memory\n", stderr);
    return 4;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft: internal error: %s\n", error.what());
    return 1;
  }
}

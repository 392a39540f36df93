#include "runtime/planning/log.h"

#include <exception>

namespace weft::runtime {

void log_line(spdlog::level::level_enum level, fmt::string_view format, fmt::format_args arguments) {
  spdlog::logger& logger = *spdlog::default_logger_raw();
  if (!logger.should_log(level)) return;
  try {
    logger.log(level, spdlog::string_view_t(fmt::vformat(format, arguments)));
  } catch (const std::exception&) {  // as the logger itself does with a line that it cannot make
  }
}

}  // namespace weft::runtime

// runtime/planning/log.h: lines for the person who runs the program. spdlog writes them to standard error.
#pragma once

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

namespace weft::runtime {

/// Writes a line of that level; drops it if there is no memory for it. The functions below stand in front of spdlog's
/// own, which compile fmt's formatting again in each source that calls one.
void log_line(spdlog::level::level_enum level, fmt::string_view format, fmt::format_args arguments);

template <typename... Arguments> void log_debug(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  log_line(spdlog::level::debug, format, fmt::make_format_args(arguments...));
}
template <typename... Arguments> void log_info(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  log_line(spdlog::level::info, format, fmt::make_format_args(arguments...));
}
template <typename... Arguments> void log_warn(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  log_line(spdlog::level::warn, format, fmt::make_format_args(arguments...));
}

}  // namespace weft::runtime

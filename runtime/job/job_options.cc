#include "runtime/job/job_options.h"

#include <charconv>
#include <cmath>

#include "kernels/error.h"

namespace weft::runtime {

std::optional<std::chrono::duration<double>> interval_from_text(const std::string& text) {
  if (text == "off") return {};
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const std::string unit(stop, end);
  const double seconds = unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  if (error != std::errc() || seconds == 0 || !(value >= 0) || value * seconds > 366.0 * 24 * 3600)
    throw UsageError("--checkpoint-every must be off or a time such as 10m, 90s or 1.5h, got '" + text.substr(0, 40) +
                     "'");
  return std::chrono::duration<double>(value * seconds);
}

}  // namespace weft::runtime

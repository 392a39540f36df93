#include "runtime/requests/shard.h"

#include <charconv>

#include "kernels/error.h"

namespace weft::runtime {
namespace {

constexpr std::size_t kMostShards = 1'000'000;

}  // namespace

Shard Shard::from_text(const std::string& text) {
  Shard shard;
  const char* const end = text.data() + text.size();
  const auto [slash, bad_number] = std::from_chars(text.data(), end, shard.number);
  const bool divided = bad_number == std::errc{} && slash != end && *slash == '/';
  const auto [rest, bad_count] = std::from_chars(divided ? slash + 1 : end, end, shard.count);
  if (!divided || bad_count != std::errc{} || rest != end || shard.number < 1 || shard.number > shard.count ||
      shard.count > kMostShards)
    throw UsageError("--shard must be K/N with K from 1 to N, such as 2/4 for the second of four, got '" +
                     text.substr(0, 80) + "'");
  return shard;
}

std::string Shard::text() const { return std::to_string(number) + "/" + std::to_string(count); }

}  // namespace weft::runtime

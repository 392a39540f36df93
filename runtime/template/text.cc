// runtime/template/text.cc: searches, cuts and joins texts as Python's str does.
#include "runtime/template/text.h"

#include <cstring>

#include <algorithm>

#include "runtime/base/utf8.h"

namespace weft::runtime::jinja {

namespace {

constexpr auto npos = std::string::npos;

std::string reversed(std::string_view text) { return {text.rbegin(), text.rend()}; }

/// Where lines end for str.splitlines(): the length of the line break at `at`, or 0.
std::size_t line_break(std::string_view text, std::size_t at) {
  const auto c = static_cast<unsigned char>(text[at]);
  if (c == '\r') return text.substr(at).starts_with("\r\n") ? 2 : 1;
  if ((c >= '\n' && c <= '\f') || (c >= 0x1C && c <= 0x1E)) return 1;
  if (c < 0x80) return 0;
  const Utf8Char found = utf8_at(text, at);
  return found.code == 0x85 || found.code == 0x2028 || found.code == 0x2029 ? found.bytes : 0;
}

std::vector<std::string> split_at_spaces(std::string_view text, std::int64_t most) {
  std::vector<std::string> parts;
  std::size_t begin = npos;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_at(text, at);
    const bool space = is_space(c.code);
    if (space && begin != npos) {
      parts.emplace_back(text.substr(begin, at - begin));
      begin = npos;
    } else if (!space && begin == npos) {
      begin = at;
      if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) {
        parts.emplace_back(text.substr(at));
        return parts;
      }
    }
    at += c.bytes;
  }
  if (begin != npos) parts.emplace_back(text.substr(begin));
  return parts;
}

/// str.rsplit() without a separator, when not all cuts are made.
std::vector<std::string> split_at_last_spaces(std::string_view text, std::int64_t most) {
  std::vector<std::string> all = split_at_spaces(text, -1);
  if (static_cast<std::int64_t>(all.size()) <= most + 1) return all;
  // What is left of the last `most` words stays as it is.
  std::string rest = strip(text, {}, false, true);
  std::vector<std::string> parts(all.end() - most, all.end());
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    rest.resize(rest.size() - part->size());
    rest = strip(rest, {}, false, true);
  }
  parts.insert(parts.begin(), strip(rest, {}, true, false).empty() ? "" : rest);
  return parts;
}

}  // namespace

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::size_t find_bytes(std::string_view text, std::string_view wanted, std::size_t from) {
  if (from > text.size()) return npos;
  if (wanted.size() == 1) return text.find(wanted.front(), from);
  const void* found = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  return found ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) : npos;
}

std::size_t find_last_bytes(std::string_view text, std::string_view wanted) {
  const std::size_t found = find_bytes(reversed(text), reversed(wanted), 0);
  return found == npos ? npos : text.size() - found - wanted.size();
}

std::size_t count_bytes(std::string_view text, std::string_view wanted) {
  if (wanted.empty()) return code_points(text).size() + 1;
  std::size_t count = 0;
  for (std::size_t at = 0; (at = find_bytes(text, wanted, at)) != npos; at += wanted.size()) ++count;
  return count;
}

std::size_t character_count(const Text& text) {
  if (text.ascii) return text.bytes.size();
  return static_cast<std::size_t>(std::count_if(text.bytes.begin(), text.bytes.end(),
                                                [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::size_t byte_of(const Text& text, std::size_t index) {
  if (text.ascii) return std::min(index, text.bytes.size());
  std::size_t at = 0;
  for (; at < text.bytes.size() && index > 0; --index) at += utf8_at(text.bytes, at).bytes;
  return at;
}

Values characters(const Text& text, Meter& meter) {
  meter.charge(2 * text.bytes.size());
  Values items;
  for (std::size_t at = 0; at < text.bytes.size();) {
    const std::size_t bytes = utf8_at(text.bytes, at).bytes;
    items.emplace_back(text.bytes.substr(at, bytes));
    at += bytes;
  }
  return items;
}

void append_utf8(std::string& text, char32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr unsigned char lead[]{0, 0xC0, 0xE0, 0xF0};
  text += static_cast<char>(lead[more] | code >> 6 * more);
  for (int i = more - 1; i >= 0; --i) text += static_cast<char>(0x80 | (code >> 6 * i & 0x3F));
}

std::vector<char32_t> code_points(std::string_view text) {
  std::vector<char32_t> codes;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_at(text, at);
    codes.push_back(c.code);
    at += c.bytes;
  }
  return codes;
}

std::string strip(std::string_view text, const std::optional<std::string>& chars, bool left, bool right) {
  std::vector<char32_t> set = chars ? code_points(*chars) : std::vector<char32_t>();
  std::sort(set.begin(), set.end());
  const auto goes = [&](char32_t code) {
    return chars ? std::binary_search(set.begin(), set.end(), code) : is_space(code);
  };
  while (left && !text.empty()) {
    const Utf8Char c = utf8_at(text, 0);
    if (!goes(c.code)) break;
    text.remove_prefix(c.bytes);
  }
  while (right && !text.empty()) {
    std::size_t at = text.size() - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (!goes(utf8_at(text, at).code)) break;
    text = text.substr(0, at);
  }
  return std::string(text);
}

std::string replaced(std::string_view text, std::string_view old, std::string_view with, std::int64_t most,
                     Meter& meter) {
  meter.charge_bytes(text.size());
  std::string out;
  const auto put = [&](std::string_view part) {
    meter.charge(part.size() / 64);
    out += part;
  };
  std::size_t at = 0;
  const auto left = [&] { return most < 0 || most-- > 0; };
  if (old.empty()) {
    while (left()) {
      meter.charge(1);
      put(with);
      if (at >= text.size()) return out;
      const std::size_t bytes = utf8_at(text, at).bytes;
      put(text.substr(at, bytes));
      at += bytes;
    }
  } else {
    for (std::size_t found; (found = find_bytes(text, old, at)) != npos && left(); at = found + old.size()) {
      meter.charge(1);
      put(text.substr(at, found - at));
      put(with);
    }
  }
  put(text.substr(at));
  return out;
}

std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator, std::int64_t most,
                               bool from_right) {
  if (!separator) return from_right && most >= 0 ? split_at_last_spaces(text, most) : split_at_spaces(text, most);
  if (separator->empty()) throw Stuck("empty separator");
  std::vector<std::size_t> cuts;
  if (from_right && most >= 0) {
    const std::string backwards = reversed(text), wanted = reversed(*separator);
    for (std::size_t at = 0; static_cast<std::int64_t>(cuts.size()) < most; at = text.size() - cuts.back()) {
      const std::size_t found = find_bytes(backwards, wanted, at);
      if (found == npos) break;
      cuts.push_back(text.size() - found - wanted.size());
    }
    std::reverse(cuts.begin(), cuts.end());
  } else {
    for (std::size_t at = 0; most < 0 || static_cast<std::int64_t>(cuts.size()) < most;) {
      const std::size_t found = find_bytes(text, *separator, at);
      if (found == npos) break;
      cuts.push_back(found);
      at = found + separator->size();
    }
  }
  std::vector<std::string> parts;
  std::size_t at = 0;
  for (const std::size_t cut : cuts) {
    parts.emplace_back(text.substr(at, cut - at));
    at = cut + separator->size();
  }
  parts.emplace_back(text.substr(at));
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = line_break(text, at);
    if (end == 0) {
      ++at;
      continue;
    }
    lines.emplace_back(text.substr(begin, at - begin + (keep_ends ? end : 0)));
    begin = at += end;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
    }
  return out;
}

std::string repeated(std::string_view text, std::int64_t count, Meter& meter) {
  std::string out;
  if (count <= 0 || text.empty()) return out;
  const auto times = static_cast<std::uint64_t>(count);
  if (times > (std::uint64_t{1} << 32) / text.size()) throw Stuck("a text would be too long");
  meter.charge_bytes(times * text.size());
  out.reserve(times * text.size());
  for (std::uint64_t i = 0; i < times; ++i) out += text;
  return out;
}

}  // namespace weft::runtime::jinja

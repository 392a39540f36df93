// tests/cuda_sim/ptx/decoder.cc
#include "decoder.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace cusim::ptx {
namespace {

std::string_view trim(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front()))) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.remove_suffix(1);
  return s;
}

/// At commas outside of braces and brackets.
std::vector<std::string_view> split_operands(std::string_view text) {
  std::vector<std::string_view> all;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c != ',' || depth != 0) continue;
    all.push_back(trim(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  return all;
}

constexpr std::pair<std::string_view, Special> kSpecials[] = {
    {"%tid.x", Special::tid_x},
    {"%tid.y", Special::tid_y},
    {"%tid.z", Special::tid_z},
    {"%ntid.x", Special::ntid_x},
    {"%ntid.y", Special::ntid_y},
    {"%ntid.z", Special::ntid_z},
    {"%ctaid.x", Special::ctaid_x},
    {"%ctaid.y", Special::ctaid_y},
    {"%ctaid.z", Special::ctaid_z},
    {"%nctaid.x", Special::nctaid_x},
    {"%nctaid.y", Special::nctaid_y},
    {"%nctaid.z", Special::nctaid_z},
    {"%laneid", Special::laneid},
    {"%warpid", Special::warpid},
    {"%lanemask_eq", Special::lanemask_eq},
    {"%lanemask_lt", Special::lanemask_lt},
    {"%lanemask_le", Special::lanemask_le},
    {"%lanemask_gt", Special::lanemask_gt},
    {"%lanemask_ge", Special::lanemask_ge},
};

bool is_number(std::string_view name) {
  return !name.empty() && (std::isdigit(static_cast<unsigned char>(name[0])) || name[0] == '-');
}

/// "-12", "0x1F", "0f3F800000" (the bits of a float), "0d..." (of a double).
std::uint64_t number(std::string_view name) {
  const std::string text(name);
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'f' || text[1] == 'F' || text[1] == 'd' || text[1] == 'D'))
    return std::strtoull(text.c_str() + 2, nullptr, 16);
  if (text[0] == '-') return static_cast<std::uint64_t>(std::strtoll(text.c_str(), nullptr, 0));
  return std::strtoull(text.c_str(), nullptr, 0);
}

}  // namespace

unsigned type_bytes(std::string_view type) {
  if (type == "pred") return 0;
  if (type == "bf16") return 2;
  if (type == "bf16x2" || type == "f16x2") return 4;
  if (type.size() >= 2 && type.find_first_of("bsuf") == 0) {
    const std::string_view bits = type.substr(1);
    if (bits == "8") return 1;
    if (bits == "16") return 2;
    if (bits == "32") return 4;
    if (bits == "64") return 8;
  }
  throw std::runtime_error("the type is not known: " + std::string(type));
}
bool is_type(std::string_view name) {
  if (name == "pred" || name == "bf16" || name == "bf16x2" || name == "f16x2") return true;
  if (name.size() < 2 || name.find_first_of("bsuf") != 0) return false;
  const std::string_view bits = name.substr(1);
  return bits == "8" || bits == "16" || bits == "32" || bits == "64";
}

bool Parsed::has(std::string_view part) const { return std::find(parts.begin(), parts.end(), part) != parts.end(); }

Parsed parse_statement(std::string_view text) {
  Parsed parsed;
  const std::size_t end = std::min(text.find_first_of(" \t\n"), text.size());
  parsed.opcode = std::string(text.substr(0, end));
  if (end < text.size()) {
    for (const std::string_view field : split_operands(trim(text.substr(end)))) {
      std::vector<std::string> names;
      if (!field.empty() && field.front() == '{') {
        for (const std::string_view name : split_operands(field.substr(1, field.size() - 2))) names.emplace_back(name);
      } else {
        names.emplace_back(field);
      }
      parsed.fields.push_back(std::move(names));
    }
  }
  return parsed;
}

void Decoder::refuse(const std::string& why) const {
  throw std::runtime_error(why + ": " + kernel_.statements.back().text);
}

void Decoder::declare_registers(std::string_view statement) {
  const std::size_t dot = statement.find('.', 1), space = statement.find_first_of(" \t", dot);
  const unsigned bytes = type_bytes(statement.substr(dot + 1, space - dot - 1));
  const unsigned kept = bytes == 1 ? 2 : bytes;
  const auto declare_one = [&](const std::string& name) {
    scopes_.back()[name] = {
        {static_cast<std::uint32_t>(kernel_.register_bytes), static_cast<std::uint8_t>(kept), false}, true, 0};
    kernel_.register_bytes += kept == 0 ? 64 : 32 * kept;  // lines of a cache
  };
  for (const std::string_view name : split_operands(trim(statement.substr(space)))) {
    const std::size_t angle = name.find('<');
    if (angle == std::string_view::npos) {
      declare_one(std::string(name));
      continue;
    }
    const std::string prefix(name.substr(0, angle));
    const int count = std::atoi(std::string(name.substr(angle + 1)).c_str());
    for (int i = 0; i < count; ++i) declare_one(prefix + std::to_string(i));
  }
}

const Symbol* Decoder::find(std::string_view name) const {
  const std::string key(name);
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
    if (const auto found = scope->find(key); found != scope->end()) return &found->second;
  return nullptr;
}

Operand Decoder::constant(std::uint64_t value, unsigned bytes) {
  auto& known = constants_[std::countr_zero(bytes == 0 ? 1u : bytes)];
  if (bytes < 8 && bytes > 0) value &= (std::uint64_t{1} << (8 * bytes)) - 1;
  const auto width = static_cast<std::uint8_t>(bytes);
  if (const auto found = known.find(value); found != known.end()) return {found->second, width, true};
  const auto at = static_cast<std::uint32_t>(kernel_.constants.size());
  kernel_.constants.resize(at + (bytes == 0 ? 64 : 32 * bytes));
  if (bytes == 0) {
    const std::uint32_t mask = value != 0 ? ~0u : 0;
    std::memcpy(kernel_.constants.data() + at, &mask, sizeof mask);
  } else {
    for (unsigned lane = 0; lane < 32; ++lane) std::memcpy(kernel_.constants.data() + at + lane * bytes, &value, bytes);
  }
  known[value] = at;
  return {at, width, true};
}

Operand Decoder::special(std::string_view name) {
  const std::string key(name);
  if (const auto known = specials_.find(key); known != specials_.end()) return known->second;
  for (const auto& [text, which] : kSpecials) {
    if (text != name) continue;
    const auto at = static_cast<std::uint32_t>(kernel_.register_bytes);
    kernel_.register_bytes += 128;
    kernel_.specials.push_back({which, at});
    return specials_[key] = {at, 4, false};
  }
  refuse("the name " + key + " is not known");
}

void Decoder::add_number(std::uint64_t value, unsigned bytes) { added_.push_back(constant(value, bytes)); }

void Decoder::add(std::string_view name, unsigned bytes) {
  if (name == "_") return add_number(0, bytes == kAnyWidth ? 4 : bytes);
  if (is_number(name)) return add_number(number(name), bytes == kAnyWidth ? 8 : bytes);
  Operand place;
  if (const Symbol* symbol = find(name)) {
    if (!symbol->is_register) return add_number(symbol->value, bytes == kAnyWidth ? 8 : bytes);
    place = symbol->place;
  } else if (const auto global = std::find_if(module_.variables().begin(), module_.variables().end(),
                                              [&](const GlobalVariable& v) { return v.name == name; });
             global != module_.variables().end()) {
    return add_number(reinterpret_cast<std::uintptr_t>(global->data), 8);
  } else {
    place = special(name);
  }
  if (bytes != kAnyWidth && place.bytes != bytes)
    refuse("the register " + std::string(name) + " has " + std::to_string(place.bytes) + " bytes and not " +
           std::to_string(bytes));
  added_.push_back(place);
}

void Decoder::add_field(std::size_t field, unsigned bytes) {
  if (field >= parsed_.fields.size()) refuse("too few operands");
  for (const std::string& name : parsed_.fields[field]) add(name, bytes);
}

void Decoder::add_address(std::size_t field) {
  if (field >= parsed_.fields.size()) refuse("too few operands");
  const std::string& text = parsed_.fields[field].front();
  if (text.front() != '[') refuse("an address is wanted");
  const std::string_view inside = trim(std::string_view(text).substr(1, text.size() - 2));
  const std::size_t plus = inside.find('+');
  if (plus != std::string_view::npos) made_.offset = static_cast<std::int64_t>(number(trim(inside.substr(plus + 1))));
  const std::string_view base = trim(inside.substr(0, plus));
  if (is_number(base)) return add_number(number(base), 8);
  add(base, kAnyWidth);
}

void Decoder::take_guard(std::string_view& text) {
  if (text.front() != '@') return;
  const std::size_t space = text.find_first_of(" \t");
  std::string_view name = text.substr(1, space - 1);
  made_.guarded = true;
  if (name.front() == '!') {
    made_.negated = true;
    name.remove_prefix(1);
  }
  const Symbol* const symbol = find(name);
  if (symbol == nullptr || !symbol->is_register) refuse("the predicate is not known");
  made_.guard = symbol->place;
  text = trim(text.substr(space));
}

void Decoder::statement(std::string text, const std::string& file, int line) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return std::isspace(static_cast<unsigned char>(c)); }, ' ');
  kernel_.statements.push_back({text, file, line});
  made_ = {};
  made_.statement = static_cast<std::uint32_t>(kernel_.statements.size() - 1);
  added_.clear();
  std::string_view rest = kernel_.statements.back().text;
  take_guard(rest);
  parsed_ = parse_statement(rest);
  const std::string_view opcode = parsed_.opcode;
  for (std::size_t begin = 0; begin <= opcode.size();) {
    const std::size_t dot = std::min(opcode.find('.', begin), opcode.size());
    parsed_.parts.push_back(opcode.substr(begin, dot - begin));
    begin = dot + 1;
  }
  constexpr bool (*kTables[])(Decoder&) = {decode_memory, decode_integer, decode_float,  decode_compare, decode_convert,
                                           decode_move,   decode_warp,    decode_atomic, decode_tensor,  decode_copy};
  if (std::none_of(std::begin(kTables), std::end(kTables), [&](auto decode) { return decode(*this); }))
    refuse("the instruction is not known");
  firsts_.push_back(static_cast<std::uint32_t>(kernel_.operands.size()));
  made_.count = static_cast<std::uint8_t>(added_.size());
  kernel_.operands.insert(kernel_.operands.end(), added_.begin(), added_.end());
  kernel_.code.push_back(made_);
}

void Decoder::finish() {
  for (std::size_t i = 0; i < kernel_.code.size(); ++i) kernel_.code[i].operands = kernel_.operands.data() + firsts_[i];
  for (const auto& [at, name] : targets_) {
    const auto found = labels_.find(name);
    if (found == labels_.end()) throw std::runtime_error("the label is not known: " + name);
    kernel_.code[at].target = found->second;
  }
  const Instruction* const last = kernel_.code.empty() ? nullptr : &kernel_.code.back();
  if (last == nullptr || last->guarded || (last->kind != Kind::leave && last->kind != Kind::branch))
    throw std::runtime_error("what comes after the end of " + kernel_.name + " would run");
}

bool decode_by(const Table& table, Decoder& decoder) {
  const auto found = table.find(decoder.parsed().opcode);
  if (found == table.end()) return false;
  const Row& row = found->second;
  if (decoder.parsed().fields.size() != row.widths.size()) decoder.refuse("another number of operands is wanted");
  decoder.made().run = row.run;
  for (std::size_t i = 0; i < row.widths.size(); ++i) decoder.add_field(i, row.widths[i]);
  return true;
}

}  // namespace cusim::ptx

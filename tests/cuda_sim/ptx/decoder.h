// tests/cuda_sim/ptx/decoder.h: from one statement of PTX to an Instruction. The tables of operations are in ops_*.cc.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "program.h"

namespace cusim::ptx {

/// What a name stands for: a register, or a number (an address in its space).
struct Symbol {
  Operand place;
  bool is_register = false;
  std::uint64_t value = 0;
};

/// One statement, taken apart.
struct Parsed {
  std::string opcode;                            ///< "ld.global.f32"
  std::vector<std::string_view> parts;           ///< of the opcode, between dots
  std::vector<std::vector<std::string>> fields;  ///< operands; a vector of registers is one field of several

  bool has(std::string_view part) const;
  std::string_view base() const { return parts.front(); }
  std::string_view type() const { return parts.back(); }
};
Parsed parse_statement(std::string_view text);

/// Translates the statements of one kernel in order.
class Decoder {
 public:
  Decoder(Kernel& kernel, const Module& module) : kernel_(kernel), module_(module) {}

  void open_scope() { scopes_.emplace_back(); }
  void close_scope() { scopes_.pop_back(); }
  void declare_registers(std::string_view statement);
  void declare(const std::string& name, std::uint64_t value) { scopes_.front()[name] = {{}, false, value}; }
  void label(const std::string& name) { labels_[name] = static_cast<int>(kernel_.code.size()); }
  void statement(std::string text, const std::string& file, int line);
  /// After the last statement: branches get their targets.
  void finish();

  // For the tables. `field` counts from 0, the result included.
  const Parsed& parsed() const { return parsed_; }
  Instruction& made() { return made_; }
  /// Appends a register or a number of `bytes` per lane (0: a predicate; kAnyWidth: the register's own).
  void add(std::string_view name, unsigned bytes);
  void add_field(std::size_t field, unsigned bytes);  ///< all registers of a vector
  void add_number(std::uint64_t value, unsigned bytes);
  /// "[%rd1+8]": appends the register, and sets `offset`.
  void add_address(std::size_t field);
  void branch_to(std::string_view label_name) { targets_.emplace_back(kernel_.code.size(), label_name); }
  [[noreturn]] void refuse(const std::string& why) const;

  static constexpr unsigned kAnyWidth = 99;

 private:
  const Symbol* find(std::string_view name) const;
  Operand constant(std::uint64_t value, unsigned bytes);
  Operand special(std::string_view name);
  void take_guard(std::string_view& text);

  Kernel& kernel_;
  const Module& module_;
  std::vector<std::unordered_map<std::string, Symbol>> scopes_;
  std::unordered_map<std::string, int> labels_;
  std::vector<std::pair<std::size_t, std::string>> targets_;
  std::unordered_map<std::uint64_t, std::uint32_t> constants_[4];
  std::unordered_map<std::string, Operand> specials_;
  Parsed parsed_;
  Instruction made_;
  std::vector<Operand> added_;
  std::vector<std::uint32_t> firsts_;
};

// Each decodes the operations of its file, or returns false.
bool decode_integer(Decoder& decoder);
bool decode_float(Decoder& decoder);
bool decode_compare(Decoder& decoder);
bool decode_convert(Decoder& decoder);
bool decode_move(Decoder& decoder);
bool decode_memory(Decoder& decoder);
bool decode_atomic(Decoder& decoder);
bool decode_warp(Decoder& decoder);
bool decode_tensor(Decoder& decoder);
bool decode_copy(Decoder& decoder);  ///< cp.async

/// Bytes of ".u32", ".f64", ".b8" and the like without the dot; 0 for "pred"; throws for anything else.
unsigned type_bytes(std::string_view type);
bool is_type(std::string_view name);

/// A row of a table of operations whose operands all have fixed widths.
struct Row {
  Handler run;
  std::vector<std::uint8_t> widths;
};
using Table = std::unordered_map<std::string_view, Row>;
/// Decodes by a table of whole opcodes.
bool decode_by(const Table& table, Decoder& decoder);

}  // namespace cusim::ptx

// tests/cuda_sim/ptx/program.h: a kernel of nvcc's PTX, ready to run on warps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace cusim::ptx {

struct Warp;
struct Instruction;

/// Where the 32 lanes of an operand lie next to each other: among the warp's registers, or the kernel's constants.
struct Operand {
  std::uint32_t offset = 0;
  std::uint8_t bytes = 0;  ///< of a lane; 0: a predicate, which is one mask of 32 bits
  bool constant = false;
};

enum class Kind : std::uint8_t {
  plain,
  branch,
  leave,          ///< the lanes exit
  block_barrier,  ///< waits for all threads of the block
  collective,     ///< waits for the lanes that its last operand names; all of them, if it has none
};
enum class Space : std::uint8_t { generic, global, shared, local, param };

/// Does an instruction for some lanes of a warp.
using Handler = void (*)(Warp& warp, const Instruction& instruction, unsigned lanes);

struct Instruction {
  Handler run = nullptr;
  const Operand* operands = nullptr;
  Operand guard;
  bool guarded = false, negated = false;
  Kind kind = Kind::plain;
  bool names_lanes = false;  ///< of a collective: the last operand is the mask of lanes
  bool orders_memory = false;
  bool has_result = true;     ///< of an atomic operation
  std::uint8_t elements = 1;  ///< of a load or store
  std::uint8_t option = 0, count = 0;
  std::int32_t target = -1;                    ///< of a branch
  std::int64_t offset = 0, target_offset = 0;  ///< in an address; in the one that a copy writes to
  std::uint32_t statement = 0;                 ///< in Kernel::statements
};

/// For messages: what the instruction was, and the place in the source that it was made from.
struct Statement {
  std::string text;
  std::string file;
  int line = 0;
};

struct Parameter {
  std::string name;
  std::size_t offset = 0, bytes = 0;
};

/// A variable of static shared memory.
struct SharedVariable {
  std::string name;
  std::size_t offset = 0, bytes = 0;
};

enum class Special : std::uint8_t {
  tid_x,
  tid_y,
  tid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  warpid,
  lanemask_eq,
  lanemask_lt,
  lanemask_le,
  lanemask_gt,
  lanemask_ge
};
struct SpecialRegister {
  Special which;
  std::uint32_t offset;
};

/// Shared and local memory as generic addresses; no host memory lies there.
constexpr std::uint64_t kSharedWindow = std::uint64_t{0x0A00} << 48, kLocalWindow = std::uint64_t{0x0B00} << 48;

struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  std::vector<Operand> operands;
  std::vector<Statement> statements;
  std::vector<std::byte> constants;  ///< aligned by whoever runs the kernel
  std::vector<SpecialRegister> specials;
  std::vector<Parameter> parameters;
  std::vector<SharedVariable> shared;
  std::size_t register_bytes = 0, parameter_bytes = 0, local_bytes = 0;
  std::size_t static_bytes = 0;    ///< of shared memory, as a GPU would count them
  std::size_t dynamic_offset = 0;  ///< where dynamic shared memory begins
  unsigned most_threads = 1024;    ///< of a block, by the source's launch bounds
};

/// Variables of a module in device memory. They live as long as the program.
struct GlobalVariable {
  std::string name;
  std::size_t bytes = 0;
  std::byte* data = nullptr;
};

/// Text of one file of PTX.
class Module {
 public:
  explicit Module(std::string text);
  /// Mangled names of its kernels.
  std::vector<std::string> kernels() const;
  /// Throws std::runtime_error, which names the instruction that is not known.
  std::unique_ptr<Kernel> translate(const std::string& kernel) const;
  const std::vector<GlobalVariable>& variables() const { return variables_; }

 private:
  void read_variable(const std::string& statement);

  std::string text_;
  std::unordered_map<std::string, std::size_t> entries_;  // where the parameters begin
  std::unordered_map<int, std::string> files_;            // by the numbers of .loc
  std::vector<GlobalVariable> variables_;
  std::vector<std::string> module_statements_;  // of shared memory
};

}  // namespace cusim::ptx

// tests/cuda_sim/kernel_name.cc: from this program's symbol table, for dladdr() does not know what is local to a file.
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <span>

#include "grid.h"

namespace cusim {
namespace {

/// The mangled name of the function at `address` of the file, or null.
const char* find_symbol(const char* file, Elf64_Addr address) {
  const auto* const header = reinterpret_cast<const Elf64_Ehdr*>(file);
  const std::span sections(reinterpret_cast<const Elf64_Shdr*>(file + header->e_shoff), header->e_shnum);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB) continue;
    const auto* const symbols = reinterpret_cast<const Elf64_Sym*>(file + section.sh_offset);
    for (const Elf64_Sym& symbol : std::span(symbols, section.sh_size / sizeof(Elf64_Sym)))
      if (symbol.st_value == address && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC)
        return file + sections[section.sh_link].sh_offset + symbol.st_name;
  }
  return nullptr;
}

}  // namespace

std::string kernel_name(const void* kernel) {
  constexpr const char* kNone = "a kernel without a name";
  Dl_info info{};
  struct stat status {};
  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  if (file < 0 || fstat(file, &status) != 0 || dladdr(kernel, &info) == 0) return kNone;  // nobody counts descriptors
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* const map = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (map == MAP_FAILED) return kNone;
  const auto offset = static_cast<const char*>(kernel) - static_cast<const char*>(info.dli_fbase);
  const char* const symbol = find_symbol(static_cast<const char*>(map), static_cast<Elf64_Addr>(offset));
  char* const readable = symbol ? abi::__cxa_demangle(symbol, nullptr, nullptr, nullptr) : nullptr;
  std::string name = readable ? readable : symbol ? symbol : kNone;
  std::free(readable);
  munmap(map, bytes);
  return name;
}

}  // namespace cusim

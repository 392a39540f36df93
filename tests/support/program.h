// tests/support/program.h: what a test program is linked with. Tests are compiled once and linked with either backend.
#pragma once

#include <cstdlib>

namespace weft::test {

/// Whether this program tests a GPU, simulated or real: program_gpu.cc is linked in place of program_cpu.cc.
bool on_gpu();

/// Whether the exhaustive tier runs: loops that have a sample for the default tier take everything.
inline bool exhaustive() { return std::getenv("WEFT_TEST_ALL") != nullptr; }

/// The backend under test, by its name in MachineOptions::backend.
inline const char* backend_name() { return on_gpu() ? "cuda" : "cpu"; }

/// The source tree that the program was built from.
const char* built_from();

}  // namespace weft::test

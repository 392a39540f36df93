// tests/support/program.h: the program that a test is part of. Tests are compiled once and linked with either backend.
#pragma once

#include <cstdlib>

namespace weft::test {

/// Whether this program tests a GPU, simulated or real. It is then linked with program_gpu.cc, not program_cpu.cc.
bool on_gpu();

/// Whether the exhaustive tier runs. Loops that take a sample in the default tier then take everything.
inline bool exhaustive() { return std::getenv("WEFT_TEST_ALL") != nullptr; }

/// The backend under test, by its name in MachineOptions::backend.
inline const char* backend_name() { return on_gpu() ? "cuda" : "cpu"; }

/// The source tree that the program was built from.
const char* built_from();

}  // namespace weft::test

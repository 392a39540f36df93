// runtime/cli/input_flags.h: --input of the commands that take requests, and the flags for tables.
#pragma once

#include "runtime/inputs/request_input.h"

namespace CLI {
class App;
}

namespace weft::runtime {

/// Adds the flags to the group. `continuations`: tables may have them. `greedy`: a list of names may follow one flag,
/// for commands that take no other names.
void add_input_flags(CLI::App& command, RequestInput& input, const char* group, bool continuations, bool greedy);

}  // namespace weft::runtime

// runtime/cli/program.h: the whole of the program `weft`.
#pragma once

namespace weft::runtime {

/// All of main(). Takes over the process: its signals, its standard streams and its logger. Returns the exit code.
int program(int argc, char** argv);

}  // namespace weft::runtime

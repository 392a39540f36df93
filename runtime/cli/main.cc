#include "runtime/cli/program.h"

int main(int argc, char** argv) { return weft::runtime::program(argc, argv); }

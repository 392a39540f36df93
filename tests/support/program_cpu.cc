#include "tests/support/program.h"

bool weft::test::on_gpu() { return false; }
const char* weft::test::built_from() { return WEFT_SOURCE_DIR; }

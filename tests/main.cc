// The entry of every test binary; compiled once, for Catch2's main takes long.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>

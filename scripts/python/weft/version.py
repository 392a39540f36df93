"""The version of the package, which is the program's. A test compares it with CMakeLists.txt."""

VERSION = "0.1.0"

// Nothing of its own: the tests' precompiled headers are compiled with it.

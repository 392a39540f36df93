// tests/cuda_sim/gpu_probe_sim.cc: the probe, on the simulated GPU.
#include "tests/gpu_probe.cu"

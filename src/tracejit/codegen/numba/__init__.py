"""The second emitter: kernels as readable Python source, compiled by Numba for the CPU or for CUDA."""

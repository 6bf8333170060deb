"""Kernels as readable Python source, for Numba on CPU and CUDA: see README.md. Start reading at `source.py`."""

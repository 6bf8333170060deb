"""Kernels and library routines as LLVM text, for CPUs: see README.md. Start reading at `emit.py`."""

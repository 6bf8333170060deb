"""Graphs to kernels to native code: see README.md. Start reading at `compile.py`."""

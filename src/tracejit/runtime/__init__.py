"""Machine code, memory and threads: how a compiled program is kept and run. Start reading at `program.py`."""

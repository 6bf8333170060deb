"""Layers. Start reading at `module.py`."""

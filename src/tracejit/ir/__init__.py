"""Types, nodes, graphs and their text form. Start reading at `node.py`."""

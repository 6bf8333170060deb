"""Graph -> Graph: the gradient, rules, folding, sharing, binding. Start reading at `pipeline.py`."""

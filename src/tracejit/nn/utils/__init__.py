"""Gradient clipping, and parameters as one vector."""

from tracejit.nn.utils import rnn
from tracejit.nn.utils.clip import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from tracejit.nn.utils.vector import parameters_to_vector, vector_to_parameters

__all__ = [
    "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm", "parameters_to_vector", "rnn",
    "vector_to_parameters",
]  # fmt: skip

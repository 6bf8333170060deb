"""What files of programs share: a list that a decorator fills, objects with attributes, results as plain data."""

import math

import numpy as np

import tracejit as tj


def collected(default):
    """(the list, the decorator `@program(compiles=default)` that adds (name, program, compiles) to it)"""
    programs = []

    def program(compiles=default):
        def add(fn):
            programs.append((fn.__name__, fn, compiles))
            return fn

        return add

    return programs, program


class Box:
    """Attributes."""

    def __init__(self, **kw):
        self.__dict__.update(kw)


def plain(x, of_tensor=lambda t: list(t.shape)):
    """A result as data of its own; `of_tensor` is what is looked at beside dtype and values."""
    if isinstance(x, tj.Tensor):
        return ("tensor", str(x.dtype), of_tensor(x), np.asarray(x.detach().numpy()).astype(np.float64))
    if isinstance(x, (list, tuple)):
        return [type(x).__name__, *(plain(v, of_tensor) for v in x)]
    if isinstance(x, dict):
        return [(k, plain(v, of_tensor)) for k, v in x.items()]
    assert x is None or type(x) in (bool, int, float, str), f"a {type(x).__name__} came out"
    return (type(x).__name__, x)


def same(a, b, rtol, atol, float_rtol, float_atol):
    """Whether two results are: values of tensors within rtol and atol, numbers within float_rtol and float_atol."""
    if isinstance(a, np.ndarray):
        return a.shape == b.shape and np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    if isinstance(a, (list, tuple)):
        wide = rtol, atol, float_rtol, float_atol
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(same(x, y, *wide) for x, y in zip(a, b))
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=float_rtol, abs_tol=float_atol) or (a != a and b != b)
    return type(a) is type(b) and a == b

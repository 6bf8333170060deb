"""Numbers that change from call to call, used in every way Python knows: compiled calls give what eager calls give.

A second pair of eyes on widening: each program takes a tensor and a number, and meets a sequence of numbers whose values,
types, signs and sizes would each mislead a tracer that treats a number as an input too readily.
"""

from __future__ import annotations

import math

import pytest

import tracejit as tj

NUMBERS = {
    "shape use": (lambda x, n: x.expand(n, 3).sum(0) * n, [2, 3, 4, 5, 6, 2, 3]),
    "range": (lambda x, n: sum((x * i for i in range(n)), x * 0), [1, 2, 3, 4, 5, 6, 7, 1]),
    "zero sign": (lambda x, k: x / k, [1.0, 2.0, 3.0, 0.0, -0.0, 4.0, math.nan, math.inf]),
    "int to float": (lambda x, k: x.long() * k, [1, 2, 3, 4, 5.5, 6.5, 7, True, False, 8]),
    "big int": (lambda x, k: x.long() + k, [1, 2, 3, 4, 2**40, 2**62, 2**63, 2**70, -(2**63)]),
    "big float add int32": (lambda x, k: x.int() * k, [1, 2, 3, 2**31, 2**33, 5]),
    "bool number": (lambda x, k: x * k if k is not True else x - 100, [1, 2, 3, True, 4, 1, True]),
    "pow": (lambda x, k: x**k, [1.0, 2.0, 3.0, 0.5, 2, 3, 0, -1, 2.0, 1]),
    "compare chain": (lambda x, k: x + 1 if 2 < k <= 5 else x - k, [1.0, 3.0, 4.0, 5.0, 6.0, 2.0, 7.0, 5.0]),
    "round fmt": (lambda x, k: (x * round(k, 1)).sum().item(), [1.23, 2.34, 3.45, 4.56, 5.67]),
    "floor": (lambda x, k: x * (k // 2) + k % 3, [1, 2, 3, 4, 5, 6, 7.5, -8, 9]),
    "index": (lambda x, i: x[i] * i, [0, 1, 2, 1, 0, 2, -1, 1]),
    "slice": (lambda x, i: x[:i].sum() + i, [0, 1, 2, 3, 1, 2, 3, 0]),
    "returned": (lambda x, k: (x * k, k + 1, [k, k * 2], {"k": k}), [1.0, 2.0, 3.0, 4.0, 5.0, 6]),
    "max/min/abs": (lambda x, k: x * max(k, 3) - min(k, 2) + abs(k), [1, 2, 3, 4, 5, -6, 7, 3.5, -2]),
    "int()": (lambda x, k: x * int(k) + float(k), [1.5, 2.5, 3.9, -4.5, 5.0, 6.2]),
    "divzero": (lambda x, k: x * (1 / k), [1.0, 2.0, 3.0, 4.0, 0.0, 5.0]),
    "dtype promo f16": (lambda x, k: x.half() * k + 1, [1.0, 2.0, 1e6, 3.0, 4.0]),
    "where k": (lambda x, k: tj.where(x > k, x, x * k), [1.0, 2.0, 1.5, 2.5, 0.5]),
    "clamp": (lambda x, k: x.clamp(max=k), [1.0, 2.0, 1.5, 2.5, 0.5]),
    "full": (lambda x, k: tj.full((2,), k) + x[0], [1.0, 2.0, 3, 4, 5.5, True]),
    "tensor ctor": (lambda x, k: tj.tensor([k, k]) * x[0], [1.0, 2.0, 3, 4, 5.5, True]),
    "fill_": (lambda x, k: tj.zeros(2).fill_(k) + x[:2], [1.0, 2.0, 3, 4, 5.5]),
    "dropout p": (lambda x, k: tj.nn.functional.dropout(x, k, False), [0.1, 0.2, 0.3, 0.4]),
    "leaky": (lambda x, k: tj.nn.functional.leaky_relu(-x, k), [0.1, 0.2, 0.3, 0.4, 0.5]),
    "kw alpha": (lambda x, k: tj.add(x, x, alpha=k), [1, 2, 3.5, 4, 5]),
    "setitem": (lambda x, k: (x.__setitem__(0, k), x)[1], [1.0, 2.0, 3, 4.0, 5]),
    "dict key": (lambda x, k: x * {1: 10, 2: 20, 3: 30, 4: 40}.get(k, -1), [1, 2, 3, 4, 5, 1.0, 2]),
    "eq is": (lambda x, k: x * (2 if k == 3 else 5) + (k is None), [1, 2, 3, 3.0, 4, 3]),
    "hash set": (lambda x, k: x * (7 if k in {2, 4, 6} else 1), [1, 2, 3, 4, 5, 6, 7]),
    "divmod": (lambda x, k: x * divmod(k, 3)[0] + divmod(k, 3)[1], [1, 5, 9, 14, 7.5]),
    "mathfn": (lambda x, k: x * math.sqrt(k) + math.floor(k) + math.log(k), [1.0, 2.0, 3.5, 4.0, -1.0, 5.0]),
    "lshift": (lambda x, k: x * (1 << k), [1, 2, 3, 4, 5]),
    "complex chain": (lambda x, k: x * ((k + 1) * (k - 1) / (k * k + 1)) ** 0.5, [1.5, 2.0, 3.0, 4.0, 5.0]),
    "isinstance": (lambda x, k: x * 2 if isinstance(k, int) else x * k, [1, 2, 3.0, 4.0, 5, 6.0]),
}


def observed(value):
    """A result as plain data, with types; ("raised", class) for an exception."""
    if isinstance(value, tj.Tensor):
        return (str(value.dtype), value.tolist())
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [observed(v) for v in value])
    if isinstance(value, dict):
        return {k: observed(v) for k, v in value.items()}
    return (type(value).__name__, value)


def run(f, numbers):
    out = []
    for k in numbers:
        try:
            out.append(observed(f(tj.tensor([1.0, 2.0, 3.0]), k)))
        except Exception as e:
            out.append(("raised", type(e).__name__))
    return out


def close(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[k], b[k]) for k in a)
    if isinstance(a, float) and math.isfinite(a):
        return abs(a - b) <= 1e-5 * max(1, abs(a)) and (a != 0 or math.copysign(1, a) == math.copysign(1, b))
    return a == b or (a != a and b != b)


@pytest.mark.parametrize("name", NUMBERS)
def test_changing_number(name):
    program, numbers = NUMBERS[name]
    numbers = numbers * 2  # the second time round, compiled paths of the first are met again
    assert close(run(program, numbers), run(tj.compile(program), numbers))

"""What recorded code computes from opaque numbers: again in every call, or in the graph, or when the graph has run.

A number on the tape (`scalars.py`) is computed by Python before the graph runs. One that comes from a tensor is known
only afterwards: arithmetic on it waits as a `Recipe`, becomes nodes of type f64 where it meets a tensor or a comparison
and these give Python's bits, and else is looked at.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tracejit.ir.dtype import DType, default, float32, float64, int64
from tracejit.ir.node import Node, cast, common_dtype
from tracejit.ir.op import Op
from tracejit.ir.symint import SymInt
from tracejit.ir.types import TensorType
from tracejit.ops.control import StopGradient
from tracejit.trace.objects import bits
from tracejit.trace.recorder import Recorder, opened
from tracejit.trace.scalars import (
    EXACT,
    LARGEST,
    LARGEST_STEP,
    OPAQUE,
    RAISING,
    SAFE,
    Opaque,
    OpaqueInt,
    OpaqueText,
    Recipe,
    Step,
    counted,
    made_of,
    plain_number,
)

__all__ = ["input_tensor", "number_tensor", "scalar", "text", "value_node"]


def scalar(r: Recorder, f: Callable[..., Any], *operands: Any) -> Any:
    """f of numbers, some of them opaque: to be computed again in every call. A bool is guarded."""
    if any(type(x) is SymInt for x in operands) and f in EXACT:
        if f is int:
            return operands[0]
        if all(type(x) is SymInt or type(x) is int or type(x) is bool for x in operands):
            return f(*operands)
    is_quotient = f is operator.floordiv and type(operands[0]) is SymInt and type(operands[1]) is int
    if is_quotient and (exact := operands[0].divided(operands[1])) is not None:
        return exact
    if any(type(x) in OPAQUE and x.ref < 0 for x in operands):
        if (count := _count(f, operands)) is not None:
            return count
        if f in SAFE or f in RAISING or f in (round, min, max):
            return _deferred(r, f, operands)
        if (test := _test(r, f, operands)) is not None:
            r.builder.check(*test, "bool")
            return f(*map(plain_number, operands))
        operands = tuple(r.reveal(x) if type(x) in OPAQUE and x.ref < 0 else x for x in operands)
    plain = tuple(map(plain_number, operands))
    if all(a is b for a, b in zip(plain, operands)):
        return f(*plain)
    try:
        value = f(*plain)
    except Exception as e:
        r.refuse(f"{type(e).__name__} raised by {f.__name__} of numbers")
        raise
    t = type(value)
    if t is not float and t is not int and t is not bool:
        for x in operands:
            r.reveal(x)
        return value
    noted = tuple((True, x.ref) if type(x) in OPAQUE else (False, x) for x in operands)
    key = (f, tuple((is_ref, bits(x)) for is_ref, x in noted))
    at = r.numbers.put(key, Step(f, noted), value)
    if t is bool:
        r.numbers.guards[at] = value
        return value
    return r.numbers.opaque(at)


def _count(f: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """A counter of turns, moved on by a small constant; None for anything else."""
    if f in (int, operator.pos) and type(operands[0]) is OpaqueInt:
        return operands[0]
    if f not in _COUNTING or not any(type(x) is OpaqueInt for x in operands):
        return None
    if not any(type(x) is int and abs(x) <= LARGEST_STEP for x in operands) or any(
        type(x) is OpaqueInt and (x.ref >= 0 or x.seen) for x in operands
    ):
        return None
    i64, add = TensorType(int64, ()), Op.registry[_COUNTING[f]]()
    a, b = (
        x.node if type(x) is OpaqueInt else Node.of(Op.registry["const"](x, i64), ())  # type: ignore[call-arg]
        for x in operands
    )
    return None if a is None or b is None else counted(f(*map(plain_number, operands)), Node.of(add, (a, b)))


_COUNTING: dict[Any, str] = {
    **dict.fromkeys((operator.add, operator.iadd), "add"),
    **dict.fromkeys((operator.sub, operator.isub), "sub"),
}


def _deferred(r: Recorder, f: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """f of numbers of which some are known only when the graph has run, and f can wait until then."""
    plain = tuple(map(plain_number, operands))
    floats = all(type(x) is float or (type(x) is int and abs(x) <= LARGEST) for x in plain)
    odd = (f is round and (len(plain) != 2 or type(plain[1]) is not int or not 0 <= plain[1] < 16)) or (
        f in (min, max) and any(type(x) is not float for x in plain)
    )
    if not floats or odd or any(type(x) is OpaqueText for x in operands):
        return f(*map(r.reveal, operands))
    try:
        value = f(*plain)
    except Exception as e:
        r.refuse(f"{type(e).__name__} raised by {f.__name__} of numbers")
        raise
    if type(value) is not float:
        return f(*map(r.reveal, operands))
    constant = f in (operator.truediv, operator.itruediv) and type(operands[1]) is float and operands[1] != 0.0
    raises = not constant and (f in RAISING or any(type(x) is OpaqueInt and x.ref >= 0 for x in operands))
    return made_of(value, Recipe(f, operands, raises))


def _test(r: Recorder, f: Callable[..., Any], operands: tuple[Any, ...]) -> tuple[Node, bool] | None:
    """(node, what it must be): f of numbers from tensors as a question to the graph; None where it is none."""
    found = [_double(r, x) for x in operands]
    nodes = [n for n in found if n is not None]
    if f not in _TESTS or len(nodes) < len(found):
        return None
    name, swapped, inverted = _TESTS[f]
    like = nodes[0]
    if name in ("finite", "inf"):
        limit = Node.of(Op.registry["const"](float("inf"), TensorType(float64, ())), ())  # type: ignore[call-arg]
        name, nodes = ("lt" if name == "finite" else "eq"), [Node.of(Op.registry["abs"](), (like,)), limit]
    elif len(nodes) == 1:
        zero = Node.of(Op.registry["const"](0.0, TensorType(float64, ())), ())  # type: ignore[call-arg]
        nodes = [like, zero if f is bool else like]
    node = Node.of(Op.registry[name](), tuple(nodes[::-1] if swapped else nodes))
    return node, bool(f(*map(plain_number, operands))) is not inverted


def _double(r: Recorder, x: Any) -> Node | None:
    """x as a node of type f64 with its exact value."""
    t = type(x)
    if (t is float) or (t is int and abs(x) <= LARGEST):
        return Node.of(Op.registry["const"](float(x), TensorType(float64, ())), ())  # type: ignore[call-arg]
    if t not in OPAQUE or t is OpaqueText:
        return None
    if x.recipe is not None:
        return _computed(r, x)
    node = x.node if x.ref < 0 else _number_node(r, x)
    return None if node is None else cast(node, float64)


def _computed(r: Recorder, x: Any) -> Node | None:
    """The node of type f64 of a number with a recipe that the graph can follow bit for bit; it may stand on
    thousands of others."""
    done: dict[int, Node | None] = {}
    todo = [x]
    while todo:
        y = todo[-1]
        waiting = [p for p in y.recipe.operands if type(p) in OPAQUE and p.recipe and id(p) not in done]
        if waiting:
            todo.extend(waiting)
            continue
        todo.pop()
        if (op := _EXACT.get(y.recipe.f)) is None or y.recipe.raises:
            return None
        parts = [done[id(p)] if id(p) in done else _double(r, p) for p in y.recipe.operands]
        found = tuple(n for n in parts if n is not None)
        if len(found) < len(parts):
            return None
        done[id(y)] = Node.of(Op.registry[op](), found) if op else found[0]
    return done[id(x)]


def text(r: Recorder, f: Callable[..., str], *operands: Any, raises: bool = False) -> str:
    """f of opaque numbers, texts and tensors as text that waits until the graph has run."""
    with opened(None):
        value = r.unwatched(f, *map(plain_number, operands))
    for x in operands:
        if r.is_tensor(x):
            r.journal.frozen.append((x, x._version.n))
    return made_of(str.__str__(value), Recipe(f, operands, raises))


def number_tensor(r: Recorder, x: Any, like: Any, name: str) -> Any:
    """Opaque x as the tensor that stands for it as an operand of `name` beside tensor `like`; None: look at it."""
    if (name == "pow" and type(x) is not Opaque) or type(x) is OpaqueText:
        return None  # x ** 2 is a product
    dtype: DType = common_dtype(like, plain_number(x))
    if name == "truediv" and not dtype.is_floating_point:
        dtype = default()
    wanted = (float32, float64) if type(x) is Opaque else (float32, float64, int64)
    if dtype not in wanted or (node := _number_node(r, x)) is None:
        return None
    const: Any = Op.registry["const"](plain_number(x), TensorType(dtype, ()))  # type: ignore[call-arg]
    t = r.domain.wrap(const.eval(), False)
    r.builder.bind(t, cast(node, dtype))
    return t


def value_node(r: Recorder, x: Any) -> Node | None:
    """The node of an opaque number, f64 or i64; None where it has none."""
    if x.recipe is not None:
        return _computed(r, x)
    return x.node if x.ref < 0 else _number_node(r, x)


def input_tensor(r: Recorder, x: Any) -> Any:
    """An opaque int of the tape as a tensor of rank 0 that stands for it."""
    node = _number_node(r, x)
    assert node is not None
    t = r.domain.wrap(np.asarray(plain_number(x), np.int64), False)
    r.builder.bind(t, node)
    return t


def _number_node(r: Recorder, x: Any) -> Node | None:
    if x.recipe is not None:
        node = _computed(r, x)
        return None if node is None else Node.of(StopGradient(), (node,))
    if x.ref < 0:
        if x.node.dtype not in (float32, float64, int64):
            return None
        return Node.of(StopGradient(), (x.node,))
    if x.ref in r.number_params:
        return r.number_params[x.ref][1]
    if type(x) is not Opaque and abs(plain_number(x)) > LARGEST:
        return None
    kind = float64 if type(x) is Opaque else int64
    t = r.domain.wrap(np.asarray(plain_number(x), kind.numpy), False)
    node = r.builder.input(t, f"n{len(r.number_params)}")
    r.number_params[x.ref] = (t, node)
    return node


# f -> (op, whether its operands are swapped, whether its answer is turned round)
_TESTS: dict[Any, tuple[str, bool, bool]] = {
    operator.lt: ("lt", False, False),
    operator.le: ("le", False, False),
    operator.gt: ("lt", True, False),
    operator.ge: ("le", True, False),
    operator.eq: ("eq", False, False),
    operator.ne: ("eq", False, True),
    bool: ("eq", False, True),
    math.isnan: ("eq", False, True),
    math.isfinite: ("finite", False, False),
    math.isinf: ("inf", False, False),
}
# f -> the op that gives its bits for floats; "" for the float itself.
_EXACT: dict[Any, str] = {
    **dict.fromkeys((operator.add, operator.iadd), "add"),
    **dict.fromkeys((operator.sub, operator.isub), "sub"),
    **dict.fromkeys((operator.mul, operator.imul), "mul"),
    **dict.fromkeys((operator.truediv, operator.itruediv), "div"),
    **dict.fromkeys((abs, math.fabs), "abs"),
    **dict.fromkeys((operator.pos, float), ""),
    operator.neg: "neg",
}

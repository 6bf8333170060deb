"""Ops about the computation rather than its values: where a gradient ends, where a value lives, what is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tracejit.errors import OpError
from tracejit.ir import dtype as dt
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.node import Node
from tracejit.ir.op import Array, At, Op, Reader, Sample
from tracejit.ir.types import TensorType, TupleType, Type, same_type
from tracejit.records import dataclass

__all__ = ["Loop", "StopGradient", "ToDevice", "While", "stop_gradient", "to_device"]


class StopGradient(Op):
    """y = x, and no gradient flows back."""

    name = "stop_gradient"

    def infer(self, x: TensorType) -> Type:
        return x

    def eval(self, x: Array) -> Array:
        return x

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (None,)

    def element(self, at: At, x: Reader) -> Node:
        return x(at)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for dtype in dt.ALL:
            yield Sample(cls(), (np.ones((2, 3), dtype.numpy),), differentiable=False)
        yield Sample(cls(), (rng.normal(size=(0, 3)),), ((0, 1, "n"),), differentiable=False)


@dataclass(frozen=True)
class ToDevice(Op):
    """y = x, on another device. Where both are memory of this process nothing is copied."""

    name = "to_device"
    device: str

    def infer(self, x: TensorType) -> Type:
        return TensorType(x.dtype, x.shape, self.device)

    def eval(self, x: Array) -> Array:
        return x

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (to_device(g, x.type.device),)

    def element(self, at: At, x: Reader) -> Node:
        return x(at)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for dtype in dt.ALL:
            yield Sample(cls("cpu"), (np.ones((2, 3), dtype.numpy),), differentiable=dtype.kind == "f")


@dataclass(frozen=True)
class Loop(Op):
    """`trips` turns of `body`: carried values go from turn to turn, rows are read and written one by one.

        inputs   carried values | stacks, one row of which a turn reads | fixed values
        body     (carried, rows, fixed) -> (carried, rows)
        results  carried values after the last turn | stacks of the rows that the turns gave

    Turn k reads and writes row k, `backwards` the k-th from the end. Made after the gradient, so it has none.
    """

    name = "loop"
    library = "loop"
    body: Graph
    trips: int
    carried: int
    rows: int  # of the inputs
    backwards: bool = False

    def infer(self, *types: TensorType) -> Type:
        wanted = [p.type for p in self.body.params]
        if len(types) != len(wanted) or not 0 <= self.carried <= self.carried + self.rows <= len(wanted):
            raise OpError(f"loop of {len(types)} inputs: its body takes {len(wanted)}")
        stop = self.carried + self.rows
        for k, (have, want) in enumerate(zip(types, wanted)):
            is_row = self.carried <= k < stop
            if not same_type(have, want.with_shape((self.trips, *want.shape)) if is_row else want):
                kind = f"a row of input {k}" if is_row else f"input {k}"
                raise OpError(f"loop of {self.trips} turns: {kind} is {have}, its body wants {want}")
        made = [r.type for r in self.body.results]
        for k, (have, want) in enumerate(zip(made, types[: self.carried])):
            if not same_type(have, want):
                raise OpError(f"loop: carried value {k} is {want}, its body makes {have} of it")
        if len(made) < self.carried:
            raise OpError(f"loop carries {self.carried} values, its body gives {len(made)}")
        return TupleType((*made[: self.carried], *(t.with_shape((self.trips, *t.shape)) for t in made[self.carried :])))

    def eval(self, *arrays: Array) -> Any:
        carried, stacks = list(arrays[: self.carried]), arrays[self.carried : self.carried + self.rows]
        fixed = arrays[self.carried + self.rows :]
        made: list[tuple[Array, ...]] = []
        for k in reversed(range(self.trips)) if self.backwards else range(self.trips):
            out = run(self.body, (*carried, *(s[k] for s in stacks), *fixed))
            carried = list(out[: self.carried])
            made.append(out[self.carried :])
        if self.backwards:
            made.reverse()
        types = [r.type for r in self.body.results[self.carried :]]
        return (
            *(np.array(c) for c in carried),
            *(
                np.stack([m[k] for m in made]) if made else np.zeros((0, *t.shape), t.dtype.numpy)
                for k, t in enumerate(types)
            ),
        )

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for dtype in (dt.float32, dt.float64, dt.int64):
            t, row = TensorType(dtype, (2, 3)), TensorType(dtype, (3,))
            c, x, w = param("c", t), param("x", row), param("w", TensorType(dtype, (3, 3)))
            h = Op.registry["matmul"]()(c, w) + x
            body = Graph("step", (c, x, w), (h, h * 2, c))
            arrays = (rng.integers(-2, 3, s) for s in ((2, 3), (3, 3)))
            start, weight = (a.astype(dtype.numpy) for a in arrays)
            for trips in (0, 1, 3):
                xs = rng.integers(-2, 3, (trips, 3)).astype(dtype.numpy)
                for backwards in (False, True):
                    yield Sample(cls(body, trips, 1, 1, backwards), (start, xs, weight), differentiable=False)
        a, b = (param(n, TensorType(dt.float64, (4,))) for n in "ab")
        swap = Graph("swap", (a, b), (b, a))
        yield Sample(cls(swap, 3, 2, 0), (rng.normal(size=4), rng.normal(size=4)), differentiable=False, note="swap")
        last = Graph("shift", (a, b), (b, a))
        yield Sample(cls(last, 3, 1, 1), (rng.normal(size=4), rng.normal(size=(3, 4))), differentiable=False)


@dataclass(frozen=True)
class While(Op):
    """Turns of `body` for as long as their test holds, `limit` at most; a turn whose test fails was not run.

        inputs   carried values | fixed values
        body     (carried, fixed) -> (carried, test), the test a bool[]
        results  carried values | how many turns there were, i64[]

    It has no gradient: how often it turns is not known before.
    """

    name = "while"
    library = "loop"
    body: Graph
    limit: int
    carried: int

    def infer(self, *types: TensorType) -> Type:
        wanted = [p.type for p in self.body.params]
        if len(types) != len(wanted) or not 0 <= self.carried <= len(wanted):
            raise OpError(f"while of {len(types)} inputs: its body takes {len(wanted)}")
        for k, (have, want) in enumerate(zip(types, wanted)):
            if not same_type(have, want):
                raise OpError(f"while: input {k} is {have}, its body wants {want}")
        made = [r.type for r in self.body.results]
        for k, (have, want) in enumerate(zip(made, types[: self.carried])):
            if not same_type(have, want):
                raise OpError(f"while: carried value {k} is {want}, its body makes {have} of it")
        if len(made) != self.carried + 1 or made[-1].dtype is not dt.bool_ or made[-1].shape:
            raise OpError(f"while carries {self.carried} values and needs a test of type bool[], its body gives {made}")
        return TupleType((*made[: self.carried], TensorType(dt.int64, ())))

    def eval(self, *arrays: Array) -> Any:
        carried, fixed, turns = list(arrays[: self.carried]), arrays[self.carried :], 0
        while turns < self.limit:
            *made, test = run(self.body, (*carried, *fixed))
            if not test:
                break
            carried, turns = made, turns + 1
        return (*(np.array(c) for c in carried), np.array(turns, np.int64))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        reduce_max: Any = Op.registry["reduce_max"]
        for dtype in (dt.float32, dt.float64, dt.int64):
            t = TensorType(dtype, (2, 3))
            x, n, by = param("x", t), param("n", TensorType(dt.int64, ())), param("by", t)
            top = reduce_max((0, 1))(x)
            body = Graph("turn", (x, n, by), (x + by, n + 1, top < 20))
            start, step = (rng.integers(1, 4, (2, 3)).astype(dtype.numpy) for _ in range(2))
            for limit in (0, 1, 3, 1000):
                yield Sample(cls(body, limit, 2), (start, np.array(5), step), differentiable=False)
            yield Sample(cls(body, 9, 2), (start + 30, np.array(5), step), differentiable=False, note="no turn")
        a, b = (param(n, TensorType(dt.float64, (4,))) for n in "ab")
        swap = Graph("swap", (a, b), (b, a * 0.5, reduce_max((0,))(a * a + b * b) > 0.001))
        yield Sample(cls(swap, 99, 2), (rng.normal(size=4), np.ones(4)), differentiable=False, note="swap")


def stop_gradient(x: Any) -> Any:
    """x, through which no gradient flows."""
    return StopGradient()(x)


def to_device(x: Any, device: str) -> Any:
    """x on `device`; x itself where it already is."""
    return x if x.type.device == device else ToDevice(device)(x)

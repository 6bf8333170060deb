"""A Plan is a compiled graph as data: arrays, native steps by symbol, checks. What is left is to link it and to run it.

The store keeps it as JSON under a key of all that it follows from: the graph and how it is called, the sources of this
package, NumPy, LLVM and the CPU. So a new process neither optimises nor schedules what an earlier one has seen. What
cannot be read is no plan, and is made again.
"""

from __future__ import annotations

import json
import struct
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracejit import config
from tracejit.codegen.extents import Values
from tracejit.codegen.result import Checks
from tracejit.errors import ParseError
from tracejit.ir.dtype import BY_NAME
from tracejit.ir.graph import Graph
from tracejit.ir.op import Array
from tracejit.ir.printer import to_text, to_text_with_arrays
from tracejit.ir.types import TensorType
from tracejit.records import dataclass
from tracejit.runtime import engine, store
from tracejit.runtime.program import Arena, Arg, Batch, Check, External, Int, Loop, Row, Step

__all__ = ["Host", "Plan", "Segment", "find", "keep", "key"]

# Whose modules have a say in what a plan is.
_FOLDERS = ("ir", "ops", "passes", "codegen", "codegen/llvm", "runtime")
_LARGEST = 1 << 20  # bytes of constants in a plan that is kept: reading more is no faster than making it again


@dataclass(frozen=True)
class Segment:
    """A run of native steps: a `Program` but for the addresses of its steps, whose names are their symbols."""

    steps: tuple[Step, ...]
    arena_bytes: int
    checks: tuple[Check, ...]
    numbers: tuple[int, ...]  # of these checks among all; those that loops end by come last and have none
    loops: tuple[Loop, ...] = ()
    batches: tuple[Batch, ...] = ()


@dataclass(frozen=True)
class Host:
    """A step that runs as NumPy: a graph of one op, and the numbers of the externals it reads and makes."""

    graph: Graph
    reads: tuple[int, ...]
    makes: tuple[int, ...]

    @property
    def name(self) -> str:
        """The op's."""
        return self.graph.nodes[len(self.graph.params)].op.name


@dataclass(frozen=True)
class Plan:
    """A compiled graph. Externals, by number: parameters, constants, outputs, temporaries."""

    params: tuple[TensorType, ...]
    constants: tuple[Array, ...]
    outputs: tuple[TensorType, ...]
    temps: tuple[TensorType, ...]
    targets: tuple[int, ...]  # parameters that are written
    parts: tuple[Segment | Host, ...]
    checked: tuple[int, ...]  # the external that each check looks at
    late_checks: Mapping[int, tuple[int, ...]]  # checks that wait for a host step; -1: for nothing
    objects: tuple[engine.Object, ...]

    @property
    def first_output(self) -> int:
        """The external that is the first output."""
        return len(self.params) + len(self.constants)

    @property
    def externals(self) -> int:
        """How many there are."""
        return self.first_output + len(self.outputs) + len(self.temps)


# ---------------------------------------------------------------- the store


def key(
    graph: Graph, updates: Mapping[int, int], checks: Checks, optimize: bool, values: Values | None = None
) -> str | None:
    """What the plan of this graph is kept under; None where that would not say all it depends on.

    `values` are what its symbols stand for, if it has any.
    """
    settings = config.current()
    if settings.dump or settings.verify_passes:  # who asked to see the passes wants them to run
        return None
    sources = store.sources(_FOLDERS)
    if not sources or any(not type(n.op).__module__.startswith("tracejit.") for n in graph.nodes):
        return None
    expected = [(i, _exact(value)) for i, value in checks]
    call = f"{graph.fingerprint}|{sorted(updates.items())}|{expected}|{optimize}|{sorted((values or {}).items())}"
    return f"plan|{sources}|{np.__version__}|{engine.cpu_key()}|{call}"


def find(key: str) -> Plan | None:
    """The plan under `key`, with the code of its kernels, if both are there and can be read."""
    if (data := store.get(key)) is None:
        return None
    try:
        return _decode(json.loads(data))
    except (ValueError, KeyError, TypeError, IndexError, ParseError):
        return None


def keep(key: str, plan: Plan) -> None:
    """Keep the plan for this process and those to come, unless it holds large arrays, or some inside an op."""
    ops = [to_text_with_arrays(h.graph)[1] for h in plan.parts if isinstance(h, Host)]
    if sum(c.nbytes for c in plan.constants) <= _LARGEST and not any(ops):
        store.put(key, json.dumps(_encode(plan), separators=(",", ":")).encode())


def _exact(value: bool | int | float) -> str:
    return struct.pack("<d", value).hex() if isinstance(value, float) else repr(value)


# ---------------------------------------------------------------- JSON


def _encode(p: Plan) -> dict[str, Any]:
    return {
        "params": [_type(t) for t in p.params],
        "constants": [_array(a) for a in p.constants],
        "outputs": [_type(t) for t in p.outputs],
        "temps": [_type(t) for t in p.temps],
        "targets": p.targets,
        "parts": [_segment(s) if isinstance(s, Segment) else _host(s) for s in p.parts],
        "checked": p.checked,
        "late_checks": list(p.late_checks.items()),
        "objects": [o.key for o in p.objects],
    }


def _decode(d: Mapping[str, Any]) -> Plan | None:
    objects = [engine.find(k) for k in d["objects"]]
    found = tuple(o for o in objects if o is not None)
    if len(found) < len(objects):
        return None
    return Plan(
        tuple(map(_read_type, d["params"])),
        tuple(_read_array(*a) for a in d["constants"]),
        tuple(map(_read_type, d["outputs"])),
        tuple(map(_read_type, d["temps"])),
        tuple(d["targets"]),
        tuple(_read_segment(*s) if len(s) == 6 else _read_host(*s) for s in d["parts"]),
        tuple(d["checked"]),
        {part: tuple(checks) for part, checks in d["late_checks"]},
        found,
    )


def _array(a: Array) -> list[Any]:
    return [a.dtype.name, a.shape, b2a_base64(a.tobytes(), newline=False).decode()]


def _read_array(name: str, shape: Sequence[int], data: str) -> Array:
    return np.frombuffer(a2b_base64(data), np.dtype(name)).reshape(shape)


def _type(t: TensorType) -> list[Any]:
    return [t.dtype.name, t.shape]


def _read_type(t: Sequence[Any]) -> TensorType:
    return TensorType(BY_NAME[t[0]], tuple(t[1]))


def _segment(s: Segment) -> list[Any]:
    steps = [[t.name, t.extent, t.grain, t.scratch, t.parallel, *map(_arg, t.args)] for t in s.steps]
    checks = [[c.after_step, _arg(c.arg), c.itemsize, c.expected] for c in s.checks]
    loops = [[x.first, x.stop, x.trips, *([] if x.count is None else [_arg(x.count)])] for x in s.loops]
    return [steps, s.arena_bytes, checks, s.numbers, loops, [[x.first, x.stop] for x in s.batches]]


def _read_segment(
    steps: Any, arena_bytes: int, checks: Any, numbers: Sequence[int], loops: Any, batches: Any
) -> Segment:
    return Segment(
        tuple(
            Step(0, tuple(map(_read_arg, args)), extent, grain, scratch, name, parallel)
            for name, extent, grain, scratch, parallel, *args in steps
        ),
        arena_bytes,
        tuple(Check(after, _read_arg(arg), itemsize, expected) for after, arg, itemsize, expected in checks),
        tuple(numbers),
        tuple(Loop(*x[:3], *map(_read_arg, x[3:])) for x in loops),
        tuple(Batch(*x) for x in batches),
    )


def _host(h: Host) -> list[Any]:
    return [to_text(h.graph, locations=False), h.reads, h.makes]


def _read_host(text: str, reads: Sequence[int], makes: Sequence[int]) -> Host:
    from tracejit.ir.parser import parse  # few plans have host steps

    return Host(parse(text), tuple(reads), tuple(makes))


def _arg(a: Arg) -> Any:
    match a:
        case Int(value):
            return value
        case Arena(byte_offset):
            return (byte_offset,)
        case External(index, byte_offset):
            return (index, byte_offset)
        case Row(first, by):
            return (_arg(first), by, 0)


def _read_arg(a: Any) -> Arg:
    if isinstance(a, int):
        return Int(a)
    match len(a):
        case 1:
            return Arena(a[0])
        case 2:
            return External(a[0], a[1])
        case _:
            first = _read_arg(a[0])
            assert isinstance(first, (External, Arena))
            return Row(first, a[1])

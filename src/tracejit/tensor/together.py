"""What an optimizer does in a step, for all its parameters in one native call.

A step is in-place tensor ops, one parameter after the other. Once it has come often enough one of these steps is
recorded while it runs; what it did is a graph with updates, built and kept as any other, with the learning rates as
inputs. It is used while parameters, state and settings are what they were: of the same types, by the same names.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, Final

import numpy as np

from tracejit import config, logs
from tracejit.ir.graph import Graph
from tracejit.ir.op import Array
from tracejit.runtime import buffer
from tracejit.tensor.kernels import built
from tracejit.tensor.tape import user_line
from tracejit.tensor.tensor import Tensor, wrap
from tracejit.trace import recorder as recording

__all__ = ["Job", "Together", "recorded"]

Job = tuple[dict[str, Any], Tensor, dict[str, Any]]  # group, parameter with a gradient, state
Update = Callable[[Any, Any, dict[str, Any], dict[str, Any]], None]

_HOT: Final = 3  # steps before it is built ...
# Half of the seconds that building takes with no kernels on disk, and of those for each parameter.
_BUILD: Final = 50e-3
_EACH: Final = 8e-3
_OPS: Final = 240e-6  # seconds of a parameter's update by ops ...
_BYTE: Final = 8e-9  # ... and for each byte of it


def recorded() -> bool:
    """Whether a recording is open in this thread."""
    return recording.active() is not None


class Together:
    """Of one optimizer. `step(jobs, update)` does update(p, grad, state, group) for all of them, or says False."""

    def __init__(self) -> None:
        self._key: Any = None
        self._uses = 0
        self._made: _Made | None = None
        self._refused = False

    def __deepcopy__(self, memo: object) -> Together:
        return Together()

    def __reduce__(self) -> Any:
        return Together, ()

    def step(self, jobs: Sequence[Job], update: Update) -> bool:
        """Update all parameters, where that is possible together."""
        if not jobs or not config.current().eager_kernels:
            return False
        try:
            key = _key(jobs)
        except TypeError:  # something that is no tensor and no plain setting
            return False
        if key != self._key:
            self._key, self._uses, self._made, self._refused = key, 0, None, False
        self._uses += 1
        if self._refused:
            return False
        if self._made is not None:
            return self._made.run(jobs)
        spent = self._uses * sum([_OPS + _BYTE * p._array.nbytes for _, p, _ in jobs])
        if self._uses < _HOT or spent < _BUILD + _EACH * len(jobs):
            return False
        self._made, why = _record(jobs, update)
        if why:
            logs.note("fallback", "a step of an optimizer stays with its ops: %s", why)
            self._refused = True
        return True


def _key(jobs: Sequence[Job]) -> Any:
    groups: dict[int, Any] = {}
    found: list[Any] = []
    numbers: dict[int, int] = {}  # of the tensors among the settings: which of them are one
    for group, p, state in jobs:
        if id(group) not in groups:
            groups[id(group)] = tuple([(k, _setting(k, v, numbers)) for k, v in group.items() if k not in _UNREAD])
        a, g = p._array, p._grad._array  # type: ignore[union-attr]
        found += (id(group), a.dtype, a.shape, g.dtype, g.shape)
        for name, v in state.items():
            if not isinstance(v, Tensor):
                raise TypeError(name)
            a = v._array
            found += (name, a.dtype, a.shape)
    return found, groups


_UNREAD: Final = ("params", "param_names")


def _setting(name: str, v: Any, numbers: dict[int, int]) -> Any:
    if isinstance(v, Tensor):
        return numbers.setdefault(id(v), len(numbers)), v._array.dtype, v._array.shape
    if name == "lr" and type(v) is float:
        return float
    if type(v) is tuple or type(v) is list:
        return type(v), tuple([_setting("", x, numbers) for x in v])
    if v is None or type(v) in (int, float, bool, str):
        return type(v), v
    raise TypeError(name)


def _record(jobs: Sequence[Job], update: Update) -> tuple[_Made | None, str]:
    """Do the step, and make it native; or why not."""
    from tracejit.tensor.jit import DOMAIN

    rates: dict[int, Tensor] = {}
    groups: dict[int, dict[str, Any]] = {}
    for group, _, _ in jobs:
        if id(group) not in groups:
            groups[id(group)] = own = dict(group)
            if type(group.get("lr")) is float:
                own["lr"] = rates[id(group)] = wrap(np.array(group["lr"]))
    places: dict[int, tuple[Any, ...]] = {id(t): ("rate", i, "lr") for i, t in enumerate(rates.values())}
    for i, (group, p, state) in enumerate(jobs):
        places |= {id(v): ("setting", i, k) for k, v in group.items() if isinstance(v, Tensor)}
        places |= {id(v): ("state", i, k) for k, v in state.items()}
        places |= {id(p._grad): ("grad", i, ""), id(p): ("param", i, "")}
    settings = [v for group, _, _ in jobs for v in group.values() if isinstance(v, Tensor)]
    owned: list[Any] = [t for _, p, state in jobs for t in (p, p._grad, *state.values())]
    owned += {id(v): v for v in settings}.values()
    if len({id(t) for t in owned}) < len(owned) or any(t._parent is not None for t in owned):
        for group, p, state in jobs:
            _one(update, p, state, group)
        return None, "parameters or their state share memory"
    before = [tuple(state) for _, _, state in jobs]
    r = recording.Recorder(DOMAIN)
    with recording.opened(r):
        for group, p, state in jobs:
            _one(update, p, state, groups[id(group)])
    written = r.builder.updates()
    b = r.builder
    if r.reasons:
        return None, str(r.reasons[0])
    if b.checks or b.lost or r.grads or before != [tuple(state) for _, _, state in jobs]:
        return None, "it depends on what it finds"
    if any(id(t) not in places for t in b.sources):
        return None, "it reads a tensor that is neither a parameter nor state"
    targets = {i: next(j for j, s in enumerate(b.sources) if s is t) for i, (t, _) in enumerate(written)}
    graph = Graph("step", tuple(b.params), tuple(n for _, n in written))
    native = built(graph, updates=targets, optimize=True)
    if isinstance(native, str):
        return None, native
    if native.plain is None:
        return None, "some op of it has no kernel"
    return _Made(native, [places[id(t)] for t in b.sources], targets.values(), [*rates]), ""


def _one(update: Update, p: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
    update(p, -p.grad if group.get("maximize", False) else p.grad, state, group)


class _Made:
    """The native step: where its operands are found."""

    def __init__(self, native: Any, places: Sequence[tuple[Any, ...]], targets: Any, groups: Sequence[int]) -> None:
        self.native, self.places, self.program = native, places, native.plain
        self.rates = [np.array(0.0) for _ in groups]
        self.groups = groups
        self.targets = sorted(targets)
        self.others = [i for i, p in enumerate(places) if p[0] == "grad"]
        self.seen: list[Array] = []  # the targets of the last step
        self.owners: set[int] = set()  # ids of arrays that own their memory

    def run(self, jobs: Sequence[Job]) -> bool:
        """Do a step; False where the memory is not as it must be."""
        tensors: list[Any] = []
        for kind, i, name in self.places:
            match kind:
                case "param":
                    tensors.append(jobs[i][1])
                case "grad":
                    tensors.append(jobs[i][1]._grad)
                case "state":
                    tensors.append(jobs[i][2][name])
                case "setting":
                    tensors.append(jobs[i][0][name])
                case _:
                    tensors.append(None)
        arrays: list[Any] = [None if t is None else t._array for t in tensors]
        values = {id(group): group["lr"] for group, _, _ in jobs}
        for k, (kind, i, _) in enumerate(self.places):
            if kind == "rate":
                arrays[k] = self.rates[i]
                arrays[k][...] = values[self.groups[i]]
        mine = [arrays[i] for i in self.targets]
        if not (len(mine) == len(self.seen) and all(map(is_, mine, self.seen))) and not self._may_write(mine):
            return False
        for i, a in enumerate(arrays):
            flags = a.flags
            if not flags.c_contiguous or not flags.aligned or type(a) is not np.ndarray:
                arrays[i] = np.array(a, order="C")
        for i in self.others:
            a = arrays[i]
            if not buffer.owns(a) or id(a) in self.owners:
                arrays[i] = a.copy()
        made = self.native
        temps = [buffer.empty(shape, dtype) for shape, dtype in (*made.output_types, *made.temp_types)]
        where = user_line()
        for i in self.targets:  # before the write: an interrupt must not come between the two in the other order
            version = tensors[i]._version
            version.n += 1
            version.where = where
            tensors[i]._seen = version.n
        self.program.run_arrays([*arrays, *made.plan.constants, *temps], [])
        return True

    def _may_write(self, arrays: Sequence[Array]) -> bool:
        if not all(a.flags.carray and type(a) is np.ndarray for a in arrays):  # contiguous, aligned, writeable
            return False
        spans = sorted((buffer.address(a), buffer.address(a) + a.nbytes) for a in arrays)
        if any(a[1] > b[0] for a, b in itertools.pairwise(spans)):
            return False
        self.seen = list(arrays)
        self.owners = {id(a) for a in arrays} | {id(a.base) for a in arrays if a.base is not None}
        return True

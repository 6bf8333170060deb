"""The effects of a compiled call tried on stand-ins, beside plain Python that has them on the objects themselves.

What the effects would change, and what the call reads, is copied before the plain call; the effects are run on the
copies after it, and `found` gives pairs of what they leave and what plain Python left. Calls with callbacks, which are
the user's and may change anything, are not tried.
"""

from __future__ import annotations

import io
import sys
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import field
from itertools import count
from typing import Any

from tracejit.records import dataclass
from tracejit.trace.objects import ABSENT, describe, instance_dict, items_of
from tracejit.trace.replay import CALLBACKS, Deed, safe_stream
from tracejit.trace.scalars import count_state

__all__ = ["Rehearsal"]

_KINDS = (OrderedDict, dict, list, deque, set, bytearray)
_NOT_COPIED = (type, types.ModuleType, types.FunctionType)
_ATTRIBUTES = (object.__setattr__, object.__delattr__, type.__setattr__)


@dataclass(frozen=True, slots=True)
class Target:
    """A container, closure cell, iterator, or the attributes of an object, and what stands in for it."""

    name: str
    object: Any
    stand_in: Any


def _is_slot(x: Any, name: str) -> bool:
    raw = next((c.__dict__[name] for c in type(x).__mro__ if name in c.__dict__), None)
    return isinstance(raw, types.MemberDescriptorType)


def _attribute(x: Any, name: str) -> Any:
    """What class x has of that name itself, or any x in that slot."""
    if isinstance(x, type):
        return x.__dict__.get(name, ABSENT)
    try:
        return object.__getattribute__(x, name)
    except AttributeError:
        return ABSENT


def _copy(x: Any) -> Any:
    """A stand-in for a container, an iterator or a closure cell; None for what has attributes only."""
    if isinstance(x, deque):
        return deque(x, x.maxlen)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    if isinstance(x, count):
        return count(*count_state(x))
    if type(x) is types.CellType:
        return types.CellType(*_contents(x))
    kind: Any = next((k for k in _KINDS if isinstance(x, k)), None)
    return None if kind is None else kind(x)


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _shown(x: Any) -> Any:
    """What is in a container or stand-in, as tuples."""
    if isinstance(x, dict):
        return tuple(items_of(x))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(x, count):
        return count_state(x)
    if type(x) is types.CellType:
        return _contents(x)
    if isinstance(x, set):
        return x
    return bytes(x) if isinstance(x, bytearray) else tuple(x)


@dataclass(slots=True)
class Rehearsal:
    """Stand-ins for what some effects change. `made` are the entries of the plan, of which the targets are there."""

    deeds: Sequence[Deed]
    targets: dict[int, Target] = field(default_factory=dict[int, "Target"])  # by id of the object
    written: dict[tuple[int, str], tuple[Any, Any]] = field(
        default_factory=dict[tuple[int, str], tuple[Any, Any]]
    )  # (id of an object, a slot of it or attribute of the class that it is) -> (object, value)
    heard: dict[int, tuple[Any, list[str]]] = field(default_factory=dict[int, tuple[Any, list[str]]])  # id of a stream

    @classmethod
    def of(cls, deeds: Sequence[Deed], made: Sequence[Any], read: Sequence[Any]) -> Rehearsal:
        """Before the plain call; `read` is what it reads, which it changes by an effect or not at all."""
        if any(d.f in CALLBACKS for d in deeds):
            return cls(())
        out = cls(deeds)
        targets = [made[d.operands[0]] for d in deeds if d.f is not print]
        for x in (*targets, *(x for x in read if not isinstance(x, _NOT_COPIED))):
            if (stand_in := _copy(x)) is not None:
                out.targets.setdefault(id(x), Target(f"what is in {describe(x)}", x, stand_in))
            elif not isinstance(x, type) and (space := instance_dict(x)) is not None:
                out.targets.setdefault(id(space), Target(f"the attributes of {describe(x)}", space, dict(space)))
        streams = [sys.stdout, *(made[i] for d in deeds for k, i in d.keywords if k == "file")]
        out.heard = {id(s): (s, []) for s in streams if s is not None and safe_stream(s)}
        return out

    @contextmanager
    def listening(self) -> Generator[None]:
        """Inside, what this thread writes to the streams is heard."""
        me = threading.get_ident()

        def heard(write: Any, texts: list[str]) -> Any:
            def hear(text: str) -> Any:
                if threading.get_ident() == me:
                    texts.append(text)
                return write(text)

            return hear

        opened: list[Any] = []
        try:
            for s, texts in self.heard.values():
                if "write" not in s.__dict__:
                    s.write = heard(s.write, texts)
                    opened.append(s)
            yield
        finally:
            for s in opened:
                del s.write

    def found(self, made: Sequence[Any]) -> list[tuple[str, Any, Any]]:
        """(of what, as the effects leave it, as it is), after the plain call. Raises what an effect raises."""
        texts = {at: io.StringIO() for at in self.heard}
        for d in self.deeds:
            operands, keywords = [made[i] for i in d.operands], {k: made[i] for k, i in d.keywords}
            if d.f is print:
                stream = keywords.pop("file", None)
                if (text := texts.get(id(sys.stdout if stream is None else stream))) is not None:
                    print(*operands, **keywords, file=text)
            elif d.f in _ATTRIBUTES:
                self.set(*operands)
            else:
                d.f(self.targets[id(operands[0])].stand_in, *operands[1:], **keywords)
        out = [(f"{name} of {describe(x)}", v, _attribute(x, name)) for (_, name), (x, v) in self.written.items()]
        out += [(t.name, _shown(t.stand_in), _shown(t.object)) for t in self.targets.values()]
        return out + [("what it prints", t.getvalue(), "".join(self.heard[at][1])) for at, t in texts.items()]

    def set(self, x: Any, name: str, value: Any = ABSENT) -> None:
        """x.name becomes `value`, or is deleted."""
        if isinstance(x, type) or _is_slot(x, name):
            self.written[id(x), name] = x, value
            return
        space = self.targets[id(instance_dict(x))].stand_in
        if value is ABSENT:
            del space[name]
        else:
            space[name] = value

"""Tape entries that forget what they saved and compute it again when a backward pass needs it.

A `Region` is what one call of a function put on the tape. Its entries keep their edges; what they saved is dropped.
The first of them to be asked runs the function again, on the tape, with the random stream as it was, and every entry
takes over what its twin of the second run saved.

In a recording nothing is dropped (the compiler decides what is kept): the second run happens where a backward pass
inside the call wants it, as in eager code, but a backward pass outside the call uses what the first run saved. That is
the same only if the function wrote nothing outside, so anything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from tracejit.errors import AutogradError, InPlaceError
from tracejit.tensor.autograd import call_hook, reachable
from tracejit.tensor.gradmode import grad_mode, modes
from tracejit.tensor.random import default_generator
from tracejit.tensor.tape import GradNode, edge_of, overwritten, tape_position, user_line
from tracejit.tensor.tensor import Tensor, assign
from tracejit.trace import recorder as recording

__all__ = ["Region"]


def _older(edge: Any, start: int) -> bool:
    return not isinstance(edge, tuple) or edge[0].seq < start


class Region:
    """Entries put on the tape from here on. `forget` ends it."""

    def __init__(self, preserve_rng_state: bool = True) -> None:
        r = recording.active()
        self.start = tape_position()
        self.preserves = preserve_rng_state
        self.state = default_generator.get_state() if preserve_rng_state else None
        self.drawn = default_generator.state._version.n
        self.before = None if r is None else r.footprint(default_generator.state)
        self.autocast, self.whole = modes.here.autocast, modes.here.whole and r is None
        self.nodes: list[GradNode] = []
        self.again: Callable[[Any], list[Tensor]] | None = None
        self.where = user_line()

    def forget(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], again: Callable[[Any], list[Tensor]]) -> None:
        """Drop what the entries behind `outputs` saved; `again(None)` gives the outputs anew, on the tape."""
        r = recording.active()
        self.again = again
        self.pure = r is None or r.footprint(default_generator.state) == self.before
        self.draws = self.preserves and default_generator.state._version.n != self.drawn
        self.inputs = [(t, t._version.n) for t in inputs]
        self.nodes = self.entries(outputs, self.start)
        for n in self.nodes:  # weights, and what else stands outside on the tape
            self.inputs += [(t, v) for t, v, e in n.reads() if e is not None and _older(e, self.start)]
        self.kept = [n.snapshot() for n in self.nodes] if r is not None else []
        for n in self.nodes:
            n.forget(self)

    def entries(self, outputs: Sequence[Tensor], start: int) -> list[GradNode]:
        """The entries behind `outputs` since `start`, oldest first."""
        return [n for n in reversed(reachable([edge_of(t) for t in outputs])) if n.seq >= start and n.has_saved()]

    def restore(self) -> None:
        """Give every entry what it saved."""
        r = recording.active()
        if r is not None and r.closing:
            if not self.pure:
                r.refuse("recomputes a function that changes something outside, in a backward pass outside the call")
                raise recording.Refused  # this very call is still to be differentiated, by the second run
            for n, saved in zip(self.nodes, self.kept):
                n.take(saved)
            return
        assert self.again is not None
        for t, version in self.inputs:
            if t._version.n != version:
                raise InPlaceError(overwritten("a recomputed function", self.where, t._version.where))
        after = None
        with grad_mode(False):
            if self.draws and self.state is not None:
                after = default_generator.get_state()
                assign(default_generator.state, self.state)
        here, start = modes.here, tape_position()
        autocast, whole = here.autocast, here.whole
        here.autocast, here.whole = self.autocast, self.whole
        # What was not recorded is not recorded now: a recording that comes here has been refused.
        pause = recording.opened(None) if self.whole else nullcontext()
        try:
            with grad_mode(True), pause:
                outputs = call_hook(self.again, None)
        finally:
            here.autocast, here.whole = autocast, whole
            if after is not None:
                with grad_mode(False):
                    assign(default_generator.state, after)
        twins = self.entries(outputs, start)
        if [n.name for n in twins] != [n.name for n in self.nodes]:
            raise AutogradError(
                f"a recomputed function ({self.where}) did other operations the second time: "
                f"{len(self.nodes)} on the tape, then {len(twins)}"
            )
        for n, twin in zip(self.nodes, twins):
            if n.forgotten is self:
                n.take(twin.snapshot())

"""The backward pass of what a compiled call returns: planned during the recording, compiled, attached to outputs.

The gradient tape behind the outputs is cut into pieces where Python must run in a backward pass (`tensor/domain.py`
does the cutting). A `Segment` is compiled; a `Rule` is a custom rule, rebuilt with the context its `forward` left. Most
calls have one segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from tracejit.codegen.compile import Executable, Miss, build
from tracejit.errors import AutogradError
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.types import TensorType
from tracejit.records import dataclass
from tracejit.trace.domain import Array, Domain, Replay
from tracejit.trace.outputs import Planner, Result, View
from tracejit.trace.recorder import Recorder, Refused

__all__ = ["Attachment", "Backward", "attach", "compile_backward", "plan_backward"]


@dataclass(frozen=True, slots=True)
class ToSource:
    """A gradient flows to the recording's source `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class ToPiece:
    """... to result `result` of an earlier piece."""

    piece: int
    result: int


@dataclass(frozen=True, slots=True)
class ToEntry:
    """... to the leaf of a plan entry."""

    entry: int


To = ToSource | ToPiece | ToEntry | None  # None: to a leaf that nobody can see


@dataclass(frozen=True, slots=True)
class Place:
    """A result of a piece: plan entries of the tensors that stand there, of those that are views, which are built last,
    of hooks on it, of a tensor that retains; the op that made it, and where."""

    tensors: tuple[int, ...]
    late: tuple[int, ...]
    hooks: tuple[int, ...]
    retained: int | None
    made_by: tuple[str, str | None] = field(repr=False)  # for errors; a call from another line is the same path


@dataclass(frozen=True, eq=False)
class Segment:
    """Entries whose backward pass is compiled."""

    places: tuple[Place, ...]
    edges: tuple[To, ...]
    cotangents: tuple[Node, ...]
    gradients: tuple[Node, ...]
    sources: Mapping[Node, int]  # the value behind an edge -> the edge


@dataclass(frozen=True, eq=False)
class Rule:
    """A custom rule."""

    places: tuple[Place, ...]
    edges: tuple[To, ...]
    rule: int  # the plan entry of its class
    fields: tuple[tuple[str, int], ...]  # of its context
    saved: tuple[int, ...]
    tensors: tuple[bool, ...]
    types: tuple[TensorType, ...]


@dataclass(frozen=True, eq=False)
class Backward:
    """The pieces, oldest first. Without any, a backward pass raises `failure`: the tape was freed inside the call, or a
    value that it needs was overwritten there."""

    outputs: tuple[Place, ...]  # the tensors that carry gradients
    pieces: tuple[Segment | Rule, ...]
    off_tape: Mapping[Node, Node | None]  # values kept off the tape: what they count as all the same
    failure: AutogradError | None = None

    @property
    def cotangents(self) -> tuple[Node, ...]:
        """Placeholders of all segments."""
        return tuple(c for p in self.pieces if isinstance(p, Segment) for c in p.cotangents)

    @property
    def gradients(self) -> tuple[Node, ...]:
        """Results of all segments."""
        return tuple(g for p in self.pieces if isinstance(p, Segment) for g in p.gradients)

    def signature(self) -> str:
        """Text that differs where two recordings of one path differ."""
        return repr([(p.places, p.edges) for p in self.pieces] or (self.outputs, type(self.failure)))


# -- planning


def plan_backward(r: Recorder, planner: Planner, roots: Sequence[int]) -> Backward | None:
    """The backward pass of the outputs that carry gradients, recorded while the recording is open; `roots` are the plan
    entries that can be seen from outside."""
    tape = r.domain.tape
    seen = list(roots)
    carrying: list[tuple[int, Any]] = []
    looks, r.closing = len(r.builder.checks), True
    try:
        known: set[int] = set()
        while True:  # what rules and hooks keep may carry gradients too
            shown = planner.shown(seen)
            carrying = [(e, t) for e, t in planner.fresh if e in shown and r.domain.has_tape(t)]
            if r.reasons or not carrying:
                return None
            new = [(n, kept) for n, kept in tape.kept_behind([t for _, t in carrying], r.tape_start) if n not in known]
            if not new:
                break
            for n, kept in new:
                known.add(n)
                seen += [planner.entry(x) for x in kept]
        if r.scope is not None:
            r.builder.lose("its outputs carry gradients")
            return None
        found = tape.record_backward(r.builder, [t for _, t in carrying], r.tape_start)
    except AutogradError as e:  # such outputs raise when asked for gradients
        del r.builder.checks[looks:]
        if len(carrying) > 1:
            r.refuse("returns several tensors that carry gradients, some of whose tape was freed or overwritten")
        if any(isinstance(planner.entries[e], View) for e, _ in carrying):
            r.refuse("returns an argument handed back by a custom rule whose tape was freed")
        return Backward(_outputs(r, carrying), (), {}, type(e)(str(e)))
    except Refused:
        return None
    if len(r.builder.checks) != looks:
        r.refuse("its gradient depends on values that Python looks at")
    return _planned(r, planner, carrying, found)


def _planned(r: Recorder, planner: Planner, carrying: Sequence[tuple[int, Any]], found: Sequence[Any]) -> Backward:
    sources: dict[Any, tuple[int, Node]] = {}  # edge -> (source, its node)
    for i, (p, t) in enumerate(zip(r.builder.params, r.builder.sources)):
        if (e := r.domain.edge(t)) is not None:
            sources.setdefault(_key(e), (i, p))
    standing: dict[Any, list[int]] = {}
    for e, t in carrying:
        standing.setdefault(_key(r.domain.edge(t)), []).append(e)
    at = {(id(n), i): (k, i_) for k, p in enumerate(found) for i_, (n, i) in enumerate(p.places)}

    def flows(edge: Any) -> To:
        if edge is None:
            return None
        key = _key(edge)
        if key in at:
            return ToPiece(*at[key])
        if key in sources:
            return ToSource(sources[key][0])
        if not isinstance(edge, tuple):
            return ToEntry(planner.known[id(edge)]) if id(edge) in planner.known else None
        r.refuse("a gradient flows through an operation outside that the call did not read")
        return None

    def value(edge: Any) -> Node | None:
        key = _key(edge)
        return r.builder.places.get(key) if key in at else sources[key][1] if key in sources else None

    pieces: list[Segment | Rule] = []
    for p in found:
        places = tuple(_place(planner, n, i, standing) for n, i in p.places)
        edges = tuple(map(flows, p.edges))
        if hasattr(p, "rule"):
            fields = tuple((name, planner.entry(x)) for name, x in p.fields.items())
            saved = tuple(map(planner.entry, p.saved))
            pieces.append(Rule(places, edges, planner.entry(p.rule), fields, saved, p.tensors, p.types))
        else:
            values = {n: k for k, e in enumerate(p.edges) if (n := value(e)) is not None}
            values |= {n: k for k, e in enumerate(p.edges) for n in r.builder.also.get(_key(e), ())}
            pieces.append(Segment(places, edges, p.cotangents, p.gradients, values))
    off: dict[Node, Any] = {}
    for n, edge in r.off_tape.items():
        inside = isinstance(edge, tuple) and edge[0].seq >= r.tape_start
        off[n] = None if edge is None else r.builder.places.get(_key(edge)) if inside else value(edge)
    return Backward(_outputs(r, carrying), tuple(pieces), off)


def _outputs(r: Recorder, carrying: Sequence[tuple[int, Any]]) -> tuple[Place, ...]:
    entries = [r.domain.edge(t)[0] for _, t in carrying]
    return tuple(Place((e,), (), (), None, (n.name, n.where)) for (e, _), n in zip(carrying, entries))


def _key(edge: Any) -> Any:
    return (id(edge[0]), edge[1]) if isinstance(edge, tuple) else id(edge)


def _place(planner: Planner, node: Any, i: int, standing: Mapping[Any, list[int]]) -> Place:
    hooks = tuple(planner.entry(h) for h in (node.hooks or {}).get(i, {}).values())
    kept = (node.retained or {}).get(i)
    retained = None if kept is None else planner.known.get(id(kept))
    here = standing.get((id(node), i), ())
    late = tuple(e for e in here if isinstance(planner.entries[e], View))
    return Place(tuple(e for e in here if e not in late), late, hooks, retained, (node.name, node.where))


# -- compiling


@dataclass(frozen=True, eq=False)
class Attachment:
    """A piece with its machine code; a rule has none."""

    piece: Segment | Rule
    executable: Executable | None = None
    reverse: Graph | None = None  # what it computes, before the passes
    saved: tuple[tuple[bool, int], ...] = ()  # of each saved value: (is a parameter, which parameter or output)
    wanted: tuple[tuple[str, str | None], ...] = ()  # ... which op wants it, at which line
    replay: Replay | None = None
    reads: tuple[int, ...] = ()  # parameters of the recording that the replay reads, in order

    def finish(self, domain: Domain, node: Any, made: Sequence[Any]) -> None:
        """Give the tape entry what the plan builds last: the context of a rule, hooks."""
        p = self.piece
        if isinstance(p, Rule):
            domain.tape.fill_rule(node, {name: made[e] for name, e in p.fields}, [made[e] for e in p.saved])
        for i, place in enumerate(p.places):
            for e in place.late:
                domain.tape.stand_at(made[e], node, i)
            if place.hooks or place.retained is not None:
                retained = None if place.retained is None else made[place.retained]
                domain.tape.hook_on(node, i, [made[e] for e in place.hooks], retained)


@dataclass
class _Outputs:
    """The forward's outputs, growing by what the segments save."""

    params: Mapping[Node, int]  # those that are not overwritten
    at: dict[Node, int]
    first: int  # position of the first saved value
    extra: list[Node] = field(default_factory=list[Node])

    def place(self, n: Node) -> tuple[bool, int]:
        if n in self.params:
            return True, self.params[n]
        if n not in self.at:
            self.at[n] = self.first + len(self.extra)
            self.extra.append(n)
        return False, self.at[n]


def compile_backward(
    back: Backward,
    name: str,
    ends: Sequence[Node],
    params: Sequence[Node],
    outputs: Sequence[Node],
    written: set[int],
    backend: str,
) -> tuple[tuple[Attachment, ...], tuple[Node, ...]]:
    """The pieces, compiled, and what the forward must compute for them beside its own results."""
    from tracejit.passes.remat import split  # few traces carry gradients out

    out = _Outputs(
        {p: i for i, p in enumerate(params) if i not in written}, {o: i for i, o in enumerate(outputs)}, len(outputs)
    )
    done: list[Attachment] = []
    for piece in back.pieces:
        if isinstance(piece, Rule) or not piece.gradients:
            done.append(Attachment(piece))
            continue
        parts = split((*ends, *out.extra), piece.gradients, params, piece.cotangents, name=name)
        saved = tuple(map(out.place, parts.saved))
        wanted = tuple(_wanted(s, parts.forward.nodes) for s in parts.saved)
        executable = build(parts.backward, backend=backend, optimize=True)
        done.append(Attachment(piece, executable, parts.backward, saved, wanted, *_replay(back, piece, params, name)))
    return tuple(done), tuple(out.extra)


# Ops whose gradient is made from their result.
_KEEP_RESULTS = frozenset("exp expm1 tanh sqrt div pow reduce_max reduce_min reduce_prod cumprod cummax".split())


def _wanted(saved: Node, nodes: Sequence[Node]) -> tuple[str, str | None]:
    """The op whose gradient wants a saved value, and its line."""
    if saved.op.name not in _KEEP_RESULTS:
        for n in nodes:
            if saved in n.inputs and n.op.name not in ("reshape", "broadcast", "stop_gradient", "copy", "cast"):
                return n.op.name, n.where
    return saved.op.name, saved.where


def _replay(back: Backward, piece: Segment, params: Sequence[Node], name: str) -> tuple[Replay, tuple[int, ...]]:
    nodes = Graph(name, (), piece.gradients).nodes
    counted = [m for n in nodes if isinstance(m := back.off_tape.get(n), Node)]
    results = (*piece.gradients, *counted)
    used = set(Graph(name, (), results).nodes)
    reads = tuple(i for i, p in enumerate(params) if p in used)
    graph = Graph(f"{name}_backward", (*piece.cotangents, *(params[i] for i in reads)), results)
    return Replay(graph, back.off_tape, piece.sources), reads


# -- attaching


def attach(
    domain: Domain,
    back: Backward,
    attachments: Sequence[Attachment],
    plan: Sequence[Any],
    tensors: Sequence[Any],
    before: Mapping[int, Array],
    made: list[Any],
    out: Sequence[Array],
) -> list[Any]:
    """Give the outputs of a call that carry gradients their tape entries, which are returned; `before` has the memory
    of written parameters as it was."""
    tape = domain.tape
    if not back.pieces:
        return [tape.attach_failed([made[e] for place in back.outputs for e in place.tensors], back.failure)]
    by_output = {e.index: made[k] for k, e in enumerate(plan) if isinstance(e, Result)}
    nodes: list[Any] = []

    def edge(to: To) -> Any:
        match to:
            case ToSource(index):
                return domain.edge(tensors[index])
            case ToPiece(piece, result):
                return nodes[piece], result
            case ToEntry(entry):
                return made[entry]
            case None:
                return None

    for a in attachments:
        p = a.piece
        results = [[made[e] for e in place.tensors] for place in p.places]
        edges = [edge(to) for to in p.edges]
        if isinstance(p, Rule):
            node = tape.attach_rule(results, edges, made[p.rule], p.tensors, p.types, p.places[0].made_by[1])
        else:
            node = _segment(domain, a, p, results, edges, tensors, before, by_output, out)
        nodes.append(node)
    return nodes


def _segment(
    domain: Domain,
    a: Attachment,
    p: Segment,
    results: Sequence[Sequence[Any]],
    edges: Sequence[Any],
    tensors: Sequence[Any],
    before: Mapping[int, Array],
    by_output: Mapping[int, Any],
    out: Sequence[Array],
) -> Any:
    saved = [domain.array(tensors[i]) if is_param else out[i] for is_param, i in a.saved]
    watched = [
        (t, op, where)
        for (is_param, i), (op, where) in zip(a.saved, a.wanted)
        if (t := tensors[i] if is_param else by_output.get(i)) is not None
    ]
    executable = a.executable

    def run(saved: Sequence[Array], cotangents: Sequence[Array]) -> Sequence[Array]:
        if executable is None:  # no gradient flows on
            return ()
        found = executable([*cotangents, *saved])
        assert not isinstance(found, Miss)
        return found

    arguments = [domain.wrap(before[i], False) if i in before else tensors[i] for i in a.reads]
    types = [c.type for c in p.cotangents]
    made_by = [place.made_by for place in p.places]
    return domain.tape.attach_segment(results, edges, types, made_by, saved, run, watched, a.replay, arguments)

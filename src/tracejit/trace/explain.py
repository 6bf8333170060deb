"""What was compiled and what was not, and why: as text, and as one page of HTML that needs nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Self

from tracejit.ir.printer import to_text
from tracejit.records import dataclass
from tracejit.trace.causes import Cause
from tracejit.trace.guard import Row
from tracejit.trace.key import describe_key
from tracejit.trace.recorder import Reason
from tracejit.trace.scalars import Heat
from tracejit.trace.tree import Bucket, Trace

__all__ = ["Explanation", "History", "Subject"]

_KEPT = 64  # different recompiles and refusals remembered
_SHOWN = 6  # guards of a trace in the text; the page has all


@dataclass(slots=True)
class History:
    """What happened to a compiled function, beside what it has now."""

    recompiles: Counter[Cause] = field(default_factory=Counter[Cause])
    refusals: Counter[Reason] = field(default_factory=Counter[Reason])
    verified: int = 0
    mismatches: list[str] = field(default_factory=list[str])

    def recompiled(self, why: Cause) -> None:
        """The function was compiled again."""
        _count(self.recompiles, why)

    def refused(self, reasons: Iterable[Reason]) -> None:
        """A recording was refused."""
        for r in reasons:
            _count(self.refusals, r)


def _count(counter: Counter[Any], x: Any) -> None:
    if x in counter or len(counter) < _KEPT:
        counter[x] += 1


@dataclass(frozen=True, slots=True)
class Subject:
    """What is explained."""

    name: str
    calls: int
    compiled: int
    buckets: Mapping[Any, Bucket]
    fallbacks: Counter[str]
    history: History
    loops: Sequence[Heat] = ()


class Explanation(str):
    """The text; `html()` is the same as a page, with every guard, graph and kernel; notebooks show it by themselves."""

    __slots__ = ("_subject",)
    _subject: Subject

    def __new__(cls, subject: Subject) -> Self:
        made = super().__new__(cls, "\n".join(_text(subject)))
        made._subject = subject
        return made

    def html(self) -> str:
        """The page."""
        return _page(self._subject)

    def _repr_html_(self) -> str:
        return _page(self._subject)


# ---------------------------------------------------------------- the words of both


def _trace_line(trace: Trace) -> str:
    rec = trace.recording
    nodes = len(trace.graph.nodes) - len(trace.graph.params)
    guards = len(rec.guard.rows) if rec.guard else 0
    looks = ", ".join(f"{c.kind} {c.value} at {c.where or '?'}" for c in rec.checks[:4])
    return (
        f"{nodes} ops, {guards} guards, {len(rec.updates)} updates, {trace.hits} hits, {trace.misses} side exits"
        + (f"; goes on where it sees {looks}" if looks else "")
        + (", ..." if len(rec.checks) > 4 else "")
        + (f"; its calls go through Python: {trace.unsaid}" if trace.unsaid else "")
    )


def _guards(trace: Trace) -> list[tuple[str, str, str, int]]:
    """(what, its value when it was recorded, the line that read it, how often it failed), the most telling first."""
    guard = trace.recording.guard
    if guard is None:
        return []
    # Last what methods of tensors close over: it is the library's own.
    order = sorted(range(len(guard.rows)), key=lambda i: (-guard.failed[i], _rank(guard.rows[i])))
    rows = [(guard.rows[i], guard.failed[i]) for i in order]
    return [(row.name, row.was or "", row.where or "", failed) for row, failed in rows]


def _rank(row: Row) -> tuple[bool, bool, bool]:
    return row.where is None, row.kind == "closure", row.was is None


def _inputs(trace: Trace) -> str:
    n = len(trace.recording.inputs)
    return "" if not n else "1 number is an input" if n == 1 else f"{n} numbers are inputs"


def _loops(s: Subject) -> Iterable[tuple[str, str]]:
    """(the line of a loop that asks the data, what is done with it)"""
    for heat in s.loops:
        if heat.refusal:
            yield heat.where or "?", f"its turns are compiled one by one: {heat.refusal}"
        elif heat.rolled:
            yield heat.where or "?", "its turns are one native loop"


def _checked(history: History) -> str:
    wrong = len(history.mismatches)
    return f"{history.verified} calls were held against plain Python, {wrong or 'none'} differed"


# ---------------------------------------------------------------- text


def _text(s: Subject) -> Iterable[str]:
    yield f"{s.name}: {s.compiled} of {s.calls} calls ran compiled"
    for key, bucket in tuple(s.buckets.items()):
        yield f"  called with ({describe_key(key)})"
        for trace in bucket.traces:
            yield f"    trace: {_trace_line(trace)}"
            if words := _inputs(trace):
                yield f"      {words}"
            rows = [row for row in _guards(trace) if row[2] or row[3]]
            for name, was, where, failed in rows[:_SHOWN]:
                yield (
                    f"      guard: {name}" + (f" is {was}" if was else "") + (f", read at {where}" if where else "")
                ) + (f"; failed {failed} times" if failed else "")
            if len(rows) > _SHOWN:
                yield f"      and {len(rows) - _SHOWN} more: see html()"
            if trace.executable.host_ops:
                yield f"      runs as NumPy: {', '.join(sorted(set(trace.executable.host_ops)))}"
        if bucket.pending:
            yield f"    recorded once: {len(bucket.pending)}"
        if bucket.reason:
            yield f"    not compiled: {bucket.reason}"
    yield from (f"  loop at {where}: {what}" for where, what in _loops(s))
    if s.history.recompiles:
        yield "  compiled again:"
        for why, n in s.history.recompiles.most_common():
            yield f"    {n} times: {why}"
            if why.advice:
                yield f"      to avoid it: {why.advice}"
    if s.history.verified:
        yield f"  {_checked(s.history)}"
        yield from (f"    {line}" for m in s.history.mismatches for line in m.splitlines())
    if s.fallbacks:
        yield "  plain Python:"
        yield from (f"    {n} times: {why}" for why, n in s.fallbacks.most_common())


# ---------------------------------------------------------------- page

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: .5em 0 } td, th { padding: .15em .8em .15em 0; text-align: left;
vertical-align: top } th { font-weight: 600; border-bottom: 1px solid } td:last-child { min-width: 4em }
pre { overflow-x: auto; padding: .8em; background: #8881; font-size: 13px } summary { cursor: pointer }
section { margin: 1em 0 1em 1em } .bad { color: #c22 } .dim { opacity: .65 }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd } .bad { color: #f77 } }
"""


def escape(text: str) -> str:
    """`html.escape`, whose tables are needed by those who ask for a page."""
    import html

    return html.escape(text)


def _page(s: Subject) -> str:
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(s.name)}</title><style>{_STYLE}</style></head>',
        f"<body><h1>{escape(s.name)}</h1>",
        f"<p>{s.compiled} of {s.calls} calls ran compiled.</p>",
    ]
    if s.history.verified:
        parts.append(f"<p>{escape(_checked(s.history))}.</p>")
        parts += [f'<pre class="bad">{escape(m)}</pre>' for m in s.history.mismatches]
    for key, bucket in tuple(s.buckets.items()):
        parts.append(f"<h2>Called with ({escape(describe_key(key))})</h2>")
        for number, trace in enumerate(bucket.traces, 1):
            parts += _trace_section(number, trace)
        if bucket.pending:
            parts.append(f"<p>Recorded once: {len(bucket.pending)}.</p>")
        if bucket.reason:
            parts.append(f'<p class="bad">Not compiled: {escape(bucket.reason)}</p>')
    if loops := list(_loops(s)):
        parts.append("<h2>Loops that ask the data</h2>")
        parts.append(_table(("line", "what is done with it"), loops))
    if s.history.recompiles:
        parts.append("<h2>Compiled again</h2>")
        rows = [(str(n), why, why.advice) for why, n in s.history.recompiles.most_common()]
        parts.append(_table(("times", "because", "what would avoid it"), rows))
    if s.history.refusals:
        parts.append("<h2>Recordings refused</h2>")
        rows = [(str(n), r.text, r.where or "") for r, n in s.history.refusals.most_common()]
        parts.append(_table(("times", "because", "line"), rows))
    if s.fallbacks:
        parts.append("<h2>Plain Python</h2>")
        parts.append(_table(("calls", "because"), [(str(n), why) for why, n in s.fallbacks.most_common()]))
    return "\n".join([*parts, "</body></html>"])


def _trace_section(number: int, trace: Trace) -> Iterable[str]:
    yield f"<section><h3>Trace {number}</h3><p>{escape(_trace_line(trace))}</p>"
    if words := _inputs(trace):
        yield f"<p>{escape(words)}</p>"
    if trace.executable.host_ops:
        yield f"<p>Runs as NumPy: {escape(', '.join(sorted(set(trace.executable.host_ops))))}</p>"
    held = trace.hits + trace.misses
    rows = [(name, was, where, str(held), str(failed)) for name, was, where, failed in _guards(trace)]
    if rows:
        yield _folded(f"{len(rows)} guards", _table(("guard", "was", "read at", "held", "failed"), rows))
    yield _folded("graph", _pre(to_text(trace.graph)))
    kernels = trace.kernels()
    yield _folded(f"{len(kernels)} kernels", "\n".join(_pre(str(k)) for k in kernels))
    yield "</section>"


def _folded(title: str, inner: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inner}</details>"


def _pre(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{escape(h)}</th>" for h in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])

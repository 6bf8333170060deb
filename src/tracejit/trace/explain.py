"""What was compiled and what was not, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tracejit.trace.key import describe_key
from tracejit.trace.tree import Bucket

__all__ = ["report"]


def report(name: str, calls: int, compiled: int, buckets: Mapping[Any, Bucket], fallbacks: Counter[str]) -> str:
    """The text of `Compiled.explain()`."""
    lines = [f"{name}: {compiled} of {calls} calls ran compiled"]
    for key, bucket in buckets.items():
        lines.append(f"  called with ({describe_key(key)})")
        for trace in bucket.traces:
            rec = trace.recording
            looks = ", ".join(f"{c.kind} {c.value} at {c.where or '?'}" for c in rec.checks[:4]) + (
                ", ..." if len(rec.checks) > 4 else ""
            )
            nodes = len(trace.graph.nodes) - len(trace.graph.params)
            guards = len(rec.guard.rows) if rec.guard else 0
            lines.append(
                f"    trace: {nodes} ops, {guards} guards, {len(rec.updates)} updates,"
                f" {trace.hits} hits, {trace.misses} side exits" + (f"; goes on where it sees {looks}" if looks else "")
            )
            if trace.executable.host_ops:
                lines.append(f"      runs as NumPy: {', '.join(sorted(set(trace.executable.host_ops)))}")
        if bucket.pending:
            lines.append(f"    recorded once: {len(bucket.pending)}")
        if bucket.reason:
            lines.append(f"    not compiled: {bucket.reason}")
    if fallbacks:
        lines.append("  plain Python:")
        lines += [f"    {n} times: {why}" for why, n in fallbacks.most_common()]
    return "\n".join(lines)

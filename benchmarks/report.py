"""One command for all tables and plots of benchmarks/README.md: runs the benchmarks, rewrites what stands there.

    python benchmarks/report.py [steps workloads ...] [--into FOLDER]    minutes, on a machine that does nothing else
    python benchmarks/report.py --quick [steps workloads ...]            seconds: does it all work? Writes elsewhere

Each table is made in a process of its own: thread pools, memory and settings are not shared. A table stands in the
README between `<!-- begin NAME -->` and `<!-- end NAME -->`; its plot is `plots/NAME.svg`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from measuring import Table

HERE = Path(__file__).parent
PEERS = ("numpy", "torch", "jax", "llvmlite")  # whose versions are told


@dataclass(frozen=True)
class Entry:
    """`script.table(**full)`, or with `quick`, which shows that it works."""

    script: str
    full: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)


ENTRIES = {
    "steps": Entry("steps", {"rounds": 9, "warm": 60}, {"rounds": 1, "warm": 8, "names": ("digits",)}),
    "workloads": Entry("workloads", {"rounds": 5}, {"rounds": 1, "names": ("gelu", "linear"), "small": True}),
    "cost": Entry("cost", {}, {"names": ("digits", "gelu")}),
    "dispatch": Entry("dispatch", {"rounds": 7}, {"rounds": 1}),
    "recording": Entry("recording", {}, {"rounds": 1}),
    "matmul": Entry(
        "library",
        {"what": ("matmul",), "layouts": ("NN",), "seconds": 0.4},
        {"what": ("matmul",), "layouts": ("NN",), "seconds": 0.01},
    ),
    "conv": Entry("library", {"what": ("conv",), "seconds": 0.4}, {"what": ("conv",), "seconds": 0.01}),
    "optimizer": Entry("optimizer", {"rounds": 9}, {"rounds": 1, "tensors": (1,)}),
    "vectormath": Entry("vectormath", {"points": 1 << 18, "seconds": 0.2}, {"points": 1 << 16, "seconds": 0.01}),
}


def made(name: str, quick: bool) -> Table:
    """The table, made here."""
    entry = ENTRIES[name]
    return importlib.import_module(entry.script).table(**(entry.quick if quick else entry.full))


def apart(name: str, quick: bool) -> Table:
    """The table, made in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(made, name, quick).result()


# -- the README


def rewritten(text: str, name: str, inside: str) -> str:
    """`text` with what stands between the markers of `name` replaced. ValueError where they do not stand once."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"the README has to hold {begin} and, after it, {end}, once each")
    head, _, rest = text.partition(begin)
    return f"{head}{begin}\n\n{inside}\n\n{end}{rest.partition(end)[2]}"


def section(name: str, table: Table, where: str) -> str:
    """Where and when, the table, the means of its ratios, and its plot."""
    parts = [f"{where}, others kept {table.busy:.2f} cores busy.", table.markdown()]
    if table.ratios:
        means = "; ".join(f"{table.header[k]} {table.mean(k):.2f}" for k in table.ratios)
        parts += [f"Geometric means: {means}.", f"![{name}](plots/{name}.svg)"]
    return "\n\n".join(parts)


def machine() -> str:
    """Date, processor and versions."""
    model = platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    versions = [f"Python {platform.python_version()}"]
    for peer in PEERS:
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{peer} {metadata.version(peer)}")
    day = date.today()
    return f"{day.day} {day:%B %Y}, {os.cpu_count()} cores of {model}, {', '.join(versions)}"


# -- the plots


def draw(table: Table, path: Path) -> None:
    """Bars of every ratio of every row, on a logarithmic scale with a line at 1; the same table is the same file."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("plots are drawn by matplotlib: pip install 'tracejit[bench]'") from None
    from matplotlib.figure import Figure

    count = len(table.ratios)
    names = [str(name) for name in table.column(0)]
    settings = {"svg.hashsalt": "tracejit", "svg.fonttype": "none", "font.size": 8}
    with matplotlib.rc_context(settings):
        figure = Figure((8, 0.9 + 0.16 * len(names) * (count + 0.7)), layout="constrained")
        axes = figure.add_subplot(xscale="log")
        for at, k in enumerate(table.ratios):
            bars = [(row + (at - (count - 1) / 2) * 0.8 / count, x) for row, x in enumerate(table.column(k)) if x]
            places, values = zip(*bars)
            axes.barh(places, [x - 1 for x in values], 0.8 / count, left=1, label=table.header[k])
            for place, x in bars:  # outside the bar, which grows from 1 either way
                axes.annotate(
                    f"{x:.3g}", (x, place), (3 if x >= 1 else -3, 0), textcoords="offset points", va="center",
                    ha="left" if x >= 1 else "right", fontsize=6,
                )  # fmt: skip
        axes.xaxis.set_major_formatter("{x:g}")
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.margins(x=0.1)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper left", ncols=max(count, 1), frameon=False)
        figure.savefig(path, metadata={"Date": None})


def report(names: Sequence[str], quick: bool, into: Path) -> None:
    """Make the tables of `names`, one by one, and write each when it is there."""
    (into / "plots").mkdir(parents=True, exist_ok=True)
    readme = into / "README.md"
    if not readme.exists():
        readme.write_text((HERE / "README.md").read_text())
    for k, name in enumerate(names, 1):
        print(f"\n[{k}/{len(names)}] {name}", flush=True)
        start = time.perf_counter()
        table = apart(name, quick)
        readme.write_text(rewritten(readme.read_text(), name, section(name, table, machine())))
        if table.ratios:
            draw(table, into / "plots" / f"{name}.svg")
        print(f"{time.perf_counter() - start:.0f} s", flush=True)
    print(f"\nwritten: {readme}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ENTRIES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="a check, not a measurement")
    parser.add_argument("--into", type=Path, help="the folder of README.md; this one, or a new one for a check")
    options = parser.parse_args()
    if unknown := set(options.names) - set(ENTRIES):
        parser.error(f"no table {unknown.pop()!r}; there are {', '.join(ENTRIES)}")
    into = options.into or (Path(tempfile.mkdtemp()) if options.quick else HERE)
    report(options.names or tuple(ENTRIES), options.quick, into)


if __name__ == "__main__":
    main()

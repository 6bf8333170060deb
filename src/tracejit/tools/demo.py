"""`tracejit demo`: the main job from end to end, and a check of every promise on the way.

A small CNN learns real handwritten digits, the whole train step under `@tracejit.compile`. The demo compares the
compiled step with the eager one (losses and time), trains, measures accuracy, exports the model, and loads it in a
fresh process that cannot import the model's source.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tracejit as tj
from tracejit.errors import MissingExtra
from tracejit.nn import functional as F
from tracejit.records import dataclass

__all__ = ["Net", "compile_seconds", "demo"]

BATCH = 64
COMPARED = 20  # steps whose eager and compiled losses are compared
ROUNDS = 15  # of eager and compiled steps in turn, for the times ...
SECONDS = 10  # ... or fewer, where they take longer than this

Step = Callable[[Any, Any], Any]


class Net(tj.nn.Module):
    """Two convolutions with batch norm, relu and max-pooling, then dropout and a linear layer."""

    def __init__(self, height: int, width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = tj.nn.Conv2d(1, 16, 3, padding=1)
        self.norm1 = tj.nn.BatchNorm2d(16)
        self.conv2 = tj.nn.Conv2d(16, 32, 3, padding=1)
        self.norm2 = tj.nn.BatchNorm2d(32)
        self.dropout = tj.nn.Dropout(0.25)
        self.linear = tj.nn.Linear(32 * (height // 4) * (width // 4), classes)

    def forward(self, x: Any) -> Any:
        """Class scores [n, classes] of images [n, 1, height, width]."""
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.linear(self.dropout(x.flatten(1)))


@dataclass
class Data:
    """Images f32[n, 1, height, width] in [0, 1] and labels i64[n], to train and to test."""

    name: str
    train: tuple[Any, Any]
    test: tuple[Any, Any]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of an image."""
        return self.train[0].shape[2], self.train[0].shape[3]


@dataclass
class Report:
    """What is printed, and the promises that did not hold."""

    console: Any  # rich's Console: an optional dependency
    broken: list[str] = field(default_factory=list[str])

    def line(self, name: str, value: str) -> None:
        """One aligned line."""
        self.text(f"  {name:<28} {value}")

    def text(self, text: str, style: str = "") -> None:
        """Plain text: brackets are brackets, lines are not broken."""
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def promise(self, name: str, held: bool, value: str) -> None:
        """One aligned line that says whether a promise held."""
        self.line(name, f"{value}  {'ok' if held else 'FAILED'}")
        if not held:
            self.broken.append(name)


def demo(folder: str | None = None, epochs: int | None = None, out: str = "digits.tj") -> int:
    """Run it all; 0 where every promise held."""
    try:
        from rich.console import Console
    except ImportError:
        raise MissingExtra("the demo prints with rich: pip install 'tracejit[demo]'") from None
    report = Report(Console())
    data = _read(folder)
    short = epochs is not None and epochs < (30 if folder is None else 3)
    count = epochs or (30 if folder is None else 3)
    _heading(report, f"tracejit {tj.__version__} on {platform.machine()}, Python {platform.python_version()}")
    report.line("data", f"{data.name}: {len(data.train[1])} images to train, {len(data.test[1])} to test")
    report.line("threads", str(tj.get_num_threads() or os.cpu_count()))
    _compare(report, data)
    _compile_times(report, folder)
    model, step = _train(report, data, count)
    accuracy = _accuracy(model, data)
    if folder is None and not short:
        report.promise("test accuracy", accuracy >= 0.97, f"{accuracy:.2%} (at least 97 %)")
    else:
        report.line("test accuracy", f"{accuracy:.2%}")
    _export(report, model, data, Path(out))
    _heading(report, "explain() of the train step")
    report.text(str(step.explain()))
    if report.broken:
        report.text(f"\nbroken promises: {', '.join(report.broken)}", "bold red")
    return 1 if report.broken else 0


def _heading(report: Report, text: str) -> None:
    report.text(f"\n{text}", "bold")


# -- data and model


def _read(folder: str | None) -> Data:
    return _digits() if folder is None else _fashion(folder)


def _digits() -> Data:
    return Data("UCI digits", _tensors(tj.data.digits(train=True), 16), _tensors(tj.data.digits(train=False), 16))


def _fashion(folder: str) -> Data:
    train, test = tj.data.idx(folder, train=True), tj.data.idx(folder, train=False)
    return Data(Path(folder).resolve().name, _tensors(train, 255), _tensors(test, 255))


def _tensors(part: tuple[Any, Any], brightest: int) -> tuple[Any, Any]:
    images, labels = part
    return tj.from_numpy(images.astype(np.float32)[:, None] / np.float32(brightest)), tj.from_numpy(labels)


def _batches(data: Data) -> Any:
    return tj.data.DataLoader(tj.data.TensorDataset(*data.train), batch_size=BATCH, shuffle=True, drop_last=True)


def _start(data: Data) -> tuple[Net, Step]:
    """A fresh model, always the same one, and its train step, not compiled."""
    tj.manual_seed(0)
    model = Net(*data.size, classes=10)
    optimizer = tj.optim.Adam(model.parameters(), lr=2e-3)

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return model, step


# -- eager against compiled


def _compare(report: Report, data: Data) -> None:
    """Losses of the same first steps, then times of both steps in turn."""
    batches = [(data.train[0][i : i + BATCH], data.train[1][i : i + BATCH]) for i in range(0, COMPARED * BATCH, BATCH)]
    batches = [b for b in batches if len(b[1]) == BATCH]
    batches = [batches[i % len(batches)] for i in range(COMPARED)]
    _, eager = _start(data)
    eager_losses = [eager(x, y).item() for x, y in batches]
    _, plain = _start(data)
    compiled: Any = tj.compile(plain)
    losses = [compiled(x, y).item() for x, y in batches]
    x, y = batches[0]
    times = _interleaved([lambda: eager(x, y), lambda: compiled(x, y)], ROUNDS)
    slow, fast = (median(t) for t in times)
    worst = max(abs(a - b) / max(abs(a), 1e-12) for a, b in zip(eager_losses, losses, strict=True))
    _heading(report, "eager and compiled train step")
    report.line("eager", f"{slow * 1e3:8.2f} ms a step")
    report.line("compiled", f"{fast * 1e3:8.2f} ms a step")
    report.line("speed-up", f"{slow / fast:8.1f} x")
    report.promise("compiled code ran", compiled.compiled_calls > 0, f"in {compiled.compiled_calls} calls")
    report.promise(f"first {COMPARED} losses agree", worst <= 1e-4, f"to {worst:.1e} (at most 1e-4)")


@tj.config.override(eager_kernels=False)  # they would be compiled in one of the steps and not in others
def compile_seconds(folder: str | None) -> float:
    """CPU seconds that recording and compiling the train step take, beyond the eager steps they replace; importing the
    compiler included."""
    data = _read(folder)
    x, y = data.train[0][:8], data.train[1][:8]  # few images, so that what is taken off is small and certain
    _, eager = _start(data)
    eager(x, y)
    _, plain = _start(data)
    before = time.process_time()
    compiled: Any = tj.compile(plain)
    seconds = [time.process_time() - before]
    while not compiled.compiled_calls and len(seconds) <= 10:
        before = time.process_time()
        compiled(x, y)
        seconds.append(time.process_time() - before)
    beyond: list[float] = []
    for _ in range(5):
        before = time.process_time()
        eager(x, y)
        beyond.append(time.process_time() - before)
    return sum(seconds[:-1]) - (len(seconds) - 2) * min(beyond)


def _compile_times(report: Report, folder: str | None) -> None:
    """`compile_seconds` of two fresh processes: with no kernels on disk, and with those that the first left there.

    One before them leaves Python's own byte code, as there is after the first run of any program."""
    code = f"from tracejit.tools.demo import compile_seconds; print(compile_seconds({folder!r}))"
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as made:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = f"{made}/bytecode"
        for kernels in ("others", "own", "own"):
            environment["TRACEJIT_CACHE_DIR"] = f"{made}/{kernels}"
            run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
            if run.returncode:
                report.promise("compile time", False, run.stderr.strip())
                return
            seconds.append(float(run.stdout))
    report.line("compile time", f"{seconds[1]:8.2f} s of CPU; {seconds[2]:.2f} s with the kernels on disk")


def _interleaved(calls: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Seconds a call, every call in turn, so that a busy moment of the machine meets all alike."""
    times: list[list[float]] = [[] for _ in calls]
    start = time.perf_counter()
    while len(times[0]) < rounds and not (times[0] and time.perf_counter() - start > SECONDS):
        for call, seconds in zip(calls, times, strict=True):
            before = time.perf_counter()
            call()
            call()
            seconds.append((time.perf_counter() - before) / 2)
    return times


# -- training


def _train(report: Report, data: Data, epochs: int) -> tuple[Net, Any]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    model, plain = _start(data)
    step: Any = tj.compile(plain)
    loader = _batches(data)
    _heading(report, "training, compiled")
    columns = (
        TextColumn("  epoch {task.fields[epoch]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    before = time.perf_counter()
    with Progress(*columns, console=report.console) as bar:
        task = bar.add_task("", total=epochs * len(loader), epoch=f"1/{epochs}", loss="")
        for epoch in range(epochs):
            loss = 0.0
            for x, y in loader:
                loss = step(x, y).item()
                bar.advance(task)
            bar.update(task, epoch=f"{epoch + 1}/{epochs}", loss=f"{loss:.4f}")
    report.line("trained in", f"{time.perf_counter() - before:.1f} s")
    return model, step


def _accuracy(model: Net, data: Data) -> float:
    images, labels = data.test
    model.eval()

    @tj.compile
    def right(x: Any, y: Any) -> Any:
        return (model(x).argmax(1) == y).sum()

    with tj.no_grad():
        found = [right(images[i : i + BATCH], labels[i : i + BATCH]).item() for i in range(0, len(labels), BATCH)]
    return sum(found) / len(labels)


# -- the exported file

_FRESH = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name == "tracejit.tools" or name.startswith("tracejit.tools."):
            raise ImportError(f"{name} is out of reach here")

sys.meta_path.insert(0, Block())
try:
    import tracejit.tools.demo
except ImportError:
    pass
else:
    sys.exit("the model's source can be imported")

import numpy as np
import tracejit as tj

classify = tj.export.load(sys.argv[1])
np.save(sys.argv[3], classify(np.load(sys.argv[2])).numpy())
assert not any(name.startswith("tracejit.tools") for name in sys.modules)
"""


def _export(report: Report, model: Net, data: Data, path: Path) -> None:
    """Export, load in a fresh process without the model's source, compare."""
    images = data.test[0][:100]
    model.eval()
    tj.export.save(model, (images[:BATCH],), path, dynamic={0: "n"})
    with tj.no_grad():
        wanted = model(images).numpy()
    here = tj.export.load(path)
    _heading(report, "exported model")
    report.line(str(path), f"{path.stat().st_size / 1024:.0f} KiB, {here.signature}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "images.npy", images.numpy())
        names = [str(path.resolve()), str(folder / "images.npy"), str(folder / "scores.npy")]
        run = subprocess.run([sys.executable, "-c", _FRESH, *names], cwd=folder, capture_output=True, text=True)
        if run.returncode:
            report.promise("fresh process", False, run.stderr.strip())
            return
        scores = np.load(folder / "scores.npy")
    off = float(np.abs(scores - wanted).max() / np.abs(wanted).max())
    same = scores.tobytes() == here(images).numpy().tobytes()
    report.promise("fresh process, loaded here", same, "the same bits")
    report.promise("fresh process, model", off <= 1e-5, f"equal to {off:.1e} (rounding)")

"""What compiling costs: CPU seconds, kernels, bytes of code and memory, of each train step and (small) workload.

python benchmarks/cost.py [mlp gelu ...] [--threads 2]

cold      CPU seconds of a fresh process from tj.compile to the first compiled call, importing the compiler
          included, beyond the plain calls that these calls replace
warm      ... of the next process, which finds kernels and recordings on disk
kernels   loop nests; products and convolutions come from the library, and count among
    code      bytes of object code
RSS       how much higher compiling lifts the peak of resident memory than plain calls do, where the system tells
jax.jit   CPU seconds of the first call of the jitted function beyond a second one, with nothing on disk
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import steps
import workloads
from measuring import Call, Cell, Table, collect, installed

CALLS = 12  # by which a function is compiled


def cpu(call: Call) -> float:
    """CPU seconds of this process that a call took."""
    start = time.process_time()
    call()
    return time.process_time() - start


def made(name: str, compile: Callable[[Any], Any]) -> Call:
    """tracejit's contender of that train step or workload."""
    import tracejit as tj

    if name in steps.WORKLOADS:
        return steps.WORKLOADS[name](tj).compiled(compile)  # type: ignore[attr-defined]
    return workloads.ours(workloads.make(name, small=True), compile)


def ours(name: str, threads: int) -> dict[str, Any]:
    """What this process pays."""
    import tracejit as tj

    tj.config.update(eager_kernels=False)  # they would be compiled by some of the calls and not by others
    tj.set_num_threads(threads)
    eager = made(name, workloads.plain)
    plain = [cpu(eager) for _ in range(4)]
    before, found = peak(), list[Any]()

    def compile(f: Any) -> Any:
        found.append(tj.compile(f))
        return found[-1]

    call = made(name, compile)
    (compiled,), seconds = found, list[float]()
    while not compiled.compiled_calls:
        assert len(seconds) < CALLS, f"{name} is not compiled: {compiled.explain()}"
        seconds.append(cpu(call))
    process = time.process_time() - len(plain) * min(plain)
    objects = {o.key: len(o.data) for t in compiled.traces() for o in t.executable.plan.objects}
    return {
        "seconds": sum(seconds) - (len(seconds) - 1) * min(plain),
        "process": process,
        "kernels": len(compiled.kernels()),
        "code": sum(objects.values()),
        "rss": peak() - before if before else None,
    }


def jaxs(name: str, threads: int) -> dict[str, Any]:
    """What JAX pays."""
    call = workloads.on_jax(workloads.make(name, small=True))
    first, process = cpu(call), time.process_time()
    return {"seconds": first - cpu(call), "process": process}


def peak() -> int:
    """The largest resident memory of this process so far, in bytes; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)


def fresh(who: str, name: str, threads: int, folder: str) -> dict[str, Any]:
    """What a process of its own says, with `folder` as its store."""
    code = f"import json, cost; print(json.dumps(cost.{who}({name!r}, {threads})))"
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    # JAX keeps nothing on disk by default; Python's byte code is there, as after the first run of any program.
    settings = {"TRACEJIT_CACHE_DIR": folder, "PYTHONPATH": path, "JAX_ENABLE_COMPILATION_CACHE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | settings, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name} ({who}): {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def table(names: Sequence[str] = (), threads: int = 0) -> Table:
    """A row for each train step and workload."""
    threads = threads or os.cpu_count() or 1
    header = (
        "compiled", "cold, CPU s", "warm, CPU s", "process, CPU s", "kernels", "code, bytes", "bytes a kernel",
        "RSS, MB", "jax.jit, CPU s", "its process, CPU s", "jax.jit / cold", "its process / process",
    )  # fmt: skip

    def rows() -> Iterator[list[Cell]]:
        for name in names or (*steps.WORKLOADS, *workloads.WORKLOADS):
            with tempfile.TemporaryDirectory() as folder:
                cold, warm = (fresh("ours", name, threads, folder) for _ in range(2))
                jax = {"seconds": None, "process": None}
                if name in workloads.WORKLOADS and installed("jax"):
                    jax = fresh("jaxs", name, threads, folder)
            kernels, code, rss = cold["kernels"], cold["code"], cold["rss"]
            title = f"{name}, train step" if name in steps.WORKLOADS else name
            yield [
                title, cold["seconds"], warm["seconds"], cold["process"], kernels, code,
                code // kernels if kernels else None, None if rss is None else rss / 2**20, *jax.values(),
                *(jax[k] and jax[k] / cold[k] for k in jax),
            ]  # fmt: skip

    return collect(header, rows())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*steps.WORKLOADS, *workloads.WORKLOADS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--threads", type=int, default=0, help="as many as there are cores by default")
    options = parser.parse_args()
    if unknown := set(options.names) - set(known):
        parser.error(f"no train step or workload {unknown.pop()!r}; there are {', '.join(known)}")
    table(**vars(options))


if __name__ == "__main__":
    main()

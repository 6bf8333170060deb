"""LLVM text to machine code that lives exactly as long as its `Code`.

The text holds explicit vectors, so no mid-level pass runs: parse, select instructions, load. The object bytes go
through the store (`store.py`); they name other code by symbol only, and addresses are bound at load time, so a file can
be used by any process on the same kind of CPU. llvmlite is imported when the first text is compiled that the store does
not have: `loader.py` binds objects without it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from weakref import WeakValueDictionary

from tracejit.errors import BackendError
from tracejit.importing import bring
from tracejit.records import dataclass
from tracejit.runtime import store
from tracejit.runtime.forks import building, hold
from tracejit.runtime.loader import Image, load

__all__ = ["Code", "Object", "assemble", "assembly", "compile", "cpu_key", "find", "link", "simd_width", "vector_bits"]

# Counts changes to what `_emit` does with a text; part of every key.
VERSION: Final = "tracejit-1"

# Lines about the first processor that say where it is and what it does now, not what it is.
_VARYING = ("processor", "cpu MHz", "bogomips", "BogoMIPS", "apicid", "initial apicid", "core id", "physical id")

_DEFINED = re.compile(r'^[ \t]*define\s+(?!internal|private)[^@]*@"?([\w.$-]+)"?\s*\(', re.MULTILINE)
_DECLARED = re.compile(r'^[ \t]*declare\s[^@]*@"?([\w.$-]+)"?\s*\(', re.MULTILINE)


class _Linked:
    """Where the code lies that LLVM has linked. The library refers to its engine, so it goes first."""

    __slots__ = ("jit", "library")

    def __init__(self, jit: Any, library: Any) -> None:
        self.jit = jit
        self.library = library

    def __del__(self) -> None:
        self.library = None
        self.jit = None


class Code:
    """Machine code in memory, and the address of every function it defines. Dropping it frees the memory."""

    # No __del__ here: weak references still see an object whose __del__ runs, and `_loaded` would hand out freed code.
    __slots__ = ("__weakref__", "_pages", "needs", "size", "symbols")

    def __init__(self, pages: Image | _Linked, symbols: Mapping[str, int], size: int, needs: Sequence[object]) -> None:
        self._pages = pages
        self.symbols = MappingProxyType(dict(symbols))
        self.size = size  # bytes of the object file
        self.needs = tuple(needs)

    def address(self, symbol: str) -> int:
        """Where the function `symbol` starts."""
        if (address := self.symbols.get(symbol)) is None:
            raise BackendError(f"no function @{symbol} in this code; it defines {', '.join(self.symbols) or 'none'}")
        return address


@dataclass(frozen=True, eq=False)
class Object:
    """Machine code that is not loaded yet, and the key that the store has it under."""

    key: str
    data: bytes


_loaded: WeakValueDictionary[object, Code] = WeakValueDictionary()


def compile(text: str, *, opt: int = 2, symbols: Mapping[str, int] | None = None, needs: Sequence[object] = ()) -> Code:
    """The machine code of an LLVM module for this CPU. The same text gives the same `Code` while one lives.

    `opt` is the effort of instruction selection (0 is fastest to compile). `symbols` are the addresses of functions the
    text declares; libm and libc are found by themselves. `needs` is what must live as long: whose addresses those are.
    """
    symbols = symbols or {}
    identity = (_key(text, opt), frozenset(symbols.items()))
    if (code := _loaded.get(identity)) is not None:
        return code
    defined = _DEFINED.findall(text)
    try:
        code = _load([assemble(text, opt=opt)], defined, symbols, needs)
    except RuntimeError as error:
        missing = [n for n in _DECLARED.findall(text) if not _is_known(n, symbols)]
        why = f"it calls {', '.join(missing)}, which nobody defines" if missing else str(error)
        raise BackendError(f"cannot load code of {', '.join(defined) or 'no function'}: {why}") from error
    return _loaded.setdefault(identity, code)


def assemble(text: str, *, opt: int = 2) -> Object:
    """The object code of an LLVM module for this CPU, from the store or made and kept there."""
    key = _key(text, opt)
    if (data := store.get(key)) is None:
        data = _emit(text, opt)
        store.put(key, data)
    return Object(key, data)


def find(key: str) -> Object | None:
    """The object that `assemble` kept under `key`, if the store still has it."""
    data = store.get(key)
    return None if data is None else Object(key, data)


def link(objects: Sequence[Object], symbols: Sequence[str]) -> Code:
    """The addresses of `symbols` in objects that may call each other, loaded as one: 2 ms, where ten alone take 11."""
    identity = (tuple(o.key for o in objects), tuple(symbols))
    if (code := _loaded.get(identity)) is not None:
        return code
    try:
        code = _load(objects, symbols, {}, ())
    except RuntimeError as error:
        raise BackendError(f"cannot load code of {', '.join(symbols) or 'no function'}: {error}") from error
    return _loaded.setdefault(identity, code)


def _key(text: str, opt: int) -> str:
    return f"{VERSION}|{cpu_key()}|{opt}|{sha256(text.encode()).hexdigest()}"


def assembly(text: str, *, opt: int = 2) -> str:
    """The same module as assembly of this CPU, to read."""
    with _by_llvm():
        module, machine = _parse(text, opt)
        return machine.emit_assembly(module)


def _parse(text: str, opt: int) -> tuple[Any, Any]:
    llvm, machine = _llvm(), _machine(opt)
    try:
        module = llvm.parse_assembly(text)
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise BackendError(f"LLVM refuses this text: {error}\n{text}") from error
    return module, machine


def _emit(text: str, opt: int) -> bytes:
    with _by_llvm():
        module, machine = _parse(text, opt)
        made: bytes = machine.emit_object(module)
        for each in (module, machine):
            each.close()  # here, not as this function ends: it takes llvmlite's lock
        return made


@contextmanager
def _by_llvm() -> Generator[Any]:
    """Work for LLVM, and llvmlite's lock let go after it: an interrupt between its being taken and the call it was
    taken for would leave it with this thread for ever."""
    with building():
        try:
            yield _llvm()
        finally:
            if (llvm := sys.modules.get("llvmlite.binding")) is not None:
                lock = getattr(getattr(llvm.ffi.lib, "_lock", None), "_lock", None)
                while lock is not None and lock._is_owned():
                    lock.release()


def _load(objects: Sequence[Object], names: Sequence[str], symbols: Mapping[str, int], needs: Sequence[object]) -> Code:
    size = sum(len(o.data) for o in objects)
    image = load([o.data for o in objects], symbols)
    if image is not None and all(n in image.symbols for n in names):
        return Code(image, {n: image.symbols[n] for n in names}, size, needs)
    # One engine per code (1.2 ms): a shared one keeps 10 kB for every library that ever was in it. JITLink lays all
    # sections side by side, which the small code model relies on, and raises where the older linker aborts the process.
    with _by_llvm() as llvm:
        jit = llvm.create_lljit_compiler(_machine(2), use_jit_link=os.name != "nt", suppress_errors=True)
        builder = llvm.JITLibraryBuilder().add_current_process()
        for each in objects:
            builder.add_object_img(each.data)
        for name, address in symbols.items():
            builder.import_symbol(name, address)
        for name in names:
            builder.export_symbol(name)
        library = builder.link(jit, "code")
        return Code(_Linked(jit, library), {n: library[n] for n in names}, size, needs)


def _is_known(name: str, symbols: Mapping[str, int]) -> bool:
    return name in symbols or name.startswith("llvm.") or _llvm().address_of_symbol(name) is not None


# Any: llvmlite ships no types.
@cache
def _llvm() -> Any:
    with building():
        llvm = bring("llvmlite.binding")
        if (lock := getattr(llvm.ffi.lib, "_lock", None)) is not None:
            hold(lock)  # any thread may take it at any time, to free what is garbage
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def _target() -> Any:
    return _llvm().Target.from_default_triple()


def _machine(opt: int) -> Any:
    cpu, features = _host()
    return _target().create_target_machine(
        cpu=cpu, features=features, opt=opt, reloc="pic", codemodel="small", jit=True
    )


@cache
def _host() -> tuple[str, str]:
    llvm = _llvm()
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


@cache
def cpu_key() -> str:
    """What object code depends on beside its text: LLVM's version, this CPU and its features.

    LLVM is asked once on a machine: the store has what it said under what the system says of the processor."""
    known = _system()
    if known and (said := store.get(f"host|{known}")) is not None:
        return said.decode()
    version = ".".join(map(str, _llvm().llvm_version_info))
    said = "|".join((version, _target().triple, *_host()))
    if known:
        store.put(f"host|{known}", said.encode())
    return said


def _system() -> str:
    """The first processor, as the system describes it, and which llvmlite is installed; empty where that is unknown."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            processor = file.read(1 << 13).split("\n\n")[0]
        lines = sorted(line for line in processor.splitlines() if not line.startswith(_VARYING))
        found = importlib.util.find_spec("llvmlite")
        assert found is not None and found.origin is not None
        folder = Path(found.origin).parent
        lines.extend(
            f"{f.name} {(status := f.stat()).st_size} {status.st_mtime}"
            for f in sorted(folder.glob("binding/*llvmlite*"))
        )
    except (OSError, AssertionError, ValueError):
        return ""
    return sha256("\n".join(lines).encode()).hexdigest()


@cache
def vector_bits() -> int:
    """Bits in a vector register worth using: 512, 256 or 128."""
    features = set(cpu_key().split("|")[-1].split(","))
    if {"+avx512f", "+avx512bw", "+avx512dq", "+avx512vl"} <= features:
        return 512
    return 256 if "+avx2" in features else 128


def simd_width(itemsize: int) -> int:
    """Elements of `itemsize` bytes in one vector register."""
    return vector_bits() // (8 * itemsize)

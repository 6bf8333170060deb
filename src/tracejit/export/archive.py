"""The file: a zip that people can read.

    graph.ir             first line `tracejit 1`, then the graph as text
    weights.safetensors  the arrays: weights by their name, constants of the graph as `@w0`, `@w1`, ...
    signature.json       how arguments and result are built from tensors, and which parameters are weights

Reading executes nothing and trusts nothing: every member is parsed, checked against the others, and refused by name
with `FormatError`. Writing is atomic. The same graph and weights give the same bytes.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from tracejit.errors import FormatError, TracejitError
from tracejit.export import safetensors
from tracejit.export.signature import Items, Spec, describe, from_json, to_json
from tracejit.ir import dtype as dt
from tracejit.ir.graph import Graph
from tracejit.ir.op import Array
from tracejit.ir.parser import parse
from tracejit.ir.printer import to_text_with_arrays
from tracejit.ir.types import TensorType
from tracejit.ir.verify import verify
from tracejit.records import dataclass
from tracejit.runtime.files import replace_file

__all__ = ["FORMAT", "Archive", "Check", "read", "write"]

FORMAT = 1
_GRAPH, _WEIGHTS, _SIGNATURE = "graph.ir", "weights.safetensors", "signature.json"
_LONGEST_TEXT = 1 << 28  # bytes of graph or signature that are read; a real one is a thousand times smaller


@dataclass(frozen=True)
class Check:
    """A condition that Python looked at when the graph was recorded: it must be `value` again."""

    value: bool
    where: str


@dataclass(frozen=True)
class Archive:
    """A graph whose parameters are the tensors of `inputs`, in order, and then the `weights`, in order.

    Its results are the tensors of `outputs`, and then the conditions of `checks`.
    """

    graph: Graph
    weights: Mapping[str, Array]
    inputs: Spec
    outputs: Spec
    checks: tuple[Check, ...] = ()

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        """The types of the tensors that a caller gives."""
        return tuple(p.type for p in self.graph.params[: len(self.graph.params) - len(self.weights)])

    @property
    def signature(self) -> str:
        """`(x: f32[n, 784]) -> f32[n, 10] where 1 <= n <= 4096`"""
        params, results = self.graph.params, self.graph.results
        takes = describe(self.inputs, lambda i: f"{params[i].label or i}: {params[i].type}").replace(",)", ")")
        gives = describe(self.outputs, lambda i: str(results[i].type))
        ranges = ", ".join(f"{low} <= {name} <= {high}" for low, name, high in self.graph.ranges)
        return f"{takes} -> {gives}" + (f" where {ranges}" if ranges else "")


def write(archive: Archive, path: str | os.PathLike[str]) -> None:
    """Write the file in one step: `path` is the old file or the whole new one, never a part."""
    text, constants = to_text_with_arrays(archive.graph)
    arrays = {**archive.weights, **{f"@{name}": array for name, array in constants.items()}}
    signature = {
        "format": FORMAT,
        "inputs": to_json(archive.inputs),
        "outputs": to_json(archive.outputs),
        "weights": list(archive.weights),
        "checks": [{"value": c.value, "where": c.where} for c in archive.checks],
    }
    members = {
        _GRAPH: f"tracejit {FORMAT}\n{text}".encode(),
        _SIGNATURE: (json.dumps(signature, indent=2) + "\n").encode(),
        _WEIGHTS: safetensors.to_bytes(arrays),
    }
    replace_file(Path(path), _zip(members))


def _zip(members: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))  # no clock: equal models are equal files
            info.compress_type = zipfile.ZIP_STORED if name == _WEIGHTS else zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            file.writestr(info, content)
    return out.getvalue()


def read(path: str | os.PathLike[str]) -> Archive:
    """The content of the file. Raises FormatError where it is corrupt, cut short, or newer than this tracejit."""
    path = Path(path)
    with path.open("rb") as file:  # a missing file is the system's error, not ours
        try:
            members = _unzip(file)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, ValueError) as error:
            raise FormatError(f"{path}: not a complete tracejit file: {error}") from error
    if missing := [m for m in (_GRAPH, _SIGNATURE, _WEIGHTS) if m not in members]:
        raise FormatError(f"{path}: {missing[0]} is missing")
    return _Checked(path, members).archive()


def _unzip(file: io.BufferedReader) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        out: dict[str, bytes] = {}
        for name in (_GRAPH, _SIGNATURE, _WEIGHTS):
            with suppress(KeyError):
                info = archive.getinfo(name)
                if name != _WEIGHTS and info.file_size > _LONGEST_TEXT:
                    raise ValueError(f"{name} declares {info.file_size} bytes")
                if name == _WEIGHTS and info.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(f"{name} is compressed")
                out[name] = archive.read(info)
        return out


class _Checked:
    """The members of one file, read with the checks; every error begins with the file and the member."""

    def __init__(self, path: Path, members: Mapping[str, bytes]) -> None:
        self.path, self.members = path, members

    def fail(self, member: str, message: str, cause: Exception | None = None) -> FormatError:
        error = FormatError(f"{self.path}: {member}: {message}")
        error.__cause__ = cause
        return error

    def archive(self) -> Archive:
        text = self.graph_text()
        signature = self.signature()
        try:
            arrays = safetensors.from_bytes(self.members[_WEIGHTS])
        except FormatError as error:
            raise self.fail(_WEIGHTS, str(error), error) from error
        graph = self.graph(text, {k[1:]: v for k, v in arrays.items() if k.startswith("@")})
        weights = self.weights(graph, signature.get("weights"), arrays)
        checks = self.checks(graph, signature.get("checks"))
        try:
            inputs = from_json(signature.get("inputs"), len(graph.params) - len(weights))
            outputs = from_json(signature.get("outputs"), len(graph.results) - len(checks))
        except (FormatError, RecursionError) as error:
            raise self.fail(_SIGNATURE, str(error), error) from error
        if not isinstance(inputs, Items):
            raise self.fail(_SIGNATURE, "inputs must be a tuple of arguments")
        return Archive(graph, weights, inputs, outputs, checks)

    def graph_text(self) -> str:
        """The text after its first line, which gives the version."""
        try:
            first, _, text = self.members[_GRAPH].decode().partition("\n")
        except UnicodeDecodeError as error:
            raise self.fail(_GRAPH, f"not text: {error}", error) from error
        word, _, number = first.strip().partition(" ")
        if word != "tracejit" or not number.isdecimal():
            raise self.fail(_GRAPH, f"the first line is {first[:40]!r}, not `tracejit {FORMAT}`")
        if int(number) > FORMAT:
            raise self.fail(
                _GRAPH, f"format {number} is newer than this tracejit, which reads up to format {FORMAT}: upgrade"
            )
        return text

    def signature(self) -> dict[str, Any]:
        try:
            data: Any = json.loads(self.members[_SIGNATURE])
        except (ValueError, RecursionError) as error:
            raise self.fail(_SIGNATURE, f"not JSON: {error}", error) from error
        if not isinstance(data, dict):
            raise self.fail(_SIGNATURE, f"expected an object, found a {type(data).__name__}")
        return cast("dict[str, Any]", data)

    def graph(self, text: str, constants: Mapping[str, Array]) -> Graph:
        try:
            graph = parse(text, constants)
            verify(graph)
        except (TracejitError, RecursionError) as error:
            raise self.fail(_GRAPH, str(error), error) from error
        return graph

    def checks(self, graph: Graph, data: Any) -> tuple[Check, ...]:
        """The conditions, each a bool result of the graph."""
        if not isinstance(data, list) or len(cast("list[Any]", data)) > len(graph.results):
            raise self.fail(_SIGNATURE, f"checks must be a list no longer than the results, found {data!r}")
        out: list[Check] = []
        entries = cast("list[Any]", data)
        for entry, node in zip(entries, graph.results[len(graph.results) - len(entries) :], strict=True):
            match entry:
                case {"value": bool(value), "where": str(where)} if str(node.type) == "bool[]":
                    out.append(Check(value, where))
                case _:
                    raise self.fail(_SIGNATURE, f"cannot read the check {entry!r} of a {node.type}")
        return tuple(out)

    def weights(self, graph: Graph, names: Any, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The arrays for the last parameters, each of its parameter's type."""
        if not isinstance(names, list) or not all(isinstance(n, str) for n in cast("list[Any]", names)):
            raise self.fail(_SIGNATURE, f"weights must be a list of names, found {names!r}")
        order = cast("list[str]", names)
        if len(order) > len(graph.params) or len(set(order)) != len(order):
            raise self.fail(_SIGNATURE, f"{len(order)} weights for the {len(graph.params)} parameters of the graph")
        for name, node in zip(order, graph.params[len(graph.params) - len(order) :], strict=True):
            if name not in arrays:
                raise self.fail(_WEIGHTS, f"{name} is missing")
            have = TensorType(cast("dt.DType", dt.from_numpy(arrays[name].dtype)), arrays[name].shape)
            if str(have) != str(node.type):
                raise self.fail(_WEIGHTS, f"{name} is {have}, the graph wants {node.type}")
        return {name: arrays[name] for name in order}

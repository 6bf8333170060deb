"""Exported files: what they hold, what is refused, and that they need nothing of the code that made them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import tracejit as tj
from tracejit.errors import DTypeError, ExportError, FormatError, OpError
from tracejit.export import archive
from tracejit.export import safetensors as st
from tracejit.export.signature import (
    Fields,
    Fixed,
    Items,
    Leaf,
    describe,
    flatten,
    from_json,
    match,
    to_json,
    unflatten,
)
from tracejit.ir.parser import parse

COMPAT = Path(__file__).parent / "compat"  # files of past formats, one for each

GRAPH = """\
graph @line(%x: f32[n, 3], %w: f32[3]) -> f32[n, 3] where 1 <= n <= 64 {
  %0 = broadcast(%w, shape=[n, 3], dims=[1]) : f32[n, 3]
  %1 = mul(%x, %0) : f32[n, 3]
  return %1
}
"""


def line(**changes):
    parts = {
        "graph": parse(GRAPH),
        "weights": {"layer.w": np.array([1, 2, 3], np.float32)},
        "inputs": Items("tuple", (Leaf(0),)),
        "outputs": Leaf(0),
    }
    return archive.Archive(**{**parts, **changes})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "line.tj"
    archive.write(line(), path)
    return path


def rewrite(path, **members):
    """The file with members replaced (None: removed); `_` in a name stands for its dot."""
    with zipfile.ZipFile(path) as z:
        content = {name: z.read(name) for name in z.namelist()}
    content.update({name.replace("_", "."): data for name, data in members.items()})
    with zipfile.ZipFile(path, "w") as z:
        for name, data in content.items():
            if data is not None:
                z.writestr(name, data)


# -- the file


def test_file_is_readable_text_and_arrays(file):
    with zipfile.ZipFile(file) as z:
        assert sorted(z.namelist()) == ["graph.ir", "signature.json", "weights.safetensors"]
        assert z.read("graph.ir").decode() == "tracejit 1\n" + GRAPH
        assert json.loads(z.read("signature.json")) == {
            "format": 1,
            "inputs": {"tuple": [{"tensor": 0}]},
            "outputs": {"tensor": 0},
            "weights": ["layer.w"],
            "checks": [],
        }
        assert safetensors.numpy.load(z.read("weights.safetensors"))["layer.w"].tolist() == [1, 2, 3]


def test_loaded_function_runs_at_every_size(file):
    f = tj.export.load(file)
    for n in (1, 2, 64):
        assert np.array_equal(f(tj.ones(n, 3)).numpy(), np.tile(np.float32([1, 2, 3]), (n, 1)))
    assert f(np.ones((2, 3), np.float32)).tolist() == [[1, 2, 3], [1, 2, 3]]
    assert f.signature == "(x: f32[n, 3]) -> f32[n, 3] where 1 <= n <= 64"
    assert f.graph == GRAPH


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((), TypeError, r"0 arguments given, <exported line\(x: f32\[n, 3\]\).*> takes 1"),
        ((np.ones((2, 3)),), DTypeError, r"x is f64\[2, 3\], wants f32\[n, 3\]"),
        ((np.ones((2, 4), np.float32),), OpError, "axis 1 is 4 instead of 3"),
        ((np.ones(3, np.float32),), OpError, "1 axes instead of 2"),
        ((np.ones((65, 3), np.float32),), OpError, "n = 65 is outside 1 <= n <= 64"),
        (([1.0],), TypeError, "expected a tensor or an array, got a list"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(file, args, error, message):
    with pytest.raises(error, match=message):
        tj.export.load(file)(*args)


def test_one_symbol_has_one_size(tmp_path):
    text = """graph @add(%x: f32[n], %y: f32[n]) -> f32[n] {
      %0 = add(%x, %y) : f32[n]
      return %0
    }"""
    inputs = Items("tuple", (Leaf(0), Leaf(1)))
    archive.write(line(graph=parse(text), weights={}, inputs=inputs), tmp_path / "add.tj")
    with pytest.raises(OpError, match="axis 0 says n = 4, an argument before says 3"):
        tj.export.load(tmp_path / "add.tj")(tj.ones(3), tj.ones(4))


def test_constants_of_the_graph_are_stored(tmp_path):
    text = """graph @c(%x: f32[2]) -> f32[2] {
      %0 = const(@w0) : f32[2]
      %1 = add(%x, %0) : f32[2]
      return %1
    }"""
    graph = parse(text, {"w0": np.array([1, 2], np.float32)})
    archive.write(line(graph=graph, weights={}), tmp_path / "c.tj")
    assert tj.export.load(tmp_path / "c.tj")(tj.zeros(2)).tolist() == [1, 2]


def test_equal_functions_are_equal_files(file, tmp_path):
    archive.write(line(), tmp_path / "again.tj")
    assert (tmp_path / "again.tj").read_bytes() == file.read_bytes()


def test_failed_write_leaves_the_old_file_and_nothing_else(file, monkeypatch):
    before = file.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        archive.write(line(weights={"layer.w": np.zeros(3, np.float32)}), file)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == ["line.tj"]


# -- damage


def test_file_cut_anywhere_is_refused(file):
    content = file.read_bytes()
    for size in range(0, len(content), 37):
        file.write_bytes(content[:size])
        with pytest.raises(FormatError, match="not a complete tracejit file"):
            tj.export.load(file)


def test_flipped_byte_is_refused_or_harmless(file):
    content = file.read_bytes()
    for at in range(0, len(content), 11):
        file.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            f = tj.export.load(file)
        except FormatError:
            continue
        assert f(tj.ones(1, 3)).tolist() == [[1, 2, 3]]  # a date, a permission: nothing that counts


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"graph_ir": None}, "graph.ir is missing"),
        ({"weights_safetensors": None}, "weights.safetensors is missing"),
        ({"graph_ir": "tracejit 2\n" + GRAPH}, "format 2 is newer than this tracejit, which reads up to format 1"),
        ({"graph_ir": "hello\n" + GRAPH}, "graph.ir: the first line is 'hello', not `tracejit 1`"),
        ({"graph_ir": b"\xff\xfe"}, "graph.ir: not text"),
        ({"graph_ir": "tracejit 1\n" + GRAPH.replace("mul(", "mull(")}, "graph.ir: .*mull"),
        ({"graph_ir": "tracejit 1\n" + GRAPH.replace("%w: f32[3]", "%w: f32[4]")}, "graph.ir: "),
        ({"signature_json": "{"}, "signature.json: not JSON"),
        ({"signature_json": "[]"}, "signature.json: expected an object, found a list"),
        ({"signature_json": "{}"}, "signature.json: "),
        ({"weights_safetensors": b"12345678"}, "weights.safetensors: "),
        ({"weights_safetensors": st.to_bytes({})}, "weights.safetensors: layer.w is missing"),
        (
            {"weights_safetensors": st.to_bytes({"layer.w": np.zeros(4, np.float32)})},
            r"layer.w is f32\[4\], the graph wants f32\[3\]",
        ),
    ],
)
def test_damaged_member_is_refused_by_name(file, members, message):
    rewrite(file, **members)
    with pytest.raises(FormatError, match=message) as caught:
        tj.export.load(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"weights": ["layer.w", "layer.w"]},
        {"weights": "layer.w"},
        {"weights": [], "inputs": {"tuple": [{"tensor": 7}]}},
        {"inputs": {"tensor": 0}},
        {"inputs": {"code": "import os"}},
        {"outputs": {"tensor": -1}},
        {"outputs": {"dict": [[1, {"tensor": 0}]]}},
        {"checks": [{"value": True, "where": ""}]},
        {"checks": 5},
    ],
)
def test_signature_that_does_not_fit_the_graph_is_refused(file, change):
    with zipfile.ZipFile(file) as z:
        signature = json.loads(z.read("signature.json"))
    rewrite(file, signature_json=json.dumps({**signature, **change}))
    with pytest.raises(FormatError, match="signature.json"):
        tj.export.load(file)


def test_pickle_is_never_read(file):
    import pickle

    file.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(FormatError, match="not a complete tracejit file"):
        tj.export.load(file)


def test_missing_file_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        tj.export.load(tmp_path / "none.tj")


# -- safetensors

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "b": np.array([True, False]),
    "c": np.array(3, np.int64),
    "d": np.zeros((0, 4), np.float16),
    "e": np.array([-1, 2], np.int8),
    "f": np.array([1.5], np.float64),
}


def test_safetensors_agrees_with_the_library_both_ways():
    theirs = safetensors.numpy.load(st.to_bytes(ARRAYS))
    ours = st.from_bytes(
        safetensors.numpy.save({k: np.ascontiguousarray(v).reshape(v.shape) for k, v in ARRAYS.items()})
    )
    for name, array in ARRAYS.items():
        for got in (theirs[name], ours[name]):
            assert (got.dtype, got.shape, got.tolist()) == (array.dtype, array.shape, array.tolist())


def test_safetensors_keeps_bfloat16():
    x = np.array([1, -2.5], ml_dtypes.bfloat16)
    got = st.from_bytes(st.to_bytes({"x": x}))["x"]
    assert got.dtype == x.dtype
    assert got.tolist() == [1, -2.5]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "4 bytes for F32 of shape"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "shape is"),
        ({"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}, "unknown dtype"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, "expected to begin at 0"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0]}, "data_offsets"),
        ({"dtype": "F32", "shape": [1]}, "data_offsets"),
        ("x", "data_offsets"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "bytes 0 to 16 of 8"),
    ],
)
def test_safetensors_refuses_entries_that_lie(entry, message):
    header = json.dumps({"w": entry}).encode()
    with pytest.raises(FormatError, match=message):
        st.from_bytes(len(header).to_bytes(8, "little") + header + bytes(8))


# -- signatures


def test_spec_round_trips_through_json_and_values():
    value = ([1.5, "x"], {"k": (2, float("inf")), "t": np.ones(1)}, None, True)
    spec, leaves = flatten(value, lambda v: isinstance(v, np.ndarray), "args")
    assert len(leaves) == 1
    assert from_json(json.loads(json.dumps(to_json(spec))), 1) == spec
    assert unflatten(spec, leaves) == value
    assert match(spec, value, "args") == leaves
    assert describe(spec, lambda i: f"t{i}") == "([1.5, 'x'], {'k': (2, inf), 't': t0}, None, True)"


def test_spec_names_what_differs():
    spec = Items("tuple", (Leaf(0), Fixed(2), Fields((("k", Leaf(1)),))))
    with pytest.raises(ValueError, match=r"args\[1\] is 3; the file was made with 2"):
        match(spec, (0, 3, {"k": 1}), "args")
    with pytest.raises(TypeError, match=r"args\[2\] must be a dict with keys \['k'\], got keys \['j'\]"):
        match(spec, (0, 2, {"j": 1}), "args")
    with pytest.raises(TypeError, match="args must be a tuple of 3, got a tuple of 2"):
        match(spec, (0, 2), "args")


def test_spec_refuses_objects_by_name():
    with pytest.raises(ExportError, match=r"args\[0\]\['k'\] is a object"):
        flatten(({"k": object()},), lambda v: False, "args")


# -- save: functions and modules


def through_file(fn, args, tmp_path, dynamic=None):
    path = tmp_path / "f.tj"
    tj.export.save(fn, args, path, dynamic=dynamic)
    return tj.export.load(path)


def model():
    tj.manual_seed(0)
    net = tj.nn.Sequential(
        tj.nn.Conv2d(1, 4, 3, padding=1),
        tj.nn.BatchNorm2d(4),
        tj.nn.ReLU(),
        tj.nn.MaxPool2d(2),
        tj.nn.Flatten(),
        tj.nn.Dropout(0.5),
        tj.nn.Linear(64, 10),
    )
    return net.eval()


def same_bits(a, b):
    return a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()


def test_module_keeps_its_bits_and_its_names(tmp_path):
    net, x = model(), tj.randn(5, 1, 8, 8)
    f = through_file(net, (x,), tmp_path)
    assert np.allclose(f(x).numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert set(f.weights) <= set(net.state_dict())
    assert "0.weight" in f.weights


def test_symbolic_batch_runs_at_other_sizes(tmp_path):
    net = model()
    f = through_file(net, (tj.randn(5, 1, 8, 8),), tmp_path, dynamic={0: "n"})
    assert f.signature == "(input: f32[n, 1, 8, 8]) -> f32[n, 10] where 1 <= n <= 2147483647"
    for n in (1, 2, 33):
        x = tj.randn(n, 1, 8, 8)
        assert np.allclose(f(x).numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_two_symbols_and_products_of_them(tmp_path):
    def outer(x, y):
        return (x.unsqueeze(1) * y).reshape(-1).mean(), x.mean() + y.sum()

    f = through_file(outer, (tj.randn(3), tj.randn(4)), tmp_path, dynamic=({0: "n"}, {0: "m"}))
    x, y = tj.randn(7), tj.randn(2)
    for got, want in zip(f(x, y), outer(x, y), strict=True):
        assert np.allclose(got.numpy(), want.numpy(), rtol=1e-6)


def test_one_symbol_in_two_arguments(tmp_path):
    f = through_file(lambda x, y: x @ y, (tj.randn(2, 3), tj.randn(3, 2)), tmp_path, dynamic=({1: "k"}, {0: "k"}))
    assert f(tj.ones(2, 5), tj.ones(5, 2)).tolist() == [[5, 5], [5, 5]]


def test_structured_arguments_and_results(tmp_path):
    def f(batch, scale):
        return {"sum": batch["x"] + batch["y"][0], "scaled": [batch["x"] * scale], "none": None}

    batch = {"x": tj.ones(2), "y": [tj.ones(2)]}
    g = through_file(f, (batch, 3), tmp_path)
    got = g(batch, 3)
    assert got["sum"].tolist() == [2, 2]
    assert got["scaled"][0].tolist() == [3, 3]
    assert got["none"] is None
    with pytest.raises(ValueError, match="the file was made with 3"):
        g(batch, 4)


def test_one_tensor_given_twice_is_two_arguments(tmp_path):
    x = tj.ones(2)
    f = through_file(lambda a, b: a * 10 + b, (x, x), tmp_path)
    assert f(tj.tensor([1.0, 2.0]), tj.tensor([3.0, 4.0])).tolist() == [13, 24]


def test_argument_that_is_also_a_weight_is_an_argument(tmp_path):
    w = tj.ones(2)
    f = through_file(lambda x: x * 10 + w, (w,), tmp_path)
    assert f(tj.zeros(2)).tolist() == [1, 1]
    assert set(f.weights) == {"w"}


def test_writing_to_an_argument_is_refused(tmp_path):
    with pytest.raises(ExportError, match=r"writes to x at test_export.py:\d+"):
        through_file(lambda x: x.add_(1), (tj.ones(2),), tmp_path)


def test_gradient_inside_the_function_is_exported(tmp_path):
    def slope(x):
        return tj.autograd.grad((x**3).sum(), x)[0]

    f = through_file(slope, (tj.ones(2, requires_grad=True),), tmp_path)
    assert f(tj.tensor([1.0, 2.0])).tolist() == [3, 12]


def test_compiled_function_is_exported_as_what_it_is(tmp_path):
    net = tj.compile(tj.nn.Linear(3, 2))
    for _ in range(5):
        net(tj.ones(1, 3))
    f = through_file(net, (tj.ones(1, 3),), tmp_path)
    assert repr(f) == "<exported Linear(input: f32[1, 3]) -> f32[1, 2]>"
    assert set(f.weights) == {"weight", "bias"}


def test_format_1_stays_readable():
    f = tj.export.load(COMPAT / "format-1.tj")
    x, shift = tj.arange(9).reshape(3, 3).float(), tj.tensor([1.0, 2.0])
    got = f({"x": x, "shift": [shift]}, 2.0)
    w = tj.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])
    assert np.allclose(got["y"].numpy(), np.tanh((x @ w.T).numpy()) * 2 + shift.numpy(), rtol=1e-6)
    assert got["row"][0].tolist() == [4, 3, 5]
    with pytest.raises(OpError, match="a path that is not in the file"):
        f({"x": -x, "shift": [shift]}, 2.0)


def test_condition_becomes_a_check(tmp_path):
    def f(x):
        return x * 2 if x.sum() > 0 else x - 1

    g = through_file(f, (tj.ones(3),), tmp_path)
    assert g(tj.ones(3)).tolist() == [2, 2, 2]
    with pytest.raises(
        OpError, match=r"the condition at test_export.py:\d+ was True .* a path that is not in the file"
    ):
        g(-tj.ones(3))


def test_embedding_checks_its_indices(tmp_path):
    emb = tj.nn.Embedding(5, 2)
    f = through_file(emb, (tj.tensor([1, 4]),), tmp_path)
    assert same_bits(f(tj.tensor([0, 3])), emb(tj.tensor([0, 3])).detach())
    with pytest.raises((OpError, IndexError)):
        f(tj.tensor([1, 5]))


def dropout(x):
    return tj.nn.functional.dropout(x, 0.5, training=True)


def branches_on_size(x):
    return x * 2 if x.shape[0] % 2 else x


def loops_over_rows(x):
    out = x[0]
    for i in range(1, x.shape[0]):
        out = out + x[i]
    return out


@pytest.mark.parametrize(
    ("fn", "dynamic", "message"),
    [
        (dropout, None, "draws random numbers"),
        (lambda x: x * x.sum().item(), None, r"test_export.py:\d+: reads the value of a tensor"),
        (lambda x: object(), None, "the result is a object"),
        (branches_on_size, {0: "n"}, "changes with the sizes"),
        (loops_over_rows, {0: "n"}, "a loop or an `if` looked at a size"),
        (lambda x: x[::2], {0: "n"}, "is not a polynomial"),
        (lambda x: x, {3: "n"}, r"axis 3 of a tensor of type f32\[4\]"),
        (lambda x: x, ({0: "n"}, {0: "m"}), "axes of 2 arguments, there are 1"),
        (lambda x: x, {0: "not a name"}, "which is not a name"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_the_reason(fn, dynamic, message, tmp_path):
    with pytest.raises(ExportError, match=message):
        through_file(fn, (tj.ones(4),), tmp_path, dynamic)
    assert os.listdir(tmp_path) == []


def test_training_mode_is_refused(tmp_path):
    net = tj.nn.BatchNorm1d(3)
    with pytest.raises(ExportError, match=r"writes to \w+ at test_export.py:\d+ \(batch norm in training mode"):
        through_file(net, (tj.ones(4, 3),), tmp_path)


def test_function_that_is_not_deterministic_is_refused(tmp_path):
    calls = []

    def f(x):
        calls.append(1)
        return x * len(calls)

    with pytest.raises(ExportError, match="something else when called again"):
        through_file(f, (tj.ones(2),), tmp_path)


def test_function_around_a_module_names_its_weights(tmp_path):
    net = tj.nn.Linear(3, 2)
    f = through_file(lambda x: tj.softmax(net(x), -1), (tj.ones(1, 3),), tmp_path)
    assert set(f.weights) == {"net.weight", "net.bias"}


def test_loaded_file_can_be_called_from_many_threads(file):
    from concurrent.futures import ThreadPoolExecutor

    f = tj.export.load(file)
    with ThreadPoolExecutor(4) as pool:
        sums = list(pool.map(lambda n: float(f(tj.ones(n % 20 + 1, 3)).sum()), range(100)))
    assert sums == [6.0 * (n % 20 + 1) for n in range(100)]


SCRIPT = """
    import sys
    import tracejit as tj
    f = tj.export.load(sys.argv[1])
    assert not any(name.startswith("tracejit.nn") and "test" in name for name in sys.modules)
    print(f(tj.ones(2, 3)).tolist())
"""


def test_fresh_process_loads_the_file(file):
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(file)], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]"

"""`save` and `load`: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import io
import math

import pytest

import tracejit as tj
from tracejit.errors import FormatError


def roundtrip(obj):
    f = io.BytesIO()
    tj.save(obj, f)
    f.seek(0)
    return tj.load(f)


def test_plain_data_comes_back_as_it_was():
    obj = {"a": [1, 2.5, None, True, "x"], 3: (1, (2,)), "inf": [math.inf, -math.inf], (1, "k"): {}}
    assert roundtrip(obj) == obj
    assert math.isnan(roundtrip(math.nan)) and math.copysign(1, roundtrip(-0.0)) == -1


@pytest.mark.parametrize("dtype", [tj.float32, tj.float64, tj.float16, tj.bfloat16, tj.int64, tj.uint8, tj.bool_])
def test_tensors_keep_dtype_shape_and_bits(dtype):
    for x in (
        tj.ones(2, 3, dtype=dtype),
        tj.zeros(0, 4, dtype=dtype),
        tj.tensor(1, dtype=dtype),
        tj.ones(2, 3, dtype=dtype).t(),
    ):
        y = roundtrip(x)
        assert y.dtype is x.dtype and y.shape == x.shape and tj.equal(x, y)


def test_a_tensor_stored_twice_is_one_tensor():
    x = tj.ones(2, requires_grad=True)
    a, b = roundtrip([x, x])
    assert a is b and a.requires_grad


def test_model_and_optimizer_go_on_from_a_file(tmp_path):
    def fresh():
        tj.manual_seed(0)
        model = tj.nn.Sequential(tj.nn.Linear(3, 4), tj.nn.BatchNorm1d(4), tj.nn.Linear(4, 1))
        return model, tj.optim.Adam(model.parameters(), lr=0.1)

    def step(model, opt):
        opt.zero_grad()
        loss = (model(tj.arange(6.0).reshape(2, 3)) ** 2).sum()
        loss.backward()
        opt.step()
        return loss.item()

    model, opt = fresh()
    step(model, opt)
    tj.save({"model": model.state_dict(), "opt": opt.state_dict()}, tmp_path / "c.st")
    want = [step(model, opt) for _ in range(3)]
    other, other_opt = fresh()
    found = tj.load(tmp_path / "c.st")
    other.load_state_dict(found["model"])
    other_opt.load_state_dict(found["opt"])
    assert [step(other, other_opt) for _ in range(3)] == want


def test_other_objects_are_refused_by_place_and_leave_no_file(tmp_path):
    with pytest.raises(TypeError, match=r"the object\['a'\]\[1\] is a set"):
        tj.save({"a": [1, {2}]}, tmp_path / "x")
    loop = []
    loop.append(loop)
    with pytest.raises(TypeError, match="contains itself"):
        tj.save(loop, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "c"
    tj.save({"a": tj.ones(3)}, path)
    content = path.read_bytes()
    for bad in (
        b"",
        content[:40],
        content[:-1],
        content.replace(b'"version":1'[:0] + b"version", b"versiom"),
        b"\x80\x04N.",
    ):
        path.write_bytes(bad)
        with pytest.raises(FormatError, match="cannot read"):
            tj.load(path)
    path.write_bytes(content.replace(b'\\"version\\":1', b'\\"version\\":9'))
    with pytest.raises(FormatError, match="newer"):
        tj.load(path)


def test_the_safetensors_library_reads_it(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    tj.save({"a": tj.ones(3)}, tmp_path / "c")
    assert safetensors.load_file(tmp_path / "c")["0"].tolist() == [1, 1, 1]

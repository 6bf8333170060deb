"""The benchmarks say what they measure: every workload is correct and compiled, and tables land where they belong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import tracejit as tj

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import measuring  # noqa: E402
import report  # noqa: E402
import workloads  # noqa: E402

TABLE = measuring.Table(
    ("what", "ours, ms", "peer / ours"), (("a", 1.0, 2.0), ("b", 1234.5, 0.5), ("c", 3, None)), 0.25
)


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_compiled_workload_is_numpys_in_float64(name: str):
    work = workloads.make(name, small=True)
    call = workloads.ours(work)
    reference = workloads.exact(work)
    for _ in range(5):
        assert workloads.error(call, reference) < workloads.ERROR
    assert call.compiled.compiled_calls > 0, call.compiled.explain()


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_workload_on_torch_is_numpys_in_float64(name: str):
    torch = pytest.importorskip("torch")
    work = workloads.make(name, small=True)
    call = workloads.on_tensors(torch, work, workloads.plain, workloads.plain)
    assert workloads.error(call, workloads.exact(work)) < workloads.ERROR


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_workload_on_jax_is_numpys_in_float64(name: str):
    pytest.importorskip("jax")
    work = workloads.make(name, small=True)
    assert workloads.error(workloads.on_jax(work), workloads.exact(work)) < workloads.ERROR


def test_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch):
    right = workloads.ours

    def wrong(work: workloads.Workload) -> Any:
        return lambda: tuple(y + 0.01 * y.max() for y in right(work)())

    monkeypatch.setattr(workloads, "ours", wrong)
    with tj.config.override(), pytest.raises(AssertionError, match="gelu by ours is wrong by"):
        workloads.table(["gelu"], rounds=1, small=True)


def test_share_is_of_the_limit_that_binds():
    work = workloads.Workload((), lambda: None, moved=100, flops=100)
    times = {"ours": [2.0], "copy": [1.0], "add": [1.0], "sgemm": [1.0]}
    assert workloads.share(work, times, {"copy": 80, "add": 100, "sgemm": 50}) == (100.0, "sgemm")
    assert workloads.share(work, times, {"copy": 80, "add": 50, "sgemm": 100}) == (62.5, "memory")


def test_ratio_is_the_median_within_a_round():
    times = {"ours": [1.0, 10.0, 2.0], "peer": [2.0, 30.0, 2.0]}
    assert measuring.ratio(times, "peer", "ours") == 2.0
    assert measuring.ratio(times, "nobody", "ours") is None


def test_turns_visit_every_contender_in_every_round():
    seen: list[str] = []
    times = measuring.turns({name: lambda name=name: seen.append(name) for name in "ab"}, 2, seconds=0)
    assert [len(times[name]) for name in "ab"] == [2, 2]
    assert seen[-8:] == ["a", "a", "b", "b", "a", "a", "b", "b"]


def test_collected_table_prints_its_markdown(capsys: pytest.CaptureFixture[str]):
    table = measuring.collect(TABLE.header, TABLE.rows)
    assert table.rows == TABLE.rows
    assert capsys.readouterr().out.startswith(table.markdown() + "\n")
    assert table.markdown().splitlines() == [
        "| what | ours, ms | peer / ours |",
        "|---|---:|---:|",
        "| a | 1 | 2 |",
        "| b | 1,234 | 0.5 |",
        "| c | 3 | - |",
    ]


def test_mean_of_ratios_is_geometric_over_those_there_are():
    assert TABLE.ratios == (2,)
    assert TABLE.mean(2) == pytest.approx(1.0)


def test_only_what_stands_between_the_markers_is_rewritten():
    text = "head\n<!-- begin a -->\nold\n<!-- end a -->\nmiddle\n<!-- begin b -->\nkept\n<!-- end b -->\n"
    once = report.rewritten(text, "a", "new")
    assert once == text.replace("\nold\n", "\n\nnew\n\n")
    assert report.rewritten(once, "a", "new") == once


@pytest.mark.parametrize("text", ["", "<!-- begin a -->", "<!-- end a --><!-- begin a -->", "<!-- begin a -->" * 2])
def test_missing_markers_are_named(text: str):
    with pytest.raises(ValueError, match="<!-- begin a --> and, after it, <!-- end a -->"):
        report.rewritten(text, "a", "new")


def test_readme_has_a_place_for_every_table():
    text = (BENCHMARKS / "README.md").read_text()
    for name in report.ENTRIES:
        text = report.rewritten(text, name, report.section(name, TABLE, "1 May 2026, 2 cores"))
    assert text.count("1 May 2026, 2 cores, others kept 0.25 cores busy.") == len(report.ENTRIES)
    assert "Geometric means: peer / ours 1.00." in text
    assert "![cost](plots/cost.svg)" in text


def test_report_writes_each_table_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(report, "apart", lambda name, quick: TABLE)
    monkeypatch.setattr(report, "draw", lambda table, path: None)
    report.report(["cost"], True, tmp_path)
    assert "| b | 1,234 | 0.5 |" in (tmp_path / "README.md").read_text()
    assert "[1/1] cost" in capfd.readouterr().out


def test_the_same_table_is_the_same_plot(tmp_path: Path):
    pytest.importorskip("matplotlib")
    for name in ("a", "b"):
        report.draw(TABLE, tmp_path / f"{name}.svg")
    first, second = ((tmp_path / f"{name}.svg").read_text() for name in "ab")
    assert first == second
    assert "peer / ours" in first and "<dc:date>" not in first


def test_missing_matplotlib_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match=r"pip install 'tracejit\[bench\]'"):
        report.draw(TABLE, tmp_path / "a.svg")


def test_cost_counts_kernels_and_bytes_of_a_fresh_process(tmp_path: Path):
    import cost

    found = cost.fresh("ours", "gelu", 1, str(tmp_path))
    assert found["kernels"] == 1 and found["code"] > 500 and found["seconds"] > 0
    assert found["process"] > found["seconds"]

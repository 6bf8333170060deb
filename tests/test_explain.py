"""explain() says what was compiled and why not; channels say it while it happens."""

import logging
import re
import time
from html.parser import HTMLParser

import pytest

import tracejit as tj

SETTINGS = {"scale": "two", "<b>": 1}


def f(x):
    k = 2 if SETTINGS["scale"] == "two" else 3
    return (x * k).exp() + (1 if x.sum() > 0 else -1)


@pytest.fixture
def compiled():
    SETTINGS["scale"] = "two"
    c = tj.compile(f)
    for v in (1.0,) * 5 + (-1.0,) * 5:
        c(tj.full((3,), v))
    SETTINGS["scale"] = "three"
    for _ in range(5):
        c(tj.ones(3))
    for _ in range(5):
        c(tj.ones(2, 2))
    return c


def test_guards_are_told_in_words_with_their_line_and_failures(compiled):
    assert re.search(
        r"guard: the entry scale is 'two', read at test_explain.py:\d+; failed \d+ times", compiled.explain()
    )


def test_each_recompile_has_old_and_new_value_and_the_edit_that_avoids_it(compiled):
    text = compiled.explain()
    assert "the entry scale was 'two', is now 'three' (read at test_explain.py:" in text
    assert "to avoid it: keep it the same between calls" in text
    assert "data led another way: test_explain.py:" in text
    assert "choose with where()" in text
    assert "arguments were (float32[3]), are (float32[2, 2])" in text


def test_a_refusal_has_its_line():
    c = tj.compile(lambda x: x * time.time())
    for _ in range(5):
        c(tj.ones(1))
    assert re.search(r"test_explain.py:\d+: ", c.explain())
    assert c.history.refusals


class Checker(HTMLParser):
    """Every element closed, nothing from elsewhere, no scripts."""

    VOID = ("meta", "br", "hr")

    def __init__(self):
        super().__init__()
        self.open, self.tags = [], []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "link", "img", "iframe", "object")
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_needs_nothing_else_and_escapes(compiled, tmp_path):
    path = tmp_path / "f.html"
    text = compiled.explain(html=path)
    page = path.read_text(encoding="utf-8")

    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert page == text.html() == tj.explain(compiled).html() == text._repr_html_()
    assert checker.tags.count("details") >= 9  # guards, graph and kernels of three traces, folded
    assert "url(" not in page
    assert "@import" not in page
    for words in ("graph @", "kernel(in f32[", "&#x27;three&#x27;", "what would avoid it"):
        assert words in page


def test_names_of_the_users_are_escaped():
    def g(x):
        return x * SETTINGS["<b>"]

    g.__qualname__ = "<script>alert(1)</script>"
    c = tj.compile(g)
    for _ in range(5):
        c(tj.ones(1))
    page = c.explain().html()
    assert "<script>" not in page
    assert "<b>" not in page
    assert "&lt;b&gt;" in page


def test_the_function_takes_methods_and_refuses_what_is_not_compiled():
    class A:
        @tj.compile
        def m(self, x):
            return x + 1

    assert tj.explain(A().m).startswith("test_the_function")
    with pytest.raises(TypeError, match="is not a compiled function"):
        tj.explain(len)


# ---------------------------------------------------------------- channels


def heard(caplog, channel, tmp_path):
    SETTINGS["scale"] = "two"
    with tj.config.override(logs=(channel,), cache_dir=str(tmp_path)):
        c = tj.compile(f)
        for _ in range(5):
            c(tj.ones(3))
        SETTINGS["scale"] = "three"
        for _ in range(5):
            c(tj.ones(3))
    assert {r.name for r in caplog.records} == {f"tracejit.{channel}"}
    assert all(r.levelno == logging.WARNING for r in caplog.records)  # shown where nobody set handlers up
    return "\n".join(r.getMessage() for r in caplog.records)


@pytest.mark.parametrize(
    ("channel", "words"),
    [
        ("recompiles", "f was compiled again: the entry scale was 'two', is now 'three' (read at test_explain.py:"),
        ("guards", "f: the entry scale is 'two', read at test_explain.py:"),
        ("guards", "f: the entry scale was 'two', is now 'three'"),
        ("fusion", "f: one kernel of "),
        ("kernels", "f: kernel(in f32[3] a0"),
        ("cache", "written: "),
        ("fallback", "f ran as plain Python: recorded"),
    ],
)
def test_a_channel_says_its_own_and_nothing_else(channel, words, caplog, tmp_path):
    assert words in heard(caplog, channel, tmp_path)


def test_closed_channels_are_silent(caplog):
    c = tj.compile(f)
    for _ in range(6):
        c(tj.ones(3))
    assert not caplog.records


def test_the_environment_opens_channels_and_names_unknown_ones(monkeypatch):
    monkeypatch.setenv("TRACEJIT_LOGS", "guards, recompiles")
    assert tj.config.Config.from_environment().logs == ("guards", "recompiles")
    monkeypatch.setenv("TRACEJIT_LOGS", "guard")
    with pytest.warns(UserWarning, match="no channel 'guard'; channels are recompiles, guards"):
        tj.config.Config.from_environment()

"""text -> Graph, the inverse of the printer. Errors give the line, a caret, and what was expected.

    graph  ::= 'graph' '@' name '(' param,* ')' '->' ('()' | type,+) ('where' range,+)? '{' line* 'return' value,* '}'
    param  ::= value ':' type
    line   ::= value,+ '=' op '(' (value | key '=' attr | constant),* ')' ':' type,+ ('#' location)?
    type   ::= dtype '[' dim,* ']' ('@' device)?              dim   ::= integer | polynomial over names: 2*n^2 + m - 1
    attr   ::= number | 'true' | 'false' | 'none' | dtype | type | dim | string | '@' array | '[' attr,* ']' | graph
    range  ::= integer '<=' name '<=' integer                 value ::= '%' (name | number)

Every stated type is checked against the op's own rule, so text that parses is a well-typed graph.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, NoReturn

from tracejit.errors import ParseError, TracejitError
from tracejit.ir.dim import Extent, Sym
from tracejit.ir.dtype import BY_NAME
from tracejit.ir.graph import Graph, Range, param
from tracejit.ir.node import Node
from tracejit.ir.op import Array, ArrayConst, Item, Op
from tracejit.ir.types import TensorType, TupleType, Type, same_type

__all__ = ["parse", "parse_type"]


def parse(text: str, arrays: Mapping[str, Array] | None = None) -> Graph:
    """The graph that `text` says; `arrays` holds the constants it names. Raises ParseError."""
    reader = _Reader(text, arrays or {})
    graph = reader.graph()
    reader.expect_end()
    return graph


def parse_type(text: str) -> TensorType:
    """The type that `text` says: `f32[n, 3]@cpu`."""
    reader = _Reader(text, {})
    type = reader.type()
    reader.expect_end()
    return type


def _token(pattern: str) -> re.Pattern[str]:
    """`pattern` after any white space and comments; group 1 is the token."""
    return re.compile(rf"\s*(?:#[^\n]*\s*)*({pattern})")


_VALUE = _token(r"%(?:[A-Za-z_][\w.]*|\d+)")
_NAME = _token(r"[A-Za-z_][\w.]*")
_WORD = _token(r"[A-Za-z_]\w*")
_FLOAT = _token(r"-?(?:inf\b|nan\b|\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+)")
_INTEGER = _token(r"-?\d+")
_NATURAL = _token(r"\d+")
_SIGN = _token(r"[-+]")
_STRING = _token(r'"(?:[^"\\\n]|\\.)*"')
_TYPE = _token(r"[a-z]+\d*\[[^\]\n]*\](?:@[A-Za-z]\w*(?::\d+)?)?")
_DEVICE = _token(r"@[A-Za-z]\w*(?::\d+)?")
_ARRAY = _token(r"@[A-Za-z_][\w.]*")
_ANYTHING = _token(r"[%@]?[\w.]+|->|<=|\S|\Z")
_MARK = {m: _token(re.escape(m)) for m in ("(", ")", "[", "]", "{", "}", ":", ",", "=", "->", "<=", "@", "*", "^")}
_KEYWORD = {w: _token(rf"{w}\b") for w in ("graph", "where", "return")}
_LOCATION = re.compile(r"[ \t]*#[ \t]*([^\n]*)")
_LITERAL = {"true": True, "false": False, "none": None, **BY_NAME}


class _Reader:
    """A position in the text. Its methods read what the grammar names."""

    def __init__(self, text: str, arrays: Mapping[str, Array]) -> None:
        self.text = text
        self.arrays = {name: ArrayConst(array) for name, array in arrays.items()}  # one attribute for all its readers
        self.at = 0
        self.start = 0  # of the token read last: where an error about it points
        self.types: dict[str, TensorType] = {}  # by their text: a long graph has few different types

    # Tokens

    def accept(self, pattern: re.Pattern[str]) -> str | None:
        """The token, if it comes next."""
        if m := pattern.match(self.text, self.at):
            self.start, self.at = m.start(1), m.end()
            return m[1]
        return None

    def expect(self, pattern: re.Pattern[str], what: str) -> str:
        """The token, which must come next."""
        token = self.accept(pattern)
        return self.fail_expecting(what) if token is None else token

    def has(self, mark: str) -> bool:
        """True where `mark` comes next; it is then read."""
        return self.accept(_MARK[mark]) is not None

    def mark(self, mark: str) -> None:
        self.expect(_MARK[mark], f"`{mark}`")

    def more(self, end: str, first: bool) -> bool:
        """In a comma-separated list: whether another entry follows, its comma then read, or `end` was."""
        if self.has(end):
            return False
        if not first:
            self.expect(_MARK[","], f"`,` or `{end}`")
        return True

    def expect_end(self) -> None:
        if self.accept(_ANYTHING):
            self.fail("expected the end of the text")

    def fail_expecting(self, what: str) -> NoReturn:
        found = self.accept(_ANYTHING)
        self.fail(f"expected {what}, found {f'`{found}`' if found else 'the end of the text'}")

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        at = self.start if at is None else at
        number = self.text.count("\n", 0, at) + 1
        begin = self.text.rfind("\n", 0, at) + 1
        line = self.text[begin:].split("\n", 1)[0]
        gutter = f"  {number} | "
        raise ParseError(f"line {number}: {message}\n{gutter}{line}\n{' ' * (len(gutter) + at - begin)}^")

    # Graphs

    def graph(self) -> Graph:
        self.expect(_KEYWORD["graph"], "`graph`")
        self.mark("@")
        name = self.expect(_NAME, "the graph's name")
        env: dict[str, Node] = {}
        self.mark("(")
        while self.more(")", first=not env):
            label = self.expect(_VALUE, "a parameter such as `%x: f32[n, 3]`")
            start = self.start
            self.mark(":")
            self.define(env, label, param(label[1:], self.type()), start)
        params = tuple(env.values())
        self.mark("->")
        stated: list[TensorType] = []
        if self.has("("):
            self.mark(")")
        else:
            stated = self.type_list()
        ranges = self.ranges()
        self.mark("{")
        while not self.accept(_KEYWORD["return"]):
            self.line(env)
        start = self.start
        results: list[Node] = []
        while self.more("}", first=not results):
            results.append(self.value(env))
        if not _same_types([r.type for r in results], stated):
            self.fail(f"returns {_show(r.type for r in results)}, the header says {_show(stated)}", start)
        return Graph(name, params, tuple(results), ranges)

    def ranges(self) -> tuple[Range, ...]:
        if not self.accept(_KEYWORD["where"]):
            return ()
        out: list[Range] = []
        while not out or self.has(","):
            low = int(self.expect(_INTEGER, "a range such as `1 <= n <= 64`"))
            self.mark("<=")
            symbol = self.expect(_WORD, "the name of a symbol")
            self.mark("<=")
            out.append((low, symbol, int(self.expect(_INTEGER, "the largest extent"))))
        return tuple(out)

    def define(self, env: dict[str, Node], name: str, node: Node, at: int) -> None:
        if name in env:
            self.fail(f"{name} is already defined", at)
        if name != "%_":  # a result nobody reads
            env[name] = node

    def value(self, env: Mapping[str, Node]) -> Node:
        name = self.expect(_VALUE, "a value such as `%x`")
        return env[name] if name in env else self.fail(f"{name} is not defined")

    def line(self, env: dict[str, Node]) -> None:
        names = [(self.expect(_VALUE, "`%name = op(...) : type` or `return`"), self.start)]
        while self.has(","):
            names.append((self.expect(_VALUE, "a value such as `%x`"), self.start))
        self.mark("=")
        word = self.expect(_WORD, "the name of an op")
        start = self.start
        if word not in Op.registry:
            near = difflib.get_close_matches(word, Op.registry, 1)
            self.fail(f"there is no op named {word}" + (f"; did you mean {near[0]}?" if near else ""))
        inputs: list[Node] = []
        attributes: dict[str, Any] = {}
        self.mark("(")
        if word == "const":
            attributes["value"] = self.attribute()
            self.mark(")")
        else:
            while self.more(")", first=not inputs and not attributes):
                self.operand(env, word, inputs, attributes)
        self.mark(":")
        stated = self.type_list()
        stated_at = self.start
        node = self.node(word, attributes, inputs, stated, start)
        values = [node]
        if isinstance(node.type, TupleType):
            values = [Node.of(Item(i), (node,)) for i in range(len(node.type.items))]
        if not _same_types([v.type for v in values], stated):
            self.fail(
                f"{names[0][0]} has type {_show(v.type for v in values)}, the text says {_show(stated)}", stated_at
            )
        if len(names) != len(values):
            self.fail(f"{word} has {len(values)} results, the text names {len(names)}", names[-1][1])
        if m := _LOCATION.match(self.text, self.at):
            self.at = m.end()
            node.where = m[1].strip()
        for (name, at), value in zip(names, values, strict=True):
            value.label = None if name[1:].isdigit() else name[1:]
            value.where = node.where
            self.define(env, name, value, at)

    def operand(self, env: Mapping[str, Node], op: str, inputs: list[Node], attributes: dict[str, Any]) -> None:
        if name := self.accept(_VALUE):
            if attributes:
                self.fail(f"{name} stands after the attributes; values come first")
            inputs.append(env[name] if name in env else self.fail(f"{name} is not defined"))
            return
        key = self.expect(_WORD, "a value such as `%x` or an attribute such as `axis=0`")
        known = [f.name for f in fields(Op.registry[op])]
        if key not in known:
            self.fail(f"{op} has no attribute {key}; it has {', '.join(known) or 'none'}")
        if key in attributes:
            self.fail(f"attribute {key} is given twice")
        self.mark("=")
        attributes[key] = self.attribute()

    def node(
        self, word: str, attributes: dict[str, Any], inputs: list[Node], stated: list[TensorType], at: int
    ) -> Node:
        cls = Op.registry[word]
        if word == "const":
            attributes = {"value": self.constant(attributes["value"], stated[0], at), "type": stated[0]}
        missing = [f.name for f in fields(cls) if f.init and f.default is MISSING and f.name not in attributes]
        if missing:
            self.fail(f"{word} needs the attribute {missing[0]}", at)
        try:
            return Node.of(cls(**attributes), inputs)
        except TracejitError as e:
            self.fail(str(e), at)
        except (TypeError, ValueError, IndexError) as e:  # a wrong number of inputs, or an attribute of the wrong kind
            self.fail(f"{word} of {_show(i.type for i in inputs)} is malformed: {e}", at)

    def constant(self, value: Any, type: TensorType, at: int) -> Any:
        """The value as `type` holds it."""
        kind = type.dtype.kind
        if kind == "f" and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        fits = {"f": float, "b": bool}.get(kind, int)
        if isinstance(value, (bool, int, float)) and (
            isinstance(value, bool) != (kind == "b") or not isinstance(value, fits)
        ):
            self.fail(f"a constant of {type.dtype.name} cannot be {value}", at)
        return value

    # Types, dims and attributes

    def type(self) -> TensorType:
        text = self.expect(_TYPE, "a type such as f32[n, 3]")
        if (known := self.types.get(text)) is None:
            start, end = self.start, self.at
            self.at = start
            known = self.types[text] = self.new_type()
            self.start, self.at = start, end
        return known

    def new_type(self) -> TensorType:
        word = self.expect(_WORD, "a dtype")
        if word not in BY_NAME:
            self.fail(f"there is no dtype named {word}; there are {', '.join(BY_NAME)}")
        self.mark("[")
        dims: list[Extent] = []
        while self.more("]", first=not dims):
            dims.append(self.dim())
        device = self.accept(_DEVICE)
        return TensorType(BY_NAME[word], tuple(dims), device[1:] if device else "cpu")

    def type_list(self) -> list[TensorType]:
        out = [self.type()]
        while self.has(","):
            out.append(self.type())
        return out

    def dim(self) -> Extent:
        """A polynomial: terms joined by + and -."""
        total: Extent = 0
        sign = self.accept(_SIGN) or "+"
        while True:
            term = self.term()
            total = total - term if sign == "-" else total + term
            if (sign := self.accept(_SIGN)) is None:
                return total

    def term(self) -> Extent:
        out: Extent = 1
        while True:
            if number := self.accept(_NATURAL):
                out = out * int(number)
            else:
                symbol = Sym(self.expect(_WORD, "an extent: an integer or the name of a symbol"))
                power = int(self.expect(_NATURAL, "a power")) if self.has("^") else 1
                for _ in range(power):
                    out = out * symbol
            if not self.has("*"):
                return out

    def attribute(self) -> Any:
        if (text := self.accept(_STRING)) is not None:
            return json.loads(text)
        if self.has("["):
            entries: list[Any] = []
            while self.more("]", first=not entries):
                entries.append(self.attribute())
            return tuple(entries)
        if name := self.accept(_ARRAY):
            if name[1:] not in self.arrays:
                self.fail(f"array {name} is not among the arrays given")
            return self.arrays[name[1:]]
        if _KEYWORD["graph"].match(self.text, self.at):
            return self.graph()
        if _TYPE.match(self.text, self.at):
            return self.type()
        if (number := self.accept(_FLOAT)) is not None:
            return float(number)
        if (m := _WORD.match(self.text, self.at)) and m[1] in _LITERAL:
            self.start, self.at = m.start(1), m.end()
            return _LITERAL[m[1]]
        if _SIGN.match(self.text, self.at) or _NATURAL.match(self.text, self.at) or m:
            return self.dim()
        self.fail_expecting("an attribute: a number, word, string or [list]")


def _same_types(a: Sequence[Type], b: Sequence[Type]) -> bool:
    return len(a) == len(b) and all(map(same_type, a, b))


def _show(types: Iterable[Type]) -> str:
    return ", ".join(map(str, types)) or "()"

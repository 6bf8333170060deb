"""The instrumented copy of a code object: the same program, with a hook wherever Python meets mutable state.

A hook is a constant `H` whose `__getitem__` is a plain function: `LOAD_CONST H; SWAP 2; BINARY_SUBSCR` replaces the
value on top of the stack by `hook(value)`, at any stack depth. Hooks that want several operands get a tuple. They
return what the replaced instruction would have left, so behaviour is unchanged.

Deny by default: an opcode that is neither in `PLAIN` nor rewritten here makes the function not instrumentable. NULLs
are never left on the stack for a hook to find: a marker constant stands for them, and CALL hooks sort out who is
called.

Code constants inside are left alone: the functions made from them are instrumented when they are called, so no
instrumented code leaks into the user's objects.
"""

from __future__ import annotations

import inspect
import operator
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from tracejit.errors import NotCompilable, is_foreign
from tracejit.runtime.forks import building
from tracejit.trace import copies

if TYPE_CHECKING:
    from bytecode import Bytecode, Instr
    from bytecode.instr import CellVar, FreeVar

__all__ = ["HOOKS", "SUPPORTED", "forget", "instrument", "is_instrumented", "trusted"]

VERSION = sys.version_info[:2]
SUPPORTED = VERSION in ((3, 11), (3, 12), (3, 13)) and sys.implementation.name == "cpython"
_BAD_FLAGS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE

# Opcodes that touch only the stack, the frame's own variables and exact bools: left as they are.
_PLAIN = """
    NOP CACHE POP_TOP COPY SWAP LOAD_CONST LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_FAST_LOAD_FAST
    STORE_FAST STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST STORE_FAST_MAYBE_NULL DELETE_FAST LOAD_CLOSURE MAKE_CELL
    COPY_FREE_VARS RETURN_VALUE RETURN_CONST RETURN_GENERATOR SEND END_SEND END_FOR
    JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT JUMP JUMP_NO_INTERRUPT POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
    POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE
    BUILD_TUPLE BUILD_SLICE LIST_APPEND LIST_TO_TUPLE PUSH_EXC_INFO POP_EXCEPT RERAISE
    LOAD_ASSERTION_ERROR CLEANUP_THROW WITH_EXCEPT_START
"""
PLAIN = frozenset(_PLAIN.split())
# What every hook is called; `hooks.py` gives each its function.
_HOOKS = """
    load_global load_attr load_super store_attr delete_attr load_item store_subscript delete_subscript call call_kw
    call_ex call_super binary unary compare contains identical truth iterate delegate unpack update format format_value
    build_string import_name import_from make_function make_container reveal enter store_global store_cell load_cell
    yielded effect match catch throw turn advance
"""
HOOKS = frozenset(_HOOKS.split())
_INTRINSICS = ("INTRINSIC_LIST_TO_TUPLE", "INTRINSIC_STOPITERATION_ERROR")
_JUMPS_ON_BOOL = frozenset(
    f"POP_JUMP_{way}IF_{what}" for way in ("", "FORWARD_", "BACKWARD_") for what in ("TRUE", "FALSE")
)


class Null:
    """Stands for the NULL that CPython keeps beside a callable."""

    def __repr__(self) -> str:
        return "<NULL>"


NULL = Null()
_TABLE: dict[str, Any] = {}  # hook name -> the object whose subscript runs the hook
_copies: dict[int, tuple[weakref.ref[types.CodeType], types.CodeType | str]] = {}
_instrumented: dict[int, weakref.ref[types.CodeType]] = {}

_ARITHMETIC = {
    "ADD": "add", "SUBTRACT": "sub", "MULTIPLY": "mul", "TRUE_DIVIDE": "truediv", "FLOOR_DIVIDE": "floordiv",
    "REMAINDER": "mod", "POWER": "pow", "MATRIX_MULTIPLY": "matmul", "LSHIFT": "lshift", "RSHIFT": "rshift",
    "AND": "and_", "OR": "or_", "XOR": "xor",
}  # fmt: skip
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **{word: getattr(operator, name) for word, name in _ARITHMETIC.items()},
    **{f"INPLACE_{word}": getattr(operator, "i" + name.rstrip("_")) for word, name in _ARITHMETIC.items()},
}
UNARY = {"UNARY_NEGATIVE": operator.neg, "UNARY_INVERT": operator.invert, "UNARY_POSITIVE": operator.pos}
COMPARE = {name.upper(): getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}


def _sample(a: Any, *b: Any, k: int = 2, **more: Any) -> Any:
    """What the self-test runs: one of everything that differs between versions of Python."""
    total = [a, *b, k]
    for i, v in enumerate(b):
        total[0] += v * i if v > 1 and i else -v

    def inner(n: int) -> Any:
        nonlocal k
        k += n
        yield k
        got = yield from ([n], k)
        return got

    try:
        with_text = f"{a!r:>4}{more['x']:{k}d}"
        raise KeyError(with_text)
    except (KeyError, ValueError) as e:
        total.append(e.args[0])
    finally:
        total[1:2] = [{v: i for i, v in enumerate(b)}, {*b}, sum(v for v in b)]
    match more:
        case {"x": int(v), **rest} if not rest:
            total.append(v)
        case _:
            total.append(None)
    return total, list(inner(3)), (lambda u=a: u)(), b is not a, -a, total[-1] in b


def trusted() -> bool:
    """Whether instrumented code behaves as the original here: a version we know, and one that passes a self-test."""
    return SUPPORTED and _passes_self_test()


@cache
def _passes_self_test() -> bool:
    gil = getattr(sys, "_is_gil_enabled", None)
    if gil is not None and not gil():
        return False  # guards and code must not be interleaved with writers
    try:
        copy = types.FunctionType(instrument(_sample.__code__), _sample.__globals__, argdefs=_sample.__defaults__)
        copy.__kwdefaults__ = _sample.__kwdefaults__
        return repr(copy(3, 4, 5, x=6)) == repr(_sample(3, 4, 5, x=6))
    except Exception as e:
        if is_foreign(e):
            raise
        return False


def _load_bytecode() -> None:
    """Import the bytecode package: 46 ms that a program which compiles nothing should not pay."""
    global Bytecode, CellVar, FreeVar, Instr
    with building():
        from bytecode import Bytecode, Instr
        from bytecode.instr import CellVar, FreeVar


def install(hooks: Mapping[str, Callable[[Any], Any]]) -> None:
    """Give every name in HOOKS its function; done once, by `hooks.py`."""
    assert set(hooks) == set(HOOKS), set(hooks) ^ set(HOOKS)
    for name, fn in hooks.items():
        # staticmethod: the subscript runs `fn` itself, in a frame right above the instrumented one
        _TABLE[name] = type(name, (), {"__slots__": (), "__getitem__": staticmethod(fn)})()


def is_instrumented(code: types.CodeType) -> bool:
    """True for code objects made here."""
    ref = _instrumented.get(id(code))
    return ref is not None and ref() is code


def forget() -> None:
    """Drop all instrumented copies (for tests)."""
    _copies.clear()


def made(code: types.CodeType) -> types.CodeType | None:
    """The instrumented copy of `code`, if it was made before."""
    found = _copies.get(id(code))
    return found[1] if found is not None and found[0]() is code and not isinstance(found[1], str) else None


def instrument(code: types.CodeType) -> types.CodeType:
    """The instrumented copy of `code`, made once. Raises NotCompilable naming what is not understood."""
    found = _copies.get(id(code))
    if found is not None and found[0]() is code:
        copy = found[1]
    else:
        try:
            copy = _rewrite(code)
        except NotCompilable as e:
            copy = str(e)  # the words: an exception would keep its frames
        key = id(code)
        # By identity: equal code objects of two files are one dictionary key but two functions.
        _copies[key] = (weakref.ref(code, lambda _: _copies.pop(key, None)), copy)
    if isinstance(copy, str):
        raise NotCompilable(copy)
    return copy


def _rewrite(code: types.CodeType) -> types.CodeType:
    if not SUPPORTED:
        raise NotCompilable(f"Python {sys.version.split()[0]} is not one whose bytecode was tested")
    if code.co_flags & _BAD_FLAGS:
        raise NotCompilable(f"{code.co_qualname} is an async function")
    named = {"NULL": NULL, **_TABLE}
    new = copies.find(code, named)
    if new is None:
        new = _written(code)
        copies.keep(code, new, named)
    key = id(new)
    _instrumented[key] = weakref.ref(new, lambda _: _instrumented.pop(key, None))
    return new


def _written(code: types.CodeType) -> types.CodeType:
    if "Bytecode" not in globals():
        _load_bytecode()
    program = Bytecode.from_code(code)
    source = list(program)
    writer = _Writer(code, source, _heads(code, source))
    deeper = 0
    for i in range(len(writer.source)):
        before = len(writer.out)
        writer.step(i)
        effects = [x.stack_effect() for x in writer.out[before:] if isinstance(x, Instr)]
        deeper = max(deeper, sum(n for n in effects if n > 0))
    program[:] = writer.out
    if code.co_exceptiontable:
        return program.to_code()
    # At most what one instruction became pushes on top. To find the depth itself the library follows all paths, which
    # takes as long as all the rest.
    return program.to_code(stacksize=code.co_stacksize + deeper, compute_exception_stack_depths=False)


def _heads(code: types.CodeType, source: list[Any]) -> dict[int, int]:
    """The first instruction of each loop, where a jump goes back to, and its place among them."""
    if code.co_flags & (inspect.CO_GENERATOR | _BAD_FLAGS):
        return {}
    targets = {
        id(ins.arg)
        for ins in source
        if isinstance(ins, Instr) and "BACKWARD" in ins.name and "NO_INTERRUPT" not in ins.name
    }
    heads: dict[int, int] = {}
    is_head = False
    for i, ins in enumerate(source):
        is_head = is_head or id(ins) in targets
        if is_head and isinstance(ins, Instr):
            heads[i], is_head = len(heads), False
    return heads


class _Writer:
    """One pass over the instructions of a function."""

    def __init__(self, code: types.CodeType, source: list[Any], heads: Mapping[int, int]) -> None:
        self.code, self.source, self.heads = code, source, heads
        self.out: list[Any] = []
        self.keywords: tuple[str, ...] | None = None  # of the CALL that follows KW_NAMES
        self.location: Any = None

    def put(self, *instructions: Any) -> None:
        for i in instructions:
            self.out.append(i if isinstance(i, Instr) else Instr(*i, location=self.location))

    def hook(self, name: str, operands: int = 1, *constants: Any) -> None:
        """[x1 .. xn] -> [hook((x1, .., xn, *constants))]; with one operand and no constant, hook(x)."""
        for c in constants:
            self.put(("LOAD_CONST", c))
        if (n := operands + len(constants)) != 1:
            self.put(("BUILD_TUPLE", n))
        self.put(("LOAD_CONST", _TABLE[name]), ("SWAP", 2), ("BINARY_SUBSCR",))

    def note(self, name: str, constant: Any) -> None:
        """hook(constant), its result dropped."""
        self.put(("LOAD_CONST", _TABLE[name]), ("LOAD_CONST", constant), ("BINARY_SUBSCR",), ("POP_TOP",))

    def step(self, i: int) -> None:
        ins = self.source[i]
        if not isinstance(ins, Instr):  # labels, try blocks, line markers
            self.out.append(ins)
            return
        self.location = ins.location
        name, arg = ins.name, ins.arg
        if i in self.heads and name not in ("FOR_ITER", "SEND"):
            self.note("turn", self.heads[i])
        if name in PLAIN:
            self.put(ins)
        elif name in _JUMPS_ON_BOOL:
            self.hook("truth")
            self.put(ins)
        elif (rule := getattr(self, "_" + name.lower(), None)) is not None:
            rule(ins, arg, i)
        else:
            raise NotCompilable(f"{self.code.co_qualname} uses the instruction {name}")

    def _resume(self, ins: Any, arg: Any, i: int) -> None:
        self.put(ins)
        flags = self.code.co_flags
        if arg == 0 and flags & inspect.CO_VARKEYWORDS:  # the callee's **kwargs dict is new in every call
            at = self.code.co_argcount + self.code.co_kwonlyargcount + bool(flags & inspect.CO_VARARGS)
            name = self.code.co_varnames[at]
            cell = name in self.code.co_cellvars
            self.put(("LOAD_DEREF", CellVar(name)) if cell else ("LOAD_FAST", name))
            self.hook("make_container")
            self.put(("POP_TOP",))

    # -- names

    def _load_global(self, ins: Any, arg: Any, i: int) -> None:
        null, name = arg
        if null and VERSION < (3, 13):
            self.put(("LOAD_CONST", NULL))
        self.put(("LOAD_CONST", _TABLE["load_global"]), ("LOAD_CONST", name), ("BINARY_SUBSCR",))
        if null and VERSION >= (3, 13):
            self.put(("LOAD_CONST", NULL))

    def _push_null(self, ins: Any, arg: Any, i: int) -> None:
        self.put(("LOAD_CONST", NULL))

    def _store_global(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("store_global", 1, arg)
        self.put(ins)

    def _delete_global(self, ins: Any, arg: Any, i: int) -> None:
        self.put(ins)
        self.note("effect", f"assigns the global {arg!r}")

    def _store_deref(self, ins: Any, arg: Any, i: int) -> None:
        if isinstance(arg, FreeVar):  # a cell of a function around: fresh only if that frame is part of the recording
            self.put(("LOAD_CLOSURE", arg) if VERSION < (3, 13) else ("LOAD_FAST", arg))
            self.hook("store_cell", 2, arg.name)
        self.put(ins)

    def _load_deref(self, ins: Any, arg: Any, i: int) -> None:
        self.put(ins)
        if isinstance(arg, FreeVar) and arg.name != "__class__":
            self.put(("LOAD_CLOSURE", arg) if VERSION < (3, 13) else ("LOAD_FAST", arg))
            self.hook("load_cell", 2)

    def _delete_deref(self, ins: Any, arg: Any, i: int) -> None:
        if isinstance(arg, FreeVar):
            self.put(("LOAD_CONST", None))
            self._store_deref(Instr("POP_TOP", location=self.location), arg, i)
        self.put(ins)

    # -- attributes and items

    def _method(self, is_method: bool) -> None:
        """After an attribute: the NULL or self slot a method call expects."""
        if is_method:
            self.put(("LOAD_CONST", NULL))
            if VERSION < (3, 13):
                self.put(("SWAP", 2))

    def _load_attr(self, ins: Any, arg: Any, i: int) -> None:
        is_method, name = arg if isinstance(arg, tuple) else (False, arg)
        self.hook("load_attr", 1, name)
        self._method(is_method)

    def _load_method(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("load_attr", 1, arg)
        self._method(True)

    def _load_super_attr(self, ins: Any, arg: Any, i: int) -> None:  # [super, class, self]
        self.hook("load_super", 3, arg[-1])
        self._method(arg[0])

    def _store_attr(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("store_attr", 2, arg)
        self.put(("POP_TOP",))

    def _delete_attr(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("delete_attr", 1, arg)
        self.put(("POP_TOP",))

    def _binary_subscr(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("load_item", 2)

    def _binary_slice(self, ins: Any, arg: Any, i: int) -> None:
        self.put(("BUILD_SLICE", 2))
        self.hook("load_item", 2)

    def _store_subscr(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("store_subscript", 3)
        self.put(("POP_TOP",))

    def _store_slice(self, ins: Any, arg: Any, i: int) -> None:
        self.put(("BUILD_SLICE", 2))
        self.hook("store_subscript", 3)
        self.put(("POP_TOP",))

    def _delete_subscr(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("delete_subscript", 2)
        self.put(("POP_TOP",))

    # -- calls

    def _precall(self, ins: Any, arg: Any, i: int) -> None:
        pass  # only a cache slot of 3.11

    def _kw_names(self, ins: Any, arg: Any, i: int) -> None:
        self.keywords = tuple(arg)

    def _call(self, ins: Any, arg: Any, i: int) -> None:
        # n + 2 entries: (NULL, f, *args) or (f, self, *args); from 3.13 (f, NULL or self, *args)
        if arg == 0 and "__class__" in self.code.co_freevars and self.code.co_argcount and self._calls_super(i):
            first = self.code.co_varnames[0]
            load = "LOAD_FAST" if VERSION < (3, 12) else "LOAD_FAST_CHECK"
            self.put(
                ("LOAD_DEREF", FreeVar("__class__")),
                ("LOAD_DEREF", CellVar(first)) if first in self.code.co_cellvars else (load, first),
            )
            self.hook("call_super", 4)
            return
        self.put(("BUILD_TUPLE", arg + 2))
        self.hook("call", 1, self.keywords)
        self.keywords = None

    def _calls_super(self, i: int) -> bool:
        """Whether CALL 0 at `i` follows a load of the name `super`."""
        for ins in reversed(self.source[:i]):
            if isinstance(ins, Instr) and ins.name not in ("PRECALL", "CACHE"):
                if ins.name == "PUSH_NULL":
                    continue
                return ins.name == "LOAD_GLOBAL" and ins.arg[1] == "super"  # type: ignore[index]
        return False

    def _call_kw(self, ins: Any, arg: Any, i: int) -> None:
        self.put(("BUILD_TUPLE", arg + 3))
        self.hook("call_kw")

    def _call_function_ex(self, ins: Any, arg: Any, i: int) -> None:
        if not arg & 1:
            self.put(("LOAD_CONST", None))
        self.put(("BUILD_TUPLE", 4))
        self.hook("call_ex")

    # -- operators

    def _binary_op(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("binary", 2, BINARY[arg.name])

    def _unary(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("unary", 1, UNARY[ins.name])

    _unary_negative = _unary_invert = _unary_positive = _unary

    def _unary_not(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("truth")
        self.put(("UNARY_NOT",))

    def _to_bool(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("truth")

    def _jump_if_or_pop(self, ins: Any, arg: Any, i: int) -> None:
        which = "TRUE" if "TRUE" in ins.name else "FALSE"
        self.put(("COPY", 1))
        self.hook("truth")
        self.put((f"POP_JUMP_FORWARD_IF_{which}", arg), ("POP_TOP",))

    _jump_if_true_or_pop = _jump_if_false_or_pop = _jump_if_or_pop

    def _compare_op(self, ins: Any, arg: Any, i: int) -> None:
        word, _, cast = arg.name.partition("_")
        self.hook("compare", 2, COMPARE[word])
        if cast:
            self.hook("truth")

    def _contains_op(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("contains", 2, bool(int(arg)))

    def _is_op(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("identical", 2, bool(int(arg)))

    # -- iteration, unpacking, text

    def _get_iter(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("iterate")
        self.put(ins)

    def _for_iter(self, ins: Any, arg: Any, i: int) -> None:
        self.put(ins)
        if i in self.heads:  # [iterator, value]: what it gave may be counted
            self.put(("COPY", 2), ("SWAP", 2))
            self.hook("advance", 2, self.heads[i])

    def _yield_value(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("yielded")
        self.put(ins)

    def _get_yield_from_iter(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("delegate")
        self.put(ins)

    def _unpack_sequence(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("unpack")
        self.put(ins)

    def _unpack_ex(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("unpack")
        self.put(ins, ("COPY", (arg & 0xFF) + 1))  # the list of the starred target is new
        self.hook("make_container")
        self.put(("POP_TOP",))

    def _update(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("update")
        self.put(ins)

    _list_extend = _set_update = _dict_update = _dict_merge = _update

    def _build_string(self, ins: Any, arg: Any, i: int) -> None:
        self.put(("BUILD_TUPLE", arg))
        self.hook("build_string")

    def _format_value(self, ins: Any, arg: Any, i: int) -> None:
        # arg: a conversion and a flag for "a format spec is on the stack", an int or a pair of both
        flags = arg if isinstance(arg, int) else int(arg[1]) | (4 if arg[0] else 0)
        if flags & 4:
            self.hook("format_value", 2, flags & 3)
        else:
            self.hook("format_value", 1, "", flags & 3)

    def _format_simple(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("format_value", 1, "", 0)

    def _convert_value(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("format_value", 1, None, int(arg))

    def _format_with_spec(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("format_value", 2, 0)

    def _call_intrinsic_1(self, ins: Any, arg: Any, i: int) -> None:
        if arg.name == "INTRINSIC_UNARY_POSITIVE":
            self.hook("unary", 1, operator.pos)
        elif arg.name in _INTRINSICS:
            self.put(ins)
        else:
            raise NotCompilable(f"{self.code.co_qualname} uses {arg.name}")

    def _set_add(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("reveal")
        self.put(ins)

    def _map_add(self, ins: Any, arg: Any, i: int) -> None:  # [key, value]
        self.put(("SWAP", 2))
        self.hook("reveal")
        self.put(("SWAP", 2), ins)

    # -- what is made

    def _made(self, ins: Any, arg: Any, i: int) -> None:
        self.put(ins)
        self.hook("make_container")

    _build_list = _build_map = _build_set = _build_const_key_map = _made

    def _make_function(self, ins: Any, arg: Any, i: int) -> None:
        self.put(ins)
        self.hook("make_function")

    _set_function_attribute = _make_function

    def _load_build_class(self, ins: Any, arg: Any, i: int) -> None:
        self.note("effect", "makes a class")
        self.put(ins)

    # -- imports, with, match, except

    def _import_name(self, ins: Any, arg: Any, i: int) -> None:
        self.note("import_name", arg)
        self.put(ins)

    def _import_from(self, ins: Any, arg: Any, i: int) -> None:
        self.put(("COPY", 1))
        self.hook("import_from", 1, arg)

    def _before_with(self, ins: Any, arg: Any, i: int) -> None:  # [manager] -> [exit, entered]
        self.hook("enter")
        self.put(("UNPACK_SEQUENCE", 2))

    def _match_class(self, ins: Any, arg: Any, i: int) -> None:  # [subject, class, names]
        self.put(("BUILD_TUPLE", 3))
        self.hook("match")
        self.put(("UNPACK_SEQUENCE", 3), ("SWAP", 3), ins)

    def _match_keys(self, ins: Any, arg: Any, i: int) -> None:  # [subject, keys] both stay
        self.put(("SWAP", 2))
        self.hook("format")
        self.put(("SWAP", 2), ins)

    def _match_sequence(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("unpack")
        self.put(ins)

    _match_mapping = _get_len = _match_sequence

    def _raise_varargs(self, ins: Any, arg: Any, i: int) -> None:
        if arg == 2:  # [exception, cause]
            self.put(("SWAP", 2))
        if arg:
            self.hook("throw")
        if arg == 2:
            self.put(("SWAP", 2))
        self.put(ins)

    def _check_exc_match(self, ins: Any, arg: Any, i: int) -> None:
        self.hook("catch")
        self.put(ins)

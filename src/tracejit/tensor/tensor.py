"""What users hold: a handle on an array, with a gradient tape behind it and the recorder listening.

Every op is one path, `apply`: compute on NumPy, note views, tape for autograd, tell the open recording. Every
in-place op is a functional op followed by `assign`; that one function keeps views, versions, gradients and
recordings right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tracejit import config
from tracejit.errors import AutogradError, DTypeError, InPlaceError, OpError, is_foreign
from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType
from tracejit.ir.node import Value, binary, cast, expand_to
from tracejit.ir.op import Array, Op
from tracejit.ir.types import TensorType
from tracejit.tensor import autograd
from tracejit.tensor.kernels import evaluate
from tracejit.tensor.tape import VIEW_OPS, GradNode, OpNode, preserve, user_line
from tracejit.trace import recorder as recording

__all__ = ["Size", "Tensor", "Version", "apply", "assign", "overwrite"]

DIVIDES = ("floordiv", "mod")
modes = config.modes


class Size(tuple[int, ...]):
    """A shape: a tuple of ints with PyTorch's `numel`."""

    __slots__ = ()

    def numel(self) -> int:
        """Number of elements."""
        n = 1
        for d in self:
            n *= d
        return n

    def __repr__(self) -> str:
        return f"tracejit.Size({list(self)})"


class Version:
    """How often the memory shared by some tensors was written in place, and where last."""

    __slots__ = ("n", "where")

    def __init__(self) -> None:
        self.n = 0
        self.where: str | None = None


@lru_cache(4096)
def type_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> TensorType:
    """The IR type of arrays of this dtype and shape; cached, since every eager op asks (1.9 us without, 0.4 us
    with)."""
    return TensorType(dt.from_numpy(dtype), one_object(shape))  # type: ignore[arg-type]


@lru_cache(4096)
def one_object(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape`, the same object for equal ones, so that broadcasting sees at a glance that nothing is to be done."""
    return shape


def _arithmetic(name: str) -> tuple[Any, Any]:
    """The operators `self op other` and `other op self`: `binary`, with short cuts for what eager code does most.

    Equal float types need no promotion (measured: 26 us through `binary`, 8 us here), and a Python number stays a
    rank-0 operand, since NumPy broadcasts it; the recorder expands it.
    """

    def forward(self: Tensor, other: Any) -> Any:
        a = self._array
        if a.dtype.kind == "f":
            if isinstance(other, Tensor):
                b = other._array
                if a.dtype is b.dtype and a.shape == b.shape:
                    return apply(Op.registry[name](), (self, other))
            elif type(other) in (int, float):
                return apply(Op.registry[name](), (self, _number(self, other)))
        return binary(name, self, other)

    def reflected(self: Tensor, other: Any) -> Any:
        if self._array.dtype.kind == "f" and type(other) in (int, float):
            return apply(Op.registry[name](), (_number(self, other), self))
        return binary(name, other, self)

    return forward, reflected


def _number(like: Tensor, value: float) -> Tensor:
    return apply(Op.registry["const"](value, TensorType(like.dtype, ())), ())  # type: ignore[call-arg]


class _Guarded(Value):
    """What guards ask of every tensor, in words that lie behind its class, in this order: one comparison for all."""

    __slots__ = ("_array", "_leaf_requires_grad", "_parent")


class Tensor(_Guarded):
    """A multi-dimensional array with PyTorch's manners.

    Build tensors with `tracejit.tensor`, `zeros`, `from_numpy`, ...; `Tensor(array)` wraps an ndarray without copying.
    """

    __slots__ = (
        "__weakref__",
        "_grad",
        "_grad_fn",
        "_hooks",
        "_index",
        "_seen",
        "_version",
        "_view",
    )
    __hash__ = object.__hash__  # type: ignore[assignment]

    if TYPE_CHECKING:  # what `methods.py` gives

        def __getitem__(self, index: Any) -> Tensor: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

    _array: Array
    _version: Version
    _parent: Tensor | None  # the tensor this one is a view of ...
    _view: Op | None  # ... and the op that makes it one
    _seen: int  # the version for which `_grad_fn` of a view is right
    _leaf_requires_grad: bool
    _grad: Tensor | None
    _grad_fn: GradNode | None
    _index: int  # which result of `_grad_fn` this is
    _hooks: dict[int, Any] | None  # of a leaf: on its gradient, and `PostAccumulate` ones

    def __init__(self, array: Any = None, *, requires_grad: bool = False) -> None:
        array = np.zeros(0, dt.default().numpy) if array is None else array
        if not isinstance(array, np.ndarray):
            raise TypeError(f"Tensor() wraps an ndarray, got {type(array).__name__}; use tracejit.tensor(data)")
        if dt.from_numpy(array.dtype) is None:
            raise DTypeError(
                f"arrays of {array.dtype} are not supported; use one of {', '.join(d.long for d in dt.ALL)}"
            )
        fill(self, array.view(np.ndarray))  # an array object of our own: the user may reshape theirs in place
        self._leaf_requires_grad = requires_grad

    # -- what it is

    @property
    def type(self) -> TensorType:
        """The IR type: dtype and shape."""
        if (r := recording.active()) is not None and r.scope and (shape := r.shape_of(self)) is not None:
            return TensorType(self.dtype, shape)
        return type_of(self._array.dtype, self._array.shape)

    @property
    def shape(self) -> Size:
        """Extents, as a `Size`."""
        if (r := recording.active()) is not None and r.scope and (shape := r.shape_of(self)) is not None:
            return Size(shape)
        return Size(self._array.shape)

    @property
    def dtype(self) -> DType:
        """Element type."""
        return dt.from_numpy(self._array.dtype)  # type: ignore[return-value]

    @property
    def device(self) -> Device:
        """Where the data lives."""
        return CPU

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._array.ndim

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._array.itemsize

    @property
    def is_leaf(self) -> bool:
        """True where no recorded op made this tensor."""
        return not self.requires_grad or self.grad_fn is None

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are computed for this tensor."""
        value = self._leaf_requires_grad or current_grad_fn(self) is not None
        if (r := recording.active()) is not None:
            return r.read_slot(self, "requires_grad", value)
        return value

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Ask for gradients (or stop asking) on this leaf. Raises AutogradError on a non-leaf, DTypeError on
        integers."""
        if requires_grad and not self.dtype.is_floating_point:
            raise DTypeError(f"only floating point tensors can require gradients, this one is {self.dtype}")
        if self._grad_fn is not None:
            if requires_grad:
                return self
            raise AutogradError("requires_grad can be cleared on leaf tensors only; use detach()")
        if (r := recording.active()) is not None:
            r.write_slot(self, "requires_grad", requires_grad)
        self._leaf_requires_grad = bool(requires_grad)
        return self

    @property
    def grad_fn(self) -> GradNode | None:
        """The tape entry that made this tensor, None for leaves."""
        return current_grad_fn(self)

    @property
    def grad(self) -> Tensor | None:
        """The gradient accumulated by `backward()`."""
        if (r := recording.active()) is not None:
            return r.read_slot(self, "grad", self._grad)
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]  # users may pass anything
                raise TypeError(f"grad must be a Tensor or None, got {type(value).__name__}")
            if value._array.shape != self._array.shape:
                raise OpError(f"grad of {value.type} does not fit a tensor of {self.type}")
        if (r := recording.active()) is not None:
            r.write_slot(self, "grad", value)
        self._grad = value

    @property
    def data(self) -> Tensor:
        """The same memory without gradient history."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if (r := recording.active()) is not None:
            r.refuse("assigns .data of a tensor")
        self._array = value._array
        self._version = value._version
        self._parent = self._view = None
        self._version.n += 1

    # -- ops

    def emit(self, op: Op, inputs: Sequence[Tensor]) -> Any:
        return apply(op, inputs)

    def compose(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], check: Any = None) -> Any:
        from tracejit.tensor.composite import compose

        return compose(fn, args, kwargs, check)

    def beside(self, value: Any, dtype: DType, shape: Any) -> Any:
        return apply(Op.registry["const"](value, type_of(dtype.numpy, ())), ())  # type: ignore[call-arg]  # NumPy broadcasts it

    def __eq__(self, other: object) -> Any:
        return binary("eq", self, other)

    def __ne__(self, other: object) -> Any:
        out = binary("eq", self, other)
        return out if out is NotImplemented else ~out

    # -- gradients

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Sequence[Tensor] | None = None,
    ) -> None:
        """Accumulate d self / d leaf into `.grad` of every leaf. `gradient` is required unless self has one element."""
        autograd.backward([self], [gradient], retain_graph, create_graph, inputs)

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> autograd.Handle:
        """Call `hook(grad)` when this tensor's gradient is known; a returned tensor replaces it."""
        return autograd.register_hook(self, hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> autograd.Handle:
        """Call `hook(self)` after a backward pass has added to `.grad` of this leaf."""
        return autograd.register_post_accumulate_grad_hook(self, hook)

    def detach(self) -> Tensor:
        """The same memory, cut off from the gradient tape."""
        return apply(Op.registry["stop_gradient"](), (self,))

    def detach_(self) -> Self:
        """Cut this tensor off from the tape."""
        self._grad_fn, self._leaf_requires_grad = None, False
        return self

    def retain_grad(self) -> None:
        """Keep the gradient of a non-leaf in `.grad`."""
        if self._grad_fn is not None:
            autograd.retain_grad(self)

    # -- looking at data: these end up as value guards of a recording

    def item(self) -> Any:
        """The only element as a Python number. Raises RuntimeError where there is not exactly one."""
        if self._array.size != 1:
            raise OpError(f"item() wants one element, this tensor is {self.type}")
        value = self._array.item() if self.dtype is not dt.bfloat16 else float(self._array.reshape(()))
        return self._looked("item", value)

    def tolist(self) -> Any:
        """Nested lists of Python numbers; a number for rank 0."""
        a = self._array.astype(np.float32) if self.dtype is dt.bfloat16 else self._array
        return self._looked("tolist", a.tolist())

    def numpy(self, *, force: bool = False) -> Array:
        """An ndarray sharing this tensor's memory. Raises AutogradError where gradients are asked for, unless
        `force`."""
        if self.requires_grad and not force:
            raise AutogradError("a tensor that requires grad has no numpy() view; use x.detach().numpy()")
        if (r := recording.active()) is not None:
            r.refuse("hands a tensor's memory to NumPy")
        return self._array.view()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if (r := recording.active()) is not None:
            r.refuse("hands a tensor's memory to NumPy")
        out = self._array if dtype is None else self._array.astype(dtype, copy=False)
        return out.copy() if copy else out.view()

    def __bool__(self) -> bool:
        if self._array.size != 1:
            raise OpError(f"the truth value of {self.type} is ambiguous; use any() or all()")
        return self._looked("bool", bool(self._array.reshape(())))

    def __int__(self) -> int:
        return int(self._looked("int", int(self._one("int"))))

    def __float__(self) -> float:
        return float(self._looked("float", float(self._one("float"))))

    def __index__(self) -> int:
        if self.dtype.is_floating_point:
            raise DTypeError(f"only integer tensors of one element can be an index, this one is {self.type}")
        return int(self._looked("index", int(self._one("an index"))))

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self._array.ndim == 0 else format(str(self), spec)

    def __len__(self) -> int:
        if not self._array.ndim:
            raise TypeError("len() of a tensor of rank 0")
        return self._array.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self._array.ndim:
            raise TypeError("iteration over a tensor of rank 0")
        return (self[i] for i in range(int(self.shape[0])))

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def _one(self, what: str) -> Any:
        if self._array.size != 1:
            raise OpError(f"only tensors of one element convert to {what}, this one is {self.type}")
        return self._array.reshape(())

    def _looked(self, kind: str, value: Any) -> Any:
        r = recording.active()
        return value if r is None else r.look(kind, self, value)

    def __repr__(self) -> str:
        if (r := recording.active()) is not None:
            r.refuse("shows a tensor as text")
        from tracejit.tensor.printing import format_tensor

        return format_tensor(self)

    # -- copies

    def clone(self, *, memory_format: Any = None) -> Tensor:
        """A copy that gradients flow through."""
        return apply(_copy_op(), (self,))

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self._grad_fn is not None:
            raise AutogradError("only leaf tensors can be deep-copied; use clone() or detach()")
        if (r := recording.active()) is not None:
            r.refuse("deep-copies a tensor")
        out = object.__new__(type(self))
        fill(out, self._array.copy())
        out._leaf_requires_grad = self._leaf_requires_grad
        memo[id(self)] = out
        if hasattr(self, "__dict__"):
            out.__dict__.update(self.__dict__)
        return out

    def __reduce__(self) -> Any:
        return rebuild_tensor, (type(self), np.ascontiguousarray(self._array), self._leaf_requires_grad)

    __add__, __radd__ = _arithmetic("add")
    __sub__, __rsub__ = _arithmetic("sub")
    __mul__, __rmul__ = _arithmetic("mul")
    __truediv__, __rtruediv__ = _arithmetic("div")
    __lt__, __gt__ = _arithmetic("lt")
    __le__, __ge__ = _arithmetic("le")


class Device:
    """A device name such as `cpu`; compares with strings."""

    __slots__ = ("index", "type")

    def __init__(self, type: str = "cpu", index: int | None = None) -> None:
        name, _, number = str(type).partition(":")
        if name not in ("cpu", "cuda"):
            raise ValueError(f"no device {type!r}; devices are cpu and cuda")
        self.type = name
        self.index = int(number) if number else index

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __repr__(self) -> str:
        return (
            f"device(type={self.type!r})" if self.index is None else f"device(type={self.type!r}, index={self.index})"
        )

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


CPU = Device()


def rebuild_tensor(cls: type[Tensor], array: Array, requires_grad: bool) -> Tensor:
    """A tensor from its pickled parts (worker processes send tensors; files never hold pickles)."""
    out = object.__new__(cls)
    fill(out, array)
    out._leaf_requires_grad = requires_grad
    return out


def fill(t: Tensor, array: Array) -> Tensor:
    """Make `t` a leaf over `array`."""
    t._array = array
    t._version = Version()
    t._parent = t._view = None
    t._seen = 0
    t._leaf_requires_grad = False
    t._grad = None
    t._grad_fn = None
    t._index = 0
    t._hooks = None
    return t


def wrap(array: Any) -> Tensor:
    """A leaf over `array`, no questions asked."""
    return fill(object.__new__(Tensor), array if type(array) is np.ndarray else np.asarray(array))


def _copy_op() -> Op:
    return Op.registry["copy"]()


def current_grad_fn(t: Tensor) -> GradNode | None:
    """The tape entry of `t`, made anew where `t` is a view whose memory was written since."""
    if t._parent is None or t._seen == t._version.n:
        return t._grad_fn
    chain = [t]
    while (p := chain[-1]._parent) is not None and p._seen != p._version.n and p._parent is not None:
        chain.append(p)
    for v in reversed(chain):
        p = v._parent
        assert p is not None and v._view is not None
        if v._view.name != "stop_gradient":
            needs = p._grad_fn is not None or p._leaf_requires_grad
            if needs and (r := recording.active()) is not None and r.is_window(v):
                r.stay(r.builder.views[id(v)])
            v._grad_fn = OpNode(v._view, (p,), (v,)) if needs else None
            v._index = 0
        v._seen = v._version.n
    return t._grad_fn


def needs_grad(t: Tensor) -> bool:
    """`requires_grad` as the tape sees it, without telling a recording."""
    return t._leaf_requires_grad or (t._grad_fn is not None if t._parent is None else current_grad_fn(t) is not None)


def apply(op: Op, inputs: Sequence[Tensor]) -> Any:
    """`op` on tensors: computed now, taped where a gradient is asked for, recorded where a recording is open."""
    if op.name in DIVIDES and inputs[1]._array.dtype.kind in "iu":
        check_divisor(op, inputs[1])
    recorded, r = op, recording.active()
    if r is not None:
        recorded, op = r.split(op)
    try:
        out = evaluate(op, [t._array for t in inputs])
    except (AutogradError, OpError, IndexError):
        raise
    except Exception as e:
        if isinstance(e, MemoryError) or is_foreign(e):
            raise
        op.infer(*(t.type for t in inputs))  # says better what is wrong, where it can
        raise
    results = tuple(map(wrap, out)) if type(out) is tuple else (wrap(out),)
    if op.name in VIEW_OPS:
        link_view(results[0], inputs[0], op)
        if recorded is not op and results[0]._view is op:
            r.builder.views[id(results[0])] = recorded  # type: ignore[union-attr]
    if modes.grad and op.name != "stop_gradient":
        for t in inputs:
            if needs_grad(t):
                entry = tape(op, inputs, results)
                if recorded is not op and entry is not None:
                    r.builder.rules[id(entry)] = recorded  # type: ignore[union-attr]
                break
    if r is not None:
        r.emit(recorded, inputs, results)
    return results if type(out) is tuple else results[0]


def check_divisor(op: Op, divisor: Tensor) -> None:
    """Raise OpError for an integer division by zero; a recording checks it in the compiled call as well."""
    if (divisor._array == 0).any():
        raise OpError(f"{op.name} by zero: integers have no value for it; divide floats, or mask the zeros first")
    if recording.active() is not None and divisor._array.size:
        axes = tuple(range(divisor._array.ndim))
        fits = divisor != 0
        bool(apply(Op.registry["reduce_min"](axes), (fits,)) if axes else fits)  # type: ignore[call-arg]


def apply_node(op: Op, inputs: Sequence[Any], node: Any) -> Any:
    """`apply` for `ir.graph.evaluate`."""
    return inputs[0][op.index] if op.name == "item" else apply(op, inputs)  # type: ignore[attr-defined]


def tape(op: Op, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> OpNode | None:
    """Give the floating point results of `op` a tape entry."""
    if any(t._array.dtype.kind in "fV" for t in results):
        node = OpNode(op, inputs, results)
        for i, t in enumerate(results):
            if t.dtype.is_floating_point:
                t._grad_fn, t._index = node, i
        return node
    return None


def link_view(view: Tensor, parent: Tensor, op: Op) -> None:
    """Note that `view` shares memory with `parent` if it does."""
    a, p = view._array, parent._array
    if a is p:
        view._array = a = p.view()
    if a.base is p or (a.base is not None and (a.base is p.base or np.may_share_memory(a, p))):
        view._version = parent._version
        view._parent, view._view = parent, op
        view._seen = view._version.n


def assign(target: Tensor, value: Any) -> Tensor:
    """Write `value` (tensor or number, broadcast and cast) into the memory of `target`; the heart of every in-place op.

    Raises InPlaceError for a leaf that requires grad (outside `no_grad`) and for overlapping (expanded) memory,
    OpError where shapes or dtype kinds do not fit. Nothing is written when it raises.
    """
    if not isinstance(value, Tensor):
        value = wrap_scalar(target, value)
    if modes.grad and (target._leaf_requires_grad or (needs_grad(target) and _root(target)._leaf_requires_grad)):
        raise InPlaceError(
            "a leaf tensor that requires grad was written in place; write it under no_grad(), or out of place"
        )
    if modes.grad and (rule := _handed_back(target)) is not None:
        raise InPlaceError(
            f"the result of {rule}, which is its argument handed back, was written in place; return a clone()"
        )
    if overlaps(target._array):
        raise InPlaceError(f"cannot write into an expanded tensor ({target.type}): several elements share memory")
    if not target._array.flags.writeable:
        raise InPlaceError("cannot write into a read-only tensor; clone() it first")
    if "biuf".index(_kind(value)) > "biuf".index(_kind(target)) and not (
        _kind(value) in "iu" and _kind(target) in "iu"
    ):
        raise OpError(f"result of type {value.dtype} cannot be written into a tensor of {target.dtype}")
    value = expand_to(cast(value, target.dtype), target.shape)
    r = recording.active()
    taped = modes.grad and (needs_grad(value) or needs_grad(target))
    if taped and target._parent is None and not needs_grad(value):
        # What had a gradient keeps one, of zeros: the overwritten tensor still requires grad.
        never = apply(Op.registry["const"](False, TensorType(dt.bool_, target.shape)), ())  # type: ignore[call-arg]
        value = apply(Op.registry["select"](), (never, target, value))
    if taped and value._grad_fn is None and needs_grad(value):
        value = value.clone()  # a leaf written into other memory: its tape entry is a copy
    levels = [(target, value)]
    if taped or r is not None:
        levels += _written_parents(target, value, None if taped else r)
    source = value._array
    if np.may_share_memory(source, target._array):
        source = source.copy()
    np.copyto(target._array, source)
    version = target._version
    version.n += 1
    version.where = user_line()
    for t, v in levels:
        if r is not None:
            r.assign(t, v, taped)
        if taped:
            t._grad_fn, t._index = v._grad_fn, v._index
            taped = t._view is None or t._view.name != "stop_gradient"  # the tape does not reach past a detach
    t: Tensor | None = target
    while t is not None:  # the written tensor and what it is a view of are up to date; siblings are not
        t._seen = version.n
        t = t._parent
    return target


def _handed_back(t: Tensor | None) -> str | None:
    """The custom rule that made `t`, or what it is a view of, by handing an argument back."""
    while t is not None:
        if t._grad_fn is not None and t._index in t._grad_fn.aliased:
            return t._grad_fn.name
        t = None if t._view is None or t._view.name == "stop_gradient" else t._parent
    return None


def overwrite(target: Tensor, result: Tensor) -> Tensor:
    """Write `result`, just computed from `target`, into it; what the gradient needs of the old value is kept."""
    if result._grad_fn is not None:
        fn = current_grad_fn(target)
        preserve(target, result, 0 if fn is None else fn.seq + 1)
    return assign(target, result)


def overlaps(a: Array) -> bool:
    """Whether several elements of `a` share memory, as an expanded axis makes them."""
    return 0 in a.strides and a.size > 0 and any(s == 0 and d > 1 for s, d in zip(a.strides, a.shape, strict=True))


def _written_parents(target: Tensor, value: Tensor, r: Any) -> list[tuple[Tensor, Tensor]]:
    """(tensor, its value after the write) for everything `target` is a view of, nearest first.

    With a recording only as far as it knows these tensors: what it has not read yet is just noted.
    """
    out: list[tuple[Tensor, Tensor]] = []
    while (p := target._parent) is not None:
        if r is not None and not r.builder.knows(p):
            r.builder.write_through(p)
            break
        assert target._view is not None
        r = recording.active()
        view = target._view if r is None else r.builder.views.get(id(target)) or target._view
        value = put(view, shadow(p), value)
        out.append((p, value))
        target = p
    return out


def _kind(t: Tensor) -> str:
    return t.dtype.kind


def _root(t: Tensor) -> Tensor:
    while t._parent is not None:
        t = t._parent
    return t


def shadow(t: Tensor) -> Tensor:
    """Another handle on `t` as it is now, so that its tape entry can move on."""
    out = wrap(t._array)
    out._version, out._grad_fn, out._index = t._version, current_grad_fn(t), t._index
    out._leaf_requires_grad = t._leaf_requires_grad
    if (r := recording.active()) is not None:
        r.alias(out, t)
    return out


def alias(t: Tensor) -> Tensor:
    """A view of all of `t`, cut off from its place on the tape."""
    out = wrap(t._array)
    link_view(out, t, Op.registry["stop_gradient"]())
    if (r := recording.active()) is not None:
        r.alias(out, t)
    return out


def put(view: Op, parent: Tensor, value: Tensor) -> Tensor:
    """`parent` after `view(parent)` was overwritten by `value`: each view op read backwards."""
    v: Any = view
    match view.name:
        case "stop_gradient":
            return value
        case "reshape":
            return Op.registry["reshape"](tuple(parent.shape))(value)  # type: ignore[call-arg]
        case "transpose":
            return Op.registry["transpose"](tuple(int(i) for i in np.argsort(v.perm)))(value)  # type: ignore[call-arg]
        case "flip":
            return view(value)
        case "window":
            return v.put(parent, value, apply)
        case "slice":
            return Op.registry["update_slice"](v.starts, v.strides)(parent, value)  # type: ignore[call-arg]
        case _:
            raise InPlaceError(f"cannot write into the result of {view.name}: several elements may share memory")


def wrap_scalar(like: Tensor, value: Any) -> Tensor:
    """A Python number as a rank-0 tensor: of the dtype of `like` where its kind allows."""
    if not isinstance(value, (bool, int, float, np.generic)):
        raise TypeError(f"expected a tensor or a number, got {type(value).__name__}")
    value = value.item() if isinstance(value, np.generic) else value
    kind = "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "f"
    d = (
        like.dtype
        if "biuf".index(kind) <= "biuf".index(like.dtype.kind)
        else (dt.int64 if kind == "i" else dt.default())
    )
    return apply(Op.registry["const"](value, TensorType(d, ())), ())  # type: ignore[call-arg]

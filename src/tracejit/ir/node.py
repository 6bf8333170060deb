"""A Node is an operation and the SSA value it defines; `Value` is what gives `+ - * @` to Nodes and Tensors alike.

Nodes point only at their inputs, are never changed after creation, and are compared by identity. `id` grows with
creation, so sorting by id is a topological order.

`Value`'s operators insert the explicit casts and broadcasts the IR asks for. They find ops by name in `Op.registry`, so
this module knows words, not classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Self

from tracejit.errors import OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Extent, Shape, same
from tracejit.ir.dtype import DType, promote
from tracejit.ir.op import Item, Op
from tracejit.ir.types import TensorType, TupleType, Type

__all__ = ["Node", "Scalar", "Value", "binary", "broadcast_shapes", "common_dtype", "constant", "expand_to"]

Scalar = bool | int | float
_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2}


class Value:
    """The operators. A domain (Node, Tensor) defines `emit` and `type`; everything else follows."""

    __slots__ = ()
    __array_priority__ = 1000  # np.ndarray + Value asks the Value

    @property
    def type(self) -> Any:
        """The value's TensorType."""
        raise NotImplementedError

    def emit(self, op: Op, inputs: Sequence[Any]) -> Any:
        """Apply `op` in this value's domain. `self` only chooses the domain, so ops without inputs work too."""
        raise NotImplementedError

    def beside(self, value: Scalar, dtype: DType, shape: Shape) -> Any:
        """A number as the operand of a pointwise op whose other operands have `shape`; eager code need not expand
        it."""
        return expand_to(constant(self, value, dtype), shape)

    def compose(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], check: Any = None) -> Any:
        """fn(*args, **kwargs), composed of ops; a domain may make one op of it, after check(...)."""
        return fn(*args, **kwargs)

    def __neg__(self) -> Self:
        return self.emit(Op.registry["neg"](), (self,))

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        return self.emit(Op.registry["abs"](), (self,))

    def __invert__(self) -> Self:
        return self.emit(Op.registry["bit_not"](), (self,))

    def __add__(self, other: Any) -> Self:
        return binary("add", self, other)

    def __radd__(self, other: Any) -> Self:
        return binary("add", other, self)

    def __sub__(self, other: Any) -> Self:
        return binary("sub", self, other)

    def __rsub__(self, other: Any) -> Self:
        return binary("sub", other, self)

    def __mul__(self, other: Any) -> Self:
        return binary("mul", self, other)

    def __rmul__(self, other: Any) -> Self:
        return binary("mul", other, self)

    def __truediv__(self, other: Any) -> Self:
        return binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Self:
        return binary("div", other, self)

    def __floordiv__(self, other: Any) -> Self:
        return binary("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Self:
        return binary("floordiv", other, self)

    def __mod__(self, other: Any) -> Self:
        return binary("mod", self, other)

    def __rmod__(self, other: Any) -> Self:
        return binary("mod", other, self)

    def __pow__(self, other: Any) -> Self:
        return binary("pow", self, other)

    def __rpow__(self, other: Any) -> Self:
        return binary("pow", other, self)

    def __and__(self, other: Any) -> Self:
        return binary("bit_and", self, other)

    def __rand__(self, other: Any) -> Self:
        return binary("bit_and", other, self)

    def __or__(self, other: Any) -> Self:
        return binary("bit_or", self, other)

    def __ror__(self, other: Any) -> Self:
        return binary("bit_or", other, self)

    def __xor__(self, other: Any) -> Self:
        return binary("bit_xor", self, other)

    def __rxor__(self, other: Any) -> Self:
        return binary("bit_xor", other, self)

    def __lshift__(self, other: Any) -> Self:
        return binary("shift_left", self, other)

    def __rshift__(self, other: Any) -> Self:
        return binary("shift_right", self, other)

    def __lt__(self, other: Any) -> Self:
        return binary("lt", self, other)

    def __le__(self, other: Any) -> Self:
        return binary("le", self, other)

    def __gt__(self, other: Any) -> Self:
        return binary("lt", other, self)

    def __ge__(self, other: Any) -> Self:
        return binary("le", other, self)

    def __matmul__(self, other: Any) -> Any:
        raise NotImplementedError  # `ops.composed.matmul` installs the broadcasting form on its domains

    # `==` and `!=` are elementwise on Tensors only: Nodes are compared by identity.


class Node(Value):
    """`op` applied to `inputs`; the value has `type`. Build with `op(*inputs)` or `Node.of(op, inputs)`."""

    __slots__ = ("__weakref__", "_type", "id", "inputs", "label", "op", "where")
    _ids = itertools.count()

    op: Op
    inputs: tuple[Node, ...]
    id: int
    label: str | None  # the user's name for the value, where known
    where: str | None  # "file.py:12", the user's line

    def __init__(self, op: Op, inputs: tuple[Node, ...], type: Type) -> None:
        self.op = op
        self.inputs = inputs
        self._type = type
        self.id = next(Node._ids)
        self.label = None
        self.where = None

    @property
    def type(self) -> Any:
        return self._type

    @property
    def shape(self) -> Shape:
        """The value's shape."""
        return self._type.shape  # type: ignore[union-attr]

    @property
    def dtype(self) -> DType:
        """The value's element type."""
        return self._type.dtype  # type: ignore[union-attr]

    @classmethod
    def of(cls, op: Op, inputs: Sequence[Node]) -> Node:
        """One node, its type inferred; of TupleType where the op has several results."""
        return cls(op, tuple(inputs), op.infer(*[x.type for x in inputs]))

    def with_inputs(self, inputs: tuple[Node, ...]) -> Node:
        """A new node with the same op, name and line on other inputs, which have the types of the old ones."""
        new = Node(self.op, inputs, self._type)
        new.label, new.where = self.label, self.where
        return new

    def emit(self, op: Op, inputs: Sequence[Node]) -> Any:
        return Node.build(op, inputs)

    @classmethod
    def build(cls, op: Op, inputs: Sequence[Node]) -> Any:
        """The node, or for ops with several results the tuple of nodes reading it."""
        node = cls.of(op, inputs)
        if isinstance(node.type, TupleType):
            return tuple(cls.of(Item(i), (node,)) for i in range(len(node.type.items)))
        return node

    def __repr__(self) -> str:
        args = ", ".join(f"%{i.label or i.id}" for i in self.inputs)
        return f"%{self.label or self.id} = {self.op.name}({args}) : {self.type}"


def constant(like: Value, value: Scalar, dtype: DType) -> Any:
    """The scalar `value` as a rank-0 value of `dtype` in the domain of `like`."""
    return like.emit(Op.registry["const"](value, TensorType(dtype, (), like.type.device)), ())  # type: ignore[call-arg]


def scalar_dtype(value: Scalar) -> DType:
    """The dtype a Python scalar stands for: bool, i64, or the default float."""
    return dt.bool_ if isinstance(value, bool) else dt.int64 if isinstance(value, int) else dt.default()


def common_dtype(*operands: Value | Scalar) -> DType:
    """PyTorch's promotion: Python scalars and rank-0 tensors count only where their kind is higher."""
    by_rank: list[DType | None] = [None, None, None]  # with dims, rank 0, Python scalar
    for x in operands:
        level = 2 if not isinstance(x, Value) else 1 if not x.type.shape else 0
        d = x.type.dtype if isinstance(x, Value) else scalar_dtype(x)
        have = by_rank[level]
        by_rank[level] = d if have is None else promote(have, d)
    out: DType | None = None
    for d in by_rank:
        if d is None:
            continue
        if out is None or _CATEGORY[d.kind] > _CATEGORY[out.kind]:
            out = d
    assert out is not None
    return out


def broadcast_shapes(*shapes: Shape) -> Shape:
    """NumPy's broadcasting. Raises OpError naming the extents that differ."""
    first = shapes[0]
    if all(s is first for s in shapes):  # equal types are often one object
        return first
    rank = max(map(len, shapes))
    out: list[Extent] = [1] * rank
    for s in shapes:
        for i, d in enumerate(s, rank - len(s)):
            if same(d, 1) or same(d, out[i]):
                continue
            if not same(out[i], 1):
                names = " and ".join(str(list(s)) for s in shapes)
                raise OpError(f"shapes {names} do not broadcast: extents {out[i]} and {d} differ at axis {i - rank}")
            out[i] = d
    return tuple(out)


def expand_to(x: Any, shape: Shape) -> Any:
    """`x` broadcast to `shape`, extents 1 repeated, missing axes added in front; `x` itself where nothing changes."""
    have: Shape = x.type.shape
    if have is shape or (len(have) == len(shape) and all(map(same, have, shape))):
        return x
    lead = len(shape) - len(have)
    if lead < 0 or any(not same(d, 1) and not same(d, shape[i + lead]) for i, d in enumerate(have)):
        raise OpError(f"{x.type} does not broadcast to {list(shape)}")
    kept = [i for i, d in enumerate(have) if same(d, shape[i + lead])]
    if len(kept) < len(have):  # extents 1 that grow are dropped first: broadcast only adds axes
        x = x.emit(Op.registry["reshape"](tuple(have[i] for i in kept)), (x,))  # type: ignore[call-arg]
    return x.emit(Op.registry["broadcast"](shape, tuple(i + lead for i in kept)), (x,))  # type: ignore[call-arg]


def cast(x: Any, dtype: DType) -> Any:
    """`x` as `dtype`; `x` itself where it already is."""
    return x if x.type.dtype is dtype else x.emit(Op.registry["cast"](dtype), (x,))  # type: ignore[call-arg]


def binary(name: str, a: Any, b: Any) -> Any:
    """The pointwise op `name` on a and b (one may be a Python scalar), promoted and broadcast as PyTorch does."""
    like = a if isinstance(a, Value) else b
    for x in (a, b):
        if not isinstance(x, (Value, bool, int, float)):
            return NotImplemented
    if name == "pow" and isinstance(a, Value) and type(b) is int and b == 2:
        name, b = "mul", a  # as PyTorch: exact where pow may not be, and cheap
    dtype = common_dtype(a, b)
    if name == "div" and not dtype.is_floating_point:
        dtype = dt.default()
    if not isinstance(b, Value):
        a = cast(a, dtype)
        return like.emit(Op.registry[name](), (a, like.beside(b, dtype, a.type.shape)))
    if not isinstance(a, Value):
        b = cast(b, dtype)
        return like.emit(Op.registry[name](), (like.beside(a, dtype, b.type.shape), b))
    a, b = cast(a, dtype), cast(b, dtype)
    shape = broadcast_shapes(a.type.shape, b.type.shape)
    return like.emit(Op.registry[name](), (expand_to(a, shape), expand_to(b, shape)))

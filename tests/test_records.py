"""Dataclasses made quickly behave as the standard library's."""

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field, fields, replace

import pytest

from tracejit.records import dataclass as ours


def classes(dataclass):
    @dataclass(frozen=True, slots=True)
    class Point:
        x: int
        y: int = 2
        tags: list = field(default_factory=list, compare=False)
        hidden: int = field(default=7, repr=False, kw_only=True)
        made: int = field(default=3, init=False)

    @dataclass(frozen=True)
    class Base:
        a: int

        def __post_init__(self):
            if self.a < 0:
                raise ValueError("negative")

        def __str__(self):
            return f"<{self.a}>"

    @dataclass(frozen=True)
    class Derived(Base):
        b: str = "b"

        def __hash__(self):
            return 1

    @dataclass(eq=False)
    class Plain:
        n: int = 0
        parts: list = field(default_factory=lambda: [1])

    @dataclass
    class Mutable:
        n: int

    return Point, Base, Derived, Plain, Mutable


OURS, THEIRS = classes(ours), classes(dataclasses.dataclass)
Module = dataclasses.make_dataclass("Module", ["x"])


@ours(frozen=True, slots=True)
class Kept:
    """At the top of a module, so that it can be pickled."""

    x: int
    y: tuple = ()


def outcome(f):
    try:
        return f()
    except Exception as e:
        return type(e), str(e)


SAYS = [
    lambda c: repr(c[0](1)).replace("classes.<locals>.", ""),
    lambda c: repr(c[0](1, 5, [2], hidden=3)),
    lambda c: (c[0](1) == c[0](1, tags=[9]), c[0](1) == c[0](2), c[0](1) != c[0](1)),
    lambda c: hash(c[0](1)) == hash(c[0](1)),
    lambda c: c[0](1) == (1, 2),
    lambda c: (c[0](1).tags is not c[0](1).tags, c[0](1).made, c[0](1).hidden),
    lambda c: outcome(lambda: c[0]()),
    lambda c: outcome(lambda: c[0](1, 2, [], 4)),
    lambda c: outcome(lambda: c[0](1, wrong=2)),
    lambda c: outcome(lambda: setattr(c[0](1), "x", 2)),
    lambda c: outcome(lambda: delattr(c[0](1), "x")),
    lambda c: [f.name for f in fields(c[0])],
    lambda c: replace(c[0](1), y=9).y,
    lambda c: c[0].__match_args__,
    lambda c: outcome(lambda: c[1](-1)),
    lambda c: (str(c[1](1)), str(c[2](1)), repr(c[2](1, "z"))),
    lambda c: (hash(c[2](1)), c[2](1) == c[1](1), c[2](1) == c[2](1)),
    lambda c: (c[3]() == c[3](), c[3]().parts, c[3](n=4).n, hash(c[3]()) != 0),
    lambda c: outcome(lambda: hash(c[4](1))),
    lambda c: (c[4](1) == c[4](1), vars(c[4](2))),
    lambda c: [dataclasses.is_dataclass(x) for x in c],
    lambda c: dataclasses.asdict(c[0](1, 2, [3])),
]


@pytest.mark.parametrize("says", SAYS)
def test_it_behaves_as_the_standard_librarys(says):
    assert says(OURS) == says(THEIRS)
    assert says(OURS) == says(THEIRS)  # once more, with the methods that are written by now


def test_instances_are_copied_and_pickled():
    x = Kept(1, (2,))
    assert pickle.loads(pickle.dumps(x)) == x == copy.deepcopy(x) == copy.copy(x)
    assert not hasattr(x, "__dict__")


def test_subclasses_are_made_by_either():
    @dataclasses.dataclass(frozen=True)
    class Theirs(OURS[1]):
        b: int = 0

    @ours(frozen=True)
    class Again(Theirs):
        c: int = 0

    assert (Theirs(1, 2).b, Again(1, 2, 3)) == (2, Again(1, 2, 3))
    with pytest.raises(FrozenInstanceError):
        Theirs(1).a = 2
    with pytest.raises(TypeError, match="non-frozen"):
        dataclasses.dataclass(type("Loose", (OURS[1],), {}))


def test_a_subclass_without_fields_may_have_attributes():
    class Sub(OURS[1]):
        pass

    x = Sub(1)
    x.more = 2
    assert x.more == 2
    with pytest.raises(FrozenInstanceError):
        x.a = 3


def test_a_method_is_written_once():
    @ours
    class New:
        n: int

    first = New.__init__
    assert New(1).n == 1
    assert New.__init__ is not first
    assert first(new := New(0), 5) is None and new.n == 5

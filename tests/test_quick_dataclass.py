"""Dataclasses that are quick to make are as others, but for who may change them."""

import dataclasses
import inspect
import typing
from typing import Any, ClassVar

import pytest

from kjbod.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    KEY: ClassVar[int] = 7
    name: str
    levels: tuple[int, ...] = ()
    size_bytes: int = dataclasses.field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Other:
    name: str


@dataclass(frozen=True, slots=True)
class Empty:
    pass


def test_equal_fields_make_equal_values_of_one_class() -> None:
    one, same = Quick(name="a", levels=(1,), size_bytes=5), Quick(name="a", levels=(1,))
    assert one == same
    assert hash(one) == hash(same)
    assert one != Quick(name="a")
    others: list[Any] = [Other("a"), Empty(), ("a", (1,))]
    assert all(one != other for other in others)
    assert Empty() == Empty()
    assert {one: "kept", Empty(): "too"}[same] == "kept"


def test_a_value_shows_itself_and_is_replaced_in_parts() -> None:
    assert repr(Quick(name="a", levels=(1,), size_bytes=5)).endswith("Quick(name='a', levels=(1,))")
    assert dataclasses.replace(Quick(name="a"), name="b") == Quick(name="b")
    assert dataclasses.asdict(Quick(name="a")) == {"name": "a", "levels": (), "size_bytes": 0}
    assert repr(Empty()).endswith("Empty()")


def test_what_a_class_does_not_name_cannot_be_given_or_set() -> None:
    make: Any = Quick
    with pytest.raises(TypeError, match="unexpected"):
        make(name="a", nmae="b")
    with pytest.raises(TypeError, match="positional"):
        make("a")
    one: Any = Quick(name="a")
    with pytest.raises(AttributeError):
        one.nmae = "b"


@dataclass(slots=True)
class Changing:
    names: list[str] = dataclasses.field(default_factory=list)
    shown: str = dataclasses.field(init=False)
    count: int | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        self.shown = ",".join(self.names)


@dataclass(slots=True, eq=False)
class Itself:
    name: str

    def __repr__(self) -> str:
        return "itself"


@dataclass(frozen=True, slots=True)
class Longer(Other):
    more: int = 0


def test_what_may_change_is_compared_by_its_fields_and_has_no_hash() -> None:
    one, same = Changing(["a"]), Changing(["a"])
    assert one == same
    assert (one.shown, one.count) == ("a", None)
    one.names.append("b")
    assert one != same
    assert Changing() == Changing()
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_what_is_not_compared_by_its_fields_is_only_itself() -> None:
    one = Itself("a")
    assert one != Itself("a")
    assert {one: "kept"}[one] == "kept"
    assert repr(one) == "itself"


def test_a_class_of_another_has_its_fields_and_its_own() -> None:
    assert Longer("a", 7) == Longer(name="a", more=7) != Longer("a")
    assert Longer("a") != Other("a")
    assert Other("a") == Other("a")
    assert repr(Longer("a")) == "Longer(name='a', more=0)"


def test_the_constructor_can_be_looked_at() -> None:
    assert list(inspect.signature(Longer).parameters) == ["name", "more"]
    assert typing.get_type_hints(Changing.__init__)["names"] == list[str]

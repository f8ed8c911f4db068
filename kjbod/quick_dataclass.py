"""A dataclass decorator for a program that is started often: half of a start was making methods that nobody called.

``dataclasses.dataclass`` compiles up to six methods for each class when it is defined. This one compiles ``__init__``
alone, and that when it is first asked for; comparison, hash and representation are the same three functions for all
classes. To a type checker it is ``dataclasses.dataclass``, so ``frozen=True`` is held where the code is checked, and
not at run time: an instance is made three times as fast for that (``object.__setattr__`` for each field is what a
frozen one costs).
"""

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    _T = TypeVar("_T")

    def dataclass(
        *, slots: bool, frozen: bool = False, kw_only: bool = False, eq: bool = True
    ) -> Callable[[type[_T]], type[_T]]:
        """A decorator that makes a dataclass of a class; see above for what ``frozen`` means.

        As with others, what may change and is compared by its fields has no hash.
        """

        def make(cls: type[_T]) -> type[_T]:
            own = cls.__dict__
            if eq and "__eq__" not in own:
                cls.__eq__ = _equals
            if eq and own.get("__hash__") is None:  # None is what Python gives to a class with its own __eq__
                cls.__hash__ = _hash if frozen else None
            if "__repr__" not in own:
                cls.__repr__ = _show
            if cls.__doc__ is None:
                cls.__doc__ = ""  # instead of a signature, which is dear
            later = "__init__" not in own
            made = dataclasses.dataclass(cls, init=False, eq=False, repr=False, slots=slots, kw_only=kw_only)
            if later:
                made.__init__ = _LaterInit(made)
            made.__compared__ = _LaterCompared()
            return made

        return make


class _LaterInit:
    """The ``__init__`` of a class until it is first asked for."""

    def __init__(self, owner: type) -> None:
        self._owner = owner

    def __get__(self, instance: object, _kind: type) -> Any:
        owner: Any = self._owner
        namespace = {"__module__": owner.__module__}
        if hasattr(owner, "__post_init__"):
            namespace["__post_init__"] = owner.__post_init__
        fields = [(field.name, field.type, _as_given(field)) for field in dataclasses.fields(owner)]
        # With slots, __init__ sets the default of a field that is no argument, too.
        twin: Any = dataclasses.make_dataclass(
            owner.__name__, fields, namespace=namespace, slots=True, eq=False, repr=False
        )
        made = twin.__init__
        made.__qualname__ = f"{owner.__qualname__}.__init__"
        owner.__init__ = made
        return made if instance is None else made.__get__(instance)


def _as_given(field: "dataclasses.Field[Any]") -> Any:
    """A field as it was given, as far as it concerns ``__init__``."""
    given: dict[str, Any] = {"init": field.init, "kw_only": field.kw_only}
    if field.default is not dataclasses.MISSING:
        given["default"] = field.default
    if field.default_factory is not dataclasses.MISSING:
        given["default_factory"] = field.default_factory
    return dataclasses.field(**given)


class _LaterCompared:
    """The getter of the fields by which instances of a class are compared, until it is first asked for."""

    def __get__(self, instance: object, kind: Any) -> Callable[[Any], Any]:
        names = [field.name for field in dataclasses.fields(kind) if field.compare]
        get: Callable[[Any], Any] = attrgetter(*names) if names else _nothing
        kind.__compared__ = staticmethod(get)
        return get


def _nothing(_one: object) -> tuple[()]:
    return ()


def _equals(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    compared = self.__compared__
    return compared(self) == compared(other)


def _hash(self: Any) -> int:
    return hash(self.__compared__(self))


def _show(self: Any) -> str:
    shown = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{self.__class__.__qualname__}({shown})"

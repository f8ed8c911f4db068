"""Records of benchmarks that are kept as JSON: dataclasses that are read back by the types of their fields."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(slots=True)
class JsonRecord:
    """Base of a dataclass that is written as a JSON object, and equal when it is read back.

    Its fields are strings, numbers, truth values, None, other dataclasses, and lists, tuples and dictionaries by string
    of these.
    """

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_json`. A field that is not there has its default: older files have fewer."""
        return cls(**_fields(cls, values))


def _fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    types_of = typing.get_type_hints(kind)
    return {name: _read(types_of[name], value) for name, value in values.items()}


def _read(kind: Any, value: Any) -> Any:
    """The value of a field of this type, from that of JSON."""
    if value is None:
        return None
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind(**_fields(kind, value))
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        (present,) = (one for one in inner if one is not types.NoneType)
        return _read(present, value)
    if origin is list:
        return [_read(inner[0], one) for one in value]
    if origin is tuple:
        return tuple(_read(of, one) for of, one in zip(inner, value, strict=True))
    if origin is dict:
        return {key: _read(inner[1], one) for key, one in value.items()}
    return value

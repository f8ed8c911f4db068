"""Messages for a fuzzer: well-formed, of any version, with values near the edges."""

import contextlib
import random
import typing
from typing import Any

from msgspec import Struct, structs

from kjbod.errors import UnsupportedVersionError
from kjbod.ids import Uuid
from kjbod.wire.codec import Field, Schema
from kjbod.wire.frames import VersionRanges, encode_request, request_codec

CLUSTER_ID = "kjbodTestCluster0AAAAA"
_found: dict[type[Any], dict[str, Any]] = {}
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


class Composer:
    """Well-formed messages of any served version, with names and ids among which some are the cluster's own."""

    def __init__(
        self, rng: random.Random, ids: list[Uuid], served: VersionRanges, texts: tuple[str, ...] = (CLUSTER_ID,)
    ) -> None:
        self._texts = ("", "t", "u", "__cluster_metadata", "é" * 9, *texts)
        self._rng = rng
        self._ids = ids
        self._served = served

    def frame(self) -> bytes:
        """One request without its length."""
        while True:
            key = self._rng.choice(list(self._served))
            version = self._rng.randint(*self._served[key])
            codec = request_codec(key, version)
            with contextlib.suppress(UnsupportedVersionError):
                return encode_request(self._struct(codec.schema, codec.cls), version, 1, "fuzz")[4:]

    def _struct(self, schema: Schema, cls: type[Any]) -> Any:
        hints = _hints(cls)
        return cls(**{f.name: self._field(f, hints[f.name]) for f in schema.fields if f.name in hints})

    def _field(self, field: Field, hint: Any) -> Any:
        if field.nullable and self._rng.random() < 0.2:
            return None
        if field.array:
            return tuple(self._one(field, hint) for _ in range(self._rng.randint(0, 3)))
        return self._one(field, hint)

    def _one(self, field: Field, hint: Any) -> Any:
        if field.struct is not None:
            return self._struct(field.struct, _dataclass_in(hint))
        if field.kind in _BITS:
            bits = _BITS[field.kind]
            near = self._rng.choice((*range(-1, 4), 11, 3000, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))))
            return max(-(2 ** (bits - 1)), min(near, 2 ** (bits - 1) - 1))
        choices: dict[str, tuple[Any, ...]] = {
            "bool": (True, False),
            "float64": (0.0, -1.0, 1.5, 1e300, float("inf"), float("nan")),
            "uint16": (0, 1, 9092, 65535),
            "string": self._texts,
            "bytes": (b"", self._rng.randbytes(9)),
            "uuid": (Uuid(bytes(16)), *self._ids),
        }
        return self._rng.choice(choices[field.kind])


def _hints(cls: type[Any]) -> dict[str, Any]:
    """The type of each field: looking them up takes longer than all the rest."""
    if cls not in _found:
        hints = typing.get_type_hints(cls)
        _found[cls] = {field.name: hints[field.name] for field in structs.fields(cls)}
    return _found[cls]


def _dataclass_in(hint: Any) -> type[Any]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        return typing.cast("type[Any]", hint)
    return next(_dataclass_in(inner) for inner in typing.get_args(hint) if inner is not type(None))

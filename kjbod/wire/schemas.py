"""The layout of each version of each Kafka message on the wire, as :class:`kjbod.wire.codec.Schema`.

The schemas are kio's, whose dataclasses are generated from Kafka's own message definitions; this is the only module
that imports it. Only the *structure* is taken. kio's native reader is never given a peer's bytes: it reserves memory
for as many elements as an array declares before it looks at what is left, so that 17 bytes can abort the process, and
it raises on tagged fields that it does not know instead of skipping them as KIP-482 asks. Our codec checks structure
while it decodes; a separate check of the frame before decoding would do the same work twice.

kio is imported on first use, one module per message and version: a command that speaks to nobody does not pay for it.
"""

import dataclasses
import datetime
import importlib
import sys
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from kjbod.ids import ZERO
from kjbod.wire.codec import REQUIRED, Field, Schema

Side = Literal["request", "response"]

_API_VERSIONS_KEY = 18
_MILLISECONDS: Mapping[str, str] = {"timedelta_i32": "int32", "timedelta_i64": "int64"}
_KINDS: Mapping[str, str] = {**_MILLISECONDS, "datetime_i64": "int64", "error_code": "int16", "records": "bytes"}
"""kio's kinds that are something plainer on the wire."""


@cache
def request_schema(api_key: int, version: int) -> Schema:
    """The body of a request.

    Raises:
        LookupError: Kafka has no such API or version.
    """
    return _message_schema(api_key, version, "request")


@cache
def response_schema(api_key: int, version: int) -> Schema:
    """The body of a response; errors as :func:`request_schema`."""
    return _message_schema(api_key, version, "response")


def request_header_version(api_key: int, version: int) -> int:
    """2, with tagged fields, where the message is flexible; 1 before (``ApiMessageType.requestHeaderVersion``)."""
    return 2 if request_schema(api_key, version).flexible else 1


def response_header_version(api_key: int, version: int) -> int:
    """1, with tagged fields, where the message is flexible; 0 before, and always for ApiVersions, whose client cannot
    know yet what the server speaks (``ApiMessageType.responseHeaderVersion``, KIP-511)."""
    if api_key == _API_VERSIONS_KEY:
        return 0
    return 1 if response_schema(api_key, version).flexible else 0


@cache
def _kio_names() -> Mapping[int, str]:
    """kio's name of each API. Where hypothesis is installed, kio describes its types to it when it is imported: a
    second of processor time and some MiB, in each process, for nobody."""
    unused = "hypothesis" not in sys.modules
    if unused:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.static.primitive  # noqa: F401
        from kio.schema.index import api_key_map
    finally:
        if unused:
            del sys.modules["hypothesis"]
    return api_key_map


def _message_schema(api_key: int, version: int, side: Side) -> Schema:
    names = _kio_names()
    from kio.static.constants import EntityType

    try:
        module = importlib.import_module(f"kio.schema.{names[api_key]}.v{version}.{side}")
    except (KeyError, ModuleNotFoundError):
        raise LookupError(f"Kafka has no {side} of API {api_key} in version {version}") from None
    entity = next(
        found
        for found in vars(module).values()
        if getattr(found, "__type__", None) is EntityType[side] and found.__module__ == module.__name__
    )
    return _schema(entity)


def _schema(entity: type[Any]) -> Schema:
    fields = tuple(_field(f) for f in dataclasses.fields(entity))
    return Schema(entity.__name__, int(entity.__version__), bool(entity.__flexible__), fields)


def _field(field: dataclasses.Field[Any]) -> Field:
    """A kio field as ours: milliseconds as integers with the unit in the name, a null id as the zero id."""
    hint, nullable = _without_none(field.type)
    array = typing.get_origin(hint) is tuple
    if array:
        hint, _ = _without_none(typing.get_args(hint)[0])
    kio_kind: str | None = field.metadata.get("kafka_type")
    kind = "struct" if kio_kind is None else _KINDS.get(kio_kind, kio_kind)
    # kio reads the zero id as None; on the wire an id cannot be null, only a list of them can
    nullable = nullable and (array or kind != "uuid")
    return Field(
        name=f"{field.name}_ms" if kio_kind in _MILLISECONDS else field.name,
        kind=kind,
        array=array,
        nullable=nullable,
        tag=field.metadata.get("tag"),
        default=_default(field.default, kind, array),
        struct=_schema(hint) if kind == "struct" else None,
    )


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint, False
    (inner,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
    return inner, True


def _default(value: Any, kind: str, array: bool) -> Any:
    if value is dataclasses.MISSING or (kind == "struct" and not array and value is not None):
        return REQUIRED  # a struct's default is that of its fields
    if kind == "uuid" and not array and value is None:
        return ZERO
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value

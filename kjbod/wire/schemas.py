"""The layout of each version of each Kafka message on the wire, as :class:`kjbod.wire.codec.Schema`.

The schemas come from kio, whose dataclasses are generated from Kafka's message definitions. ``scripts/wire_schemas.py``
writes them into :mod:`kjbod.wire.schema_table`, so kio is not needed at run time. Only the *structure* is used. kio's
native reader is never given a peer's bytes: it allocates as many elements as an array declares before it checks the
remaining bytes, so 17 bytes can abort the process. It also raises on unknown tagged fields instead of skipping them as
KIP-482 requires. Our codec checks the structure while it decodes, so a separate check of the frame is not needed.
"""

from functools import cache
from typing import Any, Final, Literal

from kjbod.ids import ZERO
from kjbod.wire.codec import REQUIRED, Field, Schema
from kjbod.wire.schema_table import MESSAGES, STRUCTS

Side = Literal["request", "response"]
SIDES: Final[tuple[Side, ...]] = ("request", "response")

Row = tuple[str, str, bool, bool, int | None, Any, int | None]
"""A field in the table: name, kind, array, nullable, tag, default, and the number of its struct. The default is ``...``
for a field without one, ``b""`` for the zero id."""
Struct = tuple[str, bool, tuple[Row, ...]]
"""A struct in the table: name, flexible, fields in wire order."""

_API_VERSIONS_KEY = 18


@cache
def request_schema(api_key: int, version: int) -> Schema:
    """Return the schema of a request's body.

    Raises:
        LookupError: kjbod speaks no such API or version.
    """
    return _message_schema(api_key, version, "request")


@cache
def response_schema(api_key: int, version: int) -> Schema:
    """Return the schema of a response's body; errors as for :func:`request_schema`."""
    return _message_schema(api_key, version, "response")


def request_header_version(api_key: int, version: int) -> int:
    """Return 2, with tagged fields, for a flexible message; 1 for others (``ApiMessageType.requestHeaderVersion``)."""
    return 2 if request_schema(api_key, version).flexible else 1


def response_header_version(api_key: int, version: int) -> int:
    """Return 1, with tagged fields, for a flexible message; 0 for others, and always for ApiVersions, whose client does
    not know the server yet (``ApiMessageType.responseHeaderVersion``, KIP-511)."""
    if api_key == _API_VERSIONS_KEY:
        return 0
    return 1 if response_schema(api_key, version).flexible else 0


def _message_schema(api_key: int, version: int, side: Side) -> Schema:
    number = MESSAGES.get((api_key, version, side))
    if number is None:
        raise LookupError(f"kjbod speaks no {side} of API {api_key} in version {version}")
    return _schema(number, version)


def _schema(number: int, version: int) -> Schema:
    name, flexible, rows = STRUCTS[number]
    return Schema(name, version, flexible, tuple(_field(row, version) for row in rows))


def _field(row: Row, version: int) -> Field:
    name, kind, array, nullable, tag, default, struct = row
    if default is ...:
        default = REQUIRED
    elif kind == "uuid" and default == b"":
        default = ZERO
    return Field(name, kind, array, nullable, tag, default, None if struct is None else _schema(struct, version))

"""Kafka's message schemas as constants, and the classes of their messages: ``python -m scripts.wire_schemas`` writes
kjbod/wire/schema_table.py, messages.py and admin_messages.py.

The schemas are kio's, whose dataclasses are generated from Kafka's own message definitions. :data:`NEWER` has the
messages of Kafka 4.4 that kio does not know yet. Which APIs and versions kjbod speaks, and what else no schema says, is
in the tables of :mod:`scripts.wire_messages`. Run it when one is added; a test holds the files to what this makes. A
process that would ask kio itself imported 230 modules for it, half a second of each controller's start.
"""

import dataclasses
import datetime
import importlib
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kio.static.primitive  # noqa: F401  # before its schemas, which import it in a circle
from kio.schema.index import api_key_map
from kio.static.constants import EntityType
from msgspec import structs

from kjbod.ids import ZERO
from kjbod.wire.codec import REQUIRED, Field, Schema
from kjbod.wire.schemas import SIDES, Row, Side, Struct
from scripts import wire_messages

TABLE = wire_messages.ROOT / "kjbod/wire/schema_table.py"
_MILLISECONDS: Mapping[str, str] = {"timedelta_i32": "int32", "timedelta_i64": "int64"}
_KINDS: Mapping[str, str] = {**_MILLISECONDS, "datetime_i64": "int64", "error_code": "int16", "records": "bytes"}
"""kio's kinds that are something plainer on the wire."""
_HEAD = '''"""Kafka's message schemas as constants; see scripts/wire_schemas.py."""

from collections.abc import Mapping
from typing import Any, Final

# fmt: off
'''


def _api_versions_request() -> Schema:
    older = schema_of(18, 4, "request")
    cluster_id = Field("cluster_id", "string", nullable=True, default=None)
    return Schema(older.name, 5, True, (*older.fields, cluster_id, Field("node_id", "int32", default=-1)))


def _api_versions_response() -> Schema:
    return at_version(schema_of(18, 4, "response"), 5)


def _unregister_controller_request() -> Schema:
    return Schema("UnregisterControllerRequest", 0, True, (Field("controller_id", "int32"),))


def _unregister_controller_response() -> Schema:
    message = Field("error_message", "string", nullable=True)
    fields = (Field("throttle_time_ms", "int32"), Field("error_code", "int16"), message)
    return Schema("UnregisterControllerResponse", 0, True, fields)


def at_version(schema: Schema, version: int) -> Schema:
    """The schema in a version in which nothing has changed."""
    fields = (
        structs.replace(f, struct=None if f.struct is None else at_version(f.struct, version)) for f in schema.fields
    )
    return structs.replace(schema, version=version, fields=tuple(fields))


NEWER: Mapping[tuple[int, int, Side], Callable[[], Schema]] = {
    (18, 5, "request"): _api_versions_request,
    (18, 5, "response"): _api_versions_response,
    (94, 0, "request"): _unregister_controller_request,
    (94, 0, "response"): _unregister_controller_response,
}
"""Messages of Kafka 4.4 that kio 0.6 lacks, by API key, version and side. Once kio has them, they go."""


def messages() -> Iterator[tuple[int, int, Side]]:
    """API key, version and side of each message that kjbod speaks."""
    for api in sorted(wire_messages.apis()):
        for version in api.versions:
            for side in SIDES:
                yield int(api.key), version, side


def schema_of(api_key: int, version: int, side: Side) -> Schema:
    """kio's schema of a message as ours; of the newest ones what :data:`NEWER` says."""
    if (api_key, version, side) in NEWER:
        return NEWER[api_key, version, side]()
    module = importlib.import_module(f"kio.schema.{api_key_map[api_key]}.v{version}.{side}")
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


class _Table:
    """Rows of structs, each once."""

    def __init__(self) -> None:
        self.numbers: dict[Struct, int] = {}

    def add(self, schema: Schema) -> int:
        """The number of a schema's row; those inside it come before."""
        row = (schema.name, schema.flexible, tuple(self._row(field) for field in schema.fields))
        return self.numbers.setdefault(row, len(self.numbers))

    def _row(self, field: Field) -> Row:
        default = ... if field.default is REQUIRED else b"" if field.default is ZERO else field.default
        struct = None if field.struct is None else self.add(field.struct)
        return (field.name, field.kind, field.array, field.nullable, field.tag, default, struct)


def sources() -> dict[Path, str]:
    """The text of each file that this makes.

    Raises:
        TableError: a table of :mod:`scripts.wire_messages` has a mistake, or lacks a struct.
    """
    return {TABLE: _schema_table(), **wire_messages.sources(schema_of)}


def _schema_table() -> str:
    table = _Table()
    found = {message: table.add(schema_of(*message)) for message in messages()}
    structs = "".join(f"    {row!r},\n" for row in table.numbers).replace(repr(...), "...")
    rows = "".join(f"    {message!r}: {number},\n" for message, number in found.items())
    return (
        f"{_HEAD}\nSTRUCTS: Final[tuple[tuple[str, bool, tuple[Any, ...]], ...]] = (\n{structs})\n\n"
        f"MESSAGES: Final[Mapping[tuple[int, int, str], int]] = {{\n{rows}}}\n"
    )


if __name__ == "__main__":
    try:
        for path, text in sources().items():
            path.write_text(text)
    except wire_messages.TableError as error:
        sys.exit(str(error))

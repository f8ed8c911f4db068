"""Records as JSON, in the format of ``kafka-dump-log --cluster-metadata-decoder``.

Names are camelCase, ids URL-safe base64, bytes base64, and fields in the order of Kafka's schemas. Fields that a
version lacks, and tagged fields with their default, are left out (the generated ``*JsonConverter`` classes).
"""

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from kjbod.files import read_file
from kjbod.ids import Uuid
from kjbod.metadata.batches import LogRecord, RecordBatch, read_batch
from kjbod.metadata.control_records import CONTROL_TYPES, decode_control
from kjbod.metadata.records import RECORD_TYPES, Record, UnknownRecord, decode_record, wire_fields
from kjbod.wire.codec import REQUIRED, MalformedMessageError

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def type_name(record: Record) -> str:
    """``PARTITION_CHANGE_RECORD`` (``MetadataRecordType``)."""
    return _name(type(record))


def _name(cls: type[Record]) -> str:
    return _WORD.sub("_", cls.__name__).upper()


def type_names() -> list[str]:
    """Return every name of a record in a dump: those of :func:`type_name`, then those of control records."""
    return [*sorted(map(_name, RECORD_TYPES.values())), *(control.NAME for control in CONTROL_TYPES.values())]


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _value(value: Any, version: int) -> Any:
    if isinstance(value, Struct):
        return _fields(value, version)
    if isinstance(value, tuple):
        return [_value(element, version) for element in value]
    if isinstance(value, Uuid):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def _fields(message: Struct, version: int) -> dict[str, Any]:
    data = {}
    for name, (wire, default) in wire_fields(type(message)).items():
        value = getattr(message, name)
        if version < wire.since or (wire.tag is not None and default is not REQUIRED and value == default):
            continue
        data[_camel(name)] = _value(value, version)
    return data


def record_json(record: Record, version: int) -> dict[str, Any]:
    """``{"type": "PARTITION_RECORD", "version": 2, "data": {...}}``."""
    return {"type": type_name(record), "version": version, "data": _fields(record, version)}


def unknown_json(record: UnknownRecord) -> dict[str, Any]:
    """Return ``{"error": ...}`` for records of a snapshot that are only partly understood."""
    kind = f"metadata record {record.api_key} version {record.version} is not known"
    return {"error": f"{kind if record.api_key >= 0 else 'a metadata record is damaged'} ({record.count} in all)"}


def payload_json(batch: RecordBatch, record: LogRecord) -> dict[str, Any]:
    """Return the payload of one record of ``batch``, as ``kafka-dump-log`` prints it. A record that cannot be decoded
    is ``{"error": ...}``, so it does not hide the other records. A control record is ``{"control": name, "data":
    {...}}`` with its version inside the data."""
    try:
        if not batch.control:
            return record_json(*decode_record(record.value or b""))
        control, version = decode_control(record.key, record.value)
    except MalformedMessageError as error:
        return {"error": f"Error at {record.offset}, skipping. {error}"}
    return {"control": control.NAME, "data": {"version": version} | _fields(control, version)}


def dump(path: Path) -> Iterator[dict[str, Any]]:
    """Yield an object per record of a segment or checkpoint: ``offset``, ``timestamp``, and the payload. Stops at an
    incomplete batch.

    Raises:
        CorruptBatchError: a complete batch is invalid.
        OSError: the file cannot be read.
    """
    buf, at = read_file(path), 0
    while (batch := read_batch(buf, at)) is not None:
        for record in batch.records:
            yield {"offset": record.offset, "timestamp": record.timestamp_ms} | payload_json(batch, record)
        at += batch.size_in_bytes

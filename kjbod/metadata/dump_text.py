"""Records as text lines, as ``kafka-dump-log --cluster-metadata-decoder`` of Kafka 4.3.1 prints them
(``DumpLogSegments``): a line for each file, batch and record."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath
from typing import Any

from kjbod.metadata.batches import LogRecord, RecordBatch
from kjbod.metadata.control_records import LeaderChange
from kjbod.metadata.snapshot import BOOTSTRAP_CHECKPOINT, SnapshotId
from kjbod.metadata.tree import java_double


def text_lines(
    found: Iterable[dict[str, Any]], wanted: Callable[[dict[str, Any]], bool], *, record_metadata: bool, sparse: bool
) -> Iterator[str]:
    """Yield the lines for the output of :func:`kjbod.metadata.reading.dump_source` with ``layout``.

    Args:
        found: files, batches and records.
        wanted: names of the records to print.
        record_metadata: False as with ``--skip-record-metadata``: payloads only, a blank line for control records.
        sparse: leave out batches without a wanted record.
    """
    head: list[str] = []
    batch: RecordBatch
    records: Iterator[LogRecord]
    for item in found:
        if "path" in item:
            yield from file_lines(item["path"])
        elif "batch" in item:
            batch, records = item["batch"], iter(item["batch"].records)
            head = [batch_line(batch)]
            if not sparse:
                yield head.pop()
        else:
            record = next(records)
            if wanted(item):
                yield from head
                head = []
                yield record_line(batch, record, item, record_metadata=record_metadata)


def file_lines(path: PurePath) -> Iterator[str]:
    """Yield the lines at the start of a segment or a snapshot."""
    yield f"Dumping {path}"
    snapshot = SnapshotId.parse(path.name)
    if path.name == BOOTSTRAP_CHECKPOINT:
        yield "KRaft bootstrap snapshot"
    elif snapshot is not None:
        yield f"Snapshot end offset: {snapshot.end_offset}, epoch: {snapshot.epoch}"
    elif path.stem.isdigit():
        yield f"Log starting offset: {int(path.stem)}"


def batch_line(batch: RecordBatch) -> str:
    """Return the line of a batch. A metadata log has no producers, no compression, and no Kafka transactions."""
    return (
        f"baseOffset: {batch.base_offset} lastOffset: {batch.last_offset} count: {batch.count} baseSequence: -1 "
        f"lastSequence: -1 producerId: -1 producerEpoch: -1 partitionLeaderEpoch: {batch.leader_epoch} "
        f"isTransactional: false isControl: {str(batch.control).lower()} deleteHorizonMs: OptionalLong.empty "
        f"position: {batch.position} CreateTime: {batch.timestamp_ms} size: {batch.size_in_bytes} magic: 2 "
        f"compresscodec: none crc: {batch.crc} isvalid: true"
    )


def record_line(batch: RecordBatch, record: LogRecord, item: dict[str, Any], *, record_metadata: bool) -> str:
    """Return the line of a record; ``item`` has its payload."""
    payload = _payload(item)
    if not record_metadata:
        return "" if batch.control else f"| payload: {payload}"
    return (
        f"| offset: {record.offset} CreateTime: {record.timestamp_ms} keySize: {_size(record.key)} "
        f"valueSize: {_size(record.value)} sequence: -1 headerKeys: [] "
        + (f"{item['control']}{':' * (item['control'] == LeaderChange.NAME)} " if "control" in item else "payload: ")
        + payload
    )


def _payload(item: dict[str, Any]) -> str:
    if "error" in item:
        return str(item["error"])
    shown = item["data"] if "control" in item else {key: item[key] for key in ("type", "version", "data")}
    return _json(shown)


def _json(value: Any) -> str:
    """Return JSON as Jackson writes it, with doubles in Java's format."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json(key)}:{_json(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return java_double(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _size(field: bytes | None) -> int:
    return -1 if field is None else len(field)

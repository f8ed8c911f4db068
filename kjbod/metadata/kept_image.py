"""Store a metadata image in a form that loads quickly: an agent's metadata for its next start.

A snapshot in Kafka's format has one record per partition. Decoding and replaying 200,000 of these is most of the time
of a start. In this format equal tuples of brokers and directories are stored once, and partitions are columns of
numbers. The file is a cache beside Kafka's files, only kjbod reads it, and its loss does no harm.

The format is lines of JSON, so that it can be read and written a few milliseconds at a time. First a header with the
checksum of the other lines, and one of its own; then tables and the lines that refer to them, in this order::

    {"t": [[1, 2, 3], ...]}                     tuples of brokers
    {"d": ["<directory ids>", ...]}             tuples of directory ids
    {"s": [[replicas, directories, isr, removing, adding, leader, recovery, elr, last elr], ...]}     shapes
    {"p": [["<topic>", "<id>", numbers, shapes, leader epochs, partition epochs], ...]}       topics
    {"r": ["<record>", ...]}                    everything else, as records of the log

Checksum, cluster and node are checked before any data is used.
"""

import base64
import dataclasses
import json
from collections.abc import Generator, Iterator
from typing import Any, Final

from msgspec import Struct

from kjbod.documents import INT32_MAX, INT64_MAX, int_of, parse_document
from kjbod.errors import KjbodError
from kjbod.ids import Uuid
from kjbod.metadata import versions
from kjbod.metadata.image import MetadataImage, PartitionRegistration, Topic, shape_of
from kjbod.metadata.kept import Kept, Tail
from kjbod.metadata.records import FeatureLevelRecord, decode_record, encode_record
from kjbod.wire.codec import MalformedMessageError
from kjbod.wire.crc32c import crc32c

FORMAT: Final = 2
PER_LINE: Final = 2_000
"""Partitions, or table entries, per line: a line takes a few milliseconds to read."""
_RECORDS_PER_LINE: Final = 200
_ID_BYTES: Final = 16


class KeptImageError(KjbodError):
    """A stored image cannot be used; the text has the reason."""


class KeptHeader(Struct, frozen=True, kw_only=True):
    """Cluster and node of an image, and its end in the log."""

    cluster_id: str
    node_id: int
    kept: Kept
    kraft_version: int


# ---------------------------------------------------------------- writing


def encode_kept_image(image: MetadataImage, header: KeptHeader) -> bytes:
    """Return the file's content for an image at the end of ``header.kept``."""
    lines = [_line(part) for part in _parts(image)]
    body = b"".join(lines)
    tail = header.kept.tail
    head = {
        "format": FORMAT,
        "cluster_id": header.cluster_id,
        "node_id": header.node_id,
        "kraft_version": header.kraft_version,
        "tail": [tail.base_offset, tail.last_offset, tail.leader_epoch, tail.crc],
        "epochs": [list(epoch) for epoch in header.kept.epochs],
        "features": image.features,
        "bytes": len(body),
        "crc": crc32c(body),
    }
    return _line(head | {"head_crc": crc32c(_line(head))}) + body


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


class _Table:
    """Table of values that are each written once and referred to by number."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))


def _parts(image: MetadataImage) -> Iterator[dict[str, Any]]:
    brokers, directories, shapes = _Table(), _Table(), _Table()
    topics = [_topic(topic, shapes) for topic in image.topics.values()]
    rows = [_shape(shape, brokers, directories) for shape in shapes.numbers]
    yield from _chunks("t", [list(each) for each in brokers.numbers])
    yield from _chunks("d", [_text(b"".join(each)) for each in directories.numbers])
    yield from _chunks("s", rows)
    chunk: list[Any] = []
    size = 0
    for topic in topics:
        chunk.append(topic)
        size += 1 + len(topic[2])
        if size >= PER_LINE:
            yield {"p": chunk}
            chunk, size = [], 0
    yield {"p": chunk}
    yield from _chunks("r", [_text(record) for record in _other_records(image)], _RECORDS_PER_LINE)


def _chunks(kind: str, values: list[Any], size: int = PER_LINE) -> Iterator[dict[str, Any]]:
    for at in range(0, len(values), size):
        yield {kind: values[at : at + size]}


def _topic(topic: Topic, shapes: _Table) -> list[Any]:
    partitions = topic.partitions.values()
    return [
        topic.name,
        str(topic.id),
        list(topic.partitions),
        [shapes.number(shape_of(each)) for each in partitions],
        [each.leader_epoch for each in partitions],
        [each.partition_epoch for each in partitions],
    ]


def _shape(shape: tuple[Any, ...], brokers: _Table, directories: _Table) -> list[int]:
    replicas, homes, isr, removing, adding, leader, recovery, eligible, last_known = shape
    of = brokers.number
    row = [of(replicas), directories.number(homes), of(isr), of(removing), of(adding), leader, recovery]
    return [*row, of(eligible), of(last_known)]


def _other_records(image: MetadataImage) -> Iterator[bytes]:
    """Yield everything except topics, partitions and features as records of the newest level, whatever level the image
    has."""
    rest = dataclasses.replace(image, topics={}, topic_ids={})
    for record in rest.to_records(versions.LATEST):
        if not isinstance(record, FeatureLevelRecord):
            yield encode_record(record, versions.record_version(record, versions.LATEST))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


# ---------------------------------------------------------------- reading


def read_header(line: bytes, *, cluster_id: str, node_id: int) -> KeptHeader:
    """Return the header of a stored image from its first line.

    Raises:
        KeptImageError: the line is no header, or is for another format, cluster or node.
    """
    return _header(_document(line), cluster_id, node_id)


def _document(line: bytes) -> dict[str, Any]:
    try:
        head: dict[str, Any] = parse_document(line)
    except ValueError:
        raise KeptImageError("it is damaged at its header") from None
    if not isinstance(head, dict):
        raise KeptImageError("it is damaged at its header")
    if head.get("format") != FORMAT:
        raise KeptImageError(f"it is of format {head.get('format')}, not {FORMAT}")
    if head.pop("head_crc", None) != crc32c(_line(head)):
        raise KeptImageError("the checksum of its header is wrong")
    return head


def _header(head: dict[str, Any], cluster_id: str, node_id: int) -> KeptHeader:
    if head.get("cluster_id") != cluster_id:
        raise KeptImageError(f"it is of cluster {head.get('cluster_id')}, not {cluster_id}")
    if head.get("node_id") != node_id:
        raise KeptImageError(f"it is of node {head.get('node_id')}, not {node_id}")
    try:
        base, last, epoch, crc = (int_of(value, 0, INT64_MAX) for value in head["tail"])
        epochs = tuple((int_of(number, 0, INT32_MAX), int_of(start, 0, INT64_MAX)) for number, start in head["epochs"])
        level = int_of(head["kraft_version"], 0, INT32_MAX)
    except (ValueError, KeyError, TypeError):
        raise KeptImageError("it is damaged at its header") from None
    return KeptHeader(
        cluster_id=cluster_id, node_id=node_id, kept=Kept(Tail(base, last, epoch, crc), epochs), kraft_version=level
    )


def decode_in_steps(data: bytes, *, cluster_id: str, node_id: int) -> Generator[None, None, MetadataImage]:
    """Decode a stored image, with a pause every few milliseconds for the event loop.

    Raises:
        KeptImageError: the image is damaged, or of another format, cluster or node.
    """
    first, _, body = data.partition(b"\n")
    head = _document(first)
    header = _header(head, cluster_id, node_id)
    yield
    if head.get("bytes") != len(body) or head.get("crc") != crc32c(body):
        raise KeptImageError("its checksum is wrong")
    yield
    reader = _Reader()
    try:
        reader.image.features = {str(name): int_of(level, 0, INT32_MAX) for name, level in head["features"].items()}
        at = 0
        while at < len(body):
            end = body.index(b"\n", at)
            reader.take(json.loads(body[at:end]))
            at = end + 1
            yield
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, MalformedMessageError, KjbodError) as error:
        raise KeptImageError(f"it makes no sense: {error}") from None
    reader.image.offset, reader.image.epoch = header.kept.tail.last_offset, header.kept.tail.leader_epoch
    return reader.image


class _Reader:
    """The tables read so far, and the image that is built from them."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self._brokers: list[tuple[int, ...]] = []
        self._directories: list[tuple[Uuid, ...]] = []
        self._ids: dict[bytes, Uuid] = {}
        self._shapes: list[list[int]] = []
        self._alike: dict[tuple[int, int, int], PartitionRegistration] = {}

    def take(self, part: dict[str, Any]) -> None:
        """Process a line."""
        ((kind, values),) = part.items()
        if kind == "t":
            self._brokers += map(tuple, values)
        elif kind == "d":
            self._directories += map(self._homes, values)
        elif kind == "s":
            self._shapes += values
        elif kind == "p":
            for topic in values:
                self._take_topic(*topic)
        elif kind == "r":
            for record in values:
                self.image.replay(decode_record(base64.b64decode(record))[0])
        else:
            raise KeptImageError(f"it has {kind!r}, which is not known")

    def _homes(self, text: str) -> tuple[Uuid, ...]:
        raw = base64.b64decode(text)
        ids = (raw[at : at + _ID_BYTES] for at in range(0, len(raw), _ID_BYTES))
        return tuple(self._ids.get(each) or self._ids.setdefault(each, Uuid(each)) for each in ids)

    def _take_topic(
        self, name: str, topic_id: str, numbers: list[int], shapes: list[int], leading: list[int], changes: list[int]
    ) -> None:
        topic = Topic(Uuid.parse(topic_id), name)
        self.image.topics[topic.id] = topic
        self.image.topic_ids[name] = topic.id
        alike, partitions = self._alike, topic.partitions
        for number, shape, leader_epoch, partition_epoch in zip(numbers, shapes, leading, changes, strict=True):
            key = (shape, leader_epoch, partition_epoch)
            known = alike.get(key)
            partitions[number] = alike.setdefault(key, self._registration(*key)) if known is None else known

    def _registration(self, shape: int, leader_epoch: int, partition_epoch: int) -> PartitionRegistration:
        replicas, homes, isr, removing, adding, leader, recovery, eligible, last_known = self._shapes[shape]
        brokers = self._brokers
        return PartitionRegistration(
            replicas=brokers[replicas],
            directories=self._directories[homes],
            isr=brokers[isr],
            removing_replicas=brokers[removing],
            adding_replicas=brokers[adding],
            leader=leader,
            leader_recovery_state=recovery,
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
            eligible_leader_replicas=brokers[eligible],
            last_known_elr=brokers[last_known],
        )

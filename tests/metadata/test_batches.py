"""Record batches and records: round trips of anything, and bytes of a peer that lies."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from kjbod.ids import Uuid
from kjbod.metadata import batches, control_records
from kjbod.metadata.batches import HEADER_BYTES, CorruptBatchError, encode_batch, iter_batches, read_batch
from kjbod.metadata.control_records import CONTROL_TYPES, ControlRecord, decode_control, encode_control
from kjbod.metadata.dump import record_json
from kjbod.metadata.records import RECORD_TYPES, NoOpRecord, Record, decode_record, encode_record, wire_fields
from kjbod.wire.codec import REQUIRED, MalformedMessageError

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def _values(kind: str, nested: type[Any] | None, version: int) -> st.SearchStrategy[Any]:
    if kind == "struct":
        assert nested is not None
        return messages(nested, version)
    if kind in _BITS:
        half = 1 << _BITS[kind] - 1
        return st.integers(-half, half - 1)
    simple: dict[str, st.SearchStrategy[Any]] = {
        "uint16": st.integers(0, 65535),
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False),
        "uuid": st.binary(min_size=16, max_size=16).map(Uuid),
        "string": st.text(max_size=20),
        "bytes": st.binary(max_size=20),
    }
    return simple[kind]


def messages(cls: type[Struct], version: int) -> st.SearchStrategy[Any]:
    """Any message of ``cls`` that ``version`` can hold."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for name, (wire, default) in wire_fields(cls).items():
        if version < wire.since:
            continue
        one = _values(wire.kind, wire.of, version)
        strategy = st.lists(one, max_size=3).map(tuple) if wire.array else one
        if wire.nullable:
            strategy = st.none() | strategy
        if default is not REQUIRED:
            strategy = st.just(default) | strategy
        fields[name] = strategy
    return st.builds(cls, **fields)


RECORD_VERSIONS = [(cls, version) for cls in RECORD_TYPES.values() for version in range(cls.VERSION_MAX + 1)]
CONTROL_VERSIONS = [(cls, version) for cls in CONTROL_TYPES.values() for version in range(cls.VERSION_MAX + 1)]


@given(st.sampled_from(RECORD_VERSIONS).flatmap(lambda pick: st.tuples(messages(*pick), st.just(pick[1]))))
def test_any_record_is_read_as_it_was_written(pick: tuple[Record, int]) -> None:
    record, version = pick
    assert decode_record(encode_record(record, version)) == (record, version)
    assert record_json(record, version)["version"] == version


@given(st.sampled_from(CONTROL_VERSIONS).flatmap(lambda pick: st.tuples(messages(*pick), st.just(pick[1]))))
def test_any_control_record_is_read_as_it_was_written(pick: tuple[ControlRecord, int]) -> None:
    record, version = pick
    assert decode_control(*encode_control(record, version)) == (record, version)


@given(
    values=st.lists(st.binary(max_size=200), min_size=1, max_size=150),
    base_offset=st.integers(0, 2**62),
    epoch=st.integers(0, 2**31 - 1),
    timestamp=st.integers(0, 2**50),
)
def test_any_batch_is_read_as_it_was_written(values: list[bytes], base_offset: int, epoch: int, timestamp: int) -> None:
    batch = read_batch(encode_batch(values, base_offset, epoch, timestamp))
    assert batch is not None
    assert (batch.base_offset, batch.leader_epoch, batch.timestamp_ms) == (base_offset, epoch, timestamp)
    assert batch.next_offset == base_offset + len(values)
    assert [record.value for record in batch.records] == values
    assert [record.offset for record in batch.records] == list(range(base_offset, batch.next_offset))


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8_191, 8_192, 8_193, 131_073])
def test_each_record_of_a_batch_of_any_size_has_its_own_offset(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_deltas", ())
    values = [b"%d" % number for number in range(count)]
    for _ in range(2):  # the second time they are known
        (batch,) = iter_batches(encode_batch(values, 7, 1, 2))
        assert [(record.offset, record.value) for record in batch.records] == [*enumerate(values, start=7)]


def test_batches_that_threads_write_at_the_same_time_are_as_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [1 << power for power in range(14)]
    expected = [encode_batch([b"value"] * size, 0, 1, 2) for size in sizes]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(10):
            monkeypatch.setattr(batches, "_deltas", ())
            with ThreadPoolExecutor(4) as threads:
                written = threads.map(lambda size: encode_batch([b"value"] * size, 0, 1, 2), sizes * 4)
                assert [*written] == expected * 4
    finally:
        sys.setswitchinterval(interval_s)


def test_a_control_batch_holds_control_records_only() -> None:
    footer = control_records.SnapshotFooter()
    batch = read_batch(encode_batch([footer], 5, 1, 0, control=True))
    assert batch is not None
    assert batch.control
    assert list(batch.control_records()) == [(5, footer)]
    assert list(batch.metadata_records()) == []
    with pytest.raises(ValueError, match="do not share a batch"):
        encode_batch([footer, b"data"], 0, 1, 0, control=True)
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch([], 0, 1, 0)


BATCH = encode_batch([encode_record(NoOpRecord())] * 3, 10, 2, 1000)


def test_what_is_cut_off_is_asked_for_and_not_an_error() -> None:
    for length in range(len(BATCH)):
        assert read_batch(BATCH[:length]) is None
    assert [batch.position for batch in iter_batches(BATCH + BATCH + BATCH[:70])] == [0, len(BATCH)]


def test_any_wrong_byte_that_the_checksum_covers_is_found_with_its_position() -> None:
    for at in range(16, len(BATCH)):
        damaged = bytearray(BATCH + BATCH)
        damaged[len(BATCH) + at] ^= 1
        with pytest.raises(CorruptBatchError) as caught:
            list(iter_batches(bytes(damaged)))
        assert caught.value.position == len(BATCH)


def _with_checksum(data: bytearray) -> bytes:
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[17:21] = crc32c.crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (22, b"\x01", "compressed"),
        (23, b"\0\0\0\x07", "last offset delta"),
        (57, b"\0\0\0\x00", "0 records"),
        (57, b"\xff\xff\xff\xff", "-1 records"),
    ],
)
def test_a_batch_that_contradicts_itself_is_refused_though_its_checksum_is_right(
    at: int, value: bytes, why: str
) -> None:
    data = bytearray(BATCH)
    data[at : at + len(value)] = value
    with pytest.raises(CorruptBatchError, match=why):
        read_batch(_with_checksum(data))


@given(st.binary(max_size=60))
def test_records_of_any_bytes_are_read_or_refused(body: bytes) -> None:
    batch = read_batch(_with_checksum(bytearray(BATCH[:HEADER_BYTES] + body)))
    assert batch is not None
    try:
        records = list(batch.records)
    except CorruptBatchError:
        return
    assert len(records) == 3


@pytest.mark.parametrize("key", [None, b"", b"\0", b"\0\0\0\x63"])
def test_an_unknown_control_record_is_refused(key: bytes | None) -> None:
    with pytest.raises(MalformedMessageError):
        decode_control(key, b"\0\0")

"""A Kafka that is newer than kjbod: an observer goes on, knows what it does not know, and never breaks."""

import contextlib
import random
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from kjbod.errors import KjbodError, LogCorruptError
from kjbod.ids import Uuid
from kjbod.metadata import versions
from kjbod.metadata.batches import encode_batch, iter_batches
from kjbod.metadata.control_records import SnapshotFooter, SnapshotHeader
from kjbod.metadata.dump import payload_json, unknown_json
from kjbod.metadata.fetching import Committed, FetchMachine
from kjbod.metadata.image import MetadataImage, Replayer, ReplayError, image_of
from kjbod.metadata.newer import KINDS_MAX, Newer, is_harmless, lines_of, why_newer, why_not_registered
from kjbod.metadata.reading import dump_source, load
from kjbod.metadata.records import (
    RECORD_TYPES,
    TRANSACTION_MARKERS,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecordRef,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
    UnknownRecord,
    decode_newer,
    decode_record,
    encode_record,
)
from kjbod.metadata.shell import Shell
from kjbod.metadata.snapshot import decode_checkpoint
from kjbod.metadata.tree import Provenance, tree_of
from kjbod.wire.codec import MalformedMessageError
from kjbod.wire.crc32c import crc32c
from kjbod.wire.error_codes import ErrorCode
from tests.metadata.newer_logs import (
    LEVEL,
    STATE,
    TOPIC,
    UNKNOWN_TYPES,
    NewerLog,
    changes,
    partition,
    registered,
    value_of,
)
from tests.metadata.test_fetching import LEADER, answer

SEEDS = st.integers(0, 2**32)
CONCERNED = (0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 17, 23, 24, 25, 28)
"""Types that may concern a partition, a registration, a directory or a configuration."""
SPARED = (10, 11, 14, 15, 18, 19, 20, 21, 22, 26, 27, 29)


def observed(value: bytes) -> Record:
    found = decode_newer(value)
    return found.whole() if isinstance(found, PartitionRecordRef) else found


# ---------------------------------------------------------------- one record


def test_every_type_is_one_that_may_concern_a_partition_or_one_that_cannot() -> None:
    assert {*CONCERNED, *SPARED} == {*RECORD_TYPES, 29}
    assert [key for key in range(400) if is_harmless(key)] == sorted(SPARED)


@pytest.mark.parametrize("api_key", [*UNKNOWN_TYPES, 29])
@pytest.mark.parametrize("version", [0, 1, 40])
def test_a_record_of_a_type_that_is_not_known_is_skipped(api_key: int, version: int) -> None:
    assert observed(value_of(api_key, version, b"\3\1\2\0")) == UnknownRecord(api_key=api_key, version=version)


EACH = list({type(record): record for record in (*STATE, *changes())}.values())
"""A record of each type that a log has."""


def name(record: Record) -> str:
    return type(record).__name__


@pytest.mark.parametrize("record", EACH, ids=name)
@pytest.mark.parametrize("above", [1, 2, 30])
def test_of_a_version_above_the_known_one_the_known_fields_are_taken(record: Record, above: int) -> None:
    value = encode_record(record)
    version = value[2] + above
    found = observed(value_of(value[1], version, value[3:]))
    assert found == UnknownRecord(api_key=record.API_KEY, version=version, known=record)


@pytest.mark.parametrize("field", [b"\x28\0", b"\x63\3abc", b"\x88\x27\1x"])
@pytest.mark.parametrize("record", [registered(1), STATE[4], NoOpRecord()], ids=name)
def test_a_tagged_field_that_is_not_known_does_not_hide_the_others(record: Record, field: bytes) -> None:
    value = encode_record(record)
    tags = 1 if isinstance(record, RegisterBrokerRecord) else 0
    if tags:  # its directories
        at = value.rindex(b"\1\0")
        value = value[:at] + b"\2" + value[at + 1 :] + field
    else:
        value = value[:-1] + b"\1" + field
    found = observed(value_of(value[1], value[2] + 1, value[3:]))
    assert isinstance(found, UnknownRecord)
    assert found.known == record


@pytest.mark.parametrize("record", EACH[:4], ids=name)
def test_where_something_is_left_over_nothing_is_taken(record: Record) -> None:
    value = encode_record(record)
    longer = value_of(value[1], value[2] + 1, value[3:] + b"\0")
    assert observed(longer) == UnknownRecord(api_key=record.API_KEY, version=value[2] + 1)


@pytest.mark.parametrize("api_key", TRANSACTION_MARKERS)
def test_of_a_mark_of_a_transaction_the_type_says_all(api_key: int) -> None:
    found = observed(value_of(api_key, 7, b"what nobody can read"))
    assert isinstance(found, UnknownRecord)
    assert type(found.known) is TRANSACTION_MARKERS[api_key]


@pytest.mark.parametrize(
    "value", [b"", b"\1", b"\1\3", b"\2\3\0", b"\0\0\0", b"\xff\xff\xff\xff\xff\xff\3\0", b"\1\xff\xff\xff\xff\xff\3"]
)
def test_a_record_without_a_head_is_damaged(value: bytes) -> None:
    assert observed(value) == UnknownRecord()


@given(st.binary(max_size=60))
def test_no_bytes_break_an_observer(value: bytes) -> None:
    found = observed(value)
    if not isinstance(found, UnknownRecord):
        assert decode_record(value)[0] == found


@pytest.mark.parametrize("record", EACH, ids=name)
def test_a_record_that_is_known_is_never_called_unknown(record: Record) -> None:
    assert observed(encode_record(record)) == record


# ---------------------------------------------------------------- what is said


def noted(*kinds: tuple[int, int]) -> Newer:
    found = Newer()
    for api_key, version in kinds:
        found.note(UnknownRecord(api_key=api_key, version=version))
    return found


@pytest.mark.parametrize("api_key", SPARED)
def test_records_that_cannot_concern_a_partition_leave_the_picture_whole(api_key: int) -> None:
    found = noted((api_key, 5), (api_key, 5), (api_key, 6))
    assert (found.incomplete, found.problem, found.total) == (False, None, 3)


@pytest.mark.parametrize("api_key", [*CONCERNED, *UNKNOWN_TYPES, -1])
def test_one_that_may_makes_it_incomplete_and_is_named_with_the_remedy(api_key: int) -> None:
    found = noted((20, 1), (api_key, 9))
    assert found.incomplete
    name = "damaged" if api_key < 0 else "version 9"
    assert found.problem is not None
    assert name in found.problem
    assert found.problem.endswith("upgrade kjbod")


def test_the_words_have_names_where_there_are_some_and_an_end() -> None:
    assert (
        noted((30, 0)).problem
        == "the metadata have records that kjbod does not know (type 30 version 0): upgrade kjbod"
    )
    many = noted((3, 3), (0, 5), (5, 3), (99, 0), (98, 0))
    assert many.problem == (
        "the metadata have records that kjbod does not know (RegisterBrokerRecord version 5, PartitionRecord version 3"
        ", PartitionChangeRecord version 3 and 2 more kinds): upgrade kjbod"
    )


def test_who_shows_all_of_the_metadata_misses_any_record() -> None:
    assert noted().missing is None
    assert noted((29, 0)).missing == (
        "the metadata have records that kjbod does not know (UnregisterControllerRecord version 0): upgrade kjbod"
    )


def test_however_many_kinds_a_hostile_log_has_the_memory_ends() -> None:
    found = noted(*((key, version) for key in range(30, 130) for version in range(30)))
    assert len(found.counts) <= KINDS_MAX + 1
    assert found.total == 3000
    assert found.incomplete


@pytest.mark.parametrize("level", [versions.UNDERSTOOD + 1, versions.UNDERSTOOD + 2, 77, 99, 32767])
def test_a_level_that_is_not_known_is_said_with_the_remedy(level: int) -> None:
    assert why_newer(level) == f"metadata.version {level} is newer than kjbod knows: upgrade kjbod"
    assert lines_of(level, noted((30, 0)).problem, "nothing is done") == (
        f"metadata.version {level} is newer than kjbod knows: upgrade kjbod",
        "the metadata have records that kjbod does not know (type 30 version 0): upgrade kjbod; "
        "until then nothing is done",
    )


@pytest.mark.parametrize("level", [versions.MINIMUM, 17, 20, 25, versions.UNDERSTOOD])
def test_of_a_level_that_is_known_nothing_is_said(level: int) -> None:
    assert why_newer(level) is None
    assert lines_of(level, noted((29, 0)).problem, "nothing is done") == ()


@pytest.mark.parametrize(
    ("features", "why"),
    [
        ({}, None),
        ({LEVEL: versions.UNDERSTOOD}, None),
        ({LEVEL: versions.MINIMUM, "a.feature.of.tomorrow": 9}, None),
        ({LEVEL: 99}, "upgrade kjbod to a version that offers 99"),
        ({LEVEL: versions.UNDERSTOOD + 1}, f"upgrade kjbod to a version that offers {versions.UNDERSTOOD + 1}"),
        ({LEVEL: 5}, f"raise the level to {versions.MINIMUM} or above"),
        ({LEVEL: -3}, f"raise the level to {versions.MINIMUM} or above"),
    ],
)
def test_why_a_controller_refuses_an_agent_is_said_with_the_kjbod_that_it_takes(
    features: dict[str, int], why: str | None
) -> None:
    found = why_not_registered(features)
    if why is None:
        assert found is None
        return
    assert found is not None
    assert why in found
    assert f"the cluster is at metadata.version {features[LEVEL]}" in found
    assert f"{versions.MINIMUM} to {versions.UNDERSTOOD} ({versions.RELEASES[versions.UNDERSTOOD]})" in found


# ---------------------------------------------------------------- an image


def replayed(records: Iterable[Record], replayer: Replayer | None = None) -> MetadataImage:
    replayer = replayer or Replayer()
    for offset, record in enumerate(records, replayer.image.offset + 1):
        replayer.replay(offset, 1, record)
    return replayer.image


def unknown(api_key: int, version: int = 0, known: Record | None = None) -> UnknownRecord:
    return UnknownRecord(api_key=api_key, version=version, known=known)


def test_known_fields_are_applied_and_counted() -> None:
    image = replayed([*STATE[:5], unknown(3, 3, partition(0)), unknown(0, 5, registered(4))])
    assert image.partition(TOPIC, 0) is not None
    assert 4 in image.brokers
    assert image.newer.counts == {(3, 3): 1, (0, 5): 1}


@pytest.mark.parametrize(
    "record",
    [
        PartitionChangeRecord(partition_id=9, topic_id=TOPIC, leader=1),
        PartitionChangeRecord(partition_id=0, topic_id=Uuid.of(8, 8), leader=1),
        partition(0, Uuid.of(8, 8)),
        structs.replace(registered(4), log_dirs=registered(1).log_dirs),
        TopicRecord(name="t", topic_id=Uuid.of(8, 8)),
        EndTransactionRecord(),
    ],
)
def test_a_record_that_contradicts_is_skipped_only_in_a_picture_that_is_incomplete(record: Record) -> None:
    for before in ([], [unknown(29)], [unknown(18, 1)]):
        with pytest.raises(ReplayError):
            replayed([*STATE, *before, record])
    image = replayed([*STATE, unknown(30), record, FeatureLevelRecord(name=LEVEL, feature_level=25)])
    assert image.metadata_version == 25
    assert image == replayed([*STATE, FeatureLevelRecord(name=LEVEL, feature_level=25)])


def test_a_transaction_that_ends_with_a_mark_of_a_newer_version_ends() -> None:
    topic = TopicRecord(name="u", topic_id=Uuid.of(8, 8))
    begun = [*STATE, unknown(23, 1, BeginTransactionRecord()), topic]
    assert "u" not in replayed(begun).topic_ids
    assert "u" in replayed([*begun, unknown(24, 1, EndTransactionRecord())]).topic_ids


def test_an_unknown_record_of_a_transaction_that_is_aborted_never_counts() -> None:
    aborted = TRANSACTION_MARKERS[25]()
    image = replayed([*STATE, BeginTransactionRecord(), unknown(30), aborted])
    assert not image.newer.incomplete


def test_the_next_snapshot_without_such_a_record_makes_the_picture_whole() -> None:
    assert not image_of(STATE).newer.incomplete


# ---------------------------------------------------------------- snapshots


def test_a_snapshot_begins_with_what_is_not_known_and_has_the_known_fields_in_their_place() -> None:
    values = [encode_record(record) for record in STATE]
    later = [value_of(value[1], value[2] + 1, value[3:]) if value[1] == 3 else value for value in values]
    log = NewerLog((*later, value_of(30, 0), value_of(30, 0)), ())
    found = decode_checkpoint(log.checkpoint(), "s", observed=True)
    assert found.records == (
        unknown(3, 3).__class__(api_key=3, version=3, count=4),
        UnknownRecord(api_key=30, version=0, count=2),
        *STATE,
    )
    assert found.kraft_version == 1
    with pytest.raises(LogCorruptError, match="metadata record 3 version 3 is not known"):
        decode_checkpoint(log.checkpoint(), "s")


@pytest.mark.parametrize("seen", ["head", "middle", "foot"])
def test_a_control_record_that_is_not_known_hides_no_snapshot(seen: str) -> None:
    def control(kind: int, version: int) -> bytes:
        """A batch with one control record of any type and version."""
        fresh = bytearray(encode_batch([SnapshotHeader(last_contained_log_timestamp=5)], 0, 1, 5, control=True))
        key = bytes([8, 0, 0, 0, SnapshotHeader.TYPE])  # with its length
        at = fresh.index(key) + len(key)
        fresh[at - 2 : at] = kind.to_bytes(2, "big")
        fresh[at + 1 : at + 3] = version.to_bytes(2, "big")
        fresh[17:21] = crc32c(memoryview(fresh)[21:]).to_bytes(4, "big")
        return bytes(fresh)

    body = encode_batch([encode_record(record) for record in STATE], 2, 1, 1000)
    head = encode_batch([SnapshotHeader(last_contained_log_timestamp=5)], 0, 1, 5, control=True)
    foot = encode_batch([SnapshotFooter()], 9, 1, 5, control=True)
    parts = {
        "head": [control(SnapshotHeader.TYPE, 4), body, foot],
        "middle": [head, control(17, 0), body, foot],
        "foot": [head, body, control(SnapshotFooter.TYPE, 4)],
    }[seen]
    assert decode_checkpoint(b"".join(parts), "s", observed=True).records == STATE


# ---------------------------------------------------------------- logs that no release has written


def fetched(log: NewerLog, seed: int) -> Iterator[Committed]:
    """What an observer hands over of a log that a controller serves."""
    rng = random.Random(seed)
    m = FetchMachine([("a", 1)], random.Random(seed))
    m.on_fetch(answer(error=ErrorCode.FENCED_LEADER_EPOCH, leader=LEADER), 0)
    batches = log.batches(seed)
    end = sum(batch.count for raw in batches for batch in iter_batches(raw))
    at = 0
    while at < len(batches):
        count = rng.randrange(1, 4)
        part = b"".join(batches[at : at + count])
        at += count
        for effect in m.on_fetch(answer(part, hw=end), at):
            if isinstance(effect, Committed):
                yield effect
    assert (m.applied_offset, m.problem) == (end, None), "nothing ends it"


def expects_whole(log: NewerLog) -> bool:
    """Whether nothing in a log makes its picture incomplete, by the values themselves."""
    found = (observed(value) for value in (*log.snapshot, *log.log))
    return all(not isinstance(one, UnknownRecord) or is_harmless(one.api_key) for one in found)


@given(SEEDS)
def test_whatever_a_log_has_it_is_followed_to_its_end(seed: int) -> None:
    log = NewerLog.of(seed)
    replayer = Replayer()
    for committed in fetched(log, seed):
        for offset, record in committed.records:
            try:
                replayer.replay(offset, committed.epoch, record)
            except ReplayError:
                assert not replayer.image.newer.incomplete, "a known record that contradicts known ones"
                return
        replayer.skip(committed.last_offset, committed.epoch)


@given(SEEDS)
def test_whatever_a_snapshot_has_it_is_read_and_shown(seed: int) -> None:
    log = NewerLog.of(seed)
    checkpoint = decode_checkpoint(log.checkpoint(), "s", observed=True)
    for record in checkpoint.records:
        if isinstance(record, UnknownRecord):
            assert "error" in unknown_json(record)
    try:
        image = image_of(checkpoint.records)
    except ReplayError:
        return
    shown = Shell(lambda: tree_of(image, Provenance(1, 1, 1)))
    for command in ("ls /", "tree /image", "cat /image/features/*"):
        assert list(shown.enter(command))
    whole = NewerLog(log.snapshot, ())
    assert image.newer.incomplete is not expects_whole(whole)


@given(SEEDS)
def test_every_record_is_dumped_or_said_to_be_an_error(seed: int) -> None:
    for raw in NewerLog.of(seed).batches(seed):
        for batch in iter_batches(raw):
            with contextlib.suppress(MalformedMessageError):  # the records do not fill it: the file is corrupt
                for record in batch.records:
                    found = payload_json(batch, record)
                    assert "type" in found or "error" in found


@given(SEEDS)
def test_files_that_no_release_has_written_are_read_or_refused_in_one_line(seed: int) -> None:
    log = NewerLog.of(seed)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "00000000000000000000.log"
        path.write_bytes(b"".join(log.batches(seed)))
        for read in (load, lambda source: list(dump_source(source))):
            try:
                read(path)
            except KjbodError as error:
                assert "\n" not in str(error)

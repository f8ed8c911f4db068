"""kjbod against the metadata log, the snapshots and the dumps of a real Kafka 4.3.1 controller."""

import itertools
import json
from pathlib import Path
from typing import Any

from kjbod.metadata import versions
from kjbod.metadata.batches import RecordBatch, encode_batch, iter_batches
from kjbod.metadata.checkpoint_files import checkpoints_in, read_checkpoint
from kjbod.metadata.control_records import ControlRecord, decode_control
from kjbod.metadata.dump import dump, payload_json
from kjbod.metadata.image import MetadataImage, Replayer, changes_between, image_of
from kjbod.metadata.log_files import Indexer, open_log
from kjbod.metadata.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from kjbod.metadata.records import decode_record
from kjbod.metadata.snapshot import SnapshotId, encode_checkpoint


def batches_of(path: Path) -> list[RecordBatch]:
    return list(iter_batches(path.read_bytes()))


def image_at(golden: Any, offset: int) -> MetadataImage:
    """The image of the golden log's records below ``offset``."""
    replayer = Replayer()
    for batch in batches_of(golden.segment):
        for at, record in batch.metadata_records():
            if at < offset:
                replayer.replay(at, batch.leader_epoch, record)
    assert not replayer.in_transaction
    return replayer.image


def test_every_batch_that_kafka_wrote_is_written_with_the_same_bytes(golden: Any) -> None:
    for path in golden.files:
        data = path.read_bytes()
        again = bytearray()
        for batch in iter_batches(data):
            values: list[bytes | ControlRecord] = [
                decode_control(record.key, record.value)[0] if batch.control else record.value or b""
                for record in batch.records
            ]
            again += encode_batch(values, batch.base_offset, batch.leader_epoch, batch.timestamp_ms, batch.control)
        assert bytes(again) == data


def test_the_dump_says_what_kafka_dump_log_says(golden: Any) -> None:
    for path in golden.files:
        for batch, expected in zip(batches_of(path), golden.dump_of(path), strict=True):
            assert batch.position == expected["batch"]["position"]
            assert batch.crc == expected["batch"]["crc"]
            for record, fields in zip(batch.records, expected["records"], strict=True):
                payload = {key: fields[key] for key in ("type", "version", "control", "data") if key in fields}
                assert json.dumps(payload_json(batch, record)) == json.dumps(payload)


def test_a_dump_names_each_record_with_offset_and_time(golden: Any) -> None:
    lines = list(dump(golden.segment))
    assert [line["offset"] for line in lines] == list(range(756))
    assert lines[4] == {
        "offset": 4,
        "timestamp": 1795199737662,
        "type": "FEATURE_LEVEL_RECORD",
        "version": 0,
        "data": {"name": "metadata.version", "featureLevel": 30},
    }


def test_replaying_the_log_gives_the_image_of_its_newest_snapshot(golden: Any) -> None:
    checkpoint = read_checkpoint(golden.newest_checkpoint)
    end = SnapshotId.parse(golden.newest_checkpoint.name)
    assert end == SnapshotId(488, 1)
    from_snapshot = image_of(checkpoint.records)
    from_log = image_at(golden, 488)
    assert from_log == from_snapshot
    assert list(changes_between(from_log, from_snapshot)) == []
    assert from_log.metadata_version == 30
    assert {topic.name for topic in from_log.topics.values()} >= {"events", "__consumer_offsets"}


def test_the_image_after_a_snapshot_and_the_rest_of_the_log_is_that_of_the_whole_log(golden: Any) -> None:
    image = image_of(read_checkpoint(golden.newest_checkpoint).records, offset=487, epoch=1)
    for batch in batches_of(golden.segment):
        for offset, record in batch.metadata_records():
            if offset >= 488:
                image.replay(record, offset)
    assert image == image_at(golden, 756)
    assert image.offset == 755


def test_a_snapshot_of_ours_describes_the_same_cluster_in_kafkas_order_of_kinds(golden: Any) -> None:
    theirs = read_checkpoint(golden.newest_checkpoint).records
    ours = list(image_of(theirs).to_records())
    assert len(ours) == len(theirs)
    assert image_of(ours) == image_of(theirs)
    assert [kind for kind, _ in itertools.groupby(ours, key=type)] == [
        kind for kind, _ in itertools.groupby(theirs, key=type)
    ]


def test_checkpoints_differ_from_kafkas_in_nothing_but_the_batches_times(golden: Any) -> None:
    for path in golden.checkpoints:
        checkpoint = read_checkpoint(path)
        kraft = None if checkpoint.voters is None else (checkpoint.kraft_version, checkpoint.voters)
        ours = encode_checkpoint(
            header_timestamp_ms=checkpoint.last_contained_log_timestamp_ms, kraft=kraft, records=checkpoint.records
        )
        theirs = batches_of(path)
        for mine, their in zip(iter_batches(ours), theirs, strict=True):
            assert [(r.offset, r.key, r.value) for r in mine.records] == [
                (r.offset, r.key, r.value) for r in their.records
            ]


def test_records_are_written_in_the_versions_that_kafka_chose(golden: Any) -> None:
    for path in golden.files:
        for batch in batches_of(path):
            if batch.control:
                continue
            for raw in batch.records:
                record, version = decode_record(raw.value or b"")
                assert versions.record_version(record, 30) == version


def test_indexes_are_those_that_kafka_wrote(golden: Any) -> None:
    index, time_index = bytearray(), bytearray()
    indexer = Indexer(0)
    for batch in batches_of(golden.segment):
        if batch.base_offset == 658:  # the controller was stopped and started here
            time_index += indexer.last_time_entry()
            indexer._since_entry = 0
        entry, time_entry = indexer.add(batch, batch.position)
        index += entry
        time_index += time_entry
    time_index += indexer.last_time_entry()
    assert bytes(index) == golden.segment.with_suffix(".index").read_bytes()
    assert bytes(time_index) == golden.segment.with_suffix(".timeindex").read_bytes()


def test_a_log_of_kafkas_is_opened_and_goes_on(golden: Any, tmp_path: Path) -> None:
    for path in golden.directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    log = open_log(tmp_path)
    assert (log.start_offset, log.end_offset, log.torn) == (0, 756, None)
    assert log.epochs == [(1, 0), (2, 658)]
    log.close()
    for name in ("leader-epoch-checkpoint", "partition.metadata", "quorum-state", golden.segment.name):
        assert (tmp_path / name).read_bytes() == (golden.directory / name).read_bytes()
    assert list(checkpoints_in(tmp_path)) == [SnapshotId(0, 0), SnapshotId(275, 1), SnapshotId(488, 1)]


def test_quorum_state_is_written_with_the_bytes_that_kafka_wrote(golden: Any, tmp_path: Path) -> None:
    state = read_quorum_state(golden.directory)
    assert state == QuorumState(leader_id=3000, leader_epoch=2)
    write_quorum_state(tmp_path, state)
    assert (tmp_path / "quorum-state").read_bytes() == (golden.directory / "quorum-state").read_bytes()

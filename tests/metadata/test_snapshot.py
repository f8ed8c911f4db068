"""Checkpoint files: written whole or not at all, and refused when they are not whole."""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from kjbod.errors import LogCorruptError, StorageError
from kjbod.ids import random_uuid
from kjbod.metadata.batches import BATCH_BYTES_MAX, iter_batches
from kjbod.metadata.checkpoint_files import checkpoints_in, read_checkpoint, write_checkpoint
from kjbod.metadata.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from kjbod.metadata.records import ConfigRecord, FeatureLevelRecord, Record, TopicRecord
from kjbod.metadata.snapshot import SnapshotId, decode_checkpoint, encode_checkpoint

LEVEL = FeatureLevelRecord(name="metadata.version", feature_level=30)


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    records: list[Record] = [LEVEL, TopicRecord(name="t", topic_id=random_uuid(random.Random(1)))]
    path = tmp_path / SnapshotId(40, 2).file_name
    write_checkpoint(path, header_timestamp_ms=5, kraft=(1, None), records=records, leader_epoch=2)
    read = read_checkpoint(path)
    assert (read.last_contained_log_timestamp_ms, read.kraft_version, read.voters) == (5, 1, None)
    assert read.records == tuple(records)
    assert path.stat().st_mode & 0o777 == 0o400, "as Kafka leaves snapshots"
    assert [p.name for p in tmp_path.iterdir()] == ["00000000000000000040-0000000002.checkpoint"]
    assert list(checkpoints_in(tmp_path)) == [SnapshotId(40, 2)]
    write_checkpoint(path, header_timestamp_ms=6, kraft=None, records=[], leader_epoch=2)
    assert read_checkpoint(path).last_contained_log_timestamp_ms == 6, "replaced although read-only"


def test_names_that_are_no_finished_snapshots_are_passed_over(tmp_path: Path) -> None:
    for name in ("bootstrap.checkpoint", f"{SnapshotId(1, 1).file_name}.part", "x.checkpoint", "1-1.checkpoint"):
        (tmp_path / name).touch()
    assert checkpoints_in(tmp_path) == {}


def test_large_snapshots_are_written_in_batches_that_kafka_accepts() -> None:
    value = "x" * 1_000_000
    records = [ConfigRecord(resource_type=2, resource_name="t", name=str(n), value=value) for n in range(20)]
    data = encode_checkpoint(header_timestamp_ms=0, kraft=None, records=records)
    sizes = [batch.size_in_bytes for batch in iter_batches(data)]
    assert len(sizes) == 5
    assert max(sizes) <= BATCH_BYTES_MAX
    assert decode_checkpoint(data, "x").records == tuple(records)


def test_a_checkpoint_cut_off_anywhere_is_refused(golden: Any) -> None:
    data = golden.files[0].read_bytes()
    for length in range(len(data)):
        with pytest.raises(LogCorruptError, match="checkpoint name is corrupt at position"):
            decode_checkpoint(data[:length], "name")


def test_a_checkpoint_with_a_wrong_byte_or_more_behind_its_end_is_refused(golden: Any) -> None:
    data = golden.files[0].read_bytes()
    damaged = bytearray(data)
    damaged[150] ^= 1
    for wrong in (bytes(damaged), data + data, data + b"x"):
        with pytest.raises(LogCorruptError, match="corrupt at position"):
            decode_checkpoint(wrong, "name")


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "bootstrap.checkpoint"
    write_checkpoint(path, header_timestamp_ms=0, kraft=None, records=[LEVEL])
    before = path.read_bytes()

    def fail(*args: Any, **kwargs: Any) -> int:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as broken:
        broken.setattr(os, failing, fail)
        with pytest.raises(StorageError, match=rf"cannot write {path}: No space left on device"):
            write_checkpoint(path, header_timestamp_ms=9, kraft=None, records=[])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["bootstrap.checkpoint"]


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot read .*bootstrap.checkpoint: No such file"):
        read_checkpoint(tmp_path / "bootstrap.checkpoint")


def test_quorum_state_of_both_versions_is_read(tmp_path: Path) -> None:
    assert read_quorum_state(tmp_path) is None
    state = QuorumState(leader_id=1, leader_epoch=4, voted_id=1, voted_directory_id=random_uuid(random.Random(3)))
    write_quorum_state(tmp_path, state)
    assert read_quorum_state(tmp_path) == state
    (tmp_path / "quorum-state").write_text(
        '{"clusterId":"","leaderId":2,"leaderEpoch":7,"votedId":-1,"appliedOffset":0,"currentVoters":[],"data_version":0}'
    )
    assert read_quorum_state(tmp_path) == QuorumState(leader_id=2, leader_epoch=7)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "null", '{"data_version":9}', '{"data_version":1,"leaderId":"x"}'])
def test_a_quorum_state_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "quorum-state").write_text(text)
    with pytest.raises(StorageError, match="quorum-state"):
        read_quorum_state(tmp_path)

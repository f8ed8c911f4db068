"""The metadata log on a real disk: what was acknowledged stays, what was torn goes, what is broken is refused."""

import asyncio
import itertools
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kjbod.errors import LogCorruptError, StorageError
from kjbod.ids import Uuid
from kjbod.metadata import clean_stop, log_files
from kjbod.metadata.batches import encode_batch, iter_batches
from kjbod.metadata.log import MetadataLog, OffsetOutOfRangeError
from kjbod.metadata.log_files import open_log
from kjbod.metadata.quorum_state import QuorumState, write_quorum_state
from kjbod.metadata.records import TopicRecord, encode_record
from tests.depth import seeds

FIRST = "00000000000000000000.log"


def batch_at(offset: int, count: int = 1, *, epoch: int = 1, text: str = "t") -> bytes:
    values = [encode_record(TopicRecord(name=text, topic_id=Uuid.of(7, offset + i))) for i in range(count)]
    return encode_batch(values, offset, epoch, 1_700_000_000_000 + offset)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def segment_paths(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / log_files.DIRECTORY_NAME


async def write(directory: Path, *batches: bytes, **options: Any) -> None:
    log = await MetadataLog.open(directory, **options)
    try:
        await log.append(batches)
    finally:
        await log.close()


async def write_and_die(directory: Path, *batches: bytes) -> None:
    """As :func:`write`, but nothing says that this was a clean stop."""
    await write(directory, *batches)
    (directory / clean_stop.FILE_NAME).unlink()


async def test_what_was_appended_is_there_after_a_restart(directory: Path) -> None:
    batches = [batch_at(0, 3), batch_at(3), batch_at(4, 2, epoch=2)]
    await write(directory, *batches)
    log = await MetadataLog.open(directory)
    assert (log.start_offset, log.end_offset, log.next_offset, log.last_epoch) == (0, 6, 6, 2)
    assert await log.read(0, 1 << 20) == b"".join(batches)
    assert [batch.base_offset async for batch in log.batches(3)] == [3, 4]
    await log.close()
    assert (directory / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n2 4\n"
    assert (directory / "partition.metadata").read_text() == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"


async def test_a_new_log_starts_where_the_snapshot_ends(directory: Path) -> None:
    log = await MetadataLog.open(directory, start_offset=40)
    assert (log.start_offset, log.end_offset) == (40, 40)
    await log.append([batch_at(40)])
    await log.close()
    assert (directory / "00000000000000000040.log").exists()


async def test_the_parent_of_a_log_is_never_created(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot open the metadata log in .*missing"):
        await MetadataLog.open(tmp_path / "missing" / log_files.DIRECTORY_NAME)
    assert not (tmp_path / "missing").exists()


async def test_only_the_next_whole_batch_is_taken(directory: Path) -> None:
    log = await MetadataLog.open(directory)
    await log.append([batch_at(0, epoch=3)])
    for wrong in (batch_at(2, epoch=3), batch_at(0, epoch=3), batch_at(1, epoch=2), batch_at(1, epoch=3)[:-1]):
        with pytest.raises(ValueError, match="append"):
            log.submit([wrong])
    assert await log.append([batch_at(1, epoch=3)]) == 2
    await log.close()


async def test_appends_that_wait_together_share_an_fsync(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = 0
    real = os.fdatasync

    def counting(fd: int) -> None:
        nonlocal syncs
        syncs += 1
        real(fd)

    monkeypatch.setattr(os, "fdatasync", counting)
    log = await MetadataLog.open(directory)
    ends = await asyncio.gather(*(log.append([batch_at(offset)]) for offset in range(200)))
    assert list(ends) == list(range(1, 201))
    assert syncs <= 3
    await log.close()


def _remove_all(directory: Path) -> None:
    shutil.rmtree(directory)


def _remove_segment(directory: Path) -> None:
    segment_paths(directory)[-1].unlink()


def _replace_all(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


def _replace_segment(directory: Path) -> None:
    path = segment_paths(directory)[-1]
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


def _rename_over(directory: Path) -> None:
    other = directory / "other"
    other.write_bytes(b"")
    other.rename(segment_paths(directory)[-1])


@pytest.mark.parametrize("remove", [_remove_all, _remove_segment, _replace_all, _replace_segment, _rename_over])
async def test_a_log_that_was_removed_under_its_writer_acknowledges_nothing_more(
    directory: Path, remove: Callable[[Path], None]
) -> None:
    log = await MetadataLog.open(directory)
    assert await log.append([batch_at(0)]) == 1
    remove(directory)
    with pytest.raises(StorageError, match=r"was removed while it was written to: restore .* from a backup"):
        await log.append([batch_at(1)])
    assert log.end_offset == 1
    await log.close()


async def test_nothing_is_read_before_it_is_durable(directory: Path) -> None:
    log = await MetadataLog.open(directory)
    done = log.submit([batch_at(0)])
    assert (log.next_offset, log.end_offset) == (1, 0)
    assert await log.read(0, 100) == b""
    await done
    assert log.end_offset == 1
    assert await log.read(0, 100) == batch_at(0)
    await log.close()


async def test_an_append_whose_caller_is_cancelled_is_still_written(directory: Path) -> None:
    log = await MetadataLog.open(directory)
    task = asyncio.ensure_future(log.append([batch_at(0)]))
    await asyncio.sleep(0)
    task.cancel()
    assert await log.append([batch_at(1)]) == 2
    await log.close()
    again = await MetadataLog.open(directory)
    assert again.end_offset == 2
    await again.close()


@pytest.mark.parametrize("failing", ["write", "fdatasync"])
async def test_after_a_failed_write_nothing_is_acknowledged_any_more(
    directory: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    log = await MetadataLog.open(directory)
    await log.append([batch_at(0)])

    def fail(*args: Any) -> int:
        raise OSError(5, os.strerror(5))

    with monkeypatch.context() as broken:
        broken.setattr(os, failing, fail)
        results = await asyncio.gather(*(log.append([batch_at(o)]) for o in (1, 2)), return_exceptions=True)
    assert all(isinstance(result, StorageError) for result in results)
    assert "Input/output error" in str(results[0])
    with pytest.raises(StorageError, match="Input/output error"):
        await log.append([batch_at(3)])
    assert log.end_offset == 1
    assert log.failure is not None
    await log.close()


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20], ids=["from the file", "from memory"])
@pytest.mark.parametrize("segment_bytes", [1 << 30, 2000], ids=["one segment", "many segments"])
async def test_reads_give_whole_batches_from_any_offset(directory: Path, tail_bytes: int, segment_bytes: int) -> None:
    sizes = [1, 3, 1, 7, 2] * 60
    batches, offset = [], 0
    for size in sizes:
        batches.append(batch_at(offset, size))
        offset += size
    log = await MetadataLog.open(directory, segment_bytes=segment_bytes, tail_bytes=tail_bytes)
    await log.append(batches)
    for start in range(0, offset, 5):
        wanted = next(b for b in iter_batches(b"".join(batches)) if b.last_offset >= start)
        data = await log.read(start, 700)
        read = list(iter_batches(data))
        assert sum(batch.size_in_bytes for batch in read) == len(data) <= 700
        assert read[0].base_offset == wanted.base_offset
        assert len(await log.read(start, 1)) == wanted.size_in_bytes, "one batch at least"
        assert await log.read(start, 700, limit=wanted.last_offset) == b"", "not beyond the limit"
    assert [b.raw async for b in log.batches(0)] == batches
    assert await log.read(offset, 700) == b""
    for outside in (-1, offset + 1):
        with pytest.raises(OffsetOutOfRangeError):
            await log.read(outside, 700)
    await log.close()


async def test_a_batch_larger_than_what_was_asked_for_is_read_whole(directory: Path) -> None:
    big = batch_at(0, 3000)
    await write(directory, big)
    log = await MetadataLog.open(directory)
    assert len(big) > 70_000
    assert await log.read(1500, 1000) == big
    await log.close()


async def test_segments_roll_at_their_size_and_are_named_by_offset(directory: Path) -> None:
    await write(directory, *(batch_at(offset) for offset in range(100)), segment_bytes=1000)
    logs = segment_paths(directory)
    assert len(logs) > 5
    for path in logs:
        assert path.stat().st_size <= 1000
        first = next(iter_batches(path.read_bytes()))
        assert path.name == f"{first.base_offset:020d}.log"
        assert path.with_suffix(".index").exists()
        assert path.with_suffix(".timeindex").exists()
    log = await MetadataLog.open(directory, segment_bytes=1000)
    assert log.end_offset == 100
    await log.delete_before(50)
    assert log.start_offset == 50
    assert logs[0] not in segment_paths(directory)
    assert 0 < int(segment_paths(directory)[0].stem) <= 50
    assert [b.base_offset async for b in log.batches(log.start_offset)] == list(range(log.start_offset, 100))
    await log.close()


async def test_segments_roll_when_their_first_batch_is_old(directory: Path) -> None:
    # The batches are a millisecond apart.
    await write(directory, *(batch_at(offset) for offset in range(100)), segment_ms=29)
    assert [int(path.stem) for path in segment_paths(directory)] == [0, 30, 60, 90]
    await write(directory, batch_at(100), batch_at(101), segment_ms=10)  # the age goes on after a restart
    assert [int(path.stem) for path in segment_paths(directory)] == [0, 30, 60, 90, 101]


async def test_leader_epochs_that_end_below_the_start_of_the_log_are_forgotten(directory: Path) -> None:
    batches = [batch_at(offset, epoch=1 + offset // 10) for offset in range(40)]
    await write(directory, *batches, segment_bytes=500)
    log = await MetadataLog.open(directory, segment_bytes=500)
    await log.delete_before(25)
    assert log.epoch_end_offset(1) == (1, 25)  # below all that is there
    assert log.epoch_end_offset(3) == (3, 30)
    await log.close()
    assert (directory / "leader-epoch-checkpoint").read_text() == "0\n2\n3 25\n4 30\n"


async def test_a_log_is_only_read_until_it_is_to_be_repaired(directory: Path) -> None:
    await write(directory, batch_at(0), batch_at(1))
    with (directory / f"{0:020d}.log").open("ab") as file:
        file.write(b"torn")
    (directory / f"{0:020d}.index").write_bytes(b"wrong")
    before = contents(directory)
    log = await MetadataLog.open(directory, repair=False)
    assert [batch.base_offset async for batch in log.batches(0)] == [0, 1]
    await log.close()
    assert contents(directory) == before
    log = await MetadataLog.open(directory, repair=False)
    await log.repair()
    await log.append([batch_at(2)])
    await log.close()
    assert (directory / f"{0:020d}.log").read_bytes() == batch_at(0) + batch_at(1) + batch_at(2)


async def test_batches_before_and_after_a_mark_are_not_joined(directory: Path) -> None:
    log = await MetadataLog.open(directory)
    appends = [log.submit([batch_at(offset)]) for offset in range(3)]
    assert log.mark() == 3
    appends += [log.submit([batch_at(offset)]) for offset in range(3, 6)]
    await asyncio.gather(*appends)
    assert 3 in [batch.base_offset async for batch in log.batches(0)]
    await log.close()


async def test_index_entries_name_batch_starts_about_every_4_kib(directory: Path) -> None:
    await write(directory, *(batch_at(offset * 2, 2) for offset in range(2000)), segment_bytes=100_000)
    for path in segment_paths(directory):
        base = int(path.stem)
        batches = {batch.position: batch for batch in iter_batches(path.read_bytes())}
        entries = list(struct.iter_unpack(">ii", path.with_suffix(".index").read_bytes()))
        positions = [position for _, position in entries]
        assert all(batches[position].last_offset == base + relative for relative, position in entries)
        assert all(4096 < b - a < 4096 + 400 for a, b in itertools.pairwise(positions))
        times = list(struct.iter_unpack(">qi", path.with_suffix(".timeindex").read_bytes()))
        by_offset = {batch.last_offset - base: batch.timestamp_ms for batch in batches.values()}
        assert all(by_offset[relative] == timestamp for timestamp, relative in times)
        assert times[-1][1] == max(by_offset), "the last entry is the newest record, also in a full segment"


@pytest.mark.parametrize("damage", ["missing", "wrong", "torn"])
async def test_indexes_are_rebuilt(directory: Path, damage: str) -> None:
    await write(directory, *(batch_at(offset) for offset in range(500)))
    before = contents(directory)
    for name in (FIRST.replace(".log", ".index"), FIRST.replace(".log", ".timeindex"), "leader-epoch-checkpoint"):
        if damage == "missing":
            (directory / name).unlink()
        else:
            (directory / name).write_bytes(before[name][:-3] if damage == "torn" else b"x" * 24)
    log = await MetadataLog.open(directory)
    await log.close()
    assert contents(directory) == before


# ---------------------------------------------------------------- torn tails and corruption


async def test_a_last_batch_cut_off_at_any_byte_is_dropped_and_nothing_else(directory: Path) -> None:
    first, last = [batch_at(0, 2), batch_at(2)], batch_at(3, 2)
    await write_and_die(directory, *first, last)
    kept = b"".join(first)
    for length in range(len(last)):
        (directory / FIRST).write_bytes(kept + last[:length])
        log = open_log(directory)
        assert log.end_offset == 3
        assert (log.torn is None) == (length == 0)
        assert log.torn is None or (log.torn.position, log.torn.bytes_cut) == (len(kept), length)
        log.close()
        assert (directory / FIRST).read_bytes() == kept


async def test_a_last_batch_with_any_byte_wrong_is_dropped_or_refused_but_never_believed(directory: Path) -> None:
    kept, last = batch_at(0, 2), batch_at(2, 2)
    await write_and_die(directory, kept, last)
    for at in range(len(last)):
        damaged = bytearray(last)
        damaged[at] ^= 0x41
        (directory / FIRST).write_bytes(kept + damaged)
        try:
            log = open_log(directory)
        except LogCorruptError:
            # Base offset and leader epoch are outside the checksum: a batch in the wrong place is no torn tail. Nor is
            # one that by its length ends before the file does, and is whole otherwise.
            assert at < 16
            continue
        if 12 <= at < 16:
            assert log.epochs[-1][0] != 1, "a larger leader epoch cannot be told from a true one"
        else:
            assert log.end_offset == 2
            assert (directory / FIRST).read_bytes() == kept
        log.close()


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\xff" * 5000, b"\2" * 5000], ids=["zeros", "ones", "magics"])
async def test_a_tail_of_garbage_is_dropped(directory: Path, tail: bytes) -> None:
    await write(directory, batch_at(0))
    with (directory / FIRST).open("ab") as file:
        file.write(tail)
    log = await MetadataLog.open(directory)
    assert log.end_offset == 1
    await log.append([batch_at(1)])
    await log.close()
    assert (directory / FIRST).read_bytes() == batch_at(0) + batch_at(1)


async def test_damage_at_any_byte_before_the_last_batch_is_refused_and_nothing_is_changed(directory: Path) -> None:
    first, damaged, last = batch_at(0), batch_at(1, 2), batch_at(3)
    await write(directory, first, damaged, last)
    good = (directory / FIRST).read_bytes()
    for at in range(len(first), len(first) + len(damaged)):
        if len(first) + 12 <= at < len(first) + 16:
            continue  # the leader epoch: a smaller or larger one is caught below
        data = bytearray(good)
        data[at] ^= 0xFF
        (directory / FIRST).write_bytes(data)
        before = contents(directory)
        with pytest.raises(LogCorruptError, match=rf"{FIRST} is corrupt at position {len(first)}: "):
            open_log(directory)
        assert contents(directory) == before


def _flip(data: bytearray, positions: list[int], at: int) -> None:
    for position in positions:
        data[position + at] ^= 0xFF


@pytest.mark.parametrize("at", [-1, 0, 8, 17, 61], ids=["end", "offset", "length", "checksum", "records"])
@pytest.mark.parametrize("last", [2, 40], ids=["two", "forty"])
async def test_several_damaged_batches_at_the_end_are_no_torn_tail(directory: Path, last: int, at: int) -> None:
    await write_and_die(directory, *(batch_at(offset) for offset in range(60)))
    data = bytearray((directory / FIRST).read_bytes())
    damaged = list(iter_batches(bytes(data)))[-last:]
    # The newest one may be whole in all but its end: it can be torn.
    _flip(data, [batch.position + (batch.size_in_bytes if at < 0 else 0) for batch in damaged[:-1]], at)
    data[-1] ^= 0xFF
    (directory / FIRST).write_bytes(data)
    before = contents(directory)
    with pytest.raises(
        LogCorruptError, match=rf"at position {damaged[0].position}: .* Records from offset {60 - last}"
    ):
        open_log(directory)
    assert contents(directory) == before


@pytest.mark.parametrize("lost", [512, 4096])
async def test_an_end_of_zeros_behind_a_batch_that_ends_before_it_is_no_torn_tail(directory: Path, lost: int) -> None:
    await write_and_die(directory, *(batch_at(offset) for offset in range(60)))
    data = (directory / FIRST).read_bytes()
    (directory / FIRST).write_bytes(data[:-lost] + bytes(lost))
    before = contents(directory)
    with pytest.raises(LogCorruptError, match="what follows was written when it was on the disk"):
        open_log(directory)
    assert contents(directory) == before


@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize("sector", [512, 4096])
@pytest.mark.parametrize("before", range(440, 576, 17))
async def test_a_large_batch_that_lost_any_of_its_sectors_is_torn(
    directory: Path, sector: int, before: int, seed: int
) -> None:
    first = batch_at(0, text="f" * (before - len(batch_at(0, text=""))))
    last = batch_at(1, 90, text="t" * 40)
    await write_and_die(directory, first, last)
    end = len(first) + len(last)
    rng = random.Random(f"{before}/{seed}")
    for _ in range(20):
        data = bytearray(first + last)
        for at in range(0, end, sector):
            if rng.random() < 0.4:
                data[max(at, len(first)) : at + sector] = bytes(max(min(at + sector, end) - max(at, len(first)), 0))
        (directory / FIRST).write_bytes(data)
        log = open_log(directory)
        assert log.end_offset == (91 if data == first + last else 1)
        log.close()


async def test_a_leader_epoch_that_goes_back_is_refused(directory: Path) -> None:
    await write(directory, batch_at(0, epoch=5))
    with (directory / FIRST).open("ab") as file:
        file.write(batch_at(1, epoch=4))
    with pytest.raises(LogCorruptError, match="leader epoch 4 is below 5"):
        await MetadataLog.open(directory)


async def test_a_missing_segment_is_refused(directory: Path) -> None:
    await write(directory, *(batch_at(offset) for offset in range(60)), segment_bytes=1000)
    middle = segment_paths(directory)[1]
    middle.unlink()
    with pytest.raises(LogCorruptError, match="the segment before it ends at"):
        await MetadataLog.open(directory, segment_bytes=1000)


async def test_a_torn_segment_that_is_not_the_last_is_refused(directory: Path) -> None:
    await write(directory, *(batch_at(offset) for offset in range(60)), segment_bytes=1000)
    middle = segment_paths(directory)[1]
    os.truncate(middle, middle.stat().st_size - 1)
    before = contents(directory)
    with pytest.raises(LogCorruptError, match=middle.name):
        await MetadataLog.open(directory, segment_bytes=1000)
    assert contents(directory) == before


# ---------------------------------------------------------------- epochs


async def test_epochs_end_where_the_next_one_starts(directory: Path) -> None:
    log = await MetadataLog.open(directory)
    assert log.epoch_end_offset(0) == (0, 0)
    await log.append([batch_at(0, 3, epoch=2), batch_at(3, epoch=2), batch_at(4, epoch=5)])
    assert log.epoch_end_offset(1) == (1, 0), "before the oldest"
    assert log.epoch_end_offset(2) == (2, 4)
    assert log.epoch_end_offset(4) == (2, 4)
    assert log.epoch_end_offset(5) == (5, 5)
    assert log.epoch_end_offset(9) == (5, 5)
    await log.close()


# ---------------------------------------------------------------- power loss, kill -9


async def _appended_together(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, bytes]:
    """The log before and after a write of which the fsync never came back: nine appends of several requests."""
    log = await MetadataLog.open(directory)
    await log.append([batch_at(0, 3)])
    synced = (directory / FIRST).read_bytes()
    calls = itertools.count()
    real = os.fdatasync

    def power_fails(fd: int) -> None:
        # The first of the nine finds the writer idle and goes alone; the others wait for it, together.
        if next(calls):
            raise OSError(5, os.strerror(5))
        real(fd)

    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", power_fails)
        ends = [log.append([batch_at(3)]), *(log.append([batch_at(o, 2, text="x" * 90)]) for o in range(4, 20, 2))]
        results = await asyncio.gather(*ends, return_exceptions=True)
    assert [isinstance(result, StorageError) for result in results] == [False] + [True] * 8
    await log.close()
    synced += batch_at(3)
    return synced, (directory / FIRST).read_bytes()


@pytest.mark.parametrize("seed", seeds())
async def test_a_power_loss_that_keeps_any_part_of_an_unsynced_write_leaves_a_log_that_opens(
    directory: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    synced, written = await _appended_together(directory, monkeypatch)
    assert written.startswith(synced)
    rng = random.Random(seed)
    sector = 64
    for _ in range(60):
        survived = bytearray(written)
        for at in range(len(synced), len(written), sector):
            if rng.random() < 0.3:
                survived[at : at + sector] = bytes(len(survived[at : at + sector]))
        (directory / FIRST).write_bytes(survived)
        (directory / clean_stop.FILE_NAME).unlink(
            missing_ok=True
        )  # of the round before, whose log may have been longer
        log = await MetadataLog.open(directory)
        assert log.end_offset >= 4
        assert [record.offset async for b in log.batches(0) for record in b.records] == list(range(log.end_offset))
        await log.close()


async def test_batches_handed_over_as_several_are_each_durable_before_the_next(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await MetadataLog.open(directory)
    sizes: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: sizes.append(os.fstat(fd).st_size))
    batches = [batch_at(0, 2), batch_at(2), batch_at(3, 4)]
    await log.append(batches)
    assert sizes == list(itertools.accumulate(map(len, batches)))
    await log.close()


async def test_a_full_disk_acknowledges_nothing_and_the_next_start_has_all_that_was(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await MetadataLog.open(directory)
    await log.append([batch_at(0)])
    real = os.write

    def half_then_full(fd: int, data: bytes) -> int:
        if len(data) < 40:
            raise OSError(28, os.strerror(28))
        return real(fd, data[: len(data) - 30])

    with monkeypatch.context() as full:
        full.setattr(os, "write", half_then_full)
        with pytest.raises(StorageError, match=f"{log_files.DIRECTORY_NAME}: No space left on device"):
            await log.append([batch_at(1)])
    await log.close()
    log = await MetadataLog.open(directory)
    assert log.end_offset == 1
    assert await log.append([batch_at(1)]) == 2
    await log.close()


_APPENDER = """
import asyncio, sys
from collections.abc import Callable
from pathlib import Path
from kjbod.metadata.batches import encode_batch
from kjbod.metadata.log import MetadataLog
from kjbod.metadata.records import NoOpRecord, encode_record

async def main():
    log = await MetadataLog.open(Path(sys.argv[1]), segment_bytes=20_000)
    value = encode_record(NoOpRecord())
    async def worker():
        while True:
            end = await log.append([encode_batch([value] * 3, log.next_offset, 1, 1)])
            print(end, flush=True)
    await asyncio.gather(*(worker() for _ in range(8)))

asyncio.run(main())
"""


def _acknowledged_until_killed(directory: Path, beyond: int) -> int:
    """The last offset that a process acknowledged before SIGKILL hit it in the middle of appending."""
    acknowledged = 0
    with subprocess.Popen(
        [sys.executable, "-c", _APPENDER, str(directory)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):
                acknowledged = max(acknowledged, int(line))
            if acknowledged > beyond:
                process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    return acknowledged


async def test_what_a_killed_process_left_unsynced_is_durable_before_it_is_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(directory, batch_at(0), batch_at(1))
    synced: list[str] = []
    real = os.fsync

    def noting(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        real(fd)

    monkeypatch.setattr(os, "fsync", noting)
    log = open_log(directory, repair=False)
    assert FIRST in synced
    log.close()


@pytest.mark.usefixtures("world")
async def test_every_acknowledged_record_survives_kill_9(directory: Path) -> None:
    end = 0
    for _ in range(3):
        acknowledged = _acknowledged_until_killed(directory, end + 1500)
        log = await MetadataLog.open(directory, segment_bytes=20_000)
        end = log.end_offset
        assert end >= acknowledged
        assert [record.offset async for b in log.batches(0) for record in b.records] == list(range(end))
        await log.close()


# ---- what a clean stop knows


def remove_segment(segment: Path) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        segment.with_suffix(suffix).unlink()


def lose_last_segment(directory: Path) -> None:
    remove_segment(segment_paths(directory)[-1])


def empty_last_segment(directory: Path) -> None:
    segment_paths(directory)[-1].write_bytes(b"")


def damage_last_batch(directory: Path) -> None:
    last = segment_paths(directory)[-1]
    data = bytearray(last.read_bytes())
    data[-3] ^= 0xFF
    last.write_bytes(data)


def cut_last_batch(directory: Path) -> None:
    last = segment_paths(directory)[-1]
    last.write_bytes(last.read_bytes()[:-1])


def lose_all_segments(directory: Path) -> None:
    for path in segment_paths(directory):
        remove_segment(path)


LOSSES = [lose_last_segment, empty_last_segment, damage_last_batch, cut_last_batch, lose_all_segments]
TEN = [batch_at(offset) for offset in range(10)]


@pytest.mark.parametrize("lose", LOSSES)
async def test_a_log_that_lost_its_end_after_a_clean_stop_is_refused_and_nothing_is_changed(
    directory: Path, lose: Callable[[Path], None]
) -> None:
    await write(directory, *TEN, segment_bytes=300)
    lose(directory)
    before = contents(directory)
    with pytest.raises(LogCorruptError, match=r"has lost the records from offset \d to 9: when .* stopped") as refused:
        await MetadataLog.open(directory, segment_bytes=300)
    assert "\n" not in str(refused.value)
    assert contents(directory) == before
    (directory / clean_stop.FILE_NAME).unlink()  # as the line says
    log = await MetadataLog.open(directory, segment_bytes=300)
    assert log.end_offset < 10
    await log.close()


async def test_a_stop_that_was_not_clean_says_nothing_of_the_end(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(directory, *TEN)
    log = await MetadataLog.open(directory)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", lambda fd: os.close(-1))
        with pytest.raises(StorageError):
            await log.append([batch_at(10)])
    await log.close()
    cut_last_batch(directory)
    log = await MetadataLog.open(directory)
    assert log.end_offset == 10
    await log.close()


def put_in_place_of(directory: Path, other: Path) -> None:
    directory.rename(directory.with_name("ours"))
    other.rename(directory)


async def test_another_log_in_the_place_of_an_open_one_is_never_changed(directory: Path) -> None:
    """A backup that is mounted over it: append, roll, removal and clean stop go to the directory that was opened."""
    await write_and_die(directory, *TEN)
    backup = directory.with_name("backup")
    shutil.copytree(directory, backup)
    before = contents(backup)
    log = await MetadataLog.open(directory, segment_bytes=300)
    put_in_place_of(directory, backup)
    await log.append([batch_at(offset, 40, epoch=2) for offset in range(10, 250, 40)])
    await log.delete_before(90)
    await log.close()
    assert contents(directory) == before
    again = await MetadataLog.open(directory.with_name("ours"))
    assert again.was_stopped and again.end_offset == 250
    await again.close()


@pytest.mark.parametrize("lose", LOSSES)
async def test_a_controller_that_led_since_owes_nothing_to_an_older_stop(
    directory: Path, lose: Callable[[Path], None]
) -> None:
    await write(directory, *TEN, segment_bytes=300)
    write_quorum_state(directory, QuorumState(leader_id=1, leader_epoch=2))  # as Apache Kafka's does before it leads
    lose(directory)
    log = await MetadataLog.open(directory, segment_bytes=300)
    await log.append([batch_at(log.end_offset, epoch=2)])
    assert not (directory / clean_stop.FILE_NAME).exists()
    await log.close()


async def test_a_snapshot_that_has_all_of_the_log_makes_up_for_it(directory: Path) -> None:
    await write(directory, *TEN)
    lose_all_segments(directory)
    log = await MetadataLog.open(directory, start_offset=10)
    assert log.end_offset == 10
    await log.close()


def note(**changes: object) -> bytes:
    right = {"version": 1, "epoch": 9, "end_offset": 99, "file_name": f"{3:020d}.log", "size_bytes": 5}
    return json.dumps(right | changes).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 50_000,
        b'{"version": 1, "epoch": "x"}',
        note(end_offset=10**23),
        note(end_offset=-1),
        note(epoch=True),
        note(epoch=2**31),
        note(file_name="../\x1b[2Jx"),
        note(file_name=["a"]),
        note(size_bytes=1.5),
        note(more=1),
    ],
)
async def test_a_note_of_the_end_that_is_none_is_passed_over(directory: Path, content: bytes) -> None:
    await write(directory, *TEN)
    (directory / clean_stop.FILE_NAME).write_bytes(content)
    log = await MetadataLog.open(directory)
    assert log.end_offset == 10
    await log.close()


async def test_a_note_of_the_end_stays_until_the_log_changes(directory: Path) -> None:
    await write(directory, *TEN)
    before = (directory / clean_stop.FILE_NAME).read_bytes()
    (directory / f"{0:020d}.log.deleted").mkdir()
    with pytest.raises(StorageError, match=r"00000000000000000000.log.deleted: Is a directory"):
        await MetadataLog.open(directory)
    assert (directory / clean_stop.FILE_NAME).read_bytes() == before
    (directory / f"{0:020d}.log.deleted").rmdir()
    log = await MetadataLog.open(directory)  # a start may come to nothing after this: on a full disk for example
    assert (directory / clean_stop.FILE_NAME).read_bytes() == before
    await log.append([batch_at(10)])
    assert not (directory / clean_stop.FILE_NAME).exists()
    await log.close()


async def test_a_log_that_was_only_looked_at_keeps_the_note_of_its_end(directory: Path) -> None:
    await write(directory, *TEN)
    log = await MetadataLog.open(directory, repair=False)
    await log.close()
    damage_last_batch(directory)
    with pytest.raises(LogCorruptError, match="the batch at position"):
        await MetadataLog.open(directory)


# ---- what is known of the end without a clean stop


FOUR_EPOCHS = [batch_at(offset, epoch=1 + offset // 3) for offset in range(12)]


def lose_more(directory: Path) -> None:
    """What began after the first of four epochs."""
    (last,) = segment_paths(directory)
    last.write_bytes(b"".join(FOUR_EPOCHS[:5]))


@pytest.mark.parametrize("damage", [empty_last_segment, lose_last_segment, lose_all_segments, lose_more])
async def test_a_log_that_ends_before_its_newest_epoch_is_refused_and_nothing_is_changed(
    directory: Path, damage: Callable[[Path], None]
) -> None:
    await write_and_die(directory, *FOUR_EPOCHS)
    damage(directory)
    before = contents(directory)
    end = 5 if damage is lose_more else 0
    with pytest.raises(LogCorruptError, match=rf"lost the records from offset {end} to 8: .* epoch 4 began") as refused:
        await MetadataLog.open(directory)
    assert "\n" not in str(refused.value)
    assert contents(directory) == before
    (directory / "leader-epoch-checkpoint").unlink()  # as the line says
    log = await MetadataLog.open(directory)
    assert log.end_offset == end
    await log.close()


async def test_an_epoch_whose_first_batch_was_torn_has_lost_nothing(directory: Path) -> None:
    await write_and_die(directory, *FOUR_EPOCHS[:9], FOUR_EPOCHS[9])
    cut_last_batch(directory)
    log = await MetadataLog.open(directory)
    assert log.end_offset == 9
    await log.close()
    assert (directory / "leader-epoch-checkpoint").read_text() == "0\n3\n1 0\n2 3\n3 6\n"


async def test_a_snapshot_that_has_the_newest_epoch_makes_up_for_it(directory: Path) -> None:
    await write_and_die(directory, *FOUR_EPOCHS)
    lose_all_segments(directory)
    log = await MetadataLog.open(directory, start_offset=9)
    assert log.end_offset == 9
    await log.close()


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"0\n", b"0\n1\n9 9 9\n", b"1\n1\n9 99\n", b"0\n2\n9 99\n", b"0\n2\n9 99\n8 3\n"]
)
async def test_an_epoch_checkpoint_that_is_none_is_rebuilt(directory: Path, content: bytes) -> None:
    await write_and_die(directory, *FOUR_EPOCHS)
    right = (directory / "leader-epoch-checkpoint").read_bytes()
    (directory / "leader-epoch-checkpoint").write_bytes(content)
    log = await MetadataLog.open(directory)
    assert log.end_offset == 12
    await log.close()
    assert (directory / "leader-epoch-checkpoint").read_bytes() == right


@pytest.mark.parametrize("lost", [-1, 0], ids=["the last", "all"])
async def test_segments_of_which_only_indexes_are_left_are_missed(directory: Path, lost: int) -> None:
    await write(directory, *TEN, segment_bytes=300)
    (directory / clean_stop.FILE_NAME).unlink()
    gone = segment_paths(directory)[lost:]
    for path in gone:
        path.unlink()
    before = contents(directory)
    with pytest.raises(LogCorruptError, match=rf"from offset {int(gone[0].stem)} on: {gone[0].stem}.index is there"):
        await MetadataLog.open(directory, segment_bytes=300)
    assert contents(directory) == before


async def test_indexes_that_a_snapshot_makes_superfluous_go(directory: Path) -> None:
    await write_and_die(directory, *TEN)
    (directory / FIRST).unlink()
    log = await MetadataLog.open(directory, start_offset=10)
    await log.close()
    assert not (directory / FIRST).with_suffix(".index").exists()


async def test_segments_are_their_users_alone(tmp_path: Path) -> None:
    log = await MetadataLog.open(tmp_path / "log")
    await log.close()
    assert (tmp_path / "log" / f"{0:020d}.log").stat().st_mode & 0o777 == 0o600

"""The metadata that an agent keeps: real files, and the processes that write them; the quorum is played by the test."""

import asyncio
import contextlib
import errno
import os
import random
import shutil
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kjbod.errors import KjbodError
from kjbod.ids import Uuid
from kjbod.metadata.batches import encode_batch, read_batch
from kjbod.metadata.checkpoint_files import checkpoints_in
from kjbod.metadata.clean_stop import CleanStop, write_clean_stop
from kjbod.metadata.fetching import Committed, FetchMachine, Snapshot
from kjbod.metadata.kept import Tail
from kjbod.metadata.log_files import DIRECTORY_NAME
from kjbod.metadata.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from kjbod.metadata.reading import load
from kjbod.metadata.records import (
    BeginTransactionRecord,
    EndTransactionRecord,
    Record,
    TopicRecord,
    UnknownRecord,
    encode_record,
)
from kjbod.metadata.snapshot import SnapshotId, encode_checkpoint
from kjbod.wire.messages import FetchRequest
from kjbod_agent import keeping as module
from kjbod_agent.keeping import IMAGE_NAME, MEMORY_NAME, Keeping, Start
from kjbod_host.files import metadata_image
from kjbod_host.files.file_worker import OPERATIONS
from kjbod_host.files.metadata_files import KeptLog, OwnFiles
from tests.depth import Points, sweep

CLUSTER = "4L6g3nShT-eMCtK--X86sw"
NODE = 1


class Lines:
    """Lines of the log."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append(("info", event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append(("warning", event, fields))

    def error(self, event: str, **fields: Any) -> None:
        self.lines.append(("error", event, fields))

    def reasons(self, event: str) -> list[str]:
        return [fields["reason"] for _, name, fields in self.lines if name == event]


def topic(number: int) -> TopicRecord:
    return TopicRecord(name=f"t{number}", topic_id=Uuid.of(1, number))


def committed(first: int, *batches: tuple[Record, ...], epoch: int = 1) -> Committed:
    """Batches of these records, from offset ``first`` on, as the follower hands them over."""
    made, offset = [], first
    for records in batches:
        batch = read_batch(encode_batch([encode_record(record) for record in records], offset, epoch, 1000))
        assert batch is not None
        made.append(batch)
        offset = batch.next_offset
    records_of = tuple(each for batch in made for each in batch.metadata_records())
    return Committed(records_of, offset - 1, epoch, offset, tuple(made))


def topics(first: int, count: int, epoch: int = 1) -> Committed:
    return committed(first, *((topic(number),) for number in range(first, first + count)), epoch=epoch)


class Agent:
    """What an agent has on its disks, over several runs."""

    def __init__(self, base: Path) -> None:
        self.directory = base / "d1"
        self.state = base / "state"
        self.directory.mkdir()
        self.state.mkdir()
        self.log = Lines()
        self.inner = self.directory / DIRECTORY_NAME
        self.node, self.cluster = NODE, CLUSTER

    def run(self, work: Callable[[Keeping, Start | None], Awaitable[None]]) -> None:
        """One run: what was kept is read, then ``work`` is done."""

        async def running() -> None:
            tasks: list[asyncio.Task[None]] = []

            def spawn(coroutine: Coroutine[Any, Any, None]) -> None:
                tasks.append(asyncio.ensure_future(coroutine))

            keeping = Keeping(
                str(self.directory), self.state, cluster_id=self.cluster, node_id=self.node, spawn=spawn, log=self.log
            )
            try:
                start = await keeping.load()
                spawn(keeping.run())
                await work(keeping, start)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                keeping.close()

        self.log = Lines()
        asyncio.run(running())

    def keep(self, *pieces: Committed) -> None:
        """A run in which these come from the quorum, and are written."""

        async def work(keeping: Keeping, _: Start | None) -> None:
            for piece in pieces:
                keeping.committed(piece)
            await written(keeping, pieces[-1].last_offset)

        self.run(work)

    def start(self) -> Start | None:
        """What the next run begins with."""
        found: list[Start | None] = []

        async def work(_: Keeping, start: Start | None) -> None:
            found.append(start)

        self.run(work)
        return found[0]

    def compact(self, checkpoint_bytes: int = 0) -> Any:
        return metadata_image.compact(
            str(self.directory), str(self.state / IMAGE_NAME), CLUSTER, NODE, checkpoint_bytes
        )

    @property
    def segments(self) -> list[str]:
        return sorted(path.name for path in self.inner.glob("*.log"))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def written(keeping: Keeping, offset: int) -> None:
    await until(lambda: keeping.offset >= offset or keeping.stopped is not None)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLUSH_MS", 1)
    monkeypatch.setattr(os, "nice", lambda increment: 0)  # compaction is called in this process here


class Here:
    """The operations of the file process, in this one: a process for each run would take most of the time."""

    def __init__(self, name: str, libraries: Sequence[str] = ()) -> None:
        self.name = name

    async def call(self, operation: str, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        try:
            return OPERATIONS[operation](*arguments)
        except KjbodError as error:
            raise OSError(errno.EINVAL, str(error)) from None

    def process_ids(self) -> tuple[int, ...]:
        return ()

    def rest(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def nothing_stays_open(tmp_path: Path) -> Iterator[None]:
    """Close what processes that died here had open: their kernel would have done it."""
    yield
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{entry}").startswith(f"{tmp_path}/"):
                os.close(int(entry))


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    monkeypatch.setattr(module, "FileProcess", Here)
    return Agent(tmp_path)


@pytest.fixture
def whole(world: None, tmp_path: Path) -> Agent:
    """One with the processes that it has."""
    return Agent(tmp_path)


def names(start: Start | None) -> set[str]:
    assert start is not None
    return set(start.image.topic_ids)


# ------------------------------------------------------------------------------------------------ what is kept and read


def test_the_next_start_knows_all_that_was_written_and_where_it_ends(whole: Agent) -> None:
    whole.keep(topics(0, 5), topics(5, 3, epoch=4))
    start = whole.start()
    assert names(start) == {f"t{number}" for number in range(8)}
    assert start is not None
    assert (start.kept.end_offset, start.kept.epochs, start.image.offset) == (8, ((1, 0), (4, 5)), 7)
    assert start.kept.tail == Tail.of(topics(7, 1, epoch=4).batches[0])


def test_the_files_are_kafkas_and_kjbods_own_reader_takes_them(agent: Agent) -> None:
    agent.keep(topics(0, 5), topics(5, 3, epoch=4))
    assert sorted(path.name for path in agent.inner.iterdir()) == [
        "00000000000000000000.log",
        "leader-epoch-checkpoint",
        "partition.metadata",
        "quorum-state",
    ]
    assert (agent.inner / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n4 5\n"
    assert read_quorum_state(agent.inner) == QuorumState(leader_epoch=4)
    assert set(load(agent.directory).image.topic_ids) == {f"t{number}" for number in range(8)}


def test_nothing_is_known_where_nothing_was_kept(agent: Agent) -> None:
    assert agent.start() is None
    assert agent.log.lines == []
    assert not agent.inner.exists()


@pytest.mark.parametrize("checkpoint_bytes", [0, 1])
def test_image_and_log_behind_it_are_read(agent: Agent, checkpoint_bytes: int) -> None:
    agent.keep(topics(0, 5))
    made = agent.compact(checkpoint_bytes)
    assert made["tail"][:2] == (4, 4)
    agent.keep(topics(5, 4))
    start = agent.start()
    assert names(start) == {f"t{number}" for number in range(9)}
    assert len(checkpoints_in(agent.inner)) == checkpoint_bytes


def test_the_image_is_made_anew_from_the_one_before_and_from_kafkas_files_alike(agent: Agent) -> None:
    agent.keep(topics(0, 5))
    agent.compact()
    agent.keep(topics(5, 4))
    agent.compact()
    once = (agent.state / IMAGE_NAME).read_bytes()
    (agent.state / IMAGE_NAME).unlink()
    agent.compact()
    assert (agent.state / IMAGE_NAME).read_bytes() == once
    assert (agent.state / IMAGE_NAME).stat().st_mode & 0o777 == 0o600


def test_of_a_transaction_that_is_open_at_the_end_nothing_is_known_and_all_comes_again(agent: Agent) -> None:
    agent.keep(topics(0, 3), committed(3, (BeginTransactionRecord(name=None),), (topic(4),)))
    start = agent.start()
    assert start is not None
    assert (names(start), start.kept.end_offset) == ({"t0", "t1", "t2"}, 3)
    rest = committed(3, (BeginTransactionRecord(name=None),), (topic(4),), (EndTransactionRecord(),))
    agent.keep(rest)
    assert names(agent.start()) == {"t0", "t1", "t2", "t4"}


@pytest.mark.parametrize("kind", [(29, 0), (30, 0), (3, 3), (18, 1), (-1, -1)])
@pytest.mark.parametrize("how", ["log", "snapshot"])
def test_records_that_are_not_known_end_the_keeping_and_nothing_that_lacks_them_is_made(
    agent: Agent, kind: tuple[int, int], how: str
) -> None:
    agent.keep(topics(0, 3))
    before = {path.name: path.read_bytes() for path in agent.inner.glob("*.log")}

    async def newer(keeping: Keeping, _: Start | None) -> None:
        record = UnknownRecord(api_key=kind[0], version=kind[1])
        if how == "log":
            keeping.committed(Committed(((3, record),), 3, 1, 4, committed(3, (topic(3),)).batches))
        else:
            keeping.replaced(Snapshot(SnapshotId(9, 1), (record, topic(9))), contained=True)
            keeping.downloaded(SnapshotId(9, 1), b"anything")
        keeping.committed(topics(4, 1))
        assert keeping.stopped is not None

    agent.run(newer)
    (reason,) = agent.log.reasons("metadata.kept.stopped")
    assert reason.endswith("upgrade kjbod")
    assert {path.name: path.read_bytes() for path in agent.inner.glob("*.log")} == before
    assert names(agent.start()) == {"t0", "t1", "t2"}


def test_what_comes_again_is_not_written_twice(whole: Agent) -> None:
    whole.keep(topics(0, 5))
    size = (whole.inner / whole.segments[0]).stat().st_size
    whole.keep(topics(0, 5))
    assert (whole.inner / whole.segments[0]).stat().st_size == size
    whole.keep(topics(0, 7))
    assert names(whole.start()) == {f"t{number}" for number in range(7)}


@pytest.mark.parametrize("behind", [1, 7])
def test_a_snapshot_of_the_quorum_takes_the_place_of_a_log_that_ends_before_it(agent: Agent, behind: int) -> None:
    agent.keep(topics(0, 5))
    data = encode_checkpoint(header_timestamp_ms=1, kraft=None, records=[topic(50)], leader_epoch=1)

    async def work(keeping: Keeping, _: Start | None) -> None:
        keeping.downloaded(SnapshotId(100, 1), data)
        keeping.committed(topics(100, 1, epoch=behind))
        await written(keeping, 100)

    agent.run(work)
    assert agent.segments == ["00000000000000000100.log"]
    assert (agent.inner / SnapshotId(100, 1).file_name).read_bytes() == data
    start = agent.start()
    assert start is not None and names(start) == {"t50", "t100"}
    m = FetchMachine([("c1", 9093)], random.Random(1), kept=start.kept)
    request = m.request(17)
    assert isinstance(request, FetchRequest)
    asked = request.topics[0].partitions[0]
    assert (asked.fetch_offset, asked.last_fetched_epoch) == (100, 1), "that of the snapshot, which the leader knows"


def test_after_many_records_image_and_snapshot_are_made_and_what_they_cover_goes(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPACT_RECORDS", 10)
    monkeypatch.setattr(module, "CHECKPOINT_BYTES", 1)

    def has_only(name: str) -> bool:
        return [path.name for path in agent.inner.glob("*.checkpoint")] == [name]

    async def work(keeping: Keeping, _: Start | None) -> None:
        for number in range(4):
            keeping.committed(topics(number * 10, 10))
            await written(keeping, number * 10 + 9)
            await until(partial(has_only, SnapshotId(number * 10 + 10, 1).file_name))

    agent.run(work)
    assert agent.log.reasons("metadata.kept.stopped") == []
    assert len(agent.segments) == 2, "all but the one with the last batch of the image, and the one that is open"
    assert names(agent.start()) == {f"t{number}" for number in range(40)}


# -------------------------------------------------------------------------------------------------- what cannot be used


def test_a_torn_tail_is_cut_and_written_again(agent: Agent) -> None:
    agent.keep(topics(0, 5))
    segment = agent.inner / agent.segments[0]
    whole = segment.read_bytes()
    for cut in (1, 30, 60):
        segment.write_bytes(whole[:-cut])
        start = agent.start()
        assert names(start) == {"t0", "t1", "t2", "t3"}
        assert segment.read_bytes() == whole[:-cut], "reading changes nothing"
        agent.keep(topics(4, 1))
        assert segment.read_bytes() == whole


@pytest.mark.parametrize("with_image", [True, False])
def test_a_flipped_byte_in_the_log_is_named_and_none_of_it_counts_or_changes(agent: Agent, with_image: bool) -> None:
    agent.keep(topics(0, 5))
    if with_image:
        agent.compact()
    segment = agent.inner / agent.segments[0]
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    assert agent.start() is None
    (reason,) = agent.log.reasons("metadata.kept.stopped")
    assert f"{segment} is corrupt at position" in reason
    assert f"move {agent.inner} away" in reason and "backup" not in reason, "it is a cache"
    agent.keep(topics(0, 9))
    assert segment.read_bytes() == data


def test_a_flipped_byte_anywhere_in_the_image_has_it_made_anew(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.keep(topics(0, 5))
    agent.compact()
    whole = (agent.state / IMAGE_NAME).read_bytes()
    rng = random.Random(1)
    first = whole.index(b"\n")
    for at in (
        *range(0, first, 7),
        whole.index(b"features"),
        len(whole) - 1,
        *(rng.randrange(len(whole)) for _ in range(5)),
    ):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        (agent.state / IMAGE_NAME).write_bytes(damaged)
        assert names(agent.start()) == {f"t{number}" for number in range(5)}
        assert agent.log.reasons("metadata.kept.stopped") == []
        assert len(agent.log.reasons("metadata.kept.unused")) >= 1, f"byte {at} is under no checksum"
    monkeypatch.setattr(module, "COMPACT_RECORDS", 1)
    assert names(agent.start()) == {f"t{number}" for number in range(5)}
    assert (agent.state / IMAGE_NAME).read_bytes() == whole


@pytest.mark.parametrize("other", ["cluster", "node"])
def test_an_image_of_another_cluster_or_node_is_not_used(agent: Agent, other: str) -> None:
    agent.keep(topics(0, 5))
    agent.compact()
    setattr(agent, other, {"cluster": "another-cluster-------", "node": 2}[other])
    start = agent.start()
    assert names(start) == {f"t{number}" for number in range(5)}  # of the log, which meta.properties is answerable for
    (reason,) = agent.log.reasons("metadata.kept.unused")
    assert f"it is of {other}" in reason


def test_an_image_without_its_log_is_not_used(agent: Agent) -> None:
    agent.keep(topics(0, 5))
    agent.compact()
    shutil.rmtree(agent.inner)
    assert agent.start() is None
    agent.keep(topics(0, 2))
    assert names(agent.start()) == {"t0", "t1"}


async def parts(keeping: Keeping, _: Start | None) -> None:
    """The quorum has another history."""
    parted = Snapshot(SnapshotId(3, 1), (topic(9),), "c1:9093 has other records at offset 4")
    keeping.replaced(parted, contained=False)
    keeping.committed(topics(3, 2))
    await until(lambda: keeping.stopped is not None)


def test_a_log_of_another_history_is_set_aside_and_said_once_and_the_next_start_begins_anew(agent: Agent) -> None:
    for number in ("", "-2"):
        agent.keep(topics(0, 5))
        (name,) = agent.segments
        before = (agent.inner / name).read_bytes()
        agent.run(parts)
        (reason,) = agent.log.reasons("metadata.kept.stopped")
        assert "has other records at offset 4" in reason and "nothing was removed" in reason
        assert f"{name}.aside{number}" in reason
        assert (agent.inner / f"{name}.aside{number}").read_bytes() == before
        assert agent.start() is None
        assert (agent.log.lines, agent.segments) == ([], [])


def test_a_brokers_log_of_another_history_stays_where_it_is_and_is_not_told_of_again(agent: Agent) -> None:
    agent.keep(topics(0, 5))
    touch_index(agent, agent.segments[0])
    before = (agent.inner / agent.segments[0]).read_bytes()
    agent.run(parts)
    assert f"move {agent.inner} away" in agent.log.reasons("metadata.kept.stopped")[0]
    assert agent.start() is None, "it would be found to be another history again"
    assert [(level, event) for level, event, _ in agent.log.lines] == [("info", "metadata.kept.unused")]
    assert (agent.inner / agent.segments[0]).read_bytes() == before


def test_a_log_whose_end_was_never_committed_ends_the_keeping_without_a_warning(agent: Agent) -> None:
    agent.keep(topics(0, 5))
    before = (agent.inner / agent.segments[0]).read_bytes()

    async def work(keeping: Keeping, _: Start | None) -> None:
        dropped = Snapshot(SnapshotId(3, 1), (topic(9),), dropped="c1:9093 has other records at offset 4")
        keeping.replaced(dropped, contained=True)
        keeping.committed(topics(3, 2))
        assert keeping.stopped is not None

    agent.run(work)
    assert [level for level, event, _ in agent.log.lines if event != "metadata.kept.loaded"] == ["info"]
    assert (agent.inner / agent.segments[0]).read_bytes() == before


def test_a_log_that_cannot_be_compared_with_the_snapshot_in_its_place_is_set_aside(agent: Agent) -> None:
    agent.keep(topics(0, 5))
    (name,) = agent.segments
    before = (agent.inner / name).read_bytes()

    async def work(keeping: Keeping, _: Start | None) -> None:
        keeping.replaced(Snapshot(SnapshotId(100, 3), (topic(50),), uncompared="only a snapshot"), contained=False)
        keeping.downloaded(SnapshotId(100, 3), SNAPSHOT)
        keeping.committed(topics(100, 1, epoch=3))
        await written(keeping, 100)

    agent.run(work)
    assert agent.log.reasons("metadata.kept.stopped") == []
    assert (agent.inner / f"{name}.aside").read_bytes() == before
    assert names(agent.start()) == {"t50", "t100"}


def test_records_that_are_not_those_of_the_log_are_not_appended_to_it(agent: Agent) -> None:
    agent.keep(topics(0, 5))
    before = (agent.inner / agent.segments[0]).read_bytes()

    async def work(keeping: Keeping, _: Start | None) -> None:
        keeping.committed(topics(0, 4))
        keeping.committed(committed(4, (topic(77),)))
        keeping.committed(topics(5, 2))
        await until(lambda: keeping.stopped is not None)

    name = agent.segments[0]
    agent.run(work)
    assert "other records at offset 4" in agent.log.reasons("metadata.kept.stopped")[0]
    assert (agent.inner / f"{name}.aside").read_bytes() == before


@pytest.mark.parametrize("sign", ["vote", "clean stop"])
def test_a_controllers_log_is_neither_read_nor_written(agent: Agent, sign: str) -> None:
    agent.keep(topics(0, 5))
    if sign == "vote":
        write_quorum_state(agent.inner, QuorumState(leader_epoch=1, voted_id=1))
    else:
        write_clean_stop(agent.inner, CleanStop(epoch=1, end_offset=5, file_name=agent.segments[0], size_bytes=1))
    assert agent.start() is None
    assert "controller" in agent.log.reasons("metadata.kept.stopped")[0]


# ------------------------------------------------------------------------------------------------- whose files they are


def touch_index(agent: Agent, segment: str) -> None:
    """As a real broker does when it opens it."""
    (agent.inner / segment).with_suffix(".index").touch()


def test_a_segment_that_a_real_broker_has_opened_is_not_appended_to_and_never_removed(agent: Agent) -> None:
    agent.keep(topics(0, 5))
    touch_index(agent, agent.segments[0])
    size = (agent.inner / agent.segments[0]).stat().st_size
    agent.keep(topics(5, 3))
    assert agent.segments == ["00000000000000000000.log", "00000000000000000005.log"]
    assert (agent.inner / agent.segments[0]).stat().st_size == size

    async def work(keeping: Keeping, _: Start | None) -> None:
        keeping.downloaded(SnapshotId(100, 1), b"a snapshot")
        await until(lambda: keeping.stopped is not None)

    agent.run(work)
    assert "was not written by kjbod" in agent.log.reasons("metadata.kept.stopped")[0]
    assert agent.segments == ["00000000000000000000.log", "00000000000000000005.log"]


def test_what_a_real_broker_wrote_is_not_known_as_committed_and_what_the_agent_wrote_is(agent: Agent) -> None:
    agent.keep(topics(0, 5))
    start = agent.start()
    assert start is not None and start.kept.committed == start.kept.tail
    theirs = topics(5, 2)
    with (agent.inner / agent.segments[0]).open("ab") as file:
        file.write(b"".join(batch.raw for batch in theirs.batches))
    touch_index(agent, agent.segments[0])
    for known in (Tail.of(topics(4, 1).batches[0]), None):
        start = agent.start()
        assert start is not None
        assert (start.kept.tail, start.kept.committed) == (Tail.of(theirs.batches[1]), known)
        (agent.state / MEMORY_NAME).unlink(missing_ok=True)


def test_where_the_memory_of_what_is_ours_was_lost_all_files_stay(agent: Agent) -> None:
    agent.keep(topics(0, 5))
    (agent.state / MEMORY_NAME).unlink()
    own = OwnFiles(agent.state / MEMORY_NAME, agent.inner)
    segment = agent.inner / agent.segments[0]
    assert segment not in own
    own.remove([segment])
    assert segment.exists()


def test_a_file_that_took_the_name_of_one_of_ours_is_not_ours(agent: Agent) -> None:
    agent.keep(topics(0, 5))
    segment = agent.inner / agent.segments[0]
    (agent.inner / "copy").write_bytes(segment.read_bytes())
    (agent.inner / "copy").replace(segment)
    assert segment not in OwnFiles(agent.state / MEMORY_NAME, agent.inner)


@pytest.mark.parametrize("content", [b"words of somebody\n" * 200, b""])
@pytest.mark.parametrize("what", ["segment", "directory"])
def test_what_lies_behind_a_symbolic_link_is_neither_cut_nor_written(agent: Agent, content: bytes, what: str) -> None:
    agent.keep(topics(0, 5))
    victim = agent.directory / "victim"
    link = agent.inner / agent.segments[0]
    if what == "segment":
        victim.write_bytes(content)
        link.unlink()
    else:
        agent.inner.rename(victim)
        link = agent.inner
        victim = victim / f"{0:020d}.log"
        victim.write_bytes(content)
    link.symlink_to(victim if what == "segment" else victim.parent)
    agent.keep(topics(0, 6))
    (reason,) = agent.log.reasons("metadata.kept.stopped")
    assert str(link) in reason and "a symbolic link" in reason
    assert (victim.read_bytes(), link.is_symlink()) == (content, True)


def test_a_pipe_in_the_place_of_a_segment_holds_up_nobody(agent: Agent) -> None:
    agent.keep(topics(0, 5))
    segment = agent.inner / agent.segments[0]
    segment.unlink()
    os.mkfifo(segment)
    agent.keep(topics(0, 6))
    assert "a device, pipe or socket" in agent.log.reasons("metadata.kept.stopped")[0]


@pytest.mark.parametrize("how", ["same file", "other file", "forgotten"])
def test_a_file_that_kjbod_did_not_write_is_neither_cut_nor_appended_to(agent: Agent, how: str) -> None:
    agent.keep(topics(0, 5))
    segment = agent.inner / agent.segments[0]
    content = segment.read_bytes()[:-3] if how == "forgotten" else b"words of somebody\n" * 200
    if how == "other file":
        (agent.inner / "copy").write_bytes(content)
        (agent.inner / "copy").replace(segment)
    else:
        segment.write_bytes(content)
    if how == "forgotten":
        (agent.state / MEMORY_NAME).unlink()
    agent.keep(topics(0, 6))
    (reason,) = agent.log.reasons("metadata.kept.stopped")
    assert "that kjbod did not write" in reason and str(segment) in reason
    assert segment.read_bytes() == content
    assert agent.segments == [segment.name]


def test_a_torn_tail_that_was_cut_is_told(agent: Agent) -> None:
    agent.keep(topics(0, 5))
    segment = agent.inner / agent.segments[0]
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-3])
    agent.keep(topics(4, 1))
    (told,) = [fields for _, event, fields in agent.log.lines if event == "metadata.kept.cut"]
    assert (told["path"], told["position"] + told["bytes_cut"]) == (str(segment), len(whole) - 3)


def test_parts_and_snapshots_of_somebody_else_stay(agent: Agent) -> None:
    agent.keep(topics(0, 5))
    for name in (SnapshotId(100, 1).file_name + ".part", SnapshotId(100, 1).file_name):
        path = agent.inner / name
        path.write_bytes(b"of somebody")

        async def work(keeping: Keeping, _: Start | None) -> None:
            keeping.downloaded(SnapshotId(100, 1), SNAPSHOT)
            await until(lambda: keeping.stopped is not None)

        if path.suffix == ".checkpoint":
            path.rename(agent.inner / "aside")  # the log would be found to end before it
            log = KeptLog(agent.inner, agent.state / MEMORY_NAME)
            log.open(None)
            (agent.inner / "aside").rename(path)
            with pytest.raises(OSError, match="was not written by kjbod"):
                log.take_checkpoint(name, 0, SNAPSHOT, last=True)
            log.close()
        else:
            agent.run(work)
            assert str(path) in agent.log.reasons("metadata.kept.stopped")[0]
        assert path.read_bytes() == b"of somebody"
        path.unlink()


# ----------------------------------------------------------------------------------------------- disks that do not play


class Died(BaseException):
    """The process ends here."""


SNAPSHOT = encode_checkpoint(header_timestamp_ms=1, kraft=None, records=[topic(50)], leader_epoch=3)
STEPS = ("write", "fsync", "fdatasync", "open", "rename", "replace", "mkdir", "ftruncate", "unlink")


@contextlib.contextmanager
def at_step(monkeypatch: pytest.MonkeyPatch, at: int, what: Callable[[], None]) -> Iterator[list[str]]:
    """Have the call number ``at`` of those that change a disk do ``what`` instead; which calls there were."""
    calls: list[str] = []
    with monkeypatch.context() as patched:
        for name in STEPS:
            real = getattr(os, name)

            def call(*arguments: Any, real: Any = real, name: str = name, **options: Any) -> Any:
                if name != "open" or arguments[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                    calls.append(name)
                    if len(calls) == at:
                        what()
                return real(*arguments, **options)

            patched.setattr(os, name, call)
        yield calls


def write_log(agent: Agent, first: int, count: int) -> None:
    """What the process that writes does, in this one."""
    log = KeptLog(agent.inner, agent.state / MEMORY_NAME, segment_bytes=300)
    found = log.open(None)
    if found["problem"]:
        raise KjbodError(found["problem"])
    for piece in (topics(first, count // 2), topics(first + count // 2, count - count // 2, epoch=2 + first)):
        data = b"".join(batch.raw for batch in piece.batches if batch.base_offset >= found["end"])
        if data:
            log.append(data, 1)
    log.close()


def die() -> None:
    raise Died


def refuse() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def anew(agent: Agent) -> None:
    for path in (agent.inner, agent.state):
        shutil.rmtree(path, ignore_errors=True)
    agent.state.mkdir()


@pytest.mark.parametrize("what", [die, refuse])
@pytest.mark.parametrize("points", sweep(12))
def test_an_end_or_a_full_disk_at_any_step_of_a_write_leaves_a_log_that_goes_on(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, points: Points, what: Callable[[], None]
) -> None:
    with at_step(monkeypatch, 0, what) as all_calls:
        write_log(agent, 0, 8)
    assert {"write", "fsync", "fdatasync", "open", "mkdir"} <= set(all_calls) and len(all_calls) > 30
    for at in points.of(range(1, len(all_calls) + 1)):
        anew(agent)
        with at_step(monkeypatch, at, what), contextlib.suppress(Died, OSError, KjbodError):
            write_log(agent, 0, 8)
        write_log(agent, 0, 8)
        found = KeptLog(agent.inner, agent.state / MEMORY_NAME).open(None)
        assert (found["end"], found["epochs"], found["problem"]) == (8, [(1, 0), (2, 4)], None), f"at step {at}"


def take_snapshot(agent: Agent) -> None:
    """What that process does with a snapshot of the quorum, and what comes behind it."""
    log = KeptLog(agent.inner, agent.state / MEMORY_NAME)
    found = log.open(None)
    if found["problem"]:
        raise KjbodError(found["problem"])
    if found["end"] < 100:
        log.take_checkpoint(SnapshotId(100, 3).file_name, 0, SNAPSHOT[:50], last=False)
        log.take_checkpoint(SnapshotId(100, 3).file_name, 50, SNAPSHOT[50:], last=True)
    if found["end"] < 102:
        log.append(b"".join(batch.raw for batch in topics(100, 2, epoch=3).batches[max(0, found["end"] - 100) :]), 1)
    log.close()


@pytest.mark.parametrize("what", [die, refuse])
@pytest.mark.parametrize("points", sweep(12))
def test_an_end_or_a_full_disk_at_any_step_of_a_snapshot_leaves_what_goes_on(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, points: Points, what: Callable[[], None]
) -> None:
    write_log(agent, 0, 8)
    with at_step(monkeypatch, 0, what) as all_calls:
        take_snapshot(agent)
    assert len(all_calls) > 20
    for at in points.of(range(1, len(all_calls) + 1)):
        anew(agent)
        write_log(agent, 0, 8)
        with at_step(monkeypatch, at, what), contextlib.suppress(Died, OSError, KjbodError):
            take_snapshot(agent)
        start = agent.start()
        assert start is None or start.kept.end_offset in (8, 101, 102), f"at step {at}"
        take_snapshot(agent)
        assert names(agent.start()) == {"t50", "t100", "t101"}, f"at step {at}"
        assert agent.log.reasons("metadata.kept.stopped") == []


def test_a_full_disk_ends_the_keeping_with_one_line_and_what_was_written_counts(agent: Agent) -> None:
    agent.keep(topics(0, 5))

    async def work(keeping: Keeping, _: Start | None) -> None:
        async def full(operation: str, *arguments: Any) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device", str(agent.inner))

        keeping._files.call = full  # type: ignore[method-assign]
        for number in range(5, 9):
            keeping.committed(topics(number, 1))
        await until(lambda: keeping.stopped is not None)
        keeping.committed(topics(9, 1))

    agent.run(work)
    assert len(agent.log.reasons("metadata.kept.stopped")) == 1
    assert "No space left on device: make room there" in agent.log.reasons("metadata.kept.stopped")[0]
    assert names(agent.start()) == {f"t{number}" for number in range(5)}


def test_a_process_that_died_is_not_appended_to_and_not_begun_anew(whole: Agent) -> None:
    async def work(keeping: Keeping, _: Start | None) -> None:
        keeping.committed(topics(0, 3))
        await written(keeping, 2)
        os.kill(keeping.process_ids()[0], signal.SIGKILL)
        keeping.committed(topics(3, 2))
        await until(lambda: keeping.stopped is not None or keeping.offset == 4)

    whole.run(work)
    (reason,) = whole.log.reasons("metadata.kept.stopped")
    assert "has died: restart the agent" in reason and "Errno" not in reason
    assert names(whole.start()) == {"t0", "t1", "t2"}


def test_a_process_that_is_told_to_end_is_not_left_as_a_zombie(whole: Agent) -> None:
    async def work(keeping: Keeping, _: Start | None) -> None:
        keeping.committed(topics(0, 3))
        await written(keeping, 2)
        assert keeping.process_ids()
        keeping.stop("the disk is full")
        await until(lambda: keeping.process_ids() == ())

    whole.run(work)


def test_a_disk_that_hangs_holds_up_nobody_and_the_queue_has_an_end(
    whole: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUE_BYTES_MAX", 1000)

    async def work(keeping: Keeping, _: Start | None) -> None:
        os.kill(keeping.process_ids()[0], signal.SIGSTOP)
        for number in range(100):
            keeping.committed(topics(number, 1))
        assert "bytes wait to be written" in (keeping.stopped or "")

    whole.run(work)
    assert len(whole.log.reasons("metadata.kept.stopped")) == 1


def test_a_disk_that_hangs_at_the_start_is_waited_for_no_longer_than_said(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.keep(topics(0, 5))
    monkeypatch.setattr(module, "ANSWER_TIMEOUT_MS", 20)
    monkeypatch.setattr(Here, "call", lambda *_: asyncio.sleep(3600))
    assert agent.start() is None
    (reason,) = agent.log.reasons("metadata.kept.stopped")
    assert f"nothing was read or written in 20 ms: the disk of {agent.directory}" in reason


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.EIO])
def test_a_directory_that_cannot_be_read_or_written_ends_the_keeping_and_not_the_agent(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    async def refused(self: Any, operation: str, *arguments: Any) -> Any:
        if operation == "of_metadata":
            raise OSError(error, os.strerror(error), str(agent.inner))
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", arguments[0])

    monkeypatch.setattr(Here, "call", refused)
    assert agent.start() is None
    (reason,) = agent.log.reasons("metadata.kept.stopped")
    assert os.strerror(error) in reason


def test_a_directory_that_is_no_directory_ends_the_keeping_and_not_the_agent(agent: Agent) -> None:
    agent.inner.write_text("a file")
    assert agent.start() is None
    assert len(agent.log.reasons("metadata.kept.stopped")) == 1
    assert agent.inner.read_text() == "a file"

"""Test suite for every storage agent, to inherit from.

A plug-in's own test suite (pytest with pytest-asyncio in auto mode)::

    class TestMine(StorageConformance):
        async def storage(self) -> StorageAgent: ...
        def new_directory(self) -> str: ...
        def write_file(self, path: str, replica: str, file: str, content: bytes) -> None: ...
        def read_file(self, path: str, replica: str, file: str) -> bytes | None: ...

Faults are not part of it: which ones can be made is the implementation's affair. Those that hang a directory are, when
:meth:`StorageConformance.hang` can make it hang.
"""

import abc
import asyncio
import binascii
import errno
import random
import struct
from collections.abc import Awaitable, Callable

import crc32c

from kjbod.ids import Uuid, random_directory_id, random_uuid
from kjbod_host.storage.api import (
    DirectoryAgent,
    DirectoryError,
    DirectoryTimeout,
    LateAnswer,
    Piece,
    StorageAgent,
    WorkerUnavailable,
)
from kjbod_host.storage.checkpoints import CHECKPOINT_FILES, HIGH_WATERMARK, LOG_START, RECOVERY_POINT

TIMEOUT_MS = 60_000
"""Timeout of calls that are expected to succeed: long, for busy machines."""
SLOT_BYTES = 1 << 16
FUTURE = f"t-0.{'a' * 32}-future"
STRAY = f"t-0.{'b' * 32}-stray"
DELETED = f"t-0.{'c' * 32}-delete"
LOG = f"{0:020d}.log"


def batch(offset: int, records: int, payload: int = 100) -> bytes:
    """A record batch of magic 2 as far as the end of a log is concerned: header, and so many bytes behind it."""
    header = struct.pack(">iBIHi", 0, 2, 0, 0, records - 1)
    return struct.pack(">qi", offset, 49 + payload) + header + bytes(49 - len(header) + payload)


def sealed(batch: bytes) -> bytes:
    """A record batch of magic 2 with the CRC that belongs to it."""
    return batch[:17] + struct.pack(">I", crc32c.crc32c(batch[21:])) + batch[21:]


async def errno_of(work: Awaitable[object]) -> int | None:
    """The errno that a piece of work ends with; None when it succeeds."""
    try:
        await work
    except DirectoryError as error:
        return error.errno
    return None


class StorageConformance(abc.ABC):
    """Base class of a plug-in's tests: inherit, implement the four or five methods, and run."""

    random = random.Random(858)

    @abc.abstractmethod
    async def storage(self) -> StorageAgent:
        """Return a storage agent that is not started."""

    @abc.abstractmethod
    def new_directory(self) -> str:
        """The path of a new, empty log directory; the same storage agents can be asked for it."""

    @abc.abstractmethod
    def write_file(self, path: str, replica: str, file: str, content: bytes) -> None:
        """Give a file this content, as a broker that owns the log directory ``path`` would. The replica is there; when
        it is empty, ``file`` lies in the log directory itself."""

    @abc.abstractmethod
    def read_file(self, path: str, replica: str, file: str) -> bytes | None:
        """Return the content of a file; None: there is none."""

    def hang(self, path: str) -> Callable[[], None] | None:
        """Make every request of a directory wait; return a function that ends the wait. None: not possible here."""
        return None

    async def started(self) -> StorageAgent:
        """Return a started storage agent."""
        storage = await self.storage()
        await storage.start()
        return storage

    async def formatted(self, storage: StorageAgent) -> DirectoryAgent:
        """Return the loaded agent of a new directory with a ``meta.properties``."""
        agent = storage.directory(self.new_directory())
        await agent.load(timeout_ms=TIMEOUT_MS)
        await agent.write_meta_properties(self.meta(), timeout_ms=TIMEOUT_MS)
        return agent

    def meta(self) -> bytes:
        """A ``meta.properties`` with a new directory id."""
        directory_id = random_directory_id(self.random)
        return f"#\nversion=1\nnode.id=1\ncluster.id=c\ndirectory.id={directory_id}\n".encode()

    async def test_an_empty_directory_has_nothing(self) -> None:
        storage = await self.started()
        loaded = await storage.directory(self.new_directory()).load(timeout_ms=TIMEOUT_MS)
        assert loaded.meta_properties is None
        assert loaded.directory_id is None
        assert loaded.replicas == ()
        assert not loaded.clean_shutdown
        assert 0 < loaded.usable_bytes <= loaded.total_bytes
        await storage.close()

    async def test_what_can_be_allocated_is_said_as_it_is_now(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        total_bytes = (await agent.load_head(timeout_ms=TIMEOUT_MS)).total_bytes
        assert 0 < await agent.usable_bytes(timeout_ms=TIMEOUT_MS) <= total_bytes
        await storage.close()

    async def test_what_was_written_is_loaded_by_the_next_agent(self) -> None:
        first = await self.started()
        agent = await self.formatted(first)
        topic_id = random_uuid(self.random)
        await agent.create_replica("orders", 3, topic_id, timeout_ms=TIMEOUT_MS)
        await agent.create_replica("orders.v2-x", 12, topic_id, timeout_ms=TIMEOUT_MS)
        await agent.write_clean_shutdown(17, timeout_ms=TIMEOUT_MS)
        await first.close()
        second = await self.started()
        loaded = await second.directory(agent.path).load(timeout_ms=TIMEOUT_MS)
        assert [(r.topic, r.partition, r.topic_id, r.suffix) for r in loaded.replicas] == [
            ("orders", 3, topic_id, ""),
            ("orders.v2-x", 12, topic_id, ""),
        ]
        assert loaded.meta_properties is not None
        assert loaded.directory_id is not None
        assert f"directory.id={loaded.directory_id}\n".encode() in loaded.meta_properties
        assert (loaded.clean_shutdown, loaded.clean_shutdown_epoch) == (True, 17)
        await second.directory(agent.path).clear_clean_shutdown(timeout_ms=TIMEOUT_MS)
        assert not (await second.directory(agent.path).load(timeout_ms=TIMEOUT_MS)).clean_shutdown
        await second.close()

    async def test_the_files_of_a_kafka_broker_are_found_at_the_start(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)

        async def trace() -> str | None:
            return (await agent.load_head(timeout_ms=TIMEOUT_MS)).kafka_trace

        topic_id = random_uuid(self.random)
        await agent.create_replica("__cluster_metadata", 0, topic_id, timeout_ms=TIMEOUT_MS)
        self.write_file(agent.path, "__cluster_metadata-0", LOG, b"an agent keeps the metadata too")
        await agent.create_replica("t", 0, topic_id, timeout_ms=TIMEOUT_MS)
        self.write_file(agent.path, "t-0", LOG, b"")
        self.write_file(agent.path, "t-0", "00000000000000000000.index", b"no segment")
        self.write_file(agent.path, "", LOG_START, b"0\n0\n")
        await agent.write_clean_shutdown(17, timeout_ms=TIMEOUT_MS)
        await agent.probe(full=True, timeout_ms=TIMEOUT_MS)
        assert await trace() is None
        self.write_file(agent.path, "t-0", f"{7:020d}.log", b"data")
        assert await trace() == f"t-0/{7:020d}.log"
        self.write_file(agent.path, "", HIGH_WATERMARK, b"")
        assert await trace() == HIGH_WATERMARK
        self.write_file(agent.path, "", RECOVERY_POINT, b"")
        assert await trace() == RECOVERY_POINT
        await storage.close()

    async def test_creating_a_replica_again_succeeds_and_another_topic_of_its_name_does_not(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        topic_id = random_uuid(self.random)
        await agent.create_replica("t", 0, topic_id, timeout_ms=TIMEOUT_MS)
        await agent.create_replica("t", 0, topic_id, timeout_ms=TIMEOUT_MS)
        other = random_uuid(self.random)
        assert await errno_of(agent.create_replica("t", 0, other, timeout_ms=TIMEOUT_MS)) == errno.EEXIST
        await storage.close()

    async def test_a_replica_is_renamed_and_removed_but_never_replaced(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        topic_id = random_uuid(self.random)
        for partition in (0, 1):
            await agent.create_replica("t", partition, topic_id, timeout_ms=TIMEOUT_MS)
        gone = f"t-0.{'0' * 32}-delete"
        assert await errno_of(agent.rename_replica("t-0", "t-1", timeout_ms=TIMEOUT_MS)) == errno.EEXIST
        assert await errno_of(agent.rename_replica("t-7", "t-8", timeout_ms=TIMEOUT_MS)) == errno.ENOENT
        assert await errno_of(agent.rename_replica("t-0", "../t-0", timeout_ms=TIMEOUT_MS)) == errno.EINVAL
        assert await errno_of(agent.delete_replica("t-0", topic_id, timeout_ms=TIMEOUT_MS)) == errno.EINVAL
        await agent.rename_replica("t-0", gone, timeout_ms=TIMEOUT_MS)
        loaded = await agent.load(timeout_ms=TIMEOUT_MS)
        assert [(r.name, r.suffix) for r in loaded.replicas] == [(gone, "delete"), ("t-1", "")]
        await agent.delete_replica(gone, topic_id, timeout_ms=TIMEOUT_MS)
        assert [r.name for r in (await agent.load(timeout_ms=TIMEOUT_MS)).replicas] == ["t-1"]
        await storage.close()

    async def test_a_replica_of_another_topic_or_kind_is_never_removed(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        topic_id, other = random_uuid(self.random), random_uuid(self.random)
        await agent.create_replica("t", 0, topic_id, timeout_ms=TIMEOUT_MS)
        self.write_file(agent.path, "t-0", LOG, b"data")
        for name in ("t-0", "lost+found", f"../{DELETED}"):
            assert await errno_of(agent.delete_replica(name, topic_id, timeout_ms=TIMEOUT_MS)) == errno.EINVAL
        before = "t-0"
        for name in (STRAY, DELETED):
            await agent.rename_replica(before, name, timeout_ms=TIMEOUT_MS)
            for wrong in (other, None):
                assert await errno_of(agent.delete_replica(name, wrong, timeout_ms=TIMEOUT_MS)) == errno.ESTALE
            assert self.read_file(agent.path, name, LOG) == b"data"
            before = name
        await storage.close()

    async def test_every_kind_of_replica_that_may_go_goes_with_all_its_files_and_once_is_enough(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        topic_id = random_uuid(self.random)
        for name in (STRAY, FUTURE, DELETED):
            await agent.create_replica("t", 0, topic_id, timeout_ms=TIMEOUT_MS)
            for number in range(120):
                self.write_file(agent.path, "t-0", f"{number:020d}.log", b"data")
            await agent.rename_replica("t-0", name, timeout_ms=TIMEOUT_MS)
            await agent.delete_replica(name, topic_id, timeout_ms=TIMEOUT_MS)
            await agent.delete_replica(name, topic_id, timeout_ms=TIMEOUT_MS)
            assert (await agent.load(timeout_ms=TIMEOUT_MS)).replicas == ()
        await storage.close()

    async def test_a_name_at_the_limit_is_renamed_and_removed_and_a_longer_one_refused(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        topic_id = random_uuid(self.random)
        unique = "d" * 32
        topic = "x" * (255 - len(f"-0.{unique}-stray"))
        await agent.create_replica(topic, 0, topic_id, timeout_ms=TIMEOUT_MS)
        stray = f"{topic}-0.{unique}-stray"
        assert len(stray) == 255
        longer = agent.rename_replica(f"{topic}-0", f"{topic}-0.{unique}-delete", timeout_ms=TIMEOUT_MS)
        assert await errno_of(longer) == errno.ENAMETOOLONG
        await agent.rename_replica(f"{topic}-0", stray, timeout_ms=TIMEOUT_MS)
        assert [replica.name for replica in (await agent.load(timeout_ms=TIMEOUT_MS)).replicas] == [stray]
        await agent.delete_replica(stray, topic_id, timeout_ms=TIMEOUT_MS)
        assert (await agent.load(timeout_ms=TIMEOUT_MS)).replicas == ()
        await storage.close()

    async def test_partition_metadata_that_kafka_would_not_take_leaves_a_replica_without_topic_id(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        topic_id = random_uuid(self.random)
        whole = f"version: 0\ntopic_id: {topic_id}"
        contents = {
            whole: topic_id,
            whole + "\n": topic_id,
            whole[:-1]: None,
            "": None,
            f"version: 1\ntopic_id: {topic_id}": None,
            f"version: -1\ntopic_id: {topic_id}": None,
            f"version: 0\ntopic_id: {Uuid(bytes(16))}": None,
        }
        await agent.create_replica("t", 0, topic_id, timeout_ms=TIMEOUT_MS)
        for content, expected in contents.items():
            self.write_file(agent.path, "t-0", "partition.metadata", content.encode())
            (replica,) = (await agent.load(timeout_ms=TIMEOUT_MS)).replicas
            assert replica.topic_id == expected, content
            if expected is None:
                again = agent.create_replica("t", 0, topic_id, timeout_ms=TIMEOUT_MS)
                assert await errno_of(again) == errno.EEXIST, "nothing that is there is overwritten"
        await storage.close()

    async def test_what_is_copied_into_a_future_replica_is_there_byte_for_byte(self) -> None:
        storage = await self.started()
        source, destination = await self.formatted(storage), await self.formatted(storage)
        topic_id = random_uuid(self.random)
        await source.create_replica("t", 0, topic_id, timeout_ms=TIMEOUT_MS)
        await destination.create_future(FUTURE, topic_id, timeout_ms=TIMEOUT_MS)
        content = self.random.randbytes(2 * SLOT_BYTES + 77)
        self.write_file(source.path, "t-0", LOG, content)
        buffer = storage.copy_buffer(2, SLOT_BYTES)
        assert (buffer.slots, buffer.slot_bytes) == (2, SLOT_BYTES)
        for slot, offset in ((0, 0), (1, SLOT_BYTES), (0, 2 * SLOT_BYTES)):
            piece = await source.read_piece(buffer, slot, "t-0", LOG, offset, SLOT_BYTES, timeout_ms=TIMEOUT_MS)
            part = content[offset : offset + SLOT_BYTES]
            assert piece == Piece(len(part), binascii.crc32(part))
            await destination.write_piece(buffer, slot, FUTURE, LOG, offset, piece, timeout_ms=TIMEOUT_MS)
        await destination.finish_file(FUTURE, LOG, len(content), 1_700_000_000_123_456_789, timeout_ms=TIMEOUT_MS)
        buffer.close()
        assert self.read_file(destination.path, FUTURE, LOG) == content
        for cold in (False, True):
            found = await destination.checksum(FUTURE, LOG, 100, len(content), cold=cold, timeout_ms=TIMEOUT_MS)
            assert (found.length, found.crc) == (len(content) - 100, binascii.crc32(content[100:]))
        files = {status.name: status for status in await destination.list_files(FUTURE, timeout_ms=TIMEOUT_MS)}
        assert sorted(files) == [LOG, "partition.metadata"]
        assert (files[LOG].size, files[LOG].mtime_ns) == (len(content), 1_700_000_000_123_456_789)
        await storage.close()

    async def test_holes_are_written_and_files_of_a_future_replica_cut_and_removed(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        topic_id = random_uuid(self.random)
        await agent.create_future(FUTURE, topic_id, timeout_ms=TIMEOUT_MS)
        self.write_file(agent.path, FUTURE, LOG, b"x" * 10_000)
        buffer = storage.copy_buffer(1, SLOT_BYTES)
        hole = Piece(9_000, binascii.crc32(bytes(9_000)), hole=True)
        await agent.write_piece(buffer, 0, FUTURE, LOG, 5_000, hole, timeout_ms=TIMEOUT_MS)
        assert self.read_file(agent.path, FUTURE, LOG) == b"x" * 5_000 + bytes(9_000)
        await agent.finish_file(FUTURE, LOG, 6_000, 0, timeout_ms=TIMEOUT_MS)
        assert self.read_file(agent.path, FUTURE, LOG) == b"x" * 5_000 + bytes(1_000)
        await agent.finish_file(FUTURE, "new", 0, 0, timeout_ms=TIMEOUT_MS)
        assert self.read_file(agent.path, FUTURE, "new") == b""
        for _ in range(2):
            await agent.remove_file(FUTURE, "new", timeout_ms=TIMEOUT_MS)
        assert self.read_file(agent.path, FUTURE, "new") is None
        buffer.close()
        await storage.close()

    async def test_only_files_of_a_future_replica_can_be_written_and_not_what_tells_whose_it_is(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        topic_id = random_uuid(self.random)
        await agent.create_replica("t", 0, topic_id, timeout_ms=TIMEOUT_MS)
        await agent.create_future(FUTURE, topic_id, timeout_ms=TIMEOUT_MS)
        self.write_file(agent.path, "t-0", LOG, b"data")
        buffer = storage.copy_buffer(1, SLOT_BYTES)
        piece = await agent.read_piece(buffer, 0, "t-0", LOG, 0, 4, timeout_ms=TIMEOUT_MS)
        for name, file in (("t-0", LOG), (FUTURE, "partition.metadata"), (FUTURE, "../x"), (FUTURE, ".."), ("", "x")):
            for work in (
                agent.write_piece(buffer, 0, name, file, 0, piece, timeout_ms=TIMEOUT_MS),
                agent.finish_file(name, file, 0, 0, timeout_ms=TIMEOUT_MS),
                agent.remove_file(name, file, timeout_ms=TIMEOUT_MS),
            ):
                assert await errno_of(work) == errno.EINVAL
        assert self.read_file(agent.path, "t-0", LOG) == b"data"
        missing = agent.read_piece(buffer, 0, "t-0", "missing", 0, 4, timeout_ms=TIMEOUT_MS)
        assert await errno_of(missing) == errno.ENOENT
        assert await errno_of(agent.list_files("t-7", timeout_ms=TIMEOUT_MS)) == errno.ENOENT
        buffer.close()
        await storage.close()

    async def test_replicas_are_listed_as_they_are_now_and_probes_go_on_with_what_they_knew(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        topic_id = random_uuid(self.random)
        await agent.create_replica("t", 0, topic_id, timeout_ms=TIMEOUT_MS)
        await agent.load(timeout_ms=TIMEOUT_MS)
        await agent.create_replica("t", 1, topic_id, timeout_ms=TIMEOUT_MS)
        await agent.create_replica("__cluster_metadata", 0, topic_id, timeout_ms=TIMEOUT_MS)
        await agent.rename_replica("t-0", STRAY, timeout_ms=TIMEOUT_MS)
        listed = await agent.list_replicas(timeout_ms=TIMEOUT_MS)
        assert [(one.name, one.topic, one.partition, one.suffix, one.topic_id) for one in listed] == [
            (STRAY, "t", 0, "stray", None),
            ("t-1", "t", 1, "", None),
        ]
        other = await self.started()
        await other.directory(agent.path).write_meta_properties(self.meta(), timeout_ms=TIMEOUT_MS)
        await other.close()
        await agent.list_replicas(timeout_ms=TIMEOUT_MS)
        assert await errno_of(agent.probe(full=False, timeout_ms=TIMEOUT_MS)) == errno.ESTALE
        await storage.close()

    async def test_sizes_are_those_of_the_replicas_that_are_there(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        names = [f"t-{partition}" for partition in range(250)]
        topic_id = random_uuid(self.random)
        for partition in (3, 240):
            await agent.create_replica("t", partition, topic_id, timeout_ms=TIMEOUT_MS)
            self.write_file(agent.path, f"t-{partition}", LOG, bytes(1000))
        metadata = len(f"version: 0\ntopic_id: {topic_id}")
        sizes = await agent.replica_sizes(names, timeout_ms=TIMEOUT_MS)
        assert sizes == {"t-3": 1000 + metadata, "t-240": 1000 + metadata}
        assert await agent.replica_sizes(names, suffix=".log", timeout_ms=TIMEOUT_MS) == {"t-3": 1000, "t-240": 1000}
        await storage.close()

    async def test_the_end_of_a_log_is_behind_its_last_complete_batch(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        await agent.create_replica("t", 0, random_uuid(self.random), timeout_ms=TIMEOUT_MS)
        assert await agent.log_end_offset("t-0", timeout_ms=TIMEOUT_MS) == 0
        legacy = struct.pack(">qiIb", 44, 22, 0, 1) + bytes(17)
        self.write_file(agent.path, "t-0", LOG, b"not read: it is not the last segment")
        for content, end in (
            (b"", 42),
            (batch(42, 3), 45),
            (batch(42, 3) + batch(45, 10), 55),
            (batch(42, 3) + batch(45, 10)[:-1], 45),
            (batch(42, 3) + bytes(5000), 45),
            (batch(42, 1) + legacy, 45),
            (b"garbage that is long enough for a header of a batch", None),
        ):
            self.write_file(agent.path, "t-0", f"{42:020d}.log", content)
            assert await agent.log_end_offset("t-0", timeout_ms=TIMEOUT_MS) == end, content[:20]
        assert await errno_of(agent.log_end_offset("t-7", timeout_ms=TIMEOUT_MS)) == errno.ENOENT
        await storage.close()

    async def test_a_segment_is_checked_batch_by_batch_however_it_is_cut_into_parts(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        await agent.create_replica("t", 0, random_uuid(self.random), timeout_ms=TIMEOUT_MS)
        right = [sealed(batch(42 + 3 * number, 3, payload=50 * number)) for number in range(20)]
        content = b"".join(right)
        wrong = bytearray(content)
        wrong[len(b"".join(right[:11])) + 70] ^= 1
        for written, offset, position in (
            (content, 102, len(content)),
            (content[:-1], 99, len(content) - len(right[-1])),
            (bytes(wrong), 75, len(b"".join(right[:11]))),
            (content + bytes(4096), 102, len(content)),
        ):
            self.write_file(agent.path, "t-0", f"{42:020d}.log", written)
            for length in (300, 1000, 1 << 20):
                batches = None
                for start in range(0, len(written), length):
                    part = ("t-0", f"{42:020d}.log", start, min(length, len(written) - start))
                    piece, batches = await agent.check_batches(*part, batches, timeout_ms=TIMEOUT_MS)
                    assert (piece.length, piece.crc) == (part[3], binascii.crc32(written[start : start + length]))
                assert batches is not None
                assert (batches.offset, batches.position) == (offset, position)
        refused = agent.check_batches("t-0", "leader-epoch-checkpoint", 0, 1, None, timeout_ms=TIMEOUT_MS)
        assert await errno_of(refused) == errno.EINVAL
        await storage.close()

    async def test_checkpoints_are_changed_in_kafka_s_format_and_others_lines_stay(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        assert await agent.read_checkpoints(timeout_ms=TIMEOUT_MS) == {}
        self.write_file(agent.path, "", HIGH_WATERMARK, b"0\n2\nother 1 5\nt 0 7\n")
        self.write_file(agent.path, "", LOG_START, b"0\n2\nother 1 5\n")
        await agent.change_checkpoints(
            {
                HIGH_WATERMARK: {("t", 0): 9, ("t", 1): 1},
                LOG_START: {("t", 0): 3},
                RECOVERY_POINT: {("t", 0): None},
            },
            timeout_ms=TIMEOUT_MS,
        )
        high = self.read_file(agent.path, "", HIGH_WATERMARK)
        assert high is not None
        assert high.startswith(b"0\n3\nother 1 5\n")
        assert sorted(high.splitlines()) == [b"0", b"3", b"other 1 5", b"t 0 9", b"t 1 1"]
        assert self.read_file(agent.path, "", LOG_START) == b"0\n2\nother 1 5\n", "unreadable, so left alone"
        assert self.read_file(agent.path, "", RECOVERY_POINT) is None
        found = await agent.read_checkpoints(timeout_ms=TIMEOUT_MS)
        assert found == {HIGH_WATERMARK: {("other", 1): 5, ("t", 0): 9, ("t", 1): 1}}
        self.write_file(agent.path, "", LOG_START, b"")
        await agent.change_checkpoints({name: {("t", 0): None} for name in CHECKPOINT_FILES}, timeout_ms=TIMEOUT_MS)
        assert self.read_file(agent.path, "", HIGH_WATERMARK) == b"0\n2\nother 1 5\nt 1 1\n"
        assert self.read_file(agent.path, "", LOG_START) == b""
        foreign = agent.change_checkpoints({"meta.properties": {("t", 0): 1}}, timeout_ms=TIMEOUT_MS)
        assert await errno_of(foreign) == errno.EINVAL
        await storage.close()

    async def test_a_renewed_agent_works_where_the_old_one_is_abandoned(self) -> None:
        storage = await self.started()
        old = await self.formatted(storage)
        await old.lock(timeout_ms=TIMEOUT_MS)
        new = storage.renew(old.path)
        assert new is not old
        assert storage.directory(old.path) is new
        try:
            await old.probe(full=False, timeout_ms=TIMEOUT_MS)
        except WorkerUnavailable:
            pass
        else:
            raise AssertionError("an abandoned agent did some work")
        await new.load(timeout_ms=TIMEOUT_MS)
        await new.lock(timeout_ms=TIMEOUT_MS)
        await new.probe(full=True, timeout_ms=TIMEOUT_MS)
        other = await self.started()
        assert await errno_of(other.directory(old.path).lock(timeout_ms=TIMEOUT_MS)) == errno.EAGAIN
        await other.close()
        await storage.close()

    async def test_a_healthy_directory_passes_every_probe(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        loaded = await agent.load(timeout_ms=TIMEOUT_MS)
        for full in (True, False, True):
            result = await agent.probe(full=full, timeout_ms=TIMEOUT_MS)
            assert (result.full, result.no_space, result.identity) == (full, None, loaded.identity)
            assert result.written
        again = await agent.load(timeout_ms=TIMEOUT_MS)
        assert again.replicas == loaded.replicas, "a probe must leave nothing that Kafka would take for a log"
        assert again.unknown_names == loaded.unknown_names
        await storage.close()

    async def test_replicas_that_come_move_and_go_between_probes_are_no_damage(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        topic_id = random_uuid(self.random)
        for partition in range(3):
            await agent.create_replica("t", partition, topic_id, timeout_ms=TIMEOUT_MS)
        await agent.load(timeout_ms=TIMEOUT_MS)
        gone = f"t-0.{'0' * 32}-delete"
        for step in ("rename", "delete", "create"):
            if step == "rename":
                await agent.rename_replica("t-0", gone, timeout_ms=TIMEOUT_MS)
            elif step == "delete":
                await agent.delete_replica(gone, topic_id, timeout_ms=TIMEOUT_MS)
            else:
                await agent.create_replica("t", 0, topic_id, timeout_ms=TIMEOUT_MS)
            for _ in range(5):
                await agent.probe(full=False, timeout_ms=TIMEOUT_MS)
        await storage.close()

    async def test_only_one_agent_holds_the_lock(self) -> None:
        first, second = await self.started(), await self.started()
        path = self.new_directory()
        await first.directory(path).lock(timeout_ms=TIMEOUT_MS)
        await first.directory(path).lock(timeout_ms=TIMEOUT_MS)
        assert await errno_of(second.directory(path).lock(timeout_ms=TIMEOUT_MS)) == errno.EAGAIN
        await first.directory(path).unlock(timeout_ms=TIMEOUT_MS)
        await second.directory(path).lock(timeout_ms=TIMEOUT_MS)
        assert await errno_of(first.directory(path).lock(timeout_ms=TIMEOUT_MS)) == errno.EAGAIN
        await second.close()
        await first.directory(path).lock(timeout_ms=TIMEOUT_MS)
        await first.close()

    async def test_a_closed_agent_answers_nothing(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        await storage.close()
        try:
            await agent.probe(full=False, timeout_ms=TIMEOUT_MS)
        except WorkerUnavailable:
            return
        raise AssertionError("a closed storage agent did some work")

    async def test_a_directory_that_hangs_times_out_alone_and_its_late_answer_is_told(self) -> None:
        storage = await self.started()
        stuck, healthy = await self.formatted(storage), await self.formatted(storage)
        let_go = self.hang(stuck.path)
        if let_go is None:
            await storage.close()
            return
        late: asyncio.Future[LateAnswer] = asyncio.get_running_loop().create_future()
        stuck.on_late_answer = late.set_result
        for _ in range(2):
            try:
                await stuck.probe(full=False, timeout_ms=100)
            except DirectoryTimeout as timeout:
                assert timeout.age_ms >= 100
                assert timeout.call
            else:
                raise AssertionError("a directory that hangs answered")
        blocked = stuck.blocked()
        assert blocked is not None
        assert blocked.operation == "probe"
        await healthy.probe(full=True, timeout_ms=TIMEOUT_MS)
        let_go()
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            answer = await late
        assert (answer.path, answer.number, answer.error) == (stuck.path, blocked.number, None)
        stuck.on_late_answer = None
        await stuck.probe(full=False, timeout_ms=TIMEOUT_MS)
        await storage.close()

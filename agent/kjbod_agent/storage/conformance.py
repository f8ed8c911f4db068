"""What every storage agent must do, as tests to inherit from.

A plug-in's own test suite (pytest with pytest-asyncio in auto mode)::

    class TestMine(StorageConformance):
        async def storage(self) -> StorageAgent: ...
        def new_directory(self) -> str: ...

Faults are not part of it: which ones can be made is the implementation's affair. Those that hang a directory are, when
:meth:`StorageConformance.hang` can make it hang.
"""

import abc
import asyncio
import errno
import random
from collections.abc import Awaitable, Callable

from kjbod.ids import random_directory_id, random_uuid
from kjbod_agent.storage.api import (
    DirectoryAgent,
    DirectoryError,
    DirectoryTimeout,
    LateAnswer,
    StorageAgent,
    WorkerUnavailable,
)

TIMEOUT_MS = 10_000


async def errno_of(work: Awaitable[object]) -> int | None:
    """The errno that a piece of work ends with; None when it succeeds."""
    try:
        await work
    except DirectoryError as error:
        return error.errno
    return None


class StorageConformance(abc.ABC):
    """Inherit, give the two or four methods, and run."""

    random = random.Random(858)

    @abc.abstractmethod
    async def storage(self) -> StorageAgent:
        """A storage agent that was not started."""

    @abc.abstractmethod
    def new_directory(self) -> str:
        """The path of a new, empty log directory; the same storage agents can be asked for it."""

    def hang(self, path: str) -> Callable[[], None] | None:
        """Make every request of a directory wait; returns how to let go. None: cannot be done here."""
        return None

    async def started(self) -> StorageAgent:
        """A storage agent that was started."""
        storage = await self.storage()
        await storage.start()
        return storage

    async def formatted(self, storage: StorageAgent) -> DirectoryAgent:
        """A new directory with a ``meta.properties``, loaded."""
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
        assert await errno_of(agent.delete_replica("t-0", timeout_ms=TIMEOUT_MS)) == errno.EINVAL
        await agent.rename_replica("t-0", gone, timeout_ms=TIMEOUT_MS)
        loaded = await agent.load(timeout_ms=TIMEOUT_MS)
        assert [(r.name, r.suffix) for r in loaded.replicas] == [(gone, "delete"), ("t-1", "")]
        await agent.delete_replica(gone, timeout_ms=TIMEOUT_MS)
        assert [r.name for r in (await agent.load(timeout_ms=TIMEOUT_MS)).replicas] == ["t-1"]
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
                await agent.delete_replica(gone, timeout_ms=TIMEOUT_MS)
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

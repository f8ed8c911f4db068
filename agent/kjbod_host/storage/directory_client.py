"""Common part of all storage agents: the queue of one directory, and its answers as dataclasses.

A :class:`DirectoryClient` keeps the promises of :mod:`kjbod_host.storage.api` about time: one request at a time (and
of a copy the next piece handed over meanwhile), a probe before all others, a timeout at its moment, late answers to
``on_late_answer``. What carries a request out is a subclass: a worker process (:mod:`~kjbod_host.storage.posix`) or a
disk in memory (:mod:`~kjbod_host.storage.memory`). The protocol between them is that of
:mod:`kjbod_host.storage.worker`.
"""

import asyncio
import itertools
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from kjbod.clock import Clock
from kjbod.ids import Uuid
from kjbod.permissions import Barrier
from kjbod_host.storage.api import (
    Batches,
    BlockedCall,
    CopyBuffer,
    DirectoryError,
    DirectoryTimeout,
    FileStatus,
    LateAnswer,
    LoadedDirectory,
    MountIdentity,
    Piece,
    ProbeResult,
    Replica,
    WorkerUnavailable,
)
from kjbod_host.storage.checkpoints import CHECKPOINT_FILES, offsets
from kjbod_host.storage.worker import METADATA_PREFIX

TOPIC_IDS_PER_REQUEST = 100
"""Small files read by one request of a scan: some hundred milliseconds on a disk that seeks."""
LOOK_MS = 200
"""A request that is not answered is looked after this often: a pause that is longer counts as one of these."""
SENT_AHEAD = ("read_piece", "write_piece", "checksum", "check_batches")
"""Pieces of a copy: of these the next one is sent while one is carried out, so that the worker takes it up at once and
does not wait for its turn of the event loop. A probe then waits for two pieces at most."""


class Call(Struct, eq=False):
    """A request, queued or sent.

    Attributes:
        number: counts the requests of a directory.
        operation: name of an operation of the worker.
        arguments: of it.
        answer: ``(what the operation returned, microseconds it took)``; done early when the caller gave up.
        sent_ms: when it was sent, in monotonic ms; 0 while it is queued.
    """

    number: int
    operation: str
    arguments: dict[str, Any]
    answer: asyncio.Future[tuple[Any, int]]
    sent_ms: int = 0


class DirectoryClient(ABC):
    """All work on one log directory. Implements ``DirectoryAgent``; subclasses carry requests out.

    Args:
        path: the log directory.
        clock: for ages.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        self.on_late_answer: Callable[[LateAnswer], None] | None = None
        self._path = path
        self._clock = clock
        self._numbers = itertools.count(1)
        self._queue: deque[Call] = deque()
        self._current: Call | None = None
        self._ahead: Call | None = None
        """Call that was also sent, and begins after the current call."""
        self._identity: MountIdentity | None = None
        self._directory_id: str | None = None
        self._lock_wanted = False
        self._lock_lost = False

    # for subclasses ------------------------------------------------------------------------------------------------

    def _takes_ahead(self, call: Call) -> bool:
        """Whether :meth:`_transmit` takes this request before the current one is answered, and cannot refuse it."""
        return False

    @abstractmethod
    def _ready(self) -> bool:
        """Whether a request can be sent now. When not, arrange for :meth:`_pump` to be called later."""

    @abstractmethod
    def _transmit(self, request: dict[str, Any]) -> None:
        """Send a request; its answer goes to :meth:`_answered`, the loss of the worker to :meth:`_lost`."""

    @abstractmethod
    def _where(self, call: Call) -> tuple[str, int, str, str]:
        """Step, pid, process state and kernel function of the request in progress; see ``BlockedCall``."""

    @property
    def path(self) -> str:
        """The log directory as configured."""
        return self._path

    # what is asked -------------------------------------------------------------------------------------------------

    async def load(self, *, timeout_ms: int) -> LoadedDirectory:
        head = await self.load_head(timeout_ms=timeout_ms)
        return structs.replace(head, replicas=await self.load_replicas(head.replicas, timeout_ms=timeout_ms))

    async def load_head(self, *, timeout_ms: int) -> LoadedDirectory:
        self._identity = self._directory_id = None
        found = await self._ask("load", timeout_ms)
        identity = MountIdentity(*found["identity"])
        self._identity = identity
        self._directory_id = found["directory_id"]
        total_bytes, usable_bytes = found["capacity"]
        clean = found["clean"]
        return LoadedDirectory(
            path=self._path,
            real_path=found["real_path"],
            meta_properties=None if found["meta"] is None else found["meta"].encode("latin-1"),
            directory_id=found["directory_id"],
            replicas=_replicas([*found["names"], *found["obstacles"]]),
            unknown_names=tuple(name for name, parsed in found["names"] if parsed is None),
            kafka_trace=found["kafka"],
            has_cluster_metadata=any(name == "__cluster_metadata-0" for name, _ in found["names"]),
            identity=identity,
            total_bytes=total_bytes,
            usable_bytes=usable_bytes,
            clean_shutdown=clean is not None,
            clean_shutdown_epoch=None if clean is None else _epoch_of(clean),
        )

    async def list_replicas(self, *, timeout_ms: int) -> tuple[Replica, ...]:
        return _replicas(await self._ask("list_replicas", timeout_ms))

    async def load_replicas(
        self, replicas: Sequence[Replica], *, known: bool = False, timeout_ms: int
    ) -> tuple[Replica, ...]:
        names = [replica.name for replica in replicas if replica.is_directory]
        found = await self._topic_ids(names, timeout_ms, known=known)
        return tuple(_with_topic_id(replica, found.get(replica.name)) for replica in replicas)

    async def _topic_ids(self, names: list[str], timeout_ms: int, *, known: bool) -> dict[str, tuple[Uuid | None, str]]:
        found: dict[str, tuple[Uuid | None, str]] = {}
        for start in range(0, len(names), TOPIC_IDS_PER_REQUEST):
            batch = names[start : start + TOPIC_IDS_PER_REQUEST]
            texts = await self._ask("topic_ids", timeout_ms, names=batch, known=known)
            found.update((name, (_topic_id(text), why)) for name, (text, why) in zip(batch, texts, strict=True))
        return found

    async def lock(self, *, timeout_ms: int) -> None:
        await self._ask("lock", timeout_ms)
        self._lock_wanted, self._lock_lost = True, False

    async def unlock(self, *, timeout_ms: int) -> None:
        self._lock_wanted = self._lock_lost = False
        await self._ask("unlock", timeout_ms)

    async def write_meta_properties(self, content: bytes, *, timeout_ms: int) -> None:
        text = content.decode("latin-1")
        self._directory_id = await self._ask("write_meta_properties", timeout_ms, content=text)

    async def probe(self, *, full: bool, timeout_ms: int) -> ProbeResult:
        answer, duration_us = await self._request("probe", timeout_ms, first=True, full=full)
        total_bytes, usable_bytes = answer["capacity"]
        return ProbeResult(
            duration_us=duration_us,
            steps=tuple((name, us) for name, us in answer["steps"]),
            full=full,
            no_space=answer["no_space"],
            identity=MountIdentity(*answer["identity"]),
            total_bytes=total_bytes,
            usable_bytes=usable_bytes,
            written=answer["written"],
        )

    async def usable_bytes(self, *, timeout_ms: int) -> int:
        usable_bytes: int = await self._ask("usable_bytes", timeout_ms)
        return usable_bytes

    async def create_replica(self, topic: str, partition: int, topic_id: Uuid, *, timeout_ms: int) -> None:
        await self._ask("create_replica", timeout_ms, name=f"{topic}-{partition}", topic_id=str(topic_id))

    async def rename_replica(self, name: str, new_name: str, *, timeout_ms: int) -> None:
        await self._ask("rename_replica", timeout_ms, name=name, new_name=new_name)

    async def delete_replica(self, name: str, topic_id: Uuid | None, *, timeout_ms: int) -> None:
        text = None if topic_id is None else str(topic_id)
        while await self._ask("delete_replica", timeout_ms, name=name, topic_id=text):
            pass

    async def create_future(self, name: str, topic_id: Uuid, *, timeout_ms: int) -> None:
        await self._ask("create_future", timeout_ms, name=name, topic_id=str(topic_id))

    async def replica_sizes(self, names: Sequence[str], *, suffix: str = "", timeout_ms: int) -> Mapping[str, int]:
        found: dict[str, int] = {}
        left = list(names)
        while left:
            piece = left[:TOPIC_IDS_PER_REQUEST]
            sizes = await self._ask("replica_sizes", timeout_ms, names=piece, suffix=suffix)
            found.update((name, size) for name, size in zip(left, sizes, strict=False) if size is not None)
            del left[: len(sizes)]
        return found

    async def log_end_offset(self, name: str, *, timeout_ms: int) -> int | None:
        state = None
        while True:
            found = await self._ask("log_end_offset", timeout_ms, name=name, state=state)
            if "state" not in found:
                end: int | None = found["end"]
                return end
            state = found["state"]

    # files of a replica --------------------------------------------------------------------------------------------

    async def list_files(self, name: str, *, timeout_ms: int) -> tuple[FileStatus, ...]:
        return tuple(FileStatus(*fields) for fields in await self._ask("list_files", timeout_ms, name=name))

    async def read_piece(
        self, buffer: CopyBuffer, slot: int, name: str, file: str, offset: int, length: int, *, timeout_ms: int
    ) -> Piece:
        place = _place(buffer, slot)
        found = await self._ask(
            "read_piece", timeout_ms, buffer=buffer, place=place, name=name, file=file, offset=offset, length=length
        )
        return Piece(*found)

    async def write_piece(
        self, buffer: CopyBuffer, slot: int, name: str, file: str, offset: int, piece: Piece, *, timeout_ms: int
    ) -> None:
        place, fields = _place(buffer, slot), [piece.length, piece.crc, piece.hole]
        await self._ask(
            "write_piece", timeout_ms, buffer=buffer, place=place, name=name, file=file, offset=offset, piece=fields
        )

    async def finish_file(self, name: str, file: str, size: int, mtime_ns: int, *, timeout_ms: int) -> None:
        await self._ask("finish_file", timeout_ms, name=name, file=file, size=size, mtime_ns=mtime_ns)

    async def remove_file(self, name: str, file: str, *, timeout_ms: int) -> None:
        await self._ask("remove_file", timeout_ms, name=name, file=file)

    async def checksum(self, name: str, file: str, offset: int, length: int, *, cold: bool, timeout_ms: int) -> Piece:
        found = await self._ask("checksum", timeout_ms, name=name, file=file, offset=offset, length=length, cold=cold)
        return Piece(*found)

    async def check_batches(
        self, name: str, file: str, offset: int, length: int, before: Batches | None, *, timeout_ms: int
    ) -> tuple[Piece, Batches]:
        state = None if before is None else before.state
        piece, after = await self._ask(
            "check_batches", timeout_ms, name=name, file=file, offset=offset, length=length, state=state
        )
        return Piece(*piece), Batches(after[0], after[1], after)

    # checkpoints ---------------------------------------------------------------------------------------------------

    async def read_checkpoints(self, *, timeout_ms: int) -> Mapping[str, Mapping[tuple[str, int], int]]:
        found: dict[str, Mapping[tuple[str, int], int]] = {}
        for name in CHECKPOINT_FILES:
            content = await self._ask("read_checkpoint", timeout_ms, name=name)
            read = None if content is None else offsets(content.encode("latin-1"))
            if read is not None:
                found[name] = read
        return found

    async def change_checkpoints(
        self, changes: Mapping[str, Mapping[tuple[str, int], int | None]], *, timeout_ms: int
    ) -> None:
        for name, entries in changes.items():
            fields = [[topic, partition, offset] for (topic, partition), offset in entries.items()]
            if fields:
                await self._ask("change_checkpoint", timeout_ms, name=name, changes=fields)

    async def clear_clean_shutdown(self, *, timeout_ms: int) -> None:
        await self._ask("clear_clean_shutdown", timeout_ms)

    async def write_clean_shutdown(self, broker_epoch: int, *, timeout_ms: int) -> None:
        await self._ask("write_clean_shutdown", timeout_ms, epoch=broker_epoch)

    def blocked(self) -> BlockedCall | None:
        call = self._current
        if call is None:
            return None
        step, pid, state, wchan = self._where(call)
        age_ms = self._clock.monotonic_ms() - call.sent_ms
        return BlockedCall(call.number, call.operation, step, age_ms, pid, state, wchan)

    # how it is asked -----------------------------------------------------------------------------------------------

    async def _ask(self, operation: str, timeout_ms: int, **arguments: Any) -> Any:
        answer, _ = await self._request(operation, timeout_ms, **arguments)
        return answer

    async def _request(
        self, operation: str, timeout_ms: int, *, first: bool = False, **arguments: Any
    ) -> tuple[Any, int]:
        """Queue a request and wait for its answer and the worker's time in microseconds, at most ``timeout_ms``."""
        if self._lock_lost and operation not in ("lock", "load"):
            await self.lock(timeout_ms=timeout_ms)
        answer: asyncio.Future[tuple[Any, int]] = asyncio.get_running_loop().create_future()
        call = Call(next(self._numbers), operation, arguments, answer)
        if first:
            self._queue.appendleft(call)
        else:
            self._queue.append(call)
        self._pump()
        try:
            if not await self._comes(answer, timeout_ms):
                raise self._overdue()
            return answer.result()
        finally:
            answer.cancel()  # nobody waits for it any more; nothing happens when it is there
            if call in self._queue:  # an exception instead would print call and answer, for each request
                self._queue.remove(call)

    async def _comes(self, answer: asyncio.Future[tuple[Any, int]], timeout_ms: int) -> bool:
        """Wait for the answer within ``timeout_ms`` of observed time; return whether it came. After a pause of this
        process or machine the answer may already be there, but the event loop sees the timeout first."""
        left_ms: float = timeout_ms
        while left_ms > 0:
            began_ms = self._clock.monotonic_ms()
            step_ms = min(left_ms, LOOK_MS)
            await asyncio.wait([answer], timeout=step_ms / 1000)
            if answer.done():
                return True
            passed_ms = self._clock.monotonic_ms() - began_ms
            left_ms -= passed_ms if step_ms <= passed_ms <= 2 * LOOK_MS else step_ms
        return False

    def _overdue(self) -> DirectoryTimeout | WorkerUnavailable:
        blocked = self.blocked()
        if blocked is None:
            return WorkerUnavailable(self._path, "no worker could be started in time")
        if not blocked.call:
            state = f", process state {blocked.process_state}" if blocked.process_state else ""
            return WorkerUnavailable(
                self._path, f"its worker (pid {blocked.pid}) took no request for {blocked.age_ms} ms{state}"
            )
        return DirectoryTimeout(blocked.age_ms, blocked.wchan, blocked.call, self._path)

    def _pump(self) -> None:
        """Send the next request when none is in progress; one more when both are pieces of a copy."""
        if self._current is None and self._queue and self._ready() and self._queue:
            call = self._current = self._queue.popleft()
            call.sent_ms = self._clock.monotonic_ms()
            self._send(call)
        if self._may_send_ahead():
            self._ahead = self._queue.popleft()
            self._send(self._ahead)

    def _may_send_ahead(self) -> bool:
        return (
            self._current is not None
            and self._ahead is None
            and bool(self._queue)
            and self._current.operation in SENT_AHEAD
            and self._queue[0].operation in SENT_AHEAD
            and self._takes_ahead(self._queue[0])
        )

    def _send(self, call: Call) -> None:
        expect = [None if self._identity is None else _fields(self._identity), self._directory_id]
        self._transmit({"n": call.number, "op": call.operation, "expect": expect, **call.arguments})

    def _answered(self, answer: dict[str, Any]) -> None:
        """Give an answer of the worker to its caller, or to ``on_late_answer``."""
        call, self._current, self._ahead = self._current, self._ahead, None
        if call is None:
            return
        if self._current is not None:
            self._current.sent_ms = self._clock.monotonic_ms()  # it begins now
        error: DirectoryError | WorkerUnavailable | None = None
        if "errno" in answer:
            found = answer.get("barrier")
            barrier = None if found is None else Barrier(*found)
            error = DirectoryError(answer["errno"], answer["call"], self._path, after_us=answer["us"], barrier=barrier)
        elif "trouble" in answer:
            error = WorkerUnavailable(self._path, answer["trouble"])
        if call.answer.done():
            self._report_late(call, error)
        elif error is not None:
            call.answer.set_exception(error)
        else:
            call.answer.set_result((answer["ok"], answer["us"]))
        self._pump()

    def _report_late(self, call: Call, error: DirectoryError | WorkerUnavailable | None) -> None:
        if self.on_late_answer is not None:
            age_ms = self._clock.monotonic_ms() - call.sent_ms
            reported = error if isinstance(error, DirectoryError) else None
            self.on_late_answer(LateAnswer(self._path, call.number, call.operation, age_ms, reported))

    def _lost(self, reason: str) -> None:
        """Fail the calls that wait for a lost worker. The next call gets a new worker."""
        lost, self._current, self._ahead = (self._current, self._ahead), None, None
        for call in lost:
            if call is not None and not call.answer.done():
                call.answer.set_exception(WorkerUnavailable(self._path, reason))
        self._pump()

    def _fail_all(self, reason: str) -> None:
        """Fail every queued call with :class:`WorkerUnavailable`."""
        self._fail_queued(lambda: WorkerUnavailable(self._path, reason))

    def _fail_queued(self, error: Callable[[], DirectoryTimeout | WorkerUnavailable]) -> None:
        """Fail every queued call, each with a new error."""
        queued, self._queue = self._queue, deque()
        for call in queued:
            if not call.answer.done():
                call.answer.set_exception(error())


def _place(buffer: CopyBuffer, slot: int) -> list[int]:
    """Place of a slot in the memory of its buffer: offset and length.

    Raises:
        IndexError: there is no such slot.
    """
    if not 0 <= slot < buffer.slots:
        raise IndexError(f"slot {slot} of {buffer.slots}")
    return [slot * buffer.slot_bytes, buffer.slot_bytes]


def _replicas(found: Sequence[Sequence[Any]]) -> tuple[Replica, ...]:
    """Replicas among what was found, by name, without the metadata log; each name comes with its parts, None for what
    is no replica, and what it is where it is no directory."""
    return tuple(
        Replica(name, parsed[0], parsed[1], None, parsed[2], " ".join(obstacle), not obstacle)
        for name, parsed, *obstacle in sorted(found, key=lambda one: str(one[0]))
        if parsed is not None and not name.startswith(METADATA_PREFIX)
    )


def _with_topic_id(replica: Replica, found: tuple[Uuid | None, str] | None) -> Replica:
    """A replica with what its ``partition.metadata`` says; None: it is no directory, and was not asked."""
    if found is None:
        return replica
    topic_id, trouble = found
    return structs.replace(replica, topic_id=topic_id, trouble=trouble)


def _fields(identity: MountIdentity) -> list[object]:
    return [
        identity.mount_id,
        identity.unique_mount_id,
        identity.device,
        identity.inode,
        identity.fsid,
        identity.fs_uuid,
    ]


def _topic_id(text: str | None) -> Uuid | None:
    """Return a topic id that Kafka would accept: it parses, and is not zero; None: it is not valid."""
    if text is None:
        return None
    try:
        found = Uuid.parse(text)
    except ValueError:
        return None
    return found if any(found) else None


def _epoch_of(content: str) -> int | None:
    """Broker epoch of a clean shutdown file; None when it is empty (as before Kafka 3.7) or not of version 0."""
    try:
        found = json.loads(content)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("version") != 0 or not isinstance(found.get("brokerEpoch"), int):
        return None
    return int(found["brokerEpoch"])

"""The model of a Kafka broker's storage, within the resolution that matters to a guard, as measured on Kafka 4.3.1.

==================  ================================================================================================
part                in the model
==================  ================================================================================================
page cache          appends to a disk that hangs go on for :data:`APPEND_MS`, then block; on one that is frozen they
                    block at once. What is not flushed is lost in a file-system shutdown
checkpoints         each :data:`CHECKPOINT_MS` each directory is touched by its path: an error takes it offline, also
                    one that comes from a mask; on a disk that hangs that thread is stuck, and no checkpoint follows
request handlers    an append that blocks keeps one; after :data:`HANDLERS_MS` none is left, and nothing that the broker
                    leads is served
fetchers            one for each leader: an append that blocks, or a leader epoch that is written with ``fsync`` when
                    the broker becomes a follower, holds up all that is fetched from that leader. On a frozen disk to
                    become a follower holds up the thread that applies metadata
failure handler     waits for fetchers that are stuck on that disk, with the lock that metadata are applied under: the
                    directory is offline, and nobody hears of it
file-system         an append that blocks on a disk that hangs gets an error, and takes the directory offline; what
shutdown            waits in ``fsync`` stays there. It does nothing for what waits on a frozen disk
high watermark      waits for the ISR, and for each replica that was caught up within :data:`LAG_MS` while its broker is
                    not fenced, wherever its directory is
replica lists       a broker that is in a list no more deletes its replica: an unlink, which waits for a disk that hangs
start               waits for a directory that hangs; without those that answer errors
==================  ================================================================================================

A node may be a voter of the metadata quorum too (``metadata``): its end is the end of a voter.

Not modelled: transactions, consumers of cold data, XFS (which blocks appends later).
"""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.image import PartitionRegistration
from kjbod.wire.messages import BrokerHeartbeatRequest
from tests.controller.world import directory

if TYPE_CHECKING:
    from tests.guard.universe import Universe

APPEND_MS: Final = 4_000
CHECKPOINT_MS: Final = 5_000
HANDLERS_MS: Final = 36_000
HEARTBEAT_MS: Final = 2_000
LAG_MS: Final = 30_000
"""``replica.lag.time.max.ms``."""
FLUSH_MS: Final = 10_000
"""How often the kernel writes back what is dirty."""
ENDED_MS: Final = 5
"""From the end of a broker's process to its guard."""
RESTART_MS: Final = 20_000
"""From the end of a broker's process to its next start."""
SHUT_MS: Final = 10_000
"""How long a broker that is to stop waits for the controller to move its leaders."""
METADATA: Final = -1
"""In the place of a leader: the thread that applies metadata, or the failure handler, which holds its lock."""
HANDLER: Final = -2
"""Likewise: a request handler."""
Key = tuple[str, int]


@dataclass(slots=True, eq=False)
class ModelDisk:
    """A disk with one log directory."""

    broker: int
    id: Uuid
    path: str
    hung_ms: int | None = None
    """Since when it hangs; None: it does not."""
    frozen: bool = False
    """While it hangs: whether its file system is frozen, so that nothing frees who waits there."""
    failing: bool = False
    """Whether it answers errors by itself."""
    cut: bool = False
    masked: bool = False
    bad_ms: int = 0
    """Since when it hangs or fails, or did the last time."""
    failed_ms: int | None = None
    """When a guard would call it failed, once it hangs or fails for so long."""
    passed_ms: int | None = None
    """Since when it has answered again after that."""

    @property
    def errors(self) -> bool:
        """Whether whatever touches it gets an error at once."""
        return self.cut or self.failing

    def appends(self, now_ms: int) -> bool:
        """Whether an append returns, with success."""
        if self.errors:
            return False
        return self.hung_ms is None or (not self.frozen and now_ms - self.hung_ms < APPEND_MS)

    @property
    def blocks(self) -> bool:
        """Whether what goes to the disk itself waits there."""
        return self.hung_ms is not None and not self.errors

    @property
    def writes(self) -> bool:
        return self.hung_ms is None and not self.errors


@dataclass(slots=True, eq=False)
class Log:
    """A replica's records, of which those behind ``flushed`` are in the page cache alone."""

    disk: ModelDisk
    records: list[int] = field(default_factory=list)
    flushed: int = 0

    @property
    def kept(self) -> list[int]:
        """Records that are there after the next start of the broker."""
        return self.records[: self.flushed] if self.disk.cut else self.records


class Stuck(NamedTuple):
    """A thread that waits for a disk."""

    disk: ModelDisk
    since_ms: int
    in_append: bool
    """Whether a file-system shutdown frees it."""


class ModelBroker:
    """A Kafka broker."""

    def __init__(self, universe: "Universe", number: int, dirs: int) -> None:
        self.universe = universe
        self.id = number
        self.disks = [ModelDisk(number, directory(number, at), f"/b{number}/d{at}") for at in range(dirs)]
        self.metadata: ModelDisk | None = None
        """Of a node that is a controller too: the disk of its metadata log."""
        self.is_voter_there = True
        """Likewise: whether its process runs."""
        self.logs: dict[Key, Log] = {}
        self.known: dict[Key, PartitionRegistration] = {}
        self.epoch = -1
        self.running = False
        self.started = 0
        self.is_replacing = False
        """Whether an operator has a disk of it in hand."""
        self.offline: set[Uuid] = set()
        """Directories that it has taken offline itself."""
        self.untold: set[Uuid] = set()
        """Those of which its failure handler has not come to tell."""
        self.stuck: dict[int, Stuck] = {}
        """The threads that are stuck: fetchers by their leader, :data:`METADATA`, :data:`HANDLER`."""
        self.stuck_ms = 0
        """When a thread was last seen to be stuck."""
        self.checkpoint_waits: ModelDisk | None = None
        """Where its scheduler is stuck."""
        self.caught_up_ms: dict[tuple[Key, int], int] = {}
        """When a follower of a partition that it leads was last at the end."""
        self.led: dict[Key, int] = {}
        """Leader epoch of the partitions that it leads, as of :attr:`caught_up_ms`."""
        self.cordoned: set[Uuid] = set()
        self.cut_off_until_ms = 0
        """Until when its host reaches no other."""
        self.ended_ms = 0
        """When its process ended last."""
        self._checkpoints = 0

    @property
    def is_cut_off(self) -> bool:
        return self.universe.now_ms < self.cut_off_until_ms

    @property
    def is_fine(self) -> bool:
        """Whether nothing is wrong with it, or will be by itself."""
        if not self.running or self.stuck or self.untold or self.cut_off_until_ms:
            return False
        return all(one.id in self.offline or (one.writes and not one.masked) for one in self.all_disks)

    @property
    def all_disks(self) -> list[ModelDisk]:
        """Those of log directories, and of the metadata log."""
        return self.disks if self.metadata is None else [*self.disks, self.metadata]

    # ---- its life

    async def start(self) -> None:
        """Start, as soon as no directory hangs; without those that answer errors."""
        if self.running:
            return
        while any(one.blocks and not one.masked for one in self.all_disks) or (  # noqa: ASYNC110
            self.metadata is not None and self.metadata.cut
        ):
            await asyncio.sleep(0.5)
        if self.is_replacing or self.running:
            return
        dirs = tuple(one.id for one in self.disks if one.writes and not one.masked)
        if not dirs:
            self.universe.later(RESTART_MS, self.start)
            return
        self.started += 1
        self.is_voter_there = True
        self.universe.voters_changed()
        self.offline = {one.id for one in self.disks if one.id not in dirs}
        self.stuck.clear()
        self.untold.clear()
        self.checkpoint_waits = None
        while (epoch := await self.universe.register(self, dirs)) < 0:  # noqa: ASYNC110
            await asyncio.sleep(1)
        self.epoch, self.running = epoch, True
        self.led.clear()
        self.known.clear()
        self.universe.note(f"broker {self.id} registered, epoch {epoch}")
        self.universe.reached(self.id, "registered")
        self.universe.spread()
        while self.running and self.epoch == epoch:
            await self.beat()
            await asyncio.sleep(HEARTBEAT_MS / 1000)

    async def beat(self) -> None:
        """A heartbeat, with the directories that are offline."""
        registered = self.universe.registered(self.id)
        offline = tuple(one for one in registered if one in self.offline and one not in self.untold)
        if offline and len(offline) == len(registered):
            self.end("all directories are offline")
            return
        await self._heartbeat(offline=offline)

    async def _heartbeat(self, *, offline: tuple[Uuid, ...] = (), shut: bool = False) -> bool:
        """One heartbeat; whether the broker may stop. A broker that cannot apply metadata is not caught up."""
        request = BrokerHeartbeatRequest(
            broker_id=self.id,
            broker_epoch=self.epoch,
            current_metadata_offset=0 if METADATA in self.stuck else self.universe.image.offset,
            want_shut_down=shut,
            offline_log_dirs=offline,
            cordoned_log_dirs=tuple(one.id for one in self.disks if one.id in self.cordoned),
        )
        answer = await self.universe.quietly(self, request, 4_500)
        return answer is not None and answer.should_shut_down

    def end(self, why: str) -> None:
        """The process ends. What is in the page cache stays."""
        if self.running:
            self.universe.disturb()
            self.universe.note(f"broker {self.id} ends: {why}")
            self.running, self.stuck = False, {}
            self.is_voter_there, self.ended_ms = False, self.universe.now_ms
            self.universe.voters_changed()
            self.universe.later(RESTART_MS, self.start)
            self.universe.at(self.universe.now_ms + ENDED_MS, self._tell_guard)
            self.universe.reached(self.id, "ends")

    def _tell_guard(self) -> None:
        guard = self.universe.guards.get(self.id)
        if guard is not None and not guard.is_dead:
            guard.ended()

    async def restart(self) -> None:
        """An operator restarts it: the controller moves its leaders first, where it does so in time."""
        until_ms, shut = self.universe.now_ms + SHUT_MS, False
        while self.running and not shut and self.universe.now_ms < until_ms:
            shut = await self._heartbeat(shut=True)
            await asyncio.sleep(0.5)
        self.end("an operator restarts it")

    def cordon(self, number: int) -> None:
        """An operator cordons a directory, or no longer does."""
        self.cordoned ^= {self.disks[number].id}
        self.universe.note(f"broker {self.id} cordons {sorted(map(str, self.cordoned))}")

    # ---- metadata

    def apply(self, key: Key, now: PartitionRegistration | None) -> None:
        """A partition as the metadata have it by now."""
        if not self.running or METADATA in self.stuck:
            return
        before = self.known.get(key)
        if now is None or self.id not in now.replicas:
            self.known.pop(key, None)
            self._delete(key)
            return
        self.known[key] = now
        if key not in self.logs:
            self._create(key, now)
        follows = now.leader not in (-1, self.id)
        if follows and key in self.logs and (before is None or before.leader_epoch != now.leader_epoch):
            self._write_epoch(self.logs[key].disk, now.leader)

    def _write_epoch(self, disk: ModelDisk, leader: int) -> None:
        """A follower writes its leader epoch, by a path and with fsync."""
        if disk.id in self.offline:
            return
        if disk.masked or disk.errors:
            self.failed(disk)
        elif disk.blocks:
            self.hold(METADATA if disk.frozen else leader, disk)

    def _delete(self, key: Key) -> None:
        """Rename and unlink the replica."""
        log = self.logs.get(key)
        if log is None or log.disk.id in self.offline:
            return
        if log.disk.masked or log.disk.errors:
            self.failed(log.disk)
            return
        if log.disk.blocks:
            self.hold(METADATA, log.disk)
        del self.logs[key]

    def _create(self, key: Key, now: PartitionRegistration) -> None:
        """Create a replica where the metadata have it. One that has no directory gets one; one whose directory is gone
        gets another, unless that may be one of those that are offline."""
        free = [one for one in self.disks if one.id not in self.offline and one.id not in self.cordoned]
        placed = now.directory(self.id)
        disk = next((one for one in self.disks if one.id == placed and one.id not in self.offline), None)
        if disk is None and free and (placed == UNASSIGNED or not self.offline):
            disk = min(free, key=lambda one: sum(log.disk is one for log in self.logs.values()))
            self.universe.spawn(self.universe.assign(self, key, disk.id))
        if disk is not None:
            self.logs[key] = Log(disk)

    # ---- threads and directories

    def hold(self, thread: int, disk: ModelDisk, *, in_append: bool = False) -> None:
        """A thread waits for a disk: the fetcher of a leader, or another."""
        if thread not in self.stuck:
            self.stuck[thread] = Stuck(disk, self.universe.now_ms, in_append)
            self.universe.reached(self.id, "stuck")

    def failed(self, disk: ModelDisk) -> None:
        """The handler of a failed directory."""
        if disk.id in self.offline or not self.running:
            return
        self.offline.add(disk.id)
        self.universe.disturb()
        self.universe.note(f"broker {self.id} takes {disk.path} offline")
        if any(one.disk is disk and thread >= 0 for thread, one in self.stuck.items()):
            self.untold.add(disk.id)
            self.hold(METADATA, disk)
        else:
            self.universe.spawn(self.beat())
        self.universe.reached(self.id, "offline")

    def was_cut(self, disk: ModelDisk) -> None:
        """The file system of a disk was shut down: who waits in an append gets an error, unless it is frozen."""
        freed = [one for one, its in self.stuck.items() if its.disk is disk and its.in_append and not disk.frozen]
        for one in freed:
            del self.stuck[one]
        if freed:
            self.failed(disk)

    def is_stuck(self, leader: int) -> bool:
        """Whether nothing is fetched from a leader."""
        return leader in self.stuck

    @property
    def serves(self) -> bool:
        """Whether it has a request handler left."""
        waiting = self.stuck.get(HANDLER)
        return waiting is None or self.universe.now_ms - waiting.since_ms < HANDLERS_MS

    def go_on(self, now_ms: int) -> None:
        """Nothing was wrong until now."""
        self._checkpoints = self._due(now_ms)

    def _due(self, now_ms: int) -> int:
        return (now_ms + self.id * 1_700) // CHECKPOINT_MS

    def step(self, now_ms: int) -> None:
        """Threads come back with their disks; checkpoints are made."""
        if not self.running:
            return
        if self.stuck:
            self.stuck_ms = now_ms
            back = [one for one, its in self.stuck.items() if its.disk.hung_ms is None]
            for one in back:
                del self.stuck[one]
            if METADATA in back:
                self.untold.clear()
                self.universe.spread()
        if self.checkpoint_waits is not None and self.checkpoint_waits.hung_ms is None:
            self.checkpoint_waits = None
        if self.cut_off_until_ms and now_ms >= self.cut_off_until_ms:
            self.cut_off_until_ms = 0
            self.universe.spread()
        if (due := self._due(now_ms)) != self._checkpoints:
            self._checkpoints = due
            self._checkpoint()

    def _checkpoint(self) -> None:
        for disk in self.disks:
            if self.checkpoint_waits is not None:
                return
            if disk.id in self.offline:
                continue
            if disk.masked or disk.errors:
                self.failed(disk)
            elif disk.blocks:
                self.checkpoint_waits = disk

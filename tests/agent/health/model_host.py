"""Disks, devices and workers as a model that answers the real ``HostHealth``. No event loop.

A probe is a chain of requests to a device, one after the other, as measured on ext4. The last is the journal's commit
record, written with FUA: the kernel makes of it a write and a flush where the device knows no FUA, and counts neither
before both are done, so the device seems silent for twice the time of a request. The device completes requests, refuses
them, keeps them, or never gets them, and counts as the kernel counts. Time is a heap of events; what the kernel and
the device do goes on while the agent's process stands still.
"""

import errno
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec.structs import replace

from kjbod_host.health import core, verdict
from kjbod_host.health.block import BlockCounters, BlockDevice
from kjbod_host.health.evidence import Verdict
from kjbod_host.health.mounts import Mount
from kjbod_host.health.sources.api import KernelEvent
from kjbod_host.health.verdict import Cause, DirectoryHealth, Health, HealthSettings
from kjbod_host.storage.api import (
    BlockedCall,
    DirectoryError,
    LateAnswer,
    LoadedDirectory,
    MountIdentity,
    ProbeResult,
    WorkerUnavailable,
)
from kjbod_host.storage.directory_client import LOOK_MS

REQUESTS = 5
"""Of a probe on ext4, one after the other; a full one has twice as many."""


class Mode(StrEnum):
    """What a disk does with requests."""

    WELL = "well"
    HUNG = "hung"
    """The device keeps them."""
    FROZEN = "frozen"
    """They wait in the file system and never reach the device (fsfreeze)."""
    THROTTLED = "throttled"
    """They wait above the device as long as a cgroup's limit says; only now and then one reaches it."""
    EIO = "eio"


@dataclass(eq=False)
class ModelDisk:
    """A device with a file system on it.

    Attributes:
        mode: what happens to requests.
        latency_ms: time of the next request; called for each.
        neighbours: other users of the device have requests in flight, and get them completed while it works.
        counters: whether the device has any.
        wchan: whether the kernel tells where a process sleeps.
        full: nothing can be allocated.
    """

    mode: Mode = Mode.WELL
    latency_ms: Callable[[], int] = lambda: 1
    neighbours: bool = False
    counters: bool = True
    wchan: bool = True
    full: bool = False
    completed: int = 0
    flushes: int = 0
    """Completed; one goes before the last request of a probe."""
    in_flight: int = 0
    waiting: list[Callable[[], None]] = field(default_factory=list)
    frozen_ms: int = 0
    """Since when it is frozen, if it is; a thaw that no sample can see is none."""
    thawed_ms: int = -1_000_000
    """When it was frozen last, by the time that the agent ran: in a pause no sample sees a thaw."""
    moved_ms: int = 0
    """When it last completed a request of ours; by the model's clock, and by the time that the agent ran."""
    moved_running_ms: int = 0
    neighbours_done: int = 0
    neighbours_ms: int = 0

    def read(self, now_ms: int) -> BlockCounters | None:
        """What ``/sys/block/X/stat`` says."""
        self.let_neighbours_work(now_ms)
        if not self.counters:
            return None
        completed = self.completed + self.neighbours_done
        return BlockCounters(self.in_flight + self.neighbours, completed, 0, flushes=self.flushes)

    def let_neighbours_work(self, now_ms: int) -> None:
        """One request of theirs each 10 ms, up to now."""
        done = (now_ms - self.neighbours_ms) // 10
        if self.neighbours and self.mode is not Mode.HUNG:
            self.neighbours_done += done
        self.neighbours_ms += done * 10


@dataclass(eq=False)
class Directory:
    """A directory, its disk, its worker, the request that this is at, and what was told of it."""

    name: str
    disk: ModelDisk
    core: core.HostHealth
    stopped: bool = False
    """Its worker, by SIGSTOP."""
    parked: list[Callable[[], None]] = field(default_factory=list)
    number: int = 0
    sent_ms: int | None = None
    """When its request was sent; None when it is at none."""
    awaited: bool = False
    """Whether the core still waits for its answer; else that comes late."""
    begun_ms: int = 0
    full: bool = False
    left: int = 0
    step: str = ""
    wchan: str = ""
    errors: list[tuple[int, int]] = field(default_factory=list)
    """``(begun, answered)`` of every error that was seen."""
    states: list[tuple[int, Health, Cause]] = field(default_factory=list)
    silent_ms: int = 0
    """When it was failed: how long the agent had run since the device moved."""
    frozen_ms: int = 0
    """When it was failed: how long the file system had been frozen."""
    unanswered_ms: int = 0
    """When it was failed: how long the agent had run since the request that was not answered was sent."""
    sent_running_ms: int = 0

    @property
    def health(self) -> DirectoryHealth:
        """By the verdict."""
        watched = self.core.watched(self.name)
        assert watched is not None
        return watched.health


class ModelHost:
    """Directories under one core; see the module.

    Args:
        disks: by name of the directory.
        settings: of the verdict.
    """

    def __init__(self, disks: dict[str, ModelDisk], settings: HealthSettings | None = None) -> None:
        self.settings = settings or HealthSettings()
        self.now_ms = 0
        self.running_ms = 0
        """Time in which the agent's process ran."""
        self.core = core.HostHealth(self.settings, self.now_ms)
        self.watched = {name: Directory(name, disk, self.core) for name, disk in disks.items()}
        self.fed: list[tuple[int, str]] = []
        """What was told, and when."""
        self._heap: list[tuple[int, int, bool, Callable[[], None]]] = []
        self._sequence = 0
        self._stalled_until = 0
        self._waking_ms: int | None = None
        numbers = {disk: f"sd{number}" for number, disk in enumerate(dict.fromkeys(disks.values()))}
        self._disks = {name: disk for disk, name in numbers.items()}
        for number, (name, disk) in enumerate(disks.items()):
            device = BlockDevice((numbers[disk],), f"8:{number}", disks=(numbers[disk],))
            mount = Mount(number, 1000, device.device, "/", name, "ext4", numbers[disk], frozenset({"rw"}))
            identity = MountIdentity(number, None, device.device, 2, "", None)
            loaded = LoadedDirectory(name, name, None, None, (), (), False, identity, 1, 1, False, None)
            self._step(core.Added(loaded, name, mount, device, (mount,)))
        self._step(core.Signal.STARTED)

    # time ----------------------------------------------------------------------------------------------------------

    def _at(self, at_ms: int, act: Callable[[], None], *, ours: bool) -> None:
        """``ours``: the agent's process does it, and not while it is stalled."""
        self._sequence += 1
        heapq.heappush(self._heap, (at_ms, self._sequence, ours, act))

    def run(self, duration_ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + duration_ms
        while self._heap and self._heap[0][0] <= end_ms:
            at_ms, _, ours, act = heapq.heappop(self._heap)
            if ours and at_ms < self._stalled_until:
                self._at(self._stalled_until, act, ours=True)
                continue
            self._pass(at_ms)
            act()
        self._pass(end_ms)

    def _pass(self, at_ms: int) -> None:
        self.running_ms += max(0, at_ms - max(self.now_ms, self._stalled_until))
        self.now_ms = max(self.now_ms, at_ms)

    def stall(self, duration_ms: int) -> None:
        """SIGSTOP of the agent, or a blocked event loop: disks and workers go on, nobody looks."""
        self._stalled_until = self.now_ms + duration_ms
        self.run(duration_ms)

    def suspend(self, duration_ms: int) -> None:
        """Nothing moves, and then the clock is that much further."""
        kept = [(at + duration_ms if not ours else at, n, ours, act) for at, n, ours, act in self._heap]
        heapq.heapify(kept)
        self._heap = kept
        self._stalled_until = self.now_ms + duration_ms
        self.run(duration_ms)

    def rest(self, duration_ms: int) -> None:
        """A quiet time, without each of its probes: a quick probe leaves a directory that is online as it is."""
        for directory in self.watched.values():
            state = directory.health
            assert state.health is Health.ONLINE, (directory.name, directory.states[-3:])
            quick = verdict.ProbeSucceeded(self.now_ms, 5)
            after = verdict.judge(state, quick, self.now_ms + duration_ms, self.settings).state
            assert replace(after, well_ms=state.well_ms) == replace(state, blockage=None)
        self.suspend(duration_ms)

    # the disk ------------------------------------------------------------------------------------------------------

    def set(self, disk: ModelDisk, mode: Mode) -> None:
        """Another mode; what waited is answered in it."""
        disk.let_neighbours_work(self.now_ms)
        if disk.mode is Mode.FROZEN:
            disk.thawed_ms = self.running_ms
        if mode is Mode.FROZEN and self.running_ms - disk.thawed_ms >= self.settings.sample_gap_ms:
            disk.frozen_ms = self.now_ms
        disk.mode = mode
        waiting, disk.waiting = disk.waiting, []
        for go_on in waiting:
            go_on()

    def _request(self, directory: Directory, number: int) -> None:
        """One request on its way to the device. What a probe reads before it writes passes a frozen file system."""
        disk = directory.disk
        if disk.mode is Mode.FROZEN and directory.step.startswith("fsync"):
            directory.wchan = "percpu_rwsem_wait" if disk.wchan else ""
            disk.waiting.append(lambda: self._request(directory, number))
            return
        directory.wchan = "folio_wait_bit" if disk.wchan else ""
        throttled = disk.mode is Mode.THROTTLED
        if not throttled:
            disk.in_flight += 1
            if disk.mode in (Mode.HUNG, Mode.EIO):
                self._complete(directory, number, in_flight=True)
                return
        due_ms = self.now_ms + disk.latency_ms()
        if not directory.left:
            due_ms += disk.latency_ms()
        self._at(due_ms, lambda: self._complete(directory, number, in_flight=not throttled), ours=False)

    def _complete(self, directory: Directory, number: int, *, in_flight: bool) -> None:
        """The device has done a request, unless it stands still now."""
        disk = directory.disk
        if disk.mode is Mode.HUNG and in_flight:
            disk.waiting.append(lambda: self._complete(directory, number, in_flight=True))
            return
        disk.in_flight -= in_flight
        disk.completed += 1
        disk.flushes += directory.left == 1
        disk.moved_ms, disk.moved_running_ms = self.now_ms, self.running_ms
        error = errno.EIO if disk.mode is Mode.EIO else 0
        self._worker(directory, lambda: self._done(directory, number, error))

    # the worker ----------------------------------------------------------------------------------------------------

    def _worker(self, directory: Directory, act: Callable[[], None]) -> None:
        """The worker goes on, unless it is stopped."""
        if directory.stopped:
            directory.parked.append(act)
        else:
            act()

    def stop_worker(self, directory: Directory) -> None:
        """SIGSTOP."""
        directory.stopped = True

    def continue_worker(self, directory: Directory) -> None:
        """SIGCONT."""
        directory.stopped = False
        parked, directory.parked = directory.parked, []
        for act in parked:
            act()

    def _done(self, directory: Directory, number: int, error: int) -> None:
        """The next request, or the answer; nothing when the worker was killed meanwhile."""
        if number != directory.number or directory.sent_ms is None:
            return
        if directory.left and not error:
            directory.step = "fsync of .kjbod_probe" if directory.step else "read of meta.properties"
            directory.left -= 1
            self._request(directory, number)
            return
        # The socket holds it until the agent reads.
        duration_ms = self.now_ms - directory.begun_ms
        self._at(self.now_ms, lambda: self._answered(directory, number, error, duration_ms), ours=True)

    def worker_died(self, directory: Directory) -> None:
        """SIGKILL of the worker while it was at a probe: another one is started."""
        if directory.sent_ms is not None and directory.health.health is not Health.FAILED:
            directory.sent_ms = None
            directory.parked.clear()
            if directory.awaited:
                self._end(directory, WorkerUnavailable(directory.name, "its worker died"))

    # the storage agent -------------------------------------------------------------------------------------------

    def _send(self, directory: Directory, full: bool) -> None:
        directory.number += 1
        directory.sent_ms, directory.sent_running_ms = self.now_ms, self.running_ms
        directory.awaited, directory.full = True, full
        directory.left = REQUESTS * (2 if full else 1)
        directory.step = directory.wchan = ""
        number, due_ms = directory.number, self.now_ms + self.settings.probe_timeout_ms
        self._at(self.now_ms, lambda: self._worker(directory, lambda: self._take(directory, number)), ours=False)
        self._at(due_ms, lambda: self._overdue(directory, number, due_ms), ours=True)

    def _take(self, directory: Directory, number: int) -> None:
        directory.begun_ms = self.now_ms
        self._done(directory, number, 0)

    def _answered(self, directory: Directory, number: int, error: int, duration_ms: int) -> None:
        if number != directory.number or directory.sent_ms is None:
            return
        sent_ms, directory.sent_ms = directory.sent_ms, None
        failed = None
        if error:
            directory.errors.append((sent_ms, self.now_ms))
            failed = DirectoryError(error, directory.step, directory.name, after_us=duration_ms * 1000)
        if directory.awaited:
            no_space = "ENOSPC" if directory.full and directory.disk.full else None
            identity = MountIdentity(0, None, "", 2, "", None)
            passed = ProbeResult(duration_ms * 1000, (), directory.full, no_space, identity, 1, 1)
            self._end(directory, failed or passed)
        else:
            self._step(LateAnswer(directory.name, number, "probe", self.now_ms - sent_ms, failed))

    def _overdue(self, directory: Directory, number: int, due_ms: int) -> None:
        """Its time is over, unless the agent stood still meanwhile: then it looks once more."""
        if number != directory.number or not directory.awaited:
            return
        if self.now_ms > due_ms:
            again_ms = self.now_ms + LOOK_MS
            self._at(again_ms, lambda: self._overdue(directory, number, again_ms), ours=True)
        elif directory.step:
            self._end(directory, self._blocked(directory))
        else:
            self._end(directory, WorkerUnavailable(directory.name, "its worker took no request"))

    def _end(
        self, directory: Directory, found: ProbeResult | DirectoryError | WorkerUnavailable | BlockedCall | None
    ) -> None:
        directory.awaited = False
        self._step(core.Answer(core.Probe(directory.name, directory.full), found))

    def _blocked(self, directory: Directory) -> BlockedCall | None:
        if directory.sent_ms is None:
            return None
        age_ms, state = self.now_ms - directory.sent_ms, "T" if directory.stopped else "D"
        return BlockedCall(directory.number, "probe", directory.step, age_ms, 1, state, directory.wchan)

    # the core's effects ----------------------------------------------------------------------------------------------

    def _step(self, event: core.Event) -> None:
        for effect in self.core.step(event, self.now_ms):
            self._carry_out(effect)
        waking_ms = max(self.now_ms, self.core.wake_ms())
        if waking_ms != self._waking_ms:
            self._waking_ms = waking_ms
            self._at(waking_ms, lambda: self._wake(waking_ms), ours=True)

    def _wake(self, waking_ms: int) -> None:
        if waking_ms == self._waking_ms:
            self._waking_ms = None
            self._step(core.Signal.WOKEN)

    def _carry_out(self, effect: core.Effect) -> None:
        found: object = None
        match effect:
            case core.Probe(path, full):
                self._send(self.watched[path], full)
                return
            case Verdict():
                self._told(self.watched[effect.path], effect)
                return
            case core.Log():
                return
            case core.Sample(path, device):
                found = self._blocked(self.watched[path]), self._counters(device)
            case core.ReadDevices(devices):
                found = {device: self._counters(device) for device in devices}
            case core.StartSources():
                found = {}, None
        self._step(core.Answer(effect, found))

    def _counters(self, device: BlockDevice) -> list[BlockCounters | None]:
        return [self._disks[name].read(self.now_ms) for name in device.names]

    def _told(self, directory: Directory, told: Verdict) -> None:
        self.fed.append((self.now_ms, told.evidence.text))
        if told.state is not told.previous:
            directory.states.append((self.now_ms, told.state, told.cause))
            directory.silent_ms = self.running_ms - directory.disk.moved_running_ms
            frozen = directory.disk.mode is Mode.FROZEN
            directory.frozen_ms = self.now_ms - directory.disk.frozen_ms if frozen else 0
            directory.unanswered_ms = self.running_ms - directory.sent_running_ms

    def kernel_said(self, directory: Directory, *, damage: bool) -> None:
        """A source of kernel events spoke of it."""
        self._step(KernelEvent(source="model", paths=(directory.name,), text="said", damage=damage))

    def report_error(self, directory: Directory, number: int = errno.EIO) -> None:
        """The agent's own work on a directory got an error."""
        if directory.health.health is not Health.FAILED:
            directory.errors.append((self.now_ms, self.now_ms))
            self._step(DirectoryError(number, "create of t-0", directory.name))


def log_normal_ms(rng: random.Random, median_ms: float, sigma: float, most_ms: int) -> Callable[[], int]:
    """Latencies of requests: mostly near the median, with a long tail that ends at ``most_ms``."""
    return lambda: min(most_ms, round(median_ms * rng.lognormvariate(0.0, sigma)))

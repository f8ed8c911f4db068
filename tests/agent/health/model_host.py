"""Log directories and their disks as a model, with the verdict driven as the monitor drives it. No event loop.

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

from kjbod_host.health import verdict
from kjbod_host.health.block import BlockCounters, BlockDevice
from kjbod_host.health.devices import BUSY_EVERY_MS, IDLE_EVERY_MS, DeviceWatch
from kjbod_host.health.monitor import (
    CONFIRM_AFTER_MS,
    RETRY_AFTER_MS,
    SAMPLE_AT_MS,
    SAMPLE_EVERY_MS,
    WITNESS_TIMEOUT_MS,
    WITNESSES,
    NoSources,
)
from kjbod_host.health.verdict import Ask, Cause, DirectoryHealth, Event, Health, HealthSettings
from kjbod_host.health.witness import must_settle

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
    """When it was frozen last."""
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


class _Counters(NoSources):
    """``/sys/block`` of the model."""

    def __init__(self, host: "ModelHost", disks: dict[str, ModelDisk]) -> None:
        self._host = host
        self._disks = disks

    def read_counters(self, device: BlockDevice) -> BlockCounters | None:
        return self._disks[device.names[0]].read(self._host.now_ms)


@dataclass(eq=False)
class Watched:
    """A directory, its disk, its worker and what the verdict remembers."""

    name: str
    disk: ModelDisk
    device: BlockDevice
    health: DirectoryHealth = field(default_factory=DirectoryHealth)
    stopped: bool = False
    """Its worker, by SIGSTOP."""
    parked: list[Callable[[], None]] = field(default_factory=list)
    number: int = 0
    sent_ms: int | None = None
    begun_ms: int = 0
    full: bool = False
    left: int = 0
    step: str = ""
    wchan: str = ""
    probes: int = 0
    before: BlockCounters | None = None
    turn_ms: int = 0
    wake: bool = False
    full_next: bool = False
    noticed_ms: int = 0
    last_ms: int = 0
    due: int = 0
    """Number of the timer that starts the next probe; older ones are void."""
    sampling: int = 0
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


class ModelHost:
    """Directories under one monitor; see the module.

    Args:
        disks: by name of the directory.
        settings: of the verdict.
    """

    def __init__(self, disks: dict[str, ModelDisk], settings: HealthSettings | None = None) -> None:
        self.settings = settings or HealthSettings()
        self.now_ms = 0
        self.running_ms = 0
        """Time in which the agent's process ran."""
        numbers = {disk: f"sd{number}" for number, disk in enumerate(dict.fromkeys(disks.values()))}
        self._devices = DeviceWatch(
            _Counters(self, {name: d for d, name in numbers.items()}), self.settings.sample_gap_ms
        )
        self.watched = {
            name: Watched(name, disk, BlockDevice((numbers[disk],), f"8:{number}"))
            for number, (name, disk) in enumerate(disks.items())
        }
        self.fed: list[tuple[int, str, Event, Health]] = []
        self._heap: list[tuple[int, int, bool, Callable[[], None]]] = []
        self._sequence = 0
        self._stalled_until = 0
        for position, directory in enumerate(self.watched.values()):
            directory.turn_ms = position * self.settings.probe_interval_ms // len(disks)
            self._start_after(directory, directory.turn_ms)
        self._watch_devices()

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
            directory.turn_ms += duration_ms
        self._heap = [(at + duration_ms, number, ours, act) for at, number, ours, act in self._heap]
        self.now_ms += duration_ms
        for disk in {directory.disk for directory in self.watched.values()}:
            disk.neighbours_ms += duration_ms

    # the disk ------------------------------------------------------------------------------------------------------

    def set(self, disk: ModelDisk, mode: Mode) -> None:
        """Another mode; what waited is answered in it."""
        disk.let_neighbours_work(self.now_ms)
        if disk.mode is Mode.FROZEN:
            disk.thawed_ms = self.now_ms
        if mode is Mode.FROZEN and self.now_ms - disk.thawed_ms >= self.settings.sample_gap_ms:
            disk.frozen_ms = self.now_ms
        disk.mode = mode
        waiting, disk.waiting = disk.waiting, []
        for go_on in waiting:
            go_on()

    def _request(self, directory: Watched, number: int) -> None:
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

    def _complete(self, directory: Watched, number: int, *, in_flight: bool) -> None:
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

    def _worker(self, directory: Watched, act: Callable[[], None]) -> None:
        """The worker goes on, unless it is stopped."""
        if directory.stopped:
            directory.parked.append(act)
        else:
            act()

    def stop_worker(self, directory: Watched) -> None:
        """SIGSTOP."""
        directory.stopped = True

    def continue_worker(self, directory: Watched) -> None:
        """SIGCONT."""
        directory.stopped = False
        parked, directory.parked = directory.parked, []
        for act in parked:
            act()

    def _done(self, directory: Watched, number: int, error: int) -> None:
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

    # the monitor ---------------------------------------------------------------------------------------------------

    def _start_after(self, directory: Watched, delay_ms: int) -> None:
        directory.due += 1
        due = directory.due
        self._at(self.now_ms + delay_ms, lambda: self._start(directory, due), ours=True)

    def _wake(self, directory: Watched) -> None:
        """Probe at once, or once the present probe is answered."""
        if directory.sent_ms is None:
            self._start_after(directory, 0)
        else:
            directory.wake = True

    def _watch_devices(self) -> None:
        readings = {d.device: self._devices.read(d.device, self.now_ms) for d in self.watched.values()}
        for directory in self.watched.values():
            silent = readings[directory.device].hung_ms >= self.settings.notice_ms
            waited_ms = self.now_ms - directory.noticed_ms
            if silent and directory.sent_ms is None and waited_ms >= self.settings.probe_interval_ms:
                directory.noticed_ms = self.now_ms
                self._wake(directory)
        busy = [device for device in readings if self._devices.is_busy(device)]
        self._at(self.now_ms + (BUSY_EVERY_MS if busy else IDLE_EVERY_MS), self._watch_devices, ours=True)

    def _start(self, directory: Watched, due: int) -> None:
        if due != directory.due or directory.sent_ms is not None or directory.health.health is Health.FAILED:
            return
        directory.due += 1
        directory.number += 1
        directory.sent_ms, directory.sent_running_ms = self.now_ms, self.running_ms
        in_turn = directory.probes % self.settings.full_probe_every == 0
        troubled = directory.health.health in (Health.SUSPECT, Health.FULL)
        directory.full = in_turn or troubled or directory.full_next
        directory.wake = directory.full_next = False
        directory.left = REQUESTS * (2 if directory.full else 1)
        directory.step = directory.wchan = ""
        directory.before = self._devices.read(directory.device, self.now_ms).counters
        directory.sampling += 1
        self._sample_after(directory, SAMPLE_AT_MS[0])
        number = directory.number
        self._at(self.now_ms, lambda: self._worker(directory, lambda: self._take(directory, number)), ours=False)

    def _take(self, directory: Watched, number: int) -> None:
        directory.begun_ms = self.now_ms
        self._done(directory, number, 0)

    def _answered(self, directory: Watched, number: int, error: int, duration_ms: int) -> None:
        if number != directory.number or directory.sent_ms is None:
            return
        begun_ms, directory.sent_ms = directory.sent_ms, None
        full = directory.full
        directory.sampling += 1
        directory.probes += 1
        late = self.now_ms - begun_ms >= self.settings.probe_timeout_ms
        if directory.health.health is Health.FAILED:
            return
        interval_ms = self.settings.probe_interval_ms
        directory.turn_ms += max(0, (self.now_ms - directory.turn_ms) // interval_ms + 1) * interval_ms
        directory.last_ms = self.now_ms - begun_ms
        self._start_after(directory, 0 if late or directory.wake else directory.turn_ms - self.now_ms)
        if error:
            directory.errors.append((begun_ms, self.now_ms))
            self.feed(directory, verdict.ProbeFailed(begun_ms, error, directory.step))
        elif not late:
            no_space = "ENOSPC" if full and directory.disk.full else None
            self.feed(directory, verdict.ProbeSucceeded(begun_ms, duration_ms, full, no_space))

    def _sample_after(self, directory: Watched, delay_ms: int) -> None:
        sampling = directory.sampling
        self._at(self.now_ms + delay_ms, lambda: self._sample(directory, sampling), ours=True)

    def _sample(self, directory: Watched, sampling: int) -> None:
        if sampling != directory.sampling or directory.sent_ms is None or directory.health.health is Health.FAILED:
            return
        age_ms = self.now_ms - directory.sent_ms
        reading = self._devices.read(directory.device, self.now_ms)
        event = verdict.ProbeBlocked(
            number=directory.number,
            call=directory.step,
            age_ms=age_ms,
            wchan=directory.wchan,
            process_state="T" if directory.stopped else "D",
            before=directory.before,
            now=reading.counters,
            device_ms=reading.hung_ms,
            after_flush=reading.after_flush,
            ended_ms=reading.ended_ms,
        )
        self.feed(directory, event)
        next_ms = min((at - age_ms for at in SAMPLE_AT_MS if at > age_ms), default=SAMPLE_EVERY_MS)
        self._sample_after(directory, min(next_ms, verdict.next_sample_ms(directory.health, self.settings)))

    def feed(self, directory: Watched, event: Event) -> None:
        """An event to the verdict, and what it asks for."""
        before = directory.health
        elsewhere = [other.health for other in self._others(directory)]
        settling = must_settle(before, elsewhere, self.now_ms, self.settings)
        judgement = verdict.judge(before, event, self.now_ms, self.settings, host_fault=settling)
        directory.health = after = judgement.state
        if judgement.ask is Ask.PROBE:
            self._wake(directory)
        elif judgement.ask is Ask.PROBE_SETTLED:
            settled_ms = after.since_ms + self.settings.host_settle_ms
            at_ms = max(self.now_ms + CONFIRM_AFTER_MS, settled_ms)
            self._at(at_ms, lambda: self._wake(directory), ours=True)
        if after.in_trouble and not before.in_trouble:
            self._look_around(directory)
        if after.health is not before.health:
            directory.states.append((self.now_ms, after.health, after.cause))
            directory.silent_ms = self.running_ms - directory.disk.moved_running_ms
            frozen = directory.disk.mode is Mode.FROZEN
            directory.frozen_ms = self.now_ms - directory.disk.frozen_ms if frozen else 0
            directory.unanswered_ms = self.running_ms - directory.sent_running_ms
            self.fed.append((self.now_ms, directory.name, event, after.health))
        if after.well_ms != before.well_ms:
            for other in self._others(directory):
                if other.health.confirmed is not None:
                    self.feed(other, verdict.AnotherIsWell())

    def _others(self, directory: Watched) -> list[Watched]:
        """Directories on other devices."""
        return [other for other in self.watched.values() if other.disk is not directory.disk]

    def _look_around(self, directory: Watched) -> None:
        for other in self.watched.values():
            if other is not directory and other.disk is directory.disk and not other.health.in_trouble:
                self._wake(other)
        witnesses = {
            other.disk: other
            for other in sorted(self._others(directory), key=lambda other: -other.last_ms)
            if other.health.health is Health.ONLINE and other.sent_ms is None
        }
        for witness in list(witnesses.values())[-WITNESSES:]:
            self._wake(witness)
        self._at(self.now_ms + WITNESS_TIMEOUT_MS, lambda: self._look_everywhere(directory), ours=True)

    def _look_everywhere(self, directory: Watched) -> None:
        elsewhere = self._others(directory)
        states = [other.health for other in elsewhere]
        if directory.health.in_trouble and must_settle(directory.health, states, self.now_ms, self.settings):
            for other in elsewhere:
                if not other.health.in_trouble:
                    self._wake(other)

    def kernel_said(self, directory: Watched, *, damage: bool) -> None:
        """A source of kernel events spoke of it."""
        directory.full_next = True
        self.feed(directory, verdict.KernelSaid(damage))

    def report_error(self, directory: Watched, number: int = errno.EIO) -> None:
        """The agent's own work on a directory got an error."""
        if directory.health.health is not Health.FAILED:
            directory.errors.append((self.now_ms, self.now_ms))
            self.feed(directory, verdict.ProbeFailed(self.now_ms, number, "create of t-0", own_work=True))

    def worker_died(self, directory: Watched) -> None:
        """SIGKILL of the worker while it was at a probe: another one is started."""
        if directory.sent_ms is None or directory.health.health is Health.FAILED:
            return
        directory.sent_ms = None
        directory.sampling += 1
        directory.parked.clear()
        self._start_after(directory, RETRY_AFTER_MS)
        self.feed(directory, verdict.ProbeImpossible("its worker died"))


def log_normal_ms(rng: random.Random, median_ms: float, sigma: float, most_ms: int) -> Callable[[], int]:
    """Latencies of requests: mostly near the median, with a long tail that ends at ``most_ms``."""
    return lambda: min(most_ms, round(median_ms * rng.lognormvariate(0.0, sigma)))

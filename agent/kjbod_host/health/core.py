"""The core of the health of a host: every rule about all its directories together, and no I/O. Pure.

Theory
======

:mod:`.verdict` judges one directory by what is known of it. This core decides what is to be known, and when, of all
directories of a host: whom to probe, when to sample, who bears witness, what is a fault of the host and not of a disk.
It is given events with their time (:meth:`HostHealth.step`), returns effects, and says when it is to be woken
(:meth:`HostHealth.wake_ms`). The shell (:mod:`.monitor`) carries the effects out, at once and in their order, and
decides nothing. An effect that asks for something is answered by the next event, an :class:`Answer`.

1. *Each directory has its turn*, once per probe interval, spread over the interval: twelve probes in one millisecond
   would wait for each other. A probe out of turn moves no turn. A reason for one sets ``woken``, and the probe begins
   with the next :attr:`Signal.WOKEN`: several reasons at once cause one probe. A reason that comes during a probe
   causes another one after it.
2. *A probe that is not answered is sampled*: where its worker sleeps, and the counters of the device. They were read
   when the probe began, too; counters that stand still while probes pass are replaced by those of the device below.
3. *A device stands still for all who use it.* All devices are sampled whether or not anybody probes, also of
   directories that have failed. A device that falls silent between probes is probed.
4. *Trouble has the others probed*: at once those on the same device, and two witnesses on others, the quickest by their
   last probe; all others if none of the two has passed soon (:mod:`.witness`).
5. *The mount table and the kernel's events ask for a probe* (:mod:`.mounts`, :mod:`.kernel`), at a bounded rate.

The probe of a directory, by its stage:

    =========  ============================================  =======================================================
    stage      event                                         becomes
    =========  ============================================  =======================================================
    idle       its turn, or woken; not failed                reading: counters of the device
    reading    counters, which count                         probing: the probe, and the first sample
    reading    counters that stand still                     reading: the device below, then its counters
    probing    an answer, well or an error                   idle until its turn
    probing    no probe is possible                          idle until its turn, at most ``RETRY_AFTER_MS``
    probing    its time is over, and a request is stuck      stuck
    probing    its time is over, and none is, or it failed   idle until its turn, at most ``RETRY_AFTER_MS``
    stuck      a sample: another request, or none            idle until its turn, at most ``RETRY_AFTER_MS``
    stuck      an answer that comes late                     idle, and probed at once
    any        failed                                        idle for ever, once what was asked is answered
    =========  ============================================  =======================================================
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kjbod_host.health import devices, mounts, verdict
from kjbod_host.health.block import BlockCounters, BlockDevice
from kjbod_host.health.devices import STILL_PROBES, DeviceWatch
from kjbod_host.health.evidence import Evidence, Verdict, describe, device_text
from kjbod_host.health.kernel import POLL_EVERY_MS, KernelEvents
from kjbod_host.health.mounts import Mount, MountChange
from kjbod_host.health.sources.api import KernelEvent, Subject
from kjbod_host.health.verdict import Ask, Cause, DirectoryHealth, Health, HealthSettings
from kjbod_host.health.watched import NEVER, DirectoryStatus, Found, Stage, Watched
from kjbod_host.health.witness import is_host_fault, must_settle
from kjbod_host.smart.readings import Smart
from kjbod_host.storage.api import (
    BlockedCall,
    DirectoryError,
    LateAnswer,
    LoadedDirectory,
    ProbeResult,
    WorkerUnavailable,
)

SAMPLE_AT_MS = (20, 60, 120, 200)
"""Ages of a probe at which it is sampled; from the last one on, each ``SAMPLE_EVERY_MS``. The early ones see the
requests that the probe itself completed before it got stuck, so that these do not put off the verdict."""
SAMPLE_EVERY_MS = 200
WITNESSES = 2
"""Directories on other devices that are probed when one is in trouble, those whose last probe was quickest."""
WITNESS_TIMEOUT_MS = 20
"""If none of them has passed its probe by then, all others are probed."""
MOUNTS_EVERY_MS = 1000
"""``emergency_ro`` and ``shutdown`` appear in the mount table without any event."""
MOUNTS_PAUSE_MS = 20
"""At least between two readings: on a host full of containers the table changes all the time."""
MOUNTS_SHARE = 10
"""One reading out of this many times its own duration, at most: two thousand mounts take 12 ms."""
RETRY_AFTER_MS = 100
"""Before the next try when a worker was not to be had."""
STANDSTILL_MS = 5000
"""How much longer than it may take a part stands still before that is said: far more than any delay of a busy host."""

Counters = Sequence[BlockCounters | None]
"""Of each of the names of a device, in their order; None where there are none."""
Table = tuple[Mount, ...] | None


class Signal(StrEnum):
    """An event without further data."""

    STARTED = "started"
    """The watch begins."""
    WOKEN = "woken"
    """It is :meth:`HostHealth.wake_ms`."""
    MOUNTS_CHANGED = "mounts-changed"
    """The kernel says that the mount table is another one."""


class Added(Struct, frozen=True):
    """A directory is to be watched, or another disk under the path of one that is.

    Attributes:
        loaded: what loading it said.
        directory_id: its id.
        mount: by :func:`.mounts.mount_under`.
        device: under that mount; None without one.
        table: the mount table then.
        silent: it did not answer until now: it is suspect.
    """

    loaded: LoadedDirectory
    directory_id: str
    mount: Mount | None
    device: BlockDevice | None
    table: Table
    silent: bool = False


class Removed(Struct, frozen=True):
    """A directory is not to be watched any more."""

    path: str


class Look(StrEnum):
    """An effect without further data."""

    MOUNTS = "mounts"
    """Read the mount table. Answer: :data:`Table`; None: it cannot be read now, or this host has none."""
    SOURCES = "sources"
    """Ask the kernel's sources for what raises no event. Answer: None, after the events that come of it."""


class Sample(Struct, frozen=True):
    """Answer: the request that the directory's worker is at (``BlockedCall | None``), and :data:`Counters`."""

    path: str
    device: BlockDevice


class ReadDevices(Struct, frozen=True):
    """Answer: :data:`Counters` by device."""

    devices: frozenset[BlockDevice]


class FindBelow(Struct, frozen=True):
    """Answer: the devices one layer below that of the directory; None: there are none."""

    path: str
    device: BlockDevice


class Probe(Struct, frozen=True):
    """Answer, when it is there: ``ProbeResult``, ``DirectoryError``, ``WorkerUnavailable``; when its time is over, the
    request that the worker is at (``BlockedCall | None``)."""

    path: str
    full: bool


class StartSources(Struct, frozen=True):
    """Ask for the kernel's events about these; ``again``: in place of those before. Answer: what each source said, and
    why changes of the mount table raise no event (None: they do)."""

    subjects: tuple[Subject, ...]
    again: bool


class Log(Struct, frozen=True):
    """A line for the log."""

    event: str
    fields: dict[str, object]


Question = Sample | ReadDevices | FindBelow | Probe | StartSources | Look
Effect = Question | Log | Verdict
"""Effects of the core. A :class:`Verdict` is to be reported."""


class Answer(Struct, frozen=True):
    """An effect was carried out; ``found``: as that effect says."""

    to: Question
    found: Any


Event = Signal | Added | Removed | Answer | LateAnswer | KernelEvent | DirectoryError
"""A ``DirectoryError`` is what the agent's own work on a directory got."""


class HostHealth:
    """Decisions about the directories of one host.

    Args:
        settings: intervals and deadlines.
        now_ms: monotonic time, as everywhere here.
    """

    def __init__(self, settings: HealthSettings, now_ms: int) -> None:
        self.settings: Final = settings
        self._watched: dict[str, Watched] = {}
        self._elsewhere: dict[str, list[Watched]] = {}
        """Directories on other devices than that of each, as far as somebody has asked for them."""
        self._timers: list[tuple[int, int, str]] = []
        """A heap of times, each with a directory that may have something to do then; at one time in their order."""
        self._timers_set = 0
        self._devices = DeviceWatch(settings.sample_gap_ms)
        self._kernel = KernelEvents(settings.probe_interval_ms, say=self._kernel_said, log=self._log)
        self._effects: list[Effect] = []
        self._runs = False
        self._devices_ms = self._kernel_ms = NEVER
        self._mounts_ms = self._mounts_pause_ms = NEVER
        self._mounts_read_ms: int | None = None
        """When reading the table began, until it is known how long that and comparing took."""
        self._mounts_changed = False
        self._mounts_round_ms: int | None = now_ms
        self._compared: Table = None
        self._host_fault_told = False

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take an event. Events about a directory that is not watched change nothing.

        Returns:
            What is to be done, in this order. Each answer is to be given before anything else happens, except that of
            :class:`Probe`.
        """
        effects = self._effects = []
        match event:
            case Answer():
                self._answered(event.to, event.found, now_ms)
            case Signal.WOKEN:
                self._woken(now_ms)
            case Signal.MOUNTS_CHANGED:
                self._mounts_changed = True
            case Signal.STARTED:
                self._start(now_ms)
            case LateAnswer():
                self._of(event.path, self._late_answer, event, now_ms)
            case KernelEvent():
                self._kernel.came_in(event, now_ms)
            case DirectoryError():
                self._of(event.path, self._work_failed, event, now_ms)
            case Added():
                self._add(event, now_ms)
            case Removed():
                self._watched.pop(event.path, None)
                self._elsewhere.clear()
        return effects

    def _answered(self, question: Question, found: Any, now_ms: int) -> None:
        match question:
            case Sample():
                self._of(question.path, self._sampled, *found, now_ms)
            case Probe():
                self._of(question.path, self._probe_ended, found, now_ms)
            case ReadDevices():
                self._devices_read(found, now_ms)
            case FindBelow():
                self._of(question.path, self._found_below, found)
            case StartSources():
                self._sources_started(*found)
            case Look.MOUNTS:
                self._mounts_read(found, now_ms)
            case Look.SOURCES:
                self._kernel.polled(now_ms)

    def _of(self, path: str, take: Callable[..., None], *what: object) -> None:
        watched = self._watched.get(path)
        if watched is not None:
            take(watched, *what)

    def wake_ms(self) -> int:
        """Time of the next :attr:`Signal.WOKEN`; in the past: as soon as all else that waits has been done."""
        while self._timers:
            at_ms, _, path = self._timers[0]
            watched = self._watched.get(path)
            if watched is not None and watched.next_ms() <= at_ms:
                break
            heapq.heappop(self._timers)  # it has something to do later, for which there is another timer
        mounts_ms = self._mounts_pause_ms if self._mounts_changed else self._mounts_ms
        mounts_ms = mounts_ms if self._mounts_read_ms is None else 0
        return min(self._devices_ms, self._kernel_ms, mounts_ms, self._timers[0][0] if self._timers else NEVER)

    def _at(self, at_ms: int, watched: Watched) -> None:
        self._timers_set += 1
        heapq.heappush(self._timers, (at_ms, self._timers_set, watched.path))

    def _wake(self, watched: Watched) -> None:
        """Probe it at once, or as soon as its present probe has ended."""
        if not watched.woken:
            watched.woken = True
            self._at(0, watched)

    # what is known -------------------------------------------------------------------------------------------------

    def standing_still(self, now_ms: int) -> str | None:
        """A part that has not gone round for much longer than it may, in words; None while all do.

        For the service manager's watchdog: a stuck disk is no reason, a question that nobody answers is one.
        """
        limit_ms = max(self.settings.probe_interval_ms, 2 * self.settings.probe_timeout_ms) + STANDSTILL_MS
        for watched in self._watched.values():
            if not watched.has_failed and now_ms - watched.round_ms > limit_ms:
                return f"{watched.path} has not been probed for {now_ms - watched.round_ms} ms"
        read_ms = self._mounts_round_ms
        if read_ms is not None and now_ms - read_ms > MOUNTS_EVERY_MS + STANDSTILL_MS:
            return f"the mount table has not been read for {now_ms - read_ms} ms"
        return None

    def watched(self, path: str) -> Watched | None:
        """A directory and all that is known of it, to be read only; None: it is not watched."""
        return self._watched.get(path)

    def devices(self) -> dict[str, BlockDevice]:
        """Devices of all directories, in the order in which these were added."""
        return {path: watched.device for path, watched in self._watched.items()}

    def status(
        self, path: str, counters: Counters, blocked: BlockedCall | None, smart: Smart | None, now_ms: int
    ) -> DirectoryStatus:
        """The status of a directory, with what is seen of its device, its worker and its disks now."""
        watched = self._watched[path]
        return watched.status(self._devices.sample(watched.device, counters, now_ms), blocked, smart)

    def mount_point(self, path: str) -> str | None:
        """Mount point of the disk of a directory; None: not known, or not watched."""
        watched = self._watched.get(path)
        return None if watched is None or watched.mount is None else watched.mount.mount_point

    # who is watched ------------------------------------------------------------------------------------------------

    def _add(self, event: Added, now_ms: int) -> None:
        loaded, mount, device = event.loaded, event.mount, event.device
        if mount is None or device is None:
            device = BlockDevice((), loaded.identity.device, reason="no mount table")
        elif mounts.compare(loaded.real_path, mount, event.table or ()) in (MountChange.MISSING, MountChange.OTHER):
            mount = None  # the table does not show the way to it (a chroot): it cannot tell of changes either
        health = DirectoryHealth(since_ms=now_ms)
        if event.silent:
            health = replace(health, health=Health.SUSPECT, cause=Cause.SILENT, trouble_ms=now_ms)
        head = replace(loaded, replicas=())  # of which there may be very many
        watched = Watched(loaded.path, head, event.directory_id, device, mount, health, now_ms, event.silent)
        self._watched[loaded.path] = watched
        self._elsewhere.clear()
        if self._runs:
            self._first_turn(watched, now_ms)
            self._start_sources(now_ms, again=True)

    def _start(self, now_ms: int) -> None:
        self._runs = True
        self._start_sources(now_ms, again=False)
        self._devices_ms = self._mounts_ms = self._mounts_round_ms = now_ms
        self._kernel_ms = now_ms + POLL_EVERY_MS
        for position, watched in enumerate(self._watched.values()):
            delay_ms = position * self.settings.probe_interval_ms // len(self._watched)
            self._first_turn(watched, now_ms + delay_ms)

    def _first_turn(self, watched: Watched, at_ms: int) -> None:
        watched.turn_ms = watched.due_ms = at_ms
        self._at(at_ms, watched)

    def _start_sources(self, now_ms: int, *, again: bool) -> None:
        """Ask for the kernel's events, by device; not those of directories that have failed, or have not answered yet,
        since asking touches their disks."""
        asked = [watched for watched in self._watched.values() if not watched.has_failed and not watched.silent]
        self._kernel.start((watched.path for watched in asked), now_ms)
        subjects = tuple(Subject(path=each.path, mount=each.mount, device=each.device) for each in asked)
        self._effects.append(StartSources(subjects, again))

    def _sources_started(self, kernel: dict[str, object], no_mount_events: str | None) -> None:
        """A line: what each verdict will rest on beside the probes, and why something is not to be had."""
        found = self.devices()
        fields: dict[str, object] = {
            "mount_events": no_mount_events is None,
            "block_counters": {path: device_text(d) for path, d in found.items() if d.reason is None},
            "kernel_events": kernel,
        }
        if no_mount_events is not None:
            fields["no_mount_events"] = no_mount_events
        without = {path: device.reason for path, device in found.items() if device.reason is not None}
        if without:
            fields["no_block_counters"] = without
        self._log("health.sources", fields)

    # what is due ---------------------------------------------------------------------------------------------------

    def _woken(self, now_ms: int) -> None:
        if self._mounts_read_ms is not None:
            pause_ms = MOUNTS_SHARE * (now_ms - self._mounts_read_ms)
            self._mounts_read_ms = None
            self._mounts_pause_ms = now_ms + min(max(MOUNTS_PAUSE_MS, pause_ms), MOUNTS_EVERY_MS)
            self._mounts_ms = self._mounts_pause_ms + MOUNTS_EVERY_MS
        if self._mounts_ms <= now_ms or (self._mounts_changed and self._mounts_pause_ms <= now_ms):
            self._mounts_changed = False
            self._mounts_ms = self._mounts_pause_ms = NEVER
            self._mounts_round_ms = now_ms
            self._effects.append(Look.MOUNTS)
        if self._devices_ms <= now_ms:
            self._devices_ms = NEVER
            self._effects.append(ReadDevices(frozenset(each.device for each in self._watched.values())))
        if self._kernel_ms <= now_ms:
            self._kernel_ms = now_ms + POLL_EVERY_MS
            self._effects.append(Look.SOURCES)
        while self._timers and self._timers[0][0] <= now_ms:
            self._of(heapq.heappop(self._timers)[2], self._due, now_ms)

    def _due(self, watched: Watched, now_ms: int) -> None:
        while watched.looks_ms and watched.looks_ms[0] <= now_ms:
            del watched.looks_ms[0]
            self._look_everywhere(watched, now_ms)
        if watched.settled_ms <= now_ms:
            watched.settled_ms = NEVER
            self._wake(watched)
        if watched.sample_ms <= now_ms:
            watched.sample_ms = NEVER
            if not watched.has_failed:
                self._effects.append(Sample(watched.path, watched.device))
        if watched.stage is Stage.IDLE and not watched.has_failed and (watched.woken or watched.due_ms <= now_ms):
            watched.woken = False
            watched.stage = Stage.READING
            watched.begun_ms = watched.round_ms = now_ms
            self._effects.append(Sample(watched.path, watched.device))

    # probes --------------------------------------------------------------------------------------------------------

    def _counted(self, watched: Watched, counters: Counters, now_ms: int) -> None:
        """Counters before a probe. Since they were read before the last one, that has moved them, if they count."""
        earlier, watched.before = watched.before, self._devices.sample(watched.device, counters, now_ms).counters
        if watched.wrote:
            moved = earlier is None or watched.before is None or earlier.completed != watched.before.completed
            watched.still_probes = 0 if moved else watched.still_probes + 1
        watched.wrote = False
        if watched.still_probes == STILL_PROBES:
            watched.still_probes = 0
            self._effects.append(FindBelow(watched.path, watched.device))
            return
        in_turn = watched.probes % self.settings.full_probe_every == 0
        full = in_turn or watched.full_next or watched.health.health in (Health.SUSPECT, Health.FULL)
        watched.full_next = watched.moved = False
        watched.stage = Stage.PROBING
        self._sample_after(watched, SAMPLE_AT_MS[0], now_ms)
        self._effects.append(Probe(watched.path, full))

    def _found_below(self, watched: Watched, below: BlockDevice | None) -> None:
        useless = watched.device
        why = f"the counters of {' '.join(useless.names)} stand still while probes pass"
        watched.device = below or useless.without_counters(why)
        self._elsewhere.clear()
        fields: dict[str, object] = {"path": watched.path, "useless": device_text(useless)}
        fields["instead"] = device_text(watched.device) if watched.device.reason is None else watched.device.reason
        self._log("health.counters", fields)
        self._effects.append(Sample(watched.path, watched.device))

    def _probe_ended(
        self,
        watched: Watched,
        found: ProbeResult | DirectoryError | WorkerUnavailable | BlockedCall | None,
        now_ms: int,
    ) -> None:
        match found:
            case ProbeResult():
                watched.count(found.duration_us, failed=False)
                watched.freed(now_ms, well=True)
                watched.last_probe = found
                took_ms = found.duration_us // 1000
                passed = verdict.ProbeSucceeded(watched.begun_ms, took_ms, found.full, found.no_space)
                self._feed(watched, passed, now_ms, found)
                watched.wrote = found.written  # else perhaps nothing had to go to the device
            case DirectoryError():
                watched.count(found.after_us, failed=True)
                failed = verdict.ProbeFailed(watched.begun_ms, found.errno, found.call)
                self._feed(watched, failed, now_ms, found)
            case WorkerUnavailable():
                self._feed(watched, verdict.ProbeImpossible(found.reason), now_ms)
            case BlockedCall() if not watched.moved and not watched.has_failed:
                # The worker is stuck: nothing can be asked of it until its answer, or its end.
                watched.stage, watched.stuck, watched.round_ms = Stage.STUCK, found.number, now_ms
                return
        self._end(watched, now_ms, again_soon=not isinstance(found, ProbeResult | DirectoryError))

    def _end(self, watched: Watched, now_ms: int, *, again_soon: bool) -> None:
        interval_ms = self.settings.probe_interval_ms
        watched.stage, watched.sample_ms, watched.round_ms = Stage.IDLE, NEVER, now_ms
        watched.turn_ms += max(0, (now_ms - watched.turn_ms) // interval_ms + 1) * interval_ms
        watched.due_ms = min(watched.turn_ms, now_ms + RETRY_AFTER_MS) if again_soon else watched.turn_ms
        self._at(0 if watched.woken else watched.due_ms, watched)

    def _late_answer(self, watched: Watched, answer: LateAnswer, now_ms: int) -> None:
        """Handle a late answer of the kernel. A late success says little about the present: the next probe decides. A
        late error counts as an error."""
        watched.freed(now_ms, well=answer.error is None)
        own_work = answer.operation != "probe"
        if not own_work:
            watched.count(answer.age_ms * 1000, failed=answer.error is not None)
        if answer.error is not None:
            begun_ms, error = now_ms - answer.age_ms, answer.error
            self._feed(watched, verdict.ProbeFailed(begun_ms, error.errno, error.call, own_work), now_ms, error)
        watched.moved = True
        self._wake(watched)
        if watched.stage is Stage.STUCK:
            self._end(watched, now_ms, again_soon=True)

    def _work_failed(self, watched: Watched, error: DirectoryError, now_ms: int) -> None:
        watched.full_next = True
        failed = verdict.ProbeFailed(now_ms, error.errno, error.call, own_work=True)
        self._feed(watched, failed, now_ms, error)

    # samples of a blocked probe ------------------------------------------------------------------------------------

    def _sampled(self, watched: Watched, blocked: BlockedCall | None, counters: Counters, now_ms: int) -> None:
        match watched.stage:
            case Stage.READING:
                self._counted(watched, counters, now_ms)
            case Stage.STUCK if blocked is None or blocked.number != watched.stuck:
                self._end(watched, now_ms, again_soon=True)
            case Stage.PROBING if blocked is None:  # the probe waits for a worker, not for the disk
                self._sample_after(watched, SAMPLE_EVERY_MS, now_ms)
            case Stage.PROBING | Stage.STUCK if blocked is not None:
                self._judge_blocked(watched, blocked, counters, now_ms)

    def _judge_blocked(self, watched: Watched, blocked: BlockedCall, counters: Counters, now_ms: int) -> None:
        if watched.stage is Stage.STUCK:
            watched.round_ms = now_ms
        reading = self._devices.sample(watched.device, counters, now_ms)
        ours = now_ms - blocked.age_ms >= watched.begun_ms  # not the agent's own work, which the probe waits for
        sample = verdict.ProbeBlocked(
            *(blocked.number, blocked.call, blocked.age_ms, blocked.wchan, blocked.process_state),
            before=watched.before if ours else None,
            now=reading.counters,
            device_ms=reading.hung_ms,
            after_flush=reading.after_flush,
            ended_ms=reading.ended_ms,
        )
        self._feed(watched, sample, now_ms)
        next_ms = min((at - blocked.age_ms for at in SAMPLE_AT_MS if at > blocked.age_ms), default=SAMPLE_EVERY_MS)
        self._sample_after(watched, min(next_ms, verdict.next_sample_ms(watched.health, self.settings)), now_ms)

    def _sample_after(self, watched: Watched, delay_ms: int, now_ms: int) -> None:
        watched.sample_ms = now_ms + delay_ms
        self._at(watched.sample_ms, watched)

    # devices, the kernel, the mount table --------------------------------------------------------------------------

    def _devices_read(self, counters: Mapping[BlockDevice, Counters], now_ms: int) -> None:
        """Notice a silence that nobody has probed yet: from its begin on it counts. Also of directories that have
        failed, as long as they are watched: whether a disk still stands still decides what may be done about it."""
        silent = {
            device
            for device, read in counters.items()
            if self._devices.sample(device, read, now_ms).hung_ms >= self.settings.notice_ms
        }
        for watched in self._watched.values():
            if watched.device in silent and not watched.has_failed and watched.stage is Stage.IDLE:
                # Probe it out of turn, once per interval at most.
                noticed_ms = watched.noticed_ms
                if noticed_ms is None or now_ms - noticed_ms >= self.settings.probe_interval_ms:
                    watched.noticed_ms = now_ms
                    self._wake(watched)
        busy = [device for device in counters if self._devices.is_busy(device)]
        self._devices_ms = now_ms + (devices.BUSY_EVERY_MS if busy else devices.IDLE_EVERY_MS)

    def _kernel_said(self, path: str, damage: bool, now_ms: int) -> None:
        watched = self._watched.get(path)
        if watched is not None:
            watched.full_next = True
            self._feed(watched, verdict.KernelSaid(damage), now_ms)

    def _mounts_read(self, table: Table, now_ms: int) -> None:
        if table is None and self._compared is None:
            self._mounts_round_ms = None  # this host has no such table
            return
        self._mounts_read_ms = self._mounts_round_ms
        if table is None:
            return  # it cannot be read just now (no free descriptor): in the next round
        for watched in self._watched.values():
            if table is not self._compared or watched.change is not MountChange.OK:
                self._compare_mount(watched, table, now_ms)
        self._compared = table

    def _compare_mount(self, watched: Watched, table: tuple[Mount, ...], now_ms: int) -> None:
        if watched.mount is None or watched.has_failed:
            return
        change = mounts.compare(watched.loaded.real_path, watched.mount, table)
        confirming = watched.health.cause is Cause.MOUNT and change in (MountChange.MISSING, MountChange.OTHER)
        if change is not watched.change or confirming:
            watched.change = change
            self._feed(watched, verdict.MountChanged(change), now_ms)

    # the verdict ---------------------------------------------------------------------------------------------------

    def _feed(self, watched: Watched, event: verdict.Event, now_ms: int, found: Found = None) -> None:
        """Give an event to the verdict, and apply its judgement to all directories."""
        previous = watched.health
        settling = self._must_settle(watched, now_ms)
        judgement = verdict.judge(previous, event, now_ms, self.settings, host_fault=settling)
        watched.health = health = judgement.state
        if judgement.ask is Ask.PROBE:
            self._wake(watched)
        elif judgement.ask is Ask.PROBE_SETTLED:
            watched.settled_ms = health.since_ms + self.settings.host_settle_ms
            self._at(watched.settled_ms, watched)
        if health.confirmed is not None and previous.confirmed is None:
            watched.proof = (event, found)
        if isinstance(event, verdict.AnotherIsWell) and watched.proof is not None:
            event, found = watched.proof
        if health.in_trouble and not previous.in_trouble:
            self._look_around(watched, now_ms)
        # Whether a suspicion can end as failed is news as well: damage that stays when the error does not come back.
        if (health.health, health.in_trouble) != (previous.health, previous.in_trouble):
            self._tell(watched, previous.health, self._evidence(watched, event, found, now_ms), now_ms)
            self._tell_host_fault(now_ms)
            if watched.has_failed and watched.stage is Stage.STUCK:
                self._end(watched, now_ms, again_soon=False)
        if health.well_ms != previous.well_ms:
            for other in self._others(watched):
                if other.health.confirmed is not None:
                    self._feed(other, verdict.AnotherIsWell(), now_ms)

    def _others(self, watched: Watched) -> list[Watched]:
        """Return the directories on other devices."""
        found = self._elsewhere.get(watched.path)
        if found is None:
            found = [other for other in self._watched.values() if not other.device.shares(watched.device)]
            self._elsewhere[watched.path] = found
        return found

    def _must_settle(self, watched: Watched, now_ms: int) -> bool:
        return must_settle(watched.health, [other.health for other in self._others(watched)], now_ms, self.settings)

    def _look_around(self, watched: Watched, now_ms: int) -> None:
        """A directory is in trouble: probe those on the same device at once, and a few witnesses elsewhere."""
        for other in self._watched.values():
            if other is not watched and not other.health.in_trouble and other.device.shares(watched.device):
                self._wake(other)
        witnesses: list[Watched] = []
        for other in sorted(self._others(watched), key=_probe_us):
            if other.health.health is not Health.ONLINE or other.stage is not Stage.IDLE:
                continue
            if not any(other.device.shares(witness.device) for witness in witnesses):
                witnesses.append(other)
        for witness in witnesses[:WITNESSES]:
            self._wake(witness)
        watched.looks_ms.append(now_ms + WITNESS_TIMEOUT_MS)
        self._at(now_ms + WITNESS_TIMEOUT_MS, watched)

    def _look_everywhere(self, watched: Watched, now_ms: int) -> None:
        """Probe all other directories if no witness has passed: all of them may be in trouble."""
        if watched.health.in_trouble and self._must_settle(watched, now_ms):
            for other in self._others(watched):
                if not other.health.in_trouble:
                    self._wake(other)

    def _tell_host_fault(self, now_ms: int) -> None:
        """Log a host fault, once for each: all directories are in trouble, so the disks may not be the cause."""
        states = [watched.health for watched in self._watched.values()]
        first = next(iter(self._watched.values()), None)
        fault = first is not None and is_host_fault(states, now_ms, self.settings) and bool(self._others(first))
        if fault and not self._host_fault_told:
            self._log("host.fault", {"paths": list(self._watched), "settle_ms": self.settings.host_settle_ms})
        self._host_fault_told = fault

    def _tell(self, watched: Watched, previous: Health, evidence: Evidence, now_ms: int) -> None:
        health = watched.health
        text = describe(health.health, health.cause, evidence)
        self._effects.append(
            Verdict(
                path=watched.path,
                directory_id=watched.directory_id,
                state=health.health,
                previous=previous,
                cause=health.cause,
                evidence=replace(evidence, text=text),
                at_ns=now_ms * 1_000_000,
            )
        )

    def _evidence(self, watched: Watched, event: verdict.Event, found: Found, now_ms: int) -> Evidence:
        slow = watched.health.health is Health.SLOW
        evidence = Evidence(
            path=watched.path,
            directory_id=watched.directory_id,
            device=device_text(watched.device),
            model=watched.device.model,
            serial=watched.device.serial,
            mount_id=watched.loaded.identity.mount_id,
            no_counters=watched.device.reason,
            kernel=self._kernel.recent(watched.path, now_ms),
            silent_ms=self._silent_ms(watched),
        )
        match event:
            case verdict.ProbeBlocked():
                return evidence.of_blocked(event, self.settings.probe_timeout_ms if slow else None)
            case verdict.ProbeSucceeded() if isinstance(found, ProbeResult):
                return evidence.of_success(event, found, self.settings.slow_ms if slow else None)
            case _:
                return evidence.of_event(event, found if isinstance(found, DirectoryError) else None)

    def _silent_ms(self, watched: Watched) -> int | None:
        blockage = watched.health.blockage
        if watched.health.cause is not Cause.HUNG or blockage is None:
            return None
        return blockage.silent_device_ms(self.settings.own_silence_ms)

    def _log(self, event: str, fields: dict[str, object]) -> None:
        self._effects.append(Log(event, fields))


def _probe_us(watched: Watched) -> int:
    return watched.last_probe.duration_us if watched.last_probe is not None else 0

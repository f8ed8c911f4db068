"""The shell around the verdict: when to probe, what to sample meanwhile, whom to tell.

One coroutine per directory sends probes; while one is not answered, a timer samples the worker's sleep and the device's
counters. One coroutine samples the devices whether or not anybody probes, one re-reads the mount table each second and
at each event of the kernel, one polls the sources of kernel events. Everything ends up in
:func:`kjbod_host.health.verdict.judge`; a change of state goes to ``on_verdict``, on the event loop, at once.

Nothing here touches a log directory: probes go through the storage agent, the rest reads ``/proc`` and ``/sys``.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from kjbod.clock import Clock
from kjbod.fleet.schema import latency_bucket
from kjbod_host.health import devices, mounts, verdict
from kjbod_host.health.block import BlockDevice
from kjbod_host.health.devices import DeviceWatch
from kjbod_host.health.evidence import Evidence, Verdict, describe, device_text
from kjbod_host.health.host import HostSources, LinuxSources, NoSources
from kjbod_host.health.kernel import KernelEvents
from kjbod_host.health.mounts import Mount, MountChange, not_mounted
from kjbod_host.health.sources.api import KernelSource, Subject
from kjbod_host.health.verdict import Ask, Cause, DirectoryHealth, Event, Health, HealthSettings
from kjbod_host.health.watched import DirectoryStatus, Watched
from kjbod_host.health.witness import is_host_fault, must_settle
from kjbod_host.smart.readings import Smart
from kjbod_host.storage.api import (
    BlockedCall,
    CanProbe,
    DirectoryError,
    DirectoryTimeout,
    LateAnswer,
    LoadedDirectory,
    ProbeResult,
    WorkerUnavailable,
)

__all__ = ["DirectoryStatus", "HealthMonitor", "HostSources", "LinuxSources", "NoSources"]

SAMPLE_AT_MS = (20, 60, 120, 200)
"""Ages of a probe at which it is sampled; from the last one on, each ``SAMPLE_EVERY_MS``. The early ones see the
requests that the probe itself completed before it got stuck, so that these do not put off the verdict."""
SAMPLE_EVERY_MS = 200
CONFIRM_AFTER_MS = 0
"""Between an error and the probe that confirms it: none. A witness is asked at the same time, not before."""
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


class HealthMonitor:
    """Watches the log directories of this host.

    Args:
        directories: each with what :meth:`DirectoryAgent.load` said and its directory id.
        settings: intervals and deadlines.
        clock: monotonic time; must be that of the event loop.
        on_verdict: gets every change of state, on the event loop; must not block.
        sources: the kernel's mount table and counters.
        kernel_sources: what the kernel tells by itself, for wake-ups.
        log: event name and fields, for which sources are active and what the kernel says.

    Attributes:
        smart: gives what the disks of a device have told of their own health, for the status; no verdict rests on it.
    """

    def __init__(
        self,
        directories: Sequence[tuple[CanProbe, LoadedDirectory, str]],
        *,
        settings: HealthSettings,
        clock: Clock,
        on_verdict: Callable[[Verdict], None],
        sources: HostSources | None = None,
        kernel_sources: Sequence[KernelSource] = (),
        log: Callable[[str, dict[str, object]], None] = lambda event, fields: None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_verdict = on_verdict
        self._sources: HostSources = LinuxSources() if sources is None else sources
        self._log = log
        self._mounts_changed = asyncio.Event()
        self._stopping = False
        self._mounts_round_ms: int | None = clock.monotonic_ms()
        table = self._sources.read_mounts()
        self._watched = {agent.path: self._watch_of(agent, loaded, text, table) for agent, loaded, text in directories}
        self._devices = DeviceWatch(self._sources, settings.sample_gap_ms)
        self._kernel = KernelEvents(
            kernel_sources, clock=clock, interval_ms=settings.probe_interval_ms, say=self._kernel_said, log=log
        )
        self._host_fault_told = False
        self._bug: asyncio.Future[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._no_mount_events: str | None = None
        self.smart: Callable[[BlockDevice], Smart | None] = lambda device: None

    def _watch_of(
        self, agent: CanProbe, loaded: LoadedDirectory, directory_id: str, table: tuple[Mount, ...] | None
    ) -> Watched:
        identity = loaded.identity
        found = [mount for mount in table or () if mount.mount_id == identity.mount_id]
        mount = found[0] if found else mounts.mount_of(loaded.real_path, table or ())
        device = BlockDevice((), identity.device, reason="no mount table")
        if mount is not None:
            device = self._sources.block_device_of(mount)
            if mounts.compare(loaded.real_path, mount, table or ()) in (MountChange.MISSING, MountChange.OTHER):
                mount = None  # the table does not show the way to it (a chroot): it cannot tell of changes either
        now_ms = self._clock.monotonic_ms()
        health = DirectoryHealth(since_ms=now_ms)
        head = replace(loaded, replicas=())  # of which there may be very many
        return Watched(agent, head, directory_id, device, mount, health, now_ms)

    # for the agent core --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch until cancelled. Directories that have failed are left alone.

        A bug anywhere in the monitor ends it with that exception, also one in a callback of the event loop.
        """
        self._bug = asyncio.get_running_loop().create_future()
        close, reason = self._sources.watch_mounts(self._mounts_changed.set)
        try:
            self._tell_sources(reason, self._kernel.start(self._subjects()))
            self._no_mount_events = reason
            for watched in self._watched.values():
                watched.agent.on_late_answer = self._late_answer
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(_result_of(self._bug))
                tasks.create_task(self._watch_mounts())
                tasks.create_task(self._watch_devices())
                tasks.create_task(self._kernel.run())
                for position, watched in enumerate(self._watched.values()):
                    # Spread over the interval: twelve probes in one millisecond would wait for each other.
                    delay_ms = position * self._settings.probe_interval_ms // len(self._watched)
                    watched.task = tasks.create_task(self._watch(watched, delay_ms))
        finally:
            self._stopping, self._tasks = True, None
            close()
            self._kernel.close()
            for watched in self._watched.values():
                watched.agent.on_late_answer = None
                self._stop_sampling(watched)

    def add(self, agent: CanProbe, loaded: LoadedDirectory, directory_id: str, *, silent: bool = False) -> None:
        """Watch one more directory from now on, or another disk under the path of one that is watched: all that was
        known about the one before is forgotten. One that is ``silent`` did not answer until now: it is suspect."""
        path = agent.path
        if path in self._watched:
            self._forget(self._watched[path])
        watched = self._watch_of(agent, loaded, directory_id, self._sources.read_mounts())
        if silent:
            watched.silent, since_ms = True, watched.health.since_ms
            watched.health = replace(watched.health, health=Health.SUSPECT, cause=Cause.SILENT, trouble_ms=since_ms)
        self._watched[path] = watched
        if self._tasks is None:
            return  # not running yet, or no longer
        agent.on_late_answer = self._late_answer
        watched.task = self._tasks.create_task(self._watch(watched, 0))
        self._start_sources_again()

    def not_mounted(self, path: str, loaded: LoadedDirectory, remembered: str | None) -> str | None:
        """Reason why a directory at ``path`` cannot be the disk that is to be watched there from now on, in words that
        follow the path (:func:`.mounts.not_mounted`). What was there before was mounted where this agent saw it, or
        where it is ``remembered``."""
        watched = self._watched.get(path)
        before = remembered if watched is None or watched.mount is None else watched.mount.mount_point
        if before is None:
            return None
        return not_mounted(before, loaded.identity.mount_id, self._sources.read_mounts() or ())

    def remove(self, path: str) -> None:
        """Watch a directory no more. Nothing happens when it is not watched."""
        watched = self._watched.pop(path, None)
        if watched is not None:
            self._forget(watched)

    def _forget(self, watched: Watched) -> None:
        watched.agent.on_late_answer = None
        self._stop_sampling(watched)
        if watched.settled is not None:
            watched.settled.cancel()
        if watched.task is not None:
            watched.task.cancel()

    def _start_sources_again(self) -> None:
        """The kernel's events are asked for by device, and another one is there."""
        self._kernel.close()
        self._tell_sources(self._no_mount_events, self._kernel.start(self._subjects()))

    def _call(self, call: Callable[[], None]) -> None:
        """For callbacks of the event loop, which only logs what they raise: the disk would be watched no more."""
        try:
            call()
        except Exception as bug:  # noqa: BLE001  it ends the monitor
            if self._bug is not None and not self._bug.done():
                self._bug.set_exception(bug)

    def _subjects(self) -> list[Subject]:
        """Directories of which the kernel's events are asked for: not those that have failed, or have not answered yet,
        since it touches their disks."""
        asked = [w for w in self._watched.values() if w.health.health is not Health.FAILED and not w.silent]
        return [Subject(path=w.agent.path, mount=w.mount, device=w.device) for w in asked]

    def _tell_sources(self, no_mount_events: str | None, kernel: dict[str, object]) -> None:
        """A line: what each verdict will rest on beside the probes, and why something is not to be had."""
        watched_devices = {watched.agent.path: watched.device for watched in self._watched.values()}
        fields: dict[str, object] = {
            "mount_events": no_mount_events is None,
            "block_counters": {path: device_text(d) for path, d in watched_devices.items() if d.reason is None},
            "kernel_events": kernel,
        }
        if no_mount_events is not None:
            fields["no_mount_events"] = no_mount_events
        without = {path: device.reason for path, device in watched_devices.items() if device.reason is not None}
        if without:
            fields["no_block_counters"] = without
        self._log("health.sources", fields)

    def report_error(self, path: str, errno: int, call: str) -> None:
        """The agent's own work on a directory got an error: it is probed at once, in full, and is suspect until then,
        unless the error may speak of one replica."""
        now_ms = self._clock.monotonic_ms()
        error = DirectoryError(errno, call, path)
        watched = self._watched.get(path)
        if watched is not None:  # else it was never read, or is no longer watched
            watched.full_next = True
            self._feed(watched, verdict.ProbeFailed(now_ms, errno, call, own_work=True), error=error)

    def standing_still(self, now_ms: int) -> str | None:
        """A part that has not gone round for much longer than it may, in words; None while all do.

        For the service manager's watchdog: a stuck disk is no reason, a coroutine that is lost or hangs is one.
        """
        settings = self._settings
        limit_ms = max(settings.probe_interval_ms, 2 * settings.probe_timeout_ms) + STANDSTILL_MS
        for watched in self._watched.values():
            if watched.health.health is not Health.FAILED and now_ms - watched.round_ms > limit_ms:
                return f"{watched.agent.path} has not been probed for {now_ms - watched.round_ms} ms"
        read_ms = self._mounts_round_ms
        if read_ms is not None and now_ms - read_ms > MOUNTS_EVERY_MS + STANDSTILL_MS:
            return f"the mount table has not been read for {now_ms - read_ms} ms"
        return None

    def health(self, path: str) -> DirectoryHealth:
        """The state of a directory."""
        return self._watched[path].health

    def doubt(self, path: str, since_ms: int) -> str | None:
        """Doubts about a directory (:meth:`DirectoryHealth.doubt`); none of one that is not watched."""
        watched = self._watched.get(path)
        return None if watched is None else watched.health.doubt(since_ms)

    def last_seen(self, path: str) -> LoadedDirectory | ProbeResult | None:
        """The last probe that passed, before the first one what was loaded; None: the directory is not watched."""
        watched = self._watched.get(path)
        return None if watched is None else watched.last_probe or watched.loaded

    def status(self) -> tuple[DirectoryStatus, ...]:
        """All directories, in the order in which they were given."""
        read, now_ms = self._devices.read, self._clock.monotonic_ms()
        each = self._watched.values()
        return tuple(watched.status(read(watched.device, now_ms), self.smart(watched.device)) for watched in each)

    # probes --------------------------------------------------------------------------------------------------------

    async def _watch(self, watched: Watched, delay_ms: int) -> None:
        interval_ms = self._settings.probe_interval_ms
        turn_ms = due_ms = self._clock.monotonic_ms() + delay_ms
        while watched.health.health is not Health.FAILED:
            watched.round_ms = self._clock.monotonic_ms()
            wait_ms = due_ms - self._clock.monotonic_ms()
            if wait_ms > 0:
                await _wait(watched.wake, wait_ms)
            watched.wake.clear()
            watched.round_ms = self._clock.monotonic_ms()
            again_soon = not await self._probe(watched)
            now_ms = self._clock.monotonic_ms()
            # Turns keep their distance from those of the others, also after probes out of turn.
            turn_ms += max(0, (now_ms - turn_ms) // interval_ms + 1) * interval_ms
            due_ms = min(turn_ms, now_ms + RETRY_AFTER_MS) if again_soon else turn_ms

    async def _probe(self, watched: Watched) -> bool:
        """A probe, to its end or to the verdict. False when it should be made again soon."""
        if watched.health.health is Health.FAILED:
            return True
        in_turn = watched.probes % self._settings.full_probe_every == 0
        full = in_turn or watched.full_next or watched.health.health in (Health.SUSPECT, Health.FULL)
        watched.full_next = False
        watched.probing = True
        try:
            return await self._probe_once(watched, full=full)
        finally:
            watched.probing = False

    async def _probe_once(self, watched: Watched, *, full: bool) -> bool:
        begun_ms = self._clock.monotonic_ms()
        self._check_counters(watched, begun_ms)
        watched.moved.clear()
        self._sample_after(watched, SAMPLE_AT_MS[0])
        try:
            result = await watched.agent.probe(full=full, timeout_ms=self._settings.probe_timeout_ms)
        except DirectoryError as error:
            self._answered(watched, error.after_us, failed=True)
            self._feed(watched, verdict.ProbeFailed(begun_ms, error.errno, error.call), error=error)
            return True
        except DirectoryTimeout:
            await self._wait_until_moved(watched, watched.agent.blocked())
            self._stop_sampling(watched)
            return False
        except WorkerUnavailable as trouble:
            self._stop_sampling(watched)
            self._feed(watched, verdict.ProbeImpossible(trouble.reason))
            return False
        self._answered(watched, result.duration_us)
        self._freed(watched, well=True)
        watched.last_probe = result
        event = verdict.ProbeSucceeded(begun_ms, result.duration_us // 1000, full, result.no_space)
        self._feed(watched, event, result=result)
        watched.wrote = result.written  # else perhaps nothing had to go to the device
        return True

    def _answered(self, watched: Watched, duration_us: int, *, failed: bool = False) -> None:
        self._count(watched, duration_us, failed=failed)
        self._stop_sampling(watched)

    def _count(self, watched: Watched, duration_us: int, *, failed: bool) -> None:
        watched.probes += 1
        watched.probe_failures += failed
        watched.probe_us += duration_us
        watched.probe_histogram[latency_bucket(duration_us)] += 1

    def _check_counters(self, watched: Watched, now_ms: int) -> None:
        """Read them before a probe. Since they were read before the last one, that has moved them, if they count."""
        earlier, wrote = watched.before, watched.wrote
        watched.before, watched.before_ms = self._devices.read(watched.device, now_ms).counters, now_ms
        watched.wrote = False
        if not wrote or watched.counter_check.passed(earlier, watched.before):
            return
        useless, watched.device = watched.device, devices.instead_of(watched.device, self._sources)
        watched.counter_check.start_again()
        watched.before = self._devices.read(watched.device, now_ms).counters
        fields: dict[str, object] = {"path": watched.agent.path, "useless": device_text(useless)}
        fields["instead"] = device_text(watched.device) if watched.device.reason is None else watched.device.reason
        self._log("health.counters", fields)

    async def _wait_until_moved(self, watched: Watched, stuck: BlockedCall | None) -> None:
        """The worker is stuck: nothing can be asked of it until its answer, or its end."""
        while watched.health.health is not Health.FAILED and not watched.moved.is_set():
            now = watched.agent.blocked()
            if stuck is None or now is None or now.number != stuck.number:
                return
            watched.round_ms = self._clock.monotonic_ms()
            await _wait(watched.moved, SAMPLE_EVERY_MS)

    def _late_answer(self, answer: LateAnswer) -> None:
        self._call(lambda: self._take_late_answer(answer))

    def _take_late_answer(self, answer: LateAnswer) -> None:
        """The kernel let go. A success says little about now: the next probe does; an error is one."""
        watched = self._watched[answer.path]
        self._freed(watched, well=answer.error is None)
        if answer.operation == "probe":
            self._count(watched, answer.age_ms * 1000, failed=answer.error is not None)
        if answer.error is not None:
            begun_ms, error = self._clock.monotonic_ms() - answer.age_ms, answer.error
            own_work = answer.operation != "probe"
            self._feed(watched, verdict.ProbeFailed(begun_ms, error.errno, error.call, own_work), error=error)
        watched.moved.set()
        watched.wake.set()

    def _freed(self, watched: Watched, *, well: bool) -> None:
        """A request was answered. Of a disk that has failed meanwhile it tells that it may be back."""
        if watched.health.health is Health.FAILED:
            watched.freed_ms = self._clock.monotonic_ms() if well else None

    # samples of a blocked probe ------------------------------------------------------------------------------------

    def _sample_after(self, watched: Watched, delay_ms: int) -> None:
        sample = partial(self._call, partial(self._sample, watched))
        watched.sampler = asyncio.get_running_loop().call_later(delay_ms / 1000, sample)

    def _sample(self, watched: Watched) -> None:
        watched.sampler = None
        if self._stopping or watched.health.health is Health.FAILED:
            return
        blocked = watched.agent.blocked()
        if blocked is None:  # the probe waits for a worker, not for the disk
            self._sample_after(watched, SAMPLE_EVERY_MS)
            return
        now_ms = self._clock.monotonic_ms()
        reading = self._devices.read(watched.device, now_ms)
        ours = now_ms - blocked.age_ms >= watched.before_ms  # not the agent's own work, which the probe waits for
        event = verdict.ProbeBlocked(
            number=blocked.number,
            call=blocked.call,
            age_ms=blocked.age_ms,
            wchan=blocked.wchan,
            process_state=blocked.process_state,
            before=watched.before if ours else None,
            now=reading.counters,
            device_ms=reading.hung_ms,
            after_flush=reading.after_flush,
            ended_ms=reading.ended_ms,
        )
        self._feed(watched, event)
        next_ms = min((at - blocked.age_ms for at in SAMPLE_AT_MS if at > blocked.age_ms), default=SAMPLE_EVERY_MS)
        self._sample_after(watched, min(next_ms, verdict.next_sample_ms(watched.health, self._settings)))

    def _stop_sampling(self, watched: Watched) -> None:
        if watched.sampler is not None:
            watched.sampler.cancel()
            watched.sampler = None

    # the devices ---------------------------------------------------------------------------------------------------

    async def _watch_devices(self) -> None:
        """Notice a silence that nobody has probed yet: from its begin on it counts. Also of directories that have
        failed, as long as they are watched: whether a disk still stands still decides what may be done about it."""
        while True:
            watching = list(self._watched.values())
            now_ms = self._clock.monotonic_ms()
            readings = {device: self._devices.read(device, now_ms) for device in {w.device for w in watching}}
            for watched in watching:
                failed = watched.health.health is Health.FAILED
                if not failed and readings[watched.device].hung_ms >= self._settings.notice_ms:
                    self._notice(watched, now_ms)
            busy = [device for device in readings if self._devices.is_busy(device)]
            await asyncio.sleep((devices.BUSY_EVERY_MS if busy else devices.IDLE_EVERY_MS) / 1000)

    def _notice(self, watched: Watched, now_ms: int) -> None:
        """The device is silent, and this directory does not know: probe it out of turn, once per interval at most."""
        lately = watched.noticed_ms is not None and now_ms - watched.noticed_ms < self._settings.probe_interval_ms
        if not watched.probing and not lately:
            watched.noticed_ms = now_ms
            watched.wake.set()

    def _kernel_said(self, path: str, damage: bool) -> None:
        watched = self._watched.get(path)
        if watched is not None:
            watched.full_next = True
            self._call(lambda: self._feed(watched, verdict.KernelSaid(damage)))

    # the mount table -----------------------------------------------------------------------------------------------

    async def _watch_mounts(self) -> None:
        if self._sources.read_mounts() is None:
            self._mounts_round_ms = None
            return  # this host has no such table
        compared: tuple[Mount, ...] | None = None
        while True:
            self._mounts_round_ms = begun_ms = self._clock.monotonic_ms()
            table = self._sources.read_mounts()
            if table is not None:  # else it cannot be read just now (no free descriptor): in the next round
                for watched in self._watched.values():
                    if table is not compared or watched.change is not MountChange.OK:
                        self._compare_mount(watched, table)
                compared = table
            pause_ms = MOUNTS_SHARE * (self._clock.monotonic_ms() - begun_ms)
            await asyncio.sleep(min(max(MOUNTS_PAUSE_MS, pause_ms), MOUNTS_EVERY_MS) / 1000)
            await _wait(self._mounts_changed, MOUNTS_EVERY_MS)
            self._mounts_changed.clear()

    def _compare_mount(self, watched: Watched, table: tuple[Mount, ...]) -> None:
        if watched.mount is None or watched.health.health is Health.FAILED:
            return
        change = mounts.compare(watched.loaded.real_path, watched.mount, table)
        confirming = watched.health.cause is Cause.MOUNT and change in (MountChange.MISSING, MountChange.OTHER)
        if change is not watched.change or confirming:
            watched.change = change
            self._feed(watched, verdict.MountChanged(change))

    # the verdict ---------------------------------------------------------------------------------------------------

    def _feed(
        self,
        watched: Watched,
        event: Event,
        *,
        error: DirectoryError | None = None,
        result: ProbeResult | None = None,
    ) -> None:
        now_ms = self._clock.monotonic_ms()
        previous = watched.health
        settling = must_settle(previous, self._elsewhere(watched), now_ms, self._settings)
        judgement = verdict.judge(previous, event, now_ms, self._settings, host_fault=settling)
        watched.health = health = judgement.state
        self._ask(watched, judgement.ask, now_ms)
        if health.confirmed is not None and previous.confirmed is None:
            watched.proof = (event, error)
        if isinstance(event, verdict.AnotherIsWell) and watched.proof is not None:
            event, error = watched.proof
        if health.in_trouble and not previous.in_trouble:
            self._look_around(watched)
        # Whether a suspicion can end as failed is news as well: damage that stays when the error does not come back.
        if (health.health, health.in_trouble) != (previous.health, previous.in_trouble):
            self._tell(watched, previous.health, self._evidence(watched, event, error, result))
            self._tell_host_fault(now_ms)
            if health.health is Health.FAILED:
                watched.moved.set()
                watched.wake.set()
        if health.well_ms != previous.well_ms:
            self._bear_witness(watched)

    def _ask(self, watched: Watched, ask: Ask, now_ms: int) -> None:
        if ask is Ask.PROBE:
            watched.wake.set()
        elif ask is Ask.PROBE_SETTLED:
            if watched.settled is not None:
                watched.settled.cancel()
            delay_ms = watched.health.since_ms + self._settings.host_settle_ms - now_ms
            later = asyncio.get_running_loop().call_later
            watched.settled = later(max(CONFIRM_AFTER_MS, delay_ms) / 1000, watched.wake.set)

    def _elsewhere(self, watched: Watched) -> list[DirectoryHealth]:
        return [other.health for other in self._others(watched)]

    def _others(self, watched: Watched) -> list[Watched]:
        """Directories on other devices."""
        return [other for other in self._watched.values() if not other.device.shares(watched.device)]

    def _look_around(self, watched: Watched) -> None:
        """A directory is in trouble: probe those on the same device at once, and a few witnesses elsewhere."""
        for other in self._watched.values():
            if other is not watched and not other.health.in_trouble and other.device.shares(watched.device):
                other.wake.set()
        witnesses: list[Watched] = []
        for other in sorted(self._others(watched), key=_probe_time):
            if other.health.health is not Health.ONLINE or other.probing:
                continue
            if not any(other.device.shares(witness.device) for witness in witnesses):
                witnesses.append(other)
        for witness in witnesses[:WITNESSES]:
            witness.wake.set()
        look = partial(self._call, partial(self._look_everywhere, watched))
        asyncio.get_running_loop().call_later(WITNESS_TIMEOUT_MS / 1000, look)

    def _look_everywhere(self, watched: Watched) -> None:
        """No witness yet: perhaps all are in trouble."""
        now_ms = self._clock.monotonic_ms()
        if not watched.health.in_trouble or self._stopping:
            return
        if must_settle(watched.health, self._elsewhere(watched), now_ms, self._settings):
            for other in self._others(watched):
                if not other.health.in_trouble:
                    other.wake.set()

    def _bear_witness(self, witness: Watched) -> None:
        for other in self._others(witness):
            if other.health.confirmed is not None:
                self._feed(other, verdict.AnotherIsWell())

    def _tell_host_fault(self, now_ms: int) -> None:
        """Once for each: everything on this host is in trouble, so it may not be the disks."""
        states = [watched.health for watched in self._watched.values()]
        first = next(iter(self._watched.values()), None)
        fault = first is not None and is_host_fault(states, now_ms, self._settings) and bool(self._others(first))
        if fault and not self._host_fault_told:
            self._log("host.fault", {"paths": list(self._watched), "settle_ms": self._settings.host_settle_ms})
        self._host_fault_told = fault

    def _tell(self, watched: Watched, previous: Health, evidence: Evidence) -> None:
        health = watched.health
        text = describe(health.health, health.cause, evidence)
        self._on_verdict(
            Verdict(
                path=watched.agent.path,
                directory_id=watched.directory_id,
                state=health.health,
                previous=previous,
                cause=health.cause,
                evidence=replace(evidence, text=text),
                at_ns=self._clock.monotonic_ns(),
            )
        )

    def _evidence(
        self, watched: Watched, event: Event, error: DirectoryError | None, result: ProbeResult | None
    ) -> Evidence:
        slow = watched.health.health is Health.SLOW
        evidence = Evidence(
            path=watched.agent.path,
            directory_id=watched.directory_id,
            device=device_text(watched.device),
            model=watched.device.model,
            serial=watched.device.serial,
            mount_id=watched.loaded.identity.mount_id,
            no_counters=watched.device.reason,
            kernel=self._kernel.recent(watched.agent.path),
            silent_ms=self._silent_ms(watched),
        )
        match event:
            case verdict.ProbeBlocked():
                return evidence.of_blocked(event, self._settings.probe_timeout_ms if slow else None)
            case verdict.ProbeSucceeded():
                return evidence.of_success(event, result, self._settings.slow_ms if slow else None)
            case _:
                return evidence.of_event(event, error)

    def _silent_ms(self, watched: Watched) -> int | None:
        blockage = watched.health.blockage
        if watched.health.cause is not Cause.HUNG or blockage is None:
            return None
        return blockage.silent_device_ms(self._settings.own_silence_ms)


async def _result_of(future: asyncio.Future[None]) -> None:
    await future


def _probe_time(watched: Watched) -> int:
    return watched.last_probe.duration_us if watched.last_probe is not None else 0


async def _wait(event: asyncio.Event, timeout_ms: int) -> None:
    """Until the event is set, at most so long."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    except TimeoutError:
        return

"""The shell around the verdict: when to probe, what to sample meanwhile, whom to tell.

One coroutine per directory sends probes; while one is not answered, a timer samples the worker's sleep and the device's
counters. One coroutine re-reads the mount table each second and at each event of the kernel. Everything ends up in
:func:`kjbod_agent.health.verdict.judge`; a change of state goes to ``on_verdict``, on the event loop, at once.

Nothing here touches a log directory: probes go through the storage agent, the rest reads ``/proc`` and ``/sys``.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from kjbod.clock import Clock
from kjbod.fleet.schema import latency_bucket
from kjbod_agent.health import block, mounts, verdict
from kjbod_agent.health.block import BlockCounters, BlockDevice
from kjbod_agent.health.evidence import Evidence, Verdict, describe, device_text
from kjbod_agent.health.mounts import Mount, MountChange
from kjbod_agent.health.verdict import Ask, Cause, DirectoryHealth, Event, Health, HealthSettings
from kjbod_agent.storage.api import (
    DirectoryAgent,
    DirectoryError,
    DirectoryTimeout,
    LateAnswer,
    LoadedDirectory,
    ProbeResult,
    WorkerUnavailable,
    errno_name,
)

SAMPLE_AT_MS = (20, 60, 120, 200)
"""Ages of a probe at which it is sampled; from the last one on, each ``SAMPLE_EVERY_MS``. The early ones see the
requests that the probe itself completed before it got stuck, so that these do not put off the verdict."""
SAMPLE_EVERY_MS = 200
CONFIRM_AFTER_MS = 5
"""Between an error and the probe that confirms it: the other directories are probed meanwhile (host fault guard)."""
MOUNTS_EVERY_MS = 1000
"""``emergency_ro`` and ``shutdown`` appear in the mount table without any event."""
MOUNTS_PAUSE_MS = 20
"""At least between two readings: on a host full of containers the table changes all the time."""
RETRY_AFTER_MS = 100
"""Before the next try when a worker was not to be had."""


class HostSources(Protocol):
    """What the kernel tells about a host without any disk being touched. Never blocks."""

    def read_mounts(self) -> tuple[Mount, ...] | None:
        """The mount table; None when this host or simulation has none."""

    def block_device_of(self, mount: Mount) -> BlockDevice:
        """What a mount lies on."""

    def read_counters(self, device: BlockDevice) -> BlockCounters | None:
        """Counters of a device; None when there are none."""

    def watch_mounts(self, changed: Callable[[], None]) -> tuple[Callable[[], None], str | None]:
        """Call back at each change. Returns how to end that, and why it does not work (None when it does)."""


class LinuxSources:
    """``/proc`` and ``/sys`` of this host."""

    def read_mounts(self) -> tuple[Mount, ...] | None:
        """See ``HostSources``."""
        try:
            return mounts.read_mounts()
        except OSError:
            return None

    def block_device_of(self, mount: Mount) -> BlockDevice:
        """See ``HostSources``."""
        return block.block_device_of(mount)

    def read_counters(self, device: BlockDevice) -> BlockCounters | None:
        """See ``HostSources``."""
        return block.read_counters(device)

    def watch_mounts(self, changed: Callable[[], None]) -> tuple[Callable[[], None], str | None]:
        """See ``HostSources``."""
        watcher = mounts.MountWatcher(changed)
        return watcher.close, watcher.start()


class NoSources:
    """A host that tells nothing: probes and deadlines alone. For simulations."""

    def read_mounts(self) -> tuple[Mount, ...] | None:
        """See ``HostSources``."""
        return None

    def block_device_of(self, mount: Mount) -> BlockDevice:
        """See ``HostSources``."""
        return BlockDevice((), mount.device, reason="no sources")

    def read_counters(self, device: BlockDevice) -> BlockCounters | None:
        """See ``HostSources``."""
        return None

    def watch_mounts(self, changed: Callable[[], None]) -> tuple[Callable[[], None], str | None]:
        """See ``HostSources``."""
        return (lambda: None), "no sources"


@dataclass(frozen=True, slots=True)
class DirectoryStatus:
    """What the monitor knows about a directory, for reports and status.

    Attributes:
        path: the log directory as configured.
        directory_id: its id.
        health: what the verdict remembers.
        last_probe: the last one that succeeded.
        probes: how many were answered, well or not.
        probe_failures: how many of them with an error.
        probe_histogram: how many of them took how long, by :func:`kjbod.fleet.schema.latency_bucket`.
        blocked_ms: age of the request that is not answered; None when there is none.
        device: what it lies on.
        counters: of the device now.
    """

    path: str
    directory_id: str
    health: DirectoryHealth
    last_probe: ProbeResult | None
    probes: int
    probe_failures: int
    probe_histogram: Mapping[str, int]
    blocked_ms: int | None
    device: BlockDevice
    counters: BlockCounters | None


@dataclass(slots=True, eq=False)
class _Watched:
    """One directory and what is going on with it."""

    agent: DirectoryAgent
    directory_id: str
    real_path: str
    mount_id: int
    device: BlockDevice
    mount: Mount | None
    health: DirectoryHealth
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    change: MountChange = MountChange.OK
    before: BlockCounters | None = None
    sampler: asyncio.TimerHandle | None = None
    last_probe: ProbeResult | None = None
    probes: int = 0
    probe_failures: int = 0
    probe_histogram: Counter[str] = field(default_factory=Counter)


class HealthMonitor:
    """Watches the log directories of this host.

    Args:
        directories: each with what :meth:`DirectoryAgent.load` said and its directory id.
        settings: intervals and deadlines.
        clock: monotonic time; must be that of the event loop.
        on_verdict: gets every change of state, on the event loop; must not block.
        sources: the kernel's.
        log: event name and fields, for which sources are active.
    """

    def __init__(
        self,
        directories: Sequence[tuple[DirectoryAgent, LoadedDirectory, str]],
        *,
        settings: HealthSettings,
        clock: Clock,
        on_verdict: Callable[[Verdict], None],
        sources: HostSources | None = None,
        log: Callable[[str, dict[str, object]], None] = lambda event, fields: None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_verdict = on_verdict
        self._sources: HostSources = LinuxSources() if sources is None else sources
        self._log = log
        self._mounts_changed = asyncio.Event()
        self._stopping = False
        table = self._sources.read_mounts()
        self._watched = {agent.path: self._watch_of(agent, loaded, text, table) for agent, loaded, text in directories}

    def _watch_of(
        self, agent: DirectoryAgent, loaded: LoadedDirectory, directory_id: str, table: tuple[Mount, ...] | None
    ) -> _Watched:
        identity = loaded.identity
        found = [mount for mount in table or () if mount.mount_id == identity.mount_id]
        mount = found[0] if found else mounts.mount_of(loaded.real_path, table or ())
        device = BlockDevice((), identity.device, reason="no mount table")
        if mount is not None:
            device = self._sources.block_device_of(mount)
            if mounts.compare(loaded.real_path, mount, table or ()) in (MountChange.MISSING, MountChange.OTHER):
                mount = None  # the table does not show the way to it (a chroot): it cannot tell of changes either
        health = DirectoryHealth(since_ms=self._clock.monotonic_ms())
        return _Watched(agent, directory_id, loaded.real_path, identity.mount_id, device, mount, health)

    # for the agent core --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch until cancelled. Directories that have failed are left alone."""
        close, reason = self._sources.watch_mounts(self._mounts_changed.set)
        self._tell_sources(reason)
        for watched in self._watched.values():
            watched.agent.on_late_answer = self._late_answer
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch_mounts())
                for position, watched in enumerate(self._watched.values()):
                    # Spread over the interval: twelve probes in one millisecond would wait for each other.
                    delay_ms = position * self._settings.probe_interval_ms // len(self._watched)
                    tasks.create_task(self._watch(watched, delay_ms))
        finally:
            self._stopping = True
            close()
            for watched in self._watched.values():
                self._stop_sampling(watched)

    def _tell_sources(self, no_mount_events: str | None) -> None:
        """One line: what each verdict will rest on beside the probes, and why something is not to be had."""
        devices = {watched.agent.path: watched.device for watched in self._watched.values()}
        fields: dict[str, object] = {
            "mount_events": no_mount_events is None,
            "block_counters": {path: device_text(d) for path, d in devices.items() if d.reason is None},
        }
        if no_mount_events is not None:
            fields["no_mount_events"] = no_mount_events
        without = {path: device.reason for path, device in devices.items() if device.reason is not None}
        if without:
            fields["no_block_counters"] = without
        self._log("health.sources", fields)

    def report_error(self, path: str, errno: int, call: str) -> None:
        """The agent's own work on a directory got an error: it is suspect from now on and is probed at once."""
        now_ms = self._clock.monotonic_ms()
        error = DirectoryError(errno, call, path)
        self._feed(self._watched[path], verdict.ProbeFailed(now_ms, errno, call, own_work=True), error=error)

    def health(self, path: str) -> DirectoryHealth:
        """The state of a directory."""
        return self._watched[path].health

    def status(self) -> tuple[DirectoryStatus, ...]:
        """All directories, in the order in which they were given."""
        return tuple(self._status(watched) for watched in self._watched.values())

    def _status(self, watched: _Watched) -> DirectoryStatus:
        blocked = watched.agent.blocked()
        return DirectoryStatus(
            path=watched.agent.path,
            directory_id=watched.directory_id,
            health=watched.health,
            last_probe=watched.last_probe,
            probes=watched.probes,
            probe_failures=watched.probe_failures,
            probe_histogram=watched.probe_histogram,
            blocked_ms=None if blocked is None else blocked.age_ms,
            device=watched.device,
            counters=self._sources.read_counters(watched.device),
        )

    # probes --------------------------------------------------------------------------------------------------------

    async def _watch(self, watched: _Watched, delay_ms: int) -> None:
        due_ms = self._clock.monotonic_ms() + delay_ms
        while watched.health.health is not Health.FAILED:
            wait_ms = due_ms - self._clock.monotonic_ms()
            if wait_ms > 0:
                await _wait(watched.wake, wait_ms)
            watched.wake.clear()
            due_ms = self._clock.monotonic_ms() + self._settings.probe_interval_ms
            if not await self._probe(watched):
                due_ms = self._clock.monotonic_ms() + RETRY_AFTER_MS

    async def _probe(self, watched: _Watched) -> bool:
        """One probe, to its end or to the verdict. False when it should be made again soon."""
        if watched.health.health is Health.FAILED:
            return True
        settings = self._settings
        troubled = watched.health.health is not Health.ONLINE
        full = troubled or watched.probes % settings.full_probe_every == 0
        begun_ms = self._clock.monotonic_ms()
        watched.before = self._sources.read_counters(watched.device)
        watched.moved.clear()
        self._sample_after(watched, SAMPLE_AT_MS[0])
        try:
            result = await watched.agent.probe(full=full, timeout_ms=settings.probe_timeout_ms)
        except DirectoryError as error:
            self._answered(watched, error.after_us, failed=True)
            self._feed(watched, verdict.ProbeFailed(begun_ms, error.errno, error.call), error=error)
            return True
        except DirectoryTimeout:
            await self._wait_until_moved(watched)
            self._stop_sampling(watched)
            return False
        except WorkerUnavailable as trouble:
            self._stop_sampling(watched)
            self._feed(watched, verdict.ProbeImpossible(trouble.reason))
            return False
        self._answered(watched, result.duration_us)
        watched.last_probe = result
        event = verdict.ProbeSucceeded(begun_ms, result.duration_us // 1000, full, result.no_space)
        self._feed(watched, event, result=result)
        return True

    def _answered(self, watched: _Watched, duration_us: int, *, failed: bool = False) -> None:
        self._count(watched, duration_us, failed=failed)
        self._stop_sampling(watched)

    def _count(self, watched: _Watched, duration_us: int, *, failed: bool) -> None:
        watched.probes += 1
        watched.probe_failures += failed
        watched.probe_histogram[latency_bucket(duration_us)] += 1

    async def _wait_until_moved(self, watched: _Watched) -> None:
        """The worker is stuck: nothing can be asked of it until its late answer, or its end."""
        while watched.health.health is not Health.FAILED and watched.agent.blocked() is not None:
            await _wait(watched.moved, SAMPLE_EVERY_MS)
            if watched.moved.is_set():
                return

    def _late_answer(self, answer: LateAnswer) -> None:
        """The kernel let go. A success says little about now: the next probe does; an error is one."""
        watched = self._watched[answer.path]
        if answer.operation == "probe":
            self._count(watched, answer.age_ms * 1000, failed=answer.error is not None)
        if answer.error is not None and answer.operation == "probe":
            begun_ms = self._clock.monotonic_ms() - answer.age_ms
            self._feed(
                watched, verdict.ProbeFailed(begun_ms, answer.error.errno, answer.error.call), error=answer.error
            )
        watched.moved.set()
        watched.wake.set()

    # samples of a blocked probe ------------------------------------------------------------------------------------

    def _sample_after(self, watched: _Watched, delay_ms: int) -> None:
        watched.sampler = asyncio.get_running_loop().call_later(delay_ms / 1000, self._sample, watched)

    def _sample(self, watched: _Watched) -> None:
        watched.sampler = None
        if self._stopping or watched.health.health is Health.FAILED:
            return
        blocked = watched.agent.blocked()
        if blocked is None:  # the probe waits for a worker, not for the disk
            self._sample_after(watched, SAMPLE_EVERY_MS)
            return
        event = verdict.ProbeBlocked(
            number=blocked.number,
            call=blocked.call,
            age_ms=blocked.age_ms,
            wchan=blocked.wchan,
            process_state=blocked.process_state,
            before=watched.before,
            now=self._sources.read_counters(watched.device),
        )
        self._feed(watched, event)
        next_ms = min((at - blocked.age_ms for at in SAMPLE_AT_MS if at > blocked.age_ms), default=SAMPLE_EVERY_MS)
        self._sample_after(watched, min(next_ms, verdict.next_sample_ms(watched.health, self._settings)))

    def _stop_sampling(self, watched: _Watched) -> None:
        if watched.sampler is not None:
            watched.sampler.cancel()
            watched.sampler = None

    # the mount table -----------------------------------------------------------------------------------------------

    async def _watch_mounts(self) -> None:
        if self._sources.read_mounts() is None:
            return  # this host has no such table
        while True:
            table = self._sources.read_mounts()
            if table is not None:  # else it cannot be read just now (no free descriptor): in the next round
                for watched in self._watched.values():
                    self._compare_mount(watched, table)
            await asyncio.sleep(MOUNTS_PAUSE_MS / 1000)
            await _wait(self._mounts_changed, MOUNTS_EVERY_MS)
            self._mounts_changed.clear()

    def _compare_mount(self, watched: _Watched, table: tuple[Mount, ...]) -> None:
        if watched.mount is None or watched.health.health is Health.FAILED:
            return
        change = mounts.compare(watched.real_path, watched.mount, table)
        confirming = watched.health.cause is Cause.MOUNT and change in (MountChange.MISSING, MountChange.OTHER)
        if change is not watched.change or confirming:
            watched.change = change
            self._feed(watched, verdict.MountChanged(change))

    # the verdict ---------------------------------------------------------------------------------------------------

    def _feed(
        self,
        watched: _Watched,
        event: Event,
        *,
        error: DirectoryError | None = None,
        result: ProbeResult | None = None,
    ) -> None:
        now_ms = self._clock.monotonic_ms()
        settings = self._settings
        states = [other.health for other in self._watched.values()]
        host_fault = verdict.is_host_fault(states, now_ms, settings)
        previous = watched.health
        judgement = verdict.judge(previous, event, now_ms, settings, host_fault=host_fault)
        watched.health = judgement.state
        if judgement.ask is Ask.PROBE:
            asyncio.get_running_loop().call_later(CONFIRM_AFTER_MS / 1000, watched.wake.set)
        elif judgement.ask is Ask.PROBE_SETTLED:
            delay_ms = judgement.state.since_ms + settings.host_settle_ms - now_ms
            asyncio.get_running_loop().call_later(max(CONFIRM_AFTER_MS, delay_ms) / 1000, watched.wake.set)
        if watched.health.health is not previous.health:
            if watched.health.health is Health.SUSPECT:
                self._probe_others(watched)
            self._tell(watched, previous.health, self._evidence(watched, event, error, result))
            if watched.health.health is Health.FAILED:
                watched.moved.set()
                watched.wake.set()

    def _probe_others(self, suspect: _Watched) -> None:
        """Host fault guard: whether the others are in trouble too must be known before this one is confirmed."""
        for other in self._watched.values():
            if other is not suspect and other.health.health is not Health.SUSPECT:
                other.wake.set()

    def _tell(self, watched: _Watched, previous: Health, evidence: Evidence) -> None:
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
        self, watched: _Watched, event: Event, error: DirectoryError | None, result: ProbeResult | None
    ) -> Evidence:
        evidence = Evidence(
            path=watched.agent.path,
            directory_id=watched.directory_id,
            device=device_text(watched.device),
            model=watched.device.model,
            serial=watched.device.serial,
            mount_id=watched.mount_id,
            no_counters=watched.device.reason,
        )
        slow = watched.health.health is Health.SLOW
        match event:
            case verdict.ProbeFailed():
                age_ms = None if error is None or not error.after_us else error.after_us / 1000
                return replace(evidence, errno=errno_name(event.errno), call=event.call, age_ms=age_ms)
            case verdict.ProbeBlocked():
                return replace(
                    evidence,
                    call=event.call,
                    age_ms=event.age_ms,
                    limit_ms=self._settings.probe_timeout_ms if slow else None,
                    wchan=event.wchan,
                    counters_before=event.before,
                    counters_after=event.now,
                )
            case verdict.MountChanged():
                return replace(evidence, errno="ESTALE", call=str(event.change))
            case verdict.ProbeImpossible():
                return replace(evidence, call=event.reason)
            case verdict.ProbeSucceeded():
                return replace(
                    evidence,
                    errno=event.no_space,
                    call="probe",
                    age_ms=result.duration_us / 1000 if result else None,
                    limit_ms=self._settings.slow_ms if slow else None,
                )


async def _wait(event: asyncio.Event, timeout_ms: int) -> None:
    """Until the event is set, at most so long."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await event.wait()
    except TimeoutError:
        return

"""The shell around :class:`.core.HostHealth`: it carries the core's effects out, and decides nothing.

One timer wakes the core; one task for each probe waits for its answer; the sources of events call back. Each of them
ends up in one step of the core, on the event loop, and what that asks for is done at once. A change of state goes to
``on_verdict``, at once too.

Nothing here touches a log directory: probes go through the storage agent, the rest reads ``/proc`` and ``/sys``.
"""

import asyncio
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from kjbod.clock import Clock
from kjbod_host.health import core, mounts
from kjbod_host.health.block import BlockDevice
from kjbod_host.health.core import Counters, HostHealth
from kjbod_host.health.evidence import Verdict
from kjbod_host.health.host import HostSources, LinuxSources, NoSources
from kjbod_host.health.sources.api import KernelSource, Subject
from kjbod_host.health.verdict import DirectoryHealth, HealthSettings
from kjbod_host.health.watched import DirectoryStatus
from kjbod_host.smart.readings import Smart
from kjbod_host.storage.api import (
    BlockedCall,
    CanProbe,
    DirectoryError,
    DirectoryTimeout,
    LoadedDirectory,
    ProbeResult,
    WorkerUnavailable,
)

__all__ = ["DirectoryStatus", "HealthMonitor", "HostSources", "LinuxSources", "NoSources"]

ACTIVE = "active"


class HealthMonitor:
    """Monitor of the log directories of this host.

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
        self._clock = clock
        self._on_verdict = on_verdict
        self._sources: HostSources = LinuxSources() if sources is None else sources
        self._kernel_sources = kernel_sources
        self._log = log
        self._core = HostHealth(settings, clock.monotonic_ms())
        self._agents: dict[str, CanProbe] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._bug: asyncio.Future[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._no_mount_events: str | None = None
        self.smart: Callable[[BlockDevice], Smart | None] = lambda device: None
        table = self._sources.read_mounts()
        for agent, loaded, directory_id in directories:
            self._add(agent, loaded, directory_id, table, silent=False)

    # for the agent core --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch until cancelled. Directories that have failed are left alone.

        A bug anywhere in the monitor ends it with that exception, also one in a callback of the event loop.
        """
        self._bug = asyncio.get_running_loop().create_future()
        close, self._no_mount_events = self._sources.watch_mounts(lambda: self._call(core.Signal.MOUNTS_CHANGED))
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                try:
                    for agent in self._agents.values():
                        agent.on_late_answer = self._call
                    self._step(core.Signal.STARTED)
                    await self._bug
                finally:
                    self._tasks = None  # no more of them
        finally:
            close()
            self._close_sources()
            for agent in self._agents.values():
                agent.on_late_answer = None
            if self._timer is not None:
                self._timer.cancel()

    def add(self, agent: CanProbe, loaded: LoadedDirectory, directory_id: str, *, silent: bool = False) -> None:
        """Watch one more directory from now on, or another disk under the path of one that is watched: all that was
        known about the one before is forgotten. One that is ``silent`` did not answer until now: it is suspect."""
        self._forget(agent.path)
        self._add(agent, loaded, directory_id, self._sources.read_mounts(), silent)

    def _add(
        self, agent: CanProbe, loaded: LoadedDirectory, directory_id: str, table: core.Table, silent: bool
    ) -> None:
        self._agents[agent.path] = agent
        if self._tasks is not None:
            agent.on_late_answer = self._call
        mount = mounts.mount_under(loaded.real_path, loaded.identity.mount_id, table or ())
        device = None if mount is None else self._sources.block_device_of(mount)
        self._step(core.Added(loaded, directory_id, mount, device, table, silent))

    def remove(self, path: str) -> None:
        """Stop watching a directory. Does nothing if it is not watched."""
        self._forget(path)
        self._agents.pop(path, None)
        self._step(core.Removed(path))

    def _forget(self, path: str) -> None:
        if path in self._agents:
            self._agents[path].on_late_answer = None
        if path in self._probes:
            self._probes.pop(path).cancel()

    def not_mounted(self, path: str, loaded: LoadedDirectory, remembered: str | None) -> str | None:
        """Reason why a directory at ``path`` cannot be the disk that is to be watched there from now on, in words that
        follow the path (:func:`.mounts.not_mounted`). What was there before was mounted where this agent saw it, or
        where it is ``remembered``."""
        before = self._core.mount_point(path) or remembered
        if before is None:
            return None
        return mounts.not_mounted(before, loaded.identity.mount_id, self._sources.read_mounts() or ())

    def report_error(self, path: str, errno: int, call: str) -> None:
        """The agent's own work on a directory got an error: it is probed at once, in full, and is suspect until then,
        unless the error may speak of one replica."""
        self._step(DirectoryError(errno, call, path))

    def standing_still(self, now_ms: int) -> str | None:
        """:meth:`.core.HostHealth.standing_still`."""
        return self._core.standing_still(now_ms)

    def health(self, path: str) -> DirectoryHealth:
        """Return the health of a directory."""
        watched = self._core.watched(path)
        if watched is None:
            raise KeyError(path)
        return watched.health

    def doubt(self, path: str, since_ms: int) -> str | None:
        """Doubts about a directory (:meth:`DirectoryHealth.doubt`); none of one that is not watched."""
        watched = self._core.watched(path)
        return None if watched is None else watched.health.doubt(since_ms)

    def last_seen(self, path: str) -> LoadedDirectory | ProbeResult | None:
        """The last probe that passed, before the first one what was loaded; None: the directory is not watched."""
        watched = self._core.watched(path)
        return None if watched is None else watched.last_probe or watched.loaded

    def status(self) -> tuple[DirectoryStatus, ...]:
        """All directories, in the order in which they were given."""
        now_ms = self._clock.monotonic_ms()
        return tuple(
            self._core.status(path, self._counters(device), self._agents[path].blocked(), self.smart(device), now_ms)
            for path, device in self._core.devices().items()
        )

    # events --------------------------------------------------------------------------------------------------------

    def _step(self, event: core.Event) -> None:
        self._take(event)
        self._wake_in_time()

    def _take(self, event: core.Event) -> None:
        for effect in self._core.step(event, self._clock.monotonic_ms()):
            self._carry_out(effect)

    def _call(self, event: core.Event) -> None:
        """Step from a callback of the event loop. An exception ends the monitor; otherwise the loop would only log
        it."""
        try:
            self._step(event)
        except Exception as bug:  # noqa: BLE001  it ends the monitor
            if self._bug is not None and not self._bug.done():
                self._bug.set_exception(bug)

    def _wake_in_time(self) -> None:
        at_ms = self._core.wake_ms()
        if self._tasks is None or (self._timer is not None and self._timer_ms == at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = max(0, at_ms - self._clock.monotonic_ms())
        self._timer_ms = at_ms
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._call(core.Signal.WOKEN)

    # effects -------------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: core.Effect) -> None:
        match effect:
            case core.Probe(path):
                if self._tasks is not None:
                    self._probes[path] = self._tasks.create_task(self._probe(effect, self._agents[path]))
            case core.Log(event, fields):
                self._log(event, fields)
            case Verdict():
                self._on_verdict(effect)
            case core.Sample(path) if path not in self._agents:
                pass  # the owner removed it when a verdict was told
            case _:
                self._take(core.Answer(effect, self._answer(effect)))

    def _answer(self, question: core.Question) -> object:
        match question:
            case core.Sample(path, device):
                return self._agents[path].blocked(), self._counters(device)
            case core.ReadDevices(devices):
                return {device: self._counters(device) for device in devices}
            case core.FindBelow(_, device):
                return self._sources.below(device)
            case core.StartSources(subjects, again):
                if again:
                    self._close_sources()
                return self._start_sources(subjects), self._no_mount_events
            case core.Look.MOUNTS:
                return self._sources.read_mounts()
            case _:
                self._try_each(lambda source: source.poll())
                return None

    async def _probe(self, probe: core.Probe, agent: CanProbe) -> None:
        found: ProbeResult | DirectoryError | WorkerUnavailable | BlockedCall | None
        try:
            found = await agent.probe(full=probe.full, timeout_ms=self._core.settings.probe_timeout_ms)
        except DirectoryTimeout:
            found = agent.blocked()
        except (DirectoryError, WorkerUnavailable) as error:
            found = error
        self._call(core.Answer(probe, found))

    def _counters(self, device: BlockDevice) -> Counters:
        read = self._sources.read_counters
        if len(device.names) == 1:
            return (read(device),)
        return [read(replace(device, names=(name,))) for name in device.names]

    def _start_sources(self, subjects: Sequence[Subject]) -> dict[str, object]:
        told: dict[str, object] = {}
        for source in self._kernel_sources:
            try:
                reasons = dict(source.start(subjects, self._call))
            except Exception as error:  # noqa: BLE001  each source is optional, also one with a bug
                reasons = {subject.path: f"{type(error).__name__}: {error}" for subject in subjects}
            states = {subject.path: reasons.get(subject.path) or ACTIVE for subject in subjects}
            told[source.name] = next(iter(states.values())) if len(set(states.values())) == 1 else states
        return told

    def _close_sources(self) -> None:
        self._try_each(lambda source: source.close())

    def _try_each(self, act: Callable[[KernelSource], None]) -> None:
        for source in self._kernel_sources:
            try:
                act(source)
            except Exception as error:  # noqa: BLE001  the other sources and the probes go on
                reason = f"{type(error).__name__}: {error}"
                self._log("health.source.trouble", {"source": source.name, "reason": reason})

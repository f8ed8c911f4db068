"""A directory under watch: what the monitor keeps about it, and what it tells of it."""

import asyncio
from collections import Counter
from collections.abc import Mapping

from msgspec import Struct, field

from kjbod_host.health.block import BlockCounters, BlockDevice
from kjbod_host.health.devices import CounterCheck, Reading
from kjbod_host.health.mounts import Mount, MountChange
from kjbod_host.health.verdict import DirectoryHealth, Event
from kjbod_host.smart.readings import Smart
from kjbod_host.storage.api import CanProbe, DirectoryError, LoadedDirectory, ProbeResult


class DirectoryStatus(Struct, frozen=True):
    """The monitor's knowledge of a directory, for reports and status.

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
        file_system: of the mount, ``"ext4"``; None where the mount table does not tell.
        probe_us: how long the answered probes took together.
        mount_point: where what it lies on is mounted; None where the mount table does not tell.
        freed_ms: when the disk of one that has failed answered a request well that it had swallowed; None: it did not,
            or swallows another one.
        smart: the health of its disks as they tell it; None: none has told it.
        silent_ms: how long its device has had requests in flight and completed none, until now; also when it has
            failed.
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
    file_system: str | None = None
    probe_us: int = 0
    mount_point: str | None = None
    freed_ms: int | None = None
    smart: Smart | None = None
    silent_ms: int = 0


class Watched(Struct, eq=False):
    """A directory and what is going on with it."""

    agent: CanProbe
    loaded: LoadedDirectory
    """As it was when the watch began, without its replicas."""
    directory_id: str
    device: BlockDevice
    mount: Mount | None
    health: DirectoryHealth
    round_ms: int
    """When its coroutine last went round."""
    silent: bool = False
    """Whether it did not answer when the watch began."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    probing: bool = False
    full_next: bool = False
    """Whether the next probe is to be a full one whatever its turn: the kernel said something, or own work got an
    error."""
    noticed_ms: int | None = None
    """When its device's silence last asked for a probe."""
    proof: tuple[Event, DirectoryError | None] | None = None
    """What confirmed a failure that waits for a witness."""
    settled: asyncio.TimerHandle | None = None
    counter_check: CounterCheck = field(default_factory=CounterCheck)
    change: MountChange = MountChange.OK
    before: BlockCounters | None = None
    """Counters of the device when the present probe was asked for."""
    before_ms: int = 0
    """When that was."""
    wrote: bool = False
    """Whether the last probe was answered and wrote."""
    sampler: asyncio.TimerHandle | None = None
    last_probe: ProbeResult | None = None
    probes: int = 0
    probe_failures: int = 0
    probe_us: int = 0
    freed_ms: int | None = None
    """When a request was answered well that its disk had swallowed before it failed."""
    probe_histogram: Counter[str] = field(default_factory=Counter)
    task: asyncio.Task[None] | None = None
    """Sends its probes."""

    def status(self, reading: Reading, smart: Smart | None = None) -> DirectoryStatus:
        """The status now; ``reading`` is of the device now, ``smart`` is what its disks last told."""
        blocked = self.agent.blocked()
        return DirectoryStatus(
            path=self.agent.path,
            directory_id=self.directory_id,
            health=self.health,
            last_probe=self.last_probe,
            probes=self.probes,
            probe_failures=self.probe_failures,
            probe_histogram=self.probe_histogram,
            blocked_ms=None if blocked is None else blocked.age_ms,
            device=self.device,
            counters=reading.counters,
            file_system=None if self.mount is None else self.mount.fstype,
            probe_us=self.probe_us,
            mount_point=None if self.mount is None else self.mount.mount_point,
            freed_ms=self.freed_ms if blocked is None else None,
            smart=smart,
            silent_ms=reading.hung_ms,
        )

"""State and status of a watched directory. Pure."""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from kjbod.fleet.schema import latency_bucket
from kjbod_host.health.block import BlockCounters, BlockDevice
from kjbod_host.health.devices import Reading
from kjbod_host.health.mounts import Mount, MountChange
from kjbod_host.health.verdict import DirectoryHealth, Event, Health
from kjbod_host.smart.readings import Smart
from kjbod_host.storage.api import BlockedCall, DirectoryError, LoadedDirectory, ProbeResult

Found = DirectoryError | ProbeResult | None
"""Source of a verdict's event, for the evidence."""
NEVER = 1 << 62
"""A moment that never comes, in milliseconds."""


class Stage(StrEnum):
    """Progress of a probe; the table is in :mod:`.core`."""

    IDLE = "idle"
    READING = "reading"
    PROBING = "probing"
    STUCK = "stuck"


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
    """A directory and what is going on with it. Times are monotonic ms."""

    path: str
    loaded: LoadedDirectory
    """As it was when the watch began, without its replicas."""
    directory_id: str
    device: BlockDevice
    mount: Mount | None
    health: DirectoryHealth
    round_ms: int
    """When its probe last began or ended, or was seen to be stuck."""
    silent: bool = False
    """Whether it did not answer when the watch began."""
    stage: Stage = Stage.IDLE
    turn_ms: int = 0
    """Its turn. Turns keep their distance from those of the others, also after probes out of turn."""
    due_ms: int = NEVER
    """When it is to be probed: in its turn, or sooner when no probe could be made."""
    woken: bool = False
    """Whether it is to be probed at once, or as soon as the present probe has ended."""
    settled_ms: int = NEVER
    """When a failure without a witness is to be confirmed."""
    looks_ms: list[int] = field(default_factory=list)
    """When all others are to be probed, unless a witness has passed its probe by then."""
    sample_ms: int = NEVER
    """When the present probe is to be sampled."""
    begun_ms: int = 0
    """When the present probe began, and the counters were read for it."""
    moved: bool = False
    """Whether an answer has come late since the present probe began."""
    stuck: int | None = None
    """Number of the request that is not answered in time."""
    full_next: bool = False
    """Whether the next probe is to be a full one whatever its turn: the kernel said something, or own work got an
    error."""
    noticed_ms: int | None = None
    """When its device's silence last asked for a probe."""
    proof: tuple[Event, Found] | None = None
    """What confirmed a failure that waits for a witness."""
    still_probes: int = 0
    """Probes in a row that passed and wrote while the counters stood still."""
    change: MountChange = MountChange.OK
    before: BlockCounters | None = None
    """Counters of the device when the present probe began."""
    wrote: bool = False
    """Whether the last probe was answered and wrote."""
    last_probe: ProbeResult | None = None
    probes: int = 0
    probe_failures: int = 0
    probe_us: int = 0
    freed_ms: int | None = None
    """When a request was answered well that its disk had swallowed before it failed."""
    probe_histogram: Counter[str] = field(default_factory=Counter)

    @property
    def has_failed(self) -> bool:
        """Whether it is probed no more."""
        return self.health.health is Health.FAILED

    def next_ms(self) -> int:
        """Return the time of the next work on this directory; in the past: at once."""
        at_ms = min(self.settled_ms, self.sample_ms, self.looks_ms[0] if self.looks_ms else NEVER)
        if self.stage is not Stage.IDLE or self.has_failed:
            return at_ms
        return 0 if self.woken else min(at_ms, self.due_ms)

    def count(self, duration_us: int, *, failed: bool) -> None:
        """Count an answered probe."""
        self.probes += 1
        self.probe_failures += failed
        self.probe_us += duration_us
        self.probe_histogram[latency_bucket(duration_us)] += 1

    def freed(self, now_ms: int, *, well: bool) -> None:
        """Note an answered request. For a failed disk it shows that the disk may work again."""
        if self.has_failed:
            self.freed_ms = now_ms if well else None

    def status(self, reading: Reading, blocked: BlockedCall | None, smart: Smart | None) -> DirectoryStatus:
        """The status now: with its device, the request that is not answered, and what its disks last told."""
        return DirectoryStatus(
            path=self.path,
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

"""States of a log directory, memory of the verdict, and its deadlines. Pure."""

from enum import StrEnum

from msgspec import Struct

from kjbod_host.health.silence import Blockage


class Health(StrEnum):
    """State of a log directory."""

    ONLINE = "online"
    SUSPECT = "suspect"
    """Something is wrong and is being confirmed; not offline."""
    FAILED = "failed"
    """Offline until its path is added again (``kjbod dirs add``), or a restart."""
    SLOW = "slow"
    """Answers late, but the device makes progress."""
    HELD = "held"
    """Stands still above the device: frozen for a snapshot, or throttled to nothing."""
    FULL = "full"
    """The medium is well and nothing new can be allocated."""


class Cause(StrEnum):
    """Cause of a directory's state."""

    NONE = "none"
    ERROR = "error"
    REPEATED_ERRORS = "repeated-errors"
    MOUNT = "mount"
    HUNG = "hung"
    HELD = "held"
    SLOW = "slow"
    SILENT = "silent"
    """Blocked, and there are no counters, or an error came before."""
    FULL = "full"
    DAMAGE = "damage"
    """Its file system reports damage of its own structures, and probes pass."""
    UNWATCHED = "unwatched"
    """No probe is possible, for reasons of our own."""


class HealthSettings(Struct, frozen=True, kw_only=True):
    """Deadlines of the verdict, in milliseconds. Shorter: a failure is known sooner, and a fault of a moment counts.

    What each buys and costs stands in ``kjbod/config/README.md``; the names in brackets are the configuration's.

    Attributes:
        probe_interval_ms: between the starts of two probes of an idle directory (``kjbod.probe.interval.ms``).
        probe_timeout_ms: silence without any progress that makes a device hung, and beyond which an answer is late
            (``kjbod.probe.timeout.ms``). Must be longer than the slowest single request of a healthy device.
        held_timeout_ms: standing still above the device (``kjbod.held.timeout.ms``); 0 waits for ever.
        blind_timeout_ms: silence where the device has no counters (``kjbod.blind.timeout.ms``). Must be longer than
            the slowest single step of a probe, an fsync of up to eight requests.
        slow_ms: a probe that took this long is slow (``kjbod.slow.ms``); it is some five requests one after the other.
            Only the worker's own time counts, not what the request waited in this process: that is no fault of the
            disk.
        slow_probes: slow probes in a row that make a directory slow (``kjbod.slow.probes``): one alone is a burst of
            somebody's writes.
        slow_recoveries: quick probes in a row that end slowness (``kjbod.slow.recovery.probes``).
        strike_window_ms: two errors within this time are a failure although probes between them pass, and for this
            time a report of damage keeps a directory suspect (``kjbod.strike.window.ms``).
        host_window_ms: all directories in trouble within this time are a host fault
            (``kjbod.host.fault.window.ms``).
        host_settle_ms: how long a failure without a witness stays suspect at least
            (``kjbod.host.fault.settle.ms``).
        late_episodes: times of standing still, or of slow probes, within ``late_window_ms`` that make a directory slow
            although it is quick in between. Probes in a row are one of them.
        late_window_ms: see there; and so long without another one ends that slowness.
        sample_gap_ms: the most that one sample may add to a silence; one that comes later adds half of it.
        full_probe_every: each how many-th probe is a full one (``kjbod.probe.full.every``).
    """

    probe_interval_ms: int = 1000
    probe_timeout_ms: int = 1900
    held_timeout_ms: int = 30_000
    blind_timeout_ms: int = 10_000
    slow_ms: int = 1000
    slow_probes: int = 2
    slow_recoveries: int = 3
    strike_window_ms: int = 60_000
    host_window_ms: int = 1000
    host_settle_ms: int = 500
    late_episodes: int = 3
    late_window_ms: int = 60_000
    sample_gap_ms: int = 400
    full_probe_every: int = 10

    @property
    def notice_ms(self) -> int:
        """Silence of a device from which on it is worth a probe and a suspicion."""
        return self.probe_timeout_ms // 4

    def hung_after_ms(self, blockage: Blockage) -> int:
        """Silence that makes a device hung: the deadline, or twice the longest silence that this device has ended
        lately, up to ``blind_timeout_ms``; twice that when it may be two requests in a row."""
        requests = 2 if blockage.after_flush else 1
        lately_ms = min(2 * blockage.ended_ms * requests, self.blind_timeout_ms)
        return max(self.probe_timeout_ms * requests, lately_ms)

    @property
    def own_silence_ms(self) -> int:
        """Milliseconds that a request must have stood in one step itself before what others saw of its device counts as
        well.

        Somebody's single long request, or an in-flight count that a driver leaked, would condemn it else.
        """
        return self.probe_timeout_ms // 2


class DirectoryHealth(Struct, frozen=True):
    """Memory of the verdict about one directory.

    Attributes:
        health: the state.
        cause: why.
        since_ms: when it entered this state.
        trouble_ms: when it last became suspect of something that can end as failed; None while it has not.
        strikes: times of errors that were not confirmed, within ``strike_window_ms``.
        quick_probes: in a row, while slow.
        slow_probes: in a row.
        late: when the last late probes ended, one time for those in a row: as many as ``late_episodes``.
        was_late: whether the last probe was one of them.
        recurring: slow because of them, not of the last probes.
        blockage: the request that is not answered.
        unwatched_ms: since when no probe was possible.
        well_ms: when the last probe that succeeded began.
        confirmed: the cause of a failure that only a witness, or the settling time, is missing to.
        confirmed_ms: since when.
        damaged_ms: when damage was last reported, until ``strike_window_ms`` later.
    """

    health: Health = Health.ONLINE
    cause: Cause = Cause.NONE
    since_ms: int = 0
    trouble_ms: int | None = None
    strikes: tuple[int, ...] = ()
    quick_probes: int = 0
    slow_probes: int = 0
    late: tuple[int, ...] = ()
    was_late: bool = False
    recurring: bool = False
    blockage: Blockage | None = None
    unwatched_ms: int | None = None
    well_ms: int | None = None
    confirmed: Cause | None = None
    confirmed_ms: int = 0
    damaged_ms: int | None = None

    @property
    def in_trouble(self) -> bool:
        """Whether the directory is under a suspicion that can end as failed."""
        return self.health is Health.SUSPECT and self.cause not in (Cause.DAMAGE, Cause.UNWATCHED)

    def doubt(self, since_ms: int) -> str | None:
        """Reason not to trust what was read there since then, in words that follow the path; None: nothing speaks
        against it. Damage that its file system reports does not: it is there before and after."""
        if self.in_trouble:
            return f"is suspect ({self.cause})"
        return "had an error meanwhile" if any(at >= since_ms for at in self.strikes) else None

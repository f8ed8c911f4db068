"""Knowledge of a guard at one moment: the disks, the broker, the metadata. Pure.

The shell makes a :class:`Situation` (:mod:`.looking`), and the core decides from it and from nothing else
(:mod:`.core`).
"""

from collections.abc import Mapping

from msgspec import Struct

from kjbod.config.keys import Config
from kjbod.ids import Uuid
from kjbod_guard.majority import Quorum
from kjbod_guard.observing import Observed
from kjbod_host.health.state import Cause, Health


class Site(Struct, frozen=True, kw_only=True):
    """Configuration, as far as decisions depend on it.

    Attributes:
        node_id: of the broker.
        log_dirs: paths of its log directories, as configured.
        metadata_log_dir: path of the directory of the metadata log.
        evict: ``kjbod.guard.evict=auto``.
        fence_first: ``kjbod.guard.ladder=fence``.
        fence_brokers_max: ``kjbod.guard.fence.max.brokers``.
        cut_brokers_max: ``kjbod.guard.cut.max.brokers``.
        host_fault_timeout_ms: ``kjbod.guard.host.fault.timeout.ms``.
        failure_timeout_ms: ``log.dir.failure.timeout.ms``.
        min_isr: ``min.insync.replicas`` of the broker's file.
        demote: ``kjbod.guard.slow=demote``.
    """

    node_id: int = -1
    log_dirs: tuple[str, ...] = ()
    metadata_log_dir: str = ""
    evict: bool = True
    fence_first: bool = False
    fence_brokers_max: int = 1
    cut_brokers_max: int = 1
    host_fault_timeout_ms: int = 30_000
    failure_timeout_ms: int = 30_000
    min_isr: int = 1
    demote: bool = False

    @classmethod
    def of(cls, config: Config) -> "Site":
        """Return the site of a broker's file, with kjbod's own keys."""
        return cls(
            node_id=config.node_id,
            log_dirs=tuple(config.log_dirs),
            metadata_log_dir=config.metadata_log_dir,
            evict=config.kjbod_guard_evict == "auto",
            fence_first=config.kjbod_guard_ladder == "fence",
            fence_brokers_max=config.kjbod_guard_fence_max_brokers,
            cut_brokers_max=config.kjbod_guard_cut_max_brokers,
            host_fault_timeout_ms=config.kjbod_guard_host_fault_timeout_ms,
            failure_timeout_ms=config.log_dir_failure_timeout_ms,
            min_isr=config.min_insync_replicas,
            demote=config.kjbod_guard_slow == "demote",
        )


class Disk(Struct, frozen=True, kw_only=True):
    """The disk of a log directory.

    Attributes:
        path: of the directory, as configured.
        directory_id: id that was read there, or is known from memory; None: not known.
        health: the verdict; None: the directory is not watched.
        cause: cause of the verdict.
        in_trouble: whether a suspicion is open that may end in the verdict failed.
        failed_ms: monotonic time of the verdict failed; None: it has not failed.
        bad_ms: monotonic time since when the disk stands still, or answers nothing but errors. Each completed request
            restarts that time.
        over: why the failure may be over, in words; None: nothing shows that.
        kept: why the failed mount is not the broker's mount, in words; None: it is.
        unidentified: whether only ``meta.properties`` is missing or changed, and the disk answers.
        unread: whether the directory is known only from memory, and has not answered since.
        errors: whether it answers EIO, like a file system that was shut down, so that no thread waits there.
        masked: whether it is not watched because of a mask from an earlier guard.
        elsewhere: whether the path leads to another mount than when it was read.
        file_system: ``"ext4"``; None: not known.
        shared: why its file system may not be shut down, in words; None: it carries nothing but log directories.
        beside: paths of other directories on its file system.
        shares: paths of directories on the same device, including the directories on its file system.
        cut_after_ms: ``kjbod.guard.cut.after.ms``, or its default for this medium.
        medium: medium that decides the default, as ``"flash"``; empty: the time is configured.
    """

    path: str
    directory_id: Uuid | None = None
    health: Health | None = None
    cause: Cause = Cause.NONE
    in_trouble: bool = False
    failed_ms: int | None = None
    bad_ms: int = 0
    over: str | None = None
    kept: str | None = None
    unidentified: bool = False
    unread: bool = False
    errors: bool = False
    masked: bool = False
    elsewhere: bool = False
    file_system: str | None = None
    shared: str | None = None
    beside: frozenset[str] = frozenset()
    shares: frozenset[str] = frozenset()
    cut_after_ms: int = 10_000
    medium: str = ""

    @property
    def is_known_well(self) -> bool:
        """Whether the disk is known to be healthy. A frozen file system proves nothing: a blocked adapter looks the
        same."""
        return self.health not in (None, Health.FAILED, Health.HELD) and not self.in_trouble

    @property
    def serves(self) -> bool:
        """Whether the disk is known to be healthy, regardless of the owner of the directory."""
        return self.is_known_well or self.unidentified

    @property
    def is_late(self) -> bool:
        """Whether threads of the broker may wait for this disk: it has failed, is slow, held or suspected."""
        return self.health in (Health.SUSPECT, Health.FAILED, Health.SLOW, Health.HELD) or self.in_trouble

    @property
    def is_well(self) -> bool:
        """Whether the directory has been read, and has not failed."""
        return self.health not in (None, Health.FAILED) and not self.unread


class Situation(Struct, frozen=True, kw_only=True):
    """All facts that are known at one moment.

    Attributes:
        now_ms: monotonic time.
        wall_ms: wall clock, for texts.
        disks: of all configured directories, by path.
        observed: the metadata, as far as they were read.
        blind: why the metadata are not followed; None: they are.
        answered_ms: time of the last request to a controller whose answer is applied; None: no answer yet.
        unbound: why the broker of this file was not found; None: it was found.
        looked: whether it is known which process holds the log directories, if any.
        pid: of the broker's process; None: there is none.
        told: whether the privileged helper was told that this process is the broker.
        ended_pid: pid of the broker's process that has ended, as the kernel reported.
        may_evict: whether the guard has ALTER on the cluster, and its journal can be written, as far as it is known.
        no_helper: why the privileged helper cannot act on this host, in words; None: it can, or the guard observes.
        quorum: of the controllers, as far as it is known; None: the node is no controller.
        stuck: proof by a thread that the broker is stuck, in words; None: there is none.
        waits: whether any thread of the broker still waits for a disk that the guard acted on.
        silent: sign in the broker's answers that it is stuck, in words; None: there is none.
    """

    now_ms: int
    wall_ms: int = 0
    disks: Mapping[str, Disk]
    observed: Observed
    blind: str | None = None
    answered_ms: int | None = None
    unbound: str | None = None
    looked: bool = True
    pid: int | None = None
    told: bool = True
    ended_pid: int | None = None
    may_evict: bool = True
    no_helper: str | None = None
    quorum: Quorum | None = None
    stuck: str | None = None
    waits: bool = False
    silent: str | None = None

    @property
    def unsure(self) -> str | None:
        """Reason why the metadata do not justify an action, in words: they are not followed, or the picture of them is
        incomplete (:mod:`kjbod.metadata.newer`). None: there is no such reason."""
        return self.blind or self.observed.incomplete

"""Prospects of a directory: what may be done about it now, for a guard that observes and for one that acts. Pure.

It adds to a :class:`.ladder.Case` what :mod:`.budget` says of it, and what only time tells: how long no disk has been
well, since when Kafka has it offline, and whether a failure is overdue.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace

from kjbod.config.keys import Config
from kjbod.ids import Uuid
from kjbod.quick_dataclass import dataclass
from kjbod_agent.guard import majority
from kjbod_agent.guard.budget import (
    EVICT_WITHIN_MS,
    NO_EVICTIONS,
    Evictions,
    FenceCase,
    demotions,
    evictions,
    sole_copies,
    why_not_fence,
)
from kjbod_agent.guard.directory_steps import Standing
from kjbod_agent.guard.ladder import Case, KafkaView
from kjbod_agent.guard.majority import Quorum
from kjbod_agent.guard.observing import Key, Observed
from kjbod_agent.health.state import DirectoryHealth, Health


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Configuration, as far as it counts here.

    Attributes:
        evict: ``kjbod.guard.evict=auto``.
        fence_first: ``kjbod.guard.ladder=fence``.
        brokers_max: ``kjbod.guard.fence.max.brokers``.
        host_fault_timeout_ms: ``kjbod.guard.host.fault.timeout.ms``.
        failure_timeout_ms: ``log.dir.failure.timeout.ms``.
        min_isr: ``min.insync.replicas`` of the broker's file.
        demote: ``kjbod.guard.slow=demote``.
    """

    evict: bool = True
    fence_first: bool = False
    brokers_max: int = 1
    host_fault_timeout_ms: int = 30_000
    failure_timeout_ms: int = 30_000
    min_isr: int = 1
    demote: bool = False

    @classmethod
    def of(cls, config: Config) -> "Site":
        """The site of a broker's file, with kjbod's own keys."""
        return cls(
            evict=config.kjbod_guard_evict == "auto",
            fence_first=config.kjbod_guard_ladder == "fence",
            brokers_max=config.kjbod_guard_fence_max_brokers,
            host_fault_timeout_ms=config.kjbod_guard_host_fault_timeout_ms,
            failure_timeout_ms=config.log_dir_failure_timeout_ms,
            min_isr=config.min_insync_replicas,
            demote=config.kjbod_guard_slow == "demote",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """Circumstances of all directories at this moment.

    Attributes:
        observed: the metadata, as far as they were read.
        healthy: ids of directories whose disks have not failed.
        blind: why the metadata are not followed; None: they are.
        no_hand: why the broker could not be killed, in words; None: it could be.
        last_fence_ms: when the broker was given up last, in an earlier epoch.
        quorum: of the controllers, as far as it is known; None: the node is no controller.
        claimed_at: offset in the metadata of the fence that the guard has claimed; None: it has not.
        now_ms: monotonic time.
    """

    observed: Observed
    healthy: Collection[Uuid]
    blind: str | None = None
    no_hand: str | None = None
    last_fence_ms: int | None = None
    quorum: Quorum | None = None
    claimed_at: int | None = None
    now_ms: int = 0


@dataclass(slots=True)
class Prospects:
    """Memory of the directories, by path."""

    site: Site
    _alone: dict[str, int] = field(default_factory=dict)
    """Since when no other disk was well, nor answered again."""
    _online: set[str] = field(default_factory=set)
    """Directories that Kafka was seen to have online."""
    _offline: dict[str, int] = field(default_factory=dict)
    """Since when it has not."""

    def seen(self, path: str, view: KafkaView, now_ms: int) -> None:
        """The metadata show a directory so."""
        if view is KafkaView.ONLINE:
            self._online.add(path)
            self._offline.pop(path, None)
        elif view is KafkaView.OFFLINE and path in self._online:
            self._online.discard(path)
            self._offline[path] = now_ms

    def resumed(self, before: Mapping[str, Standing]) -> None:
        """Take up what a guard before us saw: directories that went offline, and such as were online a moment ago, of
        which the metadata may show the contrary to nobody but us."""
        for path, standing in before.items():
            if standing.offline_ms is not None:
                self._offline[path] = standing.offline_ms
            elif standing.seen_online:
                self._online.add(path)

    def registered_anew(self) -> None:
        """The broker has started again: nobody waits for what it started without."""
        self._offline.clear()
        self._online.clear()

    def evictions(self, path: str, directory_id: Uuid | None, now: Now) -> Evictions:
        """Partitions of a directory that the broker may leave, and that wait for it."""
        offline_ms = self._offline.get(path)
        waits = offline_ms is not None and now.now_ms - offline_ms < EVICT_WITHIN_MS
        if directory_id is None or not waits or not self.site.evict:
            return NO_EVICTIONS
        return evictions(now.observed, directory_id, self.site.min_isr)

    def demotions(
        self, case: Case, directory_id: Uuid | None, now: Now
    ) -> Mapping[Key, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Replica lists of partitions in a slow directory that others may lead, as they are and as they are to be."""
        if not self.site.demote or case.health is not Health.SLOW or directory_id is None or now.blind is not None:
            return {}
        return demotions(now.observed, directory_id) if case.others_quick else {}

    def why_not_fence(self, now: Now, *, proven: bool = False) -> str | None:
        """Reason why the broker may not be given up now; None: it may."""
        if now.no_hand is not None:
            return now.no_hand
        site = self.site
        case = FenceCase(
            healthy=now.healthy,
            static_min_isr=site.min_isr,
            brokers_max=site.brokers_max,
            last_fence_ms=now.last_fence_ms,
            claimed_at=now.claimed_at,
            voters=() if now.quorum is None else now.quorum.voters.keys(),
            needed=None if now.quorum is None else majority.why_needed(now.quorum, now.observed.broker_id, now.now_ms),
            proven=proven,
            now_ms=now.now_ms,
        )
        return why_not_fence(now.observed, case)

    def of(
        self,
        case: Case,
        path: str,
        directory_id: Uuid | None,
        now: Now,
        *,
        failed_ms: int | None,
        unrecorded: bool,
        beside: Collection[Uuid] = (),
    ) -> Case:
        """The case of a directory with what may be done about it.

        Args:
            case: what is known of it.
            path: as configured.
            directory_id: its id, where it is known.
            now: what holds for all.
            failed_ms: when it failed; None: it has not.
            unrecorded: whether something was done about it that the metadata do not show.
            beside: ids of the other directories on its file system, which a cut takes along.
        """
        answers = case.others_well or case.others_answer or case.outlived is not None
        alone = case.health is Health.FAILED and not answers
        since_ms = self._alone.setdefault(path, now.now_ms) if alone else now.now_ms
        if not alone:
            self._alone.pop(path, None)
        overdue = self._overdue(directory_id, now, failed_ms, unrecorded)
        found = self.evictions(path, directory_id, now)
        return replace(
            case,
            sole_copies=sum(sole_copies(now.observed, one) for one in (directory_id, *beside) if one is not None),
            evictable=len(found.before),
            demotable=len(self.demotions(case, directory_id, now)),
            not_evicted=found.refusal,
            overdue=overdue,
            lasted=alone and now.now_ms - since_ms >= self.site.host_fault_timeout_ms,
            fence_first=self.site.fence_first,
            not_fenced=self.why_not_fence(now, proven=overdue is not None),
            undecided=now.quorum is not None and majority.is_undecided(now.quorum, now.now_ms),
        )

    def _overdue(self, directory_id: Uuid | None, now: Now, failed_ms: int | None, unrecorded: bool) -> str | None:
        if failed_ms is None or directory_id is None or not (now.blind or unrecorded):
            return None
        if not now.observed.complete:  # who led in the past says nothing of who leads
            return None
        led = sum(1 for one in now.observed.partitions.values() if one.leads and one.directory == directory_id)
        if not led or now.now_ms - failed_ms < self.site.failure_timeout_ms:
            return None
        why = f"no controller answers ({now.blind})" if now.blind else "the metadata do not show it"
        timeout = f"log.dir.failure.timeout.ms={self.site.failure_timeout_ms}"
        return f"{led} partitions are led there, and {why} within {timeout}"


def is_well(health: DirectoryHealth) -> bool:
    """Whether a disk is known to be well. Of one that is held nobody knows: an adapter that lets nothing through looks
    like that."""
    return health.health not in (Health.FAILED, Health.HELD) and not health.in_trouble


def waits_for_host(disks: Iterable[DirectoryHealth], cases: Iterable[Case]) -> bool:
    """Whether no disk of the broker is known to be well, and not for long enough (``lasted``): it may be the adapter.
    What is stuck or silent then waits for it as the disks do, and proves nothing about the broker.

    Args:
        disks: of the log directories.
        cases: of the directories that have failed.
    """
    found = list(disks)
    if any(map(is_well, found)) or not any(one.health is Health.FAILED for one in found):
        return False
    return not any(case.lasted for case in cases)

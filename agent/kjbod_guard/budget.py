"""Limits on a guard's actions at this moment; each function returns the reason for a refusal in one line. Pure.

An action against one disk must not cost more than the disk. So each action is checked against the metadata: the copies
of the partitions (:mod:`.copies`), and the other brokers (:mod:`.suspects`).

==============  =====================================================================================================
shut down,      only where each partition of the file system keeps ``min.insync.replicas`` copies that count; after the
over-mount,     record of this guard, with fewer than ``kjbod.guard.cut.max.brokers`` other brokers in trouble; never
report          the last directory of the broker
evict           by partition: nobody reassigns it, ``min.insync.replicas`` copies count, no replica was elected that was
                not in sync, this broker has not left it yet, and the controllers take the list without this broker
                (:func:`why_list_refused`). Only within :data:`EVICT_WITHIN_MS` after the directory went offline: then
                no leader waits for the broker any more. ``kjbod.guard.evict=never``: never
demote          by partition: nobody reassigns it, a copy that counts can lead, and the controllers take the list. Only
                while another disk of this broker is healthy and not slow: else it may be the host
fence           each partition of which this broker is in the ISR keeps ``min.insync.replicas`` copies that count; a
                controller has answered within :data:`ANSWERED_MS`; fewer than ``kjbod.guard.fence.max.brokers`` other
                brokers are in trouble; once in :data:`FENCE_AGAIN_MS`; not a node that is a controller too and without
                which its quorum has no majority (:mod:`.majority`)
==============  =====================================================================================================
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from kjbod.ids import Uuid
from kjbod_guard import suspects
from kjbod_guard.copies import copies, need
from kjbod_guard.observing import Key, Observed, Placed
from kjbod_guard.suspects import Suspects

EVICT_WITHIN_MS: Final = 30_000
"""Kafka's default of ``replica.lag.time.max.ms``: how long a leader waits for a replica that was caught up."""
FENCE_AGAIN_MS: Final = 600_000
ANSWERED_MS: Final = 3_000
"""Maximum age of a controller's last answer for a fence. After a fence the controller must elect new leaders."""
FRESH_MS: Final = 1_500
"""Maximum age of a controller's last answer for a file-system shutdown. An idle observer gets an answer each 0.5 s."""


# ------------------------------------------------------------------------------------------------- the other brokers


def why_behind(observed: Observed, offset: int | None, brokers_max: int, key: str, now_ms: int, *, fences: bool) -> str:
    """Return why other brokers come first, in words; empty: this one may go on.

    Args:
        observed: the metadata.
        offset: of this guard's own record; None: it has none yet.
        brokers_max: brokers in trouble at a time, this one included.
        key: the configuration key of that limit, for the text.
        now_ms: monotonic time.
        fences: whether brokers that were fenced a short while ago count too.
    """
    if brokers_max < 1:
        return f"{key}={brokers_max}"
    if observed.known_ms is None or now_ms - observed.known_ms < suspects.LOST_MS:
        return f"the metadata of the last {suspects.LOST_MS // 1000} s are not known: the guard has just started"
    ahead = suspects.ahead(observed.suspects, observed.neighbours, offset, now_ms, fences=fences)
    if len(ahead) < brokers_max:
        other = None if fences else suspects.answered(observed.trusted, observed.neighbours, now_ms)
        return "" if other is None else f"a disk of broker {other} answered again a moment ago: this one may as well"
    return (
        f"broker {', '.join(map(str, ahead))} lost a directory or is about to, "
        f"within {suspects.AHEAD_MS // 1000} s ({key}={brokers_max})"
    )


# ------------------------------------------------------------------------------------------------------------ evictions


def why_stays(placed: Placed) -> str | None:
    """Return why the broker may not leave a partition, regardless of other copies; None: no such reason."""
    if placed.adding or placed.removing:
        return "being reassigned by somebody"
    if len(placed.replicas) == 1:
        return "no other replica"
    if placed.unclean:
        return "an election was unclean: this copy may have records that the leader lost"
    return None


def why_no_eviction_follows(observed: Observed, placed: Placed) -> str | None:
    """Return why a directory with this partition is masked and not cut; None: it may be cut. Without an eviction after
    a cut, the leader would take the copy back into the ISR."""
    if len(placed.replicas) == 1:
        return None
    return why_stays(placed) or why_list_refused(observed, _without_us(observed, placed))


def _without_us(observed: Observed, placed: Placed) -> tuple[int, ...]:
    return tuple(one for one in placed.replicas if one != observed.broker_id)


def barred(observed: Observed, brokers: Iterable[int]) -> frozenset[int]:
    """Return the brokers for which controllers may refuse a replica list: they are not registered, or all their
    directories are cordoned."""
    named = tuple(brokers)
    return frozenset((*observed.cordoned(named), *observed.unregistered(named)))


def why_list_refused(observed: Observed, brokers: Iterable[int]) -> str | None:
    """Return why the controllers refuse a replica list, in words; None: no reason is known
    (``ReplicationControlManager.validateManualPartitionAssignment``)."""
    named = tuple(brokers)
    if gone := observed.unregistered(named):
        return f"the controllers refuse a list with broker {gone[0]}, which is not registered"
    return why_cordoned(observed, named)


def why_cordoned(observed: Observed, brokers: Iterable[int]) -> str | None:
    """Return why the controllers refuse a replica list with a cordoned broker; None: they do not refuse it for that."""
    if observed.refuses_cordoned and (cordoned := observed.cordoned(brokers)):
        return f"the controllers refuse a list with broker {cordoned[0]}, whose directories are all cordoned"
    return None


def why_not_evict(observed: Observed, key: Key, static_min_isr: int, known: Mapping[int, Suspects]) -> str | None:
    """Return why the broker may not leave a partition; None: it may."""
    placed = observed.partitions[key]
    stays = why_stays(placed) or why_list_refused(observed, _without_us(observed, placed))
    if stays is not None:
        return stays
    others = len(copies(observed, placed, known))
    if others == 0:
        return "no other copy in sync"
    wanted = observed.min_insync_replicas(key[0], static_min_isr)
    return "fewer other copies in sync than min.insync.replicas" if others < wanted else None


class Evictions(Struct, frozen=True):
    """Partitions of a directory that the broker may leave.

    Attributes:
        before: their replica lists as they are, by key.
        refused: number of partitions that the broker may not leave, by reason.
    """

    before: Mapping[Key, tuple[int, ...]]
    refused: Mapping[str, int]

    @property
    def refusal(self) -> str | None:
        """Reasons why the broker may not leave the other partitions, in words."""
        if not self.refused:
            return None
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.refused.items()))
        return f"not evicted: {reasons}"


NO_EVICTIONS: Final = Evictions({}, {})


def evictions(observed: Observed, directory_id: Uuid, static_min_isr: int) -> Evictions:
    """Return the partitions of a directory that the broker may leave now."""
    known = suspects.current(observed.suspects, observed.neighbours)
    before: dict[Key, tuple[int, ...]] = {}
    refused: Counter[str] = Counter()
    for key, placed in observed.partitions.items():
        if placed.directory == directory_id:
            reason = why_not_evict(observed, key, static_min_isr, known)
            if reason is None:
                before[key] = placed.replicas
            else:
                refused[reason] += 1
    return Evictions(before, refused)


def restorations(observed: Observed, evicted: Mapping[Key, tuple[int, ...]]) -> Mapping[Key, tuple[int, ...]]:
    """Return the partitions that are unchanged since their eviction, with their replica lists from before it."""
    return {
        key: before
        for key, before in evicted.items()
        if (now := observed.others.get(key)) is not None
        and now.replicas == tuple(one for one in before if one != observed.broker_id)
        and not now.adding
        and not now.removing
    }


# ---------------------------------------------------------------------------------------------------------- leadership


def demoted(observed: Observed, placed: Placed, known: Mapping[int, Suspects]) -> tuple[int, ...] | None:
    """Return the replica list with another broker first and this broker last; None: no other broker may lead, or this
    broker neither leads nor is the preferred leader."""
    broker_id = observed.broker_id
    leads = placed.leads or placed.replicas[:1] == (broker_id,)
    others = [one for one in placed.replicas if one != broker_id]
    counted = copies(observed, placed, known)
    first = next((one for one in others if one in counted), None)
    if not leads or first is None or len(others) == len(placed.replicas) or placed.adding or placed.removing:
        return None
    if why_list_refused(observed, placed.replicas) is not None:
        return None
    return (first, *(one for one in others if one != first), broker_id)


def demotions(observed: Observed, directory_id: Uuid) -> Mapping[Key, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the present and the new replica lists of partitions in a directory that other brokers may lead."""
    known = suspects.current(observed.suspects, observed.neighbours)
    found = {
        key: (placed.replicas, demoted(observed, placed, known))
        for key, placed in observed.partitions.items()
        if placed.directory == directory_id
    }
    return {key: (before, after) for key, (before, after) in found.items() if after is not None}


def promotions(
    observed: Observed, left: Mapping[Key, tuple[tuple[int, ...], tuple[int, ...]]]
) -> Mapping[Key, tuple[int, ...]]:
    """Return the original replica lists that may be restored now.

    These are lists unchanged since the demotion, whose preferred leader is in sync. Restored lists count as well while
    this broker does not lead again: a guard was killed before the election.

    Args:
        observed: the metadata.
        left: lists before and after the demotion.
    """
    return {
        key: before
        for key, (before, after) in left.items()
        if (now := observed.partitions.get(key)) is not None
        and (now.replicas == after or (now.replicas == before and not is_back(now, before, observed.broker_id)))
        and before[0] in now.isr
        and not now.adding
        and not now.removing
    }


def is_back(now: Placed, before: tuple[int, ...], broker_id: int) -> bool:
    """Whether a partition is as it was before its demotion."""
    return now.replicas == before and (now.leads or before[0] != broker_id)


# --------------------------------------------------------------------------------------------------------------- fence


class FenceCase(Struct, frozen=True, kw_only=True):
    """Facts that decide whether a broker may be fenced.

    Attributes:
        static_min_isr: ``min.insync.replicas`` of its file.
        brokers_max: ``kjbod.guard.fence.max.brokers``.
        offset: of this guard's own record; None: it has none yet.
        last_fence_ms: when the broker was fenced last, on the clock of ``now_ms``; None: never.
        needed: why the quorum needs this process, which is a controller too; None: it does not.
        answered_ms: time of the last request that a controller has answered; None: no controller has answered.
        now_ms: the time.
    """

    static_min_isr: int = 1
    brokers_max: int = 1
    offset: int | None = None
    last_fence_ms: int | None = None
    needed: str | None = None
    answered_ms: int | None = None
    now_ms: int = 0


def why_not_fence(observed: Observed, case: FenceCase) -> str | None:
    """Return why the broker may not be fenced now, in one line; None: it may."""
    if case.answered_ms is None or case.now_ms - case.answered_ms > ANSWERED_MS:
        return "no controller answers, and none could move a leader"
    if case.needed is not None:
        return case.needed
    if case.last_fence_ms is not None and case.now_ms - case.last_fence_ms < FENCE_AGAIN_MS:
        ago_s = (case.now_ms - case.last_fence_ms) // 1000
        return f"it was fenced {ago_s} s ago, and once in {FENCE_AGAIN_MS // 60_000} minutes is enough"
    key = "kjbod.guard.fence.max.brokers"
    if behind := why_behind(observed, case.offset, case.brokers_max, key, case.now_ms, fences=True):
        return behind
    return need(observed, None, case.static_min_isr).refusal

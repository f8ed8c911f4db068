"""Limits of a guard: what it may do at this moment, and why not, in one line. Pure.

A means that helps against one disk must not cost more than the disk. So each is held against what the metadata say of
the partitions here and of the other brokers:

==========  =========================================================================================================
cut         only where no partition has its only in-sync replica there (the file system's part of the question is
            :mod:`.surroundings`): what was acknowledged and not yet written back is lost with a cut
evict       only a partition that nobody is reassigning, that this broker has not left yet, and that keeps
            ``min.insync.replicas`` in sync without it; only within :data:`EVICT_WITHIN_MS` after the directory went
            offline, since then no leader waits for it any more; ``kjbod.guard.evict=never`` never
demote      only a partition that nobody is reassigning and that another broker can lead, which is in sync; not where
            another disk of this broker is not known to be quick: then it may be the host
fence       only where no partition on a disk that is well loses its last in-sync replica or gets fewer than its
            ``min.insync.replicas``, unless the broker is proven to be stuck, and serves nobody; no more than
            ``kjbod.guard.fence.max.brokers`` brokers at a time, ours included, of those that were fenced or lost a
            directory within :data:`NEIGHBOUR_MS`; once in :data:`FENCE_AGAIN_MS`; not a node that is a controller too
            and without which its quorum has no majority (:mod:`.majority`), nor one that claims it after another one
==========  =========================================================================================================
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from kjbod.ids import Uuid
from kjbod.quick_dataclass import dataclass
from kjbod_agent.guard.observing import RIVAL_MS, Key, Neighbour, Observed, Placed

EVICT_WITHIN_MS: Final = 30_000
"""Kafka's default of ``replica.lag.time.max.ms``: so long a leader waits for a replica that was caught up."""
NEIGHBOUR_MS: Final = 60_000
FENCE_AGAIN_MS: Final = 600_000
TURN_MS: Final = 100
"""Between two brokers that want the same at the same time: more than a round trip to the controllers."""
TURNS: Final = 5
"""By how many places a broker waits at most."""


# ------------------------------------------------------------------------------------------------------------ replicas


def sole_copies(observed: Observed, directory_id: Uuid) -> int:
    """Partitions of which the only replica in sync lies in this directory."""
    ours = (observed.broker_id,)
    return sum(1 for placed in observed.partitions.values() if placed.directory == directory_id and placed.isr == ours)


def why_not_evict(placed: Placed, broker_id: int, min_isr: int) -> str | None:
    """Reason why the broker may not leave a partition; None: it may."""
    if broker_id not in placed.replicas:
        return "evicted already"
    if placed.adding or placed.removing:
        return "being reassigned by somebody"
    if len(placed.replicas) == 1:
        return "no other replica"
    others = len([one for one in placed.isr if one != broker_id])
    if others == 0:
        return "no other replica in sync"
    return "fewer than min.insync.replicas in sync without it" if others < min_isr else None


@dataclass(frozen=True, slots=True)
class Evictions:
    """Partitions of a directory that the broker may leave.

    Attributes:
        before: their replica lists as they are, by key.
        refused: how many may not be left, by reason.
    """

    before: Mapping[Key, tuple[int, ...]]
    refused: Mapping[str, int]

    @property
    def refusal(self) -> str | None:
        """Reasons for those that may not be left, in words."""
        if not self.refused:
            return None
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.refused.items()))
        return f"not evicted: {reasons}"


NO_EVICTIONS: Final = Evictions({}, {})


def evictions(observed: Observed, directory_id: Uuid, static_min_isr: int) -> Evictions:
    """Partitions of a directory that the broker may leave now."""
    before: dict[Key, tuple[int, ...]] = {}
    refused: Counter[str] = Counter()
    for key, placed in observed.partitions.items():
        if placed.directory == directory_id:
            min_isr = observed.min_insync_replicas(key[0], static_min_isr)
            reason = why_not_evict(placed, observed.broker_id, min_isr)
            if reason is None:
                before[key] = placed.replicas
            else:
                refused[reason] += 1
    return Evictions(before, refused)


def turn_ms(observed: Observed, now_ms: int) -> int:
    """Wait of an eviction for those of brokers that lost a directory lately. Each tells the controllers whole
    replica lists, so that of two within one round trip the second one would put the first broker back."""
    if not troubled_neighbours(observed.neighbours, now_ms):
        return 0
    place = sorted({*observed.neighbours, observed.broker_id}).index(observed.broker_id)
    return (min(place, TURNS) + 1) * TURN_MS


def restorations(observed: Observed, evicted: Mapping[Key, tuple[int, ...]]) -> Mapping[Key, tuple[int, ...]]:
    """Of what was evicted (the lists as they were) that which is still as we left it, and may be put back."""
    return {
        key: before
        for key, before in evicted.items()
        if (now := observed.others.get(key)) is not None
        and now.replicas == tuple(one for one in before if one != observed.broker_id)
        and not now.adding
        and not now.removing
    }


# ---------------------------------------------------------------------------------------------------------- leadership


def demoted(placed: Placed, broker_id: int) -> tuple[int, ...] | None:
    """The replica list in which another broker leads, one that is in sync, and this one comes last; None: nobody may,
    or it leads nothing there and would not."""
    leads = placed.leads or placed.replicas[:1] == (broker_id,)
    others = [one for one in placed.replicas if one != broker_id]
    first = next((one for one in others if one in placed.isr), None)
    if not leads or first is None or len(others) == len(placed.replicas) or placed.adding or placed.removing:
        return None
    return (first, *(one for one in others if one != first), broker_id)


def demotions(observed: Observed, directory_id: Uuid) -> Mapping[Key, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Replica lists of partitions in a directory that others may lead, as they are and as they are to be."""
    found = {
        key: (placed.replicas, demoted(placed, observed.broker_id))
        for key, placed in observed.partitions.items()
        if placed.directory == directory_id
    }
    return {key: (before, after) for key, (before, after) in found.items() if after is not None}


def promotions(
    observed: Observed, left: Mapping[Key, tuple[tuple[int, ...], tuple[int, ...]]]
) -> Mapping[Key, tuple[int, ...]]:
    """Of lists as they were and as they were left, those as they were that may be put back now: still as they were
    left, and with a preferred leader that is in sync. Also those that are back, where this broker is to lead again and
    does not: a guard was killed before it had it elected."""
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
    """Whether a partition is as it was before others were made to lead it."""
    return now.replicas == before and (now.leads or before[0] != broker_id)


# --------------------------------------------------------------------------------------------------------------- fence


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceCase:
    """A broker, and what its end would cost.

    Attributes:
        healthy: its online directories whose disks have not failed.
        static_min_isr: ``min.insync.replicas`` of its file.
        brokers_max: ``kjbod.guard.fence.max.brokers``.
        last_fence_ms: when it was fenced last, on the clock of ``now_ms``; None: never.
        claimed_at: offset in the metadata of the fence that the guard has claimed; None: it has not.
        voters: node ids of the quorum, where it is a controller too.
        needed: why the quorum needs this process, which is a controller too; None: it does not.
        proven: whether the broker is proven to be stuck.
        now_ms: the time.
    """

    healthy: Collection[Uuid]
    static_min_isr: int = 1
    brokers_max: int = 1
    last_fence_ms: int | None = None
    claimed_at: int | None = None
    voters: Collection[int] = ()
    needed: str | None = None
    proven: bool = False
    now_ms: int = 0


def why_not_fence(observed: Observed, case: FenceCase) -> str | None:
    """Reason why the broker may not be given up now, in one line; None: it may."""
    if case.needed is not None:
        return case.needed
    if case.last_fence_ms is not None and case.now_ms - case.last_fence_ms < FENCE_AGAIN_MS:
        ago_s = (case.now_ms - case.last_fence_ms) // 1000
        return f"it was fenced {ago_s} s ago, and once in {FENCE_AGAIN_MS // 60_000} minutes is enough"
    if case.brokers_max < 1:
        return "kjbod.guard.fence.max.brokers=0"
    if case.voters and observed.complete_ms is not None and case.now_ms - observed.complete_ms < RIVAL_MS:
        return f"whether another controller's node is being given up is not known for the first {RIVAL_MS // 1000} s"
    troubled = troubled_neighbours(observed.neighbours, case.now_ms, case.voters, case.claimed_at)
    if len(troubled) + 1 > case.brokers_max:
        named = ", ".join(map(str, troubled))
        return (
            f"broker {named} was fenced or lost a directory within {NEIGHBOUR_MS // 1000} s "
            f"(kjbod.guard.fence.max.brokers={case.brokers_max})"
        )
    if first := rivals(observed.neighbours, case.voters, case.claimed_at, case.now_ms):
        return f"broker {', '.join(map(str, first))}, a controller too, was to be fenced first"
    return None if case.proven else _why_missed(observed, case)


def troubled_neighbours(
    neighbours: Mapping[int, Neighbour], now_ms: int, voters: Collection[int] = (), claimed_at: int | None = None
) -> list[int]:
    """Brokers that were fenced or lost a directory a short while ago; ``claimed_at``: voters only if they were fenced
    before our own fence, which is at that offset in the metadata."""

    def lately(at_ms: int | None) -> bool:
        return at_ms is not None and now_ms - at_ms < NEIGHBOUR_MS

    def before_us(one: int, its: Neighbour) -> bool:
        return claimed_at is None or one not in voters or its.fenced_at < claimed_at

    return sorted(
        one
        for one, its in neighbours.items()
        if lately(its.lost_ms) or (its.fenced and lately(its.fenced_ms) and before_us(one, its))
    )


def rivals(
    neighbours: Mapping[int, Neighbour], voters: Collection[int], claimed_at: int | None, now_ms: int
) -> list[int]:
    """Voters whose brokers were fenced so lately that the quorum does not show yet what has become of them; also some
    that have unfenced themselves. ``claimed_at``: before our own fence, which is at that offset."""
    return sorted(
        one
        for one, its in neighbours.items()
        if one in voters
        and its.fenced_ms is not None
        and (claimed_at is None or its.fenced_at < claimed_at)
        and now_ms - its.fenced_ms < RIVAL_MS
    )


def _why_missed(observed: Observed, case: FenceCase) -> str | None:
    """Reason why partitions on healthy disks need the broker."""
    sole: list[str] = []
    short: list[str] = []
    for key, placed in observed.partitions.items():
        if placed.directory not in case.healthy or observed.broker_id not in placed.isr:
            continue
        others = len(placed.isr) - 1
        if others == 0:
            sole.append(_name(observed, key))
        elif others < observed.min_insync_replicas(key[0], case.static_min_isr):
            short.append(_name(observed, key))
    if sole:
        return f"{_named(sole)} would lose {_their(sole)} last replica in sync"
    if short:
        return f"{_named(short)} would have fewer than {_their(short)} min.insync.replicas in sync"
    return None


def _name(observed: Observed, key: Key) -> str:
    return f"{observed.topics.get(key[0], key[0])}-{key[1]}"


def _named(names: Iterable[str]) -> str:
    found = sorted(names)
    return found[0] if len(found) == 1 else f"{len(found)} partitions ({found[0]} is one)"


def _their(names: Collection[str]) -> str:
    return "its" if len(names) == 1 else "their"

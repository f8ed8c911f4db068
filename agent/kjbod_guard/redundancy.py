"""Missing redundancy of a broker's partitions, by the metadata: for status, metrics and alerts. Pure.

An eviction makes replica lists shorter, so Kafka's own count of under-replicated partitions does not show the missing
replicas. The guard shows them at once.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from kjbod.ids import is_reserved
from kjbod.problems import Code
from kjbod.units import moment
from kjbod_guard.journal import Journal
from kjbod_guard.observing import Key, Observed, Placed
from kjbod_guard.retries import Refused

REPORT_EVERY_MS: Final = 10_000
"""Least time between two reports of changed counts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Needs:
    """Counts of the broker's partitions that lack replicas.

    Attributes:
        below_replication_factor: partitions from which the guard evicted the broker, and that are not restored.
        below_min_isr: partitions whose ISR is smaller than ``min.insync.replicas``.
        without_leader: partitions without a leader.
        in_sync_offline: partitions whose leader, another broker, counts the replica here as in sync while Kafka has its
            directory offline. A leader does not check directories when it puts a follower back into the ISR of an idle
            partition (``Partition.maybeExpandIsr``). The page cache of a cut disk is gone. No replica is missing, so
            this count causes no report.
        out_of_sync: replicas of the broker that are not in the ISR. Kafka may be copying them, so this count causes no
            report.
    """

    below_replication_factor: int
    below_min_isr: int
    without_leader: int
    in_sync_offline: int = dataclasses.field(default=0, compare=False)
    out_of_sync: int = dataclasses.field(default=0, compare=False)


class Reported(Struct, frozen=True):
    """Counts that the guard reported last.

    Attributes:
        needs: the counts.
        at_ms: monotonic time of that report; None: this run of the guard has reported none.
    """

    needs: Needs
    at_ms: int | None = None


CRITICAL: Final = frozenset({Code.NO_LEADER, Code.BELOW_MIN_ISR, Code.IN_SYNC_OFFLINE})
"""Problems from which clients suffer, or may lose records."""
NOTHING_REPORTED: Final = Reported(Needs(0, 0, 0))
"""State of a new run of a guard."""


def is_due(reported: Reported, found: Needs, now_ms: int) -> bool:
    """Return whether a report of the counts is due now.

    Args:
        reported: the last report.
        found: the counts at this moment.
        now_ms: monotonic time.
    """
    waits = reported.at_ms is not None and now_ms - reported.at_ms < REPORT_EVERY_MS
    return found != reported.needs and not waits


def evicted(journal: Journal, observed: Observed) -> list[Key]:
    """Return the partitions from which the broker was evicted and that are not restored, by the metadata."""
    return [key for key in journal.evicted if key not in observed.partitions and key[0] in observed.topics]


def needs(journal: Journal, observed: Observed, static_min_isr: int) -> Needs:
    """Return how many partitions lack replicas.

    Args:
        journal: has the evictions.
        observed: the metadata, which are followed.
        static_min_isr: ``min.insync.replicas`` of the broker's file.
    """
    short = leaderless = 0
    for key, placed in (*observed.partitions.items(), *observed.others.items()):
        wanted = observed.min_insync_replicas(key[0], static_min_isr)
        short += bool(placed.isr) and len(placed.isr) < min(wanted, len(placed.replicas) or wanted)
        leaderless += placed.leader < 0 and bool(placed.replicas)
    offline = sum(_is_in_sync_offline(observed, placed) for placed in observed.partitions.values())
    behind = sum(observed.broker_id not in placed.isr for placed in observed.partitions.values() if placed.isr)
    return Needs(len(evicted(journal, observed)), short, leaderless, offline, behind)


def _is_in_sync_offline(observed: Observed, placed: Placed) -> bool:
    online = () if observed.registration is None else observed.registration.log_dirs
    is_followed = placed.leader not in (-1, observed.broker_id) and observed.broker_id in placed.isr
    return is_followed and bool(online) and not is_reserved(placed.directory) and placed.directory not in online


def lines(journal: Journal, observed: Observed, lack: Needs) -> list[tuple[bool, str]]:
    """Return lines for people, each with whether it is critical; ``lack``: the counts of :func:`needs`."""
    return [(code in CRITICAL, text) for code, text in problems(journal, observed, lack)]


def problems(journal: Journal, observed: Observed, lack: Needs) -> list[tuple[Code, str]]:
    """Return the lines of :func:`lines` with their codes."""
    found: list[tuple[Code, str]] = []
    if lack.without_leader:
        found.append((Code.NO_LEADER, f"{_partitions(lack.without_leader)} {_have(lack.without_leader)} no leader"))
    if lack.below_min_isr:
        verb = "is" if lack.below_min_isr == 1 else "are"
        found.append((Code.BELOW_MIN_ISR, f"{_partitions(lack.below_min_isr)} {verb} below min.insync.replicas"))
    if lack.in_sync_offline:
        what, have = _partitions(lack.in_sync_offline), _have(lack.in_sync_offline)
        why = "in the ISR while Kafka has the directory offline: it may lack records there"
        todo = (
            "keep their leaders running, and take it out of their lists (kafka-reassign-partitions) before it restarts"
        )
        found.append((Code.IN_SYNC_OFFLINE, f"{what} {have} broker {observed.broker_id} {why}: {todo}"))
    groups: dict[tuple[int, int], list[int]] = {}
    for key in evicted(journal, observed):
        one, there = journal.evicted[key], observed.others.get(key)
        left = len(one.before) - 1 if there is None else len(there.replicas)
        groups.setdefault((left, len(one.before)), []).append(one.at_ms)
    for (left, of), times in sorted(groups.items()):
        what = f"{_partitions(len(times))} {_have(len(times))} {left} of {of} replicas"
        found.append(
            (Code.REPLICAS_EVICTED, f"{what} since {moment(min(times))}: the guard evicted broker {observed.broker_id}")
        )
    return found


def refusals(
    retries: Mapping[Key, Refused], journal: Journal, observed: Observed, now_ms: int, wall_ms: int
) -> list[dict[str, Any]]:
    """Return a row for each partition that the controllers refused, with their reason; the times are of one moment."""
    rows = []
    for key, one in retries.items():
        known = journal.evicted.get(key) or journal.demoted.get(key)
        topic = observed.topics.get(key[0]) or (str(key[0]) if known is None else known.topic)
        since_ms = wall_ms - (now_ms - one.since_ms)
        row = {"topic": topic, "partition": key[1], "means": one.means, "reason": one.reason, "since_ms": since_ms}
        rows.append(row | {"left": one.is_left})
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"

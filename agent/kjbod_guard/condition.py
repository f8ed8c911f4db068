"""The condition of a guard in one line, as that of an agent (:mod:`kjbod_agent.condition`). Pure.

=========  ============================================================================================================
CRITICAL   a disk has failed and Kafka has not noticed, or nobody knows whether it has; one does not answer and nothing
           can be done about it; no directory can be watched; the broker is lost, or must be fenced and may not be; a
           partition of this broker has no leader, or fewer replicas in sync than min.insync.replicas
DEGRADED   a directory is not online, for the guard or for Kafka, or is not watched; no broker runs here that is that of
           the file; the metadata are not followed, so nobody knows what Kafka has noticed; a guard that is to act lacks
           rights; the guard has evicted partitions, and they are not restored; the journal cannot be written; a guard
           that acted has left something that this one, which observes, does not undo; a certificate ends within a
           week, or its file cannot be used; metadata.version, or records of the metadata, are newer than kjbod knows
OK         none of these
=========  ============================================================================================================

A disk that has failed and answers again, as a new one does until three probes have passed, is DEGRADED and not
CRITICAL.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from kjbod_host.condition import ONLINE, Condition, Level


def condition(
    states: Mapping[str, str],
    *,
    unnoticed: Collection[str],
    unbound: str | None,
    blind: str | None,
    offline: Collection[str] = (),
    lost: str | None = None,
    unwritten: str = "",
    helpless: Collection[str] = (),
    uncertain: Collection[str] = (),
    answering: Collection[str] = (),
    unable: Collection[str] = (),
    redundancy: Collection[tuple[bool, str]] = (),
    left: str = "",
    certificates: Collection[str] = (),
    unknown: Collection[str] = (),
) -> Condition:
    """The condition.

    Args:
        states: a word for each directory, by path: of the verdict, or ``unwatched``.
        unnoticed: paths that have failed and that Kafka has online.
        unbound: why no broker is there for which to watch.
        blind: why the metadata are not followed.
        offline: paths that Kafka has offline.
        lost: why the broker is fenced, or must be and is not.
        unwritten: why the journal cannot be written.
        helpless: paths that are not watched since they do not answer, and that Kafka may work on.
        uncertain: paths that have failed, and of which nobody knows whether Kafka has noticed.
        answering: paths that have failed, and whose disk answers again.
        unable: what a guard that is to act cannot do, a line each.
        redundancy: lines about partitions that lack replicas, each with whether it is critical.
        left: what a guard before this one has done, and this one, which observes, does not undo.
        certificates: what is wrong with ours.
        unknown: what kjbod does not know of the metadata, a line each.
    """
    found = [(Level.CRITICAL, f"{path} has failed, and Kafka has not noticed") for path in sorted(unnoticed)]
    found += [
        (Level.CRITICAL, f"{path} has failed, and nobody knows whether Kafka has noticed") for path in sorted(uncertain)
    ]
    found += [
        (Level.CRITICAL, f"{path} does not answer, and nothing can be done about it until it does")
        for path in sorted(helpless)
    ]
    if states and all(word == "unwatched" for word in states.values()):
        found.append((Level.CRITICAL, "no log directory can be watched"))
    if lost is not None:
        found.append((Level.CRITICAL, lost))
    found += [(Level.CRITICAL if is_critical else Level.DEGRADED, text) for is_critical, text in redundancy]
    found += _of_directories(states, offline, answering, {*unnoticed, *uncertain, *answering})
    if unbound is not None:
        found.append((Level.DEGRADED, unbound))
    if blind is not None:
        found.append((Level.DEGRADED, f"the metadata are not followed: {blind}"))
    found += [(Level.DEGRADED, reason) for reason in (*unknown, *unable)]
    if left:
        found.append((Level.DEGRADED, left))
    if unwritten:
        found.append((Level.DEGRADED, f"nothing can be evicted or demoted, replica lists are not kept: {unwritten}"))
    found += [(Level.DEGRADED, reason) for reason in certificates]
    found.sort(key=lambda one: -one[0])
    count = len(states)
    well = f"watching, {count} director{'y' if count == 1 else 'ies'} online"
    return Condition(max((level for level, _ in found), default=Level.OK), tuple(text for _, text in found), well)


def _of_directories(
    states: Mapping[str, str], offline: Collection[str], answering: Collection[str], told: Collection[str]
) -> list[tuple[Level, str]]:
    """Lines about directories; ``told``: those of which a line stands already."""
    found = [
        (Level.DEGRADED, f"{path} is healthy and offline for Kafka: the broker uses it again when it starts")
        for path in sorted(offline)
        if states.get(path) == ONLINE
    ]
    found += [
        (Level.DEGRADED, f"{path} answers again, and has not passed three probes yet") for path in sorted(answering)
    ]
    counts = Counter(word for path, word in states.items() if word != ONLINE and path not in told)
    for word, count in sorted(counts.items()):
        found.append((Level.DEGRADED, f"{count} of {len(states)} directories {word}"))
    return found

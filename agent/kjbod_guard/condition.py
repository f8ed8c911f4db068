"""Condition of a guard in one line, like the condition of an agent (:mod:`kjbod_agent.condition`). Pure.

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
from typing import Final

from msgspec import Struct

from kjbod.problems import TEXTS, Code, Problem
from kjbod_guard.redundancy import CRITICAL
from kjbod_host.condition import ONLINE, Condition, Level
from kjbod_host.health.state import Cause

UNNOTICED: Final = "and Kafka has not noticed"
UNCERTAIN: Final = "and nobody knows whether Kafka has noticed"
SILENT_CAUSES: Final = frozenset({Cause.HUNG, Cause.SILENT, Cause.HELD})
"""Causes of a failed disk that does not answer at all, not even with errors."""
STATE_CODES: Final[Mapping[str, Code]] = {
    "full": Code.DISK_FULL,
    "held": Code.DISK_HELD,
    "slow": Code.DISK_SLOW,
    "suspect": Code.DISK_SUSPECT,
    "unwatched": Code.DISK_UNWATCHED,
}
"""Codes by state of a directory that has not failed."""
NO_CAUSES: Final[Mapping[str, str]] = {}


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
    redundancy: Collection[tuple[Code, str]] = (),
    left: str = "",
    certificates: Collection[str] = (),
    unknown: Collection[str] = (),
    causes: Mapping[str, str] = NO_CAUSES,
    is_stuck: bool = False,
) -> Condition:
    """Return the condition of a guard.

    Args:
        states: a word for each directory, by path: of the verdict, or ``unwatched``.
        unnoticed: paths that have failed and that Kafka has online.
        unbound: why no broker is there for which to watch.
        blind: why the metadata are not followed.
        offline: paths that Kafka has offline.
        lost: why the broker is fenced, or must be fenced and is not.
        unwritten: why the journal cannot be written.
        helpless: paths that are not watched since they do not answer, and that Kafka may work on.
        uncertain: paths that have failed, while it is not known whether Kafka has noticed.
        answering: paths that have failed, and whose disk answers again.
        unable: reasons why a guard in mode act cannot act fully, a line each.
        redundancy: lines about partitions that lack replicas, each with its code.
        left: actions of an earlier guard that this guard, which observes, does not undo.
        certificates: problems of kjbod's own certificates.
        unknown: metadata that kjbod does not know, a line each.
        causes: cause of the verdict, by path.
        is_stuck: whether ``lost`` says that the broker is stuck, and it is not fenced yet.
    """
    found = [_of_disk(path, causes, UNNOTICED) for path in sorted(unnoticed)]
    found += [_of_disk(path, causes, UNCERTAIN) for path in sorted(uncertain)]
    found += [
        _Found(
            Level.CRITICAL,
            _about(Code.DISK_UNREADABLE, path),
            f"{path} does not answer, and nothing can be done about it until it does",
        )
        for path in sorted(helpless)
    ]
    if states and all(word == "unwatched" for word in states.values()):
        found.append(_found(Level.CRITICAL, Code.NO_DISK_WATCHED, TEXTS[Code.NO_DISK_WATCHED]))
    if lost is not None:
        found.append(_found(Level.CRITICAL, Code.BROKER_STUCK if is_stuck else Code.BROKER_LOST, lost))
    found += [_found(Level.CRITICAL if code in CRITICAL else Level.DEGRADED, code, text) for code, text in redundancy]
    found += _of_directories(states, causes, offline, answering, {*unnoticed, *uncertain, *answering}, helpless)
    if unbound is not None:
        found.append(_found(Level.DEGRADED, Code.BROKER_NOT_FOUND, unbound))
    if blind is not None:
        found.append(_found(Level.DEGRADED, Code.METADATA_NOT_FOLLOWED, f"the metadata are not followed: {blind}"))
    found += [_found(Level.DEGRADED, Code.KAFKA_NEWER, reason) for reason in unknown]
    found += [_found(Level.DEGRADED, Code.RIGHTS_MISSING, reason) for reason in unable]
    if left:
        found.append(_found(Level.DEGRADED, Code.NOT_UNDONE, left))
    if unwritten:
        text = f"nothing can be evicted or demoted, replica lists are not kept: {unwritten}"
        found.append(_found(Level.DEGRADED, Code.JOURNAL_NOT_WRITTEN, text))
    found += [_found(Level.DEGRADED, Code.CERTIFICATE, reason) for reason in certificates]
    found.sort(key=lambda one: -one.level)
    count = len(states)
    return Condition(
        max((one.level for one in found), default=Level.OK),
        tuple(dict.fromkeys(one.reason for one in found)),
        f"watching, {count} director{'y' if count == 1 else 'ies'} online",
        tuple(one.problem for one in found if one.problem is not None),
    )


class _Found(Struct, frozen=True):
    """A reason of the condition; several problems may share a reason. ``problem`` is None if another reason has it."""

    level: Level
    problem: Problem | None
    reason: str


def _found(level: Level, code: Code, text: str) -> _Found:
    return _Found(level, Problem(code, text), text)


def _about(code: Code, path: str, kafka: str = "") -> Problem:
    return Problem(code, TEXTS[code].format(path=path, kafka=kafka), path)


def _of_disk(path: str, causes: Mapping[str, str], kafka: str) -> _Found:
    """Return the reason for a failed disk that Kafka may still use."""
    return _Found(Level.CRITICAL, _about(_failed(path, causes), path, kafka), f"{path} has failed, {kafka}")


def _failed(path: str, causes: Mapping[str, str]) -> Code:
    return Code.DISK_HUNG if causes.get(path) in SILENT_CAUSES else Code.DISK_FAILED


def _of_directories(
    states: Mapping[str, str],
    causes: Mapping[str, str],
    offline: Collection[str],
    answering: Collection[str],
    told: Collection[str],
    helpless: Collection[str],
) -> list[_Found]:
    """Return the reasons about directories, except the paths in ``told``, which already have a reason."""
    found = []
    for path in sorted(offline):
        if states.get(path) == ONLINE:
            problem = _about(Code.DISK_OFFLINE, path)
            found.append(_Found(Level.DEGRADED, problem, problem.text))
    for path in sorted(answering):
        problem = _about(Code.DISK_RECOVERING, path)
        found.append(_Found(Level.DEGRADED, problem, problem.text))
    counts = Counter(word for path, word in states.items() if word != ONLINE and path not in told)
    for word, path in sorted((word, path) for path, word in states.items() if word in counts and path not in told):
        code = _failed(path, causes) if word == "failed" else STATE_CODES.get(word, Code.DISK_SUSPECT)
        kafka = "and Kafka has it offline" if path in offline else "and whether Kafka uses it is not known"
        found.append(
            _Found(
                Level.DEGRADED,
                None if path in helpless else _about(code, path, kafka),
                f"{counts[word]} of {len(states)} directories {word}",
            )
        )
    return found

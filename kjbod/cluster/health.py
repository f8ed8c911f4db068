"""Verdict for a cluster, from its metadata, its brokers' log directories, and the metrics of its guards. Pure.

========================  ========  ================================================================================
code                      level     condition
========================  ========  ================================================================================
NO_LEADER                 CRITICAL  partitions without a leader
BELOW_MIN_ISR             CRITICAL  partitions that refuse ``acks=all``
DISK_UNNOTICED            CRITICAL  a guard says that a disk has failed, and Kafka uses the directory
BROKER_GONE               DEGRADED  a broker that is not in the cluster has replicas
BROKER_FENCED             DEGRADED  a broker is fenced
BROKER_SILENT             DEGRADED  a broker does not answer
DIRECTORY_OFFLINE         DEGRADED  Kafka has a log directory offline
SOLE_COPY                 DEGRADED  partitions with several replicas, of which one is in sync
BELOW_REPLICATION_FACTOR  DEGRADED  partitions with replicas that are not in sync, the sole copies included
DISK_TROUBLE              DEGRADED  a guard says that a disk is suspect, slow, held, full or unreadable
GUARD_MISSING             DEGRADED  no guard answers on the host of a broker
GUARD_UNBOUND             DEGRADED  a guard sees no broker
GUARD_VERSIONS            DEGRADED  guards of several versions
TOPICS_HIDDEN             DEGRADED  topics may be missing here: the user may not describe all
========================  ========  ================================================================================
"""

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Any, Final

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from kjbod.cluster.log_dirs import BrokerDirs, Known
from kjbod.cluster.partitions import NO_LEADER, is_under_min_isr, walk
from kjbod.printable import printable
from kjbod.units import plural

SHOWN_MAX: Final = 3
"""Maximum partitions, directories or brokers in a line."""
NAME_CHARS_MAX: Final = 300
"""Maximum characters of each name."""
TEXT_COLUMNS_MIN: Final = 20
_RESET: Final = "\x1b[0m"
_SERIES: Final = ("kjbod_build_info", "kjbod_guard_acting", "kjbod_guard_broker_bound", "kjbod_log_directory_health")
_FAILED: Final = "failed"
_HEALTHY: Final = "online"


class Level(IntEnum):
    """Level of a problem or a cluster, and the exit code."""

    OK = 0
    DEGRADED = 1
    CRITICAL = 2


class Code(StrEnum):
    """Stable name of a problem: see the table of this module."""

    NO_LEADER = "NO_LEADER"
    BELOW_MIN_ISR = "BELOW_MIN_ISR"
    DISK_UNNOTICED = "DISK_UNNOTICED"
    BROKER_GONE = "BROKER_GONE"
    BROKER_FENCED = "BROKER_FENCED"
    BROKER_SILENT = "BROKER_SILENT"
    DIRECTORY_OFFLINE = "DIRECTORY_OFFLINE"
    SOLE_COPY = "SOLE_COPY"
    BELOW_REPLICATION_FACTOR = "BELOW_REPLICATION_FACTOR"
    DISK_TROUBLE = "DISK_TROUBLE"
    GUARD_MISSING = "GUARD_MISSING"
    GUARD_UNBOUND = "GUARD_UNBOUND"
    GUARD_VERSIONS = "GUARD_VERSIONS"
    TOPICS_HIDDEN = "TOPICS_HIDDEN"


CRITICAL: Final = frozenset((Code.NO_LEADER, Code.BELOW_MIN_ISR, Code.DISK_UNNOTICED))


class Problem(Struct, frozen=True):
    """Problem of a cluster.

    Attributes:
        code: see :class:`Code`.
        text: one line of text.
        names: all affected brokers, partitions or directories.
    """

    code: Code
    text: str
    names: tuple[str, ...]

    @property
    def level(self) -> Level:
        """Level of the problem."""
        return Level.CRITICAL if self.code in CRITICAL else Level.DEGRADED


class Reading(Struct, frozen=True):
    """Metrics of one guard.

    Attributes:
        version: version of kjbod; None: an old guard does not report it.
        acts: whether the guard acts; None: unknown.
        bound: whether the guard sees a broker.
        states: state of each log directory.
    """

    version: str | None = None
    acts: bool | None = None
    bound: bool = True
    states: Mapping[str, str] = {}


class Health(Struct, frozen=True):
    """Verdict for a cluster.

    Attributes:
        problems: the worst first.
        counts: text with the numbers of brokers, directories, partitions and guards.
    """

    problems: tuple[Problem, ...]
    counts: str

    @property
    def level(self) -> Level:
        """Level of the worst problem."""
        return max((one.level for one in self.problems), default=Level.OK)


def reading(text: str) -> Reading:
    """Parse the metrics of a guard.

    Raises:
        ValueError: the text has no metrics of a guard.
    """
    lines = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(_SERIES))
    version, acts, bound = None, None, True
    states: dict[str, str] = {}
    found = False
    for family in text_string_to_metric_families(lines):
        for sample in family.samples:
            labels = sample.labels
            match sample.name:
                case "kjbod_build_info":
                    version = labels.get("version")
                case "kjbod_guard_acting":
                    acts, found = bool(sample.value), True
                case "kjbod_guard_broker_bound":
                    bound, found = bool(sample.value), True
                case "kjbod_log_directory_health" if sample.value:
                    path = labels.get("log_directory") or labels.get("logDirectory") or ""
                    states[path] = labels.get("state", "")
    if not found:
        raise ValueError("the metrics are not those of a guard")
    return Reading(version, acts, bound, states)


def health(known: Known, brokers: Sequence[BrokerDirs], guards: Mapping[int, Reading | str] | None) -> Health:
    """Return the verdict.

    Args:
        known: partitions of the cluster.
        brokers: all brokers of the cluster, with their log directories.
        guards: metrics of the guard on each broker's host, or the reason why there are none; None: guards were not
            asked.
    """
    found = [
        *_partitions(known),
        *_brokers(known, brokers),
        *(() if guards is None else _guards(brokers, guards)),
    ]
    order = list(Code)
    return Health(
        tuple(sorted(found, key=lambda one: (-one.level, order.index(one.code)))), _counts(known, brokers, guards)
    )


def _problem(code: Code, names: Sequence[str], text: str) -> Iterator[Problem]:
    """Yield a problem about these names; nothing if there are no names."""
    if names:
        yield Problem(code, f"{text}: {_some(names)}", tuple(names))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return f"{', '.join(printable(name, NAME_CHARS_MAX) for name in names[:SHOWN_MAX])}{more}"


def _partitions(known: Known) -> Iterator[Problem]:
    leaderless, under, sole, short = [], [], [], []
    for topic, number, each in walk(known.partitions):
        if len(each.isr) == len(each.replicas) and each.leader != NO_LEADER:
            continue
        name = f"{topic}-{number}"
        if each.leader == NO_LEADER:
            leaderless.append(name)
        elif is_under_min_isr(each, known.min_isrs.get(topic, 0)):
            under.append(name)
        if len(each.isr or each.eligible) == 1 < len(each.replicas):
            sole.append(name)
        if len(each.isr) < len(each.replicas):
            short.append(name)
    yield from _problem(Code.NO_LEADER, leaderless, f"{plural(len(leaderless), 'partition')} without a leader")
    yield from _problem(Code.BELOW_MIN_ISR, under, f"{plural(len(under), 'partition')} below min.insync.replicas")
    yield from _problem(Code.SOLE_COPY, sole, f"{plural(len(sole), 'partition')} with one replica in sync")
    text = f"{plural(len(short), 'partition')} with replicas that are not in sync"
    yield from _problem(Code.BELOW_REPLICATION_FACTOR, short, text)
    if not known.whole:
        yield Problem(
            Code.TOPICS_HIDDEN, "the brokers may hide topics: the user needs DESCRIBE on all topics and the cluster", ()
        )


def _brokers(known: Known, brokers: Sequence[BrokerDirs]) -> Iterator[Problem]:
    gone = [f"{broker} ({plural(share.replicas, 'replica')})" for broker, share in (known.strangers or {}).items()]
    yield from _problem(Code.BROKER_GONE, gone, f"{plural(len(gone), 'broker')} with replicas and not in the cluster")
    fenced = [str(one.node.id) for one in brokers if one.node.fenced]
    yield from _problem(Code.BROKER_FENCED, fenced, f"{plural(len(fenced), 'fenced broker')}")
    silent = [f"{one.node.id} ({one.error})" for one in brokers if one.error and not one.node.fenced]
    yield from _problem(Code.BROKER_SILENT, silent, f"{plural(len(silent), 'broker')} without an answer")
    offline = [f"{one.node.id}:{each.path or '?'}" for one in brokers for each in one.log_dirs if each.offline]
    yield from _problem(Code.DIRECTORY_OFFLINE, offline, f"{_directories(len(offline))} offline for Kafka")


def _guards(brokers: Sequence[BrokerDirs], guards: Mapping[int, Reading | str]) -> Iterator[Problem]:
    unnoticed, trouble, missing, unbound = [], [], [], []
    for broker in brokers:
        told = guards.get(broker.node.id, "not asked")
        if isinstance(told, str):
            missing.append(f"{broker.node.id} ({told})")
            continue
        if not told.bound:
            unbound.append(str(broker.node.id))
        offline = {each.path for each in broker.log_dirs if each.offline}
        for path, state in told.states.items():
            if state == _FAILED and path not in offline:
                unnoticed.append(f"{broker.node.id}:{path}")
            elif state not in (_FAILED, _HEALTHY):
                trouble.append(f"{broker.node.id}:{path} {state}")
    text = f"{_directories(len(unnoticed))} that Kafka uses on a failed disk"
    yield from _problem(Code.DISK_UNNOTICED, unnoticed, text)
    yield from _problem(Code.DISK_TROUBLE, trouble, f"{_directories(len(trouble))} on a disk in trouble")
    yield from _problem(Code.GUARD_MISSING, missing, f"{plural(len(missing), 'broker')} without a guard that answers")
    yield from _problem(Code.GUARD_UNBOUND, unbound, f"{plural(len(unbound), 'guard')} without a broker")
    versions = Counter(one.version or "unknown" for one in guards.values() if isinstance(one, Reading))
    if len(versions) > 1:
        names = [f"{version} ({count})" for version, count in versions.most_common()]
        yield from _problem(Code.GUARD_VERSIONS, names, f"guards of {len(versions)} versions")


def _directories(count: int) -> str:
    return "1 log directory" if count == 1 else f"{count} log directories"


def _counts(known: Known, brokers: Sequence[BrokerDirs], guards: Mapping[int, Reading | str] | None) -> str:
    parts = [
        plural(len(brokers), "broker"),
        _directories(sum(len(one.log_dirs) for one in brokers)),
        plural(sum(map(len, known.partitions.values())), "partition"),
    ]
    if guards is not None:
        answered = [one for one in guards.values() if isinstance(one, Reading)]
        acting = sum(bool(one.acts) for one in answered)
        parts.append(f"{plural(len(answered), 'guard')} ({acting} act)")
    return ", ".join(parts)


def lines(found: Health, wide: int | None, colour: Mapping[Level, str] | None = None) -> list[str]:
    """Return the verdict for people.

    Args:
        found: the verdict.
        wide: columns of the terminal, at which texts are wrapped; None: there is none.
        colour: start of each level's colour; None: there are no colours.
    """
    head = f"{found.level.name}: {found.counts}"
    code_columns = max(map(len, Code)) + 2
    shown = [head if colour is None else f"{colour[found.level]}{found.level.name}{_RESET}: {found.counts}"]
    for one in found.problems:
        code = f"{one.code:<{code_columns}}"
        room = len(one.text) if wide is None else max(wide - code_columns - 2, TEXT_COLUMNS_MIN)
        first, *others = textwrap.wrap(one.text, room, break_long_words=False, break_on_hyphens=False)
        if colour is not None:
            code = f"{colour[one.level]}{code}{_RESET}"
        shown.append(f"  {code}{first}")
        shown += [f"{'':<{code_columns + 2}}{line}" for line in others]
    return shown


def as_document(cluster_id: str, found: Health, guards: Mapping[int, Reading | str] | None) -> dict[str, Any]:
    """Return the verdict as JSON."""
    return {
        "cluster_id": cluster_id,
        "level": found.level.name,
        "code": int(found.level),
        "text": found.counts,
        "problems": [
            {"code": str(one.code), "level": one.level.name, "text": one.text, "names": list(one.names)}
            for one in found.problems
        ],
        "guards": None if guards is None else _told(guards.items()),
    }


def _told(guards: Iterable[tuple[int, Reading | str]]) -> list[dict[str, Any]]:
    return [
        {"broker": broker, "version": None, "acts": None, "error": told}
        if isinstance(told, str)
        else {"broker": broker, "version": told.version, "acts": told.acts, "error": None}
        for broker, told in guards
    ]

"""Plan of the guard's reach: forms, faults, trials, and what was measured of each. Pure."""

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scripts.bench.json_record import JsonRecord
from scripts.rig.checkpoints import CHECKPOINT_INTERVAL_MS
from scripts.rig.pauses import LED_BAD, LED_HEALTHY, Pause

GUARD, EARLY, HDD, FENCE, ALONE = FORMS = ("guard", "early", "hdd", "fence", "alone")
"""A guard in mode act with the wait for flash, with one shorter than any default, and with the wait for a rotational
disk; the first one with ``kjbod.guard.ladder=fence``; Kafka alone."""
CUT_AFTER_MS: Final = {GUARD: 3_000, EARLY: 1_900, HDD: 10_000, FENCE: 3_000}
"""``kjbod.guard.cut.after.ms`` of each form. The loop devices of the rig are of no known kind, and would get 10 s."""
NAMES: Final = {
    GUARD: "guard, 3 s (flash)",
    EARLY: "guard, cut.after=1.9 s",
    HDD: "guard, 10 s (rotational)",
    FENCE: "fence first, 3 s",
    ALONE: "Kafka alone",
}
FAULTS: Final = {
    "none": "",
    "hung": "hang",
    "hung-writes": "hang-writes",
    "frozen": "freeze",
    "dead": "eio",
    "dead-idle": "eio",
    "unreadable": "eio-reads",
    "read-only": "ext4-error-remount-ro",
    "pulled": "device-gone",
    "lying": "lost-writes",
    "slow": "slow",
    "full": "full",
    "killed": "",
    "restart": "hang",
    "hung-flush": "hang",
    "hung-cold": "hang",
    "hung-transactions": "hang",
    "hung-many": "hang",
    "hung-shared": "hang",
}
"""Each with its name in ``kjbod faults list``; empty: the disk is well. ``dead-idle``: nothing is written there from a
second before it until :data:`IDLE_MS` after it. ``killed``: SIGKILL of the broker. ``restart``: that, beside a hung
disk, and it is started again as soon as it has ended. ``hung-shared``: of the disk with two log directories. The
rest of these: other work, :data:`WORK`."""
TWO_FILE_SYSTEMS: Final = ("hung", "hung-writes", "hung-cold")
"""Faults that are tried on ext4 and XFS in turns; the others on ext4."""
SHARED: Final = "hung-shared"
ACTED_ON: Final = frozenset(FAULTS) - {"none", "slow", "full"}
"""Faults that a guard does something about."""
HELD_TIMEOUT_MS: Final = 3000
"""``kjbod.held.timeout.ms`` here; its default, 30 s, would be ten times the wait for the same."""
IDLE_MS: Final = 3000


@dataclass(frozen=True, slots=True)
class Work:
    """Work of brokers and clients meanwhile, where it is not a record each 30 ms and its consumer.

    Attributes:
        configs: of the topic.
        old_records: of each partition, 10 kB each, from before. From the fault on a second consumer reads all of them;
            none is in memory.
        transactions: each record in a transaction of its own; the consumer is one of a group, and reads what is
            committed.
        further: partitions of another topic, a third of which lies on each disk of broker 1.
    """

    configs: Mapping[str, str] = field(default_factory=dict)
    old_records: int = 0
    transactions: bool = False
    further: int = 0


WORK: Final = {
    "hung-flush": Work(configs={"flush.messages": "1"}),
    "hung-cold": Work(old_records=200),
    "hung-transactions": Work(transactions=True),
    "hung-many": Work(further=1500),
}
USUAL: Final = Work()


@dataclass(frozen=True, slots=True, order=True)
class Trial:
    """A fault under one of the forms.

    Attributes:
        form: of :data:`FORMS`.
        fault: of :data:`FAULTS`.
        repetition: from 0 on.
    """

    form: str
    fault: str
    repetition: int

    @property
    def fstype(self) -> str:
        """File system of the bad disk."""
        return "xfs" if self.fault in TWO_FILE_SYSTEMS and self.repetition % 2 else "ext4"

    def phase_ms(self, seed: int) -> int:
        """Time that the rig waits before the fault: uniform over the broker's checkpoint interval."""
        rng = random.Random(f"{seed}/{self.form}/{self.fault}/{self.repetition}")
        return rng.randrange(CHECKPOINT_INTERVAL_MS)


def plan(
    forms: Sequence[str], counts: Mapping[str, int], rng: random.Random, done: Iterable[Trial] = ()
) -> list[Trial]:
    """Trials that are not done, round by round, each round in an order of its own: what was measured when the run is
    interrupted covers the whole table.

    ``counts``: repetitions by fault.
    """
    left_out = set(done)
    trials: list[Trial] = []
    for repetition in range(max(counts.values(), default=0)):
        faults = [fault for fault, count in counts.items() if repetition < count]
        cells = [
            Trial(form, fault, repetition) for form, fault in itertools.product(forms, faults) if exists(form, fault)
        ]
        rng.shuffle(cells)
        trials += [trial for trial in cells if trial not in left_out]
    return trials


def exists(form: str, fault: str) -> bool:
    """Whether a form has this fault: a broker that a guard has given up cannot be killed beside its hung disk."""
    return not (form == FENCE and fault == "restart")


@dataclass(frozen=True, slots=True)
class Act:
    """Act that the guard began.

    Attributes:
        at_ms: after the fault.
        means: ``cut``, ``mask``, ``evict`` and so on.
        bad: whether it was about the bad disk; None: about the broker.
    """

    at_ms: float
    means: str
    bad: bool | None


def false_acts(trial: Trial, acts: Sequence[Act]) -> list[Act]:
    """Acts that should not have been done: before the fault, to another disk, or about a disk that goes on working.

    A disk that is full is taken offline by Kafka itself; partitions there may be evicted then. The record of suspects
    is no act: a new guard removes the one of the trial before.
    """
    allowed = {"evict"} if trial.fault == "full" else set()
    return [
        act
        for act in acts
        if act.means not in ("suspect", "trust")
        and (act.at_ms < 0 or act.bad is False or (trial.fault not in ACTED_ON and act.means not in allowed))
    ]


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a guard, and what a producer waits.

    Attributes:
        pss_mib: memory of all processes of the guard; 0: there is none.
        cpu_percent: of one core.
        p50_ms, p99_ms: from a producer's send to the acknowledgement.
    """

    pss_mib: float
    cpu_percent: float
    p50_ms: float
    p99_ms: float


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that so large a share does not exceed; 0 of none."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else 0.0


def leaders_moved(led: Iterable[int], moved_ms: Mapping[int, float]) -> float | None:
    """Moment at which the last of these partitions had another leader; None where one has none yet."""
    moments = [moved_ms.get(partition) for partition in led]
    return max((at for at in moments if at is not None), default=None) if None not in moments else None


def led(classes: Mapping[int, str]) -> list[int]:
    """Partitions that the broker led."""
    return [partition for partition, name in classes.items() if name in (LED_BAD, LED_HEALTHY)]


@dataclass(slots=True)
class Outcome(JsonRecord):
    """Measurements of a trial; times in milliseconds after the fault.

    Attributes:
        trial: which.
        phase_ms: waited before the fault.
        watch_ms: how long was looked on.
        pauses: of the producers, the worst of each class. ``dead-idle``: on the bad disk from the first record on.
        consumer_pauses: of the consumer.
        verdict_ms: the guard's verdict, failed.
        acts: what the guard did.
        recorded_ms: the metadata showed the directory gone.
        moved_ms: the last partition that the broker led had another leader.
        broker: ``kept``, ``crippled``, ``silent``, ``ended``, ``zombie``.
        ended_ms: restart: the old process had ended.
        served_ms: restart: the new one was unfenced.
        acknowledged: records.
        lost: of these, what could not be read back.
        cost: where nothing was broken.
    """

    trial: Trial
    phase_ms: int = 0
    watch_ms: int = 0
    pauses: dict[str, Pause] = field(default_factory=dict)
    consumer_pauses: dict[str, Pause] = field(default_factory=dict)
    verdict_ms: float | None = None
    acts: list[Act] = field(default_factory=list)
    recorded_ms: float | None = None
    moved_ms: float | None = None
    broker: str = ""
    ended_ms: float | None = None
    served_ms: float | None = None
    acknowledged: int = 0
    lost: int = 0
    cost: Cost | None = None

    @property
    def false_acts(self) -> list[Act]:
        """Acts that :func:`false_acts` finds."""
        return false_acts(self.trial, self.acts)

    def worst(self, classes: Sequence[str]) -> Pause | None:
        """The worst pause of these classes; None where there is none."""
        found = [self.pauses[name] for name in classes if name in self.pauses]
        return max(found, key=lambda pause: (not pause.ended, pause.ms), default=None)

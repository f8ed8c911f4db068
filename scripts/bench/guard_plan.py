"""Plan of the guard benchmark: trials, and what was measured of each. Pure."""

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from scripts.bench.json_record import JsonRecord
from scripts.rig.checkpoints import CHECKPOINT_INTERVAL_MS
from scripts.rig.pauses import Pause
from scripts.rig.stuck_threads import Stuck

USUAL_MEANS: Final = ("nothing", "mask", "cut", "cut-report", "cut-evict", "fence")
ORDERS: Final = (
    "demote",
    "report",
    "report-evict",
    "report-cut",
    "report-cut-evict",
    "report-evict-cut",
    "demote-report",
    "demote-report-cut",
    "demote-report-cut-evict",
    "claim-report-cut-evict",
)
"""Orders of steps: a step begins when the metadata show what the step before it changed."""
MEANS: Final = (*USUAL_MEANS, *ORDERS, "fence-in-flight", "fence-restart")
"""What is done about the disk; the table of the page says what each one is. Some are for one question only."""
FAULTS: Final = ("hang", "hang-writes", "freeze", "eio")
FILE_SYSTEMS: Final = ("ext4", "xfs")
PHASES_MS: Final = tuple(range(500, CHECKPOINT_INTERVAL_MS + 1, 500))
"""Until the broker's next checkpoint, from the fault on."""
QUICK_PHASE_MS: Final = 3500


@dataclass(frozen=True, slots=True, order=True)
class Trial:
    """A fault and what is done about it.

    Attributes:
        means: of :data:`MEANS`.
        fault: of :data:`FAULTS`.
        fstype: of the bad disk.
        phase_ms: from the fault to the broker's next checkpoint.
        repetition: from 0 on.
        back_ms: from the last step to the moment when the disk answers again; 0: not while clients are watched.
    """

    means: str
    fault: str
    fstype: str
    phase_ms: int
    repetition: int = 0
    back_ms: int = 0


def plan(
    means: Sequence[str],
    faults: Sequence[str],
    file_systems: Sequence[str],
    phases_ms: Sequence[int],
    repeat: int,
    rng: random.Random,
    done: Iterable[Trial] = (),
    backs_ms: Sequence[int] = (0,),
) -> list[Trial]:
    """Every repetition of every cell but those that are done, each round of them in an order of its own."""
    left_out = set(done)
    trials: list[Trial] = []
    for repetition in range(repeat):
        cells = [
            Trial(how, fault, fstype, phase_ms, repetition, back_ms)
            for how, fault, fstype, phase_ms, back_ms in itertools.product(
                means, faults, file_systems, phases_ms, backs_ms
            )
        ]
        rng.shuffle(cells)
        trials += [trial for trial in cells if trial not in left_out]
    return trials


@dataclass(slots=True)
class Outcome(JsonRecord):
    """Measurements of a trial; times in milliseconds after the fault.

    Attributes:
        trial: which.
        checkpoint_ms: the broker's next checkpoint in a healthy directory, as it was seen; None: it did not come.
        acts: each step and when it was done, and what the cluster did by itself.
        pauses: of the producers, by class.
        consumer_pauses: of the consumer, by class.
        errors: records that producers gave up, by class.
        stuck: threads by the moment at which they were looked for.
        frames: Java's view of the threads that were blocked at the end.
        broker: ``kept``, ``crippled`` (it applies no metadata), ``silent`` (it does not answer), ``ended``, ``zombie``.
        applied: the metadata offset that the broker had applied at the end, None where it did not answer, and the one
            that it should have.
        acknowledged: records.
        lost: of these, what could not be read back.
        records: what the metadata log says of the broker.
        disconnected: how often a follower lost its connection to it, and waits ``replica.fetch.backoff.ms`` then.
        trouble: what was not as it should be with the rig.
    """

    trial: Trial
    checkpoint_ms: float | None = None
    acts: dict[str, float | None] = field(default_factory=dict)
    pauses: dict[str, Pause] = field(default_factory=dict)
    consumer_pauses: dict[str, Pause] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    stuck: dict[str, list[Stuck]] = field(default_factory=dict)
    frames: list[str] = field(default_factory=list)
    broker: str = ""
    applied: tuple[int | None, int] | None = None
    acknowledged: int = 0
    lost: int = 0
    records: list[str] = field(default_factory=list)
    disconnected: int = 0
    trouble: str = ""

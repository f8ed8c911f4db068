"""Plan of the quorum benchmark: what becomes of the controllers while a disk fails, and what was measured. Pure."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from scripts.bench.json_record import JsonRecord

CASES: Final = {
    "quiet": "nothing else",
    "killed": "active controller killed",
    "stopped": "active controller stopped (SIGSTOP)",
    "cut-off": "active controller cut off from everybody",
    "deaf": "active controller hears nobody",
    "mute": "active controller is heard by nobody",
    "replaced": "a voter added, the active one removed (KIP-853)",
    "added-killed": "a voter added (KIP-853), the active one killed",
    "unreachable": "brokers cut off from the active controller, all others reach it",
    "unheard": "active controller hears no broker, brokers hear it",
}
"""What happens beside the failing disk."""
LASTING: Final = frozenset({"unreachable", "unheard"})
"""Cases in which no other controller takes over: whose word does not get through has to end."""
AGENT, GUARDED, ALONE = ACTORS = ("agent", "guarded", "alone")
"""An agent, and a real broker without a guard, whose disk answers EIO; a real broker with a guard, whose disk hangs."""
FAILURE_TIMEOUT_MS: Final = 30_000
"""``log.dir.failure.timeout.ms`` at its default."""
END_MS: Final = 5_000
"""What the end of a process may take after its deadline."""
LOOK_S: Final = 30.0
"""So long is looked on, at most, where another controller takes over."""
_OFFSET_MS: Final = 300


@dataclass(frozen=True, slots=True, order=True)
class Trial:
    """A case of :data:`CASES`, and its repetition from 0 on."""

    case: str
    repetition: int

    def offset_ms(self, seed: int) -> int:
        """Time from what becomes of the controllers to the fault of the disks; negative: the disks come first."""
        return random.Random(f"{seed}/{self.case}/{self.repetition}").randint(-_OFFSET_MS, _OFFSET_MS)


def plan(cases: Sequence[str], count: int, rng: random.Random, done: Iterable[Trial] = ()) -> list[Trial]:
    """Trials that are not done, round by round, each round in an order of its own."""
    left_out = set(done)
    trials: list[Trial] = []
    for repetition in range(count):
        cells = [Trial(case, repetition) for case in cases]
        rng.shuffle(cells)
        trials += [trial for trial in cells if trial not in left_out]
    return trials


@dataclass(slots=True)
class Actor:
    """Fate of a node whose disk failed; times in milliseconds after the fault of the disks.

    Attributes:
        verdict_ms: of the agent, or of the guard.
        recorded_ms: a controller appended the record that was committed in the end.
        moved_ms: the last partition that it led on that disk had another leader.
        ended_ms: its process had ended.
        exit_code: then; negative: the signal.
        wrong: healthy directories that were recorded as offline.
    """

    verdict_ms: float | None = None
    recorded_ms: float | None = None
    moved_ms: float | None = None
    ended_ms: float | None = None
    exit_code: int | None = None
    wrong: int = 0

    @property
    def is_kept(self) -> bool:
        """Whether the promise holds: recorded, or ended in time; and no healthy directory lost."""
        limit_ms = (self.verdict_ms or 0.0) + FAILURE_TIMEOUT_MS + END_MS
        moments = [at for at in (self.recorded_ms, self.ended_ms) if at is not None]
        return not self.wrong and any(at <= limit_ms for at in moments)


@dataclass(slots=True)
class Outcome(JsonRecord):
    """Measurements of a trial.

    Attributes:
        trial: which.
        offset_ms: see :meth:`Trial.offset_ms`.
        active_ms: the first record of the next active controller, after what became of the one before.
        actors: by name, of :data:`ACTORS`.
    """

    trial: Trial
    offset_ms: int = 0
    active_ms: float | None = None
    actors: dict[str, Actor] = field(default_factory=dict)

    @property
    def broken(self) -> list[str]:
        """Actors of kjbod's whose promise was not kept. Kafka alone makes none."""
        return [name for name, actor in self.actors.items() if name != ALONE and not actor.is_kept]

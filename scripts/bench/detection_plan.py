"""Plan of the detection benchmark: cells, and lives of an agent, in their order. Pure."""

import dataclasses
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kjbod.faults.model import Fault

FILE_SYSTEMS = ("ext4", "xfs", "btrfs")
LOADS = ("idle", "busy", "work")
"""``busy``: a process of its own appends 4 KiB and calls fdatasync each 5 ms. ``work``: the agent itself meets the
fault, by making the replicas of a new topic."""
WORK_FAULTS = ("eio", "eio-writes", "device-gone", "fs-shutdown")
"""Faults that the making of a replica directory meets: what it writes is synced."""
QUICK_XFS = ("eio", "hang", "fs-shutdown", "umount", "lost-writes")
QUICK_BTRFS = ("eio", "hang", "bit-rot", "over-mount")
QUICK_BUSY = ("eio", "hang")
UNPRIVILEGED_FAULTS = ("permissions",)
"""Faults that do not stop root: their agent has a life of its own, without the capabilities to override permissions.
All of Kafka's brokers are without them."""
PATIENT_MS = 6000
"""A fault whose verdict may take longer than that is not timed in milliseconds, and shares the agent with others."""
DIRECTORIES = 12
SPARE_DIRECTORIES = 2
"""Directories of each life that no fault is ever given: with all others gone these keep the host fault guard out."""
RUNS_PER_LIFE = DIRECTORIES - SPARE_DIRECTORIES


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """A field of the matrix."""

    fault: str
    fstype: str
    load: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A repetition of a cell.

    Attributes:
        cell: which.
        repetition: from 0 on.
        phase_ms: how long the rig waits before the fault: uniform over the probe interval.
        patient: may share the agent with others.
        thorough: goes on to what takes half a minute and more: held until it is failed, damage until it is forgotten.
    """

    cell: Cell
    repetition: int
    phase_ms: int
    patient: bool
    thorough: bool = False

    @property
    def unprivileged(self) -> bool:
        """Whether the agent must not be able to override permissions."""
        return self.cell.fault in UNPRIVILEGED_FAULTS


def cells(
    faults: Mapping[str, Fault],
    names: Sequence[str],
    file_systems: Sequence[str],
    loads: Sequence[str],
) -> list[Cell]:
    """The cells that exist: a fault may not apply to a file system, or be impossible under an open writer."""
    return [
        Cell(name, fstype, load)
        for name in names
        for fstype in file_systems
        if fstype in faults[name].file_systems
        for load in loads
        if (load != "busy" or faults[name].while_busy) and (load != "work" or name in WORK_FAULTS)
    ]


def quick_cells(faults: Mapping[str, Fault], names: Sequence[str]) -> list[Cell]:
    """The form for CI: each fault once on idle ext4, a chosen few on the others, busy and met by the agent itself."""
    chosen = []
    for name in names:
        wanted = [Cell(name, "ext4", "idle")]
        wanted += [Cell(name, "xfs", "idle")] if name in QUICK_XFS else []
        wanted += [Cell(name, "btrfs", "idle")] if name in QUICK_BTRFS else []
        wanted += [Cell(name, "ext4", "busy")] if name in QUICK_BUSY else []
        wanted += [Cell(name, "ext4", "work")] if name == WORK_FAULTS[0] else []
        if "ext4" not in faults[name].file_systems:
            wanted = [Cell(name, sorted(faults[name].file_systems)[0], "idle")]
        chosen += [cell for cell in wanted if cell.fstype in faults[name].file_systems]
    return chosen


def plan(
    chosen: Iterable[Cell],
    faults: Mapping[str, Fault],
    repeat: int,
    rng: random.Random,
    interval_ms: int,
    *,
    thorough: bool = True,
) -> list[Planned]:
    """Every repetition, round by round: what was measured when the run is interrupted covers the whole matrix.

    ``thorough``: one repetition of each idle cell is.
    """
    chosen = list(chosen)
    runs = []
    for repetition in range(repeat):
        round_of = list(chosen)
        rng.shuffle(round_of)
        for cell in round_of:
            expectation = faults[cell.fault].expect(cell.fstype)
            patient = expectation.within_ms > PATIENT_MS or not _ends_failed(expectation.states)
            to_the_end = thorough and repetition == 0 and cell.load == "idle"
            runs.append(Planned(cell, repetition, rng.randrange(interval_ms), patient, to_the_end))
    return runs


def _ends_failed(states: Sequence[str]) -> bool:
    return states[0] == "failed"


def lives(runs: Sequence[Planned]) -> list[list[Planned]]:
    """The runs of each life of an agent: patient, and unprivileged, ones among themselves, in the order given."""
    found: list[list[Planned]] = []
    open_lives: dict[tuple[bool, bool], list[Planned]] = {}
    for run in runs:
        kind = run.patient, run.unprivileged
        life = open_lives.get(kind)
        if life is None or len(life) == RUNS_PER_LIFE:
            life = open_lives[kind] = []
            found.append(life)
        life.append(run)
    return found


@dataclass(slots=True)
class Outcome:
    """Outcome of one run, of kjbod or of Kafka. Times are milliseconds after the fault; None: it did not happen.

    Attributes:
        system: ``kjbod`` or ``kafka``.
        fault, fstype, load, repetition: which run.
        expected: acceptable final verdicts.
        first: the first verdict that was not ``online``.
        final: the last one.
        cause: of the final verdict.
        phase_ms: waited before the fault.
        deed_ms: how long the injection took; times count from its begin.
        suspect_ms: first verdict other than online.
        verdict_ms: final verdict.
        event_ms: first that the kernel or the agent's own work said, where the agent logs it, before any suspicion.
        blocked_ms: age of the probe that was not answered, at the verdict.
        silent_ms: time since the device swallowed the first request, anybody's, at the verdict.
        sent_ms: OfflineLogDirs left.
        acknowledged_ms: its answer came.
        recorded_ms: the controller committed it, seen by an observer of the metadata log.
        escalated_ms: ``failed`` of a fault that is waited out at first.
        recovered_ms: online again, after the fault was undone.
        evidence: what the agent, or the broker's log, said.
        wrong: verdicts on other directories, and whatever else should not be.
        ok: whether all is as expected.
    """

    system: str
    fault: str
    fstype: str
    load: str
    repetition: int
    expected: str
    first: str = ""
    final: str = ""
    cause: str = ""
    phase_ms: float | None = None
    deed_ms: float | None = None
    suspect_ms: float | None = None
    verdict_ms: float | None = None
    event_ms: float | None = None
    blocked_ms: float | None = None
    silent_ms: float | None = None
    sent_ms: float | None = None
    acknowledged_ms: float | None = None
    recorded_ms: float | None = None
    escalated_ms: float | None = None
    recovered_ms: float | None = None
    evidence: str = ""
    wrong: str = ""
    ok: bool = True

    @property
    def cell(self) -> Cell:
        return Cell(self.fault, self.fstype, self.load)

    def blame(self, what: str) -> None:
        """Something is not as it should be."""
        self.ok = False
        self.wrong = f"{self.wrong}; {what}" if self.wrong else what


NOT_POSSIBLE = "not possible"
"""Final verdict of a fault that the kernel refuses, because somebody has a file open for writing."""
COLUMNS = tuple(field.name for field in dataclasses.fields(Outcome))

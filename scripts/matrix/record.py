"""Outcomes of the matrix's cells, and their file: a JSON line each, from which a run goes on where it was ended."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kjbod.errors import KjbodError
from scripts.bench.json_record import JsonRecord
from scripts.matrix.plan import Cell

OK: Final = "ok"
FAILED: Final = "failed"


@dataclass(slots=True)
class Outcome(JsonRecord):
    """The outcome of a cell.

    Attributes:
        row: of the cell.
        version: of Kafka.
        state: :data:`OK` or :data:`FAILED`.
        reason: of a failure, one line.
        absent: parts that are not there in this version, and why, a line each.
        differences: lines that Kafka's tools write otherwise, with the reason.
        seconds: that it took.
        at: moment of the end, UTC, ``2026-11-28 12:00``.
        kjbod: version of kjbod.
    """

    row: str
    version: str
    state: str
    reason: str = ""
    absent: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0
    at: str = ""
    kjbod: str = ""

    @property
    def cell(self) -> Cell:
        """The cell that was measured."""
        return Cell(self.row, self.version)


class RecordError(KjbodError):
    """A file of outcomes that cannot be read."""


def read(path: Path) -> dict[Cell, Outcome]:
    """Return the last outcome of each cell. Raises :class:`RecordError` with the line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    found: dict[Cell, Outcome] = {}
    for number, line in enumerate(lines, 1):
        try:
            outcome = Outcome.from_json(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RecordError(f"{path}, line {number}: no outcome of a cell: remove it, or run with --again") from error
        found[outcome.cell] = outcome
    return found


def append(path: Path, outcome: Outcome) -> None:
    """Add an outcome."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(outcome.to_json(), ensure_ascii=False) + "\n")


def left_to_do(planned: Iterable[Cell], known: Mapping[Cell, Outcome]) -> list[Cell]:
    """Return the cells that have not been measured, and those that failed."""
    return [cell for cell in planned if cell not in known or known[cell].state == FAILED]

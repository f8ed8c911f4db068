"""The plan of the matrix: rows, versions, and cells that cannot be there. Pure."""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from msgspec import Struct

from kjbod.errors import KjbodError

READ: Final = "read"
AGENT: Final = "agent"
OBSERVE: Final = "observe"
ACT: Final = "act"
BROKERS: Final = "brokers"
SECURED: Final = "secured"
ROLLING: Final = "rolling"
ROWS: Final = {
    READ: "kjbod's command line beside Kafka's own tools: `info`, `metadata dump`, `metadata shell`, "
    "`features describe`, `cluster log-dirs`",
    AGENT: "agent on its controllers: registers, unfences, the failure of a directory is recorded",
    OBSERVE: "guard beside its brokers, mode observe",
    ACT: "guard beside its brokers, mode act: a disk hangs, is replaced, another one answers EIO",
    BROKERS: "its brokers on kjbod's controller, both rules",
    SECURED: "guard and agent where every listener is SASL_SSL",
    ROLLING: "rolling upgrade of controllers and brokers with a guard beside each broker, a disk failing in the middle",
}
"""Title of each row, by its name on the command line."""
OLDEST: Final = (3, 7)
"""The first release with JBOD in KRaft (KIP-858)."""
UPGRADES: Final = ("3.9.2", "4.0.2", "4.3.1", "4.4.0")
"""Versions that the rolling upgrade goes through, those that were asked for."""
ARROW: Final = " → "


class PlanError(KjbodError):
    """A version or a row that does not exist."""


class Cell(Struct, frozen=True):
    """A cell of the matrix.

    Attributes:
        row: its name.
        version: of Kafka; of a rolling upgrade all of them, with arrows between them.
    """

    row: str
    version: str

    @property
    def versions(self) -> Sequence[str]:
        """The versions of Kafka that it needs."""
        return self.version.split(ARROW)


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, in its order."""
    return tuple(int(number) for number in version.split("."))


def chosen_versions(text: str | None, known: Collection[str]) -> list[str]:
    """Return the versions that a command line asks for, oldest first; all where it does not.

    Raises:
        PlanError: one of them is older than JBOD in KRaft, or is none that ``scripts/kafka`` gets.
    """
    asked = known if text is None else list(dict.fromkeys(text.split(",")))
    names = ", ".join(sorted(known, key=numbers))
    for version in asked:
        if re.fullmatch(r"\d+(\.\d+)+", version) and numbers(version)[:2] < OLDEST:
            raise PlanError(f"Apache Kafka {version}: no JBOD in KRaft before 3.7 (KIP-858): choose from {names}")
        if version not in known:
            raise PlanError(f"Apache Kafka {version}: scripts/kafka does not know it: choose from {names}")
    return sorted(asked, key=numbers)


def chosen_rows(text: str | None) -> list[str]:
    """Return the rows that a command line asks for, in the order of the table; all where it does not.

    Raises:
        PlanError: one does not exist.
    """
    asked = list(ROWS) if text is None else text.split(",")
    for row in asked:
        if row not in ROWS:
            raise PlanError(f"row {row}: there is none: choose from {', '.join(ROWS)}")
    return [row for row in ROWS if row in asked]


def cells(rows: Sequence[str], versions: Sequence[str]) -> Iterator[Cell]:
    """Yield the cells in the order in which they are measured, a version after the other.

    Raises:
        PlanError: nothing is asked for but a rolling upgrade with one version.
    """
    for version in versions:
        yield from (Cell(row, version) for row in rows if row != ROLLING)
    path = [version for version in UPGRADES if version in versions]
    if ROLLING in rows and len(path) > 1:
        yield Cell(ROLLING, ARROW.join(path))
    elif list(rows) == [ROLLING]:
        raise PlanError(f"row {ROLLING}: it needs two versions of {', '.join(UPGRADES)} at least")

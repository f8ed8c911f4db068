"""Cell of the matrix: ``python -m scripts.matrix.cell ROW VERSION DIRECTORY``, in namespaces of its own."""

import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog

from kjbod.errors import KjbodError
from scripts.matrix import plan
from scripts.matrix.agents import agent
from scripts.matrix.brokers import brokers
from scripts.matrix.guards import act, observe
from scripts.matrix.measure import write_outcome
from scripts.matrix.plan import Cell
from scripts.matrix.reading import read
from scripts.matrix.record import FAILED, OK, Outcome
from scripts.matrix.rolling import rolling
from scripts.matrix.secured import secured
from scripts.matrix.stage import Stage, stage
from scripts.rig import namespaces
from scripts.rig.kafka import KafkaKit

PERFORMED: Final[Mapping[str, Callable[[Stage], None]]] = MappingProxyType(
    {
        plan.READ: read,
        plan.AGENT: agent,
        plan.OBSERVE: observe,
        plan.ACT: act,
        plan.BROKERS: brokers,
        plan.SECURED: secured,
        plan.ROLLING: rolling,
    }
)


def perform(cell: Cell, base: Path) -> Outcome:
    """Do what a cell asks for, in a directory of its own, and return what came of it."""
    outcome = Outcome(cell.row, cell.version, OK)
    try:
        with stage(base, [KafkaKit.find(version) for version in cell.versions]) as made:
            outcome.absent, outcome.differences = made.absent, made.differences
            PERFORMED[cell.row](made)
    except (KjbodError, AssertionError, OSError) as error:
        traceback.print_exc()
        outcome.state, outcome.reason = FAILED, (str(error).splitlines() or [repr(error)])[0]
    return outcome


def main(arguments: list[str]) -> int:
    """The exit code: 0 when there is an outcome, a failed one too."""
    row, version, directory = arguments
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    # Rules of a guard, and sockets that it resets, are nobody else's.
    namespaces.enter_network()
    write_outcome(perform(Cell(row, version), Path(directory)), Path(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``scripts/compatibility``: measure the cells of the matrix that are not measured yet, and write its page."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.faults.disks import require_real_disks
from scripts.matrix import record
from scripts.matrix.measure import measure
from scripts.matrix.page import page
from scripts.matrix.plan import ROWS, Cell, cells, chosen_rows, chosen_versions
from scripts.matrix.record import FAILED, Outcome
from scripts.rig.kafka import known_versions
from scripts.rig.namespaces import require_namespaces
from scripts.terminal import INTERRUPTED

_ROOT: Final = Path(__file__).parents[2]
_PAGE: Final = _ROOT / "scripts" / "compatibility.md"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/compatibility",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="kjbod beside real Apache Kafka of each version: a table of Markdown, one cell at a time. It goes\n"
        "on where it was ended: cells that are ok in DIR/cells.jsonl are not measured again. Exit code 1\n"
        "when a cell fails.\n\nrows:\n" + "".join(f"  {name:<9} {title}\n" for name, title in ROWS.items()),
    )
    parser.add_argument("--versions", metavar="VERSION,...", help=f"these ({', '.join(known_versions())})")
    parser.add_argument("--rows", metavar="ROW,...", help="these rows (all)")
    parser.add_argument("--out", type=Path, default=_PAGE, metavar="FILE", help="the page (scripts/compatibility.md)")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("kjbod-compatibility"),
        metavar="DIR",
        help="outcomes and logs (./%(default)s)",
    )
    parser.add_argument("--again", action="store_true", help="measure all that is asked for, also what is ok")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 only when no cell that is asked for has failed."""
    options = arguments(argv)
    try:
        planned = list(cells(chosen_rows(options.rows), chosen_versions(options.versions, known_versions())))
        require_real_disks()
        require_namespaces()
        known = _measured(planned, options)
    except KjbodError as error:
        print(f"compatibility: {error}", file=sys.stderr)
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED
    failed = [cell for cell in planned if known[cell].state == FAILED]
    print(f"{len(planned)} cells, {len(failed)} failed: {options.out}")
    return EXIT_FAILURE if failed else 0


def _measured(planned: Sequence[Cell], options: argparse.Namespace) -> Mapping[Cell, Outcome]:
    """Measure what is left, write the page after each cell, and return all outcomes that are known."""
    file = options.work.resolve() / "cells.jsonl"
    known = record.read(file)
    for cell in planned if options.again else record.left_to_do(planned, known):
        print(f"{cell.version}: {cell.row} ...", flush=True)
        outcome = measure(cell, options.work.resolve() / "logs")
        record.append(file, outcome)
        known[cell] = outcome
        options.out.write_text(page(known), encoding="utf-8")
        print(
            f"{cell.version}: {cell.row}: {outcome.state} in {outcome.seconds:.0f} s {outcome.reason}".strip(),
            flush=True,
        )
    options.out.write_text(page(known), encoding="utf-8")
    return known


if __name__ == "__main__":
    sys.exit(main())

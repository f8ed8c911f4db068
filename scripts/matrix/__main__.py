"""``scripts/compatibility``: measure the cells of the matrix that are not measured yet, and write its page."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

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
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page (DIR/compatibility.md)")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("kjbod-compatibility"),
        metavar="DIR",
        help="outcomes and logs (./%(default)s)",
    )
    parser.add_argument("--again", action="store_true", help="measure all that is asked for, also what is ok")
    options = parser.parse_args(argv)
    options.out = options.out or options.work / "compatibility.md"
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 only when no cell that is asked for has failed."""
    options = arguments(argv)
    try:
        planned = list(cells(chosen_rows(options.rows), chosen_versions(options.versions, known_versions())))
        file = options.work.resolve() / "cells.jsonl"
        known = record.read(file)
        options.work.mkdir(parents=True, exist_ok=True)
        options.out.write_text(page(known), encoding="utf-8")  # before anything takes its time
        require_real_disks()
        require_namespaces()
        _measure(planned if options.again else record.left_to_do(planned, known), known, file, options.out)
    except KjbodError as error:
        print(f"compatibility: {error}", file=sys.stderr)
        return EXIT_FAILURE
    except OSError as error:
        print(f"compatibility: {error.filename}: {error.strerror}", file=sys.stderr)
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED
    failed = [cell for cell in planned if known[cell].state == FAILED]
    print(f"{len(planned)} cells, {len(failed)} failed: {options.out}")
    return EXIT_FAILURE if failed else 0


def _measure(left: Iterable[Cell], known: dict[Cell, Outcome], file: Path, out: Path) -> None:
    """Measure cells, and add each outcome to those that are known, to their file and to the page."""
    for cell in left:
        print(f"{cell.version}: {cell.row} ...", flush=True)
        outcome = known[cell] = measure(cell, file.parent / "logs")
        record.append(file, outcome)
        out.write_text(page(known), encoding="utf-8")
        said = f"{cell.version}: {cell.row}: {outcome.state} in {outcome.seconds:.0f} s {outcome.reason}"
        print(said.strip(), flush=True)


if __name__ == "__main__":
    sys.exit(main())

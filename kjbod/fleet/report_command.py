"""``kjbod fleet report``: from a folder of agents' reports to tables and a page.

Exit codes: 0, the report is made and complete; 1, it is made, and some data had to be set aside; 2, it cannot be made,
and a report that was there before is as it was.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from kjbod.cli.error_lines import say
from kjbod.cli.output import OutputError, Printer
from kjbod.clock import SystemClock
from kjbod.fleet.command import EXIT_CANNOT_RUN, EXIT_DATA, EXIT_INTERRUPTED, EXIT_OK, interruptible, spark_reason
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.job import Inventory, run_report
from kjbod.fleet.publishing import local_path, publish, workspace
from kjbod.fleet.schema import STREAMS
from kjbod.fleet.summary import Report, sentences
from kjbod.fleet.svg import plural

Progress = Callable[[str], None]
OnError = Callable[[OSError], None]

OUTPUTS = ("index.html", "report.json", "tables", "quarantine")
"""What a report consists of; nothing else in the output folder is ever touched."""


def report(reports: str | Path, out: str | Path, master: str | None = None, silent_after_ms: int | None = None) -> int:
    """Make the report and say so on the terminal. Returns the exit code; a user's mistake is one line on stderr."""
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    printer = Printer(patient=True)  # where nobody can read how far it is, the report is made all the same

    def progress(text: str) -> None:
        printer(f"[{(clock.monotonic_ms() - started_ms) / 1000:5.1f} s] {text}")

    try:
        reports_dir, out_dir = local_path("--reports", reports), local_path("--out", out)
        with interruptible():
            result = make_report(reports_dir, out_dir, master, progress, silent_after_ms)
    except FleetError as error:
        say(f"kjbod fleet report: {error}")
        return EXIT_CANNOT_RUN
    except KeyboardInterrupt:
        say("kjbod fleet report: interrupted; nothing was changed")
        return EXIT_INTERRUPTED
    progress("done")
    lines = [*sentences(result), *_problems(result, out_dir), f"page:   {out_dir / 'index.html'}"]
    printer(*lines, f"tables: {out_dir / 'tables'}")
    try:
        printer.close()
    except OutputError as error:
        say(f"kjbod fleet report: {error.format_message()}")
    return EXIT_DATA if result.bad_files else EXIT_OK


def _problems(result: Report, out_dir: Path) -> list[str]:
    lines = [
        f"  {row['file'].rsplit('/', 1)[-1]}: {row['status']}, {row['bad_lines'] if row['kept'] else 'all'} lines aside"
        for row in result.bad_files[:10]
    ]
    return [*lines, f"quarantine: {out_dir / 'quarantine'}"] if lines else []


def make_report(
    reports_dir: Path, out_dir: Path, master: str | None, progress: Progress, silent_after_ms: int | None = None
) -> Report:
    """Make the report in a folder beside ``out_dir`` and move it there when it is whole.

    Raises:
        FleetError: it cannot be made.
    """
    found = inventory(reports_dir)
    with workspace(out_dir) as work:
        progress(f"{plural(found.count, 'report file')}, {found.size:,} bytes, below {reports_dir}; starting Spark")
        from kjbod.fleet.session import spark_session

        with spark_session(master, found.size) as spark:
            from py4j.protocol import Py4JError
            from pyspark.errors import PySparkException

            try:
                result = run_report(spark, found, work, progress, silent_after_ms)
            except (PySparkException, Py4JError) as error:
                raise FleetError(f"Spark failed: {spark_reason(error)}") from error
        publish(work, out_dir, OUTPUTS)
    return result


def inventory(reports_dir: Path) -> Inventory:
    """Count report files, and make sure that each can be read: Spark, told to pass over torn files, would pass over
    unreadable ones as well.

    Raises:
        FleetError: no such directory, no report file in it, or a file that may not be read.
    """
    try:
        there = stat.S_ISDIR(reports_dir.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        there = False
    except OSError as error:
        raise _unreadable(reports_dir, error) from None
    if not there:
        raise FleetError(f"no reports directory {reports_dir}: give the one of kjbod.reports.dir")
    files: dict[str, dict[str, int]] = {stream: {} for stream in STREAMS}
    open_files = 0

    def refuse(error: OSError) -> None:
        raise _unreadable(error.filename, error)

    root = reports_dir.resolve()
    for stream in STREAMS:
        for folder, _, names in os.walk(root / stream, onerror=_unless_missing(refuse)):
            for name in names:
                path = Path(folder, name)
                if name.startswith("."):
                    open_files += name.endswith(".jsonl")
                elif name.endswith((".jsonl", ".jsonl.gz")):
                    _check_readable(path)
                    files[stream][path.as_uri()] = path.stat().st_size
    found = Inventory(root.as_uri(), files, open_files)
    if not found.count:
        waiting = f"; {plural(open_files, 'file')} still being written by agents" if open_files else ""
        raise FleetError(f"no report file below {reports_dir} (samples/ and events/ with *.jsonl.gz){waiting}")
    return found


def _unless_missing(refuse: OnError) -> OnError:
    return lambda error: None if isinstance(error, FileNotFoundError) else refuse(error)


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str | Path, error: OSError) -> FleetError:
    return FleetError(f"cannot read {path}: {error.strerror}: give its reader the right to, or move it away")

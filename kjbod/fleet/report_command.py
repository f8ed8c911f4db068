"""``kjbod fleet report --reports``: the page of inboxes without a lake of one's own.

It takes them into a lake that is made for it beside the page, rolls that up, and removes it: what the page says, and
what is set aside, is as with a lake that is kept.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from kjbod.fleet.ahead import Ahead, session_bytes
from kjbod.fleet.command import EXIT_DATA, EXIT_OK, Place, Running, run_command
from kjbod.fleet.dates import check_dates
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.publishing import is_local, local_path, publish, workspace
from kjbod.fleet.report_files import MARKS, OUTPUTS, Wanted, make_files, previous_report, write_json
from kjbod.fleet.schema import STREAMS
from kjbod.fleet.svg import plural

_LAKE = "lake"
_NAMED_MAX = 3


def report_inboxes(reports: Sequence[str], out: str, wanted: Wanted, place: Place) -> int:
    """Make the report and say so on the terminal. Returns the exit code; a user's mistake is one line on stderr.

    Args:
        reports: inboxes, as paths or URIs.
        out: directory of this machine.
        wanted: what the report is to have.
        place: where Spark runs.
    """

    def body(running: Running) -> int:
        out_dir = local_path("--out", out)
        check_dates(wanted.from_date, wanted.to_date)
        inboxes, ahead = _looked_at(reports)
        with workspace(out_dir, MARKS) as work, running.watched_session(session_bytes(ahead)) as spark:
            from kjbod.fleet.ingest.command import said
            from kjbod.fleet.ingest.stream import ingest_into
            from kjbod.fleet.lake.claim import claimed
            from kjbod.fleet.lake.lake import open_lake
            from kjbod.fleet.page.words import sentences
            from kjbod.fleet.rollup.run import rollup_into

            lake = open_lake(spark, str((work / _LAKE).absolute()), create=True)
            with claimed(lake, "ingest"):
                taken = ingest_into(spark, lake, inboxes, running.progress, ahead=ahead)
            if not taken.files:
                raise FleetError(f"no report file below {', '.join(reports)} (samples/ and events/ with *.jsonl.gz)")
            if not any(taken.rows.values()):
                aside = "; ".join(f"{row['file']} is {row['status']}" for row in taken.bad_files[:_NAMED_MAX])
                raise FleetError(f"no good line in {plural(sum(taken.files.values()), 'report file')}: {aside}")
            rollup_into(spark, lake, running.progress)
            report = make_files(lake, work, running.progress, wanted, previous_report(out_dir))
            write_json(work, wanted)
            publish(work, out_dir, OUTPUTS)
        running.progress("done")
        running.print(*sentences(report), *said(taken), f"page: {out_dir / 'index.html'}")
        return EXIT_OK if taken.is_clean else EXIT_DATA

    return run_command(
        "report", body, place, interrupted="interrupted; nothing of it is left, and the next run begins anew"
    )


def _looked_at(reports: Sequence[str]) -> tuple[list[str], Ahead | None]:
    """Inboxes for Spark, and what waits in them if all are on this machine. What they lack is said before Spark starts,
    and what may not be read, which Spark would pass over.

    Raises:
        FleetError: no such directory, no report file in it, or a file that may not be read.
    """
    inboxes, found = [], []
    for given in reports:
        if not is_local(given):
            inboxes.append(given)
            continue
        path = local_path("--reports", given)
        found.append(_size_of(path))
        inboxes.append(str(path.absolute()))
    if len(found) < len(inboxes):
        return inboxes, None
    return inboxes, Ahead(sum(files for files, _ in found), sum(size for _, size in found), True, 0)


def _size_of(reports_dir: Path) -> tuple[int, int]:
    """Report files of an inbox, and their bytes."""
    try:
        there = stat.S_ISDIR(reports_dir.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        there = False
    except OSError as error:
        raise _unreadable(reports_dir, error) from None
    if not there:
        raise FleetError(f"no reports directory {reports_dir}: give the one of kjbod.reports.dir")
    total = files = waiting = 0

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise _unreadable(error.filename, error)

    for stream in STREAMS:
        for folder, _, names in os.walk(reports_dir / stream, onerror=refuse):
            for name in names:
                if name.startswith("."):
                    waiting += name.endswith(".jsonl")
                elif name.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst")):
                    total += _readable_bytes(Path(folder, name))
                    files += 1
    if not files:
        more = f"; {plural(waiting, 'file')} still being written by agents" if waiting else ""
        raise FleetError(f"no report file below {reports_dir} (samples/ and events/ with *.jsonl.gz){more}")
    return files, total


def _readable_bytes(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str | Path, error: OSError) -> FleetError:
    return FleetError(f"cannot read {path}: {error.strerror}: give its reader the right to, or move it away")

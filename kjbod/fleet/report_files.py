"""``kjbod fleet report``: from the gold of a lake to files that people open: the page, its drill-downs, JSON.

Everything is made in a folder beside the old report and renamed into place when it is whole, the first page last.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kjbod.fleet.command import EXIT_DATA, EXIT_OK, Running, run_command
from kjbod.fleet.command import Place as Where
from kjbod.fleet.dates import check_dates
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.insight.model import Window
from kjbod.fleet.lake.lake import Lake, open_lake
from kjbod.fleet.page.changes import before
from kjbod.fleet.page.details import host_page, hosts_page, model_page
from kjbod.fleet.page.document import report_json
from kjbod.fleet.page.index import index_page
from kjbod.fleet.page.model import Agent, FleetReport, HostDetail, host_file, model_file
from kjbod.fleet.page.words import sentences
from kjbod.fleet.publishing import local_path, publish, workspace
from kjbod.fleet.svg import plural

Progress = Callable[[str], None]

OUTPUTS = ("index.html", "report.json", "hosts", "models")
"""What a report consists of; nothing else in the output folder is ever touched."""
MARKS = OUTPUTS[:2]
"""One of them is in a folder that has a report of before, beside whatever else is there."""
PREVIOUS_BYTES_MAX = 16 << 20
"""A ``report.json`` that is larger is none of ours."""
LAKE_BYTES = 64 << 20
"""What the gold of a lake is taken for before it is opened: a month of 1,000 hosts."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Wishes for a report."""

    from_date: str | None = None
    to_date: str | None = None
    days: int | None = None
    """So many dates up to the last one."""
    json_file: str | None = None
    """Where ``report.json`` is written to as well."""
    silent_after_ms: int | None = None
    """See :func:`kjbod.fleet.report.collect_report`."""


def report_lake(lake: str, out: str, wanted: Wanted, where: Where) -> int:
    """Make the report of a lake and say so on the terminal. Returns the exit code."""

    def body(running: Running) -> int:
        out_dir = local_path("--out", out)
        check_dates(wanted.from_date, wanted.to_date)
        with workspace(out_dir, MARKS) as work, running.watched_session(LAKE_BYTES) as spark:
            opened = open_lake(spark, lake)
            report = make_files(opened, work, running.progress, wanted, previous_report(out_dir))
            write_json(work, wanted)
            publish(work, out_dir, OUTPUTS)
        running.progress("done")
        running.print(*sentences(report), f"page: {out_dir / 'index.html'}")
        return EXIT_DATA if report.data.bad_files else EXIT_OK

    return run_command("report", body, where)


def make_files(
    lake: Lake, work: Path, progress: Progress, wanted: Wanted | None = None, previous: str | None = None
) -> FleetReport:
    """Write all files of a report of the newest state of ``lake`` to ``work``; ``previous`` is the ``report.json`` of
    the report before.

    Raises:
        FleetError: the dates are none, or there are no data of them.
    """
    from kjbod.fleet.report import Hosts, collect_report, dates_of

    def draw_hosts(hosts: Hosts) -> None:
        progress(f"drawing the pages of {plural(hosts.count, 'host')}")
        (work / "hosts").mkdir()
        with (work / "hosts/index.html").open("w", encoding="utf-8", errors="replace") as listed:
            listed.writelines(
                hosts_page(_drawn(work / "hosts", hosts.details(), hosts.window, hosts.days), hosts.window)
            )

    wanted = wanted or Wanted()
    state = lake.state()
    report = collect_report(
        lake,
        state,
        dates_of(state, wanted.from_date, wanted.to_date, wanted.days, lake.clock.wall_ms()),
        progress,
        draw_hosts,
        silent_after_ms=wanted.silent_after_ms,
        before=before(previous),
        open_end=wanted.to_date is None,
    )
    progress("drawing the page")
    text = json.dumps(report_json(report), indent=1, sort_keys=True)
    (work / "report.json").write_text(text + "\n", encoding="utf-8")
    _write(work / "index.html", index_page(report))
    (work / "models").mkdir()
    for disks in report.models:
        _write(work / "models" / model_file(disks.model), model_page(disks, report))
    return report


def _drawn(folder: Path, details: Iterator[HostDetail], window: Window, days: int) -> Iterator[Agent]:
    """Agents, as soon as the page of their host is written."""
    for detail in details:
        agent = detail.agent
        _write(folder / host_file(agent.fleet, agent.host, agent.broker_id), host_page(detail, window, days))
        yield agent


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="replace")


def previous_report(out_dir: Path) -> str | None:
    """The ``report.json`` that is there; None where there is none that can be read."""
    path = out_dir / "report.json"
    try:
        if path.stat().st_size > PREVIOUS_BYTES_MAX:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def write_json(work: Path, wanted: Wanted) -> None:
    """Write ``report.json`` to where it is wanted as well.

    Raises:
        FleetError: it cannot be written.
    """
    if wanted.json_file is not None:
        path = local_path("--json", wanted.json_file)
        _write_beside(path, (work / "report.json").read_text(encoding="utf-8"))


def _write_beside(path: Path, text: str) -> None:
    """Write a file under another name and rename it.

    Raises:
        FleetError: it cannot be written.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix=".kjbod-fleet-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise FleetError(f"cannot write to {path}: {error.strerror}: give --json another place") from None

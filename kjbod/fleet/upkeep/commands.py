"""``kjbod fleet compact``, ``retain``, ``verify``, ``query`` and ``publish``: what they say, and their exit codes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kjbod.fleet.command import EXIT_DATA, EXIT_OK, Place, Running, run_command
from kjbod.fleet.session import LARGE_INPUT_BYTES
from kjbod.output import complain, plural, safe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kjbod.fleet.lake.lake import Lake
    from kjbod.fleet.upkeep.retain import Limits, Result

_LARGE = LARGE_INPUT_BYTES + 1
"""Settings for millions of rows: these commands read whole days."""


def compact(lake_uri: str, days: Sequence[str], older_than: int, place: Place) -> int:
    """Compact a lake, and say what came of it."""

    def body(running: Running) -> int:
        with running.watched_session(_LARGE) as spark:
            return compact_lake(running, spark, lake_uri, days, older_than)

    return run_command("compact", body, place)


def compact_lake(running: Running, spark: "SparkSession", lake_uri: str, days: Sequence[str], older_than: int) -> int:
    """Compact in a session."""
    from kjbod.fleet.lake.claim import claimed
    from kjbod.fleet.lake.lake import open_lake
    from kjbod.fleet.upkeep import compact as job

    lake = open_lake(spark, lake_uri)
    with claimed(lake, "compact"):
        state, today = lake.state(), job.today_of(running.clock.wall_ms())
        done = job.compact(lake, job.dates_to_compact(state, days, older_than, today), running.progress)
    running.progress("done")
    for one in done:
        left_out = f"; {plural(one.repeated, 'repetition')} left out" if one.repeated else ""
        running.print(f"{one.table} {one.date}: {plural(one.pieces, 'piece')} -> 1, {one.rows:,} rows{left_out}")
    if not done:
        running.print("nothing to compact")
    there = job.dates_of(state)
    if missing := sorted(set(days).difference(there)):
        has = f"the lake has {there[0]} to {there[-1]}" if there else "the lake is empty"
        running.print(f"no data of {_some(missing)}: {has}")
    ahead = [] if days else job.dates_ahead(state, today)
    if ahead:
        running.print(
            f"dates that are yet to come, of hosts whose clocks are wrong: {_some(ahead)}: --day compacts them"
        )
    return EXIT_OK


def retain(
    lake_uri: str, limits: "Limits", reports: Sequence[str], place: Place, *, dry_run: bool, delete_ingested: bool
) -> int:
    """Delete what is too old, and say what went and what stays."""

    def body(running: Running) -> int:
        limits.checked()
        with running.session() as spark:
            return retain_lake(running, spark, lake_uri, limits, reports if delete_ingested else (), dry_run=dry_run)

    return run_command("retain", body, place)


def retain_lake(
    running: Running, spark: "SparkSession", lake_uri: str, limits: "Limits", reports: Sequence[str], *, dry_run: bool
) -> int:
    """Retain in a session; reports are deleted only where inboxes are given."""
    from kjbod.fleet.lake.claim import claimed
    from kjbod.fleet.lake.lake import open_lake
    from kjbod.fleet.upkeep import retain as job

    lake = open_lake(spark, lake_uri)
    # Compacting deletes nothing and retention names nothing, but the one must not take away what the other reads.
    with claimed(lake, "retain"), claimed(lake, "compact"):
        deleted, kept = _retain_reports(running, lake, limits, reports, dry_run=dry_run)
        result = job.retain(lake, limits, running.progress, dry_run=dry_run)
    running.progress("done")
    _say_retained(running, result, dry_run=dry_run)
    if reports:
        running.print(f"{plural(deleted, 'report file')} {'would be ' if dry_run else ''}deleted")
        if kept:
            running.print(f"{plural(kept, 'old report file')} kept: the lake does not prove that it holds them")
    return EXIT_DATA if result.plan.kept or result.not_ours else EXIT_OK


def _retain_reports(
    running: Running, lake: "Lake", limits: "Limits", reports: Sequence[str], *, dry_run: bool
) -> tuple[int, int]:
    from kjbod.fleet.ingest.stream import inbox_uri
    from kjbod.fleet.upkeep.compact import today_of
    from kjbod.fleet.upkeep.reports import delete_ingested
    from kjbod.fleet.upkeep.retain import cutoff

    before, total = cutoff(today_of(running.clock.wall_ms()), limits.raw_days), (0, 0)
    for uri in reports if before else ():
        inbox = inbox_uri(lake.spark, uri)
        deleted, kept = delete_ingested(lake, inbox, before, running.progress, dry_run=dry_run)
        total = total[0] + deleted, total[1] + kept
    return total


def _say_retained(running: Running, result: "Result", *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    by_table: dict[str, list[str]] = {}
    for table, date in result.plan.out:
        by_table.setdefault(table, []).append(date)
    for table, dates in by_table.items():
        running.print(f"{table}: {would}taken out: {_some(dates)}")
    if result.rows:
        running.print(f"{result.rows:,} rows {would}taken out; their files are deleted an hour later, by the next run")
    if result.deleted:
        running.print(f"{plural(len(result.deleted), 'directory', 'directories')} {would}deleted")
    if result.waiting:
        running.print(f"{plural(result.waiting, 'directory', 'directories')} to be deleted later")
    for kept in result.plan.kept:
        running.print(f"{kept.table} {kept.date}: kept though it is old: {kept.why}")
    for path in result.not_ours:
        running.print(f"{safe(path)}: not deleted: below a symbolic link, or not all of it was made by kjbod")
    if not (by_table or result.deleted or result.waiting or result.plan.kept or result.not_ours):
        running.print("nothing is too old")


def verify(lake_uri: str, sample: int, seed: int, place: Place) -> int:
    """Count a lake again, and say each difference."""

    def body(running: Running) -> int:
        with running.watched_session(_LARGE) as spark:
            return verify_lake(running, spark, lake_uri, sample, seed)

    return run_command("verify", body, place)


def verify_lake(running: Running, spark: "SparkSession", lake_uri: str, sample: int, seed: int) -> int:
    """Verify in a session."""
    from kjbod.fleet.lake.lake import open_lake
    from kjbod.fleet.upkeep import verify as job

    found = job.verify(open_lake(spark, lake_uri), running.progress, sample, seed)
    running.progress("done")
    for difference in found.differences:
        running.print(safe(difference))
    again = f"{plural(len(found.hours), 'hour')} and {plural(len(found.dates), 'date')} of gold computed again"
    counted = f"{plural(found.pieces, 'piece')}, {found.rows:,} rows, {again}"
    running.print(f"{counted}: {plural(len(found.differences), 'difference') if found.differences else 'all equal'}")
    return EXIT_DATA if found.differences else EXIT_OK


def query(lake_uri: str, sql: str, form: str, limit: int, place: Place) -> int:
    """Run a query, and print its rows."""

    def body(running: Running) -> int:
        with running.session() as spark:
            return query_lake(running, spark, lake_uri, sql, form, limit)

    return run_command("query", body, place)


def query_lake(running: Running, spark: "SparkSession", lake_uri: str, sql: str, form: str, limit: int) -> int:
    """Query in a session."""
    from kjbod.fleet.lake.lake import open_lake
    from kjbod.fleet.upkeep import query as job

    answer = job.query(open_lake(spark, lake_uri), sql, limit)
    running.print(*job.printed(answer, form))
    if answer.is_cut:
        complain(f"only the first {limit:,} rows: --limit takes more")
    return EXIT_OK


def publish(lake_uri: str, to: str, warehouse: str | None, place: Place) -> int:
    """Bring the tables of an Iceberg catalog up to date."""

    def body(running: Running) -> int:
        with running.watched_session(_LARGE) as spark:
            return publish_lake(running, spark, lake_uri, to, warehouse)

    return run_command("publish", body, place)


def publish_lake(running: Running, spark: "SparkSession", lake_uri: str, to: str, warehouse: str | None) -> int:
    """Publish in a session."""
    from kjbod.fleet.lake.claim import claimed
    from kjbod.fleet.lake.iceberg import IcebergTables
    from kjbod.fleet.lake.lake import open_lake
    from kjbod.fleet.upkeep import publish as job

    lake = open_lake(spark, lake_uri)
    tables = IcebergTables(spark, to, warehouse)
    with claimed(lake, "publish"):
        written = job.publish(lake, tables, running.progress)
    running.progress("done")
    for table, dates in written.items():
        running.print(f"{tables.name_of(table)}: {plural(len(dates), 'date')}: {_some(dates)}")
    if not written:
        running.print(f"{to} is up to date")
    return EXIT_OK


def _some(dates: Sequence[str]) -> str:
    return ", ".join(dates) if len(dates) <= 3 else f"{dates[0]} ... {dates[-1]} ({len(dates)})"

"""``kjbod fleet ingest``: takes what is new in the inboxes, and says what it took."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from kjbod.fleet.ahead import Ahead, look_ahead, session_bytes
from kjbod.fleet.command import EXIT_DATA, EXIT_OK, Place, Running, run_command
from kjbod.fleet.fleet_error import ClaimedError
from kjbod.fleet.ingest.stream import IngestResult, inbox_uri, ingest_into
from kjbod.fleet.lake.claim import claimed
from kjbod.fleet.lake.lake import open_lake
from kjbod.fleet.rollup.command import rolled_up
from kjbod.fleet.rollup.run import RollupResult, rollup_into
from kjbod.fleet.schema import EVENTS, SAMPLES
from kjbod.fleet.session import is_nearby
from kjbod.fleet.svg import plural

_BAD_FILES_SAID = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """Options of the user."""

    lake: str
    reports: Sequence[str]
    files_max: int
    every_s: float | None = None
    """Follow the inboxes, and look at them so often."""
    rescan: bool = False
    delete_ingested: bool = False
    rollup: bool = False
    """Roll up what was taken, and what was touched before."""


def ingest(asked: Asked, place: Place) -> int:
    """Run it. Returns the exit code; a user's mistake is one line on stderr."""

    def body(running: Running) -> int:
        ahead = _looked(asked, place)
        if ahead and is_nothing(ahead, asked):
            running.print("nothing new", *(rolled_up(RollupResult()) if asked.rollup else ()))
            return EXIT_OK
        with running.watched_session(session_bytes(ahead)) as spark:
            for given in asked.reports:  # before a lake is made for nothing
                inbox_uri(spark, given)
            lake = open_lake(spark, asked.lake, create=True)

            told = ""

            def roll_again() -> bool:
                nonlocal told
                try:
                    done = rollup_into(spark, lake, running.progress)
                except ClaimedError as error:  # by hand, perhaps: what this one took stays to be rolled up
                    if told != str(error):
                        running.progress(f"rolled up later: {error}")
                    told = str(error)
                    return False
                told = ""
                if done.hours:
                    running.print(*rolled_up(done))
                return True

            with claimed(lake, "ingest"):
                result = ingest_into(
                    spark,
                    lake,
                    asked.reports,
                    running.progress,
                    files_max=asked.files_max,
                    rescan=asked.rescan,
                    every_s=asked.every_s,
                    delete_ingested=asked.delete_ingested,
                    then=roll_again if asked.rollup else None,
                    ahead=ahead,
                )
            running.print(*said(result))
            if asked.rollup:
                running.print(*rolled_up(rollup_into(spark, lake, running.progress)))
        return EXIT_OK if result.is_clean else EXIT_DATA

    return run_command("ingest", body, place)


def _looked(asked: Asked, place: Place) -> Ahead | None:
    """None where Spark is somewhere else, and for what only Spark can do or nobody can foresee."""
    elsewhere = place.remote or os.environ.get("SPARK_REMOTE") or "PYSPARK_GATEWAY_PORT" in os.environ
    if elsewhere or not is_nearby(place.master or "local") or asked.every_s is not None or asked.rescan:
        return None
    return look_ahead(asked.lake, asked.reports)


def is_nothing(ahead: Ahead, asked: Asked) -> bool:
    """Whether there is nothing to do."""
    waits = ahead.files or not ahead.is_settled or (asked.rollup and ahead.touched)
    return not waits and not asked.delete_ingested


def said(result: IngestResult) -> list[str]:
    """A result, for people."""
    if not result.files:
        return ["nothing new"]
    statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(result.files.items()))
    rows = f"{plural(result.rows[SAMPLES], 'sample')} and {plural(result.rows[EVENTS], 'event')}"
    hours = f"{plural(len(result.hours), 'hour')} touched"
    lines = [f"{plural(sum(result.files.values()), 'file')}: {statuses}"]
    lines.append(
        f"{rows}, {plural(result.bad_lines, 'bad line')}, {hours}, {plural(result.batches, 'batch', 'batches')}"
    )
    if result.deleted:
        lines.append(f"{plural(result.deleted, 'file')} of the inboxes deleted, which the lake holds")
    for row in result.bad_files[:_BAD_FILES_SAID]:
        aside = f"{row['bad_lines']:,}" if row["kept"] else "all"
        lines.append(f"  {row['stream']}/{row['file']}: {row['status']}, {aside} lines aside")
    if result.bad_files:
        lines.append("what was set aside, and why: audit.files and audit.quarantine of the lake")
    return lines

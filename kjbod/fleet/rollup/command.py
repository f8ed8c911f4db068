"""``kjbod fleet rollup``."""

from typing import TYPE_CHECKING

from kjbod.fleet.command import EXIT_OK, Place, Running, run_command
from kjbod.fleet.svg import plural

if TYPE_CHECKING:
    from kjbod.fleet.rollup.run import RollupResult


def rollup(lake_uri: str, place: Place, *, everything: bool = False) -> int:
    """Roll up the lake and say what was done. Returns the exit code; a user's mistake is one line on stderr."""

    def body(running: Running) -> int:
        with running.watched_session() as spark:
            from kjbod.fleet.lake.lake import open_lake
            from kjbod.fleet.rollup.run import rollup_into

            lake = open_lake(spark, lake_uri)
            done = rollup_into(spark, lake, running.progress, everything=everything)
            running.progress("done")
            running.print(*rolled_up(done))
        return EXIT_OK

    return run_command("rollup", body, place)


def rolled_up(done: "RollupResult") -> list[str]:
    """A result, for people."""
    if not done.hours:
        return ["nothing to roll up: gold is that of all silver"]
    return [
        f"rolled up {plural(done.hours, 'hour')} of {plural(done.dates, 'day')}; state {done.version}",
        *(f"  {table}: {plural(rows, 'row')}" for table, rows in (done.rows or {}).items()),
    ]

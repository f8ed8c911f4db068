"""Measure how well the rules of health tell failing drives from others, of what was imported into a lake."""

import argparse

from kjbod.fleet.command import Place, Running, run_command


def measure(running: Running, uri: str) -> int:
    """Print the tables of kjbod/fleet/README.md."""
    from kjbod.fleet.insight.evaluate import as_markdown, evaluate, tickets_told
    from kjbod.fleet.insight.rules import AT_RISK_FROM
    from kjbod.fleet.lake.lake import open_lake

    with running.session() as spark:
        lake = open_lake(spark, uri)
        state = lake.state()
        if state.pieces("imported.drive_day"):
            found = evaluate(lake.read("imported.drive_day", state), AT_RISK_FROM)
            running.print(*as_markdown(found), f"failures on the first day of a drive, left out: {found.without_past}")
        if state.pieces("imported.ticket"):
            for threshold in (0.3, AT_RISK_FROM):
                tickets, known, told, baseline = tickets_told(lake.read("imported.ticket", state), threshold)
                running.print(
                    f"{tickets:,} tickets, {known:,} with SMART: {told:,} reach {threshold}, baseline {baseline:,}"
                )
    return 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lake", required=True, metavar="URI")
    parser.add_argument("--master", help="Spark's master")
    given = parser.parse_args()
    return run_command("health", lambda running: measure(running, given.lake), Place(given.master))


if __name__ == "__main__":
    raise SystemExit(main())

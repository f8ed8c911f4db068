"""What was seen of drives over many dates, summed up: it says what the days say, and goes on with them."""

import dataclasses
import datetime
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from kjbod.fleet.lake.state import Piece
from kjbod.fleet.schema import EventKind
from tests.depth import seeds
from tests.fleet.conftest import Agent
from tests.fleet.parts import drawn
from tests.fleet.silver_rows import take_in

pytestmark = pytest.mark.usefixtures("with_spark")

HOUR_MS = 3_600_000
NOON = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.UTC)
DATES = [(NOON + datetime.timedelta(day)).date().isoformat() for day in range(-150, 30)]
"""Of several blocks."""


def day_of(rng: random.Random, date: str, drive: str, path: str, dir_id: str) -> dict[str, Any]:
    return {
        "source": "kjbod",
        "fleet": rng.choice(("f", None)),
        "host": "h1",
        "path": path,
        "dir_id": dir_id,
        "drive": drive,
        "model": rng.choice(("M1", "M2", None)),
        "failed": int(rng.random() < 0.05),
        "well": int(rng.random() < 0.9),
        "last_ts": rng.choice((None, 5, 9)),
        "smart_poh": rng.choice((None, rng.randrange(9_000))),
        "date": date,
    }


def days_of_drives(rng: random.Random) -> list[dict[str, Any]]:
    """Rows of ``gold.drive_day``: drives that move, have two directories, and are known by directory ids at times."""
    found = {}
    for date in rng.sample(DATES, 60):
        for number in range(3):
            for path in ("/d1", "/d2"):
                dir_id = f"id-{rng.randrange(3)}"
                drive = dir_id if rng.random() < 0.2 else f"S{number}"
                if rng.random() < 0.7:
                    row = day_of(rng, date, drive, path, dir_id)
                    found[tuple(row[name] for name in ("fleet", "drive", "host", "path", "date"))] = row
    return list(found.values())


def lives_of(rows: list[dict[str, Any]]) -> dict[tuple[Any, str], dict[str, Any]]:
    """Lives of drives, of their days one by one."""
    names: dict[tuple[str, str], tuple[str, str]] = {}
    for row in rows:
        if row["drive"] != row["dir_id"]:
            place = (row["path"], row["dir_id"])
            names[place] = max(names.get(place, ("", "")), (row["date"], row["drive"]))
    by_drive: dict[tuple[Any, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        nameless = row["drive"] == row["dir_id"]
        drive = names.get((row["path"], row["dir_id"]), ("", row["drive"]))[1] if nameless else row["drive"]
        by_drive[row["fleet"], drive].append(row)
    found = {}
    for drive, days in by_drive.items():
        dates, failed = {row["date"] for row in days}, sorted({row["date"] for row in days if row["failed"]})
        poh = [row["smart_poh"] for row in days if row["smart_poh"] is not None]
        found[drive] = {
            "model": max(((row["date"], row["model"]) for row in days if row["model"]), default=(None, None))[1],
            "path": max((row["date"], row["last_ts"] or 0, row["path"]) for row in days)[2],
            "first_date": min(dates),
            "last_date": max(dates),
            "days": len(dates),
            "first_poh": min(poh, default=None),
            "last_poh": max(poh, default=None),
            "failed_date": failed[0] if failed else None,
            "failures": len(failed),
            "days_after_failure": len([date for date in dates if failed and date > failed[0]]),
        }
    return found


@pytest.mark.parametrize("seed", seeds())
def test_lives_of_sums_in_any_steps_are_those_of_the_days(spark: Any, seed: int) -> None:
    from kjbod.fleet.rollup.drive_past import merged_past, past_of_days
    from kjbod.fleet.rollup.drives import drive_life, remembered
    from tests.fleet.gold_rows import frame

    rng = random.Random(seed)
    rows = days_of_drives(rng)
    first, second = sorted(rng.sample(DATES, 2))
    parts = [
        past_of_days(frame(spark, "gold.drive_day", [row for row in rows if low <= row["date"] < high]))
        for low, high in (("", first), (first, second), (second, "~"))
    ]
    summed = merged_past(merged_past(parts[0]).unionByName(parts[1])).unionByName(parts[2])
    straight = past_of_days(frame(spark, "gold.drive_day", rows))
    assert remembered(summed).exceptAll(remembered(straight)).collect() == []
    assert drive_life(summed).exceptAll(drive_life(straight)).collect() == []
    expected = lives_of(rows)
    found = {(row["fleet"], row["drive"]): row.asDict() for row in drive_life(summed).collect()}
    assert {drive: {name: row[name] for name in expected[drive]} for drive, row in found.items()} == expected


def rolled(lake: Any) -> None:
    from kjbod.fleet.rollup.run import rollup_into

    rollup_into(lake.spark, lake, lambda _: None)


def seen(day: int, hour: int = 0, **more: Any) -> Agent:
    """An agent's sample of an hour of a day."""
    agent = Agent(dirs=1)
    agent.sample((24 * day + hour) * HOUR_MS, 24 * day + hour, agent.paths[0], **more)
    return agent


def of_table(lake: Any, name: str) -> tuple[list[str], list[dict[str, Any]]]:
    state = lake.state()
    rows = [row.asDict() for row in lake.read(f"gold.{name}", state).collect()]
    return [piece.path for piece in state.pieces(f"gold.{name}")], rows


def life(lake: Any) -> tuple[str, str, int, str | None]:
    ((row,),) = (of_table(lake, "drive_life")[1],)
    return row["first_date"], row["last_date"], row["days"], row["failed_date"]


@drawn("rollup past")
def test_days_are_summed_up_once_until_one_of_them_changes(spark: Any, tmp_path: Path) -> None:
    from kjbod.fleet.lake.lake import open_lake
    from kjbod.fleet.upkeep.gold_again import drive_life_again

    def date(day: int) -> str:
        return DATES[150 + day]

    def checked(expected: tuple[str, str, int, str | None]) -> None:
        assert life(lake) == expected
        assert list(drive_life_again(lake, lake.state(), ())) == []

    lake = open_lake(spark, tmp_path.as_uri(), create=True)
    take_in(lake, *(seen(day) for day in range(4)))
    rolled(lake)
    summed, [past] = of_table(lake, "drive_past")
    assert (past["first_date"], past["last_date"], past["seen"].bit_count()) == (date(0), date(1 - 1), 1)
    checked((date(0), date(3), 4, None))

    take_in(lake, seen(3, 1), seen(2, 1))  # one of them late, as the first hour after midnight is
    rolled(lake)
    assert of_table(lake, "drive_past")[0] == summed

    take_in(lake, seen(4))
    rolled(lake)
    assert of_table(lake, "drive_past")[1][0]["last_date"] == date(1)
    checked((date(0), date(4), 5, None))

    late = seen(0, 1)
    late.fail(1.5 * HOUR_MS, late.paths[0])
    take_in(lake, late)
    rolled(lake)
    assert of_table(lake, "drive_past")[1][0]["failed_date"] == date(0)
    checked((date(0), date(4), 5, date(0)))

    def retire(now: Any) -> Any:
        for name in ("gold.drive_day", "gold.dir_day"):
            now = now.with_pieces(name, [], replaced=now.pieces(name, [date(0)]))
        return now

    lake.commit(retire, "retain")
    take_in(lake, seen(4, 1))
    rolled(lake)
    checked((date(1), date(4), 4, None))


def test_the_newest_date_is_one_that_most_drives_have() -> None:
    from kjbod.fleet.rollup.drive_past import past_until

    def piece(date: str, rows: int) -> Piece:
        return Piece(f"gold/drive_day/{date}", date, (), rows)

    fleet = [piece("2026-10-31", 11_000), piece("2026-11-01", 12_000), piece("2026-11-02", 9_000)]
    assert past_until(fleet) == "2026-10-31"
    assert past_until([*fleet, piece("2037-06-01", 12)]) == "2026-10-31", "a clock that is ahead"
    assert past_until(fleet[:1]) == "2026-10-29"


@drawn("rollup steps")
def test_it_does_not_matter_which_dates_are_rolled_up_in_one_step(spark: Any, tmp_path: Path) -> None:
    """A dead disk that tells its serial number on the second day alone is one drive, and has failed once."""
    from kjbod.fleet.lake.lake import open_lake

    days = []
    for day, serial in enumerate((None, "S1", None)):
        agent = Agent(dirs=1, boot_id=f"run-{day}")
        [path] = agent.paths
        at = 24 * day * HOUR_MS
        agent.sample(at, 0, path, "failed", serial=serial)
        if serial is None:  # an agent that starts on it gives a verdict of its own
            agent.event(at + 1, EventKind.DIR_FAILED, path, serial=None, attrs={"cause": "worn"})
        days.append(agent)
    found = []
    for name, steps in (("daily", [[day] for day in days]), ("at once", [days])):
        lake = open_lake(spark, (tmp_path / name).as_uri(), create=True)
        for step in steps:
            take_in(lake, *step)
            rolled(lake)
        rows = (of_table(lake, table)[1] for table in ("drive_day", "exposure_day", "drive_life"))
        found.append([sorted(map(str, of_table_)) for of_table_ in rows])
    daily, at_once = found
    assert at_once == daily
    assert [len(rows) for rows in daily] == [1, 1, 1]


@drawn("rollup anew")
def test_a_sum_that_a_kjbod_did_not_know_is_made_anew(spark: Any, tmp_path: Path) -> None:
    from kjbod.fleet.lake.lake import open_lake

    lake = open_lake(spark, tmp_path.as_uri(), create=True)
    take_in(lake, *(seen(day) for day in range(4)))
    rolled(lake)
    whole = of_table(lake, "drive_past")[1]
    lake.commit(lambda now: dataclasses.replace(now, notes={}), "an earlier kjbod")
    take_in(lake, seen(3, 1))
    rolled(lake)
    assert of_table(lake, "drive_past")[1] == whole
    assert life(lake)[2] == 4

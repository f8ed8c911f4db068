"""The rollup on silver whose truth is known by construction."""

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.schema import DirectoryState, EventKind
from tests.depth import seeds
from tests.fleet.conftest import GIB, Agent
from tests.fleet.parts import drawn
from tests.fleet.silver_rows import take_in

pytestmark = pytest.mark.usefixtures("with_spark")

HOUR_MS = 3_600_000
MIDNIGHT_MS = 12 * HOUR_MS
FIRST, SECOND, THIRD = "2026-11-01", "2026-11-02", "2026-11-03"


SEQS = [3 * hour + third for hour in (0, 1, 2, 3, 8, 11, 12, 20, 24, 36, 37) for third in range(3)]


def quiet(_text: str) -> None:
    """Nobody reads how far it is."""


def rolled(lake: Any, **more: Any) -> Any:
    from kjbod.fleet.rollup.run import rollup_into

    return rollup_into(lake.spark, lake, quiet, **more)


def table(lake: Any, name: str, **which: Any) -> list[dict[str, Any]]:
    rows = lake.read(f"gold.{name}", lake.state(), **which).collect()
    return [row.asDict(recursive=True) for row in rows]


def paths(lake: Any, name: str) -> dict[tuple[str, tuple[str, ...]], str]:
    return {(piece.date, piece.hours): piece.path for piece in lake.state().pieces(f"gold.{name}")}


def new_lake(spark: Any, root: Path) -> Any:
    from kjbod.fleet.lake.lake import open_lake

    return open_lake(spark, root.as_uri(), create=True)


def story() -> Agent:
    """An agent with three directories, from noon to the third day, a sample each 20 minutes of some hours.

    The first directory is well, and its counters are reset at 14:30. The second fails three minutes before midnight,
    which the controller records after it, and is replaced at noon of the second day. The third fails at 15:00, and the
    agent that starts on it at 20:00 fails it again at once; from 08:00 of the second day on it is well, after a new
    start, and on the third day at 01:00 it fails once more.
    """
    agent = Agent(boot_id="run-one")
    well, replaced, back = agent.paths
    fails, fails_again = MIDNIGHT_MS - 180_000, 37 * HOUR_MS
    agent.event(0, EventKind.AGENT_STARTED, attrs={"version": "1.2.3"})
    agent.event(1_000, EventKind.UNFENCED)
    for seq in SEQS:
        at = seq * 1_200_000
        agent.boot_id = "run-one" if at < 8 * HOUR_MS else "run-two" if at < 20 * HOUR_MS else "run-three"
        since = 1_000 if at < 2.5 * HOUR_MS else 2_000
        writes = 500 + 10 * seq if since == 1_000 else 3 * seq
        agent.sample(
            at, seq, well, writes=writes, counters_since=since, probe_histogram={"40": 2, str(41 + seq % 2): 1}
        )
        if at < 24 * HOUR_MS:
            state = DirectoryState.ONLINE if at < fails else DirectoryState.FAILED
            agent.sample(at, seq, replaced, state, bytes_used=GIB + seq)
        else:
            agent.sample(at, seq, replaced, dir_id="new", serial="NEW", model="M2")
        dead = 3 * HOUR_MS <= at < 20 * HOUR_MS or at >= fails_again
        agent.sample(at, seq, back, DirectoryState.FAILED if dead else DirectoryState.ONLINE, smart_poh=8_766 + seq)
    agent.boot_id = "run-one"
    agent.fail(3 * HOUR_MS, back)
    agent.boot_id = "run-two"
    agent.event(8 * HOUR_MS, EventKind.DIR_FAILED, back, attrs={"cause": "again"})
    for at, kind in ((0, EventKind.DIR_FAILED), (400_000, EventKind.ACKNOWLEDGED)):
        agent.event(fails + at, kind, replaced, attrs={"cause": "hung"})
    agent.boot_id = "run-three"
    agent.event(fails_again, EventKind.DIR_FAILED, back, attrs={"cause": "worn"})
    return agent


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The story, taken in twice and rolled up."""
    if drawn("rollup story").args[0]:
        pytest.skip(drawn("rollup story").kwargs["reason"])
    made = new_lake(spark, tmp_path_factory.mktemp("story"))
    agent = story()
    take_in(made, agent)
    take_in(made, agent)
    rolled(made)
    yield made


@pytest.fixture(scope="module")
def of_well(lake: Any) -> Callable[[str], list[dict[str, Any]]]:
    """Rows of the first directory in a table, by time."""

    def read(name: str) -> list[dict[str, Any]]:
        rows = [row for row in table(lake, name) if row["path"] == "/var/lib/kafka/d1"]
        return sorted(rows, key=lambda row: (row["date"], row.get("hour", "")))

    return read


def test_an_hour_counts_each_sample_once_and_leaves_resets_out(of_well: Any) -> None:
    hours = of_well("dir_hour")
    assert len(hours) == 11
    assert {(row["samples"], row["interval_ms"], row["state"]) for row in hours} == {(3, 1_200_000, "online")}
    before, across, after = hours[1:4]
    assert (before["writes_first"], before["writes_last"], before["writes_added"], before["resets"]) == (
        530,
        550,
        20,
        0,
    )
    assert (across["writes_first"], across["writes_last"], across["writes_added"], across["resets"]) == (560, 24, 10, 1)
    assert (after["writes_added"], after["resets"], after["counters_since"]) == (6, 0, 2_000)
    assert before["probe_histogram"] == {"40": 6, "41": 1, "42": 2}
    assert before["states"] == {"online": 3}


def test_a_day_has_what_was_counted_between_its_hours_and_all_buckets(of_well: Any) -> None:
    first, second, third = of_well("dir_day")
    # 12:00 to 14:20 in steps of 10; 14:40 to 23:40 in steps of 3.
    assert (first["hours"], first["samples"], first["resets"], first["writes_added"]) == (6, 18, 1, 70 + 27 * 3)
    assert (second["hours"], second["samples"], second["writes_added"]) == (3, 9, 38 * 3)
    assert first["probe_histogram"] == {"40": 36, "41": 9, "42": 9}
    assert (first["boots"], third["hours"], third["hours_online"]) == (1, 2, 2)


def test_lines_through_the_room_of_hours_add_up_to_that_of_the_day(lake: Any) -> None:
    (row,) = [r for r in table(lake, "dir_day", dates=[FIRST]) if r["path"].endswith("d2")]
    points = [(12 * 3600 + seq * 1200, GIB + seq) for seq in SEQS[:18]]
    xs, ys = zip(*points, strict=True)
    assert [int(row[f"line_{name}"]) for name in ("n", "x", "y", "xy", "xx")] == [
        *(18, sum(xs), sum(ys), sum(x * y for x, y in points), sum(x * x for x in xs))
    ]
    assert (row["used_first"], row["used_last"], row["used_min"], row["used_max"]) == (GIB, GIB + 35, GIB, GIB + 35)


def test_groups_are_the_sums_of_their_directories(lake: Any) -> None:
    (host,) = table(lake, "host_day", dates=[FIRST])
    assert (host["directories"], host["samples"], host["failures"], host["rack"]) == (3, 54, 3, "r1")
    (hour,) = table(lake, "rack_model_hour", hours=[f"{FIRST}T13"])
    assert (hour["directories"], hour["samples"], hour["not_online"], hour["probe_histogram"]["40"]) == (3, 9, 0, 6)


def test_a_failure_before_midnight_is_of_that_date_and_its_end_is_seen_after_it(lake: Any) -> None:
    rows = sorted(table(lake, "incident"), key=lambda row: row["ts"])
    assert [(row["date"], row["path"][-2:], row["cause"], row["outcome"]) for row in rows] == [
        (FIRST, "d3", "io_error", "acknowledged"),
        (FIRST, "d3", "again", "open"),
        (FIRST, "d2", "hung", "acknowledged"),
        (THIRD, "d3", "worn", "open"),
    ]
    assert (rows[0]["role"], rows[0]["version"], rows[0]["rack"], rows[0]["total_ms"]) == (
        "agent",
        "1.2.3",
        "r1",
        1_231,
    )
    assert rows[2]["total_ms"] == 400_000


def test_a_drive_is_exposed_until_it_fails_or_is_replaced_and_again_when_it_is_well(lake: Any) -> None:
    days = sorted((row["drive"], row["date"], row["failed"], row["cause"]) for row in table(lake, "drive_day"))
    assert days == [
        ("NEW", SECOND, 0, None),
        ("NEW", THIRD, 0, None),
        *(("S11", date, 0, None) for date in (FIRST, SECOND, THIRD)),
        ("S12", FIRST, 1, "hung"),
        ("S13", FIRST, 1, "io_error"),  # that the next agent fails it again is the same failure
        ("S13", SECOND, 0, None),
        ("S13", THIRD, 1, "worn"),
    ]
    lives = {row["drive"]: row for row in table(lake, "drive_life")}
    assert (lives["S12"]["replaced_by"], lives["S12"]["failures"], lives["S12"]["days"]) == ("NEW", 1, 1)
    assert (lives["S13"]["failures"], lives["S13"]["days_after_failure"], lives["S13"]["failed_date"]) == (2, 2, FIRST)
    assert {row["date"] for row in lives.values()} == {"all"}
    exposed = {
        (row["date"], row["age_years"]): (row["drive_days"], row["failures"]) for row in table(lake, "exposure_day")
    }
    assert exposed[FIRST, 1] == (1, 1)


def test_agents_and_the_timeline_of_a_day(lake: Any) -> None:
    (agent,) = table(lake, "agent_day", dates=[FIRST])
    assert (agent["status"], agent["role"], agent["version"], agent["boots"]) == ("unfenced", "agent", "1.2.3", 2)
    kinds = [row["kind"] for row in table(lake, "timeline", dates=[FIRST])]
    assert kinds[:2] == ["agent_started", "unfenced"]
    assert len(kinds) == 9


def test_rows_are_in_the_order_of_their_key_and_each_key_is_there_once(lake: Any) -> None:
    from kjbod.fleet.tables import DRIVE_PAST, GOLD, TABLES

    state = lake.state()
    for known in [t for t in TABLES.values() if t.layer == GOLD and t is not DRIVE_PAST]:  # of older days than these
        assert state.pieces(known.full_name), known.full_name
        for piece in state.pieces(known.full_name):
            rows = [tuple(row) for row in lake.read_pieces(known.full_name, [piece]).select(*known.key).collect()]
            ordered = sorted(rows, key=lambda row: [(value is not None, value) for value in row])
            assert rows == ordered, known.full_name
            assert len(set(rows)) == len(rows) == piece.rows, known.full_name


def test_counts_and_sums_are_those_that_another_engine_makes_of_the_same_files(lake: Any) -> None:
    duckdb = pytest.importorskip("duckdb")
    state = lake.state()
    silver = [f"{lake.full(p.path)[len('file:') :]}/*/*.parquet" for p in state.pieces("silver.samples")]
    gold = [f"{lake.full(p.path)[len('file:') :]}/*.parquet" for p in state.pieces("gold.dir_hour")]
    keys = "host, broker_id, path, dir_id"
    counted = duckdb.sql(
        f"SELECT {keys}, strftime(make_timestamp(ts * 1000), '%Y-%m-%d %H') AS h, count(*), sum(bytes_used), min(ts),"
        f" max(writes) FROM (SELECT DISTINCT {keys}, boot_id, seq, ts, bytes_used, writes"
        " FROM read_parquet($files, hive_partitioning = false)) GROUP BY ALL ORDER BY ALL",
        params={"files": silver},
    ).fetchall()
    kept = duckdb.sql(
        f"SELECT {keys}, date || ' ' || hour, samples, line_y, first_ts, greatest(writes_first, writes_last)"
        " FROM read_parquet($files) WHERE samples > 0 ORDER BY ALL",
        params={"files": gold},
    ).fetchall()
    assert [row[:-1] for row in kept] == [row[:-1] for row in counted]
    assert len(kept) == 33


def test_a_second_rollup_finds_nothing_to_do(lake: Any) -> None:
    version = lake.state().version
    assert rolled(lake).hours == 0
    assert lake.state().version == version


@drawn("rollup late")
def test_a_late_row_changes_its_hour_and_its_day_and_no_other_hour(spark: Any, tmp_path: Path) -> None:
    from kjbod.fleet.rollup import run

    late, early = Agent(dirs=1), Agent(dirs=1)
    lake = new_lake(spark, tmp_path)
    for n in range(3):
        early.sample(n * HOUR_MS, n, early.paths[0])
    take_in(lake, early)
    before_any = lake.state()
    with pytest.raises(RuntimeError, match="killed"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(lake), "commit", _killed)
        rolled(lake)
    assert lake.state() == before_any, "what is written and not committed does not count"
    during = Agent(host="h2", dirs=1)
    during.sample(0, 0, during.paths[0])

    def ingest_meanwhile(self: Any, progress: Any) -> None:
        make(self, progress)
        take_in(lake, during)

    make = run._Step.make
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run._Step, "make", ingest_meanwhile)
        rolled(lake)
    assert set(lake.state().touched) == {f"{FIRST}T12"}, "touched while it was rolled up"
    before = paths(lake, "dir_hour")
    late.sample(HOUR_MS + 1_000, 7, late.paths[0])
    take_in(lake, late)
    rolled(lake)
    after = paths(lake, "dir_hour")
    assert {key for key in before if before[key] == after[key]} == {(FIRST, ("14",))}
    assert sorted((row["host"], row["samples"]) for row in table(lake, "dir_day")) == [("h1", 4), ("h2", 1)]
    assert lake.state().touched == {}

    # Retention has taken the silver away: what comes of an hour without any is nothing, and the gold stays.
    gone = lake.state()
    silver = {name: gone.pieces(name) for name in gone.tables if name.startswith("silver")}

    def drop(now: Any) -> Any:
        for name, pieces in silver.items():
            now = now.with_pieces(name, [], replaced=pieces)
        return dataclasses.replace(now, notes={"silver-from": SECOND}).with_touched([f"{FIRST}T13"])

    lake.commit(drop, "retain")
    rolled(lake)
    assert paths(lake, "dir_hour") == after
    take_in(lake, during)  # late, of a date of which the rest is gone
    rolled(lake)
    assert paths(lake, "dir_hour") == after
    assert lake.state().touched == {}


def _killed(*_: Any, **__: Any) -> Any:
    raise RuntimeError("killed")


def test_two_rollups_at_once_and_a_lake_that_is_none(lake: Any, tmp_path: Path) -> None:
    from kjbod.fleet.lake.claim import claimed
    from kjbod.fleet.lake.lake import open_lake

    with claimed(lake, "rollup"), pytest.raises(FleetError, match="rollup runs already"):
        rolled(lake)
    with pytest.raises(FleetError, match="no lake at"):
        open_lake(lake.spark, tmp_path.as_uri())


def test_hours_of_a_compacted_day_stay_when_one_of_them_changes(lake: Any) -> None:
    state = lake.state()
    hourly = state.pieces("gold.dir_hour", [THIRD])
    whole = lake.new_directory("gold.dir_hour", f"date={THIRD}")
    lake.read_pieces("gold.dir_hour", hourly).coalesce(1).write.parquet(lake.full(whole))
    one = dataclasses.replace(hourly[0], path=whole, hours=tuple(h for p in hourly for h in p.hours), rows=6)
    before = {(row["hour"], row["path"], row["dir_id"]): row for row in table(lake, "dir_hour", dates=[THIRD])}

    def compact(now: Any) -> Any:
        return now.with_pieces("gold.dir_hour", [one], replaced=hourly).with_touched([f"{THIRD}T01"])

    lake.commit(compact, "compact")
    rolled(lake)
    after = {(row["hour"], row["path"], row["dir_id"]): row for row in table(lake, "dir_hour", dates=[THIRD])}
    assert after == before
    assert len(paths(lake, "dir_hour")) == 11


def contents(lake: Any) -> dict[tuple[str, str, tuple[str, ...]], list[bytes]]:
    """Bytes of the files of each piece of gold."""
    state = lake.state()
    return {
        (name, piece.date, piece.hours): sorted(
            file.read_bytes() for file in Path(lake.full(piece.path)[len("file:") :]).glob("*.parquet")
        )
        for name in state.tables
        if name.startswith("gold.")
        for piece in state.pieces(name)
    }


@drawn("rollup order")
@pytest.mark.parametrize("seed", seeds())
def test_any_order_and_any_repetition_of_the_same_lines_gives_the_same_bytes(
    spark: Any, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    agents = [Agent(host, number, f"run-{number}", dirs=2) for number, host in enumerate(("h1", "h2"))]
    for agent in agents:
        agent.start(12 * HOUR_MS - 60_000)
        for seq in range(6):
            for path in agent.paths:
                probed = {str(rng.randrange(40, 44)): rng.randrange(9), "7": 1}
                more: dict[str, Any] = {
                    "writes": rng.randrange(99),
                    "bytes_used": rng.randrange(GIB),
                    "probe_histogram": probed,
                }
                agent.sample(12 * HOUR_MS + (seq - 3) * 60_000, seq, path, **more)
        agent.fail(12 * HOUR_MS - 5_000, agent.paths[0])
    straight, crooked = (new_lake(spark, tmp_path / name) for name in ("straight", "crooked"))
    take_in(straight, *agents)
    rolled(straight)
    for share in (0.5, 1.0):
        for agent in agents:
            for stream, lines in agent.lines.items():
                agent.lines[stream] = rng.sample(lines, len(lines))
        parts = [Agent(agent.host) for agent in agents]
        for part, agent in zip(parts, agents, strict=True):
            for stream, lines in agent.lines.items():
                kept = lines[: int(len(lines) * share)]
                part.lines[stream] = kept + rng.choices(kept, k=5)
        take_in(crooked, *reversed(parts), files=3)
        rolled(crooked)
    assert contents(crooked) == contents(straight)


def test_what_can_be_null_in_a_file_of_a_day_does_not_go_by_how_the_day_was_made(spark: Any) -> None:
    from kjbod.fleet.rollup import days
    from tests.fleet.gold_rows import frame

    hours, before = frame(spark, "gold.dir_hour", []), frame(spark, "gold.dir_day", [])
    made = (
        days.dir_day(hours),
        days.dir_day(hours, is_one_hour=True),
        days.dir_day(hours, before).drop(days.UNSURE),
    )
    assert [[field.name for field in rows.schema if not field.nullable] for rows in made] == [[], [], []]


def silver(spark: Any, agent: Agent) -> list[Any]:
    """Samples and events of an agent's lines."""
    from pyspark.sql import functions as F  # noqa: N812

    from kjbod.fleet.schema import EVENTS, SAMPLES
    from kjbod.fleet.tables import SILVER_EVENTS, SILVER_SAMPLES
    from tests.fleet.silver_rows import frame, lines_of

    at = F.timestamp_millis("ts")
    moment = {"date": F.date_format(at, "yyyy-MM-dd"), "hour": F.date_format(at, "HH")}
    tables = ((SAMPLES, SILVER_SAMPLES), (EVENTS, SILVER_EVENTS))
    return [frame(spark, known, lines_of(stream, agent)).withColumns(moment) for stream, known in tables]


def hours_of(spark: Any, agent: Agent) -> list[dict[str, Any]]:
    """Rows of ``gold.dir_hour`` of an agent's lines, in order."""
    from kjbod.fleet.rollup import hours

    samples, events = silver(spark, agent)
    found = hours.dir_hour(hours.summed(samples), hours.histograms(samples), events)
    return [row.asDict(recursive=True) for row in found.orderBy("path", "date", "hour", "dir_id").collect()]


def test_numbers_that_do_not_add_up_are_not_known_and_cost_no_other(spark: Any) -> None:
    from kjbod.fleet.rollup import days
    from tests.fleet.gold_rows import frame

    most, least = 2**63 - 1, -(2**63)
    agent = Agent(dirs=2)
    absurd, well = agent.paths
    for seq, writes in ((0, least), (1, most)):
        at, numbers = seq * 1_000, {str(seq): most, "40": most}
        agent.sample(at, seq, absurd, probe_write_us=most, probes=most, writes=writes, probe_histogram=numbers)
        agent.sample(at, seq, well, probe_write_us=5, probes=1, writes=10 + seq, probe_histogram={"40": 1})
    bad, good = hours_of(spark, agent)
    assert (bad["samples"], bad["probe_n"], bad["probe_write_us_sum"], bad["writes_added"]) == (2, 2, None, None)
    assert (good["probe_write_us_sum"], good["probes"], good["writes_added"]) == (10, 2, 1)
    assert good["probe_histogram"] == {"40": 2}
    later = bad | {"hour": "13", "writes_first": most, "writes_last": most, "writes_added": most}
    made = days.dir_day(
        frame(
            spark, "gold.dir_hour", [bad, later, later | {"hour": "14", "writes_last": least}, later | {"hour": "15"}]
        )
    )
    (day,) = days.host_day(made).collect()
    assert (day["samples"], day["directories"]) == (8, 1)


def drive_days(spark: Any, rows: list[dict[str, Any]], before: Any = None) -> Any:
    """``gold.drive_day`` of rows of ``gold.dir_day``, one date after the other."""
    from kjbod.fleet.rollup import drives
    from kjbod.fleet.rollup.drive_past import past_of_days
    from tests.fleet.gold_rows import frame

    past = past_of_days(before or frame(spark, "gold.drive_day", []))
    made = frame(spark, "gold.drive_day", [])
    for date in sorted({row["date"] for row in rows}):
        of_date = [row for row in rows if row["date"] == date]
        days = drives.drive_day(frame(spark, "gold.dir_day", of_date), past.unionByName(past_of_days(made)))
        made = made.unionByName(days)
    return made


@drawn("rollup drives")
def test_a_drive_is_replaced_by_the_one_that_is_there_after_it(spark: Any) -> None:
    from kjbod.fleet.rollup import drives
    from kjbod.fleet.rollup.drive_past import past_of_days
    from tests.fleet.gold_rows import D0_MS, dir_day

    def seen(day: int, path: str, drive: str, hour: int = 23) -> dict[str, Any]:
        at = {"first_ts": D0_MS + day * 24 * HOUR_MS, "last_ts": D0_MS + (24 * day + hour) * HOUR_MS}
        counted = {"samples": 9, "failures": 0, "hours_online": 1}
        return dir_day(day, path=path, dir_id=f"id-{drive}", serial=drive) | counted | at

    rows = [
        *(seen(0, "/d1", "Z", hour=10), seen(0, "/d1", "A")),  # both first seen on the same day
        *(seen(0, "/d2", "X"), seen(1, "/d2", "Y"), seen(2, "/d2", "X")),  # put back
        *(seen(0, "/d3", "late") | {"serial": None}, seen(1, "/d3", "late"), seen(2, "/d3", "late") | {"serial": None}),
    ]
    found = drives.drive_life(past_of_days(drive_days(spark, rows))).collect()
    assert {row["drive"]: (row["replaced_by"], row["days"]) for row in found} == {
        "Z": ("A", 1),
        "A": (None, 1),
        "X": (None, 2),
        "Y": ("X", 1),
        "late": (None, 3),
    }


def test_a_serial_number_on_several_hosts_is_no_drive_and_each_directory_counts(spark: Any) -> None:
    from kjbod.fleet.rollup import drives
    from kjbod.fleet.rollup.drive_past import past_of_days
    from tests.fleet.gold_rows import D0_MS, dir_day

    counted = {"samples": 9, "failures": 0, "hours_online": 1}

    def seen(day: int, host: str, path: str, serial: str | None, **more: Any) -> dict[str, Any]:
        return dir_day(day, host=host, path=path, dir_id=f"{host}{path}", serial=serial) | counted | more

    failed = {"failures": 1, "failed_first_ts": D0_MS, "failed_last_ts": D0_MS, "hours_online": 0}
    dead = failed | {"states": {"unreadable": 9}}
    rows = [
        *(seen(0, host, path, "QEMU-1") for host in ("h1", "h2", "h3") for path in ("/d1", "/d2")),
        *(seen(0, "h4", path, "REAL") for path in ("/d1", "/d2")),  # two directories of one disk
        *(seen(0, "h5", "/d1", "OTHER"), seen(0, "h6", "/d1", "OTHER", fleet="f2")),  # of another cluster
        *(seen(0, host, "/d1", None) for host in ("h7", "h8")),
        *(seen(0, host, "/d9", "RAID") | failed for host in ("h1", "h2")),
        # alone on the next day, and of one nobody can read the number
        *(seen(1, "h1", "/d1", "QEMU-1"), seen(1, "h1", "/d9", "RAID") | dead, seen(1, "h2", "/d9", None) | dead),
    ]
    found = drive_days(spark, rows).persist()
    by_date = {
        date: {row["drive"]: row["failed"] for row in found.collect() if row["date"] == date}
        for date in {row["date"] for row in rows}
    }
    first, second = (by_date[date] for date in sorted(by_date))
    virtual = {f"{host}:{path}" for host in ("h1", "h2", "h3") for path in ("/d1", "/d2")}
    assert first.keys() == virtual | {"h1:/d9", "h2:/d9", "REAL", "OTHER", "h7/d1", "h8/d1"}
    assert {drive for drive, failed in first.items() if failed} == {"h1:/d9", "h2:/d9"}
    assert second == {"h1:/d1": 0}, "it is the same drive, and the dead ones have not failed again"
    exposed = drives.exposure_day(found).groupBy("date").sum("drive_days", "failures").orderBy("date").collect()
    assert [tuple(row)[1:] for row in exposed] == [(13, 2), (1, 0)]
    lives = {row["drive"]: row["days"] for row in drives.drive_life(past_of_days(found)).collect()}
    assert (lives["h1:/d1"], lives["h2:/d1"], lives.get("QEMU-1")) == (2, 1, None)


def test_a_dead_disk_that_tells_no_serial_number_any_more_has_not_failed_again(spark: Any) -> None:
    from kjbod.fleet.rollup import drives
    from kjbod.fleet.rollup.drive_past import past_of_days
    from tests.fleet.gold_rows import D0_MS, dir_day

    failed = {"samples": 9, "failures": 1, "failed_first_ts": D0_MS, "failed_last_ts": D0_MS}
    dead = {"serial": None, "states": {"unreadable": 9}}
    rows = [dir_day(0) | failed, dir_day(1) | failed | dead]
    at_once = drive_days(spark, rows)
    assert [(row["drive"], row["failed"]) for row in at_once.collect()] == [("S-h1/d1", 1)]
    first = drive_days(spark, rows[:1])
    assert drive_days(spark, rows[1:], first).collect() == []
    assert len(drives.remembered(past_of_days(first)).collect()) == 2


def test_a_disk_and_its_successor_have_one_room_between_them(spark: Any) -> None:
    from kjbod.fleet.rollup import days, hours
    from tests.fleet.gold_rows import dir_day, frame

    old = dir_day(0) | {"used_last": 900, "leaders": 7, "samples": 3}
    new = old | {"dir_id": "new", "used_last": 10, "leaders": 2, "last_ts": old["last_ts"] + 1}
    unread = old | {"dir_id": None, "bytes_total": None, "used_last": None, "last_ts": old["last_ts"] + 2}
    other = dir_day(0, path="/d2") | {"used_last": 5, "leaders": 1, "samples": 3}
    made = frame(spark, "gold.dir_day", [old, new, unread, other])
    hourly = frame(spark, "gold.dir_hour", [row | {"hour": "00"} for row in (old, new, unread, other)])
    for (row,) in (days.host_day(made).collect(), hours.rack_model_hour(hourly).collect()):
        assert (row["directories"], row["samples"]) == (2, 12)
        assert (row["bytes_total"], row["used_last"], row["leaders"]) == (2_000_000, 15, 3)


def test_counters_whose_beginning_nobody_says_grow_in_a_run_and_begin_anew_where_they_fall(spark: Any) -> None:
    from kjbod.fleet.rollup import days
    from tests.fleet.gold_rows import frame

    agent = Agent(dirs=1)
    [path] = agent.paths
    third = 1_200_000
    for seq, writes in enumerate((1_000, 1_010, 5, 25, 40, 41)):  # attached anew after the second sample
        agent.sample(seq * third, seq, path, writes=writes)
    agent.event(2 * HOUR_MS, EventKind.STATE_CHANGED, path, attrs={"state": "slow"})
    agent.sample(3 * HOUR_MS, 9, path, writes=50)
    agent.boot_id = "run-two"
    agent.sample(4 * HOUR_MS, 0, path, writes=90)
    found = hours_of(spark, agent)
    assert [(row["writes_first"], row["writes_last"], row["writes_added"], row["resets"]) for row in found] == [
        *((1_000, 5, 10, 1), (25, 41, 16, 0), (None, None, None, 0), (50, 50, 0, 0), (90, 90, 0, 0)),
    ]
    (day,) = days.dir_day(frame(spark, "gold.dir_hour", found)).collect()
    assert (day["writes_added"], day["resets"]) == (10 + 20 + 16 + 9, 1)


def test_each_verdict_of_a_run_is_of_its_own_date_and_of_its_own_disk(spark: Any) -> None:
    from kjbod.fleet.rollup.incidents import incident
    from tests.fleet.gold_rows import dir_day, frame

    guard = Agent(dirs=1)
    [path] = guard.paths
    guard.fail(0, path)
    guard.fail(HOUR_MS, path)
    guard.event(MIDNIGHT_MS, EventKind.DIR_FAILED, path, dir_id="other", serial=None, attrs={"cause": "worn"})
    first = dir_day(0, path=path) | {"dir_id": guard.dir_id(path)}
    labels = frame(spark, "gold.dir_day", [first, first | {"dir_id": "other", "serial": "OTHER", "model": "M2"}])
    rows = incident(silver(spark, guard)[1], labels, [FIRST, SECOND]).collect()
    assert [
        (row["date"], row["cause"], row["serial"], row["model"]) for row in sorted(rows, key=lambda r: r["ts"])
    ] == [
        *2 * [(FIRST, "io_error", "S11", "M1")],
        (SECOND, "worn", "OTHER", "M2"),
    ]

"""A day that goes on is what it would be if it were made of all of its hours again."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod.fleet.schema import DirectoryState, EventKind
from tests.depth import seeds
from tests.fleet.conftest import GIB, Agent
from tests.fleet.parts import drawn
from tests.fleet.silver_rows import take_in

pytestmark = [pytest.mark.usefixtures("with_spark"), drawn("rollup days")]

HOUR_MS = 3_600_000
MOST = 2**63 - 1


@pytest.fixture
def lake(spark: Any, tmp_path: Path) -> Any:
    from kjbod.fleet.lake.lake import open_lake

    return open_lake(spark, tmp_path.as_uri(), create=True)


@pytest.fixture
def made_of_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """The dates that were made of all hours, each time."""
    from kjbod.fleet.rollup import day_rows

    made: list[list[str]] = []
    of_all = day_rows._of_all

    def noted(seen: Any, by_date: Any, read: Any, dates: Any) -> Any:
        made.append(list(dates))
        return of_all(seen, by_date, read, dates)

    monkeypatch.setattr(day_rows, "_of_all", noted)
    yield made


def rolled(lake: Any) -> None:
    from kjbod.fleet.rollup.run import rollup_into

    rollup_into(lake.spark, lake, lambda _text: None)


def rows(frame: Any) -> list[dict[str, Any]]:
    found = (row.asDict(recursive=True) for row in frame.collect())
    return sorted(found, key=lambda row: (row["date"], row["host"], row["path"], row["dir_id"] or ""))


def assert_is_that_of_all_hours(lake: Any) -> None:
    from kjbod.fleet.rollup import days

    state = lake.state()
    again = rows(days.dir_day(lake.read("gold.dir_hour", state)))
    assert rows(lake.read("gold.dir_day", state)) == again


def hour_of(agent: Agent, hour: int, seq: int, **more: Any) -> None:
    """Two samples of each directory."""
    for n in range(2):
        for path in agent.paths:
            agent.sample(hour * HOUR_MS + n * 60_000, seq + n, path, **more)


def test_the_next_hour_is_added_and_the_hours_before_it_are_not_read(lake: Any, made_of_all: list[list[str]]) -> None:
    for hour in range(3):
        agent = Agent(boot_id="run-1" if hour < 2 else "run-2")
        counted = {"writes": 100 * hour, "probes": 3, "probe_histogram": {"40": 1, str(41 + hour): 2}}
        hour_of(agent, hour, 2 * hour, smart_realloc=hour or None, **counted)
        if hour == 1:
            agent.event(hour * HOUR_MS + 1_000, EventKind.DIR_FAILED, agent.paths[0], attrs={"cause": "worn"})
        take_in(lake, agent)
        rolled(lake)
        assert_is_that_of_all_hours(lake)
    assert made_of_all == [["2026-11-01"]], "the first hour of the day, and no other"
    (day, *_) = rows(lake.read("gold.dir_day", lake.state()))
    assert (day["hours"], day["samples"], day["writes_added"]) == (3, 6, 100), "in the run that went on"


def test_a_clock_that_is_ahead_does_not_make_days_of_all_hours_again(lake: Any, made_of_all: list[list[str]]) -> None:
    for hour in range(3):
        well, ahead = Agent(), Agent("h2", 2, "run-2")
        hour_of(well, hour, 2 * hour, writes=hour)
        hour_of(ahead, hour + 1, 2 * hour, writes=hour)
        take_in(lake, well, ahead)
        rolled(lake)
        assert_is_that_of_all_hours(lake)
    assert made_of_all == [["2026-11-01"]]


def test_late_rows_and_a_clock_that_was_set_back_change_the_days_of_their_hosts(
    lake: Any, made_of_all: list[list[str]]
) -> None:
    agents = [Agent(f"h{n}", n, f"run-{n}", dirs=1) for n in range(1, 5)]
    for hour in (2, 3):
        for agent in agents:
            agent.lines = {stream: [] for stream in agent.lines}
            hour_of(agent, hour, 2 * hour, writes=100 * hour, counters_since=1)
        take_in(lake, *agents)
        rolled(lake)
    late, back, renamed, _ = agents
    for agent in agents:
        agent.lines = {stream: [] for stream in agent.lines}
    late.sample(2 * HOUR_MS + 500_000, 99, late.paths[0], DirectoryState.SLOW, writes=1)
    back.sample(1 * HOUR_MS, 100, back.paths[0], writes=7)
    renamed.sample(3 * HOUR_MS + 500_000, 101, renamed.paths[0], dir_id="another", serial="NEW")
    for agent in agents:
        hour_of(agent, 4, 200, writes=1_000, counters_since=1)
    take_in(lake, *agents)
    rolled(lake)
    assert_is_that_of_all_hours(lake)
    assert made_of_all == [["2026-11-01"]]


def test_where_the_hosts_are_many_all_is_made_of_all_hours(
    lake: Any, made_of_all: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kjbod.fleet.rollup import day_rows

    monkeypatch.setattr(day_rows, "HOSTS_MAX", 1)
    agents = [Agent(f"h{n}", n, f"run-{n}", dirs=1) for n in range(1, 4)]
    for seq in (0, 50):
        for agent in agents:
            agent.lines = {stream: [] for stream in agent.lines}
            hour_of(agent, 0, seq, writes=seq)
        take_in(lake, *agents)
        rolled(lake)
        assert_is_that_of_all_hours(lake)
    assert len(made_of_all) == 2


@pytest.mark.parametrize(
    "steps",
    [
        (((0,), MOST), ((1,), MOST), ((2,), 1)),
        (((0,), 7), ((1, 2), MOST)),  # together: no hour of it says nothing
    ],
    ids=["one by one", "together"],
)
def test_sums_that_do_not_fit_stay_unknown(lake: Any, steps: tuple[tuple[tuple[int, ...], int], ...]) -> None:
    agent = Agent(dirs=1)
    for hours, probes in steps:
        agent.lines = {stream: [] for stream in agent.lines}
        for hour in hours:
            more: dict[str, Any] = {"probes": probes, "probe_histogram": {"40": probes}}
            agent.sample(hour * HOUR_MS, hour, agent.paths[0], **more)
        take_in(lake, agent)
        rolled(lake)
        assert_is_that_of_all_hours(lake)
    (day,) = rows(lake.read("gold.dir_day", lake.state()))
    assert (day["probes"], day["probe_histogram"]) == (None, {"40": None})


def test_days_of_a_kjbod_that_did_not_keep_their_ends_are_made_of_all_hours(lake: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from kjbod.fleet.upkeep.gold_again import days_again

    agent, gone = Agent(dirs=1), Agent("h2", 2, "run-2", dirs=1)
    hour_of(gone, 0, 0, writes=1)
    for hour in range(2):
        agent.lines = {stream: [] for stream in agent.lines}
        hour_of(agent, hour, 2 * hour, writes=100 * hour)
        take_in(lake, agent, *([] if hour else [gone]))
        rolled(lake)
        if hour:
            break
        state = lake.state()
        (piece,) = state.pieces("gold.dir_day")
        kept = lake.read("gold.dir_day", state).drop("counters_end").persist()
        kept.count()
        kept.coalesce(1).write.mode("overwrite").parquet(lake.full(piece.path))
        found = lake.read("gold.dir_day", state).select(F.col("counters_end")).collect()
        assert [row["counters_end"] for row in found] == [None, None]
        assert list(days_again(lake, state, "2026-11-01")) == []
    assert_is_that_of_all_hours(lake)
    first, _ = rows(lake.read("gold.dir_day", lake.state()))
    assert first["writes_added"] == 100


@pytest.mark.parametrize("seed", seeds())
def test_any_hours_in_any_order_give_the_days_of_all_hours(
    lake: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kjbod.fleet.rollup import day_rows

    rng = random.Random(seed)
    monkeypatch.setattr(day_rows, "HOSTS_MAX", rng.choice((1, 2, 200)))
    monkeypatch.setattr(day_rows, "ANEW_MAX", rng.choice((0, 3)))
    seq = 0
    for _ in range(5):
        agents = [Agent(f"h{n}", n, f"run-{rng.randrange(2)}", dirs=2) for n in range(4)]
        for agent in rng.sample(agents, rng.randrange(1, 5)):
            for _ in range(rng.randrange(1, 4)):
                seq += 1
                at = rng.randrange(6, 15) * HOUR_MS + rng.randrange(HOUR_MS)
                path = rng.choice(agent.paths)
                if rng.random() < 0.2:
                    agent.event(at, EventKind.DIR_FAILED, path, attrs={"cause": "worn"})
                    continue
                known = {
                    "writes": rng.randrange(99),
                    "counters_since": rng.choice((1, 2)),
                    "bytes_used": rng.randrange(GIB),
                    "smart_realloc": rng.randrange(3),
                    "probes": rng.choice((1, MOST)),
                    "probe_histogram": {str(rng.randrange(40, 43)): rng.choice((1, MOST))},
                }
                more = {name: value for name, value in known.items() if rng.random() < 0.8}
                agent.sample(at, seq, path, rng.choice((DirectoryState.ONLINE, DirectoryState.SLOW)), **more)
        take_in(lake, *agents)
        rolled(lake)
        assert_is_that_of_all_hours(lake)

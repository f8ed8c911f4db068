"""The report writer: what reaches the reader, what a crash leaves, and that a bad report disk harms nobody."""

import asyncio
import errno
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kjbod.clock import SystemClock
from kjbod.fleet.report_names import base_name, partition_path
from kjbod.fleet.schema import URGENT_KINDS, Event, EventKind, Sample
from kjbod_host import report_writer
from kjbod_host.files.report_files import finished_content
from kjbod_host.report_writer import Limits, ReportWriter, must_rotate

pytestmark = pytest.mark.usefixtures("world")

NOON_MS = 1_793_534_400_000  # 2026-11-01 12:00 UTC
BOOT = "Qm9vdElkT2ZUaGlzUnVu"


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.ms = 0

    def monotonic_ms(self) -> int:
        return self.ms

    def monotonic_ns(self) -> int:
        return self.ms * 1_000_000

    def wall_ms(self) -> int:
        return NOON_MS + self.ms


def event(kind: str = EventKind.REGISTERED, mono_ns: int = 1, **more: Any) -> Event:
    return Event(ts=NOON_MS, mono_ns=mono_ns, boot_id=BOOT, kind=kind, host="h1", broker_id=1, **more)


def sample(seq: int) -> Sample:
    return Sample(
        ts=NOON_MS + seq,
        mono_ns=seq,
        boot_id=BOOT,
        seq=seq,
        fleet="f",
        host="h1",
        broker_id=1,
        path="/d1",
        state="online",
    )


def writer(root: Path, **limits: int) -> ReportWriter:
    return ReportWriter(root, host="h1", boot_id=BOOT, clock=SetClock(), limits=Limits(**limits))


def finished(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("**/*.jsonl.gz") if not path.name.startswith("."))


def hidden(root: Path) -> list[Path]:
    return sorted(root.glob("**/.*"))


def rows(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Lines and trailer of a finished file, the trailer checked."""
    lines = gzip.decompress(path.read_bytes()).split(b"\n")
    assert lines.pop() == b""
    trailer = json.loads(lines.pop())
    assert trailer["k"] == "eof"
    assert trailer["rows"] == len(lines)
    assert trailer["crc32"] == sum(map(zlib.crc32, lines)) % 2**32
    return [json.loads(line) for line in lines], trailer


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  files are written by a thread: there is nothing to wait on
            await asyncio.sleep(0.005)


# --- names and decisions


def test_names_are_partitioned_by_utc_day_and_hour() -> None:
    assert partition_path("samples", NOON_MS) == Path("samples/date=2026-11-01/hour=12")
    assert partition_path("events", NOON_MS) == Path("events/date=2026-11-01")


@pytest.mark.parametrize(
    ("host", "boot_id", "name"),
    [
        ("kafka-1.example.org", BOOT, "kafka-1.example.org.Qm9vdElk.2026110112.3"),
        ("_hidden/../x", "../../etc", "hidden-..-x.-..-etc.2026110112.3"),
        ("", "", "unnamed.unnamed.2026110112.3"),
    ],
)
def test_a_name_never_hides_from_spark_or_leaves_its_folder(host: str, boot_id: str, name: str) -> None:
    got = base_name(host, boot_id, NOON_MS, 3)
    assert "/" not in got
    assert got[0] not in "._"
    assert got == name


@pytest.mark.parametrize(
    ("size", "age_ms", "hour", "due"),
    [(10, 0, 12, False), (1 << 20, 0, 12, True), (10, 3_600_000, 12, True), (10, 1, 13, True), (10, 1, 11, True)],
)
def test_a_file_is_finished_by_size_age_or_hour(size: int, age_ms: int, hour: int, due: bool) -> None:
    got = must_rotate(size=size, opened_ms=5, opened_hour=12, now_ms=5 + age_ms, hour=hour, limits=Limits())
    assert got is due


def test_a_torn_last_line_is_dropped_and_said() -> None:
    lines = finished_content(b'{"ts":1}\n{"ts":2}\n{"ts', recovered=False).splitlines()
    assert lines[:2] == [b'{"ts":1}', b'{"ts":2}']
    trailer = json.loads(lines[2])
    assert (trailer["rows"], trailer["first"], trailer["last"], trailer["partial"]) == (2, 1, 2, True)
    assert finished_content(b'{"ts', recovered=True) == b""


def test_a_path_that_is_not_utf8_becomes_ascii_json() -> None:
    line = event(path=os.fsdecode(b"/mnt/\xff\xe9")).to_json_line()
    assert line.isascii()
    assert os.fsencode(json.loads(line)["path"]) == b"/mnt/\xff\xe9"


# --- life of a file


async def test_what_was_reported_is_in_finished_files_after_close(tmp_path: Path) -> None:
    w = writer(tmp_path / "reports")
    await w.start()
    for seq in range(3):
        w.sample(sample(seq))
    w.event(event(attrs={"count": "7"}))
    assert await w.close()

    events, samples = finished(tmp_path)
    assert events.relative_to(tmp_path) == Path("reports/events/date=2026-11-01/h1.Qm9vdElk.2026110112.0.jsonl.gz")
    assert samples.parent == tmp_path / "reports/samples/date=2026-11-01/hour=12"
    assert rows(events)[0] == [json.loads(event(attrs={"count": "7"}).to_json_line())]
    assert [row["seq"] for row in rows(samples)[0]] == [0, 1, 2]
    assert rows(samples)[1]["partial"] is False
    assert hidden(tmp_path) == []
    assert w.stats == report_writer.ReportStats(written=4, files=2)


async def test_lines_are_in_a_hidden_file_at_once_and_public_only_when_finished(tmp_path: Path) -> None:
    w = writer(tmp_path)
    await w.start()
    w.event(event())
    assert await w.flush()
    (plain,) = hidden(tmp_path)
    assert plain.read_text() == event().to_json_line() + "\n"
    assert finished(tmp_path) == []
    await w.close()


@pytest.mark.parametrize("kind", sorted(URGENT_KINDS))
async def test_a_failure_is_readable_at_once(tmp_path: Path, kind: str) -> None:
    w = writer(tmp_path)
    await w.start()
    w.sample(sample(0))
    w.event(event(kind, path="/d1"))
    await until(lambda: len(finished(tmp_path)) == 2)
    await w.close()


async def test_the_hour_changes_and_files_follow(tmp_path: Path) -> None:
    clock = SetClock()
    w = ReportWriter(tmp_path, host="h1", boot_id=BOOT, clock=clock)
    await w.start()
    w.sample(sample(0))
    assert await w.flush()
    clock.ms = 3_600_000
    w.sample(sample(1))
    assert await w.close()
    assert [path.parent.name for path in finished(tmp_path)] == ["hour=12", "hour=13"]


async def test_files_are_finished_when_large(tmp_path: Path) -> None:
    w = writer(tmp_path, rotate_bytes=1_000)
    await w.start()
    for seq in range(20):
        w.sample(sample(seq))
        assert await w.flush()
    assert await w.close()
    assert len(finished(tmp_path)) > 1
    assert sorted(row["seq"] for path in finished(tmp_path) for row in rows(path)[0]) == list(range(20))


async def test_two_agents_may_share_host_name_and_folder(tmp_path: Path) -> None:
    first, second = writer(tmp_path), writer(tmp_path)
    await first.start()
    first.event(event(mono_ns=1))
    assert await first.flush()
    await second.start()  # must not take the first one's open file for a leftover
    second.event(event(mono_ns=2))
    assert await second.close()
    first.event(event(mono_ns=3))
    assert await first.close()
    assert sorted(row["mono_ns"] for path in finished(tmp_path) for row in rows(path)[0]) == [1, 2, 3]
    assert second.stats.recovered == 0


# --- crash

CRASH = textwrap.dedent(
    """
    import asyncio, sys, os
    from pathlib import Path
    from kjbod.clock import SystemClock
    from kjbod.fleet.schema import Event
    from kjbod_host.report_writer import ReportWriter
    async def main():
        w = ReportWriter(Path(sys.argv[1]), host="h1", boot_id="crashing", clock=SystemClock())
        await w.start()
        for n in range(5):
            w.event(Event(ts=n, mono_ns=n, boot_id="crashing", kind="registered", host="h1", broker_id=1))
        assert await w.flush()
        print("written", flush=True)
        await asyncio.sleep(60)
    asyncio.run(main())
    """
)


def kill_after_five_events(root: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", CRASH, str(root)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.send_signal(signal.SIGKILL)
        process.wait()


async def test_a_killed_agent_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    kill_after_five_events(tmp_path)
    (plain,) = hidden(tmp_path)
    with plain.open("ab") as file:  # a power loss in the middle of the next line
        file.write(b'{"event_id":"torn')

    w = ReportWriter(tmp_path, host="h1", boot_id="next", clock=SystemClock())
    await w.start()
    assert await w.flush()
    assert w.stats.recovered == 1
    assert await w.close()
    (path,) = finished(tmp_path)
    lines, trailer = rows(path)
    assert [line["ts"] for line in lines] == [0, 1, 2, 3, 4]
    assert trailer["partial"] is True
    assert hidden(tmp_path) == []


async def test_another_hosts_open_file_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "events/date=2026-11-01/.h10.abcdefgh.2026110112.0.jsonl"
    theirs.parent.mkdir(parents=True)
    theirs.write_text('{"ts":1}\n')
    w = writer(tmp_path)
    await w.start()
    assert await w.flush()
    assert await w.close()
    assert theirs.read_text() == '{"ts":1}\n'


# --- a bad report disk


async def test_a_full_report_disk_harms_nobody_and_nothing_queued_is_lost(tmp_path: Path) -> None:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    w = writer(tmp_path)
    try:
        with capture_logs() as logs:
            await w.start()
            w.event(event(mono_ns=1))
            assert await w.flush()
            (plain,) = hidden(tmp_path)
            # The next line fits in part only: the kernel takes some bytes and then refuses.
            (process,) = w._files.process_ids()
            resource.prlimit(process, resource.RLIMIT_FSIZE, (plain.stat().st_size + 20, old[1]))
            w.event(event(mono_ns=2))
            assert not await w.flush(200)
            assert plain.read_text() == event(mono_ns=1).to_json_line() + "\n"
            await until(lambda: w.stats.errors >= 2)
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, old)
    with capture_logs() as later:
        await until(lambda: w.stats.written == 2)
        assert await w.close()
    assert [row["mono_ns"] for path in finished(tmp_path) for row in rows(path)[0]] == [1, 2]
    assert [(line["event"], line["doing"]) for line in logs] == [("reports.failed", "events")]
    assert [line["event"] for line in later] == ["reports.recovered"]


async def test_an_unusable_reports_directory_is_said_once_and_the_queue_stays_bounded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with capture_logs() as logs:
        w = writer(tmp_path / "file/reports", queue_lines_max=10)
        await w.start()
        for seq in range(50):
            w.sample(sample(seq))
        assert not await w.flush(300)
        assert not await w.close(300)
    assert w.stats.written == 0
    assert w.stats.dropped == 50
    assert [line["error"] for line in logs] == [os.strerror(errno.ENOTDIR)]


async def test_a_report_disk_that_hangs_does_not_hold_the_agent(tmp_path: Path) -> None:
    w = writer(tmp_path)
    await w.start()
    w.event(event())
    assert await w.flush()
    (process,) = w._files.process_ids()
    os.kill(process, signal.SIGSTOP)
    w.event(event(mono_ns=2))
    assert not await w.close(100)
    assert w.stats.dropped == 1
    os.kill(process, signal.SIGKILL)


async def test_a_file_process_that_is_killed_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    w = writer(tmp_path)
    await w.start()
    w.event(event(mono_ns=1))
    assert await w.flush()
    os.kill(w._files.process_ids()[-1], signal.SIGKILL)
    w.event(event(mono_ns=2))
    await until(lambda: w.stats.written == 2)
    assert await w.close()
    assert [row["mono_ns"] for path in finished(tmp_path) for row in rows(path)[0]] == [1, 2]
    assert hidden(tmp_path) == []

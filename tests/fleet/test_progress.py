"""How far Spark is, in lines of text, and that it never stands in the way of the work."""

import io
import sys
import threading
from typing import Any

import pytest

from kjbod.fleet import progress as module
from kjbod.fleet.progress import source_of, watched
from kjbod.fleet.step_progress import Account, StepProgress, progress_line


def test_a_step_that_has_just_begun_says_what_it_is() -> None:
    assert progress_line(StepProgress("rolling up 3 dates", 1_000), 1_999) == "rolling up 3 dates: 0:00"


def test_a_step_tells_tasks_rows_files_and_the_time_that_is_left() -> None:
    step = StepProgress("rolling up", 0)
    step.see(Account(total=40), 0)
    step.see(Account(10, 40, 2, rows_read=1_200_000, rows_written=2_000, files=31), 61_000)
    assert progress_line(step, 61_000) == (
        "rolling up: 10 of 40 tasks, 1,200,000 rows read, 2,000 rows written, 31 files, 1:01, about 3:03 left"
    )


def test_bytes_are_told_where_rows_are_not_known() -> None:
    step = StepProgress("reading", 0)
    step.see(Account(bytes_read=4_096), 10)
    assert progress_line(step, 3_600_000) == "reading: 4,096 bytes read, 1:00:00"


@pytest.mark.parametrize("done", [0, 5])
def test_there_is_no_time_left_before_tasks_were_seen_to_end(done: int) -> None:
    step = StepProgress("reading", 0)
    step.see(Account(done, 10), 0)
    assert step.left_ms(100_000) is None


def test_a_new_job_begins_its_own_account_of_time() -> None:
    step = StepProgress("reading", 0)
    step.see(Account(total=10), 0)
    step.see(Account(9, 10), 100_000)
    step.see(Account(0, 100), 101_000)
    assert step.left_ms(104_000) is None
    step.see(Account(50, 100), 111_000)
    assert step.left_ms(111_000) == 10_000


def test_a_job_that_is_done_leaves_no_time() -> None:
    step = StepProgress("reading", 0)
    step.see(Account(total=4), 0)
    step.see(Account(4, 4), 9_000)
    assert step.left_ms(9_000) == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(module, "QUIET_S", 0.0)


@pytest.mark.usefixtures("with_spark", "often")
def test_spark_itself_tells_what_a_step_reads_and_writes(spark: Any, tmp_path: Any) -> None:
    source, lines = source_of(spark), []
    rows_seen = threading.Event()

    def progress(line: str) -> None:
        lines.append(line)
        if "3 files" in line:
            rows_seen.set()

    with watched(spark, progress, "writing"):
        spark.range(900, numPartitions=3).write.parquet(str(tmp_path / "x"))
        spark.read.parquet(str(tmp_path / "x")).write.parquet(str(tmp_path / "y"))
        assert rows_seen.wait(30)
    assert all(line.startswith("writing: ") for line in lines)
    account = source.account()
    assert (account.done, account.active, account.files) == (0, 0, 6 + len(list((tmp_path / "y").glob("part-*"))))
    for thread in threading.enumerate():
        if thread.name == "kjbod-progress":  # its last question to Java may take its time
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.usefixtures("with_spark")
def test_a_query_that_has_ended_is_looked_at_once(spark: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source: Any = source_of(spark)
    spark.range(9, numPartitions=3).write.parquet(str(tmp_path / "x"))
    known = len(source._ended)
    while len(source._ended) == known:  # Spark tells its store of an end when the query is over, a moment later
        assert source.account().files in (0, 3)
    looked: list[Any] = []
    monkeypatch.setattr(source, "_files_of", looked.append)
    assert source.account().files == 3
    assert looked == [], "hundreds of metrics of each query, each second, were a fifth of a rollup"


@pytest.mark.usefixtures("often")
def test_on_a_terminal_one_line_is_written_over_and_gone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, seen = Terminal(), threading.Event()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "source_of", lambda _spark: Scripted(seen))
    lines: list[str] = []
    with watched(None, lines.append, "reading"):  # type: ignore[arg-type]
        assert seen.wait(30)
    text = terminal.getvalue()
    assert not lines
    assert "\n" not in text
    assert text.startswith("\x1b[2Kreading: 1 of 2 tasks, 0:00\r")
    assert text.endswith("\x1b[2K")


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("broken", ["source", "account", "say"])
def test_a_step_is_not_lost_to_its_progress(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    seen = threading.Event()

    def no_source(_spark: Any) -> "Scripted":
        if broken == "source":
            seen.set()
            raise OSError("gone")
        return Scripted(seen, fails=broken == "account")

    def say(_line: str) -> None:
        seen.set()
        raise OSError("nobody reads")

    monkeypatch.setattr(module, "source_of", no_source)
    with watched(None, say, "reading"):  # type: ignore[arg-type]
        assert seen.wait(30)


@pytest.mark.usefixtures("often")
def test_what_a_step_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "source_of", lambda _spark: Scripted(threading.Event()))
    with pytest.raises(KeyboardInterrupt), watched(None, lambda _line: None, "reading"):  # type: ignore[arg-type]
        raise KeyboardInterrupt
    for thread in threading.enumerate():
        if thread.name == "kjbod-progress":  # its last question to Java may take its time
            thread.join(30)
            assert not thread.is_alive()


class Scripted:
    """Tells the same all the time, or fails."""

    def __init__(self, seen: threading.Event, *, fails: bool = False) -> None:
        self.seen, self.fails, self.calls = seen, fails, 0

    def account(self) -> Account:
        self.calls += 1
        if self.calls > 1 or self.fails:
            self.seen.set()
        if self.fails:
            raise OSError("gone")
        return Account(1, 2)

    def close(self) -> None:
        pass

"""Progress of a step by Spark's own account: tasks, rows and files, and the time that is left by them.

What Spark tells depends on where it runs. In this process or on a cluster its status store is asked once a second
through the Java gateway: tasks of the running jobs and stages, rows read and written, files. Through Spark Connect the
server sends tasks and bytes of the running query. The time that is left is that of the running jobs by their tasks that
are done, and nothing where none is done yet: with adaptive execution Spark itself does not know the next job.

On a terminal one line is written over and over; elsewhere there is a line each :data:`QUIET_S` seconds, so that a step
of a minute leaves two lines in a log and a short one none.
"""

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from kjbod.clock import Clock, SystemClock
from kjbod.fleet.session import is_connect
from kjbod.fleet.step_progress import Account, StepProgress, progress_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S = 1.0
QUIET_S = 30.0
"""Between two lines where nobody looks at a terminal."""

_FILES = re.compile(r"\bSQLPlanMetric\((?:number of files read|number of written files),(\d+),")
"""Spark's SQL metrics that count files, as a sequence of metrics is text; their accumulators. A query has hundreds of
metrics, and each call through the gateway costs as much as this whole text."""
_QUERIES_MAX = 50
"""The newest queries, which are looked at: more do not end between two looks."""


class Source(Protocol):
    """An account, again and again."""

    def account(self) -> Account:
        """Work of Spark since this was made."""

    def close(self) -> None:
        """Listen no more."""


@contextlib.contextmanager
def watched(
    spark: "SparkSession", progress: Callable[[str], None], what: str, *, clock: Clock | None = None
) -> Iterator[None]:
    """Say how far Spark is while the body runs, such as ``watched(spark, running.progress, "rolling up 3 dates")``.

    Nothing that goes wrong with it reaches the body: a step is never lost to its progress.
    """
    with contextlib.ExitStack() as stack:
        # Without an account there is no progress; the work is the same.
        with contextlib.suppress(Exception):
            stack.enter_context(_watching(source_of(spark), progress, what, clock or SystemClock()))
        yield


@contextlib.contextmanager
def _watching(source: Source, progress: Callable[[str], None], what: str, clock: Clock) -> Iterator[None]:
    ended = threading.Event()
    terminal = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
    watch = threading.Thread(
        target=_watch, args=(source, progress, what, clock, ended, terminal), daemon=True, name="kjbod-progress"
    )
    watch.start()
    try:
        yield
    finally:
        ended.set()
        # A call into a Java process that has just ended can hang; the thread is a daemon, and is left behind then.
        watch.join(2 * POLL_S)
        with contextlib.suppress(Exception):
            source.close()


def _watch(
    source: Source,
    progress: Callable[[str], None],
    what: str,
    clock: Clock,
    ended: threading.Event,
    terminal: TextIO | None,
) -> None:
    step = StepProgress(what, clock.monotonic_ms())
    said_ms = clock.monotonic_ms()
    try:
        while not ended.wait(POLL_S):
            now_ms = clock.monotonic_ms()
            step.see(source.account(), now_ms)
            if terminal is not None:
                terminal.write(f"\x1b[2K{progress_line(step, now_ms)}\r")
                terminal.flush()
            elif now_ms - said_ms >= QUIET_S * 1000:
                said_ms = now_ms
                progress(progress_line(step, now_ms))
    except Exception:  # noqa: BLE001
        # Whatever it is (Spark is being stopped, nobody reads the terminal), the step says it if it matters.
        return
    finally:
        if terminal is not None:
            with contextlib.suppress(Exception):
                terminal.write("\x1b[2K")
                terminal.flush()


def source_of(spark: "SparkSession") -> Source:
    """Source of this session."""
    return ConnectSource(spark) if is_connect(spark) else StoreSource(spark)


class StoreSource:
    """Spark's status store, through the Java gateway. It is there with and without the UI."""

    def __init__(self, spark: "SparkSession") -> None:
        """Counts from now on."""
        jvm: Any = spark._jvm
        self._running = jvm.java.util.ArrayList()
        self._running.add(jvm.org.apache.spark.JobExecutionStatus.RUNNING)
        self._store: Any = spark.sparkContext._jsc.sc().statusStore()
        self._sql: Any = spark._jsparkSession.sharedState().statusStore()
        self._stages: dict[int, tuple[int, int]] = {}
        """Stage to rows read and written."""
        self._active: set[int] = set()
        self._files: dict[int, int] = {}
        """SQL execution to files."""
        self._ended = {int(execution.executionId()) for execution in self._newest()}
        """SQL executions that need not be looked at again."""

    def account(self) -> Account:
        """Implements :class:`Source`."""
        done = total = active = 0
        for job in _each(self._store.jobsList(self._running)):
            done += int(job.numCompletedTasks())
            total += max(int(job.numTasks()) - int(job.numSkippedTasks()), 0)
            active += int(job.numActiveTasks())
        active_now = [(int(s.stageId()), s) for s in _each(self._store.activeStages())]
        for number, stage in active_now:
            self._stages[number] = (int(stage.inputRecords()), int(stage.outputRecords()))
        self._count_ended({number for number, _ in active_now})
        read = sum(rows for rows, _ in self._stages.values())
        written = sum(rows for _, rows in self._stages.values())
        return Account(done, total, active, read, written, self._count_files())

    def _count_ended(self, active: set[int]) -> None:
        """Take the last counts of stages that were active when they were last looked at."""
        for number in self._active - active:
            stage = self._store.lastStageAttempt(number)
            self._stages[number] = (int(stage.inputRecords()), int(stage.outputRecords()))
        self._active = active

    def _count_files(self) -> int:
        for execution in self._newest():
            number = int(execution.executionId())
            if number not in self._ended:
                if execution.completionTime().isDefined():
                    self._ended.add(number)
                self._files[number] = self._files_of(execution)
        return sum(self._files.values())

    def _newest(self) -> Iterator[Any]:
        first = max(int(self._sql.executionsCount()) - _QUERIES_MAX, 0)  # of those that Spark still keeps
        return _each(self._sql.executionsList(first, _QUERIES_MAX))

    def _files_of(self, execution: Any) -> int:
        numbers = _FILES.findall(str(execution.metrics().mkString("\n")))
        if not numbers:
            return 0
        values = execution.metricValues()
        if values is None:  # it runs
            values = self._sql.executionMetrics(execution.executionId())
        found = (values.get(int(number)) for number in set(numbers))
        return sum(_leading_number(str(value.get())) for value in found if value.isDefined())

    def close(self) -> None:
        """Implements :class:`Source`."""


class ConnectSource:
    """Messages that a Spark Connect server sends while a query of this session runs."""

    def __init__(self, spark: Any) -> None:
        """Counts from now on."""
        self._spark = spark
        self._lock = threading.Lock()
        self._queries: dict[str, Account] = {}
        spark.registerProgressHandler(self._handle)

    def _handle(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        known = list(stages or ())
        account = Account(
            0 if done else sum(stage.num_completed_tasks for stage in known),
            0 if done else sum(stage.num_tasks for stage in known),
            0 if done else int(inflight_tasks),
            bytes_read=sum(stage.num_bytes_read for stage in known),
        )
        with self._lock:
            self._queries[operation_id or ""] = account

    def account(self) -> Account:
        """Implements :class:`Source`."""
        with self._lock:
            queries = list(self._queries.values())
        return Account(
            sum(query.done for query in queries),
            sum(query.total for query in queries),
            sum(query.active for query in queries),
            bytes_read=sum(query.bytes_read for query in queries),
        )

    def close(self) -> None:
        """Implements :class:`Source`."""
        self._spark.removeProgressHandler(self._handle)


def _each(sequence: Any) -> Iterator[Any]:
    """Elements of a Scala sequence."""
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _leading_number(text: str) -> int:
    """``1,234`` of what Spark shows for a metric."""
    digits = text.split("\n")[0].split(" ")[0].replace(",", "")
    return int(digits) if digits.isdigit() else 0

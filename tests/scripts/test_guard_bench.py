"""The guard benchmark: what it plans, what it makes of what clients saw, and one trial on a real cluster."""

import functools
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.faults.disks import require_real_disks
from scripts.bench import guard_report as report
from scripts.bench.guard import arguments
from scripts.bench.guard_plan import FILE_SYSTEMS, Outcome, Trial, plan
from scripts.bench.guard_threads import blocked_in
from scripts.bench.guard_trials import keep, kept
from scripts.rig.pauses import (
    CLASSES,
    FOLLOWED_BAD,
    FOLLOWED_HEALTHY,
    LED_BAD,
    LED_HEALTHY,
    Pause,
    class_of,
    longest_pause,
    worst_by_class,
)
from scripts.rig.stuck_threads import Stuck, stuck_threads
from tests.depth import only_deep

STEADY = [float(moment) for moment in range(0, 10_001, 50)]


def without(first: float, last: float) -> list[float]:
    return [moment for moment in STEADY if not first < moment < last]


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        (STEADY, Pause(50, -50, True)),
        (without(3000, 4000), Pause(1000, 1000, True)),
        (without(1000, 1900), Pause(50, -50, True)),  # over before the fault
        (without(1500, 2500), Pause(1000, -500, True)),  # under way at the fault
        (without(3000, 99_999), Pause(6000, 1000, False)),
        ([], Pause(7000, 0, False)),
        ([1950.0], Pause(7050, -50, False)),
        ([*without(2500, 4000), 12_000.0], Pause(1500, 500, True)),  # what came after the end counts for nothing
    ],
)
def test_a_pause_is_the_longest_that_was_not_over_at_the_fault(moments: list[float], expected: Pause) -> None:
    assert longest_pause(moments, fault_ms=2000, end_ms=9000 if moments != STEADY else 10_000) == expected


def test_the_worst_of_a_class_is_what_never_ended_however_short_it_is() -> None:
    classes = {0: LED_BAD, 1: LED_BAD, 2: FOLLOWED_BAD, 3: FOLLOWED_BAD}
    pauses = {0: Pause(300, 0, True), 1: Pause(200, 0, True), 2: Pause(5000, 0, True), 3: Pause(4000, 0, False)}
    assert worst_by_class(pauses, classes) == {LED_BAD: pauses[0], FOLLOWED_BAD: pauses[3]}


def test_classes_are_of_role_and_disk() -> None:
    found = [class_of(led, bad) for led in (True, False) for bad in (True, False)]
    assert found == [LED_BAD, LED_HEALTHY, FOLLOWED_BAD, FOLLOWED_HEALTHY]
    assert set(found) == set(CLASSES)


def test_each_cell_has_its_repetitions_and_what_is_done_is_not_done_again() -> None:
    asked = (["cut", "fence"], ["hang"], ["ext4", "xfs"], [500, 1000], 2)
    trials = plan(*asked, random.Random(1))
    assert len(set(trials)) == len(trials) == 16
    assert [trial.repetition for trial in trials] == [0] * 8 + [1] * 8, "a round at a time"
    assert plan(*asked, random.Random(1)) == trials
    rest = plan(*asked, random.Random(1), done=trials[:5])
    assert rest == trials[5:]


def test_stuck_threads_have_an_order_where_only_some_of_them_are_in_a_system_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [Stuck("data-plane-kafk", "folio_wait_bit", call, "") for call in ("74", None, "1", None)]
    monkeypatch.setattr("scripts.rig.stuck_threads._stuck", lambda _: iter(found))
    assert [one.call for one in stuck_threads(1)] == [None, "1", "74"]


def outcome(means: str, phase_ms: int, led_bad: Pause, broker: str = "kept") -> Outcome:
    quick = Pause(60, 100, True)
    pauses = {LED_BAD: led_bad, LED_HEALTHY: quick, FOLLOWED_HEALTHY: quick, FOLLOWED_BAD: quick}
    stuck = {"act": [Stuck("kafka-scheduler", "folio_wait_bit", "74", "kafka/replication-offset-checkpoint.tmp")]}
    return Outcome(
        Trial(means, "hang", "ext4", phase_ms),
        acts={"cut": 2700.0, "recorded": 2790.0},
        pauses=pauses,
        consumer_pauses=pauses,
        stuck=stuck,
        applied=(12, 12),
        broker=broker,
        acknowledged=100,
    )


def test_outcomes_are_the_same_when_they_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    made = [outcome("cut", 500, Pause(250, 2650, True)), outcome("nothing", 1000, Pause(6000, 4000, False))]
    for one in made:
        keep(file, one)
    assert kept(file, Outcome) == made
    assert kept(tmp_path / "none.jsonl", Outcome) == []


def test_the_table_has_median_and_worst_and_says_what_did_not_end() -> None:
    outcomes = [
        outcome("cut", 500, Pause(300, 2650, True)),
        outcome("cut", 1000, Pause(200, 2650, True)),
        outcome("cut", 1500, Pause(100, 2650, False), "crippled"),
        outcome("nothing", 500, Pause(6000, 4000, False)),
    ]
    nothing, cut = report.pause_table(outcomes).splitlines()[2:]
    assert nothing.startswith("| hang | ext4 | nothing | 1 | >6000 | 60 | 60 | 60 |")
    assert (
        cut
        == "| hang | ext4 | cut | 3 | 200 / >100 | 60 / 60 | 60 / 60 | 60 / 60 | 90 | kept 2, crippled 1 | 0 of 300 |"
    )
    assert "| hang | ext4 | cut | 1.5 s | >100 | 60 | 60 | 60 | crippled |" in report.phase_table(outcomes)
    assert "| hang | ext4 | cut | kept | 2 | act | `kafka-scheduler` fsync .tmp 2 |" in report.threads_table(outcomes)
    assert report.pause_table(outcomes) in report.summary(outcomes, "How.")


DUMP = """
"kafka-scheduler-9" #60 daemon prio=5 nid=0x11f runnable [0x00007]
   java.lang.Thread.State: RUNNABLE
\tat sun.nio.ch.FileDispatcherImpl.force0(java.base@17.0.15/Native Method)
\tat sun.nio.ch.FileChannelImpl.force(java.base@17.0.15/FileChannelImpl.java:468)
\tat org.apache.kafka.server.common.CheckpointFile.write(CheckpointFile.java:72)

"data-plane-kafka-request-handler-5" #61 daemon prio=5 nid=0x120 waiting for monitor entry [0x00007]
   java.lang.Thread.State: BLOCKED (on object monitor)
\tat org.apache.kafka.storage.internals.log.UnifiedLog.append(UnifiedLog.java:1000)

"data-plane-kafka-request-handler-6" #62 daemon prio=5 nid=0x121 waiting on condition [0x00007]
   java.lang.Thread.State: TIMED_WAITING (parking)
\tat jdk.internal.misc.Unsafe.park(java.base@17.0.15/Native Method)
\t- parking to wait for  <0x1> (a java.util.concurrent.locks.AbstractQueuedSynchronizer$ConditionObject)
\tat kafka.network.RequestChannel.receiveRequest(RequestChannel.scala:1)

"LogDirFailureHandler" #77 prio=5 nid=0x12f waiting on condition [0x00007]
   java.lang.Thread.State: WAITING (parking)
\tat jdk.internal.misc.Unsafe.park(java.base@17.0.15/Native Method)
\t- parking to wait for  <0x00000000fe4d6d48> (a java.util.concurrent.locks.ReentrantLock$NonfairSync)
\tat kafka.server.AbstractFetcherThread.removePartitions(AbstractFetcherThread.scala:868)

"Reference Handler" #2 daemon prio=10 nid=0x12 waiting on condition  [0x00007]
   java.lang.Thread.State: RUNNABLE
"""


def test_java_says_who_waits_for_the_disk_and_who_for_these() -> None:
    assert blocked_in(DUMP) == [
        "kafka-scheduler-9: CheckpointFile.write",
        "data-plane-kafka-request-handler-5: UnifiedLog.append",
        "LogDirFailureHandler: AbstractFetcherThread.removePartitions",
    ]


def test_a_process_that_has_ended_has_no_stuck_thread() -> None:
    assert stuck_threads(2**22) == []


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--means=pray", "pray: choose from nothing, mask"),
        ("--phases=500,x", "x: a number from 1 on"),
        ("--broker=replica.fetch.backoff.ms", "KEY=VALUE"),
    ],
)
def test_a_mistake_in_the_command_line_is_said(argument: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments([argument])
    assert said in capsys.readouterr().err


@only_deep("three real brokers, measured; tests/guard/test_act_kafka.py has the story")
@pytest.mark.usefixtures("as_root", "kafka_kit")
@pytest.mark.timeout(300)
def test_a_hung_disk_that_is_cut_and_evicted_costs_clients_a_moment_and_no_record(
    tmp_path: Path, machine_can: Callable[[Callable[[], None]], None]
) -> None:
    for fstype in FILE_SYSTEMS:
        machine_can(functools.partial(require_real_disks, fstype))
    command = [sys.executable, "-m", "scripts.bench.guard", "--quick", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (one,) = kept(tmp_path / "out" / "runs.jsonl", Outcome)
    assert (one.broker, one.lost) == ("kept", 0), one
    assert list(one.acts)[:2] == ["cut", "evict"]
    assert one.acknowledged > 0
    assert all(pause.ended for pause in one.pauses.values()), one.pauses
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "runs.jsonl", "summary.md", "guard.svg", "guard.png", "logs",
    }  # fmt: skip

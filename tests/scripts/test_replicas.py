"""The replicas benchmark measures, adds up and tells."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.batches import encode_batch
from kjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    encode_record,
)
from scripts.bench import replicas
from scripts.bench.replicas_log import ControllerLog
from scripts.bench.replicas_rig import Start, System

ROOT = Path(__file__).parents[2]
D1, D2, TOPIC = Uuid.of(2, 1), Uuid.of(2, 2), Uuid.of(3, 1)


def _start(system: System, replicas: int, seconds: float, case: str = "new") -> Start:
    return Start(system, case, replicas, 0.5, seconds - 1, seconds, seconds, 50.0, 1.0)


@pytest.mark.usefixtures("world")
def test_the_quickest_run_measures_an_agent_on_real_directories_and_one_in_memory(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "scripts.bench.replicas", "--quick", "--cases", "new,moved", "--out", str(out)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert result.returncode == 0, result.stderr
    with open(out / "replicas.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["system"], row["case"], row["replicas"]) for row in rows] == [
        ("agent", "new", "60"),
        ("agent", "moved", "60"),
        ("agent in memory", "new", "60"),
        ("agent in memory", "moved", "60"),
    ]
    for row in rows:
        assert 0 < float(row["registered_s"]) <= float(row["unfenced_s"])
        assert float(row["assigned_s"]) <= float(row["unfenced_s"])  # KIP-858: fenced until all is assigned
        assert float(row["memory_mib"]) > 1
    assert (out / "replicas.png").stat().st_size > 1000
    assert "to Kafka" in result.stdout


def test_an_agent_is_compared_with_kafka_on_the_same_disks_only() -> None:
    agent, memory = _start("agent", 1000, 2.0), _start("agent in memory", 1000, 1.0)
    starts = [agent, memory, _start("Kafka", 1000, 8.0), _start("Kafka", 10_000, 90.0)]
    assert replicas.ratio_to_kafka(agent, starts) == 0.25
    assert replicas.ratio_to_kafka(memory, starts) is None
    assert replicas.ratio_to_kafka(_start("agent", 10_000, 90.0, "moved"), starts) is None


def test_growth_is_the_time_of_each_replica_among_many_over_that_among_few() -> None:
    starts = [_start("agent", 10_000, 30.0), _start("agent", 1000, 2.0), _start("agent", 1000, 5.0, "moved")]
    assert replicas.growth(starts) == [("agent", "new", 1000, 10_000, 1.5)]


def test_what_is_slower_than_kafka_or_not_linear_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    starts = [_start("agent", 1000, 1.0), _start("agent", 10_000, 30.0), _start("Kafka", 10_000, 20.0)]
    misses = replicas._tell(starts)
    assert misses == ["new 10000: 1.50 of Kafka's time", "new agent: 3.00"]
    told = capsys.readouterr().out
    assert "SLOWER" in told and "NOT LINEAR" in told


def _append(directory: Path, offset: int, at_ms: int, *records: Record) -> None:
    with open(directory / f"{0:020}.log", "ab") as file:
        file.write(encode_batch([encode_record(record) for record in records], offset, 1, at_ms))


def _partition(number: int, directory: Uuid) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number, topic_id=TOPIC, replicas=(1,), isr=(1,), leader=1, leader_epoch=0, directories=(directory,)
    )


def test_the_controllers_log_says_when_what_was_recorded(tmp_path: Path) -> None:
    log = ControllerLog(tmp_path, broker_id=1)
    registered = RegisterBrokerRecord(
        broker_id=1, incarnation_id=TOPIC, broker_epoch=7, end_points=(), features=(), log_dirs=(D1, D2)
    )
    _append(tmp_path, 0, 1_000, registered, _partition(0, UNASSIGNED), _partition(1, D1))
    now = log.read()
    assert (now.epoch, now.registered_s, now.fenced) == (7, 1.0, True)
    assert (len(now.partitions), now.waiting) == (2, {(TOPIC, 0)})
    _append(tmp_path, 3, 2_500, PartitionChangeRecord(partition_id=0, topic_id=TOPIC, directories=(D2,)))
    _append(tmp_path, 4, 3_000, BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=7, fenced=-1))
    now = log.read()
    assert (now.assigned_s, now.unfenced_s, now.fenced, now.waiting) == (2.5, 3.0, False, set())
    log.all_to_be_assigned_anew()
    assert len(log.read().waiting) == 2


@pytest.mark.parametrize("arguments", [["--replicas", "x"], ["--cases", "old"], ["--directories", "0"], ["--wrong"]])
def test_bad_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        replicas.arguments(arguments)
    assert ended.value.code == 2
    assert "replicas: error: " in capsys.readouterr().err

"""The controller benchmark measures, compares and tells."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from kjbod.ids import Uuid
from kjbod.metadata.batches import encode_batch
from kjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    NoOpRecord,
    PartitionChangeRecord,
    Record,
    encode_record,
)
from scripts.bench import controller
from scripts.bench.controller_cases import Row, Sample, percentile
from scripts.bench.controller_client import PARTITION_CHANGE, REGISTRATION_CHANGE, record_types
from scripts.bench.controller_rig import System
from scripts.rig.rig_error import RigError

ROOT = Path(__file__).parents[2]
FAILS = "directory with 10000 leaders fails: answer"


def _sample(system: System, value: float, name: str = FAILS, part: str = "a", unit: str = "ms") -> Sample:
    return Sample(Row(part, name, unit, "warm"), system, value)


@pytest.mark.usefixtures("world")
def test_a_run_measures_our_controller_and_tells_what_it_measured(tmp_path: Path) -> None:
    options = ["--quick", "--no-kafka", "--sizes", "60", "--only", "a,b", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "scripts.bench.controller", *options]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert result.returncode == 0, result.stderr
    with open(tmp_path / "controller.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    measured = {(row["part"], row["name"], row["phase"]) for row in rows}
    for phase in ("cold", "warm"):
        assert ("a", "directory with 60 leaders fails: visible", phase) in measured
        assert ("b", "60 assignments, one request: answer", phase) in measured
    assert {row["system"] for row in rows} == {"kjbod"}
    assert all(float(row["value"]) > 0 for row in rows)
    assert (tmp_path / "controller.png").stat().st_size > 1_000
    assert "directory with 60 leaders fails: answer" in result.stdout


def test_what_is_slower_than_kafka_or_makes_others_wait_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    waits, most = "others' heartbeats while 10000 leaders move: longest", "most brokers of 500, 1000 at p99 up to 50 ms"
    samples = [
        *(_sample("kjbod", value) for value in (90.0, 300.0, 100.0)),
        _sample("Kafka", 130.0),
        _sample("kjbod", 150.0, "start with 100 partitions: serves brokers", "e"),
        _sample("Kafka", 100.0, "start with 100 partitions: serves brokers", "e"),
        _sample("kjbod", 51.0, waits, "g"),
        _sample("Kafka", 900.0, waits, "g"),
        _sample("kjbod", 1_000, most, "c", ""),
        _sample("Kafka", 500, most, "c", ""),
    ]
    reached = {line.row.name: line.reached for line in controller.compare(samples)}
    assert reached == {FAILS: True, "start with 100 partitions: serves brokers": False, waits: False, most: True}
    assert controller.compare(samples)[0].ratio == pytest.approx(100 / 130)
    assert len(controller._tell(samples, None)) == 2
    assert "2 out of reach" in capsys.readouterr().out


def test_where_kafka_was_not_measured_nothing_is_promised() -> None:
    (line,) = controller.compare([_sample("kjbod", 5.0)])
    assert (line.kafka, line.ratio, line.reached) == (None, None, None)


def test_an_observer_counts_the_records_of_whole_batches() -> None:
    change = PartitionChangeRecord(partition_id=3, topic_id=Uuid.of(3, 1), isr=tuple(range(40)))
    records: list[Record] = [change, NoOpRecord(), *[change] * 200]
    gone = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=7, log_dirs=(Uuid.of(2, 2),))
    data = encode_batch([encode_record(record) for record in records], 10, 1, 0)
    data += encode_batch([encode_record(gone)], 212, 1, 0)
    found = list(record_types(data))
    assert [offset for offset, _ in found] == list(range(10, 213))
    assert [kind for _, kind in found].count(PARTITION_CHANGE) == 201
    assert found[-1] == (212, REGISTRATION_CHANGE)
    assert list(record_types(data[:-1]))[-1][0] == 211  # the last batch is not whole


def test_a_percentile_is_a_value_that_so_many_do_not_exceed() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile([7.0], 99)) == (50.0, 99.0, 7.0)
    with pytest.raises(RigError):
        percentile([], 50)


@pytest.mark.parametrize("arguments", [["--only", "z"], ["--sizes", "0"], ["--rounds", "x"], ["--rules", "mine"]])
def test_bad_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        controller.arguments(arguments)
    assert ended.value.code == 2
    assert "controller: error: " in capsys.readouterr().err

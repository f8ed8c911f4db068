"""Real Apache Kafka from the jars that scripts/kafka gets."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from scripts.rig import kafka
from scripts.rig.kafka import KafkaKit, broker_properties, controller_properties
from scripts.rig.processes import Processes, free_port, wait_until
from scripts.rig.rig_error import RigError

CLUSTER_ID = "kjbodRealKafkaTests000"
ROOT = Path(__file__).parents[2]


def test_without_jars_one_line_names_the_script_that_gets_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KJBOD_CACHE", str(tmp_path))
    with pytest.raises(RigError, match=r"^Apache Kafka 4\.3\.1: no jars in .*: run scripts/kafka 4\.3\.1$"):
        KafkaKit.find()


@pytest.mark.usefixtures("world")
def test_without_java_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (libs := tmp_path / "kafka-4.3.1" / "libs").mkdir(parents=True)
    for line in (ROOT / "scripts" / "kafka.d" / "4.3.1.sha256").read_text().splitlines():
        (libs / line.split()[1]).touch()
    monkeypatch.setenv("KJBOD_CACHE", str(tmp_path))
    monkeypatch.setenv("KJBOD_JAVA_HOME", str(tmp_path))
    with pytest.raises(
        RigError, match=r"^Apache Kafka 4\.3\.1 needs Java 17 or later: not found \(apt-get install .*\)$"
    ):
        KafkaKit.find()


def test_script_and_library_agree_on_kafkas_version() -> None:
    assert f"\nversion=${{1-{kafka.VERSION}}}\n" in (ROOT / "scripts" / "kafka").read_text()


SUMS = sorted((ROOT / "scripts" / "kafka.d").glob("*.sha256"))


@pytest.mark.parametrize("sums", SUMS, ids=lambda path: path.stem)
def test_each_jar_of_a_version_has_one_checksum(sums: Path) -> None:
    lines = sums.read_text().splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{64} {2}[A-Za-z0-9_.-]+\.jar", line) for line in lines)
    jars = [line.split()[1] for line in lines]
    assert len(jars) == len(set(jars))
    for module in ("kafka-clients", "kafka-metadata", "kafka-server-common", "kafka-tools", "kafka_2.13"):
        assert f"{module}-{sums.stem}.jar" in jars


@pytest.mark.parametrize(
    "version", ["4.5.0", "4.3", "4.4.0-rc1", "../kafka.d/4.3.1", "latest", "", "-x", "4.4.0 4.3.1"]
)
@pytest.mark.usefixtures("world")
def test_a_version_without_checksums_is_one_line_and_gets_nothing(version: str, tmp_path: Path) -> None:
    environment = {**os.environ, "KJBOD_CACHE": str(tmp_path / "cache")}
    command = [str(ROOT / "scripts" / "kafka"), *version.split(" ")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1 and ended.stdout == "" and not (tmp_path / "cache").exists()
    (line,) = ended.stderr.splitlines()
    assert "is no version with checksums" in line and "3.9.2" in line and "4.4.0" in line


@pytest.mark.usefixtures("kafka_kit")
def test_a_real_controller_and_a_real_jbod_broker_start_serve_and_stop(
    kafka_kit: KafkaKit, processes: Processes, tmp_path: Path
) -> None:
    controller_port, broker_port = free_port(), free_port()
    controller = tmp_path / "controller.properties"
    controller.write_text(controller_properties(3000, controller_port, tmp_path / "c"))
    broker = tmp_path / "broker.properties"
    broker.write_text(broker_properties(1, broker_port, controller_port, [tmp_path / "d1", tmp_path / "d2"]))
    kafka_kit.format(controller, CLUSTER_ID, "--standalone")
    assert "Formatting" in kafka_kit.format(broker, CLUSTER_ID)

    servers = [
        kafka_kit.start_server(processes, controller, name="controller"),
        kafka_kit.start_server(processes, broker, name="broker"),
    ]
    bootstrap = ("--bootstrap-server", f"127.0.0.1:{broker_port}")
    kafka_kit.run(kafka.TOPICS, *bootstrap, "--create", "--topic", "t", "--partitions", "2")
    # The controller has it; the broker, which is asked, follows.
    told = wait_until(
        lambda: kafka_kit.run(kafka.TOPICS, *bootstrap, "--list").stdout.strip(), 30, "the broker to have it"
    )
    assert told == "t"

    assert [server.stop() for server in reversed(servers)] == [143, 143]
    log = tmp_path / "c" / "__cluster_metadata-0" / "00000000000000000000.log"
    records = [record for _, record in kafka_kit.metadata_records(log)]
    assert sum(record["type"] == "PARTITION_RECORD" for record in records) == 2


@pytest.mark.usefixtures("kafka_kit")
def test_a_tool_that_fails_is_one_line_with_its_reason(kafka_kit: KafkaKit, tmp_path: Path) -> None:
    with pytest.raises(RigError, match=r"^kafka\.tools\.StorageTool format .*: exit code 1: .*nowhere"):
        kafka_kit.format(tmp_path / "nowhere", CLUSTER_ID)

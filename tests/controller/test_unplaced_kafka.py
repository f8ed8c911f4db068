"""A real broker of 4.3.1 whose replicas are from before directories were recorded gets a second directory."""

import re
from pathlib import Path

import pytest

from scripts.rig.cluster import format_node
from scripts.rig.kafka import FEATURES, TOPICS, KafkaKit, broker_properties, controller_properties
from scripts.rig.processes import ManagedProcess, Processes, free_port, wait_until
from tests.agent.real_broker import stop_clean

pytestmark = [pytest.mark.usefixtures("kafka_kit"), pytest.mark.timeout(300)]

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
PARTITIONS = 20


def static_voters(text: str, port: int) -> str:
    """Quorums of 3.7 have their voters in the configuration."""
    return re.sub("controller.quorum.bootstrap.servers=.*", f"controller.quorum.voters=3000@127.0.0.1:{port}", text)


def test_a_real_broker_is_not_unfenced_nor_elected_before_its_old_replicas_are_assigned(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    port, broker_port = free_port(), free_port()
    controller, broker = tmp_path / "controller.properties", tmp_path / "broker.properties"
    controller.write_text(static_voters(controller_properties(3000, port, tmp_path / "metadata"), port))
    format_node(controller, CLUSTER_ID, release="3.7-IV1")
    serving = processes.kjbod("controller", "-c", str(controller), name="controller")
    serving.wait_for_event("controller.started")

    def start_broker(name: str, *directories: str) -> ManagedProcess:
        paths = [tmp_path / directory for directory in directories]
        broker.write_text(static_voters(broker_properties(1, broker_port, port, paths), port))
        format_node(broker, CLUSTER_ID, again=True, release="3.7-IV1")
        return kafka_kit.start_server(processes, broker, name=name)

    bootstrap = ("--bootstrap-server", f"127.0.0.1:{broker_port}")
    one = start_broker("one", "d1")
    kafka_kit.run(TOPICS, *bootstrap, "--create", "--topic", "old", "--partitions", str(PARTITIONS))
    kafka_kit.run(FEATURES, *bootstrap, "upgrade", "--release-version", "4.3")
    stop_clean(one)
    start_broker("two", "d1", "d2")
    wait_until(lambda: len(serving.events("broker.unfenced")) == 2, 60, "the broker to be unfenced again")

    records = kafka_kit.metadata_records(tmp_path / "metadata/__cluster_metadata-0" / f"{0:020d}.log")
    registered = max(offset for offset, record in records if record["type"] == "REGISTER_BROKER_RECORD")
    later = [(offset, record["type"], record["data"]) for offset, record in records if offset > registered]
    assigned = [offset for offset, kind, data in later if kind == "PARTITION_CHANGE_RECORD" and data.get("directories")]
    (unfenced,) = [
        offset for offset, kind, data in later if kind.startswith("BROKER_REGISTRATION") and data.get("fenced") == -1
    ]
    elected = [offset for offset, kind, data in later if kind == "PARTITION_CHANGE_RECORD" and data.get("leader") == 1]
    assert (len(assigned), len(elected)) == (PARTITIONS, PARTITIONS)
    assert max(assigned) < unfenced < min(elected)

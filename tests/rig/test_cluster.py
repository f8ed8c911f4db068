"""The rig that starts clusters: formats as the command does, and says what went wrong."""

from pathlib import Path

import pytest

from scripts.rig.cluster import CONTROLLER_ID, Cluster, directory_id, format_node
from scripts.rig.kafka import RELEASE, broker_properties, controller_properties
from scripts.rig.processes import Processes, free_port
from scripts.rig.rig_error import RigError
from tests.preloading import run_kjbod

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("role", ["controller", "broker"])
def test_a_node_is_formatted_as_by_the_command(tmp_path: Path, role: str) -> None:
    ways = tmp_path / "command", tmp_path / "rig"
    for way in ways:
        way.mkdir()
        if role == "controller":
            text, flags = controller_properties(CONTROLLER_ID, 19093, way / "d1"), ["--standalone", "-r", RELEASE]
        else:
            text, flags = broker_properties(1, 19092, 19093, [way / "d1", way / "d2"]), []
        (way / "server.properties").write_text(text)
    run_kjbod("format", "-t", CLUSTER_ID, "-c", str(ways[0] / "server.properties"), *flags, check=True)
    format_node(ways[1] / "server.properties", CLUSTER_ID)
    by_command, by_rig = (
        {path.relative_to(way): path.stat().st_size for path in way.rglob("d*/**/*") if path.is_file()} for way in ways
    )
    assert by_command == by_rig and Path("d1/meta.properties") in by_rig
    assert directory_id(ways[1] / "d1") != directory_id(ways[0] / "d1")


def test_a_directory_without_an_id_is_named(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    with pytest.raises(RigError, match=rf"^{tmp_path}/meta\.properties: it has no directory\.id$"):
        directory_id(tmp_path)


def test_a_cluster_starts_serves_and_stops_in_good_order(tmp_path: Path, processes: Processes) -> None:
    cluster = Cluster(tmp_path, processes)
    cluster.format_controller()
    cluster.start_controller()
    config = cluster.configure_broker(1, [tmp_path / "d1"], {"kjbod.state.dir": tmp_path / "state"}, port=free_port())
    cluster.format_broker(config)
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced")
    cluster.create_topic("drawn", partitions=2)
    cluster.create_topic("placed", partitions=2, brokers=[1])
    with pytest.raises(RigError, match=r"^topic drawn was not created: error codes \[36\]$"):
        cluster.create_topic("drawn", partitions=2)
    cluster.delete_topics("drawn", "placed")
    with pytest.raises(RigError, match=r"^not deleted: placed: error codes \[3\]$"):
        cluster.delete_topics("placed")
    cluster.stop()
    assert cluster.controller is not None
    assert (agent.exit_code, cluster.controller.exit_code) == (0, 0)

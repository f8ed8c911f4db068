"""A guard that acts beside a real node that is broker and controller, the disk with its metadata log hangs: the node is
given up when the others are a majority, and not before."""

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.faults.disks import RealDisk
from kjbod.faults.orders import FaultMode
from scripts.rig.cluster import Cluster, wait_until_guarding
from scripts.rig.cluster_watch import ClusterWatch
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes, free_port, wait_until
from tests.depth import only_deep
from tests.guard.brokers import active_controller, start_brokers
from tests.guard.conftest import Beside

NODES = (1, 2, 3)
IN_TIME_S = 60


@only_deep("three real nodes that are brokers and controllers")
@pytest.mark.parametrize("leads", [True, False], ids=["active", "not-active-metadata-apart"])
def test_a_combined_node_is_given_up_when_its_quorum_can_do_without_it(
    leads: bool,
    tmp_path: Path,
    processes: Processes,
    kafka_kit: KafkaKit,
    real_disk: Callable[..., RealDisk],
    beside: Callable[..., Beside],
) -> None:
    cluster = Cluster(tmp_path, processes, kafka=kafka_kit)
    disks = {node: real_disk(log_dir="kafka") for node in NODES}
    own, controllers = ({node: free_port() for node in NODES} for _ in range(2))
    addresses = ",".join(f"127.0.0.1:{port}" for port in controllers.values())
    configs = {
        node: cluster.configure_broker(
            node,
            [disks[node].log_dir, tmp_path / f"b{node}-d2"] if leads else [tmp_path / f"b{node}-d{n}" for n in (1, 2)],
            {
                "metadata.log.dir": disks[node].log_dir,
                "process.roles": "broker,controller",
                "listeners": f"PLAINTEXT://127.0.0.1:{own[node]},CONTROLLER://127.0.0.1:{controllers[node]}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{own[node]}",
                "controller.quorum.voters": ",".join(f"{one}@127.0.0.1:{port}" for one, port in controllers.items()),
                "controller.quorum.bootstrap.servers": addresses,
            },
        )
        for node in NODES
    }
    brokers = dict(zip(NODES, start_brokers(cluster, kafka_kit, list(configs.values())), strict=True))
    active = active_controller(controllers.values())
    given = active if leads else next(node for node in NODES if node != active)
    first, second = (node for node in NODES if node != given)
    cluster.port = controllers[active]
    cluster.create_topic("load", 6, brokers=NODES, in_turns=True)
    site = beside(configs[given], guard_mode="act", guard_fence_max_brokers=2)
    guard = site.start()
    wait_until_guarding(guard)

    brokers[second].signal(signal.SIGSTOP)  # of three voters two are left
    disks[given].set(FaultMode.HANG)
    guard.wait_for_event(
        "guard.would", IN_TIME_S, would="wait", where=lambda line: "this node is a controller too" in line["reason"]
    )
    assert brokers[given].running and not guard.events("guard.done", means="kill")

    brokers[second].signal(signal.SIGCONT)
    assert guard.wait_for_event("guard.done", IN_TIME_S, means="kill")["outcome"] == "done"
    assert site.deeds()[0] == "fence", "the claim comes before the kill"
    with contextlib.closing(ClusterWatch(controllers[first], cluster.cluster_id)) as metadata:
        wait_until(lambda: metadata.unfenced() == {first, second}, IN_TIME_S, "the others serve")
        wait_until(lambda: metadata.leaders()[given] == 0, IN_TIME_S, "the others lead")
    cluster.port = controllers[active_controller(controllers[node] for node in (first, second))]
    cluster.create_topic("afterwards", 2, brokers=(first, second))
    assert guard.stop() == 0

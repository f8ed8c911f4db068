"""Row *agent*: agents as brokers on a Kafka's controller."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kjbod.faults.orders import FaultMode
from scripts.matrix.stage import Stage, claim
from scripts.rig.cluster import Cluster, Properties, directory_id
from scripts.rig.cluster_watch import ClusterWatch
from scripts.rig.processes import wait_until

_AGENTS: Final = (1, 2)
_PARTITIONS: Final = 12
_WAIT_S: Final = 60.0


def agent_lines(base: Path, node: int) -> Properties:
    """Lines of kjbod's own in the file of an agent."""
    own = {"kjbod.state.dir": base / f"state{node}", "kjbod.host": f"host{node}"}
    return {**own, "kjbod.placement.full.percent": 100}  # whatever else lies on this machine's disk


def agent(stage: Stage) -> None:
    """Two agents register and unfence; a directory of one fails, which is recorded, and the other one leads."""
    cluster = stage.cluster({"broker.session.timeout.ms": 30_000})
    disks = [stage.disk() for _ in range(2)]
    places = {1: [stage.base / "b1" / "d1", *(disk.log_dir for disk in disks)], 2: [stage.base / "b2" / "d1"]}
    agents = {}
    for node in _AGENTS:
        config = cluster.configure_broker(node, places[node], agent_lines(stage.base, node))
        cluster.format_broker(config)
        agents[node] = cluster.start_agent(config)
    for one in agents.values():
        one.wait_for_event("agent.unfenced", _WAIT_S)
    watch = ClusterWatch(cluster.port, cluster.cluster_id)
    try:
        _fail_a_directory(cluster, watch, disks[1].log_dir, lambda: disks[1].set(FaultMode.EIO))
    finally:
        watch.close()
    for node, one in agents.items():
        claim(one.running, f"agent {node} ended: {one.tail()}")
        claim(one.stop(_WAIT_S) == 0, f"the end of agent {node}: {one.tail()}")
    cluster.stop_controller()


def _fail_a_directory(cluster: Cluster, watch: ClusterWatch, path: Path, break_disk: Callable[[], None]) -> None:
    wait_until(lambda: watch.unfenced() == set(_AGENTS), _WAIT_S, "agents that the controller has unfenced")
    cluster.create_topic("events", _PARTITIONS, brokers=_AGENTS)
    replicas = len(_AGENTS) * _PARTITIONS
    wait_until(lambda: watch.assigned_replicas("events") == replicas, _WAIT_S, "directories of all replicas")
    known = directory_id(path)
    claim(watch.leaders_by_directory().get((1, known)), f"agent 1 leads nothing in {path}")
    since_s = time.time()
    break_disk()
    wait_until(lambda: watch.recorded_offline(1, known, since_s), _WAIT_S, "the failed directory to be recorded")
    wait_until(lambda: not watch.leaders_by_directory().get((1, known)), _WAIT_S, "other leaders")
    claim(watch.leaders()[2], "agent 2 leads nothing")

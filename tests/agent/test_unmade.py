"""A replica that cannot be made, and the broker that has it: real processes on both sides."""

import json
import shutil
from pathlib import Path

from scripts.rig.processes import Processes, wait_until
from tests.agent.daemon_cluster import Cluster, wait_assigned
from tests.preloading import run_kjbod

TIMEOUT_MS = 8_000


def said(*arguments: str) -> str:
    return run_kjbod(*arguments).stdout


def leaders(cluster: Cluster) -> dict[str, int]:
    """Of each partition of the topic ``t``, by what the controller's log says."""
    found: dict[str, int] = {}
    for line in said("metadata", "dump", "-s", str(cluster.base / "controller")).splitlines():
        record = json.loads(line)
        if record.get("type") in ("PARTITION_RECORD", "PARTITION_CHANGE_RECORD"):
            data = record["data"]
            leader = data.get("leader", -2)
            found[f"t-{data['partitionId']}"] = leader if leader != -2 else found[f"t-{data['partitionId']}"]
    return found


def test_a_replica_that_cannot_be_made_is_named_by_both_sides_and_keeps_the_broker_fenced_for_a_while_only(
    tmp_path: Path, processes: Processes
) -> None:
    cluster = Cluster(tmp_path, processes)
    with (tmp_path / "controller.properties").open("a") as file:
        file.write(f"kjbod.assignment.timeout.ms={TIMEOUT_MS}\n")
    controller = cluster.start_controller()
    config = cluster.configure(1, directories=2, kjbod_assignment_timeout_ms=TIMEOUT_MS)
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced")
    for number in (1, 2):
        rest = cluster.directory(1, number) / "t-0.kjbod-new-delete"  # under this name a replica is made
        rest.mkdir()
        (rest / "somebody's").touch()
    cluster.create_topic("t", 3, 1)
    wait_assigned(agent, 2)
    assert agent.stop() == 0

    agent = cluster.start_agent(config)

    def waits_for_one() -> bool:
        told = said("status", "--json", "-c", str(config))
        status = json.loads(told) if told else {}
        return (status.get("fenced"), status.get("queued_assignments")) == (True, 1)

    wait_until(waits_for_one, 30, "the status to say that one assignment keeps it fenced")
    wait_until(lambda: "t-0 cannot be made since" in said("status", "-c", str(config)), 30, "the status to say why")
    agent.wait_for_event("agent.unfenced")
    assert [line["replica"] for line in agent.events("replicas.without.directory")] == ["t-0"]
    incomplete = controller.wait_for_event("broker.unfenced.incomplete")
    assert len(controller.events("broker.unfenced.incomplete")) == 1
    assert (incomplete["first"], incomplete["replicas_without_directory"]) == ("t-0", 1)
    assert len(agent.events("replica.create.failed")) == 2, "one line for each directory"
    assert leaders(cluster) == {"t-0": -1, "t-1": 1, "t-2": 1}, "nobody knows where t-0 would be"

    for number in (1, 2):
        shutil.rmtree(cluster.directory(1, number) / "t-0.kjbod-new-delete")
    wait_until(lambda: leaders(cluster)["t-0"] == 1, 30, "t-0 to be made, assigned and led")

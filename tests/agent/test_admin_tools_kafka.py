"""What any broker forwards for administrators, with Kafka's own tools, on an agent: kjbod's controller and Kafka's."""

import subprocess
from pathlib import Path

import pytest

from kjbod.metadata.acls import STANDARD_AUTHORIZER
from scripts.rig.kafka import ACLS, CLUSTER, CONFIGS, FEATURES, LEADER_ELECTION, QUORUM, TOPICS, KafkaKit
from scripts.rig.processes import Processes, wait_until
from tests.agent.daemon_cluster import Cluster, wait_assigned
from tests.agent.test_listener_kafka import Site

pytestmark = [pytest.mark.usefixtures("kafka_kit"), pytest.mark.timeout(400)]


ANYBODY = f"authorizer.class.name={STANDARD_AUTHORIZER}\nsuper.users=User:ANONYMOUS\n"


@pytest.fixture(params=[False, True], ids=["kjbod's controller", "Kafka's controller"])
def site(request: pytest.FixtureRequest, tmp_path: Path, processes: Processes, kafka_kit: KafkaKit) -> Site:
    cluster = Cluster(tmp_path, processes, kafka_kit if request.param else None)
    with (tmp_path / "controller.properties").open("a") as controller:
        controller.write(ANYBODY)
    cluster.start_controller()
    config = cluster.configure(1, authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS")
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced")
    return Site(cluster, kafka_kit, config, agent)


def said(result: subprocess.CompletedProcess[str]) -> str:
    return result.stdout + result.stderr


def seen(site: Site, words: str, tool: str, *arguments: str) -> str:
    """What the tool says once it says these words: an agent follows the metadata a moment later."""
    texts: list[str] = []

    def ask() -> bool:
        texts.append(said(site.run(tool, *arguments)))
        return words in texts[-1]

    wait_until(ask, 60, f"{tool} to say {words}")
    return texts[-1]


def test_administrators_may_ask_an_agent_as_any_broker(site: Site) -> None:
    # The quorum and the features.
    described = site.run(FEATURES, "describe").stdout
    (kraft,) = [line for line in described.splitlines() if "kraft.version" in line]
    assert "FinalizedVersionLevel: 1 " in kraft, "as a broker of Kafka says it"
    dry = said(site.run(FEATURES, "upgrade", "--feature", "share.version=1", "--dry-run"))
    assert "share.version can be upgraded to 1" in dry or "share.version was" in dry, dry
    assert "LeaderId:               3000" in site.run(QUORUM, "describe", "--status").stdout

    # Topics and leaders.
    site.create("events", 2)
    site.run(TOPICS, "--alter", "--topic", "events", "--partitions", "4")
    wait_assigned(site.agent, 4)
    described = seen(site, "PartitionCount: 4", TOPICS, "--describe", "--topic", "events")
    assert described.count("Leader: 1") == 4 and "Elr:" in described
    elected = said(site.run(LEADER_ELECTION, "--election-type", "preferred", "--all-topic-partitions"))
    assert "Error" not in elected

    # Users, quotas, access.
    user = ("--entity-type", "users", "--entity-name", "alice")
    site.run(CONFIGS, "--alter", *user, "--add-config", "SCRAM-SHA-256=[iterations=4096,password=secret]")
    site.run(CONFIGS, "--alter", *user, "--add-config", "producer_byte_rate=1000")
    told = seen(site, "producer_byte_rate=1000", CONFIGS, "--describe", *user)
    assert "SCRAM-SHA-256=iterations=4096" in told
    entry = ("--allow-principal", "User:bob", "--operation", "Read", "--topic", "events")
    site.run(ACLS, "--add", *entry)
    seen(site, "principal=User:bob", ACLS, "--list")
    site.run(ACLS, "--remove", "--force", *entry)
    wait_until(lambda: "User:bob" not in said(site.run(ACLS, "--list")), 60, "the entry to be gone")
    site.run(
        CONFIGS, "--alter", "--entity-type", "client-metrics", "--entity-name", "m", "--add-config", "interval.ms=200"
    )
    seen(site, "interval.ms=200", CONFIGS, "--describe", "--entity-type", "client-metrics")


def test_a_broker_that_is_gone_is_unregistered_through_an_agent(site: Site) -> None:
    other = site.cluster.start_agent(site.cluster.configure(2))
    other.wait_for_event("agent.unfenced")
    assert other.stop() == 0
    unregister = ("unregister", "--bootstrap-server", site.bootstrap, "--id", "2")
    assert "Broker 2 is no longer registered." in site.kit.run(CLUSTER, *unregister).stdout
    again = said(site.kit.run(CLUSTER, *unregister, check=False))
    assert "BrokerIdNotRegisteredException" in again or "not currently registered" in again, again

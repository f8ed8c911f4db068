"""OAUTHBEARER between kjbod and Apache Kafka 4.3.1, in both directions, with an identity provider in between: agents
and commands at Kafka's controller, and brokers, tools and librdkafka at ours."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kjbod.cli import main as cli
from scripts.brokers.peers import AUTHORIZER
from scripts.brokers.secured import librdkafka, serve_with_a_broker
from scripts.rig.cluster import Cluster
from scripts.rig.identity_provider import CLIENT_SECRET
from scripts.rig.kafka import TOPICS, KafkaKit
from scripts.rig.processes import Processes, free_port
from scripts.rig.secured import OAUTHBEARER, Secured, scram_options
from tests.agent.daemon_cluster import CLUSTER_ID
from tests.depth import only_deep

pytestmark = pytest.mark.usefixtures("kafka_kit")
PROTOCOL = "SASL_SSL"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    found = Secured(tmp_path_factory.mktemp("secured"))
    with found.identity_provider():
        yield found


@contextlib.contextmanager
def controller(base: Path, kit: KafkaKit, secured: Secured, *, kafka: bool) -> Iterator[Cluster]:
    with Processes(base / "logs") as processes:
        lines = {**secured.node(PROTOCOL, OAUTHBEARER), **AUTHORIZER, "connections.max.reauth.ms": 3_000}
        cluster = Cluster(base, processes, kafka=kit if kafka else None, cluster_id=CLUSTER_ID, properties=lines)
        kit.format(cluster.controller_config, CLUSTER_ID, "--standalone", *scram_options())
        cluster.start_controller()
        yield cluster


@pytest.mark.parametrize(
    "kafka",
    [
        pytest.param(True, id="at Kafka's controller"),
        pytest.param(False, id="at ours", marks=only_deep("both halves are ours, and each is asked by Kafka's")),
    ],
)
def test_an_agent_lives_by_tokens_and_so_do_commands_and_clients(
    tmp_path: Path, kafka_kit: KafkaKit, secured: Secured, capsys: pytest.CaptureFixture[str], *, kafka: bool
) -> None:
    kit = kafka_kit.with_options(*secured.java_options())
    with controller(tmp_path, kit, secured, kafka=kafka) as cluster:
        port = free_port()
        lines = {**secured.broker(PROTOCOL, port, OAUTHBEARER), **AUTHORIZER, "kjbod.state.dir": tmp_path / "state"}
        config = tmp_path / "b1" / "server.properties"
        config.parent.mkdir()
        cluster.configure_broker(1, [tmp_path / "b1" / "d1"], lines, config=config)
        (tmp_path / "b1" / "d1").mkdir()
        cluster.format_broker(config)
        agent = cluster.start_agent(config)
        agent.wait_for_event("agent.unfenced")

        client = str(secured.client_file(tmp_path / "c.properties", secured.client(PROTOCOL, OAUTHBEARER)))
        where = ["--bootstrap-controller", f"127.0.0.1:{cluster.port}", "--command-config", client]
        assert cli.run(["metadata", "shell", *where, "ls", "/image/cluster/brokers"]) == 0
        assert "1" in capsys.readouterr().out.split()
        server = ["--bootstrap-server", f"127.0.0.1:{port}", "--command-config", client]
        assert kit.run(TOPICS, *server, "--list").stdout.strip() == ""
        found = AdminClient(librdkafka(secured, PROTOCOL, port, OAUTHBEARER)).list_topics(timeout=20)
        assert [one.id for one in found.brokers.values()] == [1]

        wrong = {**secured.client(PROTOCOL, OAUTHBEARER), "sasl.jaas.config": secured.oauth_jaas("wrong")}
        secured.client_file(tmp_path / "c.properties", wrong)
        assert cli.run(["features", "upgrade", "--feature", "kraft.version=1", *where]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "/token answers HTTP 401: invalid_client: no such client" in line and "wrong" not in line
        assert CLIENT_SECRET not in agent.stderr() and "eyJ" not in agent.stderr()
        assert agent.stop(60) == 0


@only_deep("scripts/real-brokers --secured does it too")
def test_an_unmodified_broker_serves_on_a_controller_of_ours_by_tokens(
    tmp_path: Path, kafka_kit: KafkaKit, secured: Secured
) -> None:
    kit = kafka_kit.with_options(*secured.java_options())
    with controller(tmp_path, kit, secured, kafka=False) as cluster:
        serve_with_a_broker(cluster, kit, secured, PROTOCOL, OAUTHBEARER)
        cluster.stop_controller()

"""Logins by Kerberos between kjbod and Apache Kafka 4.3.1, with a real KDC: our clients and agents at Kafka's
controller, an unmodified broker and Kafka's tools at ours."""

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from kjbod.cli import main as cli
from kjbod.clock import SystemClock
from kjbod.security.opening import client_security
from kjbod.wire.client import Connection
from kjbod.wire.messages import DescribeClusterRequest
from scripts.brokers.peers import AUTHORIZER
from scripts.rig.cluster import Cluster, wait_until_serving
from scripts.rig.kafka import FEATURES, SERVER, KafkaKit, render_properties
from scripts.rig.kdc import SERVICE
from scripts.rig.processes import Processes, free_port
from tests.agent.daemon_cluster import CLUSTER_ID
from tests.security.conftest import Realm

pytestmark = pytest.mark.usefixtures("kafka_kit")
TIMEOUT_MS = 20_000


@contextlib.contextmanager
def controller(base: Path, kit: KafkaKit, realm: Realm, *, kafka: bool) -> Iterator[Cluster]:
    """A controller, Kafka's or kjbod's, that takes GSSAPI alone, and from whose users only nodes have rights."""
    lines = {**realm.kdc.node(realm.server), **AUTHORIZER, "connections.max.reauth.ms": 1_500}
    with Processes(base / "logs") as processes:
        options = realm.kdc.java_options
        cluster = Cluster(
            base, processes, kafka=kit if kafka else None, cluster_id=CLUSTER_ID, properties=lines, jvm=options
        )
        cluster.format_controller()
        cluster.start_controller()
        yield cluster
        cluster.stop_controller()


def client_file(base: Path, realm: Realm) -> str:
    path = base / "client.properties"
    path.write_text(render_properties(realm.kdc.client(realm.server, "kafka/localhost")))
    return str(path)


@pytest.mark.parametrize("kafka", [True, False], ids=["kafka", "kjbod"])
def test_an_agent_and_commands_log_in_at_a_controller_by_their_keytab_and_renew_it(
    tmp_path: Path, kafka_kit: KafkaKit, realm: Realm, capsys: pytest.CaptureFixture[str], kafka: bool
) -> None:
    with controller(tmp_path, kafka_kit, realm, kafka=kafka) as cluster:
        port = free_port()
        lines = {**realm.kdc.broker(realm.server, port), **AUTHORIZER, "kjbod.state.dir": tmp_path / "state"}
        config = cluster.configure_broker(1, [tmp_path / "b1" / "d1"], lines)
        (tmp_path / "b1" / "d1").mkdir()
        cluster.format_broker(config)
        agent = cluster.start_agent(config)
        agent.wait_for_event("agent.unfenced")

        client = client_file(tmp_path, realm)
        where = ["--bootstrap-controller", f"localhost:{cluster.port}", "--command-config", client]
        assert cli.run(["metadata", "shell", *where, "ls", "/image/cluster/brokers"]) == 0
        assert capsys.readouterr().out.split() == ["1"]
        realm.kdc.kinit(realm.alice, "alice", Path(realm.kdc.environment["KRB5CCNAME"].removeprefix("FILE:")))
        asyncio.run(_ask_until_renewed(cluster.port, client))
        assert _brokers_by_kafka_python(port) == [1]
        assert agent.stop(60) == 0


def _brokers_by_kafka_python(port: int) -> list[int]:
    """Brokers that a stranger's client is told of, with the ticket cache of the environment."""
    found = KafkaAdminClient(
        bootstrap_servers=f"localhost:{port}",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="GSSAPI",
        sasl_kerberos_service_name=SERVICE,
    )
    try:
        return [broker["broker_id"] for broker in found.describe_cluster()["brokers"]]
    finally:
        found.close()


async def _ask_until_renewed(port: int, client: str) -> None:
    security = client_security(Path(client))
    async with await Connection.open(
        "localhost", port, client_id="t", clock=SystemClock(), security=security
    ) as connection:
        while connection.logins < 2:
            answer = await connection.request(DescribeClusterRequest(endpoint_type=2), timeout_ms=TIMEOUT_MS)
            assert answer.error_code == 0


def test_an_unmodified_broker_and_kafkas_tool_log_in_at_our_controller(
    tmp_path: Path, kafka_kit: KafkaKit, realm: Realm
) -> None:
    with controller(tmp_path, kafka_kit, realm, kafka=False) as cluster:
        config = cluster.configure_broker(1, [tmp_path / "b1" / "d1"], realm.kdc.node(realm.server))
        (tmp_path / "b1" / "d1").mkdir()
        cluster.format_broker(config)
        options = realm.kdc.java_options
        broker = cluster.processes.start(kafka_kit.command(SERVER, str(config), options=options), name="broker")
        wait_until_serving(broker)

        where = ["--bootstrap-controller", f"localhost:{cluster.port}"]
        command = [*where, "--command-config", client_file(tmp_path, realm), "describe"]
        told = subprocess.run(
            kafka_kit.command(FEATURES, *command, options=options), capture_output=True, text=True, check=True
        )
        assert "metadata.version" in told.stdout
        broker.stop(60)

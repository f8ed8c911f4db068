"""kjbod's controller and an agent's listener, secured with Kafka's own keys: an unmodified broker of Kafka 4.3.1 serves
on that controller, and clients of Kafka, librdkafka and kafka-python are let in, or not."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka import errors as kafka_errors

from kjbod.cli import main as cli
from scripts.brokers.peers import AUTHORIZER
from scripts.brokers.secured import PROTOCOLS, librdkafka, serve_with_a_broker
from scripts.rig.cluster import CONTROLLER_ID, Cluster, directory_id
from scripts.rig.kafka import CONFIGS, TOPICS, KafkaKit
from scripts.rig.processes import Processes, free_port, wait_until
from scripts.rig.secured import PASSWORD, USER, Secured, scram_options
from tests.agent.daemon_cluster import CLUSTER_ID

pytestmark = pytest.mark.usefixtures("kafka_kit")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    return Secured(tmp_path_factory.mktemp("secured"))


@contextlib.contextmanager
def controller(base: Path, kit: KafkaKit, secured: Secured, protocol: str) -> Iterator[Cluster]:
    """kjbod's controller with a listener of this protocol, and authorization."""
    with Processes(base / "logs") as processes:
        lines = {**secured.node(protocol), **AUTHORIZER, "connections.max.reauth.ms": 3_000}
        cluster = Cluster(base, processes, cluster_id=CLUSTER_ID, properties=lines)
        kit.format(cluster.controller_config, CLUSTER_ID, "--standalone", *scram_options())
        cluster.start_controller()
        yield cluster


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_unmodified_broker_serves_on_a_secured_controller_of_ours(
    tmp_path: Path, kafka_kit: KafkaKit, secured: Secured, protocol: str
) -> None:
    with controller(tmp_path, kafka_kit, secured, protocol) as cluster:
        serve_with_a_broker(cluster, kafka_kit, secured, protocol)
        cluster.stop_controller()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_listener_of_an_agent_lets_clients_in_and_keeps_strangers_out(
    tmp_path: Path, kafka_kit: KafkaKit, secured: Secured, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with controller(tmp_path, kafka_kit, secured, protocol) as cluster:
        port = free_port()
        lines = {**secured.broker(protocol, port), **AUTHORIZER, "kjbod.state.dir": tmp_path / "state"}
        config = tmp_path / "b1" / "server.properties"
        config.parent.mkdir()
        cluster.configure_broker(1, [tmp_path / "b1" / "d1"], lines, config=config)
        (tmp_path / "b1" / "d1").mkdir()
        cluster.format_broker(config)
        agent = cluster.start_agent(config)
        agent.wait_for_event("agent.unfenced")

        found = AdminClient(librdkafka(secured, protocol, port)).list_topics(timeout=20)
        assert [one.id for one in found.brokers.values()] == [1]
        client = str(secured.client_file(tmp_path / "client.properties", secured.client(protocol)))
        server = ["--bootstrap-server", f"127.0.0.1:{port}", "--command-config", client]
        assert kafka_kit.run(TOPICS, *server, "--list").stdout.strip() == ""
        capsys.readouterr()
        assert cli.run(["cluster", "log-dirs", *server, "--bootstrap-controller", f"127.0.0.1:{cluster.port}"]) == 0
        assert str(directory_id(tmp_path / "b1" / "d1")) in capsys.readouterr().out
        _kafka_python(secured, protocol, port)
        with pytest.raises(KafkaException):
            wrong = librdkafka(secured, "PLAINTEXT", port)
            AdminClient(wrong).list_topics(timeout=2)
        assert agent.stop(60) == 0


def _kafka_python(secured: Secured, protocol: str, port: int) -> None:
    options: dict[str, Any] = {"bootstrap_servers": f"127.0.0.1:{port}", "security_protocol": protocol}
    if protocol.endswith("SSL"):
        options |= {"ssl_cafile": str(secured.base / "truststore.pem"), "ssl_check_hostname": True}
    if protocol == "SSL":
        options |= {"ssl_certfile": str(secured.base / "keystore.pem")}
    if protocol.startswith("SASL"):
        options |= {
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }
    client = KafkaAdminClient(**options)
    try:
        assert client.describe_cluster()["brokers"]
    finally:
        client.close()
    if protocol.startswith("SASL"):
        with pytest.raises(kafka_errors.KafkaError):
            KafkaAdminClient(**options | {"sasl_plain_password": "wrong"}, bootstrap_timeout_ms=3_000)


def served_certificate(port: int, secured: Secured) -> bytes:
    """The certificate of who listens there, DER."""
    context = ssl.create_default_context(cafile=str(secured.base / "truststore.pem"))
    context.load_cert_chain(str(secured.base / "keystore.pem"))
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
        found = secure.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_a_keystore_that_is_altered_in_the_metadata_counts_at_once_and_the_one_of_the_file_when_it_is_taken_away(
    tmp_path: Path, kafka_kit: KafkaKit, secured: Secured
) -> None:
    with controller(tmp_path, kafka_kit, secured, "SSL") as cluster:
        assert cluster.controller is not None
        client = str(secured.client_file(tmp_path / "client.properties", secured.client("SSL")))
        node = ["--bootstrap-controller", f"127.0.0.1:{cluster.port}", "--command-config", client]
        alter = [*node, "--entity-type", "brokers", "--entity-name", str(CONTROLLER_ID), "--alter"]
        key = "listener.name.controller.ssl.keystore.location"
        before = served_certificate(cluster.port, secured)
        secured.authority.leaf("127.0.0.1").keystore(tmp_path, "renewed.pem")
        kafka_kit.run(CONFIGS, *alter, "--add-config", f"{key}={tmp_path / 'renewed.pem'}")
        cluster.controller.wait_for_event("security.reconfigured", listener="CONTROLLER")
        altered = served_certificate(cluster.port, secured)
        assert altered != before
        kafka_kit.run(CONFIGS, *alter, "--add-config", f"{key}={tmp_path / 'none.pem'}")
        refused = cluster.controller.wait_for_event("security.not.reconfigured", listener="CONTROLLER")
        assert "none.pem: " in refused["reason"]
        assert served_certificate(cluster.port, secured) == altered
        kafka_kit.run(CONFIGS, *alter, "--delete-config", key)
        wait_until(lambda: served_certificate(cluster.port, secured) == before, 20, "the certificate of the file")
        cluster.stop_controller()

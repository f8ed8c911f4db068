"""kjbod's controller and an agent's listener, secured with Kafka's own keys: an unmodified broker of Kafka 4.3.1 serves
on that controller, and clients of Kafka, librdkafka and kafka-python are let in, or not."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka import errors as kafka_errors

from scripts.rig.cluster import Cluster, wait_until_serving
from scripts.rig.kafka import TOPICS, KafkaKit
from scripts.rig.processes import Processes, free_port, wait_until
from scripts.rig.secured import PASSWORD, USER, Secured, scram_options
from tests.agent.daemon_cluster import CLUSTER_ID

pytestmark = pytest.mark.usefixtures("kafka_kit")
PROTOCOLS = ("SASL_SSL", "SSL", "SASL_PLAINTEXT")
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{USER};User:CN=kafka",
}


def librdkafka(secured: Secured, protocol: str, port: int, **changes: Any) -> dict[str, Any]:
    """Its own names of the same settings."""
    common = {"bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": protocol, "socket.timeout.ms": 10_000}
    if protocol.endswith("SSL"):
        common |= {"ssl.ca.location": str(secured.base / "truststore.pem")}
    if protocol == "SSL":
        keystore = str(secured.base / "keystore.pem")
        common |= {"ssl.certificate.location": keystore, "ssl.key.location": keystore}
    if protocol.startswith("SASL"):
        common |= {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": USER, "sasl.password": PASSWORD}
    return common | changes


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
        port = free_port()
        lines = {**secured.broker(protocol, port), **AUTHORIZER}
        config = cluster.configure_broker(1, [tmp_path / "d1", tmp_path / "d2"], lines)
        for name in ("d1", "d2"):
            (tmp_path / name).mkdir()
        cluster.format_broker(config)
        broker = cluster.launch_broker(kafka_kit, config, name="broker")
        wait_until_serving(broker)
        client = str(secured.client_file(tmp_path / "client.properties", secured.client(protocol)))
        server = ["--bootstrap-server", f"127.0.0.1:{port}", "--command-config", client]
        kafka_kit.run(TOPICS, *server, "--create", "--topic", "t", "--partitions", "2", "--replication-factor", "1")
        _write_and_read(librdkafka(secured, protocol, port))
        broker.stop(60)
        cluster.stop_controller()


def _write_and_read(client: dict[str, Any]) -> None:
    failed: list[KafkaError] = []
    producer = Producer({**client, "message.timeout.ms": 60_000})
    for number in range(20):
        producer.produce(
            "t", str(number).encode(), on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(60) == 0 and not failed
    consumer = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    read: set[bytes] = set()

    def all_read() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            read.add(message.value() or b"")
        return len(read) == 20

    try:
        wait_until(all_read, 60, "records")
    finally:
        consumer.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_listener_of_an_agent_lets_clients_in_and_keeps_strangers_out(
    tmp_path: Path, kafka_kit: KafkaKit, secured: Secured, protocol: str
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

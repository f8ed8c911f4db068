"""``scripts/real-brokers --secured``: secured listeners in both directions. Unmodified brokers on kjbod's controller,
and agents on Kafka's, in each security protocol; clients and tools with their own names for the same settings; and
every API by each kind of peer (:mod:`scripts.brokers.peers`); delegation tokens (:mod:`scripts.brokers.tokens`).
SASL_SSL comes twice: by SCRAM, and by OAUTHBEARER with an identity provider of the rig."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer

from scripts.brokers.peers import ALL_RIGHTS, AUTHORIZER, KEPT_OUT, Matrix, differences, lines_of, matrix, peers, start
from scripts.brokers.tokens import TokenStory
from scripts.rig.cluster import Cluster, wait_until_serving
from scripts.rig.identity_provider import CLIENT_ID, CLIENT_SECRET
from scripts.rig.kafka import TOPICS, KafkaKit
from scripts.rig.processes import Processes, free_port, wait_until
from scripts.rig.rig_error import RigError
from scripts.rig.secured import MECHANISMS, OAUTHBEARER, PASSWORD, USER, Secured

PROTOCOLS: Final = ("SASL_SSL", "SSL", "SASL_PLAINTEXT")
RECORDS: Final = 20
TOPIC: Final = "secured"
_TIMEOUT_S: Final = 60.0
_ASKED: Final = ("SASL_SSL", "SSL")
"""Protocols at which every API is asked."""


def librdkafka(secured: Secured, protocol: str, port: int, mechanism: str = MECHANISMS[-1]) -> dict[str, Any]:
    """Settings of a client, by librdkafka's names."""
    found: dict[str, Any] = {"bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": protocol}
    if protocol.endswith("SSL"):
        found |= {"ssl.ca.location": str(secured.base / "truststore.pem")}
    if protocol == "SSL":
        keystore = str(secured.base / "keystore.pem")
        found |= {"ssl.certificate.location": keystore, "ssl.key.location": keystore}
    if mechanism == OAUTHBEARER and secured.provider is not None:
        found |= {
            "sasl.mechanism": OAUTHBEARER,
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.secret": CLIENT_SECRET,
            "sasl.oauthbearer.token.endpoint.url": secured.provider.token_url,
            "https.ca.location": str(secured.base / "truststore.pem"),
        }
    elif protocol.startswith("SASL"):
        found |= {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
    return found | {"socket.timeout.ms": 10_000}


def write_and_read(client: dict[str, Any]) -> None:
    """Records to the topic and back, by a consumer group.

    Raises:
        RigError: not all were acknowledged, or read.
    """
    failed: list[KafkaError] = []

    def told(error: KafkaError | None, _: object) -> None:
        failed.extend([error] if error is not None else [])

    producer = Producer({**client, "message.timeout.ms": int(_TIMEOUT_S * 1000)})
    for number in range(RECORDS):
        producer.produce(TOPIC, str(number).encode(), on_delivery=told)
    if producer.flush(_TIMEOUT_S) or failed:
        raise RigError(f"records were not acknowledged: {failed[:1]}")
    consumer = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    read: set[bytes] = set()

    def all_read() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            read.add(message.value() or b"")
        return len(read) == RECORDS

    try:
        wait_until(all_read, _TIMEOUT_S, "records")
    finally:
        consumer.close()


def serve_with_a_broker(
    cluster: Cluster, kit: KafkaKit, secured: Secured, protocol: str, mechanism: str = MECHANISMS[-1]
) -> None:
    """An unmodified broker with a secured listener alone: it registers, a topic is made with Kafka's tool, and clients
    write and read.

    Raises:
        RigError: any of it fails.
    """
    base, port = cluster.base, free_port()
    disks = [base / "broker" / name for name in ("d1", "d2")]
    for disk in disks:
        disk.mkdir(parents=True)
    lines = {**secured.broker(protocol, port, mechanism), **AUTHORIZER}
    config = cluster.configure_broker(1, disks, lines, config=base / "broker" / "server.properties")
    cluster.format_broker(config)
    broker = cluster.launch_broker(kit, config, name="broker")
    wait_until_serving(broker)
    client = str(secured.client_file(base / "client.properties", secured.client(protocol, mechanism)))
    server = ["--bootstrap-server", f"127.0.0.1:{port}", "--command-config", client]
    kit.run(TOPICS, *server, "--create", "--topic", TOPIC, "--partitions", "2", "--replication-factor", "1")
    write_and_read(librdkafka(secured, protocol, port, mechanism))
    broker.stop(_TIMEOUT_S)


def serve_with_an_agent(
    cluster: Cluster, kit: KafkaKit, secured: Secured, protocol: str, mechanism: str = MECHANISMS[-1]
) -> None:
    """An agent with a secured listener alone: it registers, and Kafka's tool asks it.

    Raises:
        RigError: any of it fails.
    """
    base, port = cluster.base, free_port()
    disk = base / "agent" / "d1"
    disk.mkdir(parents=True)
    lines = {**secured.broker(protocol, port, mechanism), **AUTHORIZER, "kjbod.state.dir": base / "state"}
    config = cluster.configure_broker(2, [disk], lines, config=base / "agent" / "server.properties")
    cluster.format_broker(config)
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced")
    client = str(secured.client_file(base / "client.properties", secured.client(protocol, mechanism)))
    kit.run(TOPICS, "--bootstrap-server", f"127.0.0.1:{port}", "--command-config", client, "--list")
    if code := agent.stop(_TIMEOUT_S):
        raise RigError(f"the agent ended with {code}:\n{agent.tail()}")


def run(kit: KafkaKit, out: Path, say: Callable[[str], None]) -> list[str]:
    """All of it; the problems, a line each. Tables of peers and APIs are left in ``out``."""
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kjbod-secured-") as name:
        base = Path(name)
        secured = Secured(base / "stores")
        for protocol in PROTOCOLS:
            problems += _both(kit, base / protocol, secured, protocol, MECHANISMS[-1], out, say)
        by_token = Secured(base / "stores-of-tokens")
        with by_token.identity_provider():
            allowed = kit.with_options(*by_token.java_options())
            problems += _both(allowed, base / OAUTHBEARER, by_token, "SASL_SSL", OAUTHBEARER, out, say)
    return problems


def _both(
    kit: KafkaKit, base: Path, secured: Secured, protocol: str, mechanism: str, out: Path, say: Callable[[str], None]
) -> list[str]:
    """The problems on kjbod's controller, and on Kafka's."""
    problems: list[str] = []
    found: dict[bool, Matrix] = {}
    told: dict[bool, str] = {}
    named = f"{protocol} by {mechanism}" if mechanism == OAUTHBEARER else protocol
    asked = "every API by each peer, " if _is_asked(protocol, mechanism) else ""
    for kafka in (False, True):
        whose = "Kafka's" if kafka else "kjbod's"
        own = base / whose.removesuffix("'s").lower()
        own.mkdir(parents=True)
        try:
            found[kafka], told[kafka] = _one(kit, own, secured, protocol, mechanism, kafka, out)
        except (RigError, AssertionError) as error:
            problems.append(f"{named} on {whose} controller: {error}")
        tokens = ", tokens" if _has_tokens(protocol, mechanism) else ""
        say(f"{named}, {whose} controller: {asked}a broker, an agent, clients, tools{tokens}")
    if _is_asked(protocol, mechanism) and len(found) > 1:
        problems += [f"{protocol}: {each}" for each in differences(found[False], found[True])]
    if len(set(told.values())) > 1:
        problems.append(f"{named}: tools say something else of delegation tokens: diff {out}/tokens-*")
    return problems


def _is_asked(protocol: str, mechanism: str) -> bool:
    """Whether every API is asked: who a peer is does not depend on how it has proved that."""
    return protocol in _ASKED and mechanism != OAUTHBEARER


def _has_tokens(protocol: str, mechanism: str) -> bool:
    """Whether delegation tokens are told of: they are logins by SCRAM."""
    return protocol.startswith("SASL") and mechanism != OAUTHBEARER


def _one(
    kit: KafkaKit, base: Path, secured: Secured, protocol: str, mechanism: str, kafka: bool, out: Path
) -> tuple[Matrix, str]:
    """Outcomes of every API by each peer, and what tools say of delegation tokens."""
    whose = "kafka" if kafka else "kjbod"
    with Processes(base / "logs") as processes:
        cluster = start(base, processes, kit, secured, protocol, mechanism, kafka=kafka)
        outcomes: Matrix = {}
        # Before there are brokers, which are fenced when their time has come.
        if _is_asked(protocol, mechanism):
            outcomes = ask_all(cluster.port, secured, protocol, base)
            (out / f"peers-{protocol}-{whose}.md").write_text("\n".join(lines_of(outcomes)) + "\n")
        serve_with_a_broker(cluster, kit, secured, protocol, mechanism)
        serve_with_an_agent(cluster, kit, secured, protocol, mechanism)
        told = ""
        if _has_tokens(protocol, mechanism):
            told = _tell_of_tokens(cluster, kit, secured, protocol)
            (out / f"tokens-{protocol}-{whose}.txt").write_text(told)
        cluster.stop()
    return outcomes, told


def _tell_of_tokens(cluster: Cluster, kit: KafkaKit, secured: Secured, protocol: str) -> str:
    story = TokenStory(cluster, kit, secured, protocol)
    story.start()
    with kit.one_java():
        story.tell()
        story.tell_after_a_restart()
    return story.transcript()


def ask_all(port: int, secured: Secured, protocol: str, base: Path, every: int = 1) -> Matrix:
    """Every API by each peer; ``every``: see :func:`.peers.matrix`.

    Raises:
        RigError: one without a login was answered, or one without rights has changed something.
    """
    by_name = peers(secured, protocol, base)
    outcomes, written = matrix(port, by_name, every)
    *strangers, _, _ = by_name
    for (key, name), outcome in outcomes.items():
        if name in strangers and outcome not in KEPT_OUT:
            raise RigError(f"{key.name}, {name}: {outcome}")
    if changed := {name: count for name, count in written.items() if count and name != ALL_RIGHTS}:
        raise RigError(f"records were written for peers without rights: {changed}")
    if all(outcome in KEPT_OUT for (_, name), outcome in outcomes.items() if name == ALL_RIGHTS):
        raise RigError("nobody was let in")
    return outcomes

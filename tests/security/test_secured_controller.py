"""Agents and commands at a real controller of Apache Kafka whose listener is secured: every protocol and mechanism, and
what is said where one of both does not believe the other one."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kjbod.cli import main as cli
from kjbod.clock import SystemClock
from kjbod.security.opening import client_security
from kjbod.wire.client import AuthenticationFailed, Connection
from kjbod.wire.messages import DescribeClusterRequest
from scripts.rig.cluster import Cluster
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes, wait_until
from scripts.rig.secured import MECHANISMS, PASSWORD, Secured, jaas, scram_options
from tests.agent.daemon_cluster import CLUSTER_ID

pytestmark = pytest.mark.usefixtures("kafka_kit")
TIMEOUT_MS = 20_000


def start(base: Path, processes: Processes, kit: KafkaKit, secured: Secured, lines: dict[str, object]) -> Cluster:
    """A controller with these lines, whose users log in by SCRAM too."""
    cluster = Cluster(base, processes, kafka=kit, cluster_id=CLUSTER_ID, properties=lines)
    kit.format(cluster.controller_config, CLUSTER_ID, "--standalone", *scram_options())
    cluster.start_controller()
    return cluster


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    return Secured(tmp_path_factory.mktemp("secured"))


PROTOCOLS = ("SASL_SSL", "SASL_PLAINTEXT", "SSL")
only_sasl_ssl = pytest.mark.parametrize("controller", PROTOCOLS[:1], indirect=True)


@pytest.fixture(scope="module", params=PROTOCOLS)
def controller(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    kafka_kit: KafkaKit,
    secured: Secured,
) -> Iterator[tuple[str, Cluster]]:
    base = tmp_path_factory.mktemp("controller")
    with Processes(base / "logs") as processes:
        lines = {**secured.node(request.param), "connections.max.reauth.ms": 3_000}
        cluster = start(base, processes, kafka_kit, secured, lines)
        if request.param.startswith("SASL"):
            wait_until(lambda: knows_its_users(cluster, secured, request.param), 60, "users by SCRAM")
        yield request.param, cluster


def knows_its_users(cluster: Cluster, secured: Secured, protocol: str) -> bool:
    """Whether the controller has read the credentials of SCRAM: it says that it is up before it has."""
    security = client_security(secured.client_file(cluster.base / "users.properties", secured.client(protocol)))

    async def log_in() -> None:
        await (
            await Connection.open("127.0.0.1", cluster.port, client_id="t", clock=SystemClock(), security=security)
        ).close()

    with contextlib.suppress(AuthenticationFailed):
        asyncio.run(log_in())
        return True
    return False


def mechanisms(protocol: str) -> tuple[str, ...]:
    return MECHANISMS if protocol.startswith("SASL") else ("-",)


def test_an_agent_registers_and_serves_and_commands_read_the_metadata(
    controller: tuple[str, Cluster], secured: Secured, tmp_path: Path, processes: Processes,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    protocol, cluster = controller
    for number, mechanism in enumerate(mechanisms(protocol), start=1):
        own = {**secured.node(protocol, mechanism), "kjbod.state.dir": tmp_path / f"state{number}"}
        config = tmp_path / f"b{number}" / "server.properties"
        config.parent.mkdir()
        cluster.configure_broker(number, [tmp_path / f"b{number}" / f"d{disk}" for disk in (1, 2)], own, config=config)
        for disk in (1, 2):
            (tmp_path / f"b{number}" / f"d{disk}").mkdir()
        cluster.format_broker(config)
        agent = cluster.start_agent(config)
        agent.wait_for_event("agent.unfenced")
        where = ["--bootstrap-controller", f"127.0.0.1:{cluster.port}"]
        lines = secured.client(protocol, mechanism)
        client = str(secured.client_file(tmp_path / "client.properties", lines))
        for command in (["metadata", "shell", *where], ["metadata", "shell", "-c", str(config)]):
            using = ["--command-config", client] if "-c" not in command else []
            assert cli.run([*command, *using, "ls", "/image/cluster/brokers"]) == 0
            assert str(number) in capsys.readouterr().out.split()
        assert cli.run(["features", "describe", *where, "--command-config", client]) == 0
        assert "metadata.version" in capsys.readouterr().out
        assert agent.stop(60) == 0


def test_a_login_that_holds_for_seconds_is_renewed_and_the_connection_goes_on(
    controller: tuple[str, Cluster], secured: Secured, tmp_path: Path
) -> None:
    protocol, cluster = controller
    security = client_security(secured.client_file(tmp_path / "c.properties", secured.client(protocol)))

    async def story() -> None:
        async with await Connection.open(
            "127.0.0.1", cluster.port, client_id="t", clock=SystemClock(), security=security
        ) as connection:
            wanted = 2 if protocol.startswith("SASL") else 0
            while connection.logins < wanted:
                requests = [connection.request(_QUESTION, timeout_ms=TIMEOUT_MS) for _ in range(8)]
                assert all(answer.error_code == 0 for answer in await asyncio.gather(*requests))
            assert not connection.closed

    asyncio.run(story())


_QUESTION = DescribeClusterRequest(endpoint_type=2)


@only_sasl_ssl
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sasl.jaas.config": jaas("PLAIN", password="wrong")}, "does not believe PLAIN of kafka: "),
        ({"sasl.jaas.config": jaas("PLAIN", username="nobody")}, "does not believe PLAIN of nobody: "),
        ({"ssl.truststore.location": None}, "certificate authority that is not in ssl.truststore.location"),
        ({"security.protocol": "PLAINTEXT"}, "TLS, and it was asked in plain text"),
        ({"security.protocol": "SSL"}, "asks for SASL (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512)"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("endless_patience")
def test_whoever_is_not_believed_says_so_in_one_line_without_a_secret(
    controller: tuple[str, Cluster], secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    changed: dict[str, object], said: str,
) -> None:  # fmt: skip
    protocol, cluster = controller
    lines = {**secured.client(protocol, "PLAIN"), **changed}
    if None in changed.values():
        other = Secured(tmp_path / "other", authority="Another CA")
        lines |= other.stores(keystore=False)
    client = str(secured.client_file(tmp_path / "client.properties", lines))
    where = ["--bootstrap-controller", f"127.0.0.1:{cluster.port}", "--command-config", client]
    for command in (["features", "upgrade", "--feature", "kraft.version=1", *where], ["metadata", "dump", *where]):
        assert cli.run(command) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("kjbod: ") and f"127.0.0.1:{cluster.port}" in line and said in line, line
        assert PASSWORD not in line and "wrong" not in line


async def test_a_certificate_of_another_host_is_not_believed_unless_names_are_not_checked(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    secured = Secured(tmp_path / "stores", "elsewhere.example")
    lines = {**secured.node("SASL_SSL"), "ssl.endpoint.identification.algorithm": ""}
    cluster = start(tmp_path, processes, kafka_kit, secured, lines)

    async def ask(more: dict[str, object]) -> int:
        path = secured.client_file(tmp_path / "c.properties", {**secured.client("SASL_SSL", "PLAIN"), **more})
        security = client_security(path)
        async with await Connection.open(
            "127.0.0.1", cluster.port, client_id="t", clock=SystemClock(), security=security
        ) as connection:
            return (await connection.request(_QUESTION, timeout_ms=TIMEOUT_MS)).error_code

    with pytest.raises(AuthenticationFailed, match=f"certificate of 127.0.0.1:{cluster.port} is for another address"):
        await ask({})
    assert await ask({"ssl.endpoint.identification.algorithm": ""}) == 0

"""Commands and the agent at a port that speaks another protocol than Kafka's in plain text: a real TLS server, one that
answers HTTP, and a controller of Apache Kafka with an SSL listener. They say so in one line, and do not wait for what
cannot come."""

import asyncio
import contextlib
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kjbod.cli import main as cli
from kjbod.clock import SystemClock
from kjbod.runtime.loop import run as run_loop
from kjbod.wire.client import Connection, Disconnected, ForeignPeer
from kjbod.wire.connection import api_versions_response
from kjbod.wire.frames import VersionRanges, decode_request, encode_response
from kjbod.wire.messages import ApiKey
from scripts.rig.kafka import KafkaKit, controller_properties
from scripts.rig.processes import Processes, free_port, wait_until
from tests.agent.daemon_cluster import CLUSTER_ID, Cluster
from tests.cli.test_with_agent import ask_status

CERTIFICATE = Path(__file__).parents[1] / "data/localhost.pem"
"""A certificate for localhost and its key, made for this test alone."""
TLS = (
    "speaks TLS, and it was asked in plain text: see security.protocol in the file of --command-config, or "
    "listener.security.protocol.map"
)


class Refuse(socketserver.BaseRequestHandler):
    """Answers at once, as nginx to what is no HTTP."""

    def handle(self) -> None:
        self.request.recv(1000)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


class TlsServer(socketserver.ThreadingTCPServer):
    """Shakes hands; what does not is left at once."""

    allow_reuse_address = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)

    def get_request(self) -> tuple[socket.socket, object]:
        plain, address = super().get_request()
        return self.context.wrap_socket(plain, server_side=True), address  # raises SSLError, an OSError


@contextlib.contextmanager
def serving(server: socketserver.TCPServer) -> Iterator[int]:
    """Serves on a thread of its own; gives the port."""
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def tls() -> Iterator[int]:
    """The port of a server that speaks TLS."""
    with serving(TlsServer(("127.0.0.1", 0), Refuse)) as port:
        yield port


@pytest.fixture
def web() -> Iterator[int]:
    """The port of a server that speaks HTTP."""
    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refuse)) as port:
        yield port


class Alert(socketserver.BaseRequestHandler):
    """Answers what is no TLS with a fatal alert (unexpected_message), and is too busy for a handshake."""

    def handle(self) -> None:
        if not self.request.recv(1000).startswith(b"\x16\x03"):
            self.request.sendall(bytes.fromhex("1503030002020a"))


@pytest.mark.usefixtures("world")
@pytest.mark.usefixtures("endless_patience")
def test_a_peer_that_sends_a_tls_alert_before_it_closes_is_named_in_the_same_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Alert)) as port:
        assert cli.run(["features", "describe", "--bootstrap-controller", f"127.0.0.1:{port}"]) == 1
    assert capsys.readouterr().err == f"kjbod: 127.0.0.1:{port} {TLS}\n"


COMMANDS = [
    ["metadata", "shell", "ls", "/"],
    ["metadata", "dump"],
    ["features", "describe"],
    ["features", "upgrade", "--release-version", "4.3"],
    ["features", "downgrade", "--release-version", "4.2"],
]


@pytest.mark.usefixtures("world")
@pytest.mark.usefixtures("endless_patience")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command[:2]))
def test_a_port_that_speaks_tls_is_named_in_one_line(
    tls: int, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert cli.run([*command[:2], "--bootstrap-controller", f"127.0.0.1:{tls}", *command[2:]]) == 1
    assert capsys.readouterr().err == f"kjbod: 127.0.0.1:{tls} {TLS}\n"


@pytest.mark.usefixtures("endless_patience")
@pytest.mark.parametrize("command", COMMANDS[:3], ids=lambda command: "-".join(command[:2]))
def test_a_web_server_is_named_in_one_line(web: int, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert cli.run([*command[:2], "--bootstrap-controller", f"127.0.0.1:{web}", *command[2:]]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kjbod: 127.0.0.1:{web} sent what it may not: ")
    assert line.endswith("this looks like HTTP")


class Lacking(socketserver.BaseRequestHandler):
    """Answers ApiVersions with :attr:`apis`, and nothing else."""

    apis: VersionRanges

    def handle(self) -> None:
        while length := self.request.recv(4, socket.MSG_WAITALL):
            frame = self.request.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
            request = decode_request(frame)
            assert request.api_key is ApiKey.API_VERSIONS
            answer = api_versions_response(request, self.apis)
            self.request.sendall(encode_response(answer, request.version, request.correlation_id))


@pytest.mark.usefixtures("endless_patience")
@pytest.mark.parametrize(
    ("offered", "said"),
    [
        (None, "does not offer {api}: upgrade Kafka there, or ask another server"),
        ((-5, -3), "offers {api} versions -5 to -3, kjbod knows {known}: upgrade Kafka there"),
        ((100, 101), "offers {api} versions 100 to 101, kjbod knows {known}: upgrade kjbod"),
    ],
    ids=["none", "older", "newer"],
)
@pytest.mark.parametrize(
    ("command", "api", "known"),
    [(COMMANDS[0], ApiKey.FETCH, "12 to 18"), (COMMANDS[1], ApiKey.FETCH, "12 to 18"),
     (COMMANDS[3], ApiKey.UPDATE_FEATURES, "0 to 2")],
    ids=["shell", "dump", "upgrade"],
)  # fmt: skip
def test_a_controller_without_the_api_that_a_command_needs_is_named_at_once(
    command: list[str],
    api: ApiKey,
    known: str,
    offered: tuple[int, int] | None,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    apis = {ApiKey.API_VERSIONS: (0, 4)} | ({} if offered is None else {api: offered})
    handler = type("Handler", (Lacking,), {"apis": apis})
    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)) as port:
        assert cli.run([*command[:2], "--bootstrap-controller", f"127.0.0.1:{port}", *command[2:]]) == 1
    line = said.format(api=api.name, known=known)
    assert capsys.readouterr().err == f"kjbod: 127.0.0.1:{port} {line}\n"


@pytest.mark.usefixtures("endless_patience")
@pytest.mark.parametrize("command", COMMANDS[:3], ids=lambda command: "-".join(command[:2]))
def test_of_several_servers_each_is_named(
    tls: int, web: int, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    servers = f"127.0.0.1:{tls},127.0.0.1:{web}"
    assert cli.run([*command[:2], "--bootstrap-controller", servers, *command[2:]]) == 1
    said = capsys.readouterr().err
    assert f"kjbod: 127.0.0.1:{tls} {TLS}\n" in said and f"kjbod: 127.0.0.1:{web} sent what it may not" in said


def test_a_server_that_speaks_tls_is_recognised_on_the_loop_of_the_agent(tls: int) -> None:
    async def connect() -> int:
        with pytest.raises(ForeignPeer, match=TLS):
            await Connection.open("127.0.0.1", tls, client_id="t", clock=SystemClock())
        return 0

    assert run_loop(connect) == 0


def test_who_only_closes_the_connection_is_not_said_to_speak_tls() -> None:
    async def story() -> None:
        with pytest.raises(Disconnected, match=f"127.0.0.1:{port} ") as caught:
            await Connection.open("127.0.0.1", port, client_id="t", clock=SystemClock())
        assert not isinstance(caught.value, ForeignPeer)

    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)) as port:
        asyncio.run(story())


def test_an_agent_whose_controller_speaks_tls_says_so_in_its_status(tmp_path: Path, processes: Processes) -> None:
    cluster = Cluster(tmp_path, processes)
    config = cluster.configure(1)
    with serving(TlsServer(("127.0.0.1", cluster.port), Refuse)):
        agent = cluster.start_agent(config)
        named = f"no controller is known: 127.0.0.1:{cluster.port} {TLS}"
        wait_until(lambda: named in ask_status(config).partition("\n")[0], 30, "a status that names TLS")
        assert TLS in agent.wait_for_event("metadata.fetch.failing")["reason"]


@pytest.mark.usefixtures("kafka_kit")
@pytest.mark.usefixtures("endless_patience")
def test_a_controller_of_kafka_with_an_ssl_listener_is_named(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    store = tmp_path / "keys.p12"
    make = ["-genkeypair", "-keyalg", "EC", "-alias", "a", "-dname", "CN=localhost", "-storepass", "secret"]
    keytool = str(kafka_kit.java.with_name("keytool"))
    subprocess.run([keytool, *make, "-keystore", str(store)], check=True, capture_output=True)
    config = tmp_path / "controller.properties"
    config.write_text(
        controller_properties(3000, port, tmp_path / "controller")
        + "listener.security.protocol.map=CONTROLLER:SSL\n"
        + "".join(
            f"ssl.{key}store.{what}\n" for key in ("key", "trust") for what in (f"location={store}", "password=secret")
        )
    )
    kafka_kit.format(config, CLUSTER_ID, "--standalone")
    kafka_kit.start_server(processes, config, name="controller")
    for command in COMMANDS[:3]:
        assert cli.run([*command[:2], "--bootstrap-controller", f"127.0.0.1:{port}", *command[2:]]) == 1
        assert capsys.readouterr().err == f"kjbod: 127.0.0.1:{port} {TLS}\n"

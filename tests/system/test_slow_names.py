"""A resolv.conf whose first name server is dead, as hosts have it for months without anybody noticing: each look-up
takes longer than an attempt to reach a controller may."""

import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from scripts.rig.processes import ManagedProcess, Processes, wait_until
from tests.agent.daemon_cluster import Cluster

pytestmark = pytest.mark.usefixtures("as_root")

NAME = "kafka1.example"
TIMEOUT_S = 3
"""Of a look-up by the dead server; an attempt to reach the controller has 2 s."""
DEAD, ALIVE = "127.0.0.2", "127.0.0.3"
NAME_SERVER = f"""
    import socket, struct
    dead = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    dead.bind(("{DEAD}", 53))  # takes questions and never answers
    alive = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    alive.bind(("{ALIVE}", 53))
    print("serving", flush=True)
    while True:
        data, peer = alive.recvfrom(512)
        end = data.index(0, 12) + 5
        question, (kind,) = data[12:end], struct.unpack_from(">H", data, end - 4)
        answer = struct.pack(">HHHIH4s", 0xC00C, 1, 1, 0, 4, socket.inet_aton("127.0.0.1")) if kind == 1 else b""
        head = data[:2] + struct.pack(">HHHHH", 0x8180, 1, 1 if answer else 0, 0, 0)
        alive.sendto(head + question + answer, peer)
"""


class SlowNames(Processes):
    """Starts processes on a host of their own network, whose first name server is dead."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "logs")
        resolv, switch = directory / "resolv.conf", directory / "nsswitch.conf"
        resolv.write_text(f"nameserver {DEAD}\nnameserver {ALIVE}\noptions timeout:{TIMEOUT_S} attempts:1\n")
        switch.write_text("hosts: files dns\n")
        ready = (
            f"mount --bind {resolv} /etc/resolv.conf && "
            f"{{ [ ! -e /etc/nsswitch.conf ] || mount --bind {switch} /etc/nsswitch.conf; }} && "
            "ip link set lo up && echo up && exec sleep infinity"
        )
        holder = super().start(["unshare", "--net", "--mount", "sh", "-c", ready], name="host")
        holder.wait_for_text("up")
        self._enter = ["nsenter", "-t", str(holder.pid), "--net", "--mount"]
        self.servers = self.start([sys.executable, "-c", textwrap.dedent(NAME_SERVER)], name="names")
        self.servers.wait_for_text("serving")

    def start(self, command: Sequence[str], *, name: str) -> ManagedProcess:
        return super().start([*getattr(self, "_enter", []), *command], name=name)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SlowNames]:
    with SlowNames(tmp_path) as started:
        yield started


@pytest.fixture
def cluster(tmp_path: Path, host: SlowNames) -> Cluster:
    made = Cluster(tmp_path, host)
    with made.controller_config.open("a") as config:
        config.write(f"advertised.listeners=CONTROLLER://{NAME}:{made.port}\n")
    return made


def named(cluster: Cluster, node: int) -> Path:
    """A configuration in which every host has a name, its own listener's as well."""
    config = cluster.configure(node, controller_quorum_bootstrap_servers=f"{NAME}:{cluster.port}")
    config.write_text(config.read_text().replace("PLAINTEXT://127.0.0.1:", f"PLAINTEXT://{NAME}:"))
    return config


def test_an_agent_registers_and_comes_back_to_its_controller_however_long_names_take(
    cluster: Cluster, host: SlowNames
) -> None:
    controller = cluster.start_controller()
    agent = cluster.start_agent(named(cluster, 1))
    agent.wait_for_event("agent.unfenced", 60)
    waited = agent.events("listener.waits")[0]
    assert waited["reason"].startswith(f"cannot resolve {NAME}: the name servers have not answered for ")
    # From here on no name server answers at all.
    host.servers.signal(signal.SIGSTOP)
    assert controller.stop() == 0
    agent.wait_for_event("controller.request.failed")
    wait_until(lambda: told(agent, f"cannot resolve {NAME}"), 30, "the trouble with the name to be told")
    cluster.start_controller()
    agent.wait_for_event("controller.request.recovered")
    directory = cluster.directory(1, 2)
    directory.rename(directory.with_name("away"))
    agent.wait_for_event("directory.offline.acknowledged")
    assert agent.running


def told(agent: ManagedProcess, text: str) -> bool:
    return any(text in event["reason"] for event in agent.events("controller.request.failed"))


def test_without_any_name_server_the_reason_of_the_end_is_the_name_and_a_stop_is_not_kept_waiting(
    cluster: Cluster, host: SlowNames
) -> None:
    host.servers.signal(signal.SIGSTOP)
    waiting = cluster.start_agent(named(cluster, 1))
    waiting.wait_for_event("listener.waits")
    waiting.signal(signal.SIGTERM)
    assert waiting.wait() == 0
    config = cluster.configure(
        2,
        controller_quorum_bootstrap_servers=f"{NAME}:{cluster.port}",
        initial_broker_registration_timeout_ms=15_000,  # longer than it takes to give a name up, on a busy machine too
    )
    agent = cluster.start_agent(config)
    assert agent.wait() == 1
    assert f"cannot resolve {NAME}: " in agent.events("agent.stopped")[0]["reason"]


def test_commands_that_ask_a_cluster_by_name_get_there(cluster: Cluster, host: SlowNames) -> None:
    cluster.start_controller()
    where = ["--bootstrap-controller", f"{NAME}:{cluster.port}"]
    described = host.kjbod("features", "describe", *where, name="features")
    shell = host.kjbod("metadata", "shell", *where, "ls", "/", name="shell")
    assert described.wait() == 0, described.tail()
    assert shell.wait() == 0, shell.tail()
    assert "metadata.version" in described.stdout() and "image" in shell.stdout()

"""The commands and a real agent: real processes, plain directories, the stub as the controller."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod.cli import main as cli
from kjbod.config import load_config
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, free_port, wait_until
from tests.agent.daemon_cluster import CLUSTER_ID, Cluster, wait_assigned
from tests.cli.fake_agent import configure, fake_agent
from tests.preloading import run_kjbod

GONE = "AAAAAAAAAAAAAAAAAAAAZQ"


class Site:
    """One agent with three directories, and a person at its host."""

    def __init__(self, base: Path, processes: Processes, **settings: object) -> None:
        self.cluster = Cluster(base, processes)
        self.start_controller()
        self.config = self.cluster.configure(1, 3, CLUSTER_ID, **settings)
        self.state = base / "b1" / "state"
        self.agent = self.start()

    def start_controller(self) -> None:
        self.controller = self.cluster.start_controller()

    def start(self) -> ManagedProcess:
        self.agent = self.cluster.start_agent(self.config)
        self.agent.wait_for_event("agent.unfenced")
        return self.agent

    def create_topic(self, name: str, partitions: int) -> None:
        self.cluster.create_topic(name, partitions, 1)
        wait_assigned(self.agent, partitions)

    def path(self, number: int) -> Path:
        return self.cluster.directory(1, number)

    def directory_id(self, number: int) -> str:
        lines = (self.path(number) / "meta.properties").read_text().splitlines()
        (found,) = [line.split("=")[1] for line in lines if line.startswith("directory.id=")]
        return found

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        result = run_kjbod(*arguments, "-c", str(self.config))
        assert result.returncode == code, result
        return result

    def ask(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)

    def holding(self, replica: str) -> int:
        """The number of the directory with this replica."""
        return next(number for number in (1, 2, 3) if (self.path(number) / replica).is_dir())


def ask_status(config: Path) -> str:
    """What ``kjbod status`` prints, an agent there or not."""
    return run_kjbod("status", "-c", str(config)).stdout


@pytest.fixture
def site(tmp_path: Path, processes: Processes) -> Site:
    return Site(tmp_path, processes)


def test_status_and_log_dirs_tell_of_a_running_agent_and_of_a_disk_that_died(site: Site) -> None:
    site.create_topic("orders", 6)
    status = site.ask("status")
    assert (status["node"], status["state"], status["fenced"]) == (1, "running", False)
    assert (status["pid"], status["queued_assignments"]) == (site.agent.pid, 0)
    used = status["processes"]
    assert (used["workers"]["processes"], used["helpers"]["processes"]) == (3, 6)
    assert 0 < used["own"]["uss_bytes"] <= used["own"]["pss_bytes"] <= used["own"]["rss_bytes"]
    assert 10 < used["own"]["descriptors"] < used["descriptors_max"]
    found = {d["path"]: d for d in site.ask("log-dirs", "--replicas")["directories"]}
    for number in (1, 2, 3):
        row = found[str(site.path(number))]
        assert (row["directory_id"], row["verdict"], row["replicas"]) == (site.directory_id(number), "online", 2)
        assert {f"{r['topic']}-{r['partition']}" for r in row["replica_list"]} == {
            path.name for path in site.path(number).glob("orders-*")
        }
    lost = site.directory_id(2)
    site.path(2).rename(site.path(2).with_name("away"))
    site.agent.wait_for_event("directory.offline.acknowledged")
    (dead,) = [d for d in site.ask("log-dirs", "--replicas")["directories"] if d["path"] == str(site.path(2))]
    assert (dead["directory_id"], dead["verdict"], dead["online"], dead["remembered"]) == (lost, "failed", False, True)
    assert len(dead["replica_list"]) == 2
    shown = site.run("status").stdout
    assert "failed" in shown
    assert re.search(r"^agent +\d+ MiB, .*\d+ descriptors of \d+$", shown, re.MULTILINE)
    assert re.search(r"^processes +[23] workers .* MiB, 6 helpers .* MiB$", shown, re.MULTILINE)


def first_line(site: Site) -> str:
    return site.run("status").stdout.splitlines()[0]


def metric(site: Site, name: str) -> float:
    """The value of a gauge without labels, as the agent's metrics listener says it now."""
    listener = load_config(site.config).kjbod_metrics_listener
    assert listener is not None
    with urllib.request.urlopen(f"http://{listener}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_an_agent_without_its_controller_says_so_first_everywhere_and_ok_when_it_is_back(
    tmp_path: Path, processes: Processes
) -> None:
    settings = {"kjbod_metrics_listener": f"127.0.0.1:{free_port()}", "log_dir_failure_timeout_ms": 600_000}
    site = Site(tmp_path, processes, **settings)
    assert first_line(site) == "OK: running, unfenced, 3 directories online"
    assert site.run("status", "--check").stdout == "OK: running, unfenced, 3 directories online\n"
    beaten = metric(site, "kjbod_last_acknowledged_heartbeat_timestamp_seconds")
    assert beaten > 1_600_000_000
    site.controller.kill()
    wait_until(lambda: first_line(site).startswith("DEGRADED: no controller for "), 30, "that it is degraded")
    site.path(2).rename(site.path(2).with_name("away"))
    site.agent.wait_for_event("directory.failed")
    line = first_line(site)
    assert re.fullmatch(
        rf"DEGRADED: no controller for \d+ s \(127\.0\.0\.1:{site.cluster.port}, last answer [-0-9]+ [:0-9]+Z: .*"
        r"Connect.*\); 1 of 3 directories failed, not yet known to the controller",
        line,
    ), line
    assert site.run("status", "--check", code=1).stdout.startswith("DEGRADED: no controller for ")
    silent_ms = load_config(site.config).broker_session_timeout_ms
    wait_until(lambda: site.ask("status")["controller"]["silent_ms"] > silent_ms, 30, "a session that is over")
    told = site.ask("status")
    assert (told["condition"]["level"], told["condition"]["code"]) == ("degraded", 1)
    assert told["condition"]["text"].startswith("DEGRADED: no controller for ")
    assert told["fenced"] is None, "a controller that lives has fenced it by now, and one that does not has not"
    assert "unfenced" not in site.run("status").stdout.replace("whether it is fenced or unfenced is not known", "")
    assert metric(site, "kjbod_last_acknowledged_heartbeat_timestamp_seconds") < time.time() - silent_ms / 1000
    site.start_controller()
    wait_until(lambda: first_line(site) == "DEGRADED: 1 of 3 directories failed", 60, "a controller that answers")
    assert metric(site, "kjbod_last_acknowledged_heartbeat_timestamp_seconds") > beaten
    assert site.ask("status")["fenced"] is False


def test_a_metadata_directory_of_its_own_is_shown_and_is_no_place_for_replicas(
    tmp_path: Path, processes: Processes
) -> None:
    own = tmp_path / "meta"
    site = Site(tmp_path, processes, metadata_log_dir=own)
    assert first_line(site) == "OK: running, unfenced, 3 directories online"
    assert site.run("status").stdout.splitlines()[-1].endswith(f"  {own} (metadata.log.dir)")
    *_, row = site.ask("log-dirs")["directories"]
    assert (row["path"], row["role"], row["verdict"], row["online"]) == (str(own), "metadata", "online", True)
    assert f"directory.id={row['directory_id']}" in (own / "meta.properties").read_text()
    assert row["total_bytes"] > row["usable_bytes"] > 0
    site.agent.stop()
    *_, remembered = site.ask("log-dirs")["directories"]
    assert (remembered["path"], remembered["role"]) == (str(own), "metadata")
    assert remembered["directory_id"] == row["directory_id"]


def test_the_socket_goes_with_the_agent_and_memory_tells_the_rest(site: Site) -> None:
    assert site.agent.stop() == 0
    assert not (site.state / "control.sock").exists()
    site.path(3).rename(site.path(3).with_name("away"))
    result = site.run("log-dirs", "--json")
    assert "no agent or guard answers" in result.stderr
    document = json.loads(result.stdout)
    assert document["agent"] is False
    assert document["directories"][0]["directory_id"] == site.directory_id(1)
    assert document["directories"][2]["path"] == str(site.path(3))
    assert document["directories"][2]["directory_id"] is not None
    site.run("status", code=69)


def test_an_agent_that_was_killed_leaves_a_socket_that_the_next_one_replaces(site: Site) -> None:
    site.agent.kill()
    assert (site.state / "control.sock").is_socket()
    site.run("status", code=69)
    site.start()
    site.run("status")


def test_hostile_lines_end_no_agent(site: Site) -> None:
    lines = [b"\n", b"\xff\n", b"[" * 100_000 + b"\n", b'{"op":"move"}\n', b'{"op":"strays-remove","strays":[[]]}\n']
    lines += [
        b"x" * 1_000_000,
        b'{"op":"dirs-add","path":"\\u0000"}\n',
        b'{"op":"moves","watch":true,"partitions":1}\n',
    ]
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(40)]
    for peer, line in zip(silent, [*lines, *[b"{"] * 40], strict=False):
        with contextlib.suppress(OSError):
            peer.connect(str(site.state / "control.sock"))
            peer.settimeout(5)
            peer.sendall(line)
    for peer in silent:
        peer.close()
    wait_until(lambda: site.agent.running and not site.agent.events("agent.crashed"), 1, "the agent")
    assert site.ask("status")["pid"] == site.agent.pid
    assert not site.agent.events("control.handler.crashed")


def test_a_replica_is_moved_with_its_bytes_while_a_person_watches(site: Site) -> None:
    site.create_topic("orders", 3)
    source = site.holding("orders-0")
    target = site.path(source % 3 + 1)
    content = os.urandom(20_000_000)
    (site.path(source) / "orders-0" / "00000000000000000000.log").write_bytes(content)
    result = site.run("move", "orders-0", "--to", str(target), "--watch")
    assert result.stdout.splitlines()[0] == f"orders-0: on its way to {target}"
    assert result.stdout.splitlines()[-1] == f"orders-0: moved, it is in {target}"
    assert (target / "orders-0" / "00000000000000000000.log").read_bytes() == content
    assert not (site.path(source) / "orders-0").exists()
    (row,) = [d for d in site.ask("log-dirs", "--replicas")["directories"] if d["path"] == str(target)]
    assert {r["size"] for r in row["replica_list"] if r["partition"] == 0} >= {20_000_000}
    assert "is in" in site.run("move", "orders-0", "--to", str(target)).stdout


def test_a_move_that_takes_long_is_listed_and_cancelled(tmp_path: Path, processes: Processes) -> None:
    site = Site(tmp_path, processes, kjbod_move_bytes_per_second=200_000)
    site.create_topic("orders", 3)
    source = site.holding("orders-1")
    target = site.path(source % 3 + 1)
    (site.path(source) / "orders-1" / "00000000000000000000.log").write_bytes(bytes(range(250)) * 80_000)
    site.run("move", "--from", str(site.path(source)), "--to", str(target))
    assert site.ask("status")["moves"] == 1

    def copying() -> bool:
        (move,) = site.ask("move", "--list")
        return bool(move["state"] == "copying" and move["total_bytes"] and move["to"] == str(target))

    wait_until(copying, 30, "a move that copies")
    assert "future" in site.run("log-dirs", "--replicas").stdout
    watching = processes.kjbod("move", "--watch", "-c", str(site.config), name="watching")
    wait_until(lambda: "\n" in watching.stdout(), 30, "a line of who watches")
    watching.signal(signal.SIGINT)
    assert watching.wait() == 130
    assert "the moves go on" in watching.stderr()
    assert site.run("move", "orders-1", "--cancel").stdout == "orders-1: cancelled\n"
    wait_until(lambda: site.ask("move", "--list") == [], 30, "no move")
    wait_until(lambda: not list(target.glob("*-future")), 30, "no future replica")
    assert site.holding("orders-1") == source
    assert "is not being moved" in site.run("move", "orders-1", "--cancel", code=1).stderr


def test_what_cannot_be_moved_says_why(site: Site) -> None:
    site.create_topic("orders", 1)
    at = site.holding("orders-0")
    target = str(site.path(at % 3 + 1))
    assert site.run("move", "none-0", "--to", target, code=1).stderr == "kjbod: there is no none-0 in the cluster\n"
    assert "is not a log directory of this broker" in site.run("move", "orders-0", "--to", "/x", code=1).stderr
    spare = site.path((at + 1) % 3 + 1)
    spare.rename(spare.with_name("away"))
    site.agent.wait_for_event("directory.offline.acknowledged")
    assert site.run("move", "orders-0", "--to", str(spare), code=1).stderr == (
        f"kjbod: orders-0: {spare} is offline: see kjbod log-dirs\n"
    )
    assert site.run("move", "orders-0", "--to", target, code=1).stderr == (
        f"kjbod: orders-0: {spare} is offline: no move begins until every log directory is online, as in Kafka\n"
    )


def test_strays_are_kept_listed_and_removed_only_by_a_person(site: Site) -> None:
    assert site.agent.stop() == 0
    left = site.path(2) / "gone-3"
    left.mkdir()
    (left / "partition.metadata").write_text(f"version: 0\ntopic_id: {GONE}")
    (left / "00000000000000000000.log").write_bytes(bytes(5000))
    with site.config.open("a") as file:
        file.write("kjbod.agent.take.over=true\n")
    site.start()
    (stray,) = site.ask("strays")["strays"]
    assert (stray["topic"], stray["partition"], stray["topic_id"]) == ("gone", 3, GONE)
    assert stray["directory"] == str(site.path(2))
    assert stray["size"] >= 5000
    assert stray["since_ms"] > 0
    assert stray["reason"] in site.run("strays").stdout
    assert site.run("strays", "restore", stray["name"], code=1).stderr.count("\n") == 1
    site.agent.stop()
    (unattended,) = site.ask("strays")["strays"]  # as before, from the disk and from the memory
    assert {key: unattended[key] for key in ("name", "reason", "since_ms", "size")} == {
        key: stray[key] for key in ("name", "reason", "since_ms", "size")
    }
    site.start()
    assert f"removed {site.path(2)}/{stray['name']}" in site.run("strays", "remove", stray["name"], "--yes").stdout
    assert site.run("strays").stdout == "no strays\n"
    assert not list(site.path(2).glob("gone*"))


@pytest.mark.usefixtures("kafka_kit")
def test_beside_a_real_broker_strays_are_listed_and_left_alone(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    cluster = Cluster(tmp_path, processes)
    cluster.start_controller()
    config = cluster.configure(1)
    stray = cluster.directory(1, 2) / "gone-3.0123456789abcdef0123456789abcdef-stray"
    stray.mkdir()
    (stray / "partition.metadata").write_text(f"version: 0\ntopic_id: {GONE}")
    broker = kafka_kit.start_server(processes, config, name="broker")

    def kjbod(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_kjbod(*arguments, "-c", str(config))

    (found,) = json.loads(kjbod("strays", "--json").stdout)["strays"]
    assert (found["name"], found["topic_id"]) == (stray.name, GONE)
    for arguments in (("remove", "--yes"), ("restore",)):
        refused = kjbod("strays", *arguments, stray.name)
        assert refused.returncode == 1
        assert refused.stderr.endswith(
            f"{stray.parent} is in use: another process (a Kafka broker or an agent) holds {stray.parent}/.lock: "
            "stop it first\n"
        )
    assert stray.is_dir()
    assert broker.running


def test_a_disk_that_is_back_is_added_while_the_agent_runs(site: Site) -> None:
    assert site.agent.stop() == 0
    away = site.path(2).with_name("away")
    site.path(2).rename(away)
    site.start()
    reason = site.agent.wait_for_event("directory.unreadable")["reason"]
    assert f"then kjbod dirs add {site.path(2)}, or start the agent if it does not run" in reason
    assert "unreadable" in site.run("status").stdout
    assert first_line(site) == "DEGRADED: 1 of 3 directories unreadable"
    assert site.run("dirs", "add", str(site.path(2)), code=1).stderr.startswith("kjbod: ")
    away.rename(site.path(2))
    assert site.run("dirs", "add", str(site.path(2))).stdout.count("\n") == 1
    wait_until(lambda: all(d["online"] for d in site.ask("status")["directories"]), 30, "all directories online")


def test_two_agents_with_one_state_directory_are_told_apart(site: Site) -> None:
    other = site.cluster.configure(2, kjbod_state_dir=site.state)
    second = site.cluster.start_agent(other)
    assert second.wait() == 78
    assert second.stderr().endswith("give each agent and guard on a host a kjbod.state.dir of its own\n")
    result = run_kjbod("status", "-c", str(other))
    assert (result.returncode, result.stderr) == (
        1,
        f"kjbod: the process that answers at {site.state}/control.sock has node 1, not 2\n",
    )
    assert site.ask("status")["node"] == 1


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that everybody may enter."""
    path = Path(tempfile.mkdtemp(prefix="kjbod-cli-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("mode", [0o755, 0o750])
def test_another_user_is_told_that_he_has_no_permission(
    open_directory: Path, capsys: pytest.CaptureFixture[str], mode: int
) -> None:
    config = str(configure(open_directory))
    (open_directory / "state").chmod(mode)
    with fake_agent(open_directory, dirs_add="done"):
        assert cli.run(["dirs", "add", "/x", "-c", config]) == 0  # what it imports is not for everybody to read here
        os.seteuid(65534)
        try:
            assert cli.run(["dirs", "add", "/x", "-c", config]) == 1
        finally:
            os.seteuid(0)
    assert capsys.readouterr().err == (
        f"kjbod: {open_directory}/state/control.sock: no permission: ask as root or as the user of the agent or guard\n"
    )

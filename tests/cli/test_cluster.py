"""``kjbod cluster`` on a cluster of kjbod's own controller and agents, and what is said where it cannot be asked."""

import contextlib
import http.server
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod.cli import cluster_health
from kjbod.cli import main as cli
from kjbod.cluster.health import Reading
from kjbod.config import load_config
from scripts.rig.cluster import directory_id
from scripts.rig.processes import ManagedProcess, Processes, free_port, wait_until
from tests.agent.daemon_cluster import CLUSTER_ID, Cluster, wait_assigned
from tests.cli.test_foreign_peers import TLS, Refuse, TlsServer, serving
from tests.preloading import preloaded, run_kjbod

REPLICAS = 9


class Site:
    """A controller and two agents with three directories each; each has all partitions of both topics."""

    def __init__(self, base: Path, processes: Processes) -> None:
        self.cluster = Cluster(base, processes)
        self.cluster.start_controller()
        self.agents: dict[int, ManagedProcess] = {}
        self.ports: dict[int, int] = {}
        for node in (1, 2):
            config = self.cluster.configure(node)
            self.ports[node] = load_config(config).listeners[0].port
            self.agents[node] = self.cluster.start_agent(config)
        for agent in self.agents.values():
            agent.wait_for_event("agent.unfenced")
        self.cluster.create_topic("orders", 6, brokers=(1, 2), configs={"min.insync.replicas": 2})
        self.cluster.create_topic("single", REPLICAS - 6, brokers=(1,))
        wait_assigned(self.agents[1], REPLICAS)
        wait_assigned(self.agents[2], 6)

    def run(self, *arguments: str, code: int = 0, node: int = 1) -> subprocess.CompletedProcess[str]:
        server = f"127.0.0.1:{self.ports[node]}"
        done = run_kjbod("cluster", arguments[0], "--bootstrap-server", server, *arguments[1:])
        assert done.returncode == code, done
        return done

    @property
    def controller(self) -> tuple[str, str]:
        return "--bootstrap-controller", f"127.0.0.1:{self.cluster.port}"

    def ask(self, *arguments: str, code: int = 0) -> dict[int, dict[str, Any]]:
        """The brokers of ``log-dirs --json``, with their directories by path."""
        document = json.loads(self.run("log-dirs", *self.controller, *arguments, "--json", code=code).stdout)
        assert document["cluster_id"] == CLUSTER_ID
        return {
            broker["id"]: broker | {"log_dirs": {each["path"]: each for each in broker["log_dirs"]}}
            for broker in document["brokers"]
        }


@pytest.fixture(scope="module")
def site(world: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """For tests that only look at it."""
    base = tmp_path_factory.mktemp("cluster")
    with Processes(base / "logs", preloaded=preloaded()) as processes:
        yield Site(base, processes)


@pytest.fixture
def own_site(tmp_path: Path, processes: Processes) -> Site:
    """For tests that break something in it."""
    return Site(tmp_path, processes)


def test_every_directory_of_a_cluster_is_shown_with_its_id_and_with_what_a_failure_would_move(site: Site) -> None:
    brokers = site.ask()
    for node, broker in brokers.items():
        paths = {str(path): path for path in (site.cluster.directory(node, number) for number in (1, 2, 3))}
        assert broker["log_dirs"].keys() == paths.keys()
        for path, found in broker["log_dirs"].items():
            assert found["directory_id"] == str(directory_id(paths[path]))
            assert found["replicas"] == len([each for each in os.listdir(path) if re.search(r"-\d+$", each)])
            status = os.statvfs(path)
            assert found["total_bytes"] == status.f_blocks * status.f_frsize
    one, two = brokers[1]["log_dirs"].values(), brokers[2]["log_dirs"].values()
    assert (sum(each["leaders"] for each in one), sum(each["leaders"] for each in two)) == (REPLICAS, 0)
    assert sum(each["failure"]["moves"] for each in one) == 6
    assert sum(each["failure"]["leaderless"] for each in one) == REPLICAS - 6
    assert [sum(each["failure"]["under_min_isr"] for each in every) for every in (one, two)] == [6, 6]


def test_the_table_has_a_row_for_each_directory_and_ends_with_a_sum(site: Site) -> None:
    done = site.run("log-dirs", *site.controller)
    head, *rows, blank, summary = done.stdout.splitlines()
    assert head.split("  ")[0] == "BROKER" and head.endswith("DIRECTORY.ID            DIRECTORY")
    assert len(rows) == 6 and all(row.split()[1] == "online" for row in rows)
    assert blank == ""
    assert summary.startswith(
        f"2 brokers; 6 directories; {REPLICAS + 6} replicas, 0 B; 9 partitions: 0 without a leader"
    )
    assert summary.endswith("; 0 replicas UNASSIGNED, 0 LOST")
    assert done.stderr == "kjbod: directory.id is inferred, since no broker tells it: by replicas (6)\n"
    without = site.run("log-dirs")
    assert "DIRECTORY.ID" not in without.stdout and "UNASSIGNED" not in without.stdout
    ids, metadata_log = without.stderr.splitlines()
    assert "directory.id" in ids and ids.endswith("give --bootstrap-controller HOST:PORT")
    assert "in which directory 2 brokers have the metadata log is not known" in metadata_log


def test_only_some_brokers_and_topics_are_counted_when_they_are_named(site: Site) -> None:
    (broker,) = site.ask("--broker-list", "1", "--topic-list", "single").values()
    assert broker["id"] == 1
    assert sum(found["replicas"] for found in broker["log_dirs"].values()) == REPLICAS - 6
    assert all(found["directory_id"] for found in broker["log_dirs"].values())
    unknown = site.run("log-dirs", "--broker-list", "1,9", code=1)
    assert unknown.stderr == "kjbod: no broker 9 in this cluster: there are 1, 2\n"
    for more in ((), site.controller):
        nowhere = site.run("log-dirs", "--topic-list", "nowhere", *more, code=1)
        assert "nowhere" in nowhere.stderr and nowhere.stderr.endswith("see --topic-list\n")
        assert len(nowhere.stderr.splitlines()) == 1


def test_a_directory_that_is_offline_comes_first_and_is_not_guessed_at(own_site: Site) -> None:
    site = own_site
    path = site.cluster.directory(2, 2)
    gone = str(directory_id(path))
    count = site.ask()[2]["log_dirs"][str(path)]["replicas"]
    path.rename(path.with_name("elsewhere"))

    def offline() -> bool:
        found = site.ask()[2]
        return bool(found["log_dirs"][str(path)]["offline"] and found["offline_replicas"] == count)

    wait_until(offline, 60, "the directory to be offline")
    found = site.ask()[2]["log_dirs"][str(path)]
    assert (found["error"], found["replicas"], found["leaders"]) == ("KAFKA_STORAGE_ERROR", None, None)
    assert found["directory_id"] is None and gone in found["directory_id_unknown_because"]
    done = site.run("log-dirs", *site.controller)
    assert f"replicas that are offline, nobody tells in which directory: {count} on broker 2\n" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split()[:2] == ["2", "offline"] and lines[1].endswith(f"{path} (KAFKA_STORAGE_ERROR)")
    assert "6 directories (1 offline)" in lines[-1]

    health = json.loads(site.run("health", "--json", code=2).stdout)
    named = {one["code"]: one["names"] for one in health["problems"]}
    assert named["DIRECTORY_OFFLINE"] == [f"2:{path}"]
    assert len(named["BELOW_MIN_ISR"]) == count == len(named["SOLE_COPY"])
    assert site.run("health", code=2).stdout.startswith("CRITICAL: 2 brokers, 6 log directories, 9 partitions\n")


def test_a_healthy_cluster_is_ok_and_guards_are_asked_on_the_hosts_of_its_brokers(site: Site) -> None:
    assert site.run("health").stdout == "OK: 2 brokers, 6 log directories, 9 partitions\n"
    path = site.cluster.directory(1, 1)
    with metrics(
        f'kjbod_guard_acting 1\nkjbod_log_directory_health{{log_directory="{path}",state="failed"}} 1\n'
    ) as port:
        told = json.loads(site.run("health", "--guards", str(port), "--json", code=2).stdout)
    assert [(one["code"], one["names"]) for one in told["problems"]] == [
        ("DISK_UNNOTICED", [f"1:{path}", f"2:{path}"])  # both brokers are on this host
    ]
    shown = site.run("health", "--guards", str(port), code=1).stdout
    assert "GUARD_MISSING" in shown and "(Connection refused)" in " ".join(shown.split())


def test_a_cluster_that_nobody_can_ask_is_unknown(world: None) -> None:
    done = run_kjbod("cluster", "health", "--bootstrap-server", "127.0.0.1:1")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith("UNKNOWN: cannot connect to 127.0.0.1:1: ") and done.stdout.count("\n") == 1


def test_a_guard_whose_answer_has_no_end_costs_its_own_line_and_no_proxy_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_health, "GUARD_TIMEOUT_S", 0.5)
    monkeypatch.setattr(cluster_health, "METRICS_BYTES_MAX", 10)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with metrics("kjbod_guard_acting 1\n" * 9) as port:
        assert cluster_health.ask_guard("127.0.0.1", port) == "no whole answer within 0 s"
    monkeypatch.setattr(cluster_health, "METRICS_BYTES_MAX", 1_000)
    with metrics("kjbod_guard_acting 1\n") as port:
        assert cluster_health.ask_guard("127.0.0.1", port) == Reading(acts=True)


@contextlib.contextmanager
def metrics(text: str) -> Iterator[int]:
    """A listener that serves metrics; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_a_broker_that_is_down_is_a_line_and_is_unregistered_only_when_that_is_meant(own_site: Site) -> None:
    site = own_site
    alive = site.run("unregister", "--id", "2", code=1).stderr.splitlines()
    assert alive[0] == "kjbod: broker 2 is alive: stop it first, or unregister it all the same with --force"
    assert "broker 2 still has 6 replicas: move them" in alive[1]
    assert "is not registered: there are 1, 2" in site.run("unregister", "--id", "9", code=1).stderr
    assert site.agents[2].stop(60) == 0
    done = site.run("log-dirs", code=1)
    assert re.match(r"2 \(fenced\) +no answer .* 6 ", done.stdout.splitlines()[1])
    assert done.stdout.splitlines()[1].endswith(f"cannot connect to 127.0.0.1:{site.ports[2]}: Connection refused")
    assert "2 brokers (1 without an answer); 3 directories" in done.stdout
    stranded = ["broker 2 still has 6 replicas: move them"]
    for where in (("--bootstrap-server", f"127.0.0.1:{site.ports[1]}"), site.controller):
        refused = run_kjbod("cluster", "unregister", *where, "--id", "2")
        assert refused.returncode == 1 and len(refused.stderr.splitlines()) == 1 and stranded[0] in refused.stderr
    done = site.run("unregister", "--id", "2", "--yes")
    assert done.stdout == "Broker 2 is no longer registered.\n"
    assert done.stderr == "kjbod: 6 replicas of it stay in the metadata, without a broker\n"
    done = site.run("log-dirs", *site.controller)
    assert "replicas on brokers that are not registered: 6 on broker 2\n" in done.stderr
    gone = run_kjbod("cluster", "unregister", *site.controller, "--id", "2", "--yes")
    assert (gone.returncode, gone.stderr) == (1, "kjbod: broker 2 is not registered: there are 1\n")


# ---------------------------------------------------------------- what cannot be asked


def test_a_controller_that_cannot_be_asked_costs_the_ids_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kjbod.metadata.live.CATCH_UP_TIMEOUT_S", 0.2)
    server = ["--bootstrap-server", f"127.0.0.1:{site.ports[1]}"]
    assert cli.run(["cluster", "log-dirs", *server, "--bootstrap-controller", f"127.0.0.1:{free_port()}"]) == 1
    said = capsys.readouterr()
    assert "6 directories" in said.out and "DIRECTORY.ID" not in said.out
    assert "no controller answers at 127.0.0.1:" in said.err
    refused = ["--bootstrap-controller", f"127.0.0.1:{free_port()}", "--id", "2"]
    assert cli.run(["cluster", "unregister", *refused]) == 1
    assert "Connection refused" in capsys.readouterr().err


def test_the_metadata_of_another_cluster_are_not_taken(site: Site, tmp_path: Path, processes: Processes) -> None:
    (tmp_path / "other").mkdir()
    other = Cluster(tmp_path / "other", processes)
    other.start_controller()
    done = site.run("log-dirs", "--bootstrap-controller", f"127.0.0.1:{other.port}", code=1)
    assert "6 directories" in done.stdout and "DIRECTORY.ID" not in done.stdout
    assert done.stderr.startswith("kjbod: the metadata are those of another cluster: ")


def test_an_empty_cluster_is_no_error(tmp_path: Path, processes: Processes) -> None:
    cluster = Cluster(tmp_path, processes)
    cluster.start_controller()
    address = f"127.0.0.1:{cluster.port}"
    controller = ("--bootstrap-controller", address)
    assert run_kjbod("cluster", "cluster-id", *controller).stdout == f"Cluster ID: {CLUSTER_ID}\n"
    done = run_kjbod("cluster", "log-dirs", "--bootstrap-server", address, *controller)
    assert (done.returncode, done.stderr) == (0, "")
    assert "0 brokers; 0 directories; 0 replicas, 0 B; 0 partitions: " in done.stdout
    done = run_kjbod("cluster", "unregister", *controller, "--id", "1")
    assert (done.returncode, done.stderr) == (1, "kjbod: broker 1 is not registered: there are none\n")


@pytest.fixture
def tls() -> Iterator[int]:
    """The port of a server that speaks TLS."""
    with serving(TlsServer(("127.0.0.1", 0), Refuse)) as port:
        yield port


@pytest.mark.parametrize("command", [("log-dirs",), ("cluster-id",), ("unregister", "--id", "1")], ids=lambda c: c[0])
def test_a_port_that_is_none_of_kafkas_is_named_in_one_line(
    tls: int, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *more = command
    assert cli.run(["cluster", name, "--bootstrap-server", f"127.0.0.1:{tls}", *more]) == 1
    assert capsys.readouterr().err == f"kjbod: 127.0.0.1:{tls} {TLS}\n"
    port = free_port()
    assert cli.run(["cluster", name, "--bootstrap-server", f"127.0.0.1:{port}", *more]) == 1
    assert capsys.readouterr().err == f"kjbod: cannot connect to 127.0.0.1:{port}: Connection refused\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("log-dirs",), 2),
        (("log-dirs", "--bootstrap-server", "a:1", "--broker-list", "one"), 2),
        (("log-dirs", "--bootstrap-server", "a:1", "--topic-list", "a,"), 2),
        (("cluster-id",), 1),
        (("cluster-id", "--bootstrap-server", "a:1", "--bootstrap-controller", "b:1"), 1),
        (("unregister", "--bootstrap-server", "a:1"), 1),
        (("unregister", "--bootstrap-server", "a:1", "--id", "x"), 1),
        (("unregister", "--bootstrap-server", "nonsense", "--id", "1"), 1),
    ],
)
def test_wrong_arguments_ask_nobody(command: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["cluster", *command]) == code
    assert "Error: " in capsys.readouterr().err

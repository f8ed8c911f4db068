"""``kjbod cluster`` beside Kafka's own tools, on real controllers and brokers."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kjbod.config import load_config
from scripts.rig.cluster import Cluster, directory_id, wait_until_serving
from scripts.rig.kafka import ACLS, CLUSTER, CONFIGS, LOG_DIRS, TOPICS, KafkaKit, broker_properties
from scripts.rig.processes import ManagedProcess, Processes, free_port, wait_until
from tests.depth import only_deep
from tests.kafka_pair import KafkaPair
from tests.preloading import run_kjbod

pytestmark = pytest.mark.usefixtures("kafka_kit")


def test_ids_sizes_and_replicas_are_those_that_kafkas_tools_tell(kafka_pair: KafkaPair, kafka_kit: KafkaKit) -> None:
    server = ("--bootstrap-server", f"127.0.0.1:{kafka_pair.broker_port}")
    controller = ("--bootstrap-controller", f"127.0.0.1:{kafka_pair.controller_port}")
    for where in (server, controller):
        theirs = kafka_kit.run(CLUSTER, "cluster-id", *where).stdout
        assert run_kjbod("cluster", "cluster-id", *where, check=True).stdout == theirs
    told = json.loads(kafka_kit.run(LOG_DIRS, "--describe", *server).stdout.splitlines()[-1])
    theirs_by_path = {each["logDir"]: each["partitions"] for each in told["brokers"][0]["logDirs"]}
    ours = json.loads(run_kjbod("cluster", "log-dirs", *server, *controller, "--json", check=True).stdout)
    (broker,) = ours["brokers"]
    found = {each["path"]: (each["replicas"], each["replica_bytes"]) for each in broker["log_dirs"]}
    assert found == {
        path: (len(partitions), sum(each["size"] for each in partitions)) for path, partitions in theirs_by_path.items()
    }
    ids = {each["path"]: each["directory_id"] for each in broker["log_dirs"]}
    assert ids == {path: str(directory_id(Path(path))) for path in ids}
    marked = [each["has_metadata_log"] for each in broker["log_dirs"]]
    assert sorted(marked) == [False] * (len(marked) - 1) + [True]
    whole = broker["log_dirs"][marked.index(True)]
    assert Path(whole["path"], "__cluster_metadata-0").is_dir() and whole["failure"]["leaderless"] == 2


def test_a_listener_of_the_other_kind_is_named(kafka_pair: KafkaPair) -> None:
    broker, controller = f"127.0.0.1:{kafka_pair.broker_port}", f"127.0.0.1:{kafka_pair.controller_port}"
    for name, *more in (("log-dirs",), ("cluster-id",), ("unregister", "--id", "9")):
        done = run_kjbod("cluster", name, "--bootstrap-server", controller, *more)
        hint = "that is a controller's listener: give a broker's to --bootstrap-server"
        assert (done.returncode, done.stderr) == (1, f"kjbod: {controller}: {hint}\n")
    done = run_kjbod("cluster", "cluster-id", "--bootstrap-controller", broker)
    hint = "that is a broker's listener: give a controller's to --bootstrap-controller"
    assert (done.returncode, done.stderr) == (1, f"kjbod: {broker}: {hint}\n")
    done = run_kjbod("cluster", "log-dirs", "--bootstrap-server", broker, "--bootstrap-controller", broker)
    assert done.returncode == 1 and done.stderr.startswith(f"kjbod: {broker}: {hint}\n") and "1 broker" in done.stdout


class Site:
    """Kafka's controller and brokers with two directories each."""

    def __init__(self, base: Path, processes: Processes, kit: KafkaKit, brokers: int) -> None:
        self.base = base
        self.cluster = Cluster(base, processes, kafka=kit)
        self.cluster.format_controller()
        self.cluster.start_controller()
        self.brokers: dict[int, ManagedProcess] = {}
        self.ports: dict[int, int] = {}
        for node in range(1, brokers + 1):
            config = self.cluster.configure_broker(node, [self.path(node, number) for number in (1, 2)])
            for number in (1, 2):
                self.path(node, number).mkdir()
            self.cluster.format_broker(config)
            self.ports[node] = load_config(config).listeners[0].port
            self.brokers[node] = self.cluster.launch_broker(kit, config, name=f"broker{node}")
        for broker in self.brokers.values():
            wait_until_serving(broker)

    def path(self, node: int, number: int) -> Path:
        return self.base / f"b{node}" / f"d{number}"

    def ask(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        where = ("--bootstrap-server", f"127.0.0.1:{self.ports[1]}")
        controller = ("--bootstrap-controller", f"127.0.0.1:{self.cluster.port}")
        done = run_kjbod("cluster", "log-dirs", *where, *controller, *arguments, "--json")
        assert done.returncode == code, done
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def log_dir(self, told: dict[str, Any], path: Path) -> dict[str, Any]:
        """The entry of a directory."""
        return next(each for broker in told["brokers"] for each in broker["log_dirs"] if each["path"] == str(path))


TOPICS_LOOKED_AT = ("--topic-list", "orders,single")


def test_what_a_failure_would_move_is_what_kafka_then_does(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    site = Site(tmp_path, processes, kafka_kit, 2)
    site.cluster.create_topic("orders", 4, brokers=(1, 2), in_turns=True, configs={"min.insync.replicas": 2})
    site.cluster.create_topic("single", 2, brokers=(2,))
    wait_until(lambda: all(_is_placed(broker) for broker in site.ask()["brokers"]), 60, "all ids")
    cordoned = ("--alter", "--entity-type", "brokers", "--entity-name", "1", "--add-config")
    server = ("--bootstrap-server", f"127.0.0.1:{site.ports[1]}")
    kafka_kit.run(CONFIGS, *server, *cordoned, f"cordoned.log.dirs={site.path(1, 2)}")
    wait_until(lambda: site.log_dir(site.ask(), site.path(1, 2))["cordoned"], 60, "a cordon")
    path = site.path(2, 2)
    before = site.log_dir(site.ask(*TOPICS_LOOKED_AT), path)
    foreseen, known = before["failure"], directory_id(path)
    assert before["directory_id"] == str(known) and before["leaders"] == foreseen["moves"] + foreseen["leaderless"] > 0
    first = site.log_dir(site.ask(*TOPICS_LOOKED_AT), site.path(2, 1))
    assert (first["has_metadata_log"], before["has_metadata_log"]) == (True, False)
    assert first["failure"]["leaderless"] == 2 and first["failure"]["moves"] >= foreseen["moves"]
    assert foreseen["leaderless"] and foreseen["under_min_isr"]

    path.rename(tmp_path / "elsewhere")
    site.cluster.create_topic("breaker", 4, brokers=(2,))  # which finds that out

    def offline() -> bool:
        told = site.ask(*TOPICS_LOOKED_AT)
        in_metadata: int = told["brokers"][1]["offline_replicas"]
        return bool(site.log_dir(told, path)["offline"]) and in_metadata == before["replicas"]

    wait_until(offline, 60, "the directory to be offline, for the controller too")
    after = site.ask(*TOPICS_LOOKED_AT)
    assert after["partitions"]["leaderless"] == foreseen["leaderless"]
    assert after["partitions"]["under_min_isr"] == foreseen["under_min_isr"]
    (one, two) = after["brokers"]
    assert (one["leaders"], two["leaders"]) == (2 + foreseen["moves"], 4 - before["leaders"])
    gone = site.log_dir(after, path)
    assert gone["directory_id"] is None and str(known) in gone["directory_id_unknown_because"]
    assert (gone["replicas"], gone["error"]) == (None, "KAFKA_STORAGE_ERROR")


def _is_placed(broker: dict[str, Any]) -> bool:
    return not broker["unassigned_replicas"] and all(each["directory_id"] for each in broker["log_dirs"])


@only_deep("four real servers; the agents of test_cluster.py tell of a broker that is down")
def test_a_real_broker_that_hangs_is_a_line_and_one_that_is_gone_is_unregistered(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    site = Site(tmp_path, processes, kafka_kit, 3)
    site.cluster.create_topic("orders", 6, brokers=(1, 2, 3), in_turns=True)
    site.brokers[2].signal(signal.SIGSTOP)
    told = site.ask(code=1)
    assert "did not answer within" in told["brokers"][1]["error"]
    assert [len(broker["log_dirs"]) for broker in told["brokers"]] == [2, 0, 2]
    site.brokers[2].signal(signal.SIGCONT)
    site.brokers[3].kill()
    server = ("--bootstrap-server", f"127.0.0.1:{site.ports[1]}")
    controller = ("--bootstrap-controller", f"127.0.0.1:{site.cluster.port}")
    wait_until(lambda: site.ask(code=1)["brokers"][2]["fenced"], 60, "broker 3 to be fenced")
    for where in (server, controller):
        assert "3 still has 6 replicas" in run_kjbod("cluster", "unregister", *where, "--id", "3").stderr
    done = run_kjbod("cluster", "unregister", *controller, "--id", "3", "--yes", check=True)
    assert done.stdout == "Broker 3 is no longer registered.\n"
    wait_until(lambda: len(site.ask()["brokers"]) == 2, 60, "broker 3 to be gone")


@only_deep("a real server of its own; test_cluster_servers.py has one that hides its topics")
def test_a_real_authorizer_hides_topics_and_nobody_takes_that_for_none(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    broker, inner, quorum = free_port(), free_port(), free_port()
    config, client, admin = (tmp_path / name for name in ("server.properties", "client.properties", "admin.properties"))
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    listeners = f"SASL_PLAINTEXT://127.0.0.1:{broker},PLAINTEXT://127.0.0.1:{inner},CONTROLLER://127.0.0.1:{quorum}"
    config.write_text(
        broker_properties(1, inner, quorum, [tmp_path / "d1", tmp_path / "d2"])
        + f"process.roles=broker,controller\nlisteners={listeners}\n"
        + "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT\n"
        + "inter.broker.listener.name=PLAINTEXT\nsasl.enabled.mechanisms=PLAIN\n"
        + f'listener.name.sasl_plaintext.plain.sasl.jaas.config={plain} user_op="p" user_root="p";\n'
        + "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        + "super.users=User:ANONYMOUS;User:root\n"
    )
    for path, user in ((client, "op"), (admin, "root")):
        path.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={plain} username="{user}" password="p";\n'
        )
    kafka_kit.format(config, "kjbodAuthorizerClust00", "--standalone")
    kafka_kit.start_server(processes, config, name="both")
    inside = ("--bootstrap-server", f"127.0.0.1:{inner}")
    kafka_kit.run(TOPICS, *inside, "--create", "--topic", "hidden", "--partitions", "3")
    op = ("--allow-principal", "User:op", "--operation", "Alter", "--operation", "Describe", "--cluster")
    kafka_kit.run(ACLS, *inside, "--add", *op)

    def ask(name: str, *arguments: str, user: Path = client) -> subprocess.CompletedProcess[str]:
        where = ("--bootstrap-server", f"127.0.0.1:{broker}", "--command-config", str(user))
        return run_kjbod("cluster", name, *where, *arguments)

    left = ask("unregister", "--id", "1", "--force")
    assert left.returncode == 1 and "it is not known whether broker 1 still has replicas" in left.stderr
    told = json.loads(ask("log-dirs", "--json").stdout)
    assert told["partitions"]["count"] is None and told["brokers"][0]["leaders"] is None
    log_dirs = told["brokers"][0]["log_dirs"]
    assert sum(each["replicas"] for each in log_dirs) == 3
    assert {each["leaders"] for each in log_dirs if each["replicas"]} == {None}
    assert {each["has_metadata_log"] for each in log_dirs} == {None}
    seen = json.loads(ask("log-dirs", "--json", user=admin).stdout)
    assert [each["has_metadata_log"] for each in seen["brokers"][0]["log_dirs"]] == [True, False]
    assert (seen["partitions"]["count"], seen["brokers"][0]["leaders"]) == (3, 3)
    assert "still has at least 3 replicas" in ask("unregister", "--id", "1", "--force", user=admin).stderr
    kafka_kit.run(ACLS, *inside, "--remove", "--force", *op)
    refused = ask("unregister", "--id", "1", "--force", "--yes")
    assert refused.stderr.endswith(
        "broker 1 was not unregistered: CLUSTER_AUTHORIZATION_FAILED: it takes ALTER on the cluster\n"
    )

"""Kafka's own tools, kafka-python and confluent-kafka on an agent's listener, as on any broker."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kjbod.config import load_config
from kjbod.metadata.acls import STANDARD_AUTHORIZER
from kjbod.metadata.batches import encode_batch
from scripts.rig.kafka import ACLS, API_VERSIONS, CONFIGS, LOG_DIRS, REASSIGN_PARTITIONS, TOPICS, KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, wait_until
from tests.agent.daemon_cluster import Cluster, wait_assigned

pytestmark = pytest.mark.usefixtures("kafka_kit")


STORAGE_ERROR = "org.apache.kafka.common.errors.KafkaStorageException"
SEGMENT = "00000000000000000000.log"
NOT_THERE, CLUSTER_DENIED, STORAGE, NO_SUCH_DIR = 3, 31, 56, 57

_KAFKA_PYTHON = """
import json, sys, kafka
admin = kafka.KafkaAdminClient(bootstrap_servers=sys.argv[1])
wanted = json.loads(sys.argv[2])
moved = admin.alter_replica_log_dirs({(t, p, 1): path for t, p, path in wanted})
answers = {f"{r.topic}-{r.partition}": error.errno for r, error in moved.items()}
cluster = admin.describe_cluster()
print(json.dumps([answers, admin.describe_log_dirs(), cluster, sorted(admin.list_topics())]))
"""


@dataclass
class Site:
    """An agent with three directories, and the tools that ask it."""

    cluster: Cluster
    kit: KafkaKit
    config: Path
    agent: ManagedProcess

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{load_config(self.config).listeners[0].port}"

    def directory(self, number: int) -> Path:
        return self.cluster.directory(1, number)

    def run(self, tool: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.kit.run(tool, "--bootstrap-server", self.bootstrap, *arguments, check=check)

    def create(self, name: str, partitions: int, **configs: str) -> None:
        before = sum(map(len, self.cluster.replicas(1)))
        more = [text for key, value in configs.items() for text in ("--config", f"{key.replace('_', '.')}={value}")]
        self.run(TOPICS, "--create", "--topic", name, "--partitions", str(partitions), *more)
        wait_assigned(self.agent, before + partitions)

    def where(self, name: str) -> int | None:
        """The number of the directory with this replica."""
        found = [number for number in (1, 2, 3) if (self.directory(number) / name).is_dir()]
        assert len(found) < 2, f"{name} lies in {found}"
        return found[0] if found else None

    def fill(self, name: str, batches: int) -> bytes:
        """Give a replica a log of so many batches of ten records, as a data plane would; its segment."""
        number = self.where(name)
        assert number is not None
        content = b"".join(encode_batch([b"x" * 1000] * 10, 10 * n, 0, 1_700_000_000_000) for n in range(batches))
        (self.directory(number) / name / SEGMENT).write_bytes(content)
        return content

    def log_dirs(self, *arguments: str) -> dict[str, dict[str, Any]]:
        """``kafka-log-dirs --describe``: the entry of each directory of the broker, by path."""
        lines = self.run(LOG_DIRS, "--describe", *arguments).stdout.splitlines()
        assert lines[:2] == [
            "Querying brokers for log directories information",
            "Received log directory information from brokers 1",
        ]
        document = json.loads(lines[2])
        assert document["version"] == 1
        (broker,) = document["brokers"]
        assert broker["broker"] == 1
        return {entry["logDir"]: entry for entry in broker["logDirs"]}

    def reassign(self, places: Mapping[str, int], *arguments: str) -> str:
        """``kafka-reassign-partitions`` with ``log_dirs``; what it says."""
        partitions = [
            {"topic": name.rpartition("-")[0], "partition": int(name.rpartition("-")[2]), "replicas": [1],
             "log_dirs": [str(self.directory(number))]}
            for name, number in places.items()
        ]  # fmt: skip
        plan = self.cluster.base / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
        return self.run(REASSIGN_PARTITIONS, "--reassignment-json-file", str(plan), *arguments).stdout

    def alter(self, places: Mapping[str, Path]) -> dict[str, int]:
        """AlterReplicaLogDirs with kafka-python; the error code of each replica."""
        answers: dict[str, int] = self.kafka_python(places)[0]
        return answers

    def kafka_python(self, places: Mapping[str, Path]) -> list[Any]:
        wanted = [(name.rpartition("-")[0], int(name.rpartition("-")[2]), str(path)) for name, path in places.items()]
        command = [sys.executable, "-W", "ignore", "-c", _KAFKA_PYTHON, self.bootstrap, json.dumps(wanted)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0, result.stderr
        answer: list[Any] = json.loads(result.stdout.splitlines()[-1])
        return answer

    def wait_in(self, name: str, number: int) -> None:
        def there() -> bool:
            return [n for n in (1, 2, 3) if (self.directory(n) / name).is_dir()] == [number]

        wait_until(there, 60, f"{name} in directory {number}")

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "socket.timeout.ms": 20_000})


Make = Callable[..., Site]


@pytest.fixture
def site(tmp_path: Path, processes: Processes, kafka_kit: KafkaKit) -> Make:
    def make(kafka: bool = False) -> Site:
        cluster = Cluster(tmp_path, processes, kafka_kit if kafka else None)
        cluster.start_controller()
        config = cluster.configure(1)
        agent = cluster.start_agent(config)
        agent.wait_for_event("agent.unfenced")
        return Site(cluster, kafka_kit, config, agent)

    return make


@pytest.mark.parametrize("kafka", [False, True], ids=["stub", "kafka"])
def test_mv_13_kafka_reassign_partitions_moves_replicas_and_loses_no_byte(site: Make, kafka: bool) -> None:
    here = site(kafka)
    here.create("events", 3, retention_ms="12345")
    start = {name: here.where(name) for name in ("events-0", "events-1", "events-2")}
    assert sorted(number or 0 for number in start.values()) == [1, 2, 3]
    segments = {name: here.fill(name, 40) for name in start}

    there = dict.fromkeys(start, 2)
    said = here.reassign(there, "--execute")
    for name in start:
        assert f"Successfully started moving log directory to {here.directory(2)} for replica {name}" in said
        here.wait_in(name, 2)
    verified = here.reassign(there, "--verify")
    for name in start:
        assert f"Reassignment of replica {name}-1 completed successfully." in verified

    back = {name: number or 0 for name, number in start.items()}
    here.reassign(back, "--execute")
    for name, number in back.items():
        here.wait_in(name, number)
        assert (here.directory(number) / name / SEGMENT).read_bytes() == segments[name]
    entries = here.log_dirs()
    for name, number in back.items():
        (partition,) = entries[str(here.directory(number))]["partitions"]
        expected = {"partition": name, "size": len(segments[name]), "offsetLag": 0, "isFuture": False}
        assert partition == expected
    described = here.run(TOPICS, "--describe", "--topic", "events").stdout
    assert "Configs: retention.ms=12345" in described
    assert described.count("Leader: 1") == 3


@pytest.mark.parametrize("kafka", [False, True], ids=["stub", "kafka"])
def test_a_throttled_move_is_seen_as_a_future_replica_with_its_lag_and_its_throttle_is_cleared(
    site: Make, kafka: bool
) -> None:
    here = site(kafka)
    here.create("events", 1)
    source = here.where("events-0")
    assert source is not None
    target = source % 3 + 1
    content = here.fill("events-0", 3000)  # 30 MB
    said = here.reassign({"events-0": target}, "--execute", "--replica-alter-log-dirs-throttle", "1000000")
    assert "The replica-alter-dir throttle limit was set to 1000000 B/s" in said

    def future() -> dict[str, Any] | None:
        partitions = here.log_dirs()[str(here.directory(target))]["partitions"]
        return next((p for p in partitions if 0 < p["size"] < len(content)), None)

    moving = wait_until(future, 30, "a future replica that is being copied")
    assert moving is not None
    assert moving["isFuture"]
    assert 0 < moving["offsetLag"] <= 30_000
    assert "Reassignment of replica events-0-1 is still in progress." in here.reassign(
        {"events-0": target}, "--verify", "--preserve-throttles"
    )
    described = here.run(CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", "1").stdout
    assert "replica.alter.log.dirs.io.max.bytes.per.second=1000000" in described
    change = "replica.alter.log.dirs.io.max.bytes.per.second=100000000"
    here.run(CONFIGS, "--alter", "--entity-type", "brokers", "--entity-name", "1", "--add-config", change)
    here.wait_in("events-0", target)
    assert (here.directory(target) / "events-0" / SEGMENT).read_bytes() == content
    cleared = here.reassign({"events-0": target}, "--verify")
    assert "Reassignment of replica events-0-1 completed successfully." in cleared
    assert "Clearing broker-level throttles on broker 1" in cleared
    described = here.run(CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", "1").stdout
    assert "bytes.per.second" not in described


def test_mv_10_mv_11_each_move_that_cannot_be_is_answered_with_kafkas_error(site: Make) -> None:
    here = site()
    d1, d2, d3 = (here.directory(number) for number in (1, 2, 3))
    assert here.alter({"late-0": d3, "late-1": Path("/nowhere")}) == {"late-0": NOT_THERE, "late-1": NO_SUCH_DIR}
    here.create("late", 1)
    assert here.where("late-0") == 3  # what was asked for before it was there
    here.create("events", 5)
    assert here.alter({"events-0": Path("/nowhere"), "events-1": d1 / "..", "other-0": d1}) == {
        "events-0": NO_SUCH_DIR, "events-1": NO_SUCH_DIR, "other-0": NOT_THERE,
    }  # fmt: skip
    places = {number: f"events-{n}" for n in range(5) if (number := here.where(f"events-{n}"))}
    assert here.alter({places[1]: d1, places[2]: d2}) == {places[1]: 0, places[2]: 0}  # where they are already
    d2.rename(d2.with_name("away"))
    here.agent.wait_for_event("directory.offline.acknowledged")
    assert here.alter({places[1]: d3, places[3]: d2, places[2]: d1}) == {
        places[1]: STORAGE, places[3]: STORAGE, places[2]: STORAGE,
    }  # fmt: skip
    assert here.alter({places[1]: d1}) == {places[1]: 0}
    assert here.agent.running


def test_mv_17_mv_18_kafka_log_dirs_tells_of_healthy_and_offline_directories(site: Make) -> None:
    here = site()
    here.create("events", 3)
    content = here.fill("events-0", 3)
    number = here.where("events-0")
    assert number is not None
    away = number % 3 + 1
    lost = [here.where(f"events-{n}") for n in range(3)].count(away)  # one, unless a directory was slow just then
    here.directory(away).rename(here.directory(away).with_name("away"))
    here.agent.wait_for_event("directory.offline.acknowledged")
    entries = here.log_dirs()
    assert set(entries) == {str(here.directory(n)) for n in (1, 2, 3)}
    assert entries[str(here.directory(away))] == {
        "logDir": str(here.directory(away)), "error": STORAGE_ERROR, "partitions": [],
    }  # fmt: skip
    entry = entries[str(here.directory(number))]
    assert (entry["logDir"], entry["error"]) == (str(here.directory(number)), None)
    assert {"partition": "events-0", "size": len(content), "offsetLag": 0, "isFuture": False} in entry["partitions"]
    described = here.run(TOPICS, "--describe", "--topic", "events").stdout
    assert described.count("Leader: none") == lost
    nobody = here.log_dirs("--topic-list", "nobody", "--broker-list", "1,1")
    assert [entry["partitions"] for entry in nobody.values()] == [[], [], []]
    unknown = here.run(LOG_DIRS, "--describe", "--broker-list", "1,5", check=False)
    assert unknown.returncode == 1
    said = unknown.stdout + unknown.stderr
    assert "ERROR: The given brokers do not exist from --broker-list: 5. Current existent brokers: 1" in said


def test_kafka_topics_and_broker_api_versions_work_as_on_any_broker(site: Make) -> None:
    here = site()
    here.create("events", 2)
    assert here.run(TOPICS, "--list").stdout.split() == ["events"]
    again = here.run(TOPICS, "--create", "--topic", "events", check=False)
    assert again.returncode == 1
    assert "Topic 'events' already exists." in again.stdout + again.stderr
    here.run(TOPICS, "--delete", "--topic", "events")
    wait_until(lambda: here.run(TOPICS, "--list").stdout.split() == [], 20, "the topic to be gone")
    versions = here.run(API_VERSIONS).stdout
    assert "DescribeLogDirs(35): 1 to 5 [usable: 5]" in versions
    assert "AlterReplicaLogDirs(34): 1 to 2 [usable: 2]" in versions
    assert "Produce(0): UNSUPPORTED" in versions


def test_kafka_python_works_on_it_unchanged(site: Make) -> None:
    here = site()
    here.create("events", 3)
    content = here.fill("events-1", 5)
    number = here.where("events-1")
    assert number is not None
    target = number % 3 + 1
    answers, log_dirs, cluster, topics = here.kafka_python({"events-1": here.directory(target)})
    assert answers == {"events-1": 0}
    here.wait_in("events-1", target)
    assert (here.directory(target) / "events-1" / SEGMENT).read_bytes() == content
    (broker,) = log_dirs
    assert {entry["log_dir"] for entry in broker["log_dirs"]} == {str(here.directory(n)) for n in (1, 2, 3)}
    assert all(0 < entry["usable_bytes"] <= entry["total_bytes"] for entry in broker["log_dirs"])
    assert [each["broker_id"] for each in cluster["brokers"]] == [1]
    assert topics == ["events"]


def test_confluent_kafka_works_on_it_unchanged(site: Make) -> None:
    here = site()
    admin = here.admin()
    created = admin.create_topics([NewTopic("events", 3, 1, config={"retention.ms": "777"})], request_timeout=20)
    created["events"].result()
    wait_assigned(here.agent, 3)
    listed = admin.list_topics(timeout=20)
    assert sorted(listed.topics["events"].partitions) == [0, 1, 2]
    assert {p.leader for p in listed.topics["events"].partitions.values()} == {1}
    assert [(b.id, f"{b.host}:{b.port}") for b in listed.brokers.values()] == [(1, here.bootstrap)]
    cluster = admin.describe_cluster(include_authorized_operations=True, request_timeout=20).result()
    assert [node.id for node in cluster.nodes] == [1]
    assert cluster.controller.id == 1
    assert {str(op) for op in cluster.authorized_operations} >= {"AclOperation.ALTER", "AclOperation.DESCRIBE"}
    unknown = admin.list_topics("nobody", timeout=20).topics["nobody"].error
    assert unknown is not None
    assert unknown.code() == NOT_THERE


def test_acls_of_the_cluster_decide_who_may_look_and_who_may_move(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    authorizer = f"authorizer.class.name={STANDARD_AUTHORIZER}\n"
    cluster = Cluster(tmp_path, processes, kafka_kit)
    with (tmp_path / "controller.properties").open("a") as controller:
        controller.write(f"{authorizer}super.users=User:ANONYMOUS\n")
    cluster.start_controller()
    config = cluster.configure(1, authorizer_class_name=STANDARD_AUTHORIZER)
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced")
    here = Site(cluster, kafka_kit, config, agent)
    cluster.create_topic("events", partitions=1, replication_factor=1)
    wait_assigned(agent, 1)

    denied = here.run(LOG_DIRS, "--describe", check=False)
    assert denied.returncode == 1
    assert "ClusterAuthorizationException: Cluster authorization failed." in denied.stdout + denied.stderr

    def allow(*rights: str) -> None:
        where = ("--bootstrap-controller", f"127.0.0.1:{cluster.port}", "--add", "--allow-principal", "User:ANONYMOUS")
        kafka_kit.run(ACLS, *where, *rights)

    allow("--operation", "Describe", "--cluster")
    allow("--operation", "Describe", "--topic", "eve", "--resource-pattern-type", "prefixed")
    wait_until(lambda: here.run(LOG_DIRS, "--describe", check=False).returncode == 0, 60, "the right to describe")
    assert sum(len(entry["partitions"]) for entry in here.log_dirs().values()) == 1
    assert here.run(TOPICS, "--list").stdout.split() == ["events"]
    assert here.alter({"events-0": here.directory(2)}) == {"events-0": CLUSTER_DENIED}
    made = here.run(TOPICS, "--create", "--topic", "other", check=False)
    assert "TopicAuthorizationException" in made.stdout + made.stderr
    allow("--operation", "Alter", "--cluster")
    wait_until(lambda: here.alter({"events-0": here.directory(2)}) == {"events-0": 0}, 60, "the right to alter")
    here.wait_in("events-0", 2)

"""A real broker's disks are taken over by the agent and given back: nothing changes but what the metadata demanded."""

import json
import os
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.rig.kafka import REASSIGN_PARTITIONS, TOPICS, KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, kjbod_command, wait_until
from tests.agent.daemon_cluster import Cluster, wait_assigned
from tests.agent.real_broker import Manifest, RealBroker, manifest, of_replica, stop_clean

pytestmark = [pytest.mark.usefixtures("kafka_kit"), pytest.mark.timeout(400)]

DIRECTORIES = (1, 2, 3)
CHECKPOINTS = {"recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint"}
KEPT = {"orders": 6, "clicks": 3}
RECOVERED = re.compile(r"Recovering (\d+) logs from (\S+) since no clean shutdown file was found")
SKIPPED = re.compile(r"Skipping recovery of (\d+) logs from (\S+) since clean shutdown file was found")


class Host:
    """Broker 1, its three directories, and the controller."""

    def __init__(self, base: Path, processes: Processes, kit: KafkaKit) -> None:
        self.cluster = Cluster(base, processes, kit)
        self.config = self.cluster.configure(1, offsets_topic_num_partitions=2)
        self.kit = kit
        self.broker = RealBroker(kit, processes, self.config)
        self.controller = self.cluster.start_controller()

    def directory(self, number: int) -> Path:
        return self.cluster.directory(1, number)

    def manifests(self) -> dict[int, Manifest]:
        return {number: manifest(self.directory(number)) for number in DIRECTORIES}

    def where(self, name: str) -> int:
        """The directory that has this replica, alone."""
        (number,) = [number for number in DIRECTORIES if (self.directory(number) / name).is_dir()]
        return number

    def ids(self) -> list[str]:
        return [(self.directory(number) / "meta.properties").read_text() for number in DIRECTORIES]

    def marks(self) -> list[str | None]:
        """Content of the mark of a clean shutdown of each directory."""
        paths = [self.directory(number) / ".kafka_cleanshutdown" for number in DIRECTORIES]
        return [path.read_text() if path.exists() else None for path in paths]

    def kjbod(self, *arguments: str) -> None:
        """Run a command of a person against this agent."""
        command = [kjbod_command(), arguments[0], "-c", str(self.config), *arguments[1:]]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0, result.stderr

    def checkpoints(self) -> dict[tuple[int, str], set[str]]:
        """The lines of Kafka's checkpoint files, by directory and name."""
        return {
            (number, name): set((self.directory(number) / name).read_text().splitlines()[2:])
            for number in DIRECTORIES
            for name in CHECKPOINTS
        }

    def run_agent(self) -> ManagedProcess:
        """Start the agent and wait until the controller has let it in and has unfenced it."""
        agent = self.cluster.start_agent(self.config)
        agent.wait_for_event("agent.unfenced", 90)
        return agent

    def stop_agent(self, agent: ManagedProcess) -> int:
        """Stop it in good order; its broker epoch."""
        epoch: int = agent.events("agent.registered")[-1]["broker_epoch"]
        assert agent.stop(60) == 0
        return epoch

    def assigned(self) -> dict[str, str]:
        """The directory id of each replica on broker 1 in the controller's log."""
        names: dict[str, str] = {}
        replicas: dict[str, list[int]] = {}
        found: dict[str, str] = {}
        log = self.cluster.base / "controller" / "__cluster_metadata-0" / f"{0:020d}.log"
        for _, record in self.kit.metadata_records(log):
            data = record["data"]
            if record["type"] == "TOPIC_RECORD":
                names[data["topicId"]] = data["name"]
            elif record["type"] in ("PARTITION_RECORD", "PARTITION_CHANGE_RECORD"):
                name = f"{names[data['topicId']]}-{data['partitionId']}"
                replicas[name] = data.get("replicas") or replicas[name]
                if data.get("directories") and 1 in replicas[name]:
                    found[name] = data["directories"][replicas[name].index(1)]
        return found


def directory_id(host: Host, number: int) -> str:
    text = (host.directory(number) / "meta.properties").read_text()
    found = re.search(r"^directory\.id=(.*)$", text, re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture
def host(tmp_path: Path, processes: Processes, kafka_kit: KafkaKit) -> Iterator[Host]:
    yield Host(tmp_path, processes, kafka_kit)


def fill(host: Host) -> None:
    """Data of every kind: several segments, several partitions, a log that starts above 0, offsets of a group."""
    for topic, partitions in {**KEPT, "gone": 3, "forgotten": 2}.items():
        host.cluster.create_topic(topic, partitions, 1)
    for topic, partitions in {**KEPT, "gone": 3, "forgotten": 2}.items():
        host.broker.wait_led(topic, partitions)
    numbers = random.Random(7)
    for topic, partitions in KEPT.items():
        for partition in range(partitions):
            host.broker.produce(topic, partition, [numbers.randbytes(100) for _ in range(50)])
    host.broker.produce("clicks", 0, [numbers.randbytes(1000) for _ in range(2500)])
    host.broker.produce("gone", 0, [b"x" * 100] * 20)
    host.broker.produce("forgotten", 1, [b"y" * 100] * 20)
    host.broker.delete_records("orders", 2, 17)
    host.broker.commit("readers", "orders", 2, 23)


def wait_moved(source: Path, target: Path) -> None:
    wait_until(lambda: target.is_dir() and not source.exists(), 60, f"the move to {target}")


def roll_small_segments(config: Path) -> None:
    with open(config, "a") as file:
        file.write("log.segment.bytes=1048576\n")


def in_the_log(pattern: re.Pattern[str], broker: ManagedProcess) -> dict[str, int]:
    return {Path(path).name: int(count) for count, path in pattern.findall(broker.stderr())}


def unlike(before: Manifest, after: Manifest) -> set[str]:
    """Paths that are not the same in both."""
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def unlike_lines(host: Host, number: int, name: str, before: dict[tuple[int, str], set[str]]) -> set[str]:
    """Topics whose lines in a checkpoint file are not what they were."""
    return {line.split(" ")[0] for line in host.checkpoints()[number, name] ^ before[number, name]}


def replicas_of(paths: set[str]) -> set[str]:
    return {path.partition("/")[0] for path in paths}


def test_a_real_broker_s_disks_are_taken_over_and_given_back_with_all_that_is_in_them(host: Host) -> None:
    roll_small_segments(host.config)
    broker = host.broker.start()
    fill(host)
    before = host.broker.contents(KEPT)
    assert before["orders-2"][0] == 17
    stop_clean(broker)
    ids, was, checkpoints = host.ids(), host.manifests(), host.checkpoints()
    assert len([path for path in was[host.where("clicks-0")] if re.match(r"clicks-0/\d+\.log$", path)]) >= 3
    assert any("__cluster_metadata-0/" in path for path in was[1]), "the broker's own copy of the metadata"

    # While nobody is there: a topic is deleted, and a person moves a replica to another directory.
    host.cluster.delete_topics("forgotten")
    moved, source = "clicks-1", host.where("clicks-1")
    target = source % 3 + 1
    os.rename(host.directory(source) / moved, host.directory(target) / moved)
    forgotten = {name: host.where(name) for name in ("forgotten-0", "forgotten-1")}

    agent = host.run_agent()
    events = [event["event"] for event in agent.events()]
    assert events.index("assignments.acknowledged") < events.index("agent.unfenced"), "it is assigned first"
    host.cluster.create_topic("fresh", 3, 1)
    wait_assigned(agent, 4)
    deleted = {f"gone-{n}": host.where(f"gone-{n}") for n in range(3)}
    host.cluster.delete_topics("gone")
    wait_until(lambda: not any((host.directory(n) / name).exists() for name, n in deleted.items()), 30, "deletions")
    epoch = host.stop_agent(agent)

    assert host.ids() == ids
    assert host.marks() == [f'{{"version":0,"brokerEpoch":{epoch}}}'] * 3
    now = host.manifests()
    assert of_replica(now[target], moved) == of_replica(was[source], moved)
    for number in DIRECTORIES:
        changed = replicas_of(unlike(was[number], now[number])) - {moved}
        for name in CHECKPOINTS & changed:
            assert unlike_lines(host, number, name, checkpoints) <= {"gone", "forgotten"}
        changed -= CHECKPOINTS
        for name in changed:
            kind = re.match(r"(fresh|gone|forgotten)-\d+(\.[0-9a-f]{32}-(delete|stray))?$", name)
            assert kind is not None, f"{name} in {number} is not what the metadata demanded"
    for name, number in {**deleted, **forgotten}.items():
        left = [path.name for path in host.directory(number).glob(f"{name}*")]
        assert len(left) == 1, f"{name}: {left}"
        assert of_replica(now[number], left[0]) == of_replica(was[number], name), "renamed, and nothing removed yet"
    assert [path.name for path in host.directory(1).glob("__cluster_metadata-0")] == ["__cluster_metadata-0"]
    assigned = host.assigned()
    assert assigned[moved] == directory_id(host, target)
    for name in [f"orders-{n}" for n in range(6)] + [f"fresh-{n}" for n in range(3)]:
        assert assigned[name] == directory_id(host, host.where(name)), name

    again = host.broker.start()
    assert in_the_log(RECOVERED, again) == {}
    assert in_the_log(SKIPPED, again).keys() == {"d1", "d2", "d3"}
    for topic, partitions in {**KEPT, "fresh": 3}.items():
        host.broker.wait_led(topic, partitions)
    assert host.broker.contents(KEPT) == before
    assert host.broker.committed("readers", "orders", 2) == 23
    host.broker.produce("fresh", 0, [b"first"])
    host.broker.produce("orders", 2, [b"one more"])
    assert host.broker.consume("fresh", 0) == (0, [b"first"])
    assert host.broker.consume("orders", 2)[1][-1] == b"one more"
    stop_clean(again)


def test_directories_that_the_agent_made_serve_a_real_broker(host: Host) -> None:
    agent = host.run_agent()
    host.cluster.create_topic("events", 9, 1)
    wait_assigned(agent, 9)
    where = {f"events-{n}": host.where(f"events-{n}") for n in range(9)}
    was = host.manifests()
    epoch = host.stop_agent(agent)
    assert host.manifests() == was
    assert host.marks() == [f'{{"version":0,"brokerEpoch":{epoch}}}'] * 3

    broker = host.broker.start()
    assert in_the_log(RECOVERED, broker) == {}
    host.broker.wait_led("events", 9)
    for partition in range(9):
        host.broker.produce("events", partition, [f"{partition}".encode()] * 10)
        assert host.broker.consume("events", partition) == (0, [f"{partition}".encode()] * 10)
    assert {name: host.where(name) for name in where} == where, "the broker made none of them anew"
    stop_clean(broker)
    was = host.manifests()

    agent = host.run_agent()
    host.stop_agent(agent)
    assert agent.events("assignments.sent") == []
    assert host.manifests() == was


def test_a_crashed_broker_s_disks_are_given_back_for_it_to_recover(host: Host) -> None:
    """The agent recovers no log, so it must not call a directory clean that was not."""
    broker = host.broker.start()
    fill(host)
    before = host.broker.contents(KEPT)
    broker.kill()
    torn = host.directory(host.where("orders-3")) / "orders-3" / f"{0:020d}.log"
    assert host.marks() == [None] * 3
    with open(torn, "ab") as file:
        file.write(b"\0" * 7 + b"half of a batch")
    was = host.manifests()

    agent = host.run_agent()
    host.stop_agent(agent)
    assert host.manifests() == was
    assert host.marks() == [None] * 3, "what nobody has recovered is not clean"
    agent = host.run_agent()
    host.cluster.create_topic("fresh", 3, 1)
    wait_assigned(agent, 3)
    agent.kill()

    again = host.broker.start()
    assert in_the_log(RECOVERED, again).keys() == {"d1", "d2", "d3"}
    for topic, partitions in {**KEPT, "fresh": 3}.items():
        host.broker.wait_led(topic, partitions)
    assert host.broker.contents(KEPT, before) == before
    assert host.broker.committed("readers", "orders", 2) == 23
    host.broker.produce("orders", 3, [b"behind the torn end"])
    assert host.broker.consume("orders", 3)[1][-1] == b"behind the torn end"
    stop_clean(again)


@pytest.mark.parametrize("crashed", [False, True], ids=["clean", "crashed"])
def test_mv_13_mv_14_what_the_agent_moved_is_whole_for_the_real_broker_and_starts_where_it_started(
    host: Host, crashed: bool
) -> None:
    broker = host.broker.start()
    fill(host)
    before = host.broker.contents(KEPT)
    assert before["orders-2"][0] == 17
    if crashed:
        broker.kill()
    else:
        stop_clean(broker)
    was = host.manifests()
    agent = host.run_agent()
    moved = {name: (host.where(name), host.where(name) % 3 + 1) for name in ("orders-2", "clicks-0", "orders-5")}
    for name, (_, target) in moved.items():
        host.kjbod("move", name, "--to", str(host.directory(target)))
    for name, (source, target) in moved.items():
        wait_moved(host.directory(source) / name, host.directory(target) / name)
    for name, (source, target) in moved.items():
        now, then = of_replica(manifest(host.directory(target)), name), of_replica(was[source], name)
        # The file with the topic id was made at once, as a new replica's.
        assert now.pop("partition.metadata")[:2] == then.pop("partition.metadata")[:2]
        assert now == then, "each file, and the time of its last change"
    assigned = host.assigned()
    assert {name: assigned[name] for name in moved} == {
        name: directory_id(host, target) for name, (_, target) in moved.items()
    }
    host.stop_agent(agent)
    assert (host.marks() == [None] * 3) == crashed

    again = host.broker.start()
    assert (in_the_log(RECOVERED, again) == {}) != crashed
    for topic, partitions in KEPT.items():
        host.broker.wait_led(topic, partitions)
    assert host.broker.contents(KEPT, before if crashed else None) == before
    assert {name: host.where(name) for name in moved} == {name: target for name, (_, target) in moved.items()}
    host.broker.produce("orders", 2, [b"behind"])
    assert host.broker.consume("orders", 2)[1][-1] == b"behind"
    stop_clean(again)


def test_an_agent_that_is_killed_on_a_clean_broker_s_disks_costs_a_recovery_and_nothing_else(host: Host) -> None:
    broker = host.broker.start()
    fill(host)
    before = host.broker.contents(KEPT)
    stop_clean(broker)
    was = host.manifests()
    agent = host.run_agent()
    assert host.marks() == [None] * 3
    agent.kill()
    assert host.manifests() == was
    again = host.broker.start()
    assert in_the_log(RECOVERED, again).keys() == {"d1", "d2", "d3"}
    for topic, partitions in KEPT.items():
        host.broker.wait_led(topic, partitions)
    assert host.broker.contents(KEPT) == before
    stop_clean(again)


def test_a_newcomer_after_a_reassignment_is_assigned_at_once_by_the_agent(
    host: Host, processes: Processes, kafka_kit: KafkaKit, tmp_path: Path
) -> None:
    """Shipped Kafka leaves it UNASSIGNED until the broker restarts, and leading a dead disk then."""
    agent = host.run_agent()
    other = RealBroker(kafka_kit, processes, host.cluster.configure(2))
    second = other.start()
    kafka_kit.run(
        TOPICS,
        *("--bootstrap-server", other.bootstrap, "--create", "--topic", "events"),
        *("--replica-assignment", "2,2,2"),
    )
    other.wait_led("events", 3)
    assert agent.events("assignments.sent") == []
    plan = tmp_path / "plan.json"
    partitions = [{"topic": "events", "partition": n, "replicas": [2, 1]} for n in range(3)]
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    kafka_kit.run(
        REASSIGN_PARTITIONS,
        *("--bootstrap-server", other.bootstrap, "--reassignment-json-file", str(plan), "--execute"),
    )
    wait_assigned(agent, 3)
    expected = {f"events-{n}": directory_id(host, host.where(f"events-{n}")) for n in range(3)}
    assert len(set(expected.values())) == 3
    wait_until(lambda: {n: host.assigned().get(n) for n in expected} == expected, 20, "directories in the metadata")
    assert agent.running
    stop_clean(second)
    host.stop_agent(agent)

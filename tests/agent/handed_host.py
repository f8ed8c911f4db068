"""A host for tests that hand a broker's directories to the agent and back: with nothing in them, or with data."""

import random
import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from scripts.rig.cluster import Properties
from scripts.rig.kafka import KafkaKit, render_properties
from scripts.rig.processes import ManagedProcess, Processes, wait_until
from tests.agent.daemon_cluster import Cluster, SharedController
from tests.agent.real_broker import Manifest, RealBroker, manifest
from tests.preloading import preloaded, run_kjbod

DIRECTORIES = (1, 2, 3)
CHECKPOINTS = {"recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint"}
KEPT = {"orders": 6, "clicks": 3}
FIRST, COMMITTED = 17, 23
"""Of partition 2 of ``orders``: its first offset, and the one that the group has committed."""
SESSION_MS = 4_000
"""How long the controller refuses who comes next on the same directories: nothing here is about that time."""


class Host:
    """Broker 1, its three directories, and the controller."""

    def __init__(self, base: Path, processes: Processes, kit: KafkaKit, controller: SharedController) -> None:
        self.cluster = Cluster(base, processes, controller)
        self.config = self.cluster.configure(1, offsets_topic_num_partitions=2, kjbod_agent_take_over="true")
        self.kit = kit
        self.broker = RealBroker(kit, processes, self.config)
        self.serving: ManagedProcess | None = None

    def start_broker(self) -> ManagedProcess:
        """Start the real broker: ``serving`` from now on."""
        self.serving = self.broker.start()
        return self.serving

    def serving_broker(self) -> ManagedProcess:
        """The real broker, which runs."""
        assert self.serving is not None and self.serving.running
        return self.serving

    def directory(self, number: int) -> Path:
        return self.cluster.directory(1, number)

    def manifests(self) -> dict[int, Manifest]:
        return {number: manifest(self.directory(number)) for number in DIRECTORIES}

    def where(self, name: str) -> int:
        """The directory that has this replica, alone."""
        (number,) = [number for number in DIRECTORIES if (self.directory(number) / name).is_dir()]
        return number

    def empty(self) -> list[int]:
        """The directories in which nothing lies of what is kept: nobody need recover them, whoever was killed."""
        kept = {number: [self.directory(number).glob(f"{topic}-?") for topic in KEPT] for number in DIRECTORIES}
        return [number for number, found in kept.items() if not any(chain(*found))]

    def ids(self) -> list[str]:
        return [(self.directory(number) / "meta.properties").read_text() for number in DIRECTORIES]

    def marks(self) -> list[str | None]:
        """Content of the mark of a clean shutdown of each directory."""
        paths = [self.directory(number) / ".kafka_cleanshutdown" for number in DIRECTORIES]
        return [path.read_text() if path.exists() else None for path in paths]

    def kjbod(self, *arguments: str) -> None:
        """Run a command of a person against this agent."""
        result = run_kjbod(arguments[0], "-c", str(self.config), *arguments[1:])
        assert result.returncode == 0, result.stderr

    def removed(self) -> Iterator[Path]:
        """What is renamed and waits for its removal."""
        return (path for number in DIRECTORIES for path in self.directory(number).glob("*-delete"))

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
        log = self.cluster.controller_dir / "__cluster_metadata-0" / f"{0:020d}.log"
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


def fill(host: Host) -> None:
    """Data of every kind: several segments, several partitions, a log that starts above 0, offsets of a group."""
    for topic, partitions in KEPT.items():
        host.cluster.create_topic(topic, partitions, 1)
    for topic, partitions in KEPT.items():
        host.broker.wait_led(topic, partitions)
    numbers = random.Random(7)
    for topic, partitions in KEPT.items():
        for partition in range(partitions):
            host.broker.produce(topic, partition, [numbers.randbytes(100) for _ in range(50)])
    host.broker.produce("clicks", 0, [numbers.randbytes(1000) for _ in range(2500)])
    host.broker.delete_records("orders", 2, FIRST)
    host.broker.commit("readers", "orders", 2, COMMITTED)


class FilledHosts:
    """A host whose broker serves data from each of its directories: the same for one test after the other, until one of
    them leaves none, or moves all out of one."""

    def __init__(self, base: Path, processes: Processes, kit: KafkaKit) -> None:
        self._base = base
        self._kit = kit
        self._controller = SharedController(base, processes, kit, {"broker.session.timeout.ms": SESSION_MS})
        self._stack = ExitStack()
        self._host: Host | None = None
        self._made = 0

    def host(self) -> Host:
        """A host as :func:`fill` leaves it, perhaps with more records; nothing in it waits for its removal."""
        if self._host is None or self._host.serving is None or not self._host.serving.running or self._host.empty():
            self.close()
            self._host = self._make()
        host = self._host
        for topic, partitions in KEPT.items():
            host.broker.wait_led(topic, partitions)
        host.broker.delete_records("orders", 2, FIRST)  # again: a broker that was killed has perhaps forgotten it
        wait_until(lambda: not any(host.removed()), 60, "the removal of what was moved")
        return host

    def _make(self) -> Host:
        self._made += 1
        base = self._base / f"host{self._made}"
        processes = self._stack.enter_context(Processes(base / "logs", preloaded=preloaded()))
        controller = self._stack.enter_context(self._controller.borrowed())
        host = Host(base, processes, self._kit, controller)
        add_lines(
            host.config,
            {
                "broker.session.timeout.ms": SESSION_MS,
                "broker.heartbeat.interval.ms": SESSION_MS // 8,
                "log.segment.bytes": 1 << 20,
                "log.segment.delete.delay.ms": 0,
            },
        )
        host.start_broker()
        fill(host)
        return host

    def close(self) -> None:
        """End the host."""
        self._stack.close()
        self._host = None


def add_lines(config: Path, properties: Properties) -> None:
    """Of a key that is there twice the last line counts."""
    with open(config, "a") as file:
        file.write(render_properties(properties))

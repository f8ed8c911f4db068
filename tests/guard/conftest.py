"""Guards beside real brokers, and helpers, for tests."""

import contextlib
import gzip
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from kjbod.clock import SystemClock
from kjbod.faults.disks import RealDisk
from kjbod.runtime.control_socket import ControlClient, NoAgentError
from kjbod_guard.helper_link import Facts, HelperLink, start_helper
from kjbod_guard.helper_netlink import table_of, unreset
from scripts.rig.cluster import Cluster, wait_until_serving
from scripts.rig.kafka import KafkaKit, render_properties
from scripts.rig.processes import ManagedProcess, Processes, kjbod_command, wait_until
from tests.guard.helper_rig import Open, Process, end

CUT_AFTER_MS: Final = 1_000
"""Of the guards here: loop devices would get 10 s."""
ANSWER_TIMEOUT_S: Final = 20.0


@dataclass
class Beside:
    """A broker's file, and guards that run on it.

    Attributes:
        config: the broker's ``server.properties``.
        own: the guard's file.
    """

    processes: Processes
    config: Path
    own: Path

    @property
    def state(self) -> Path:
        return self.own.parent / "state"

    def report_kinds(self) -> list[str]:
        """Kinds of the events in the guard's health report, which has ended."""
        files = (self.state / "reports" / "events").rglob("*.jsonl.gz")
        lines = [line for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]
        return [kind for line in lines if (kind := json.loads(line).get("kind"))]

    def audit(self) -> list[dict[str, Any]]:
        """Lines of the guard's audit."""
        return [json.loads(line) for line in (self.state / "guard-audit.jsonl").read_text().splitlines()]

    def deeds(self) -> list[str]:
        """Means of what the guard did to disks, replica lists and the broker, in order; its own record is none."""
        did = [line["means"] for line in self.audit() if line["event"] == "does"]
        return [means for means in did if means not in ("suspect", "trust")]

    @property
    def arguments(self) -> list[str]:
        return ["-c", str(self.config), "--guard-config", str(self.own)]

    def start(self, name: str = "guard") -> ManagedProcess:
        return self.processes.start([kjbod_command(), "guard", "run", *self.arguments], name=name)

    def wait_until_answering(self) -> None:
        """Wait until a guard takes commands: then systemd, too, hears that it has started."""
        client = ControlClient(self.state, node_id=1, source=str(self.config))

        def answers() -> bool:
            try:
                client.call("status")
            except NoAgentError:
                return False
            return True

        wait_until(answers, ANSWER_TIMEOUT_S, "a guard that answers")


@pytest.fixture
def beside(processes: Processes, tmp_path: Path) -> Callable[..., Beside]:
    """Makes a :class:`Beside` for a broker's file, with further keys of kjbod's own."""

    def make(config: Path, **settings: object) -> Beside:
        own = tmp_path / f"guard-{config.parent.name}" / "guard.properties"
        own.parent.mkdir()
        keys = {f"kjbod.{key.replace('_', '.')}": value for key, value in settings.items()}
        site = {"kjbod.state.dir": own.parent / "state", "kjbod.host": "host1"}
        own.write_text(render_properties({**site, "kjbod.guard.cut.after.ms": CUT_AFTER_MS, **keys}))
        return Beside(processes, config, own)

    return make


@dataclass
class OneBroker:
    """A broker of real Kafka on disks of its own, formatted and not started, and kjbod's controller, which runs.

    Attributes:
        disks: of its log directories.
        config: its ``server.properties``.
    """

    disks: list[RealDisk]
    config: Path
    _cluster: Cluster
    _kit: KafkaKit

    @property
    def paths(self) -> list[Path]:
        """Its log directories."""
        return [disk.log_dir for disk in self.disks]

    def format(self, *, again: bool = False) -> None:
        self._cluster.format_broker(self.config, again=again)

    def launch(self, name: str = "broker") -> ManagedProcess:
        """Start it, and wait until it serves."""
        broker = self._cluster.launch_broker(self._kit, self.config, name=name)
        wait_until_serving(broker)
        return broker


@pytest.fixture
def one_broker(
    tmp_path: Path, stub: Cluster, kafka_kit: KafkaKit, real_disk: Callable[..., RealDisk]
) -> Callable[..., OneBroker]:
    """Makes :class:`OneBroker`; ``apart``: its metadata log is on none of its disks."""

    def make(disks: int = 3, *, apart: bool = True) -> OneBroker:
        made = [real_disk(log_dir="kafka") for _ in range(disks)]
        stub.start_controller()
        keys = {"metadata.log.dir": tmp_path / "metadata"} if apart else {}
        found = OneBroker(made, stub.configure_broker(1, [one.log_dir for one in made], keys), stub, kafka_kit)
        found.format()
        return found

    return make


@pytest.fixture
def stub(processes: Processes, tmp_path: Path) -> Cluster:
    """A cluster with kjbod's controller, which is quick to start; it is not started."""
    cluster = Cluster(tmp_path, processes)
    cluster.format_controller()
    return cluster


@pytest.fixture
def run(world: None) -> Iterator[Callable[..., Process]]:
    with contextlib.ExitStack() as started:

        def make(program: str, *arguments: object) -> Process:
            process = Process(program, *arguments)
            started.callback(process.end)
            return process

        yield make


@pytest.fixture
async def open_hand(world: None) -> AsyncIterator[Open]:
    links: list[HelperLink] = []
    nodes: set[int] = set()

    async def make(*directories: Path, **facts: Any) -> HelperLink:
        # Rules are the machine's: their table is named for a port that is nobody else's.
        node = facts.get("ports", (1,))[0]
        nodes.update(facts.get("ports", ()))
        facts = {"node": node, "directories": tuple(map(str, directories)), **facts}
        link = await HelperLink.open(start_helper(), Facts(**facts), clock=SystemClock(), told=lambda _: None)
        links.append(link)
        return link

    yield make
    for link in links:
        end(link)
    if os.geteuid() == 0:
        for node in nodes:
            unreset(table_of(node, [node]))

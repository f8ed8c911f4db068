"""The start on real disks, one of which does not answer: ten thousand replicas, twelve directories, nobody waits."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kjbod.faults.disks import FaultMode, RealDisk
from kjbod.ids import Uuid
from kjbod_host.directories.start_up import PATIENCE_MS
from scripts.rig.processes import ManagedProcess, Processes, wait_until
from tests.agent.daemon_cluster import Cluster

pytestmark = pytest.mark.usefixtures("as_root")
MakeDisk = Callable[..., RealDisk]
DIRECTORIES = 12
REPLICAS = 10_000
TOPIC = Uuid.of(3, 1)


class Host(Cluster):
    """An agent with twelve disks full of replicas, and no controller to talk to: what is loaded is loaded all the
    same."""

    def __init__(self, base: Path, processes: Processes, make: MakeDisk) -> None:
        super().__init__(base, processes)
        self.disks = [make(base / "mnt" / f"d{number:02}") for number in range(DIRECTORIES)]
        self.paths = [str(disk.log_dir) for disk in self.disks]
        own = {"kjbod.state.dir": base / "state", "kjbod.host": "host1"}
        self.config = self.configure_broker(1, [disk.log_dir for disk in self.disks], own)
        self.format_broker(self.config)

    def fill(self, replicas: int) -> None:
        for number in range(replicas):
            replica = self.disks[number % DIRECTORIES].log_dir / f"events-{number}"
            replica.mkdir()
            (replica / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC}")

    def remember(self) -> None:
        """A first start, so that the agent knows what lies where."""
        agent = self.start_agent(self.config)
        wait_until(lambda: len(agent.events("directory.loaded")) == DIRECTORIES, 60, "the first start")
        agent.kill()

    def cool(self) -> None:
        """What the disks hold has to come from the disks. Before one is broken: an unmount writes."""
        for disk in self.disks:
            disk.unmount()
            disk.mount()


@pytest.fixture
def host(tmp_path: Path, real_disk: MakeDisk, processes: Processes) -> Host:
    host = Host(tmp_path, processes, real_disk)
    host.remember()
    return host


def seconds(event: dict[str, Any], since: dict[str, Any]) -> float:
    moments = [datetime.fromisoformat(each["timestamp"]) for each in (event, since)]
    return (moments[0] - moments[1]).total_seconds()


def loaded(agent: ManagedProcess, number: int) -> list[dict[str, Any]]:
    wait_until(lambda: len(agent.events("directory.loaded")) >= number, 60, f"{number} directories")
    return agent.events("directory.loaded")


def test_a_disk_that_hangs_from_the_start_on_delays_eleven_others_by_no_more_than_the_patience(host: Host) -> None:
    host.fill(REPLICAS)
    host.cool()
    host.disks[7].set(FaultMode.HANG)
    agent = host.start_agent(host.config)
    started = agent.wait_for_event("agent.started", 30)
    events = loaded(agent, DIRECTORIES - 1)
    assert {event["path"] for event in events} == set(host.paths) - {host.paths[7]}
    assert sum(event["replicas"] for event in events) >= REPLICAS * 10 // 12
    assert not agent.events("directory.unreadable")
    unreadable = agent.wait_for_event("directory.unreadable", 30)
    assert unreadable["path"] == host.paths[7] and unreadable["directory_id"] is not None
    print(
        f"{REPLICAS} replicas, 1 of {DIRECTORIES} disks hangs: the agent started after {PATIENCE_MS} ms of patience; "
        f"the others loaded within {max(seconds(event, started) for event in events):.3f} s of that, and that one was "
        f"given up {seconds(unreadable, started):.3f} s after it"
    )
    assert agent.running


def test_a_disk_that_answers_late_is_taken_in_with_its_replicas(host: Host) -> None:
    host.fill(120)
    host.cool()
    host.start_controller()
    host.disks[7].set(FaultMode.HANG)
    agent = host.start_agent(host.config)
    started = agent.wait_for_event("agent.started", 30)
    assert host.paths[7] in started["unreadable"]
    host.disks[7].set(FaultMode.OK)
    added = agent.wait_for_event("directory.added", 60)
    assert added["path"] == host.paths[7] and "10 replicas" in added["text"]
    agent.wait_for_event("agent.unfenced", 60)
    names = [event["event"] for event in agent.events()]
    assert names.index("directory.added") < names.index("agent.unfenced")
    assert "directory.unreadable" not in names


def test_a_disk_that_is_slow_is_loaded_in_its_own_time(host: Host) -> None:
    host.fill(REPLICAS)
    host.cool()
    host.disks[7].delay_us(3_000)
    agent = host.start_agent(host.config)
    started = agent.wait_for_event("agent.started", 30)
    events = loaded(agent, DIRECTORIES)
    others = [event for event in events if event["path"] != host.paths[7]]
    print(
        f"{REPLICAS} replicas, 1 of {DIRECTORIES} disks takes 3 ms a request: the others loaded "
        f"{max(seconds(event, started) for event in others):.3f} s after the start, that one "
        f"{seconds(next(e for e in events if e not in others), started):.3f} s after it"
    )
    assert not agent.events("directory.failed")


def test_a_disk_that_hangs_while_it_is_loaded_is_found_by_its_probe_and_the_others_serve(host: Host) -> None:
    host.fill(1_200)
    host.cool()
    host.start_controller()
    host.disks[7].delay_us(20_000)
    agent = host.start_agent(host.config)
    agent.wait_for_event("agent.started", 30)
    host.disks[7].set(FaultMode.HANG)
    failed = agent.wait_for_event("directory.failed", 60)
    assert (failed["path"], failed["cause"]) == (host.paths[7], "hung")
    assert {event["path"] for event in loaded(agent, DIRECTORIES - 1)} == set(host.paths) - {host.paths[7]}
    agent.wait_for_event("agent.unfenced", 60)
    assert not agent.events("replica.created")

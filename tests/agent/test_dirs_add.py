"""Directories that are added while the agent runs: real disks that die, are replaced and come back, a real controller.

Each test runs with the stub and with an Apache Kafka controller. What the controller has recorded is read from its log.
"""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.faults.disks import FaultMode, RealDisk
from kjbod.ids import MIGRATING, Uuid, is_reserved
from kjbod.metadata.image import MetadataImage, PartitionRegistration
from scripts.rig.kafka import FEATURES, KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, free_port, wait_until
from tests.agent.daemon_cluster import CLUSTER_ID, Cluster, SharedController, read_image, wait_assigned
from tests.preloading import run_kjbod

pytestmark = pytest.mark.usefixtures("as_root")
MakeDisk = Callable[..., RealDisk]
NODE = 1


class Rig(Cluster):
    """One agent on real disks, whose ``log.dirs`` are their mount points."""

    def __init__(
        self,
        base: Path,
        processes: Processes,
        make: MakeDisk,
        kafka: KafkaKit | SharedController | None,
        release: str | None = None,
    ) -> None:
        super().__init__(base, processes, kafka, release=release)
        self.revives = kafka is not None
        """Whether the controller brings a directory back that has failed under the same incarnation: shipped ones do,
        the stub goes by the KIP."""
        self._make = make
        self.disks: dict[int, RealDisk] = {}
        self.config = base / "server.properties"
        self.port_of_broker = free_port()
        if not isinstance(kafka, SharedController):
            self.start_controller()

    def path(self, number: int) -> Path:
        return self.base / "mnt" / f"d{number}"

    def mount_new(self, number: int) -> RealDisk:
        """Another disk, empty, under a path."""
        self.disks[number] = self._make(self.path(number))
        return self.disks[number]

    def write_config(self, *numbers: int) -> None:
        own = {"kjbod.state.dir": self.base / "state", "kjbod.host": "host1", "file.delete.delay.ms": 1000}
        paths = [self.path(number) for number in numbers]
        self.configure_broker(NODE, paths, own, config=self.config, port=self.port_of_broker)

    def format(self) -> None:
        self.format_broker(self.config, again=True)

    def start(self, *numbers: int) -> ManagedProcess:
        """An unfenced agent on formatted disks."""
        for number in numbers:
            if number not in self.disks:
                self.mount_new(number)
        self.write_config(*numbers)
        self.format()
        agent = self.start_agent(self.config)
        agent.wait_for_event("agent.unfenced", 60)
        return agent

    def add(self, number: int) -> subprocess.CompletedProcess[str]:
        """``kjbod dirs add``."""
        return run_kjbod("dirs", "add", "-c", str(self.config), str(self.path(number)), timeout_s=90)

    def added(self, number: int) -> str:
        """What it said."""
        result = self.add(number)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def refused(self, number: int) -> str:
        result = self.add(number)
        assert result.returncode != 0 and result.stdout == ""
        assert len(result.stderr.splitlines()) == 1 and "Traceback" not in result.stderr
        return result.stderr.strip()

    def directory_id(self, number: int) -> Uuid:
        """What lies on the disk."""
        text = (self.path(number) / "meta.properties").read_text()
        found = re.search(r"directory\.id=(\S+)", text)
        assert found is not None, text
        return Uuid.parse(found.group(1))

    def take_back(self, number: int, agent: ManagedProcess) -> ManagedProcess:
        """Add a directory that failed under this agent; the agent that has it in the end."""
        if self.revives:
            assert self.added(number).startswith(f"{self.path(number)} is online with the directory.id")
            never_restarted(agent)
            return agent
        assert "waits for a restart of the agent: the controller keeps its directory" in self.refused(number)
        shown = run_kjbod("log-dirs", "-c", str(self.config), check=True).stdout
        assert str(self.path(number)) in shown and "waits for a restart of the agent" in shown
        never_restarted(agent)
        assert agent.stop() == 0
        again = self.start_agent(self.config)
        again.wait_for_event("agent.unfenced", 60)
        return again

    def kill_disk(self, number: int, agent: ManagedProcess) -> Uuid:
        """The disk answers only errors, and the controller has recorded that; the id that it had."""
        before, seen = self.directory_id(number), len(agent.events())
        self.disks[number].set(FaultMode.EIO)
        agent.wait_for_event("directory.offline.acknowledged", after=seen)
        return before

    def names(self, number: int, pattern: str = "*-*") -> set[str]:
        found = {path.name for path in self.path(number).glob(pattern) if path.is_dir()}
        return found - {"__cluster_metadata-0"}

    # ---- what the controller has recorded

    def image(self) -> MetadataImage:
        return read_image(self.controller_dir)

    def registered(self) -> set[Uuid]:
        return set(self.image().brokers[NODE].log_dirs)

    def partitions(self, topic: str) -> list[PartitionRegistration]:
        image = self.image()
        return [one for _, one in sorted(image.topics[image.topic_ids[topic]].partitions.items())]

    def recorded(self, topic: str) -> list[Uuid]:
        """The directory of each partition's replica on the agent."""
        return [one.directory(NODE) for one in self.partitions(topic)]

    def wait_recorded(self, topic: str, *numbers: int) -> None:
        """Until each replica is recorded in the directory where it lies, one of these."""

        def done() -> bool:
            ids = {self.directory_id(number): number for number in numbers}
            recorded = self.recorded(topic)
            return all(d in ids and f"{topic}-{n}" in self.names(ids[d]) for n, d in enumerate(recorded))

        wait_until(done, 30, f"{topic} to be recorded where it lies")


@pytest.fixture(
    params=["stub", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.xdist_group("kafka-controller")])]
)
def rig(request: pytest.FixtureRequest, tmp_path: Path, real_disk: MakeDisk, processes: Processes) -> Rig:
    kafka = request.getfixturevalue("kafka_controller") if request.param == "kafka" else None
    return Rig(tmp_path, processes, real_disk, kafka)


def never_restarted(agent: ManagedProcess) -> None:
    """The same process, the same broker epoch, unfenced all the time."""
    assert agent.running
    assert len({event["broker_epoch"] for event in agent.events("agent.registered")}) == 1
    assert not agent.events("agent.fenced") and len(agent.events("agent.unfenced")) == 1
    assert len(agent.events("agent.started")) == 1


def test_a_dead_disk_is_replaced_without_a_restart_and_its_replicas_are_made_anew(rig: Rig) -> None:
    agent = rig.start(1, 2, 3)
    rig.create_topic("events", partitions=12, replication_factor=1)
    wait_assigned(agent, 12)
    rig.wait_recorded("events", 1, 2, 3)
    lost = rig.names(2)
    old = rig.kill_disk(2, agent)
    assert old not in rig.registered()
    assert "unmount the dead disk" in rig.refused(2)

    rig.disks[2].unmount()
    assert "kjbod format" in rig.refused(2)
    rig.format()  # too early: it formats what lies below the mount point
    assert f"mount its disk on {rig.path(2)} first" in rig.refused(2)
    rig.mount_new(2)
    assert "kjbod format" in rig.refused(2)
    rig.format()
    new = rig.directory_id(2)
    assert new != old
    said = rig.added(2)
    assert said.startswith(f"{rig.path(2)} is online with the directory.id {new} and 0 replicas")
    assert str(old) in said

    assert rig.registered() == {rig.directory_id(number) for number in (1, 2, 3)}
    rig.wait_recorded("events", 1, 2, 3)
    assert len(lost) == 4 and set.union(*(rig.names(n) for n in (1, 2, 3))) == {f"events-{n}" for n in range(12)}
    assert f"is online already, with the directory.id {new}" in rig.refused(2)
    never_restarted(agent)
    rig.create_topic("after", partitions=9, replication_factor=1)
    rig.wait_recorded("after", 1, 2, 3)
    assert len(rig.names(2, "after-*")) >= 3

    assert agent.stop() == 0
    assert all((rig.path(number) / ".kafka_cleanshutdown").exists() for number in (1, 2, 3))
    again = rig.start_agent(rig.config)
    again.wait_for_event("agent.unfenced", 60)
    assert not again.events("directory.replaced") and not again.events("replica.created")


def test_a_disk_that_hangs_for_ever_with_our_worker_in_it_is_replaced_all_the_same(rig: Rig) -> None:
    agent = rig.start(1, 2, 3)
    rig.create_topic("events", partitions=6, replication_factor=1)
    wait_assigned(agent, 6)
    rig.wait_recorded("events", 1, 2, 3)
    seen = len(agent.events())
    rig.disks[2].set(FaultMode.HANG_WRITES)  # what was asked before is never answered; a probe writes
    agent.wait_for_event("directory.offline.acknowledged", after=seen)
    assert "unmount the dead disk" in rig.refused(2)
    rig.disks[2].unmount()
    rig.mount_new(2)
    rig.format()
    assert "and 0 replicas: it takes the place of" in rig.added(2)
    rig.wait_recorded("events", 1, 2, 3)
    assert rig.registered() == {rig.directory_id(number) for number in (1, 2, 3)}
    never_restarted(agent)
    assert agent.stop() == 0


def test_a_new_disk_that_dies_too_is_reported_like_any_other(rig: Rig) -> None:
    agent = rig.start(1, 2, 3)
    rig.create_topic("events", partitions=6, replication_factor=1)
    wait_assigned(agent, 6)
    rig.kill_disk(2, agent)
    rig.disks[2].unmount()
    rig.mount_new(2)
    rig.format()
    rig.added(2)
    rig.wait_recorded("events", 1, 2, 3)
    second = rig.kill_disk(2, agent)
    failed = agent.events("directory.failed")[-1]
    assert (failed["path"], failed["directory_id"]) == (str(rig.path(2)), str(second))
    assert rig.registered() == {rig.directory_id(number) for number in (1, 3)}
    never_restarted(agent)


def test_a_disk_that_was_only_unmounted_is_back_with_all_that_lies_on_it(rig: Rig) -> None:
    agent = rig.start(1, 2, 3)
    rig.create_topic("events", partitions=9, replication_factor=1)
    wait_assigned(agent, 9)
    rig.wait_recorded("events", 1, 2, 3)
    before, same, recorded = rig.names(2), rig.directory_id(2), rig.recorded("events")
    seen = len(agent.events())
    rig.disks[2].unmount()
    agent.wait_for_event("directory.offline.acknowledged", after=seen)
    rig.disks[2].mount()
    agent = rig.take_back(2, agent)
    assert rig.registered() == {rig.directory_id(number) for number in (1, 2, 3)} and same in rig.registered()
    assert (rig.names(2), rig.recorded("events")) == (before, recorded)
    wait_until(lambda: all(one.leader == NODE for one in rig.partitions("events")), 30, "leaders")
    assert not agent.events("replica.stray")


def test_no_replica_is_made_anew_while_another_disk_that_may_hold_it_is_away(rig: Rig) -> None:
    first = rig.start(1, 2, 3)
    rig.create_topic("events", partitions=9, replication_factor=1)
    wait_assigned(first, 9)
    rig.wait_recorded("events", 1, 2, 3)
    on_three, three = rig.names(3), rig.directory_id(3)
    assert first.stop() == 0
    rig.disks[3].unmount()
    agent = rig.start_agent(rig.config)
    agent.wait_for_event("agent.unfenced", 60)
    assert rig.registered() == {rig.directory_id(number) for number in (1, 2)}
    rig.kill_disk(2, agent)
    rig.disks[2].unmount()
    rig.mount_new(2)
    rig.mount_new(3)
    rig.format()
    rig.added(2)
    assert not agent.events("replica.created")
    rig.added(3)
    rig.wait_recorded("events", 1, 2, 3)
    assert three not in rig.registered() and len(agent.events("replica.created")) >= len(on_three)
    never_restarted(agent)


def test_the_old_disk_coming_back_is_said_and_what_lives_elsewhere_by_now_is_a_stray_on_it(rig: Rig) -> None:
    agent = rig.start(1, 2, 3)
    rig.create_topic("events", partitions=12, replication_factor=1)
    wait_assigned(agent, 12)
    rig.wait_recorded("events", 1, 2, 3)
    old_names, old_disk = rig.names(2), rig.disks[2]
    old = rig.kill_disk(2, agent)
    old_disk.unmount()
    rig.mount_new(2)
    rig.format()
    rig.added(2)
    rig.wait_recorded("events", 1, 2, 3)
    elsewhere = old_names & (rig.names(1) | rig.names(3))
    between = rig.kill_disk(2, agent)
    rig.disks[2].unmount()
    old_disk.set(FaultMode.OK)
    old_disk.mount()
    first = agent
    agent = rig.take_back(2, agent)
    (returned,) = first.events("directory.returned")
    assert (returned["path"], returned["directory_id"]) == (str(rig.path(2)), str(old))
    assert returned["replaced_by"] == str(between)
    assert rig.registered() == {rig.directory_id(number) for number in (1, 2, 3)}
    rig.wait_recorded("events", 1, 2, 3)
    plain = {name for name in rig.names(2) if "." not in name}
    assert plain >= old_names - elsewhere and not plain & elsewhere
    wait_until(lambda: len(rig.names(2, "*-stray")) == len(elsewhere), 30, "strays")


def test_a_broker_with_one_directory_gets_a_second_one_and_everything_is_assigned_at_the_next_start_too(
    rig: Rig,
) -> None:
    agent = rig.start(1)
    rig.create_topic("events", partitions=6, replication_factor=1)
    wait_until(lambda: len(rig.names(1)) == 6, 30, "replicas")
    rig.mount_new(2)
    assert f"{rig.path(2)} is not in log.dirs of {rig.config}: add it there" in rig.refused(2)
    rig.write_config(1, 2)
    rig.format()
    assert "it is new" in rig.added(2)
    assert rig.registered() == {rig.directory_id(1), rig.directory_id(2)}
    rig.create_topic("spread", partitions=6, replication_factor=1)
    rig.wait_recorded("spread", 1, 2)
    rig.wait_recorded("events", 1)
    assert rig.names(2) == {f"spread-{number}" for number in range(6)}
    never_restarted(agent)

    assert agent.stop() == 0
    again = rig.start_agent(rig.config)
    again.wait_for_event("agent.unfenced", 60)
    assert not any(is_reserved(directory) for topic in ("events", "spread") for directory in rig.recorded(topic))
    assert not again.events("replica.created")


def test_a_disk_of_another_broker_and_a_copy_of_one_of_ours_are_refused(rig: Rig) -> None:
    agent = rig.start(1, 2)
    rig.mount_new(3)
    rig.write_config(1, 2, 3)
    copy = (rig.path(1) / "meta.properties").read_text()
    (rig.path(3) / "meta.properties").write_text(copy)
    assert f"of {rig.path(1)}: mount each disk once" in rig.refused(3)
    (rig.path(3) / "meta.properties").write_text(copy.replace("node.id=1", "node.id=7"))
    assert "Stored node id 7 doesn't match previous node id 1" in rig.refused(3)
    assert len(rig.registered()) == 2
    never_restarted(agent)


@pytest.mark.usefixtures("kafka_kit")
def test_a_cluster_from_before_directories_is_upgraded_and_its_broker_gets_a_second_directory_with_all_assigned(
    tmp_path: Path, real_disk: MakeDisk, processes: Processes, kafka_kit: KafkaKit
) -> None:
    rig = Rig(tmp_path, processes, real_disk, kafka_kit, release="3.7-IV1")
    agent = rig.start(1)
    rig.create_topic("events", partitions=6, replication_factor=1)
    wait_until(lambda: len(rig.names(1)) == 6, 30, "replicas")
    assert set(rig.recorded("events")) == {MIGRATING}
    rig.mount_new(2)
    rig.write_config(1, 2)
    rig.format()
    assert "waits for metadata.version 3.7-IV2 or later" in rig.refused(2)
    kafka_kit.run(
        FEATURES, "--bootstrap-controller", f"127.0.0.1:{rig.port}", "upgrade", "--feature", "metadata.version=25"
    )
    agent.wait_for_event("agent.registering.again")
    assert "it is new" in rig.added(2)
    rig.wait_recorded("events", 1)
    never_restarted(agent)
    assert agent.stop() == 0
    again = rig.start_agent(rig.config)
    again.wait_for_event("agent.unfenced", 60)
    rig.create_topic("spread", partitions=6, replication_factor=1)
    rig.wait_recorded("spread", 1, 2)
    assert set(rig.recorded("events")) == {rig.directory_id(1)}


def test_a_start_takes_no_mount_point_that_was_formatted_without_its_disk_and_makes_nothing_anew(rig: Rig) -> None:
    agent = rig.start(1, 2, 3)
    rig.create_topic("events", partitions=9, replication_factor=1)
    wait_assigned(agent, 9)
    rig.wait_recorded("events", 1, 2, 3)
    same, names, recorded = rig.directory_id(2), rig.names(2), rig.recorded("events")
    assert agent.stop() == 0
    rig.disks[2].unmount()
    told = run_kjbod("format", "-g", "-t", CLUSTER_ID, "-c", str(rig.config), check=True).stderr
    assert f"{rig.path(2)} lies on the file system of /, and not all of log.dirs do: is its disk mounted?" in told

    agent = rig.start_agent(rig.config)
    reason = agent.wait_for_event("directory.unreadable", 60)["reason"]
    assert f"{rig.path(2)} lies on the file system of / now: mount its disk on {rig.path(2)} first" in reason
    wait_until(
        lambda: "no agent or guard answers" not in rig.add(2).stderr, 60, "the agent to answer, which still starts"
    )
    assert f"lies on the file system of / now: mount its disk on {rig.path(2)} first" in rig.refused(2)
    rig.disks[2].mount()
    assert rig.added(2).startswith(f"{rig.path(2)} is online with the directory.id {same}")
    assert (rig.directory_id(2), rig.names(2), rig.recorded("events")) == (same, names, recorded)
    assert not agent.events("replica.created") and not agent.events("directory.replaced")

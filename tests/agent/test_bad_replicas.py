"""Bad input on disk and from people, to a real agent on plain directories: as Kafka answers where Kafka has an answer,
one clear line otherwise, and nothing is ever deleted."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kjbod.ids import Uuid
from scripts.rig.preloaded import PLAIN
from scripts.rig.processes import ManagedProcess, Processes, kjbod_command, wait_until
from tests.agent.daemon_cluster import Cluster, wait_assigned
from tests.agent.real_broker import Manifest, manifest
from tests.preloading import run_kjbod

DIRECTORIES = (1, 2, 3)
LOG = "00000000000000000000.log"
FILLER = "what-else-grows"
DATA = b"data that nobody may lose"


class Host:
    """Broker 1 with three directories and a topic of six replicas, each with a file of data in it; stopped."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.controller = cluster.start_controller()
        self.config = cluster.configure(1, kjbod_agent_take_over="true")
        agent = self.start()
        cluster.create_topic("events", 6, 1)
        wait_assigned(agent, 6)
        assert agent.stop() == 0
        for number in DIRECTORIES:
            for replica in self.directory(number).glob("events-*"):
                (replica / LOG).write_bytes(DATA)

    def directory(self, number: int) -> Path:
        return self.cluster.directory(1, number)

    def start(self) -> ManagedProcess:
        agent = self.cluster.start_agent(self.config)
        agent.wait_for_event("agent.unfenced", 60)
        return agent

    def find(self, name: str) -> Path:
        (found,) = [path for number in DIRECTORIES if (path := self.directory(number) / name).is_dir()]
        return found

    def leaders(self) -> dict[str, int]:
        """The leader of each partition, by what the controller's log says."""
        found: dict[str, int] = {}
        for line in run_kjbod("metadata", "dump", "-s", str(self.cluster.base / "controller")).stdout.splitlines():
            record = json.loads(line)
            if record.get("type") in ("PARTITION_RECORD", "PARTITION_CHANGE_RECORD"):
                name, leader = f"events-{record['data']['partitionId']}", record["data"].get("leader", -2)
                found[name] = leader if leader != -2 else found[name]
        return found

    def contents(self) -> list[Manifest]:
        return [manifest(self.directory(number)) for number in DIRECTORIES]

    def kjbod(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of a person against this agent."""
        return run_kjbod(arguments[0], "-c", str(self.config), *arguments[1:])

    def strays(self, what: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Remove or restore strays, as a person does."""
        return run_kjbod("strays", what, "-c", str(self.config), *arguments)

    def state_of_disks(self) -> set[tuple[str, int, str]]:
        """Each file's name, size and checksum, wherever it is and whatever its directory is called now."""
        return {
            (path.rpartition("/")[2], size, digest)
            for found in self.contents()
            for path, (size, digest, _) in found.items()
        }


@pytest.fixture
def host(tmp_path: Path, processes: Processes) -> Host:
    return Host(Cluster(tmp_path, processes))


def said(agent: ManagedProcess, *parts: str) -> bool:
    """Whether one line of the log has all of these."""
    return any(all(part in line for part in parts) for line in agent.stderr().splitlines())


# -------------------------------------------------------------------------------------------------- names and contents


NO_REPLICAS = ("lost+found", "events-", "-0", "events-x", "events-0-delete", "a b-0-future")


def test_a_directory_that_is_no_replica_ends_the_start_as_in_kafka_with_a_line_that_names_it(host: Host) -> None:
    for name in NO_REPLICAS:
        foreign = host.directory(2) / name
        foreign.mkdir()
        (foreign / "somebody's").write_text("data")
        before = host.contents()
        agent = host.cluster.start_agent(host.config)
        assert agent.wait() not in (0, None)
        lines = agent.stderr().splitlines()
        assert len(lines) == 1 and str(foreign) in lines[0] and "Traceback" not in lines[0], name
        assert host.contents() == before
        shutil.rmtree(foreign)


SPOILED = {
    "events-0": None,
    "events-1": b"",
    "events-2": b"version: 0\ntopic_i",
    "events-3": b"version: 1\ntopic_id: %s",
    "events-4": b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
    "events-5": bytes(range(256)),
}
"""What is in ``partition.metadata`` of each replica: nothing, not even a file; nothing; a torn write; another version;
the id of no topic; garbage."""


def test_su_14_a_replica_whose_partition_metadata_cannot_be_read_stays_and_no_empty_one_is_made(host: Host) -> None:
    spoiled = {name: host.find(name) for name in SPOILED}
    for name, replica in spoiled.items():
        file = replica / "partition.metadata"
        topic_id = file.read_bytes().partition(b"topic_id: ")[2]
        file.unlink()
        if (content := SPOILED[name]) is not None:
            file.write_bytes(content.replace(b"%s", topic_id))
    right = topic_id.decode()
    before = host.contents()
    agent = host.start()
    wait_until(lambda: len(agent.events("replica.name.taken")) == len(SPOILED), 20, "all to be named")
    wait_until(lambda: host.leaders() == dict.fromkeys(SPOILED, -1), 20, "the controller to know of all")
    assert host.contents() == before and agent.events("replica.created") == []
    shown = host.kjbod("status", "--check")
    assert shown.returncode == 1 and shown.stdout.startswith("DEGRADED: ") and "events-0 cannot be used" in shown.stdout
    (spoiled["events-3"] / "partition.metadata").write_text(f"version: 0\ntopic_id: {right}")
    wait_until(lambda: host.leaders() == dict.fromkeys(SPOILED, -1) | {"events-3": 1}, 30, "the repaired one to lead")
    assert agent.stop() == 0
    assert all((replica / LOG).read_bytes() == DATA for replica in spoiled.values()), "as they were given"


def test_a_partition_metadata_that_is_a_directory_or_leads_nowhere_harms_nobody_else(host: Host) -> None:
    odd = host.find("events-1") / "partition.metadata"
    odd.unlink()
    odd.mkdir()
    link = host.find("events-2") / "partition.metadata"
    link.unlink()
    link.symlink_to("/nowhere")
    before = host.state_of_disks()
    agent = host.start()
    wait_until(lambda: said(agent, "events-1") and said(agent, "events-2"), 20, "both to be named")
    assert agent.running
    assert before <= host.state_of_disks()
    assert agent.stop() == 0


# ---------------------------------------------------------------------------------------------- what is no directory


def test_a_replica_that_is_a_file_is_left_alone_and_none_is_made_elsewhere_until_it_is_gone(host: Host) -> None:
    replica = host.find("events-4")
    away = host.cluster.base / "away"
    replica.rename(away)
    replica.write_text("a file of somebody")
    agent = host.start()
    wait_until(lambda: host.leaders()["events-4"] == -1, 20, "the controller to know")
    assert replica.read_text() == "a file of somebody" and agent.events("replica.created") == []
    replica.unlink()
    away.rename(replica)
    wait_until(lambda: host.leaders()["events-4"] == 1, 30, "the copy that is back to lead")
    assert agent.stop() == 0
    assert (replica / LOG).read_bytes() == DATA


def test_a_replica_that_is_a_link_out_of_the_tree_is_not_followed(host: Host) -> None:
    replica = host.find("events-5")
    away = host.cluster.base / "elsewhere"
    replica.rename(away)
    replica.symlink_to(away)
    before = manifest(away)
    agent = host.start()
    wait_until(lambda: said(agent, str(replica), "link"), 20, "the link to be named")
    assert replica.is_symlink() and manifest(away) == before and agent.events("replica.created") == []
    host.cluster.delete_topics("events")
    wait_until(lambda: not any(p.name == "events-0" for n in DIRECTORIES for p in host.directory(n).iterdir()), 20, "-")
    assert replica.is_symlink() and manifest(away) == before, "what a link leads to is not the agent's to rename"
    assert agent.stop() == 0


# --------------------------------------------------------------------------------------------------------- permissions


@pytest.fixture
def unprivileged(host: Host, processes: Processes) -> Iterator[Callable[[], ManagedProcess]]:
    """Starts the agent as somebody whom file permissions stop, who is the owner all the same."""

    def start() -> ManagedProcess:
        command = [kjbod_command(), "agent", "-c", str(host.config)]
        if os.geteuid() == 0:
            assert shutil.which("setpriv") is not None
            command = [*PLAIN, *command]
        return processes.start(command, name="agent-unprivileged")

    modes = {path: path.stat().st_mode for number in DIRECTORIES for path in [host.directory(number)]}
    yield start
    for path, mode in modes.items():
        path.chmod(mode)
        for replica in path.glob("events-*"):
            replica.chmod(0o755)


@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_a_directory_without_permission_is_offline_and_the_others_serve(
    host: Host, unprivileged: Callable[[], ManagedProcess], mode: int
) -> None:
    before = host.contents()
    host.directory(3).chmod(mode)
    agent = unprivileged()
    agent.wait_for_event("agent.unfenced", 60)
    assert said(agent, str(host.directory(3)), "EACCES")
    assert agent.running
    agent.stop()
    host.directory(3).chmod(0o755)
    assert host.contents() == before


def test_a_replica_without_permission_is_named_and_nothing_is_made_in_its_place(
    host: Host, unprivileged: Callable[[], ManagedProcess]
) -> None:
    """A copy that cannot be read is not replaced, and the others in its directory are served."""
    replica = host.find("events-2")
    before = host.contents()
    replica.chmod(0)
    agent = unprivileged()
    agent.wait_for_event("agent.unfenced", 60)
    wait_until(lambda: said(agent, str(replica), "EACCES"), 30, "the replica to be named")
    assert agent.events("replica.created") == agent.events("directory.failed") == []
    agent.stop()
    replica.chmod(0o755)
    assert host.contents() == before


def test_the_metadata_directory_without_permission_ends_the_start_with_one_line(
    host: Host, unprivileged: Callable[[], ManagedProcess]
) -> None:
    host.directory(1).chmod(0)
    agent = unprivileged()
    assert agent.wait() != 0
    lines = agent.stderr().splitlines()
    assert len(lines) == 1 and str(host.directory(1)) in lines[0]


# ------------------------------------------------------------------------------------------------- names at the limit

LONG = "t" * 249


def test_the_longest_topic_is_made_deleted_and_its_name_is_cut_where_it_must_be(host: Host) -> None:
    agent = host.start()
    host.cluster.create_topic(LONG, 3, 1)
    wait_assigned(agent, 3)
    made = [host.find(f"{LONG}-{number}") for number in range(3)]
    for replica in made:
        (replica / LOG).write_bytes(DATA)
    host.cluster.delete_topics(LONG)
    wait_until(lambda: not any(replica.exists() for replica in made), 20, "the replicas to be renamed")
    for replica in made:
        number = replica.name.rpartition("-")[2]
        (renamed,) = replica.parent.glob(f"ttt*-{number}.*-delete")
        assert len(renamed.name) == 255
        assert (renamed / LOG).read_bytes() == DATA
    assert agent.stop() == 0


def test_the_longest_name_there_can_be_is_set_aside_as_a_stray_with_all_of_its_data(host: Host) -> None:
    stray = host.directory(2) / f"{LONG}-99999"
    stray.mkdir()
    assert len(stray.name) == 255
    (stray / "partition.metadata").write_text(f"version: 0\ntopic_id: {Uuid.of(77, 1)}")
    (stray / LOG).write_bytes(DATA)
    agent = host.start()
    wait_until(lambda: not stray.exists(), 20, "the stray to be set aside")
    (kept,) = host.directory(2).glob("ttt*-99999.*-stray")
    assert len(kept.name) == 255
    assert (kept / LOG).read_bytes() == DATA
    assert agent.stop() == 0
    again = host.start()
    assert (kept / LOG).read_bytes() == DATA
    assert again.stop() == 0


def test_a_move_of_a_topic_whose_future_name_would_be_too_long_is_refused_as_in_kafka(host: Host) -> None:
    agent = host.start()
    host.cluster.create_topic(LONG, 1, 1)
    wait_assigned(agent, 1)
    replica = host.find(f"{LONG}-0")
    target = next(host.directory(n) for n in DIRECTORIES if host.directory(n) != replica.parent)
    result = host.kjbod("move", f"{LONG}-0", "--to", str(target))
    assert_one_line(result, LONG[:40], "long")
    assert replica.is_dir() and not list(target.glob("*-future"))
    assert agent.stop() == 0


# ---------------------------------------------------------------------------------------------------------------- moves


def assert_one_line(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Refused with one clear line and an exit code, without a traceback."""
    assert result.returncode != 0
    text = result.stderr.strip() or result.stdout.strip()
    assert "Traceback" not in text
    assert any(all(part in line for part in parts) for line in text.splitlines()), text


def other_directory(host: Host, replica: Path) -> Path:
    return next(host.directory(n) for n in DIRECTORIES if host.directory(n) != replica.parent)


def test_a_move_to_where_it_is_does_nothing(host: Host) -> None:
    agent = host.start()
    before = host.contents()
    result = host.kjbod("move", "events-0", "--to", str(host.find("events-0").parent))
    assert result.returncode == 0, result.stderr
    assert host.contents() == before
    assert agent.stop() == 0


def test_a_move_to_an_unknown_directory_is_refused(host: Host) -> None:
    agent = host.start()
    before = host.contents()
    assert_one_line(host.kjbod("move", "events-0", "--to", "/nowhere/at-all"), "/nowhere/at-all is not a log directory")
    assert_one_line(host.kjbod("move", "nothing-0", "--to", str(host.directory(2))), "nothing-0")
    assert_one_line(host.kjbod("move", "events-17", "--to", str(host.directory(2))), "events-17")
    assert host.contents() == before
    assert agent.stop() == 0


def test_a_move_to_or_beside_an_offline_directory_is_refused(host: Host) -> None:
    agent = host.start()
    host.directory(3).rename(host.cluster.base / "away")
    agent.wait_for_event("directory.offline.acknowledged")
    inside = next(path for path in host.directory(1).glob("events-?"))
    before = [manifest(host.directory(number)) for number in (1, 2)]
    assert_one_line(host.kjbod("move", inside.name, "--to", str(host.directory(3))), str(host.directory(3)), "offline")
    assert_one_line(host.kjbod("move", inside.name, "--to", str(host.directory(2))), str(host.directory(3)), "offline")
    lost = next(path for path in (host.cluster.base / "away").glob("events-?"))
    assert_one_line(host.kjbod("move", lost.name, "--to", str(host.directory(2))), lost.name)
    assert [manifest(host.directory(number)) for number in (1, 2)] == before
    assert agent.stop() == 0


def test_co_4_a_move_to_a_cordoned_directory_is_refused(host: Host) -> None:
    with open(host.config, "a") as config:
        config.write(f"cordoned.log.dirs={host.directory(2)}\n")
    agent = host.start()
    replica = next(path for path in host.directory(1).glob("events-?"))
    before = host.contents()
    assert_one_line(
        host.kjbod("move", replica.name, "--to", str(host.directory(2))), str(host.directory(2)), "cordoned"
    )
    assert host.contents() == before
    assert agent.stop() == 0


@pytest.mark.usefixtures("as_root")
def test_a_full_destination_ends_a_move_with_one_line_and_the_source_is_as_it_was(host: Host) -> None:
    target = host.directory(3)
    shelter = host.cluster.base / "shelter"
    shutil.copytree(target, shelter)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(target)], check=True)
    try:
        shutil.copytree(shelter, target, dirs_exist_ok=True)
        replica = next(path for path in host.directory(1).glob("events-?"))
        (replica / LOG).write_bytes(os.urandom(24 << 20))
        with open(host.config, "a") as config:
            config.write(f"kjbod.move.bytes.per.second={1 << 20}\n")
        agent = host.start()
        before = manifest(host.directory(1))
        assert host.kjbod("move", replica.name, "--to", str(target)).returncode == 0, "there is room for it"
        fill(target)
        wait_until(lambda: said(agent, replica.name, "ENOSPC"), 30, "the move to be given up")
        wait_until(lambda: not moving(host), 30, "no move to be left")
        assert manifest(host.directory(1)) == before
        assert agent.running and said(agent, str(target))
        assert not agent.events("directory.failed"), "a full disk is not a dead one"
        (target / FILLER).unlink()
        assert agent.stop() == 0
        wait_until(lambda: not list(target.glob("*-future")), 10, "the half copy to be gone")
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


def fill(directory: Path) -> None:
    """Leave no room, as a replica beside does that grows."""
    with (directory / FILLER).open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 20))


def moving(host: Host) -> list[object]:
    result = host.kjbod("move", "--list", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    return list(found["moves"] if isinstance(found, dict) else found)


def test_an_agent_that_is_not_there_is_said_by_the_command(host: Host) -> None:
    assert_one_line(host.kjbod("move", "events-0", "--to", str(host.directory(2))), "agent")


def test_a_stray_whose_name_is_no_utf8_keeps_its_bytes_and_is_removed_or_restored_by_what_is_shown(host: Host) -> None:
    foreign = [b"r\xe9sum\xe9-0", b"\xff\xfe\\x-1", ("\u20ac" * 70 + "x").encode() + b"\xe2\x82-2"]
    disk = os.fsencode(host.directory(1))
    for name in foreign:
        Path(os.fsdecode(disk + b"/" + name)).mkdir()
        Path(os.fsdecode(disk + b"/" + name + b"/" + LOG.encode())).write_bytes(DATA)
    agent = host.start()

    def strays() -> list[bytes]:
        return sorted(name for name in os.listdir(disk) if name.endswith(b"-stray"))

    wait_until(lambda: len(strays()) == 3, 20, "strays")
    assert {name.partition(b".")[0] for name in strays()} == {*foreign[:2], "\u20ac".encode() * 70 + b"x\xe2\x82-2"}
    shown = [line for line in host.kjbod("strays").stdout.splitlines() if line.endswith("-stray")]
    assert len(shown) == 3
    for printed in shown[:2]:
        removed = host.strays("remove", "--yes", printed)
        assert (removed.returncode, removed.stderr) == (0, "")
    assert len(strays()) == 1
    assert agent.stop() == 0
    remembered = json.loads(host.kjbod("strays", "--json").stdout)["strays"]
    assert [stray["reason"] for stray in remembered] == [
        "it has no topic id (partition.metadata is missing or unreadable)"
    ]
    left = strays()[0]
    restored = host.strays("restore", shown[2])
    assert restored.returncode == 0, restored.stderr
    assert left.rpartition(b".")[0] in os.listdir(disk)

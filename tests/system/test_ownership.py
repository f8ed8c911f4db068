"""Disks and files of another owner at the start: a mistake of whoever set the host up, and no dead disk."""

import os
import shutil
from pathlib import Path

import pytest

from scripts.rig.preloaded import PLAIN
from scripts.rig.processes import ManagedProcess, Processes, kjbod_command
from tests.agent.daemon_cluster import Cluster

pytestmark = pytest.mark.usefixtures("as_root")

OTHER = 54_321
"""Somebody's who has no name here."""


class Host:
    """A controller, and an agent with three directories that permissions stop."""

    def __init__(self, base: Path, processes: Processes) -> None:
        self.processes = processes
        self.cluster = Cluster(base, processes)
        self.config = self.cluster.configure(1, kjbod_probe_full_every=1)
        self.directories = [self.cluster.directory(1, number) for number in (1, 2, 3)]

    def start(self, role: str = "agent", config: Path | None = None) -> ManagedProcess:
        command = [*PLAIN, kjbod_command(), role, "-c", str(config or self.config)]
        return self.processes.start(command, name=f"plain-{role}")

    def refusal(self, role: str = "agent", config: Path | None = None) -> str:
        """The one line of a start that ends as a mistake of configuration."""
        refused = self.start(role, config)
        assert refused.wait() == 78, refused.tail()
        (line,) = refused.stderr().splitlines()
        return line

    def served_once(self) -> None:
        self.cluster.start_controller()
        agent = self.start()
        agent.wait_for_event("agent.unfenced", 60)
        assert agent.stop() == 0


@pytest.fixture
def host(tmp_path: Path, processes: Processes) -> Host:
    return Host(tmp_path, processes)


def test_directories_of_another_owner_are_named_with_the_command_that_helps(host: Host) -> None:
    for directory in host.directories:
        os.chown(directory, OTHER, OTHER)
    d1, d2, d3 = map(str, host.directories)
    assert host.refusal() == (
        f"kjbod: {d1}: permission denied: {d1} belongs to {OTHER} (mode 0755), and this is root: "
        f"run this as {OTHER}, or chown -R root: {d1} {d2} {d3}"
    )


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_chown_that_was_not_recursive_is_found_by_the_files_in_it(host: Host, mode: int) -> None:
    for directory in host.directories:
        lock = directory / ".lock"
        lock.touch()
        lock.chmod(mode)
        os.chown(lock, OTHER, OTHER)
    line = host.refusal()
    assert f"{host.directories[0]}/.lock belongs to {OTHER}" in line
    assert line.endswith(f"chown -R root: {' '.join(map(str, host.directories))}")


@pytest.mark.parametrize("name", ["events-0", "meta.properties"])
def test_replicas_and_files_that_are_not_ours_are_found_before_the_broker_registers(host: Host, name: str) -> None:
    replicas = ("events-0", "events-1")  # one alone would be judged alone
    for place in (directory / each for directory in host.directories for each in {name, *replicas}):
        if place.name in replicas:
            place.mkdir()
        if name in (place.name, "events-0"):
            place.chmod(0o700 if place.is_dir() else 0o600)
            os.chown(place, OTHER, OTHER)
    assert f"{host.directories[0]}/{name} belongs to {OTHER}" in host.refusal()


def test_a_directory_that_may_not_be_reached_names_what_is_above_it(host: Host) -> None:
    home = host.directories[0].parent
    shutil.move(host.config, home.parent / "server.properties")
    home.chmod(0o700)
    os.chown(home, OTHER, OTHER)
    config = home.parent / "server.properties"
    config.write_text(config.read_text() + f"kjbod.state.dir={home.parent}/state\n")
    line = host.refusal(config=config)
    assert f"{home} belongs to {OTHER} (mode 0700), and this is root, who may not pass: chmod o+x {home}" in line


def test_one_that_was_ours_before_is_offline_with_the_reason_and_the_others_serve(host: Host) -> None:
    host.served_once()
    os.chown(host.directories[2], OTHER, OTHER)
    agent = host.start()
    agent.wait_for_event("agent.unfenced", 60)
    reason = agent.events("directory.unreadable")[0]["reason"]
    assert "EACCES" in reason and f"chown -R root: {host.directories[2]}" in reason
    assert agent.running


def test_one_that_never_was_ours_is_refused_before_it_takes_part(host: Host) -> None:
    os.chown(host.directories[2], OTHER, OTHER)
    assert host.refusal().endswith(f"chown -R root: {host.directories[2]}")


def test_one_that_turns_so_while_the_agent_runs_has_failed_as_in_kafka(host: Host) -> None:
    host.cluster.start_controller()
    agent = host.start()
    agent.wait_for_event("agent.unfenced", 60)
    host.directories[2].chmod(0)
    failed = agent.wait_for_event("directory.failed")
    assert failed["path"] == str(host.directories[2]) and "EACCES" in failed["evidence"]
    agent.wait_for_event("directory.offline.acknowledged")
    assert agent.running


@pytest.mark.parametrize("what", ["directory", "meta.properties"])
def test_a_controllers_directory_of_another_owner_is_a_mistake_of_configuration(host: Host, what: str) -> None:
    directory = host.cluster.base / "controller"
    place = directory if what == "directory" else directory / what
    place.chmod(0o700)
    os.chown(place, OTHER, OTHER)
    line = host.refusal("controller", host.cluster.controller_config)
    assert f"{place} belongs to {OTHER}" in line or f"{directory} belongs to {OTHER}" in line
    assert "and this is root" in line


def test_a_state_directory_of_another_owner_too(host: Host) -> None:
    state = host.cluster.base / "b1" / "state"
    state.mkdir()
    os.chown(state, OTHER, OTHER)
    assert host.refusal() == (
        f"kjbod: kjbod.state.dir={state}: permission denied: {state} belongs to {OTHER} (mode 0755), and this is root: "
        f"run this as {OTHER}, or chown -R root: {state}"
    )


def test_a_reports_directory_of_another_owner_is_said_with_the_remedy_and_harms_nobody(
    host: Host, tmp_path: Path
) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    os.chown(reports, OTHER, OTHER)
    host.config.write_text(host.config.read_text() + f"kjbod.reports.dir={reports}\n")
    host.cluster.start_controller()
    agent = host.start()
    said = agent.wait_for_event("reports.failed")
    assert f"{reports} belongs to {OTHER}" in said["error"] and "chown -R root: " in said["error"]
    agent.wait_for_event("agent.unfenced", 60)

"""A host's own disk that hangs, with what the agent remembers and reports: no agent stays, and the next one starts."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kjbod.faults.disks import FaultMode, RealDisk
from scripts.rig.processes import ManagedProcess, Processes, wait_until
from tests.agent.daemon_cluster import Cluster

pytestmark = pytest.mark.usefixtures("as_root")

END_S = 15
"""For an end that takes a second."""


def stuck(name: str) -> list[int]:
    """Processes of this name that wait for a disk, uninterruptibly."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            comm, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:  # it ended while we looked
            continue
        if comm == name and rest.split()[0] == "D":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.parametrize("where", ["kjbod_reports_dir", "kjbod_state_dir"])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_neither_the_process_nor_its_ports_and_locks_outlive_an_agent_whose_own_files_are_on_a_hung_disk(
    tmp_path: Path, real_disk: Callable[..., RealDisk], processes: Processes, where: str, end: signal.Signals
) -> None:
    cluster = Cluster(tmp_path, processes)
    cluster.start_controller()
    disk = real_disk()
    settings: dict[str, Any] = {where: disk.log_dir / "kjbod"}
    config = cluster.configure(1, **settings)
    agent = unfenced(cluster.start_agent(config))
    disk.set(FaultMode.HANG)
    away = cluster.directory(1, 3).rename(cluster.base / "away")  # an event for the report, which is to be durable
    wait_until(lambda: stuck("kjbod-reports"), 30, "the process of the reports to be stuck")
    agent.signal(end)
    assert agent.wait(END_S) == (0 if end == signal.SIGTERM else -signal.SIGKILL)
    assert stuck("kjbod-reports")
    away.rename(cluster.directory(1, 3))
    # The disk still hangs; the next agent has its files elsewhere, and everything else as before.
    text = config.read_text() + f"kjbod.state.dir={tmp_path}/other\nkjbod.reports.dir={tmp_path}/other/reports\n"
    config.write_text(text)
    unfenced(cluster.start_agent(config))
    disk.set(FaultMode.OK)


def unfenced(agent: ManagedProcess) -> ManagedProcess:
    agent.wait_for_event("agent.unfenced", 60)
    return agent


@pytest.mark.parametrize("node", [1, 2])
def test_a_second_agent_with_the_state_directory_of_the_first_is_refused_and_changes_nothing(
    tmp_path: Path, processes: Processes, node: int
) -> None:
    cluster = Cluster(tmp_path, processes)
    cluster.start_controller()
    state = tmp_path / "shared"
    first = unfenced(cluster.start_agent(cluster.configure(1, kjbod_state_dir=state)))
    before = (state / "known_directories.json").read_bytes()
    config = tmp_path / "b1" / "server.properties" if node == 1 else cluster.configure(2, kjbod_state_dir=state)
    second = cluster.start_agent(config)
    assert second.wait() == (1 if node == 1 else 78)
    (line,) = [line for line in second.stderr().splitlines() if line.startswith("kjbod: ")]
    assert line.startswith(f"kjbod: kjbod.state.dir={state} is in use by another agent (node 1, pid {first.pid})")
    assert (state / "known_directories.json").read_bytes() == before
    assert first.running
    first.kill()
    unfenced(cluster.start_agent(tmp_path / "b1" / "server.properties"))

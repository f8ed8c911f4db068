"""A host's own disk that hangs, with what the agent remembers and reports: no agent stays, and the next one starts."""

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from kjbod.faults.disks import FaultMode, RealDisk
from scripts.rig.processes import ManagedProcess, Processes, wait_until
from tests.agent.daemon_cluster import Cluster

pytestmark = pytest.mark.usefixtures("as_root")

END_S = 15
"""For an end that takes a second."""


STUCK_LOOKS = 50
"""In a row, 10 ms apart: one who waits for a disk that answers is found so too, but has run on at the next look."""


class Stuck:
    """The one child of a process that has a name and waits for a disk that does not answer, uninterruptibly."""

    def __init__(self, parent: int, name: str) -> None:
        self.parent, self.name = parent, name
        self._seen: tuple[int, str] = (0, "")
        self._looks = 0

    def pid(self) -> int:
        """After :data:`STUCK_LOOKS` calls between which it has not run; 0 before."""
        seen = self._look()
        self._looks = self._looks + 1 if seen == self._seen and seen[0] else 0
        self._seen = seen
        return seen[0] if self._looks >= STUCK_LOOKS else 0

    def _look(self) -> tuple[int, str]:
        """Process id and how often it gave up the processor."""
        for process in psutil.Process(self.parent).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == self.name and process.status() == psutil.STATUS_DISK_SLEEP:
                    return process.pid, str(process.num_ctx_switches())
        return 0, ""


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
    stuck = wait_until(Stuck(agent.pid, "kjbod-reports").pid, 30, "the process of the reports to be stuck")
    agent.signal(end)
    assert agent.wait(END_S) == (0 if end == signal.SIGTERM else -signal.SIGKILL)
    assert psutil.Process(stuck).status() == psutil.STATUS_DISK_SLEEP
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

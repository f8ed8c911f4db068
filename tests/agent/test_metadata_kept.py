"""Agents whose kept metadata cannot be used, as real processes: they start all the same, say why once, and touch
nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.metadata.log_files import DIRECTORY_NAME
from kjbod.metadata.quorum_state import QuorumState, write_quorum_state
from scripts.rig.processes import Processes
from tests.agent.core.test_keeping import topics
from tests.agent.daemon_cluster import Cluster, wait_assigned


def damaged(directory: Path) -> None:
    """A log with a flipped byte, and good batches behind it."""
    directory.mkdir()
    data = bytearray(b"".join(batch.raw for batch in topics(0, 5).batches))
    data[70] ^= 1
    (directory / f"{0:020d}.log").write_bytes(data)


def of_another_history(directory: Path) -> None:
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(b"".join(batch.raw for batch in topics(0, 5).batches))


def voted(directory: Path) -> None:
    of_another_history(directory)
    write_quorum_state(directory, QuorumState(leader_epoch=1, voted_id=1))


def a_file(directory: Path) -> None:
    directory.write_text("a file of somebody")


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(path.iterdir())
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize(
    ("make", "event", "reason"),
    [
        (damaged, "stopped", "is corrupt at position"),
        (of_another_history, "unused", "the quorum does not have its last records"),
        (voted, "stopped", "it is a controller's"),
        (a_file, "stopped", DIRECTORY_NAME),
    ],
)
def test_an_agent_starts_beside_a_metadata_log_that_it_cannot_use_and_leaves_it_as_it_is(
    tmp_path: Path, processes: Processes, make: Callable[[Path], None], event: str, reason: str
) -> None:
    cluster = Cluster(tmp_path, processes)
    config = cluster.configure(1)
    directory = cluster.directory(1, 1) / DIRECTORY_NAME
    make(directory)
    before = contents(directory)
    cluster.start_controller()
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced", 60)
    assert reason in agent.wait_for_event(f"metadata.kept.{event}")["reason"]
    cluster.create_topic("events", partitions=3, replication_factor=1)
    wait_assigned(agent, 3)
    assert agent.stop() == 0
    assert len(agent.events(f"metadata.kept.{event}")) == 1
    assert contents(directory) == before

"""What the start does that is not a rule for directories."""

import errno
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from kjbod.errors import StorageError
from kjbod.ids import Uuid
from kjbod.runtime.logging import get_logger
from kjbod_agent.directories import KnownDirectories
from kjbod_agent.reports import DaemonThreadExecutor
from kjbod_agent.start_up import BLOCKED_MS, Opened, _remember, _without_missing, mark_clean
from kjbod_agent.storage.api import BlockedCall, DirectoryError, Replica
from tests.agent.core.test_directories import loaded


class FullDisk(KnownDirectories):
    """A state directory on a full disk."""

    def save(self, directories: Mapping[str, Uuid]) -> None:
        raise self._unusable(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


async def test_a_full_state_directory_is_said_and_keeps_no_broker_from_starting(tmp_path: Path) -> None:
    executor = DaemonThreadExecutor("test")
    with capture_logs() as logs:
        await _remember(executor, FullDisk(tmp_path, 1), {"/d1": Uuid.of(1, 1)}, get_logger(), str(tmp_path))
    executor.shutdown(wait=False)
    (line,) = logs
    assert line["event"] == "state.not.saved"
    assert f"kjbod.state.dir={tmp_path}" in line["reason"] and "No space left" in line["reason"]


IDS = {"/d1": Uuid.of(1, 1), "/d2": Uuid.of(1, 2)}


def test_a_disk_that_was_there_at_the_last_start_and_is_not_mounted_now_is_offline_and_named() -> None:
    bare = replace(loaded("/d1"), meta_properties=None)
    absent = DirectoryError(errno.ENOENT, "open of /d2", "/d2")
    judged = _without_missing({"/d1": bare, "/d2": absent}, IDS)
    for path, load in judged.items():
        assert type(load) is StorageError
        for part in (path, str(IDS[path]), "mount its disk, or format the new one"):
            assert part in str(load)


def test_a_directory_with_replicas_that_lost_its_file_is_not_called_unmounted() -> None:
    without = replace(loaded("/d1"), meta_properties=None, replicas=(Replica("t-0", "t", 0, None, ""),))
    said = str(_without_missing({"/d1": without}, IDS)["/d1"])
    assert "it has 1 replicas, so restore the file" in said and "mount" not in said and "format" not in said


def test_a_directory_that_never_was_one_of_ours_is_not_called_missing() -> None:
    bare = replace(loaded("/d3"), meta_properties=None)
    assert _without_missing({"/d3": bare}, IDS) == {"/d3": bare}


@pytest.mark.parametrize(
    "load", [loaded("/d1"), DirectoryError(errno.EIO, "open of /d1", "/d1"), StorageError("/d1: stuck")]
)
def test_what_a_directory_says_is_left_as_it_is(load: Any) -> None:
    assert _without_missing({"/d1": load}, IDS) == {"/d1": load}


class Marked:
    """A directory agent that can only be marked."""

    def __init__(self, blocked: BlockedCall | None) -> None:
        self._blocked = blocked
        self.epochs: list[int] = []

    def blocked(self) -> BlockedCall | None:
        return self._blocked

    async def write_clean_shutdown(self, broker_epoch: int, *, timeout_ms: int) -> None:
        self.epochs.append(broker_epoch)


async def test_a_stop_asks_nothing_of_a_directory_that_does_not_answer() -> None:
    agents = {
        Uuid.of(1, 1): Marked(None),
        Uuid.of(1, 2): Marked(BlockedCall(1, "probe", "fsync", BLOCKED_MS - 1)),
        Uuid.of(1, 3): Marked(BlockedCall(1, "probe", "fsync", BLOCKED_MS)),
    }
    await mark_clean(Opened(cast(Any, None), cast(Any, agents), {}), list(agents), 7)
    assert [agent.epochs for agent in agents.values()] == [[7], [7], []]

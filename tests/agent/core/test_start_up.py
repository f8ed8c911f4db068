"""What the start does that is not a rule for directories."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from structlog.testing import capture_logs

from kjbod.ids import Uuid
from kjbod.runtime.logging import get_logger
from kjbod_agent.directories import KnownDirectories
from kjbod_agent.reports import DaemonThreadExecutor
from kjbod_agent.start_up import _remember


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

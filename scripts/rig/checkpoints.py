"""Checkpoints of a broker's high watermarks, in the writing of which it meets a disk that hangs."""

from pathlib import Path
from typing import Final

from scripts.rig.processes import wait_until

CHECKPOINT_NAME: Final = "replication-offset-checkpoint"
"""File in each log directory."""
CHECKPOINT_INTERVAL_MS: Final = 5000
"""``replica.high.watermark.checkpoint.interval.ms``."""


def wait_until_written(checkpoint: Path, since_s: float, timeout_s: float) -> float:
    """Wait until a checkpoint is written after a moment; when it was. Both in seconds of the wall clock.

    Raises :class:`WaitTimeoutError`.
    """
    return wait_until(
        lambda: mtime if (mtime := checkpoint.stat().st_mtime) > since_s else 0.0, timeout_s, f"a new {checkpoint}"
    )

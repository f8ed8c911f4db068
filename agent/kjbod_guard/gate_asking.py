"""The shell of :mod:`.gate`: asks the running guard again and again, and returns lines for the user.

This module opens no log directory and looks none up, so that it never waits for a disk.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kjbod.clock import Clock
from kjbod.errors import KjbodError
from kjbod.runtime.control_socket import ControlClient
from kjbod_guard import gate
from kjbod_guard.helper_directory import MASK_SOURCE
from kjbod_host.health.mountinfo import read_mounts

OPERATION: Final = "guard-gate"


def mount_namespace() -> str:
    """Return the mount namespace of this process; empty if it is not known."""
    try:
        return str(Path("/proc/self/ns/mnt").readlink())
    except OSError:
        return ""


def masks() -> frozenset[str]:
    """Return the mount points of the masks that this process sees. Never blocks."""
    try:
        return frozenset(mount.mount_point for mount in read_mounts() if mount.source == MASK_SOURCE)
    except OSError:
        return frozenset()


def ask(
    client: Callable[[int], ControlClient],
    timeout_ms: int | None,
    *,
    clock: Clock,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Wait until the broker may start; return lines about its directories.

    Args:
        client: makes a connection to the guard; its argument is the answer timeout in milliseconds.
        timeout_ms: how long to wait at most; None: the default. A guard that does not answer is not asked again.
        clock: the time.
        sleep: waits for so many seconds.
    """
    until_ms = clock.monotonic_ms() + (gate.TIMEOUT_MS if timeout_ms is None else timeout_ms)
    while True:
        left_ms = until_ms - clock.monotonic_ms()
        try:
            answer = client(max(1, left_ms)).call(OPERATION, mounts=mount_namespace())
            found = gate.judge(answer, masks())
        except KjbodError as error:
            return [f"no guard says how the disks are, and the broker starts all the same: {error}"]
        except (KeyError, TypeError, ValueError) as error:
            return [f"the guard's answer is of another form ({error!r}), and the broker starts all the same"]
        if not found.waits or left_ms <= gate.AGAIN_MS:
            return list(found.lines)
        sleep(gate.AGAIN_MS / 1000)

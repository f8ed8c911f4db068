"""Paths of kjbod's own files on the host of a guard, and their disks. A disk with such a file is never cut."""

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

from kjbod.config import Config
from kjbod_guard.binding import Owned
from kjbod_guard.watching import mounts_now
from kjbod_host.health.mounts import mount_of


async def find_own_files(config: Config, real_path: Callable[[str], Awaitable[str]]) -> dict[str, str]:
    """Return the real paths of kjbod's own files, by purpose."""
    return {
        "kjbod.state.dir": await real_path(config.kjbod_state_dir),
        "kjbod.reports.dir": await real_path(config.kjbod_reports_dir),
        "Python": sys.prefix,
        "kjbod": str(Path(__file__).parent),
    }


def on_watched_disks(own_files: Mapping[str, str], owned: Mapping[str, Owned]) -> Iterator[str]:
    """Yield a line for each of state and reports directory that is on the disk of a watched log directory."""
    table = mounts_now()
    devices: dict[str, str] = {}
    for path, one in owned.items():
        mount = mount_of(one.loaded.real_path, table)
        if mount is not None:
            devices.setdefault(mount.device, path)
    for name in ("kjbod.state.dir", "kjbod.reports.dir"):
        mount = mount_of(own_files[name], table)
        if mount is not None and mount.device in devices:
            yield (
                f"{name}={own_files[name]} lies on the file system of {devices[mount.device]}: it "
                "hangs and dies with it; use a directory on another one"
            )

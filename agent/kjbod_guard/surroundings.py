"""Check that a file system carries only log directories of this broker. Pure.

A cut shuts a whole file system down. So the file system must have exactly one mount, of its root, and not at a system
directory. No file of kjbod may be on it. From its mount point down to each log directory there may be no other names,
except ``lost+found``.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from kjbod_host.health.mounts import Mount, mount_of
from kjbod_host.storage.api import Survey

SYSTEM_DIRECTORIES: Final = frozenset(
    {"/", "/boot", "/etc", "/home", "/opt", "/root", "/run", "/srv", "/tmp", "/usr", "/var", "/var/lib", "/var/log"}
)
"""Mount points of file systems that a host needs."""
IGNORED: Final = frozenset({"lost+found"})


def levels(real_path: str, mount_point: str) -> list[tuple[str, str]]:
    """Return the directories from the mount point down to the parent of a log directory, each with the next name on the
    way; none if the log directory is the mount point."""
    below = real_path.removeprefix(mount_point.rstrip("/")).strip("/")
    found, here = [], mount_point.rstrip("/")
    for name in below.split("/") if below else ():
        found.append((here or "/", name))
        here = f"{here}/{name}"
    return found


def is_system(mount_point: str) -> bool:
    """Whether the host itself needs the file system at a mount point."""
    return mount_point in SYSTEM_DIRECTORIES or mount_point.startswith(("/boot/", "/usr/"))


def why_shared(
    real_path: str,
    mounts: tuple[Mount, ...],
    surveys: Mapping[str, Survey],
    own_files: Mapping[str, str],
) -> str | None:
    """Return why the file system of a log directory may not be cut, in words; None: it carries no other files.

    Args:
        real_path: of the log directory.
        mounts: the mount table.
        surveys: names around each log directory of this broker, by real path.
        own_files: real paths of kjbod's own files, by purpose.
    """
    mount = mount_of(real_path, mounts)
    if mount is None:
        return "the mount table does not show its file system"
    if is_system(mount.mount_point):
        return f"its file system is the host's own, of {mount.mount_point}"
    if mount.root != "/":
        return f"only a part of its file system ({mount.root}) is mounted there"
    for other in mounts:
        if other.device == mount.device and other.mount_id != mount.mount_id:
            return f"its file system is mounted on {other.mount_point} as well"
    for name, path in own_files.items():
        if _is_on(path, mount, mounts):
            return f"{name} lies on its file system, at {path}"
    here = [path for path in surveys if _is_on(path, mount, mounts)]
    if real_path not in here:
        return "what else its file system carries is not known"
    return _beside([surveys[path] for path in here], here)


def _is_on(path: str, mount: Mount, mounts: tuple[Mount, ...]) -> bool:
    found = mount_of(path, mounts)
    return found is not None and found.device == mount.device


def _beside(surveys: Sequence[Survey], log_dirs: Collection[str]) -> str | None:
    for survey in surveys:
        if survey.beside is None:
            return "what else its file system carries cannot be listed"
        for name in survey.beside:
            known = any(one == name or one.startswith(f"{name}/") for one in log_dirs)
            if not known and name.rpartition("/")[2] not in IGNORED:
                return f"its file system carries {name} as well"
    return None

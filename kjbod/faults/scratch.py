"""Scratch disks for operators: each exists until ``disk remove`` or a reboot, beyond the command that made it."""

import contextlib
import json
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from kjbod.faults import syscalls
from kjbod.faults.disks import DiskControl, RealDisk, require_real_disks
from kjbod.faults.faults_error import FaultsError, UsageError
from kjbod.faults.fusedisk import DiskGoneError, image_name
from kjbod.faults.model import Injection, Target, boot_id, locked, make_state_dir, require_own, was_read
from kjbod.faults.mount_table import detach_own, is_on_image, mount_on, mounts, mounts_below, mounts_on, users
from kjbod.faults.program import PROGRAM
from kjbod.files import write_atomically

MAX_SIZE_BYTES = 64 << 30
"""Maximum size; written content is in memory."""
_RECORD = ".disk"
_END_TIMEOUT_S = 20.0


class ScratchDisk(Struct, frozen=True, kw_only=True):
    """A recorded disk.

    Attributes:
        path: the mount point.
        log_dir: the log directory, there or below.
        directory: directory of its server.
        image: name of the file under its loop device.
        made: whether its creation was finished.
        made_path: whether the mount point was created for it.
    """

    id: str
    path: Path
    log_dir: Path
    fstype: str
    size_bytes: int
    directory: Path
    image: str
    since_ms: float
    boot: str
    made: bool
    made_path: bool

    def target(self) -> Target:
        """Return the target for injections."""
        mount = mount_on(self.path)
        device = None if mount is None else Path(mount.source)
        return Target(self.log_dir, self.path, self.fstype, DiskControl(self.directory), device)

    def is_alive(self) -> bool:
        """Return whether its server answers."""
        try:
            DiskControl(self.directory).state()
        except DiskGoneError:
            return False
        return True

    def to_json(self) -> dict[str, Any]:
        return {name: str(v) if isinstance(v, Path) else v for name, v in asdict(self).items()}


def _record(state_dir: Path, disk_id: str) -> Path:
    return state_dir / f"{disk_id}{_RECORD}"


def _directory(state_dir: Path, disk_id: str) -> Path:
    return state_dir / f"{disk_id}.disk.d"


def list_disks(state_dir: Path) -> list[ScratchDisk]:
    """Return all recorded scratch disks, oldest first. Raises :class:`FaultsError` for an unreadable record."""
    require_own(state_dir)
    found = []
    for path in state_dir.glob(f"*{_RECORD}"):
        if (values := was_read(path)) is None:
            continue
        try:
            values |= {name: Path(values[name]) for name in ("path", "log_dir")}
            found.append(ScratchDisk(**{**values, "directory": _directory(state_dir, path.stem)}))
        except (KeyError, TypeError) as error:
            raise FaultsError(f"{path}: not a record of {PROGRAM}: {error}") from None
    return sorted(found, key=lambda disk: disk.since_ms)


def find_disk(path: Path, state_dir: Path) -> ScratchDisk | None:
    """Return the scratch disk of an absolute path. The path itself is not read, because the disk may hang."""
    on = [disk for disk in list_disks(state_dir) if disk.path == path or disk.path in path.parents]
    return max(on, key=lambda disk: (len(disk.path.parts), disk.since_ms), default=None)


def create_disk(path: Path, *, fstype: str, size_bytes: int | None, log_dir: str, state_dir: Path) -> ScratchDisk:
    """Make a disk and mount it at ``path``, which is created if it does not exist.

    Raises:
        FaultsError: the machine cannot do it, or the path is in use.
    """
    require_name(log_dir)
    require_real_disks(fstype)
    make_state_dir(state_dir)
    with locked(state_dir):
        return _create(Path(os.path.realpath(path)), fstype, size_bytes, log_dir, state_dir)


def _create(path: Path, fstype: str, size_bytes: int | None, log_dir: str, state_dir: Path) -> ScratchDisk:
    _check_place(path)
    disk_id = secrets.token_hex(3)
    directory = _directory(state_dir, disk_id)
    record = ScratchDisk(
        id=disk_id,
        path=path,
        log_dir=path / log_dir,
        fstype=fstype,
        size_bytes=size_bytes or 0,
        directory=directory,
        image=image_name(directory),
        since_ms=time.time() * 1000,
        boot=boot_id(),
        made=False,
        made_path=not path.exists(),
    )
    _save(record, state_dir)
    try:
        disk = RealDisk(path, fstype=fstype, log_dir=log_dir, size_bytes=size_bytes, directory=directory)
        try:
            made = replace(record, made=True, size_bytes=disk.size_bytes)
            _save(made, state_dir)
            disk.release()
        except BaseException:
            disk.close()
            raise
    except BaseException:
        remove_disk(record, state_dir)
        raise
    return made


def _save(disk: ScratchDisk, state_dir: Path) -> None:
    try:
        write_atomically(_record(state_dir, disk.id), json.dumps(disk.to_json(), indent=1).encode())
    except OSError as error:
        raise FaultsError(f"{_record(state_dir, disk.id)}: {error.strerror}") from None


def require_name(log_dir: str) -> None:
    """Raise :class:`UsageError` for a log directory that would not be on the disk, or too deep in it."""
    if ".." in Path(log_dir).parts or Path(log_dir).is_absolute() or len(Path(log_dir).parts) > 1:
        raise UsageError(f"--log-dir {log_dir}: give the name of one directory on the disk")


def _check_place(path: Path) -> None:
    if mounts_on(path):
        raise FaultsError(f"{path}: something is mounted there already")
    if not path.parent.is_dir():
        raise FaultsError(f"{path.parent}: no such directory: make it first")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FaultsError(f"{path}: not an empty directory: a disk mounted there would hide what it holds")


def users_of(disk: ScratchDisk, injections: Sequence[Injection]) -> list[str]:
    """Return the processes with open files on the disk: ``"1234 (java)"``. A dead disk has none.

    :param injections: injections into this disk. Mounts that they detached may still be in use.
    """
    if not disk.is_alive():
        return []
    devices = {mount.device for mount in mounts() if is_on_image(mount, disk.image)}
    return users(devices, {i.details["mount_id"] for i in injections if "mount_id" in i.details})


def remove_disk(disk: ScratchDisk, state_dir: Path) -> None:
    """Unmount and remove a disk with its content, including the remains after a killed server or a reboot.

    Mounts of others at its place stay. Raises :class:`FaultsError` if something is mounted below it.
    """
    mount = mount_on(disk.path)
    if (below := mounts_below(disk.path)) and mount is not None and is_on_image(mount, disk.image):
        raise FaultsError(f"{disk.path}: {below[0].mount_point} is mounted below it: unmount that first")
    DiskControl(disk.directory).close()
    _wait_for_end(disk)
    if disk.boot == boot_id():
        with contextlib.suppress(OSError):
            detach_own(disk.path, disk.image)
        with contextlib.suppress(OSError):
            syscalls.umount_all(disk.directory / "fuse")
    if disk.made_path:
        with contextlib.suppress(OSError):
            disk.path.rmdir()
    for name in ("control", "server.log"):
        (disk.directory / name).unlink(missing_ok=True)
    for place in (disk.directory / "fuse", disk.directory):
        with contextlib.suppress(OSError):
            place.rmdir()
    _record(state_dir, disk.id).unlink(missing_ok=True)


def _wait_for_end(disk: ScratchDisk) -> None:
    deadline = time.monotonic() + _END_TIMEOUT_S
    while disk.is_alive() and time.monotonic() < deadline:
        time.sleep(0.02)

"""Faults of the mount: the disk is healthy, and the path leads elsewhere or to a read-only mount.

An unmounted disk stays mounted at a hidden place, so that the undo needs neither device nor options.
"""

import errno
import os
from pathlib import Path
from typing import Any

from kjbod.faults import syscalls
from kjbod.faults.device import FAILED, everywhere
from kjbod.faults.disks import FILE_SYSTEMS, make_file_system
from kjbod.faults.faults_error import FaultsError
from kjbod.faults.model import Fault, Injection, make_place
from kjbod.faults.mount_table import FAULT_MEMORY, FAULT_SOURCE, Mount, is_on_image, mount_on, mounts_below, mounts_on

_TMPFS_SIZE = "size=1m"


def mount_here(injection: Injection) -> Mount:
    """Return the mount to break. Raises :class:`FaultsError` if nothing is mounted there."""
    mount = mount_on(injection.target.mount_point)
    if mount is None:
        raise FaultsError(f"{injection.target.mount_point}: nothing is mounted there")
    return mount


def _remember(injection: Injection) -> dict[str, Any]:
    mount = mount_here(injection)
    if below := mounts_below(mount.mount_point):
        raise FaultsError(f"{mount.mount_point}: {below[0].mount_point} is mounted below it: unmount that first")
    return {
        "mount_id": mount.mount_id,
        "device": mount.device,
        "flags": mount.flags(),
        "mounts": len(mounts_on(mount.mount_point)),
    }


def _keep_mounted(injection: Injection) -> None:
    place = make_place(injection)
    if injection.target.disk is not None:
        injection.target.disk.janitor(place, remove=True)
    syscalls.mount(str(injection.target.mount_point), place, "", syscalls.MS_BIND)


def _unmount(injection: Injection) -> None:
    syscalls.umount(injection.target.mount_point, syscalls.MNT_DETACH)


def _lay_over(injection: Injection) -> None:
    syscalls.mount(_name(injection), injection.target.mount_point, "tmpfs", data=_TMPFS_SIZE)


def _name(injection: Injection) -> str:
    """Return the name that marks a mount, or the memory under it, as this injection's."""
    return FAULT_SOURCE + injection.id


def _is_ours(injection: Injection, mount: Mount) -> bool:
    return mount.source == _name(injection) or is_on_image(mount, FAULT_MEMORY + injection.id)


def _make_other_disk(injection: Injection) -> None:
    """Make a new file system of the same type; its loop device and memory are freed with its last mount."""
    _keep_mounted(injection)
    fstype, disk = injection.target.fstype, injection.target.disk
    if disk is None:
        return  # a tmpfs on hosts without the tools
    place = make_place(injection, injection.other_place)
    disk.janitor(place, remove=True)
    memory = os.memfd_create(_name(injection))
    try:
        os.ftruncate(memory, FILE_SYSTEMS[fstype].size_bytes)
        make_file_system(fstype, Path(f"/proc/self/fd/{memory}"), pass_fds=[memory])
        device, loop = syscalls.attach_loop(Path(f"/proc/self/fd/{memory}"))
        try:
            syscalls.mount(str(device), place, fstype, data=FILE_SYSTEMS[fstype].mount_options)
        finally:
            os.close(loop)
    finally:
        os.close(memory)


def _swap(injection: Injection) -> None:
    _unmount(injection)
    if injection.target.disk is None:
        _lay_over(injection)
    else:
        syscalls.mount(str(injection.other_place), injection.target.mount_point, "", syscalls.MS_BIND)


def _take_off(injection: Injection) -> None:
    mount_point = injection.target.mount_point
    mount = mount_on(mount_point)
    if mount is not None and _is_ours(injection, mount):
        syscalls.umount(mount_point, syscalls.MNT_DETACH)
    elif any(_is_ours(injection, below) for below in mounts_on(mount_point)):
        raise _in_the_way(injection, mount)


def _in_the_way(injection: Injection, mount: Mount | None) -> FaultsError:
    what = "something" if mount is None else mount.source
    return FaultsError(
        f"{injection.target.mount_point}: {what} was mounted there since the fault: unmount it, then "
        f"{injection.undo_command}"
    )


def _mount_again(injection: Injection) -> None:
    _take_off(injection)
    place, mount_point = injection.place, injection.target.mount_point
    kept, mount = mount_on(place), mount_on(mount_point)
    if kept is not None:
        if mount is None or mount.device != kept.device:
            if len(mounts_on(mount_point)) >= injection.details["mounts"]:
                raise _in_the_way(injection, mount)
            syscalls.mount(str(place), mount_point, "", syscalls.MS_BIND)
        syscalls.umount(place, syscalls.MNT_DETACH)
    if mount_on(injection.other_place) is not None:
        syscalls.umount(injection.other_place, syscalls.MNT_DETACH)


def _bind_read_only(injection: Injection) -> None:
    mount_point, flags = injection.target.mount_point, int(injection.details["flags"]) | syscalls.MS_RDONLY
    remount = syscalls.MS_REMOUNT | syscalls.MS_BIND | flags
    try:
        syscalls.mount("none", mount_point, "", remount)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        syscalls.mount(str(mount_point), mount_point, "", syscalls.MS_BIND)
        syscalls.mount("none", mount_point, "", remount)


def _bind_writable(injection: Injection) -> None:
    mount_point, flags = injection.target.mount_point, int(injection.details["flags"])
    while (mount := mount_on(mount_point)) is not None and mount.mount_id != injection.details["mount_id"]:
        if mount.device != injection.details["device"] or "ro" not in mount.options:
            if injection.details["mount_id"] not in {below.mount_id for below in mounts_on(mount_point)}:
                return  # unmounted by someone else since
            raise _in_the_way(injection, mount)
        syscalls.umount(mount_point, syscalls.MNT_DETACH)
    if mount is not None and mount.mount_id == injection.details["mount_id"] and mount.flags() != flags:
        syscalls.mount("none", mount_point, "", syscalls.MS_REMOUNT | syscalls.MS_BIND | flags)


FAULTS = (
    Fault(
        name="bind-ro",
        title="the mount becomes read-only",
        does="remounts it read-only as a bind mount; where a file is open for writing, lays a read-only one over it",
        needs="root",
        says="failed, EROFS, or ESTALE where a read-only mount lies over it",
        layer="mount",
        expectations=everywhere(FAILED),
        scratch_only=False,
        prepare=_remember,
        deed=_bind_read_only,
        heal=_bind_writable,
    ),
    Fault(
        name="umount",
        title="the disk is unmounted",
        does="umount -l: the path leads to the directory below; whoever has a file open keeps it",
        needs="root; it stays mounted at a hidden place until undo",
        says="failed, ESTALE: another file system than before; ENOENT where the directory is not on it",
        layer="mount",
        expectations=everywhere(FAILED),
        scratch_only=False,
        prepare=_remember,
        arm=_keep_mounted,
        deed=_unmount,
        heal=_mount_again,
    ),
    Fault(
        name="over-mount",
        title="something is mounted over it",
        does="mounts an empty tmpfs over it",
        needs="root",
        says="failed, ESTALE: another file system than before; ENOENT where the directory is not on it",
        layer="mount",
        expectations=everywhere(FAILED),
        scratch_only=False,
        prepare=_remember,
        deed=_lay_over,
        heal=_take_off,
    ),
    Fault(
        name="swapped-disk",
        title="another disk is mounted in its place",
        does="umount -l, then mounts another, empty file system of the same type (not a scratch disk: a tmpfs) there",
        needs="root; it stays mounted at a hidden place until undo",
        says="failed, ESTALE: another file system than before; ENOENT where the directory is not on it",
        layer="mount",
        expectations=everywhere(FAILED),
        scratch_only=False,
        prepare=_remember,
        arm=_make_other_disk,
        deed=_swap,
        heal=_mount_again,
    ),
)

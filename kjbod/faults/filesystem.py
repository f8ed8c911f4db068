"""Faults of the file system: internal errors, frozen, read-only, full."""

import contextlib
import errno
import os
import subprocess
from pathlib import Path
from typing import Any

from kjbod.faults import syscalls
from kjbod.faults.device import (
    FAILED,
    FULL_PROBE_MS,
    HUNG_MS,
    everywhere,
    heal_content,
    keep,
)
from kjbod.faults.disks import find_command
from kjbod.faults.faults_error import FaultsError
from kjbod.faults.model import Expectation, Fault, Injection, Target, make_place
from kjbod.faults.mount import mount_here
from kjbod.faults.mount_table import holders, is_on_image, mount_on
from kjbod.faults.revive import is_held, revive, works

_BLOCK = 4096
_MANY_FILES = 600
_MOST_INODES = 1_000_000
_NOT_OURS = "not ours"
_TOOL_TIMEOUT_S = 60
_DROP_CACHES = {"xfs": "2", "btrfs": "3"}
"""Values for drop_caches (proc_sys_vm(5)): these file systems cache metadata, xfs in slabs, btrfs in pages too."""
_DROP_CACHES_FILE = "/proc/sys/vm/drop_caches"
_DROP_TIMEOUT_S = 30
_FULL = Expectation(("full",), FULL_PROBE_MS, "the medium is well: only a create tells, and each tenth probe creates")


def _tool(*command: str) -> str:
    path = find_command(command[0])
    if path is None:
        raise FaultsError(f"{command[0]}: command not found")
    result = subprocess.run(
        [path, *command[1:]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TOOL_TIMEOUT_S,
        check=False,
    )
    if result.returncode:
        reason = (result.stderr or result.stdout).strip().rpartition("\n")[2]
        raise FaultsError(f"{' '.join(command)}: exit code {result.returncode}: {reason}")
    return result.stdout


# freeze -------------------------------------------------------------------------------------------------------------


def _remember_device(injection: Injection) -> dict[str, Any]:
    mount = mount_here(injection)
    return {
        "source": mount.source,
        "fstype": mount.fstype,
        "device": mount.device,
        "mount_id": mount.mount_id,
        "flags": mount.flags(),
        "sequence": _sequence(mount.source),
    }


def _sequence(source: str) -> int | None:
    try:
        return syscalls.disk_sequence(Path(source))
    except OSError:
        return None


def _freeze(injection: Injection) -> None:
    try:
        syscalls.freeze(injection.target.mount_point)
    except OSError as error:
        if error.errno == errno.EBUSY:
            injection.details[_NOT_OURS] = True
            raise FaultsError(f"{injection.target.mount_point}: somebody else has frozen it already") from None
        raise


def _thaw(injection: Injection) -> None:
    if injection.details.get(_NOT_OURS):
        return
    mount = mount_on(injection.target.mount_point)
    if mount is not None and mount.device == injection.details["device"]:
        syscalls.thaw(injection.target.mount_point)
        return
    # Unmounted or covered since then. The same device mounted elsewhere is the same, still frozen file system.
    source, fstype = injection.details["source"], injection.details["fstype"]
    if _sequence(source) != injection.details["sequence"]:
        return  # the device belongs to another disk now
    place = make_place(injection)
    try:
        syscalls.mount(source, place, fstype, injection.details["flags"])
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT, errno.EINVAL):  # the device is no longer the same
            return
        raise FaultsError(f"cannot mount {source} to thaw it: {error.strerror}") from None
    try:
        syscalls.thaw(place)
    finally:
        syscalls.umount(place, syscalls.MNT_DETACH)


# read-only ----------------------------------------------------------------------------------------------------------


def _remount(injection: Injection, flags: int, data: str = "") -> None:
    syscalls.mount("none", injection.target.mount_point, "", syscalls.MS_REMOUNT | flags, data)


def _remount_read_only(injection: Injection) -> None:
    try:
        _remount(injection, injection.details["flags"] | syscalls.MS_RDONLY)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        who = ", ".join(holders({mount_here(injection).mount_id})) or "somebody"
        raise FaultsError(
            f"{injection.target.mount_point}: the kernel refuses, since a file is open for writing by {who}: "
            f"take {_instead_of_remount(injection.target)}"
        ) from None


def _instead_of_remount(target: Target) -> str:
    """Return ways to make this disk read-only while a file is open for writing."""
    possible = target.disk is not None and target.fstype == "ext4"
    return "bind-ro or ext4-error-remount-ro" if possible else "bind-ro"


def _remount_writable(injection: Injection) -> None:
    mount = mount_on(injection.target.mount_point)
    if mount is not None and mount.mount_id == injection.details["mount_id"] and not mount.is_writable():
        _remount(injection, injection.details["flags"])


# ext4's own errors --------------------------------------------------------------------------------------------------


def _errors_continue(injection: Injection) -> None:
    _remount(injection, injection.details["flags"], "errors=continue")


def _errors_remount_ro(injection: Injection) -> None:
    _remount(injection, injection.details["flags"], "errors=remount-ro")


def _trigger(injection: Injection) -> None:
    device = Path(mount_here(injection).source).name
    Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("kjbod fault")


def _heal_ext4(injection: Injection) -> None:
    # Only a check clears ext4's record of the error, and it needs an unmounted file system: impossible under a running
    # agent.
    if works(injection.target) and is_held(injection.target):
        _errors_remount_ro(injection)
    else:
        revive(injection.target)


def _shut_down(injection: Injection) -> None:
    syscalls.shutdown_filesystem(injection.target.mount_point)


def _heal_file_system(injection: Injection) -> None:
    if not works(injection.target):
        revive(injection.target)


# damaged metadata ---------------------------------------------------------------------------------------------------


def _remember_source(injection: Injection) -> dict[str, Any]:
    size_bytes = injection.target.control.state()["size_bytes"]
    return {"source": mount_here(injection).source, "size_bytes": size_bytes}


def _flush_metadata(injection: Injection) -> None:
    # A freeze writes everything to its place: pending journal entries would repair the damage.
    syscalls.freeze(injection.target.mount_point)
    syscalls.thaw(injection.target.mount_point)
    syscalls.forget_buffers(Path(injection.details["source"]))
    keep(injection)
    if injection.target.fstype == "btrfs":
        _grow_tree(injection)


def _grow_tree(injection: Injection) -> None:
    """Create so many files that the tree is more than its root, which btrfs always caches. Restoring the content
    removes them."""
    path = injection.target.mount_point / injection.hidden_name
    path.mkdir(mode=0o700)
    for number in range(_MANY_FILES):
        (path / f"{number:0100}").touch()
    syscalls.sync_filesystem(path)


def _ext4_directory_blocks(injection: Injection) -> list[int]:
    image = injection.target.control.image_path()
    inode = injection.target.log_dir.stat().st_ino
    blocks = _tool("debugfs", "-R", f"blocks <{inode}>", str(image)).split()
    return [int(block) * _BLOCK for block in blocks]


def _xfs_blocks(injection: Injection) -> list[int]:
    control = injection.target.control
    return [*control.find(b"IN", _BLOCK), *control.find(b"XDB3", _BLOCK), *control.find(b"XDD3", _BLOCK)]


def _btrfs_blocks(injection: Injection) -> list[int]:
    """Return offsets of the tree nodes. They have the file system's id after their checksum, and so do super blocks,
    which are left out."""
    control = injection.target.control
    super_blocks = set(control.find(b"_BHRfS_M", _BLOCK, 64))
    at = min(super_blocks)
    with open(control.image_path(), "rb") as image:
        image.seek(at + 32)
        fsid = image.read(16)
    return [offset for offset in control.find(fsid, _BLOCK, 32) if offset not in super_blocks]


def _damage(injection: Injection) -> None:
    target = injection.target
    find = {"ext4": _ext4_directory_blocks, "xfs": _xfs_blocks, "btrfs": _btrfs_blocks}[target.fstype]
    # Frozen, because btrfs writes changed tree nodes elsewhere, and the damage would miss them.
    syscalls.freeze(target.mount_point)
    try:
        target.control.scribble(find(injection), _BLOCK)
    finally:
        syscalls.thaw(target.mount_point)
    syscalls.forget_buffers(Path(injection.details["source"]))
    if target.fstype in _DROP_CACHES:
        _drop_caches(_DROP_CACHES[target.fstype])


def _drop_caches(which: str) -> None:
    # In a separate process: dropping pages visits every file system of the machine, including one that hangs.
    dropping = subprocess.Popen(["sh", "-c", f"echo {which} >{_DROP_CACHES_FILE}"], stdin=subprocess.DEVNULL)
    try:
        code = dropping.wait(_DROP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _abandoned.append(dropping)
        raise FaultsError(
            "the caches cannot be emptied while another disk of this machine hangs: mend that first"
        ) from None
    if code:
        raise FaultsError(f"{_DROP_CACHES_FILE} cannot be written (in a container: --privileged)")


_abandoned: list[subprocess.Popen[bytes]] = []
"""Processes stuck in the kernel; referenced because a Popen that is collected complains about its child."""


# full ---------------------------------------------------------------------------------------------------------------


def _fill(injection: Injection) -> None:
    path = injection.target.mount_point / injection.hidden_name
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        _allocate(fd, injection.target.mount_point)
        # Repeatedly: space that was reserved for delayed writes is released over time.
        for size in (1 << 20, _BLOCK, _BLOCK, _BLOCK):
            _write_until_full(fd, size)
    finally:
        os.close(fd)


def _allocate(fd: int, mount_point: Path) -> None:
    free = os.statvfs(mount_point)
    size = free.f_bavail * free.f_frsize
    while size > 1 << 20:
        try:
            os.posix_fallocate(fd, os.fstat(fd).st_size, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                return
            size //= 2


def _write_until_full(fd: int, size: int) -> None:
    try:
        while os.write(fd, bytes(size)):
            pass
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    with contextlib.suppress(OSError):
        os.fsync(fd)


def _remove_ballast(injection: Injection) -> None:
    path = injection.target.mount_point / injection.hidden_name
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        syscalls.sync_filesystem(injection.target.mount_point)


def _count_inodes(injection: Injection) -> dict[str, Any]:
    free = os.statvfs(injection.target.mount_point).f_ffree
    if free > _MOST_INODES:
        raise FaultsError(
            f"{injection.target.mount_point}: {free} inodes are free, more than the {_MOST_INODES} that are used up "
            "here: take a smaller disk"
        )
    return {}


def _use_up_inodes(injection: Injection) -> None:
    path = injection.target.mount_point / injection.hidden_name
    path.mkdir(mode=0o700)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for number in range(_MOST_INODES):
            os.close(os.open(f"{number}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=directory))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    finally:
        os.close(directory)


def _remove_inodes(injection: Injection) -> None:
    path = injection.target.mount_point / injection.hidden_name
    try:  # by descriptor: root must not follow a link that was created since
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        for name in os.listdir(directory):
            os.unlink(name, dir_fd=directory)
    finally:
        os.close(directory)
    path.rmdir()


def _limit(injection: Injection) -> None:
    mount_point = str(injection.target.mount_point)
    _tool("btrfs", "quota", "enable", mount_point)
    _tool("btrfs", "quota", "rescan", "-w", mount_point)
    _tool("btrfs", "qgroup", "limit", "1", "0/5", mount_point)


def _unlimit(injection: Injection) -> None:
    # Not "qgroup limit none": that is refused when the quota is used up.
    target = injection.target
    mount = mount_on(target.mount_point)
    if mount is None or not is_on_image(mount, target.control.image_path().name):
        raise FaultsError(f"{target.mount_point}: the scratch disk is not mounted there: undo what hides it first")
    _tool("btrfs", "quota", "disable", str(target.mount_point))


_NO_QUOTA = "its quotas need mount options and a kernel that has them, and change the file system for good"

FAULTS = (
    Fault(
        name="freeze",
        title="the file system is frozen",
        does="fsfreeze: whoever writes waits in the kernel until undo, and cannot be killed",
        needs="root",
        says="held at once; failed when it lasts longer than kjbod.held.timeout.ms (30 s)",
        layer="file-system",
        expectations=everywhere(
            Expectation(("held",), HUNG_MS, "a snapshot freezes a healthy disk: waited out for kjbod.held.timeout.ms")
        ),
        scratch_only=False,
        prepare=_remember_device,
        deed=_freeze,
        heal=_thaw,
    ),
    Fault(
        name="remount-ro",
        title="the file system becomes read-only",
        does="remounts the file system read-only",
        needs="root; that nobody has a file open for writing there, as a running agent or broker has",
        says="failed, EROFS",
        layer="file-system",
        expectations=everywhere(FAILED),
        while_busy=False,
        scratch_only=False,
        prepare=_remember_device,
        deed=_remount_read_only,
        heal=_remount_writable,
    ),
    Fault(
        name="ext4-error-continue",
        title="ext4 meets an error and goes on",
        does="an error of ext4's own, mounted errors=continue: every call goes on to succeed",
        needs="a scratch disk with ext4",
        says="suspect: the file system itself says that it is damaged, and nothing else fails",
        layer="file-system",
        expectations={
            "ext4": Expectation(
                ("suspect", "online"),
                1500,
                "no call fails: only FAN_FS_ERROR and errors_count tell, and they never decide alone",
            )
        },
        not_on=dict.fromkeys(("xfs", "btrfs"), "it has no such setting: an error of its own shuts it down"),
        prepare=_remember_device,
        arm=_errors_continue,
        deed=_trigger,
        heal=_heal_ext4,
    ),
    Fault(
        name="ext4-error-remount-ro",
        title="ext4 meets an error and stops writing",
        does="an error of ext4's own, mounted errors=remount-ro, Debian's default",
        needs="a scratch disk with ext4",
        says="failed, EROFS",
        layer="file-system",
        expectations={"ext4": FAILED},
        not_on=dict.fromkeys(("xfs", "btrfs"), "it has no such setting: an error of its own shuts it down"),
        prepare=_remember_device,
        arm=_errors_remount_ro,
        deed=_trigger,
        heal=_heal_ext4,
    ),
    Fault(
        name="fs-shutdown",
        title="the file system shuts down",
        does="as after a fatal error: EIO to everything; what was not yet synced is lost",
        needs="a scratch disk with ext4 or xfs",
        says="failed, EIO",
        layer="file-system",
        expectations={"ext4": FAILED, "xfs": FAILED},
        not_on={"btrfs": "it does not know the ioctl (ENOTTY)"},
        deed=_shut_down,
        heal=_heal_file_system,
    ),
    Fault(
        name="metadata-damage",
        title="stored metadata are damaged",
        does="overwrites the log directory's blocks (ext4), the inodes (xfs) or the trees (btrfs), and empties caches",
        needs="a scratch disk; undo gives back the content of the moment before",
        says="failed, as soon as the damage is met: EROFS, EUCLEAN, EBADMSG or EIO",
        layer="file-system",
        expectations=everywhere(Expectation(("failed",), FULL_PROBE_MS)),
        prepare=_remember_source,
        arm=_flush_metadata,
        deed=_damage,
        heal=heal_content,
    ),
    Fault(
        name="full",
        title="the file system is full",
        does="a hidden file takes all space",
        needs="that nothing else needs the space meanwhile",
        says="full, ENOSPC; online again after undo",
        layer="file-system",
        expectations=everywhere(_FULL),
        scratch_only=False,
        survives_reboot=True,
        deed=_fill,
        heal=_remove_ballast,
    ),
    Fault(
        name="no-inodes",
        title="no inode is left",
        does="empty files in a hidden directory take all inodes; there is still space",
        needs="ext4 with at most a million free inodes",
        says="full, ENOSPC; online again after undo",
        layer="file-system",
        expectations={"ext4": _FULL},
        not_on=dict.fromkeys(("xfs", "btrfs"), "it makes inodes as long as there is space: see full"),
        scratch_only=False,
        survives_reboot=True,
        prepare=_count_inodes,
        deed=_use_up_inodes,
        heal=_remove_inodes,
    ),
    Fault(
        name="quota",
        title="the quota is used up",
        does="a quota below what is used already, while there is free space",
        needs="a scratch disk with btrfs, and btrfs-progs",
        says="full, EDQUOT; online again after undo",
        layer="file-system",
        expectations={"btrfs": _FULL},
        not_on=dict.fromkeys(("ext4", "xfs"), _NO_QUOTA),
        deed=_limit,
        heal=_unlimit,
    ),
)

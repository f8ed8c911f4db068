"""All faults, with the functions to inject, undo and list them."""

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from kjbod.faults import device, directory, filesystem, mount, syscalls
from kjbod.faults.faults_error import FaultsError, UsageError
from kjbod.faults.fusedisk import DiskGoneError
from kjbod.faults.model import (
    DEFAULT_STATE_DIR,
    Fault,
    Injection,
    Options,
    Target,
    boot_id,
    locked,
    make_state_dir,
    read_record,
    read_records,
)
from kjbod.faults.mount_table import is_on_image, mount_above, mount_on, mounts
from kjbod.faults.program import PROGRAM

_ORDER = (
    *("eio", "eio-writes", "eio-reads", "device-gone", "lost-writes", "bit-rot", "wiped", "truncated", "shrunk"),
    *("thin-pool-full", "hang", "hang-writes", "slow", "freeze"),
    *("remount-ro", "bind-ro", "umount", "over-mount", "swapped-disk"),
    *("ext4-error-continue", "ext4-error-remount-ro", "fs-shutdown", "metadata-damage"),
    *("full", "no-inodes", "quota"),
    *("immutable", "permissions", "directory-deleted", "meta-properties-replaced"),
)
_BY_NAME = {fault.name: fault for layer in (device, filesystem, mount, directory) for fault in layer.FAULTS}
FAULTS: Mapping[str, Fault] = {name: _BY_NAME[name] for name in _ORDER}
"""Faults by name: first the dying disks, then hanging, hiding and full ones."""


def find_fault(name: str) -> Fault:
    """Return a fault by name. Raises :class:`UsageError` for an unknown name."""
    try:
        return FAULTS[name]
    except KeyError:
        raise UsageError(f"no fault {name!r}: see {PROGRAM} list") from None


def options_of(fault: Fault, chosen: Mapping[str, int]) -> Options:
    """Return the options of a fault with the chosen values. Raises :class:`UsageError` for an unknown option."""
    for name in chosen:
        if name not in fault.options:
            raise UsageError(f"{fault.name} has no option {name}")
    return {**fault.options, **chosen}


def inject(
    name: str,
    target: Target,
    *,
    state_dir: Path = DEFAULT_STATE_DIR,
    options: Mapping[str, int] | None = None,
    for_s: float | None = None,
    recorded: Callable[[Injection], None] = lambda injection: None,
) -> Injection:
    """Break ``target``. A failure half-way is undone; if the process dies half-way, :func:`undo` cleans up.

    :param options: values that replace the fault's defaults.
    :param for_s: noted in the record as the time until the undo; the caller must arrange that undo.
    :param recorded: called after the record is written and before the action.

    Raises:
        FaultsError: unknown fault or option, not possible there, or another fault is already injected on this disk.
    """
    fault = find_fault(name)
    fault.expect(target.fstype)
    make_state_dir(state_dir)
    _refuse_second(target, state_dir)
    now_ms = time.time() * 1000
    injection = Injection(
        id=secrets.token_hex(3),
        fault=name,
        target=target,
        state_dir=state_dir,
        options=options_of(fault, options or {}),
        since_ms=now_ms,
        until_ms=None if for_s is None else now_ms + for_s * 1000,
        pid=os.getpid(),
        boot=boot_id(),
    )
    with _plainly(fault, target):
        mounted = _require_the_disk_itself(target)
        injection = replace(injection, details={"mounted": mounted, **fault.prepare(injection)})
    with injection.claimed():
        try:
            with locked(state_dir):
                _refuse_second(target, state_dir, mounted)
                injection.save()
            recorded(injection)
            with _plainly(fault, target):
                fault.arm(injection)
                began_ms = time.time() * 1000
                fault.deed(injection)
                ended_ms = time.time() * 1000
            injection = replace(injection, done=True, began_ms=began_ms, ended_ms=ended_ms)
            injection.save()
        except BaseException:
            _undo(injection)
            raise
    return injection


def undo(injection: Injection) -> None:
    """Remove a fault, whatever stage it reached. Does nothing if the fault is no longer on record.

    Raises:
        FaultsError: the fault cannot be undone now; the record stays.
    """
    with injection.claimed():
        _undo(injection)


def list_injections(state_dir: Path = DEFAULT_STATE_DIR) -> list[Injection]:
    """Return the injections, including unfinished ones, oldest first. Raises :class:`FaultsError` for an unreadable
    record."""
    return read_records(state_dir)


def _undo(injection: Injection) -> None:
    if not injection.record.exists():
        injection.forget()  # removes the lock file that this check created
        return
    try:
        _mend(injection)
    except (FaultsError, OSError) as error:
        _note_failure(injection, str(error))
        raise


def _note_failure(injection: Injection, reason: str) -> None:
    """Record why the undo failed: the output of a watchdog is rarely read."""
    with contextlib.suppress(FaultsError):  # the state directory may be full
        now = read_record(injection.record)
        if now is not None and now.undo_error != reason:
            replace(now, undo_error=reason).save()


def _mend(injection: Injection) -> None:
    fault = find_fault(injection.fault)
    rebooted = injection.boot != boot_id()
    if disk_is_gone(injection.target) or (rebooted and not fault.survives_reboot):
        _unmount_places(injection)
    else:
        if fault.survives_reboot:
            _require_the_same_disk(injection)
        with _plainly(fault, injection.target, f"; once more: {injection.undo_command}"):
            fault.heal(injection)
    injection.forget()


def _require_the_same_disk(injection: Injection) -> None:
    """Require the disk whose files were changed: another disk may be at the same place now, and must not be changed."""
    target, was = injection.target, injection.details["mounted"]
    mount = mount_on(target.mount_point)
    # Device numbers and names are reused for other disks: only the file system's own id is reliable.
    same = mount is not None and mount.fstype == was["fstype"]
    with _plainly(find_fault(injection.fault), target):
        if not same or syscalls.filesystem_id(target.mount_point, was["fstype"]) != was["id"]:
            raise FaultsError(
                f"{target.mount_point}: the disk that {injection.fault} was injected on, {was['source']}, is not "
                f"mounted there: mount it, then {injection.undo_command} (with --forget when it is no more)"
            )
    if Path(os.path.realpath(target.log_dir)) != target.log_dir:
        raise FaultsError(f"{target.log_dir}: has become a symbolic link: move it away, then {injection.undo_command}")


def forget(injection: Injection) -> None:
    """Drop the record without a repair, for a disk that no longer exists."""
    _unmount_places(injection)
    injection.forget()


def _unmount_places(injection: Injection) -> None:
    for place in (injection.place, injection.other_place):
        with contextlib.suppress(OSError):
            syscalls.umount_all(place)


def disk_is_gone(target: Target) -> bool:
    """Return whether the target is a scratch disk whose server has ended. Raises :class:`FaultsError` if that is
    unknown."""
    if target.disk is None:
        return False
    try:
        target.disk.state()
    except DiskGoneError:
        return True
    return False


def _is_same_disk(other: Injection, mounted: Mapping[str, str]) -> bool:
    """Return whether the mounted file system, at any place, already has another fault."""
    was = other.details["mounted"]
    if was["id"] != mounted["id"]:
        return False
    # A copy of a disk has its id, and some file systems (FUSE) have none: two mounted ones are different disks.
    other_is_mounted = other.boot == boot_id() and (was["device"], was["source"]) in {
        (mount.device, mount.source) for mount in mounts()
    }
    return was["device"] == mounted["device"] or not other_is_mounted


def _require_the_disk_itself(target: Target) -> dict[str, str]:
    """Require that the disk to break is at its place, and no other disk. Return device, source, type and id of the
    mounted file system."""
    mount = mount_on(target.mount_point)
    if mount is None:
        raise FaultsError(f"{target.mount_point}: nothing is mounted there")
    if target.disk is None:
        ours = target.device is None or mount.source == str(target.device)
    else:
        ours = is_on_image(mount, target.disk.image_path().name)
    if not ours:
        raise FaultsError(
            f"{target.mount_point}: {mount.source}, which is mounted there, is not the disk that is to break"
        )
    if target.log_dir.is_symlink() or mount_above(target.log_dir.resolve()).mount_id != mount.mount_id:
        raise FaultsError(f"{target.log_dir}: does not lie on {mount.source}")
    filesystem_id = syscalls.filesystem_id(target.mount_point, mount.fstype)
    return {"device": mount.device, "source": mount.source, "fstype": mount.fstype, "id": filesystem_id}


def _refuse_second(target: Target, state_dir: Path, mounted: Mapping[str, str] | None = None) -> None:
    for other in read_records(state_dir):
        place = other.target.mount_point
        if place == target.mount_point:
            where = ""
        elif mounted is not None and _is_same_disk(other, mounted):
            where = f" on {place}, where the same file system is mounted"
        else:
            continue
        raise FaultsError(
            f"{target.mount_point}: {other.fault} is injected already{where}; undo that first: {other.undo_command}"
        )
    if state_dir.stat().st_dev == target.mount_point.stat().st_dev:
        raise FaultsError(f"{state_dir}: lies on the disk that is to break: choose another place with --state-dir")


@contextlib.contextmanager
def _plainly(fault: Fault, target: Target, advice: str = "") -> Iterator[None]:
    """Turn an error of the kernel into one line of text."""
    try:
        yield
    except OSError as error:
        where = error.filename or target.mount_point
        raise FaultsError(f"{fault.name} on {target.mount_point}: {where}: {error.strerror}{advice}") from error

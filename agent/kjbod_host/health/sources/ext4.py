"""ext4's own count of errors: ``/sys/fs/ext4/DEVICE/errors_count``, which needs no privilege.

It goes up when ext4 meets damage in its own structures or has to abort its journal. With ``errors=continue`` no call
need ever fail then: this and FAN_FS_ERROR are all there is (a damaged block bitmap, for one). ``warning_count`` goes
up, too, after a write-back that failed.

A poll on ``errors_count`` wakes 1 to 2 ms after the error; ``warning_count`` wakes nobody and is read each second, and
so is ``errors_count``, for the sake of kernels that forget to wake.

Both are kept in the super block over mounts and reboots until fsck, so it is an increase that counts. An old count is
told once at the start, in the log line ``health.ext4.errors``, and is no event.
"""

import contextlib
import os
import select
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog
from msgspec import Struct

from kjbod_host.health.sources.api import KernelEvent, Subject
from kjbod_host.health.sources.descriptor_watch import Watch, read_text, reason_of
from kjbod_host.health.sysfs import SYS

_log = structlog.get_logger("kjbod.health")

# EXT4_ERR_* of the kernel's fs/ext4/ext4.h: what s_last_error_errcode holds is not an errno.
_ERROR_CODES = (
    *("", "unknown", "EIO", "ENOMEM", "EFSBADCRC", "EFSCORRUPTED", "ENOSPC", "ENOKEY", "EROFS", "EFBIG", "EEXIST"),
    *("ERANGE", "EOVERFLOW", "EBUSY", "ENOTDIR", "ENOTEMPTY", "ESHUTDOWN", "EFAULT"),
)
_UNMOUNTED = -1


class _FileSystem(Struct):
    """An ext4 file system under watch."""

    directory: Path
    paths: tuple[str, ...]
    fd: int
    errors: int
    warnings: int


def describe_error(directory: Path, which: str) -> str:
    """The ``first`` or ``last`` error as the super block has it: ``"ext4_lookup:1855: EFSCORRUPTED, inode 12"``.

    Args:
        directory: ``/sys/fs/ext4/DEVICE``.
        which: ``"first"`` or ``"last"``.

    Returns:
        Empty where the kernel does not tell.
    """

    def number(field: str) -> int:
        text = read_text(directory / f"{which}_error_{field}") or "0"
        return int(text) if text.isdecimal() else 0

    function = read_text(directory / f"{which}_error_func")
    if function is None:
        return ""
    code = number("errcode")
    details = [_ERROR_CODES[code] if code < len(_ERROR_CODES) else f"error code {code}"]
    details += [f"inode {number('ino')}"] if number("ino") else []
    details += [f"block {number('block')}"] if number("block") else []
    return f"{function}:{number('line')}: {', '.join(filter(None, details))}".removesuffix(": ")


class Ext4Errors:
    """Implements ``KernelSource``; see the head of this module."""

    name = "ext4-errors"

    def __init__(self, sys: Path = SYS) -> None:
        self._sys = sys
        self._file_systems: list[_FileSystem] = []
        self._epoll: select.epoll | None = None
        self._watch: Watch | None = None

    def start(self, subjects: Sequence[Subject], on_event: Callable[[KernelEvent], None]) -> Mapping[str, str | None]:
        self._on_event = on_event
        result: dict[str, str | None] = {}
        by_directory: dict[Path, list[str]] = {}
        for subject in subjects:
            directory, reason = self._directory_of(subject)
            result[subject.path] = reason
            if directory is not None:
                by_directory.setdefault(directory, []).append(subject.path)
        for directory, paths in by_directory.items():
            try:
                self._add(directory, tuple(paths))
            except (OSError, ValueError) as error:
                reason = reason_of(error) if isinstance(error, OSError) else f"{directory}: {error}"
                result.update(dict.fromkeys(paths, reason))
        if self._epoll is not None:
            self._watch = Watch(self._epoll.fileno(), self._woken)
        return result

    def _directory_of(self, subject: Subject) -> tuple[Path | None, str | None]:
        if subject.mount is None:
            return None, "its mount is not in the mount table"
        if subject.mount.fstype != "ext4":
            return None, f"{subject.mount.fstype} has no such counter"
        try:
            device = (self._sys / "dev" / "block" / subject.mount.device).resolve(strict=True)
        except OSError as error:
            return None, reason_of(error)
        return self._sys / "fs" / "ext4" / device.name, None

    def _add(self, directory: Path, paths: tuple[str, ...]) -> None:
        fd = os.open(directory / "errors_count", os.O_RDONLY | os.O_CLOEXEC)
        try:
            errors = int(os.pread(fd, 64, 0))
            if self._epoll is None:
                self._epoll = select.epoll()
            # POLLIN is always there; a change is POLLPRI and POLLERR (sysfs_notify).
            self._epoll.register(fd, select.EPOLLPRI | select.EPOLLERR)
        except BaseException:
            os.close(fd)
            raise
        self._epoll.poll(0)
        self._file_systems.append(_FileSystem(directory, paths, fd, errors, _count(directory, "warning_count")))
        if errors:
            last = describe_error(directory, "last")
            _log.warning("health.ext4.errors", paths=list(paths), device=directory.name, errors_count=errors, last=last)

    def _woken(self) -> None:
        if self._epoll is not None:
            self._epoll.poll(0)  # clears its ready list; the outer poll has consumed what it would say
        self.poll()

    def poll(self) -> None:
        for system in list(self._file_systems):
            try:
                errors = int(os.pread(system.fd, 64, 0))
            except (OSError, ValueError):
                errors = _UNMOUNTED
            if errors == _UNMOUNTED:
                self._drop(system)  # or the epoll would report it for ever
                self._tell(system, f"the ext4 file system on {system.directory.name} is no longer mounted")
                continue
            self._compare(system, errors)

    def _compare(self, system: _FileSystem, errors: int) -> None:
        before, system.errors = system.errors, errors
        if errors > before:
            told = [
                f"{which} {text}" for which in ("last", "first") if (text := describe_error(system.directory, which))
            ]
            where = f"; {'; '.join(told)}" if told else ""
            self._tell(system, f"ext4 recorded an error (errors_count {errors}, was {before}){where}", damage=True)
        warnings = _count(system.directory, "warning_count")
        if warnings > system.warnings:
            text = f"ext4 warned of a failed write-back or the like (warning_count {warnings}, was {system.warnings})"
            self._tell(system, text)
        system.warnings = warnings

    def _tell(self, system: _FileSystem, text: str, *, damage: bool = False) -> None:
        self._on_event(KernelEvent(source=self.name, paths=system.paths, text=text, damage=damage))

    def _drop(self, system: _FileSystem) -> None:
        self._file_systems.remove(system)
        if self._epoll is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(system.fd)
        os.close(system.fd)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        for system in list(self._file_systems):
            self._drop(system)
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None


def _count(directory: Path, name: str) -> int:
    text = read_text(directory / name) or "0"
    return int(text) if text.isdecimal() else 0

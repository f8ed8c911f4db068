"""Errors of the block layer and of file systems, from tracepoints that fire on errors only.

What each tells (all with the number of the device, so that an error finds its log directories):

    block_rq_error          a request failed, on any driver. Not rate limited, as the kernel's log is. Linux 5.18;
                            before that block_rq_complete, filtered in the kernel to those that failed
    filemap_set_wb_err      the write-back of a file failed: its data are lost, and only the next fsync says so
    ext4_shutdown           the file system was shut down
    xfs_force_shutdown      the same, with the reason
    xfs_buf_ioerror         XFS could not read or write metadata, or found a wrong checksum or form in it. XFS has no
                            counter of errors, and no FAN_FS_ERROR: this is all it tells while it works on
    xfs_*_mark_corrupt      XFS found something damaged at run time

Nothing fires on a healthy machine, so it costs nothing. A refused discard (``D``, EOPNOTSUPP) is no error. The kernel
filters by device; other disks of the host wake nobody.

They are enabled in a trace instance of our own, ``TRACEFS/instances/kjbod-PID-0``, so that nobody else's tracing is
touched; it is removed at the end, and one that a killed process left behind at the next start. (An instance in use
cannot be removed, by its open trace_pipe: the kernel says EBUSY. Process ids say nothing here, tracefs does not know
pid namespaces.) Where ``TRACEFS/instances/kjbod`` exists and can be used, it is used and not removed: an administrator
made it for a service without privileges, see :mod:`kjbod_host.health.sources.linux`.

Its buffer has 16 KiB for each CPU, and overwrites what is oldest. NVMe multipath: the paths are hidden devices without
a number, so a failed request that was tried again on another path is not seen.
"""

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from kjbod_host.health.mountinfo import MOUNTINFO, read_mounts
from kjbod_host.health.sources.api import KernelEvent, Subject
from kjbod_host.health.sources.descriptor_watch import Watch, errno_text, reason_of
from kjbod_host.health.sources.device_stack import DeviceMap
from kjbod_host.health.sysfs import SYS

INSTANCE = "kjbod"
"""Name of the instance that an administrator may make; our own have ``-PID-0`` after it."""
BUFFER_KIB = 16
"""For each CPU."""
READ_BYTES = 16 * 1024
"""Read in one wake-up, at most: some 150 errors, half a millisecond."""
_STALE = f"{INSTANCE}-[0-9]*-[0-9]*"
"""Names of ours: another name after the first dash is an administrator's, or another tool's."""
STALE_MAX = 8
"""Instances of killed processes that are removed at a start; each takes the kernel some 30 ms."""
_LINE_BYTES_MAX = 4096
_NAMES_MAX = 4


class _Tracepoint(Struct, frozen=True):
    """A tracepoint: its directory below ``events``, its field with the device, which of its events are errors."""

    path: str
    device_field: str = "dev"
    condition: str = ""


_REQUEST_ERROR = 'error != -95 && !(rwbs ~ "D*")'
# Of each group the first that this kernel has.
_TRACEPOINTS = (
    (
        _Tracepoint("block/block_rq_error", condition=_REQUEST_ERROR),
        _Tracepoint("block/block_rq_complete", condition=f"error != 0 && {_REQUEST_ERROR}"),
    ),
    (_Tracepoint("filemap/filemap_set_wb_err", device_field="s_dev"),),
    (_Tracepoint("ext4/ext4_shutdown"),),
    (_Tracepoint("xfs/xfs_force_shutdown"),),
    (_Tracepoint("xfs/xfs_buf_ioerror", condition="error != 0"),),
    (_Tracepoint("xfs/xfs_fs_mark_corrupt"),),
    (_Tracepoint("xfs/xfs_group_mark_corrupt"), _Tracepoint("xfs/xfs_ag_mark_corrupt")),
    (_Tracepoint("xfs/xfs_inode_mark_corrupt"),),
)


class TraceError(Struct, frozen=True):
    """The content of one line.

    Attributes:
        device: ``"major:minor"``, of the disk for a request, else of the file system.
        text: for people: ``"a write of 8 sectors at sector 2048 failed: EIO"``.
        damage: a file system says that its own structures are damaged.
        kind: name of the tracepoint.
    """

    device: str
    text: str
    kind: str
    damage: bool = False


# "  kworker/0:1H-123   [000] .....  1234.567890: block_rq_error: 8,0 W () 8 + 8 none,0,0 [-5]"
_LINE = re.compile(r"\s\d+\.\d+: (\w+): (.*)$")
_REQUEST = re.compile(r"(\d+),(\d+) (\w+) \(.*\) (\d+) \+ (\d+) .*\[(-?\d+)\]$")
_DEVICE = re.compile(r"dev[ =](\d+)[:,](\d+) ?(.*)$")
_OPERATIONS = {"R": "read", "W": "write", "F": "flush", "Z": "zone command"}
_BAD_STRUCTURE = frozenset({errno.EUCLEAN, errno.EBADMSG})  # EFSCORRUPTED and EFSBADCRC inside the kernel


def parse_line(line: str) -> TraceError | None:
    """The error that a line of trace_pipe tells; None for any other line."""
    found = _LINE.search(line)
    if found is None:
        return None
    kind, said = found.groups()
    if kind in ("block_rq_error", "block_rq_complete"):
        return _request_error(kind, said)
    device = _DEVICE.match(said)
    if device is None:
        return None
    number, rest = f"{device[1]}:{device[2]}", device[3]
    fields = dict(zip(rest.split()[::2], rest.split()[1::2], strict=False))
    if kind == "filemap_set_wb_err":
        inode = int(found[1], 16) if (found := re.search(r"ino=0x([0-9a-f]+)", rest)) else 0
        return TraceError(number, f"the write-back of inode {inode} failed", kind)
    if kind == "ext4_shutdown":
        return TraceError(number, "ext4 was shut down", kind)
    if kind == "xfs_force_shutdown":
        damage = "corrupt" in rest
        return TraceError(number, f"XFS shut down ({fields.get('flags', '?')})", kind, damage)
    if kind == "xfs_buf_ioerror":
        code = int(found[1]) if (found := re.search(r"\berror (-?\d+)", rest)) else 0
        where = f"XFS met an error in metadata at sector {int(fields.get('daddr', '0'), 16)}"
        return TraceError(number, f"{where}: {errno_text(code)}", kind, abs(code) in _BAD_STRUCTURE) if code else None
    if kind.startswith("xfs_") and kind.endswith("_mark_corrupt"):
        return TraceError(number, f"XFS found damage ({kind}: {rest})", kind, damage=True)
    return None


def _request_error(kind: str, said: str) -> TraceError | None:
    found = _REQUEST.match(said)
    if found is None:
        return None
    major, minor, rwbs, sector, count, code = found.groups()
    if rwbs.startswith("D") or int(code) in (0, -errno.EOPNOTSUPP):
        return None
    # A flush before a write is written "FW".
    what = _OPERATIONS.get(rwbs.removeprefix("F")[:1] or "F", f"request {rwbs}")
    where = "" if what == "flush" else f" of {count} sectors at sector {sector}"
    return TraceError(f"{major}:{minor}", f"a {what}{where} failed: {errno_text(int(code))}", kind)


class BlockErrors:
    """Implements ``KernelSource``; see the head of this module."""

    name = "block-errors"

    def __init__(self, sys: Path = SYS, mountinfo: str = MOUNTINFO) -> None:
        self._sys = sys
        self._mountinfo = mountinfo
        self._paths: dict[str, tuple[str, ...]] = {}
        self._labels: dict[str, str] = {}
        self._instance: TraceInstance | None = None
        self._watch: Watch | None = None
        self._rest = b""

    def start(self, subjects: Sequence[Subject], on_event: Callable[[KernelEvent], None]) -> Mapping[str, str | None]:
        self._on_event = on_event
        result: dict[str, str | None] = {s.path: "its mount is not in the mount table" for s in subjects if not s.mount}
        mounted = [subject for subject in subjects if subject.mount is not None]
        if not mounted:
            return result
        self._locate(mounted)
        try:
            tracefs = find_tracefs(self._mountinfo)
            self._instance = TraceInstance(tracefs, frozenset(self._paths))
        except OSError as error:
            return result | dict.fromkeys((subject.path for subject in mounted), _why_not(error))
        self._watch = Watch(self._instance.fd, self._readable)
        return result | dict.fromkeys(subject.path for subject in mounted)

    def _locate(self, subjects: Sequence[Subject]) -> None:
        """Log directories that a number is about: that of a device, or that of a file system without one (btrfs)."""
        devices = DeviceMap(subjects, self._sys)
        self._paths, self._labels, self._rest = {}, {}, b""
        for number, name in devices.numbers.items():
            self._paths[number], self._labels[number] = devices.names[name], name
        for subject in subjects:
            assert subject.mount is not None
            number = subject.mount.device
            if number not in devices.numbers:
                self._paths[number] = (*self._paths.get(number, ()), subject.path)
                self._labels[number] = subject.mount.fstype

    def poll(self) -> None:
        """Do nothing: every error wakes the loop (``KernelSource.poll``)."""

    def _readable(self) -> None:
        lines = self._read_lines()
        first: dict[tuple[str, str, bool], TraceError] = {}
        counts: dict[tuple[str, str, bool], int] = {}
        for line in lines:
            error = parse_line(line)
            if error is not None and error.device in self._paths:
                key = (error.device, error.kind, error.damage)
                first.setdefault(key, error)
                counts[key] = counts.get(key, 0) + 1
        for key, error in first.items():
            more = f" (and {counts[key] - 1} more)" if counts[key] > 1 else ""
            text = f"{self._labels[error.device]} {error.device}: {error.text}{more}"
            paths = self._paths[error.device]
            self._on_event(KernelEvent(source=self.name, paths=paths, text=text, damage=error.damage))

    def _read_lines(self) -> list[str]:
        """Whole lines from at most READ_BYTES; the rest waits for the next wake-up."""
        data = self._rest
        limit = len(data) + READ_BYTES
        while self._instance is not None and len(data) < limit:
            try:
                chunk = os.read(self._instance.fd, READ_BYTES)
            except OSError:  # BlockingIOError: that was all
                break
            if not chunk:
                break
            data += chunk
        whole, _, self._rest = data.rpartition(b"\n")
        self._rest = self._rest[-_LINE_BYTES_MAX:]
        return whole.decode("utf-8", "replace").splitlines()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._instance is not None:
            self._instance.close()
            self._instance = None


class TraceInstance:
    """A trace instance with our tracepoints enabled for some devices, and its open trace_pipe.

    Takes the kernel some 50 ms to make and 40 ms to remove.

    Attributes:
        fd: trace_pipe, non-blocking.

    Raises:
        OSError: it cannot be had.
    """

    def __init__(self, tracefs: Path, numbers: frozenset[str]) -> None:
        self._instances = tracefs / "instances"
        self._own = False
        self.fd = -1
        self._remove_stale()
        try:
            self._directory = self._instances / INSTANCE
            self._open()
        except OSError:  # not there, not ours, or another agent uses it
            self._make()
        try:
            self._set_up(numbers)
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        for attempt in range(_NAMES_MAX):
            self._directory = self._instances / f"{INSTANCE}-{os.getpid()}-{attempt}"
            try:
                self._directory.mkdir(mode=0o700)
                self._own = True
                self._open()
            except OSError as error:
                self.close()
                # Agents in two containers may have the same pid; another one's start may have taken this for a stale
                # one before it was open.
                if error.errno in (errno.EEXIST, errno.ENOENT) and attempt + 1 < _NAMES_MAX:
                    continue
                raise
            return

    def _remove_stale(self) -> None:
        with contextlib.suppress(OSError):
            for directory in sorted(self._instances.glob(_STALE))[:STALE_MAX]:
                with contextlib.suppress(OSError):  # EBUSY: somebody uses it
                    directory.rmdir()

    def _open(self) -> None:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(self._directory / "trace_pipe", flags)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # two readers would take each other's lines
            self._write("buffer_size_kb", str(BUFFER_KIB))
            self._write("trace", "")  # whatever is left from before
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd

    def _set_up(self, numbers: frozenset[str]) -> None:
        enabled = [next(self._enabled(group, numbers), None) for group in _TRACEPOINTS]
        if enabled[0] is None:
            raise OSError(errno.ENOENT, "has no tracepoint for failed requests", str(self._directory / "events/block"))
        self._write("tracing_on", "1")

    def _enabled(self, group: Sequence[_Tracepoint], numbers: frozenset[str]) -> Iterator[_Tracepoint]:
        """Enables the first that there is; none is enabled for more than is asked for."""
        for tracepoint in group:
            events = f"events/{tracepoint.path}"
            try:
                self._write(f"{events}/filter", _filter(tracepoint, numbers))
                self._write(f"{events}/enable", "1")
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EINVAL):  # EINVAL: the filter names a field it has not
                    raise
                continue
            yield tracepoint

    def _write(self, name: str, text: str) -> None:
        path = self._directory / name
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            if text:
                os.write(fd, text.encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        finally:
            os.close(fd)

    def close(self) -> None:
        """Stop tracing and remove the instance, if it is our own."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                self._write("events/enable", "0")
            os.close(self.fd)
            self.fd = -1
        if self._own:
            with contextlib.suppress(OSError):
                self._directory.rmdir()
            self._own = False


def _filter(tracepoint: _Tracepoint, numbers: frozenset[str]) -> str:
    """In the kernel's language, where a device number is major << 20 | minor."""
    devices = []
    for number in sorted(numbers):
        major, _, minor = number.partition(":")
        devices.append(f"{tracepoint.device_field} == {int(major) << 20 | int(minor)}")
    chosen = f"({' || '.join(devices)})"
    return f"{tracepoint.condition} && {chosen}" if tracepoint.condition else chosen


def find_tracefs(mountinfo: str = MOUNTINFO) -> Path:
    """The mount point of tracefs.

    Raises:
        FileNotFoundError: nowhere.
    """
    for mount in read_mounts(mountinfo):
        if mount.fstype == "tracefs" and mount.root == "/":  # systemd mounts parts of it over it: ReadWritePaths=
            return Path(mount.mount_point)
    raise FileNotFoundError(errno.ENOENT, "tracefs is not mounted (mount -t tracefs tracefs /sys/kernel/tracing)")


def _why_not(error: OSError) -> str:
    if error.errno == errno.EACCES:
        return f"{reason_of(error)}: needs CAP_DAC_OVERRIDE, or an instance made for it, instances/{INSTANCE}"
    if error.errno == errno.EROFS:
        return f"{reason_of(error)} (systemd: ReadWritePaths=-/sys/kernel/tracing/instances/{INSTANCE})"
    return reason_of(error)

"""Faults, their targets, and the records by which they are undone.

A record is written and fsynced before the action. So ``undo`` has all data that it needs after any end of the injector,
even SIGKILL between two system calls. An undo checks the actual state, not the progress of the injector, so it can be
repeated.
"""

import contextlib
import fcntl
import json
import os
import re
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from kjbod.faults.faults_error import FaultsError
from kjbod.faults.fusedisk import DiskControl
from kjbod.faults.program import PROGRAM, typed
from kjbod.files import make_directories, write_atomically

if TYPE_CHECKING:
    from kjbod.faults.disks import RealDisk

DEFAULT_STATE_DIR = Path("/var/lib/kjbod-faults")
"""Not below /run: an immutable directory or a ballast file survives a reboot, and so must its record."""
CLAIM_TIMEOUT_S = 10.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_RECORD = ".fault"
_ID = re.compile(r"[0-9a-f]{6}")

Options = dict[str, Any]


def boot_id() -> str:
    """Return the id of this boot, which is different after each boot."""
    return _BOOT_ID.read_text().strip()


class Expectation(Struct, frozen=True):
    """The agent's expected reaction to a fault.

    Attributes:
        states: correct final states, the ideal one first.
        within_ms: time from the fault to that state at default settings, on an idle disk.
        why: reason if the ideal state is not ``failed``, or if several are correct; else empty.
    """

    states: tuple[str, ...]
    within_ms: int
    why: str = ""


class Target(Struct, frozen=True):
    """The disk to break.

    Attributes:
        log_dir: the log directory, on :attr:`mount_point` or below.
        mount_point: mount point of the file system.
        fstype: type of the file system, such as ``ext4``.
        disk: remote control of a scratch disk; None for other disks.
        device: block device at the time of the injection.
    """

    log_dir: Path
    mount_point: Path
    fstype: str
    disk: DiskControl | None = None
    device: Path | None = None

    @classmethod
    def of(cls, disk: "RealDisk") -> Self:
        """Return the target for a :class:`~kjbod.faults.disks.RealDisk`."""
        return cls(disk.log_dir, disk.mount_point, disk.fstype, DiskControl(disk.directory), disk.device)

    @property
    def control(self) -> DiskControl:
        """Return the remote control. Raises :class:`FaultsError` if the disk is not a scratch disk."""
        if self.disk is None:
            raise FaultsError(f"{self.mount_point} is not a scratch disk: only those have a remote control")
        return self.disk

    def to_json(self) -> dict[str, str | None]:
        return {
            "log_dir": str(self.log_dir),
            "mount_point": str(self.mount_point),
            "fstype": self.fstype,
            "disk": None if self.disk is None else str(self.disk.directory),
            "device": None if self.device is None else str(self.device),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, str | None]) -> Self:
        disk, device = values["disk"], values["device"]
        return cls(
            Path(values["log_dir"] or ""),
            Path(values["mount_point"] or ""),
            values["fstype"] or "",
            None if disk is None else DiskControl(Path(disk)),
            None if device is None else Path(device),
        )


class Injection(Struct, frozen=True, kw_only=True):
    """An injected fault, with all data for its undo.

    Attributes:
        options: options that the caller chose.
        details: data that the fault noted before the action.
        done: whether the action was finished.
        since_ms: wall clock, when the record was made.
        began_ms: wall clock just before the action; 0 until it is finished.
        ended_ms: wall clock just after the action.
        until_ms: wall clock time of the automatic undo; None: never.
        undo_error: reason why the last undo failed; empty if none was tried.
        pid: process id of the injector.
        boot: the boot in which it was injected.
    """

    id: str
    fault: str
    target: Target
    state_dir: Path
    options: Options = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    done: bool = False
    since_ms: float = 0
    began_ms: float = 0
    ended_ms: float = 0
    until_ms: float | None = None
    undo_error: str = ""
    pid: int = 0
    boot: str = ""

    @property
    def place(self) -> Path:
        """Return the injection's own directory for mounts; see :func:`make_place`."""
        return self.state_dir / f"{self.id}.place"

    @property
    def other_place(self) -> Path:
        """Return a second such directory."""
        return self.state_dir / f"{self.id}.other"

    @property
    def hidden_name(self) -> str:
        """Return the name of files that the injection puts on the disk."""
        return f".kjbod-fault-{self.id}"

    @property
    def record(self) -> Path:
        """Return the path of the record."""
        return self.state_dir / f"{self.id}{_RECORD}"

    @property
    def log(self) -> Path:
        """Return the path of the watchdog's log, which is locked while the watchdog lives."""
        return self.state_dir / f"{self.id}.log"

    @property
    def undo_command(self) -> str:
        """Return the command that an operator types to undo the injection."""
        where = "" if self.state_dir == DEFAULT_STATE_DIR else f" --state-dir {shlex.quote(str(self.state_dir))}"
        return f"{typed()} undo {self.id}{where}"

    def save(self) -> None:
        """Write the record, durably. Raises :class:`FaultsError`."""
        values = asdict(replace(self, target=Target(Path(), Path(), "")))
        values |= {"target": self.target.to_json(), "state_dir": None}
        text = json.dumps(values, indent=1)
        try:
            write_atomically(self.record, text.encode())
        except OSError as error:
            raise FaultsError(f"{self.record}: {error.strerror}: nothing is injected without a record") from None

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Ensure that only one process at a time injects or undoes this fault. Raises :class:`FaultsError` if another
        one does."""
        path = self.state_dir / f"{self.id}.lock"
        # Opened read-only, and made before the record: an undo needs no space and no writable file system.
        with _opened(path, os.O_RDONLY | os.O_CREAT) as lock:
            _lock(
                lock,
                f"fault {self.id} ({self.fault}): another process is still at it, perhaps stuck in the kernel: undo "
                f"the other faults of this disk, end process {self.pid}, then undo it again",
            )
            yield

    def forget(self) -> None:
        """Remove the record. Raises :class:`FaultsError` if that fails."""
        try:
            for place in (self.place, self.other_place):
                with contextlib.suppress(FileNotFoundError):
                    place.rmdir()
            self.record.unlink(missing_ok=True)
            for suffix in (".log", ".lock"):
                (self.state_dir / f"{self.id}{suffix}").unlink(missing_ok=True)
        except OSError as error:
            raise FaultsError(
                f"{error.filename}: {error.strerror}: {self.fault} is undone, but its record cannot be removed; "
                f"later: {self.undo_command}"
            ) from None


Step = Callable[[Injection], None]


def _nothing(_injection: Injection) -> None:
    return


def _no_details(_injection: Injection) -> dict[str, Any]:
    return {}


class Fault(Struct, frozen=True, kw_only=True):
    """A way in which a disk dies, hangs, lies or fills.

    Attributes:
        name: as in ``kjbod faults inject NAME``.
        title: short title.
        does: one line: the effect.
        needs: one line: the requirements.
        says: one line: the report expected from the agent.
        layer: ``device``, ``file-system``, ``mount`` or ``directory``.
        expectations: expected reactions by file system; only file systems to which the fault applies.
        not_on: reasons for the other file systems.
        while_busy: whether the fault is possible while a file is open for writing, as under a running agent.
        scratch_only: whether the fault is refused on a disk that is not a scratch disk.
        survives_reboot: whether the fault remains after a reboot.
        options: default values of the options.
        prepare: reads the data for the undo, and changes nothing.
        arm: harmless preparation before the action.
        deed: the fault itself.
        heal: undoes the fault, whatever stage it reached; can be repeated.
    """

    name: str
    title: str
    does: str
    needs: str
    says: str
    layer: str
    expectations: Mapping[str, Expectation]
    not_on: Mapping[str, str] = field(default_factory=dict)
    while_busy: bool = True
    scratch_only: bool = True
    survives_reboot: bool = False
    options: Mapping[str, int] = field(default_factory=dict)
    prepare: Callable[[Injection], dict[str, Any]] = _no_details
    arm: Step = _nothing
    deed: Step
    heal: Step

    @property
    def file_systems(self) -> frozenset[str]:
        """Return the file systems to which the fault applies."""
        return frozenset(self.expectations)

    def expect(self, fstype: str) -> Expectation:
        """Return the agent's expected reaction on a file system. Raises :class:`FaultsError` with the reason if the
        fault does not apply."""
        try:
            return self.expectations[fstype]
        except KeyError:
            reason = self.not_on.get(fstype, f"known on {', '.join(sorted(self.expectations))}")
            raise FaultsError(f"{self.name} does not exist on {fstype}: {reason}") from None


def read_records(state_dir: Path) -> list[Injection]:
    """Return all injections on record, oldest first. Raises :class:`FaultsError` for an unreadable record."""
    found, torn = read_whole_records(state_dir)
    if torn:
        raise FaultsError(torn[0])
    return found


def read_whole_records(state_dir: Path) -> tuple[list[Injection], list[str]]:
    """Return the injections, oldest first, and a line for each unreadable record."""
    require_own(state_dir)
    found, torn = [], []
    for path in state_dir.glob(f"*{_RECORD}"):
        try:
            injection = read_record(path)
        except FaultsError as error:
            torn.append(str(error))
        else:
            found += [] if injection is None else [injection]
    return sorted(found, key=lambda injection: injection.since_ms), torn


def read_record(path: Path) -> Injection | None:
    """Return an injection; None if it was undone since. Raises :class:`FaultsError`."""
    if (values := was_read(path)) is None:
        return None
    try:
        values |= {"target": Target.from_json(values["target"]), "state_dir": path.parent}
        return Injection(**values)
    except (KeyError, TypeError, AttributeError) as error:
        raise FaultsError(f"{path}: not a record of {PROGRAM}: {error}") from None


def was_read(path: Path) -> dict[str, Any] | None:
    """Return the recorded injection; None if it was removed during the read. Raises :class:`FaultsError`."""
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FaultsError(f"{path}: not a record of {PROGRAM}: {error}") from None
    if not isinstance(values, dict) or values.get("id") != path.stem or not _ID.fullmatch(path.stem):
        raise FaultsError(f"{path}: not a record of {PROGRAM}: it has another id than its name")
    return values


def make_place(injection: Injection, place: Path | None = None) -> Path:
    """Create the directory :attr:`Injection.place`, or another; it is removed with the record."""
    place = place or injection.place
    place.mkdir(mode=0o700, exist_ok=True)
    return place


@contextlib.contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    """Ensure that only one process at a time makes a record. Raises :class:`FaultsError`."""
    with _opened(state_dir, os.O_RDONLY | os.O_DIRECTORY) as lock:
        _lock(lock, f"{state_dir}: another {PROGRAM} is at work: try again")
        yield


def _lock(fd: int, refusal: str) -> None:
    """Wait for the lock of an open file, at most CLAIM_TIMEOUT_S. Raises :class:`FaultsError` with ``refusal``."""
    deadline = time.monotonic() + CLAIM_TIMEOUT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise FaultsError(refusal) from None
            time.sleep(0.02)
        else:
            return


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FaultsError(f"{path}: {error.strerror}") from None
    try:
        yield fd
    finally:
        os.close(fd)


def require_own(state_dir: Path) -> None:
    """Refuse records that other users could have written, because root obeys them. Raises :class:`FaultsError`."""
    try:
        status = state_dir.stat()
    except OSError:
        return
    if stat.S_ISDIR(status.st_mode) and (status.st_uid not in (0, os.geteuid()) or status.st_mode & stat.S_IWOTH):
        raise FaultsError(f"{state_dir}: others may write there: choose a directory of your own with --state-dir")


def make_state_dir(state_dir: Path) -> None:
    """Make the directory of the records. Raises :class:`FaultsError`."""
    try:
        make_directories(state_dir)
    except OSError as error:
        raise FaultsError(f"{state_dir}: {error.strerror}: choose another place with --state-dir") from None
    require_own(state_dir)
    if not os.access(state_dir, os.W_OK):
        raise FaultsError(f"{state_dir}: cannot be written: choose another place with --state-dir, or use sudo")

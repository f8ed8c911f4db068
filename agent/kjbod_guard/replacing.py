"""The shell of ``kjbod guard replace``: asks the operator, runs commands, waits, and keeps the state in a file."""

import contextlib
import fcntl
import grp
import os
import pwd
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
from msgspec.structs import replace

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.errors import KjbodError
from kjbod.files import fsync_directory, read_file, write_atomically
from kjbod.output import Printer, safe
from kjbod.runtime.control_socket import ControlClient, NoAgentError
from kjbod.runtime.procfs import unescape
from kjbod_guard import replacement
from kjbod_guard.helper_directory import MASK_SOURCE
from kjbod_guard.replacement import Facts, Replacement, Stage
from kjbod_host.health.mountinfo import read_mounts
from kjbod_host.health.mounts import mount_of

FILE_NAME: Final = "guard-replacement.json"
FILE_BYTES_MAX: Final = 64 * 1024
FSTAB: Final = Path("/etc/fstab")
POLL_S: Final = 1.0
STUCK_AFTER_MS: Final = 60_000
"""Time of a stop after which a hint says that the broker may be stuck on the disk."""


class Replacing:
    """A replacement at the terminal.

    Args:
        client: of the guard.
        config: the broker's.
        files: arguments that name the files of broker and guard.
        clock: the time.
    """

    def __init__(self, client: ControlClient, config: Config, files: Sequence[str], clock: Clock) -> None:
        self._client = client
        self._config = config
        self._files = files
        self._clock = clock
        self._dynamic = "controller" in config.process_roles and not config.controller_quorum_voters
        self._file = Path(config.kjbod_state_dir) / FILE_NAME
        self._out = Printer()

    @property
    def has_begun(self) -> bool:
        """Whether a replacement has begun, and can continue."""
        return self._file.exists()

    def show(self, directory: str) -> None:
        """Print the remaining stages, and do nothing.

        Raises:
            KjbodError: there is nothing to replace, or the guard does not answer.
        """
        now: Replacement | None = self._kept(directory) or self._begin(directory)
        while now is not None:
            self._say(now)
            now = replacement.after(now)

    def run(self, directory: str) -> None:
        """Go through the stages with a person.

        Raises:
            KjbodError: there is nothing to replace, or the replacement cannot continue.
            click.Abort: the person has stopped it.
        """
        with self._alone():
            now = self._kept(directory)
            if now is None:
                now = self._begin(directory)
                self._warn(now)
            else:
                self._out(safe(f"Replacement of {now.disk}: goes on."))
            while now is not None:
                self._keep(now)
                now = self._stage(now)
            self._file.unlink()
            fsync_directory(self._file.parent)
        self._out(safe(f"{directory}: replaced. All replicas of the broker are in sync."))

    # ------------------------------------------------------------------------------------------------------ the stages

    def _stage(self, now: Replacement) -> Replacement | None:
        """Do one stage; return the replacement after it."""
        if replacement.is_over(now, self._look(now)):
            return replacement.after(now)
        self._say(now)
        match now.stage:
            case Stage.SWAP:
                return self._swap(now)
            case Stage.PREPARE:
                return self._prepare(now)
        commands = self._commands(now)
        while commands and not self._do(now, commands):
            pass
        if now.stage not in (Stage.RELEASE, Stage.FORMAT):
            self._wait(now)
        return replacement.after(now)

    def _swap(self, now: Replacement) -> Replacement | None:
        while True:
            said = click.prompt(f"Repeat {safe(now.proof)}; or type same, if this disk was repaired and stays")
            if (found := replacement.swapped(now, said)) is not None:
                return found
            self._out(safe(f"That is not {now.proof}. Look at the label of the disk in your hand."))

    def _prepare(self, now: Replacement) -> Replacement | None:
        while not self._look(now).is_mounted:
            click.prompt("Press Enter when that is done", default="", show_default=False)
            line = fstab_of(now.mount_point)
            if not replacement.stale_fstab(now, line):
                return replacement.after(replace(now, fstab=line))
            self._out(
                safe(f"/etc/fstab still names {line} for {now.mount_point}: the new file system has another UUID.")
            )
        return replacement.after(now)

    def _do(self, now: Replacement, commands: Sequence[replacement.Command]) -> bool:
        """Run the commands of a stage after a question; return whether all of them have succeeded."""
        if not click.confirm("Do it?", default=True):
            raise click.Abort
        if replacement.is_over(now, facts := self._look(now)):  # the operator has done it by hand
            return True
        if (reason := replacement.why_not_begin(now, facts)) is not None:
            self._out(safe(reason))
            return False
        for name, question in replacement.QUESTIONS.items():
            if any(name in command for command in commands):
                said = click.prompt(question)
                commands = [tuple(said if one == name else one for one in command) for command in commands]
        return all(self._run(command) for command in commands)

    def _run(self, command: replacement.Command) -> bool:
        if command[:3] == ("kjbod", "guard", "release"):
            return self._release(command[-1])
        program = [str(Path(sys.executable).with_name("kjbod")) if command[0] == "kjbod" else command[0]]
        try:
            code = subprocess.run([*program, *command[1:]], check=False).returncode
        except OSError as error:
            self._out(safe(f"{command[0]}: {error.strerror}"))
            return command[:2] == ("systemctl", "daemon-reload")  # a host without systemd
        if code:
            self._out(safe(f"{shlex.join(command)}: exit code {code}"))
        return not code or command[:2] == ("systemctl", "daemon-reload")

    def _release(self, path: str) -> bool:
        try:
            answer = self._client.call("guard-release", path=path)
        except KjbodError as error:
            self._out(safe(str(error)))
            return False
        held = answer.get("held")
        self._out(safe(f"{path}: released" if held is None else f"{path}: the guard goes on holding it: {held}"))
        return True

    def _wait(self, now: Replacement) -> None:
        """Wait until the stage is over, without a limit."""
        said, began_ms, hinted = "", self._clock.monotonic_ms(), False
        while not replacement.is_over(now, facts := self._look(now)):
            text = facts.behind or "" if now.stage is Stage.SYNC else f"waiting: {now.stage}"
            if text != said:
                self._out(safe(f"  {text}"))
                said = text
            if now.stage is Stage.STOP and not hinted and self._clock.monotonic_ms() - began_ms > STUCK_AFTER_MS:
                kill = f"; or systemctl kill -s KILL {now.unit}" if now.unit else ""
                self._out(safe(f"  the broker still runs: a thread may wait for the disk: pull the disk{kill}"))
                hinted = True
            time.sleep(POLL_S)

    # -------------------------------------------------------------------------------------------------------- the facts

    def _look(self, now: Replacement) -> Facts:
        mounted = any(mount.mount_point == now.mount_point for mount in read_mounts())
        try:
            answer = self._client.call("status")
        except NoAgentError as error:
            return Facts(_runs(now.pid), False, mounted, str(error))
        seen = answer["broker"]["pid"] is not None
        return Facts(_runs(now.pid) or seen, seen, mounted, replacement.behind(answer, now.paths))

    def _begin(self, directory: str) -> Replacement:
        """Return a replacement that has not begun.

        Raises:
            KjbodError: the directory has no disk of its own, or no guard answers.
        """
        answer = self._client.call("status")
        if answer.get("role") != "guard":
            raise KjbodError("an agent answers here, and not a guard: see agent/README.md for its disks")
        rows = {row["path"]: row for row in answer["directories"]}
        if directory not in rows:
            raise KjbodError(f"{directory} is no log directory of this broker: give {' or '.join(rows)}")
        mounts = tuple(mount for mount in read_mounts() if mount.source != MASK_SOURCE)
        mount = mount_of(directory, mounts)
        if mount is None or mount.mount_point == "/":
            raise KjbodError(f"{directory} has no mount point of its own: kjbod guard release {directory} lists steps")
        row, pid = rows[directory], answer["broker"]["pid"]
        name = str(row["device"] or "").split(" ", 1)[0]
        return Replacement(
            version=replacement.VERSION,
            paths=(directory, *(path for path in rows if path != directory and mount_of(path, mounts) == mount)),
            mount_point=mount.mount_point,
            source=mount.source,
            fstype=mount.fstype,
            device=f"/dev/{name}" if name and ":" not in name else None,
            model=row["model"],
            serial=row["serial"],
            fstab=fstab_of(mount.mount_point),
            cluster_id=answer["cluster_id"] or replacement.CLUSTER_ID,
            pid=pid,
            unit=None if pid is None else unit_of(pid),
            owner=None if pid is None else owner_of(pid),
            # A guard that observes holds no disk.
            stage=Stage.RELEASE if answer["mode"] == "act" else Stage.STOP,
        )

    def _warn(self, now: Replacement) -> None:
        self._out(safe(f"Replacement of {now.disk}, mounted at {now.mount_point} ({now.fstype})."))
        row = next(row for row in self._client.call("status")["directories"] if row["path"] == now.paths[0])
        if row["verdict"] in ("online", "slow") and row["kafka"] == "online":
            self._out(safe(f"{now.paths[0]} is {row['verdict']}, and Kafka uses it."))
        if others := now.paths[1:]:
            self._out(safe(f"The disk also has {', '.join(others)}."))
        if not click.confirm("Begin?", default=False):
            raise click.Abort

    # --------------------------------------------------------------------------------------------------------- the file

    def _kept(self, directory: str) -> Replacement | None:
        """Return the replacement that has begun.

        Raises:
            KjbodError: the replacement is of another directory, or the file cannot be used.
        """
        try:
            found = replacement.decode(read_file(self._file, bytes_max=FILE_BYTES_MAX))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise KjbodError(f"{self._file}: {error.strerror}") from None
        except ValueError as error:
            raise KjbodError(f"{self._file}: {error}: remove the file to begin anew") from None
        if directory not in found.paths:
            raise KjbodError(
                f"the replacement of {found.paths[0]} is not complete (stage {found.stage}): finish it with "
                f"kjbod guard replace {found.paths[0]}, or remove {self._file} to give it up"
            )
        return found

    def _keep(self, now: Replacement) -> None:
        try:
            write_atomically(self._file, replacement.encode(now), mode=0o600)
        except OSError as error:
            raise KjbodError(f"{self._file}: {error.strerror}") from None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other terminals out. The lock is on the state directory, so it needs no lock file."""
        try:
            descriptor = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise KjbodError(f"{self._file.parent}: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise KjbodError("kjbod guard replace runs in another terminal on this host") from None
        finally:
            os.close(descriptor)

    def _commands(self, now: Replacement) -> list[replacement.Command]:
        return replacement.commands(now, self._files, str(self._config.source), dynamic=self._dynamic)

    def _say(self, now: Replacement) -> None:
        number = replacement.ORDER.index(now.stage) + 1
        first, *others = replacement.text(now)
        self._out(safe(f"[{number}/{len(replacement.ORDER)}] {first}"), *(f"  {safe(line)}" for line in others))
        self._out(*(f"  $ {safe(shlex.join(command))}" for command in self._commands(now)))


def fstab_of(mount_point: str, path: Path = FSTAB) -> str | None:
    """Return the first field of the line of ``/etc/fstab`` (fstab(5)) for a mount point; None: there is no line."""
    try:
        lines = path.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    fields = (line.split() for line in lines if not line.lstrip().startswith("#"))
    return next((one[0] for one in fields if len(one) > 1 and unescape(os.fsencode(one[1])) == mount_point), None)


def unit_of(pid: int, proc: Path = Path("/proc")) -> str | None:
    """Return the unit of systemd that a process belongs to; None: it belongs to none."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    names = (part for line in lines for part in line.rpartition(":")[2].split("/")[::-1])
    return next((name for name in names if name.endswith(".service") and not name.startswith("user@")), None)


def owner_of(pid: int, proc: Path = Path("/proc")) -> str | None:
    """Return ``USER:GROUP`` of a process; None: it has ended."""
    try:
        found = (proc / str(pid)).stat()
    except OSError:
        return None
    return f"{_named(pwd.getpwuid, found.st_uid)}:{_named(grp.getgrgid, found.st_gid)}"


def _named(look_up: Callable[[int], Any], number: int) -> str:
    try:
        return str(look_up(number)[0])
    except KeyError:
        return str(number)


def _runs(pid: int | None) -> bool:
    return pid is not None and Path(f"/proc/{pid}").exists()

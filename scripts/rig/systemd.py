"""A real systemd for tests of unit files: booted in 0.2 s, thrown away with everything it did. Linux, root.

It is PID 1 of mount, pid, uts, ipc and cgroup namespaces of its own, over an overlay of this machine's root: it has all
programs that are installed here, and what it writes goes to memory. Only the given units exist, beside one-line
stand-ins of the targets that systemd wants to see; that is why it boots so fast.

::

    with BootedSystemd([Path("systemd/kjbod-agent.service")], files={"/etc/kjbod/agent.properties": text}) as system:
        system.run("systemctl", "start", "kjbod-agent")
        system.show("kjbod-agent", "ActiveState", "NRestarts")
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from kjbod.faults import syscalls
from scripts.rig.processes import wait_until
from scripts.rig.rig_error import RigError

SYSTEMD = Path("/lib/systemd/systemd")
_TARGETS = ("basic", "sysinit", "shutdown", "umount", "local-fs", "network-online", "multi-user")
_UNITS = "run/systemd-units"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "console")
_BOOT_TIMEOUT_S = 30.0
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


def require_systemd() -> None:
    """Raise :class:`RigError`, one line for a person, when this machine cannot boot one."""
    if os.geteuid() != 0:
        raise RigError(f"booting a systemd needs root and this is uid {os.geteuid()}: run it with sudo")
    if not SYSTEMD.exists():
        raise RigError(f"{SYSTEMD}: not found (apt-get install systemd)")
    if os.uname().machine not in _SYS_PIVOT_ROOT:
        raise RigError(f"booting a systemd: the number of pivot_root(2) on {os.uname().machine} is not known here")
    if _cgroup_root() is None:
        raise RigError("booting a systemd needs a cgroup2 file system below /sys/fs/cgroup, writable")


def _cgroup_root() -> Path | None:
    """Mount point of cgroup2: alone, or beside version 1 (hybrid)."""
    for path in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
        if (path / "cgroup.procs").exists() and os.access(path, os.W_OK):
            return path
    return None


class BootedSystemd:
    """A running systemd; ends, with all it started, at the end of the ``with`` block.

    :param units: unit files, or directories of them.
    :param files: absolute path -> content of further files in its root, readable by everybody.
    :param links: absolute path -> target of symbolic links in its root.
    :param binds: path of this machine -> path in its root, for what lies on another file system than ``/``.
    :param more_units: absolute paths in its root of further directories in which it looks for units.
    """

    def __init__(
        self,
        units: Iterable[Path],
        *,
        files: Mapping[str, str] | None = None,
        links: Mapping[str, str] | None = None,
        binds: Mapping[Path, str] | None = None,
        more_units: Sequence[str] = (),
    ) -> None:
        require_systemd()
        self._directory = Path(tempfile.mkdtemp(prefix="kjbod-systemd-"))
        root = _cgroup_root()
        assert root is not None
        self._cgroup = root / self._directory.name
        self._cgroup.mkdir()
        self._log_path = self._directory / "systemd.log"
        plan = {
            "units": [str(path.resolve()) for path in units],
            "files": dict(files or {}),
            "links": dict(links or {}),
            "binds": {str(source): target for source, target in (binds or {}).items()},
            "unit_path": ":".join([f"/{_UNITS}", *more_units]),
            "reachable": sorted({sys.prefix, sys.base_prefix, str(Path(__file__).parents[2])}),
        }
        (self._directory / "plan.json").write_text(json.dumps(plan))
        try:
            self._boot()
        except BaseException:
            self.close()
            raise

    def _boot(self) -> None:
        enter = (
            'echo $$ > "$0/cgroup.procs" && exec "$@"'  # before unshare: it becomes the root of the cgroup namespace
        )
        unshare = ["unshare", "-m", "-p", "-f", "-u", "-i", "-C", "--kill-child", "--propagation", "private"]
        inner = [sys.executable, "-P", "-m", "scripts.rig.systemd", str(self._directory)]
        with open(self._log_path, "wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", enter, str(self._cgroup), *unshare, *inner],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )

        def state() -> str:
            if self._process.poll() is not None:
                raise RigError(f"systemd did not boot: {self.log().strip().rpartition(chr(10))[2] or 'no output'}")
            self._pid = self._find_pid()
            if not self._pid or Path(f"/proc/{self._pid}/exe").resolve().name != "systemd":
                return ""
            answer = self.run("systemctl", "is-system-running", check=False).stdout.strip()
            return answer if answer in ("running", "degraded") else ""

        wait_until(state, _BOOT_TIMEOUT_S, "systemd to boot")

    def _find_pid(self) -> int:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        with contextlib.suppress(OSError, IndexError):
            return int(children.read_text().split()[0])
        return 0

    def run(self, *command: str, check: bool = True, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command as root inside; :class:`RigError` with its last line unless it exits with 0."""
        enter = ["nsenter", "-t", str(self._pid), "-m", "-p", "-u", "-i", "-C", "-r", "-w"]
        try:
            result = subprocess.run(
                [*enter, *command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RigError(f"{' '.join(command)}: did not end in {timeout_s:g} s") from None
        if check and result.returncode:
            lines = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()
            raise RigError(f"{' '.join(command)}: exit code {result.returncode}: {lines[-1]}")
        return result

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """``systemctl show``: property -> value."""
        output = self.run("systemctl", "show", unit, "--property", ",".join(properties)).stdout
        return dict(line.split("=", 1) for line in output.splitlines())

    def read(self, path: str) -> str:
        """The content of a file inside; empty when there is none."""
        return self.run("cat", path, check=False).stdout

    def write(self, path: str, text: str) -> None:
        """Make or replace a file inside."""
        self.run("sh", "-c", 'printf %s "$1" > "$0"', path, text)

    def log(self) -> str:
        """Lines of systemd on its console."""
        return self._log_path.read_text(errors="replace")

    def close(self) -> None:
        """End it and everything in it, at once; nothing of it is left."""
        if hasattr(self, "_process"):
            if pid := self._find_pid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait(60)
        wait_until(self._remove_cgroup, 10, f"the processes in {self._cgroup} to end")
        shutil.rmtree(self._directory)

    def _remove_cgroup(self) -> bool:
        for directory, _, _ in os.walk(self._cgroup, topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()
        return not self._cgroup.exists()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# ------------------------------------------------------------------- from here on: inside, as PID 1, before systemd


def _mount_root(work: Path) -> Path:
    """An overlay of ``/`` whose changes go to memory."""
    syscalls.mount("tmpfs", work, "tmpfs", data="mode=755")
    upper, scratch, root = work / "upper", work / "work", work / "root"
    for directory in (upper, scratch, root):
        directory.mkdir()
    syscalls.mount("overlay", root, "overlay", data=f"lowerdir=/,upperdir={upper},workdir={scratch}")
    return root


def _mount_kernel_file_systems(root: Path) -> None:
    syscalls.mount("proc", root / "proc", "proc")
    syscalls.mount("sysfs", root / "sys", "sysfs")
    syscalls.mount("cgroup2", root / "sys/fs/cgroup", "cgroup2")
    syscalls.mount("tmpfs", root / "run", "tmpfs", data="mode=755")
    # An own /dev: in the machine's, services would leave their sockets behind.
    syscalls.mount("tmpfs", root / "dev", "tmpfs", data="mode=755")
    for name in _DEVICES:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(f"/dev/{name}")
            os.mknod(root / "dev" / name, status.st_mode, status.st_rdev)
            os.chmod(root / "dev" / name, status.st_mode & 0o777)
    for name, fstype, options in (("pts", "devpts", "newinstance,ptmxmode=0666"), ("shm", "tmpfs", "")):
        (root / "dev" / name).mkdir()
        syscalls.mount(fstype, root / "dev" / name, fstype, data=options)
    (root / "dev/ptmx").symlink_to("pts/ptmx")
    (root / "dev/fd").symlink_to("/proc/self/fd")


def _bind(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    syscalls.mount(str(source), target, "", syscalls.MS_BIND | syscalls.MS_REC)


def _make_reachable(root: Path, path: Path) -> None:
    """Let any user walk to ``path``: it may lie on another file system than ``/``, or below a private home."""
    inside = root / path.relative_to("/")
    if not inside.exists():
        _bind(path, inside)
        return
    for parent in (inside, *inside.parents):
        if parent == root:
            return
        os.chmod(parent, os.stat(parent).st_mode | 0o111)


def _install(root: Path, plan: dict[str, Any]) -> None:
    units = root / _UNITS
    units.mkdir()
    for target in _TARGETS:
        (units / f"{target}.target").write_text(f"[Unit]\nDescription={target}\nDefaultDependencies=no\n")
    for path in map(Path, plan["units"]):
        if path.is_dir():
            shutil.copytree(path, units, dirs_exist_ok=True)
        else:
            shutil.copy(path, units)
    for path in plan["reachable"]:
        _make_reachable(root, Path(path))
    for source, inside in plan["binds"].items():
        _bind(Path(source), root / inside.lstrip("/"))
    for name, text in plan["files"].items():
        file = root / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755 if text.startswith("#!") else 0o644)
    for name, target in plan["links"].items():
        link = root / name.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def _pivot_root(root: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    (root / "old").mkdir(exist_ok=True)
    os.chdir(root)
    if libc.syscall(_SYS_PIVOT_ROOT[os.uname().machine], b".", b"old") < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"pivot_root: {os.strerror(code)}")
    os.chdir("/")
    syscalls.umount(Path("/old"), syscalls.MNT_DETACH)
    # As on a real machine: what is mounted later reaches the mount namespaces of services, and nothing outside.
    syscalls.mount("none", Path("/"), "", syscalls.MS_REC | syscalls.MS_SHARED)


def main(directory: Path) -> NoReturn:
    """Build the root, move into it, and become systemd."""
    plan = json.loads((directory / "plan.json").read_text())
    work = directory / "root"
    work.mkdir()
    root = _mount_root(work)
    _mount_kernel_file_systems(root)
    _install(root, plan)
    _pivot_root(root)
    environment = {
        "container": "kjbod-test",  # keeps it from what only the machine's own systemd may do
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "SYSTEMD_UNIT_PATH": plan["unit_path"],
    }
    options = ["--system", "--unit=multi-user.target", "--show-status=no", "--log-target=console"]
    os.execve(SYSTEMD, [str(SYSTEMD), *options], environment)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

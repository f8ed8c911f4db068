"""Real disks for tests and for the demo: a mounted file system on a block device that fails on demand. Linux, root.

::

    with RealDisk() as disk:                    # 64 MiB ext4 in memory, 80 ms
        start_agent(log_dirs=[disk.log_dir])
        disk.set(FaultMode.EIO)                 # the kernel answers EIO from now on
        disk.set(FaultMode.OK)

A disk is a :class:`~kjbod.faults.fusedisk.FuseDisk` under a loop device under ext4, XFS or btrfs. It disappears
completely with the process that made it, even after SIGKILL: the FUSE server unmounts, and the loop device clears
itself. Other processes control its faults with ``DiskControl(disk.directory)``, and those of the file system with
:mod:`kjbod.faults.syscalls` on the mount point.

The faults and the kernel's reactions were measured; ext4 is mounted ``errors=remount-ro``, as Debian does.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from kjbod.faults import syscalls
from kjbod.faults.faults_error import FaultsError
from kjbod.faults.fusedisk import DiskControl, FuseDisk
from kjbod.faults.mount_table import OVER_MOUNT
from kjbod.faults.orders import FaultMode

__all__ = ["FILE_SYSTEMS", "DiskControl", "FaultMode", "FileSystem", "RealDisk", "find_command", "require_real_disks"]

_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_MKFS_TIMEOUT_S = 60


class FileSystem(Struct, frozen=True):
    """Creation parameters of a file system type."""

    mkfs: tuple[str, ...]
    package: str
    """The Debian package with ``mkfs``."""
    size_bytes: int
    """A size that mkfs accepts."""
    mount_options: str = ""


FILE_SYSTEMS = {
    "ext4": FileSystem(
        # 4 KiB blocks as on a real disk: for a disk this small mkfs would use 1 KiB.
        ("mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
        "e2fsprogs",
        64 << 20,
        "errors=remount-ro",
    ),
    "xfs": FileSystem(("mkfs.xfs", "-q", "-f", "-K"), "xfsprogs", 320 << 20),
    "btrfs": FileSystem(("mkfs.btrfs", "-q", "-f", "-K"), "btrfs-progs", 160 << 20),
}


def require_real_disks(fstype: str = "ext4") -> None:
    """Raise :class:`FaultsError`, one line for a person, when this machine cannot make a :class:`RealDisk`."""
    if fstype not in FILE_SYSTEMS:
        raise FaultsError(f"file system {fstype!r}: choose one of {', '.join(FILE_SYSTEMS)}")
    if os.geteuid() != 0:
        raise FaultsError(f"real disks need root and this is uid {os.geteuid()}: run it with sudo")
    for device, module in (("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")):
        try:
            os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            raise FaultsError(
                f"real disks need {device}: {error.strerror} (modprobe {module}; in a container: --privileged)"
            ) from None
    mkfs = FILE_SYSTEMS[fstype].mkfs[0]
    if find_command(mkfs) is None:
        raise FaultsError(f"{mkfs}: command not found (apt-get install {FILE_SYSTEMS[fstype].package})")


def find_command(command: str) -> str | None:
    """Return the path of a system command, even if the user's PATH has no sbin; None if it is not installed."""
    return shutil.which(command, path=f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}")


def make_file_system(fstype: str, image: Path, *, pass_fds: Sequence[int] = ()) -> None:
    """Make a new, empty file system on a file or an inherited descriptor. Raises :class:`FaultsError`."""
    name, *options = FILE_SYSTEMS[fstype].mkfs
    result = subprocess.run(
        [find_command(name) or name, *options, str(image)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_MKFS_TIMEOUT_S,
        pass_fds=pass_fds,
        check=False,
    )
    if result.returncode:
        lines = result.stdout.decode(errors="replace").strip().splitlines() or ["no output"]
        raise FaultsError(f"{name} on {image}: exit code {result.returncode}: {lines[-1]}")


class RealDisk(FuseDisk):
    """A mounted file system on its own disk, with :attr:`log_dir` on it, and methods to break both.

    :param mount_point: where to mount; created, and removed at the end, if it does not exist. Default: below
    :attr:`directory`.
    :param log_dir: name of a sub-directory to create and use. By default the root of the file system is the log
    directory, without ``lost+found``, because Kafka refuses to start with it.
    :param directory: for the control socket; default: a new one below the system's temporary directory.

    Raises :class:`FaultsError` if the machine cannot do it, or a step fails.
    """

    def __init__(
        self,
        mount_point: Path | None = None,
        *,
        fstype: str = "ext4",
        log_dir: str = "",
        size_bytes: int | None = None,
        directory: Path | None = None,
    ) -> None:
        require_real_disks(fstype)
        self.fstype = fstype
        self._file_system = FILE_SYSTEMS[fstype]
        super().__init__(size_bytes or self._file_system.size_bytes, directory)
        self.mount_point = mount_point or self.directory / "mnt"
        self.log_dir = self.mount_point / log_dir
        try:
            self.janitor(self.mount_point, remove=not self.mount_point.exists())
            self.mount_point.mkdir(parents=True, exist_ok=True)
            self.format()
            self.mount()
            if fstype == "ext4":
                (self.mount_point / "lost+found").rmdir()
            self.log_dir.mkdir(exist_ok=True)
        except BaseException:
            self.close()
            raise

    def format(self) -> None:
        """Make a new, empty file system; not while the disk is mounted."""
        make_file_system(self.fstype, self.image)

    def mount(self) -> None:
        """Mount the file system (again), on a loop device that clears itself after its last use; sets
        :attr:`device`."""
        self.device, fd = syscalls.attach_loop(self.image)
        try:
            syscalls.mount(str(self.device), self.mount_point, self.fstype, data=self._file_system.mount_options)
        except OSError as error:
            raise FaultsError(f"cannot mount {self.fstype} on {self.mount_point}: {error.strerror}") from error
        finally:
            os.close(fd)

    def unmount(self) -> None:
        """Unmount with ``umount -l``: open files stay usable, and paths lead to the directory below the mount point."""
        syscalls.umount(self.mount_point, syscalls.MNT_DETACH)

    def over_mount(self) -> None:
        """Mount an empty tmpfs over the file system; :meth:`unmount` removes it."""
        syscalls.mount(OVER_MOUNT, self.mount_point, "tmpfs", data="size=1m")

    def shutdown(self) -> None:
        """Shut the file system down as after a fatal error (ext4 and XFS): EIO until it is unmounted and
        mounted again."""
        syscalls.shutdown_filesystem(self.mount_point)

    def freeze(self) -> None:
        """Freeze the file system: writers wait in the kernel until :meth:`thaw`."""
        syscalls.freeze(self.mount_point)

    def thaw(self) -> None:
        """End :meth:`freeze`; does nothing if the file system is not frozen."""
        syscalls.thaw(self.mount_point)

    def trigger_fs_error(self) -> None:
        """Trigger an error of the file system in the kernel (ext4), which makes the file system read-only."""
        Path(f"/sys/fs/ext4/{self.device.name}/trigger_fs_error").write_text("kjbod test")

"""Real disks that break, and what each source of kernel events says of it, when, and when nothing. Root."""

import asyncio
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop
from structlog.testing import capture_logs

from kjbod.faults import syscalls
from kjbod.faults.disks import FaultMode, RealDisk, find_command
from kjbod_host.health.mountinfo import read_mounts
from kjbod_host.health.mounts import mount_of
from kjbod_host.health.sources import tracepoints
from kjbod_host.health.sources.api import KernelEvent, KernelSource, Subject
from kjbod_host.health.sources.ext4 import Ext4Errors
from kjbod_host.health.sources.linux import linux_sources
from kjbod_host.health.sources.tracepoints import BlockErrors
from kjbod_host.health.sources.uevents import BlockUevents
from kjbod_host.health.sysfs import block_device_of

# All agents of a machine share tracefs, and every worker has the same process id in its own namespace.
pytestmark = pytest.mark.usefixtures("as_root", "alone")

Make = Callable[..., RealDisk]
TIMEOUT_S = 60
MS_REMOUNT = 32
LOOP_SET_CAPACITY = 0x4C07
BLOCK = 4096
ALL = ["ext4-errors", "fs-error", "btrfs-stats", "block-errors", "uevents"]


@pytest.fixture
def tracefs() -> Iterator[Path]:
    """tracefs is mounted, as on every host with systemd, and where other users get by."""
    path = Path(tempfile.mkdtemp(prefix="kjbod-tracing-"))
    syscalls.mount("tracefs", path, "tracefs")
    yield path
    syscalls.umount(path)
    path.rmdir()


def subject_of(path: Path) -> Subject:
    mount = mount_of(str(path), read_mounts())
    assert mount is not None
    return Subject(path=str(path), mount=mount, device=block_device_of(mount))


@dataclass
class Ear:
    """Sources that are listening, and what they said."""

    sources: Sequence[KernelSource]
    subjects: Sequence[Subject]
    states: dict[str, dict[str, str | None]] = field(default_factory=dict)
    events: list[KernelEvent] = field(default_factory=list)
    said: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> None:
        for source in self.sources:
            self.states[source.name] = dict(source.start(self.subjects, self.heard))

    def heard(self, event: KernelEvent) -> None:
        self.events.append(event)
        self.said.set()

    def from_(self, source: str) -> list[KernelEvent]:
        return [event for event in self.events if event.source == source]

    async def until(self, source: str, text: str, *, polled: bool = False) -> KernelEvent:
        """The first event of a source with such a text; ``polled``: also asked for it, as the monitor does."""
        for _ in range(TIMEOUT_S * 20):
            if polled:
                for each in self.sources:
                    each.poll()
            found = [event for event in self.from_(source) if text in event.text]
            if found:
                return found[0]
            self.said.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self.said.wait()
        raise AssertionError(f"{source} did not say {text!r} within {TIMEOUT_S} s; said: {self.events}")


@contextlib.asynccontextmanager
async def listening(*disks: RealDisk, sources: Sequence[KernelSource] | None = None) -> AsyncIterator[Ear]:
    """All sources, or those given, on these disks; they hear nothing before anything happens."""
    ear = Ear(linux_sources() if sources is None else sources, [subject_of(disk.log_dir) for disk in disks])
    for disk in disks:
        use(disk)
    ear.start()
    try:
        yield ear
    finally:
        for source in ear.sources:
            source.close()


def use(disk: RealDisk) -> None:
    """Write to the disk and read from it, whatever it says."""
    with contextlib.suppress(OSError):
        fd = os.open(disk.log_dir / "used", os.O_RDWR | os.O_CREAT)
        try:
            with contextlib.suppress(OSError):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.pread(fd, BLOCK, 0)
            os.pwrite(fd, b"x" * BLOCK, 0)
            os.fsync(fd)
        finally:
            os.close(fd)


def go_on_after_errors(disk: RealDisk) -> None:
    syscalls.mount(str(disk.device), disk.mount_point, disk.fstype, MS_REMOUNT, "errors=continue")


def shrink(disk: RealDisk) -> None:
    os.truncate(disk.image, disk.size_bytes // 2)
    fd = os.open(disk.device, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, LOOP_SET_CAPACITY)
    finally:
        os.close(fd)


def flood(disk: RealDisk) -> None:
    """More device events than a small socket buffer holds."""
    for _ in range(100):
        Path(f"/sys/block/{disk.device.name}/uevent").write_text("change")


def damage_directory(disk: RealDisk) -> Path:
    """Overwrite a block of a directory's content, with the file system unmounted meanwhile."""
    directory = disk.mount_point / "replica-0"
    directory.mkdir()
    for number in range(200):
        (directory / f"{number:020}.log").touch()
    inode = directory.stat().st_ino
    syscalls.umount(disk.mount_point)
    if disk.fstype == "ext4":
        command = ["debugfs", "-R", f"blocks <{inode}>", str(disk.image)]
    else:
        command = ["xfs_db", "-r", "-c", f"inode {inode}", "-c", "dblock 0", "-c", "daddr", str(disk.image)]
    command[0] = find_command(command[0]) or command[0]
    said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout
    offset = int(said.split()[0]) * BLOCK if disk.fstype == "ext4" else int(said.rpartition(" ")[2]) * 512
    with open(disk.image, "r+b") as image:
        image.seek(offset)
        image.write(b"\xa5" * BLOCK)
    disk.mount()
    return directory


async def test_each_source_says_for_each_directory_whether_it_is_active(real_disk: Make, tracefs: Path) -> None:
    disks = [real_disk(fstype=fstype) for fstype in ("ext4", "xfs", "btrfs")]
    async with listening(*disks) as ear:
        active = {name: [reason is None for reason in ear.states[name].values()] for name in ALL}
        assert [list(states) for states in ear.states.values()] == [[str(disk.log_dir) for disk in disks]] * len(ALL)
        assert ear.events == []
    assert active == {
        "ext4-errors": [True, False, False],
        "fs-error": [True, False, False],
        "btrfs-stats": [False, False, True],
        "block-errors": [True, True, True],
        "uevents": [True, True, True],
    }


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_an_error_of_ext4_that_no_call_meets_is_told_as_damage(
    real_disk: Make, tracefs: Path, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    disk, other = real_disk(), real_disk()
    go_on_after_errors(disk)

    async def main() -> None:
        async with listening(disk, other) as ear:
            for count in (1, 2):  # not only the first one
                disk.trigger_fs_error()
                by_count = await ear.until("ext4-errors", f"errors_count {count}, was {count - 1}")
                assert "trigger_test_error" in by_count.text
                assert by_count.damage
            by_fanotify = await ear.until("fs-error", "EUCLEAN")
            assert by_fanotify.damage
            assert {event.paths for event in ear.events} == {(str(disk.log_dir),)}

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


async def test_an_error_of_ext4_that_makes_it_read_only_is_told(real_disk: Make, tracefs: Path) -> None:
    disk = real_disk()
    async with listening(disk) as ear:
        disk.trigger_fs_error()
        await ear.until("fs-error", "EUCLEAN")
        await ear.until("ext4-errors", "errors_count 1, was 0", polled=True)  # the kernel wakes nobody then


async def test_an_error_is_told_while_the_disk_hangs(real_disk: Make, tracefs: Path) -> None:
    disk = real_disk()
    go_on_after_errors(disk)
    async with listening(disk) as ear:
        disk.set(FaultMode.HANG)
        trigger = asyncio.get_running_loop().run_in_executor(None, disk.trigger_fs_error)
        try:
            assert (await ear.until("fs-error", "EUCLEAN")).damage
            for source in ear.sources:
                source.poll()
        finally:
            disk.set(FaultMode.OK)
            await trigger


@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
async def test_damaged_metadata_are_told_at_the_first_touch(real_disk: Make, tracefs: Path, fstype: str) -> None:
    disk = real_disk(fstype=fstype)
    directory = damage_directory(disk)
    async with listening(disk) as ear:
        with pytest.raises(OSError, match=r"Bad message|Structure needs cleaning"):
            os.listdir(directory)
        event = await ear.until(*(("fs-error", "at inode") if fstype == "ext4" else ("block-errors", "XFS met")))
        assert event.damage


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
@pytest.mark.parametrize("mode", [FaultMode.EIO, FaultMode.EIO_READS, FaultMode.EIO_WRITES])
async def test_a_failed_request_is_told(real_disk: Make, tracefs: Path, fstype: str, mode: FaultMode) -> None:
    disk = real_disk(fstype=fstype)
    async with listening(disk, sources=[BlockErrors()]) as ear:
        disk.set(mode)
        await asyncio.to_thread(use, disk)
        event = await ear.until("block-errors", "failed: EIO")
        assert disk.device.name in event.text
        assert not event.damage
        if mode is not FaultMode.EIO_READS:
            await ear.until("block-errors", "write-back of inode")
        disk.set(FaultMode.OK)


async def test_a_pulled_disk_concerns_all_its_directories_and_no_other_disk(real_disk: Make, tracefs: Path) -> None:
    disk, other = real_disk(log_dir="a"), real_disk()
    neighbour = disk.mount_point / "b"
    neighbour.mkdir()
    ear = Ear([BlockErrors()], [subject_of(path) for path in (disk.log_dir, neighbour, other.log_dir)])
    ear.start()
    disk.kill()
    await asyncio.to_thread(use, disk)
    event = await ear.until("block-errors", "failed: EIO")
    assert event.paths == (str(disk.log_dir), str(neighbour))
    ear.sources[0].close()


async def test_the_counts_of_btrfs_tell_failed_requests_and_wrong_content(real_disk: Make) -> None:
    failing, lying = real_disk(fstype="btrfs"), real_disk(fstype="btrfs")
    async with listening(failing, lying) as ear:
        failing.set(FaultMode.EIO_WRITES)
        lying.set(FaultMode.FLIP_READS)
        for disk in (failing, lying):
            await asyncio.to_thread(use, disk)
        failed = await ear.until("btrfs-stats", "writes failed", polled=True)
        lied = await ear.until("btrfs-stats", "checksums", polled=True)
        assert (failed.paths, failed.damage) == ((str(failing.log_dir),), False)
        assert (lied.paths, lied.damage) == ((str(lying.log_dir),), True)
        for disk in (failing, lying):
            disk.set(FaultMode.OK)


@pytest.mark.parametrize(("fstype", "text"), [("ext4", "ext4 was shut down"), ("xfs", "XFS shut down")])
async def test_a_file_system_that_is_shut_down_is_told(real_disk: Make, tracefs: Path, fstype: str, text: str) -> None:
    disk = real_disk(fstype=fstype)
    async with listening(disk, sources=[BlockErrors()]) as ear:
        disk.shutdown()
        await ear.until("block-errors", text)


async def test_a_disk_that_shrinks_is_told(real_disk: Make) -> None:
    disk, other = real_disk(), real_disk()
    async with listening(disk, other, sources=[BlockUevents()]) as ear:
        shrink(other)
        shrink(disk)
        event = await ear.until("uevents", f"{disk.device.name} ")
        assert event.text.endswith("its size changed")
        assert event.paths == (str(disk.log_dir),)


async def test_device_events_that_are_lost_concern_every_disk(real_disk: Make) -> None:
    disk, other = real_disk(), real_disk()
    source = BlockUevents()
    async with listening(disk, other, sources=[source]) as ear:
        assert source._socket is not None
        source._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel's least
        flood(disk)
        event = await ear.until("uevents", "some are lost")
        assert event.paths == (str(disk.log_dir), str(other.log_dir))


async def test_an_unmounted_file_system_is_told_once_and_disturbs_no_other(real_disk: Make, tracefs: Path) -> None:
    disk, other = real_disk(), real_disk()
    go_on_after_errors(other)
    async with listening(disk, other) as ear:
        disk.unmount()
        event = await ear.until("ext4-errors", "no longer mounted", polled=True)
        assert event.paths == (str(disk.log_dir),)
        other.trigger_fs_error()
        event = await ear.until("ext4-errors", "errors_count 1, was 0")
        assert event.paths == (str(other.log_dir),)
        for source in ear.sources:
            source.poll()
        assert len([event for event in ear.from_("ext4-errors") if "no longer" in event.text]) == 1


async def test_an_old_error_of_ext4_is_logged_and_no_event(real_disk: Make) -> None:
    disk = real_disk()
    go_on_after_errors(disk)
    disk.trigger_fs_error()
    with capture_logs() as logs:
        async with listening(disk, sources=[Ext4Errors()]) as ear:
            ear.sources[0].poll()
            assert ear.events == []
    assert [(log["event"], log["errors_count"]) for log in logs] == [("health.ext4.errors", 1)]
    assert "trigger_test_error" in logs[0]["last"]
    async with listening(disk, sources=[Ext4Errors()]) as ear:
        disk.trigger_fs_error()
        await ear.until("ext4-errors", "errors_count 2, was 1")


async def test_a_storm_of_errors_makes_few_events(real_disk: Make, tracefs: Path) -> None:
    disk = real_disk()
    async with listening(disk, sources=[BlockErrors()]) as ear:
        disk.kill()

        def storm() -> None:
            fd = os.open(disk.device, os.O_RDONLY)
            try:
                for _ in range(5000):
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    with contextlib.suppress(OSError):
                        os.pread(fd, BLOCK, 0)
            finally:
                os.close(fd)

        await asyncio.to_thread(storm)
        await ear.until("block-errors", " more)")
        assert len(ear.events) < 500  # of 5000


async def test_a_kernel_without_a_tracepoint_for_errors_alone_tells_them_too(
    real_disk: Make, tracefs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tuple(group[-1:] for group in tracepoints._TRACEPOINTS)  # the last of each group is what old kernels have
    monkeypatch.setattr(tracepoints, "_TRACEPOINTS", older)
    disk = real_disk()
    async with listening(disk, sources=[BlockErrors()]) as ear:
        await asyncio.to_thread(use, disk)
        disk.set(FaultMode.EIO)
        await asyncio.to_thread(use, disk)
        event = await ear.until("block-errors", "a read of")
        assert event is ear.events[0]
        disk.set(FaultMode.OK)


# what is left in tracefs -------------------------------------------------------------------------------------------


def instances(tracefs: Path) -> list[str]:
    return sorted(path.name for path in (tracefs / "instances").glob("kjbod*"))


async def test_the_trace_instance_is_gone_when_the_source_is_closed(real_disk: Make, tracefs: Path) -> None:
    disk = real_disk()
    own = f"kjbod-{os.getpid()}-0"
    source = BlockErrors()
    source.start([subject_of(disk.log_dir)], lambda event: None)
    during = instances(tracefs)
    source.close()
    source.close()
    assert own in during
    assert own not in instances(tracefs)


LISTENER = """
import asyncio, ctypes, json, os, sys
from kjbod_host.health.mountinfo import read_mounts
from kjbod_host.health.mounts import mount_of
from kjbod_host.health.sources.api import Subject
from kjbod_host.health.sources.linux import linux_sources
from kjbod_host.health.sysfs import block_device_of

uid, path = int(sys.argv[1]), sys.argv[2]
subjects = []
for path in sys.argv[2:]:
    mount = mount_of(path, read_mounts())
    subjects.append(Subject(path=path, mount=mount, device=block_device_of(mount)))

def heard(event):
    print(json.dumps([event.source, event.text, event.damage]), flush=True)

async def main():
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: as a process that never was root
    sources = linux_sources()
    states = {source.name: source.start(subjects, heard)[path] for source in sources}
    print(json.dumps(states), flush=True)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, stopped.set)
    while not stopped.is_set():
        for source in sources:
            source.poll()
        try:
            await asyncio.wait_for(stopped.wait(), 0.1)
        except TimeoutError:
            pass
    for source in sources:
        source.close()

asyncio.run(main())
"""


@dataclass
class Listener:
    """The sources in a process of their own."""

    process: "subprocess.Popen[bytes]"
    states: dict[str, str | None]
    heard: list[list[str]] = field(default_factory=list)
    unread: bytes = b""

    def line(self) -> bytes:
        assert self.process.stdout is not None
        while b"\n" not in self.unread:  # not readline: select sees nothing of what its buffer has
            ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT_S)
            assert ready, f"nothing more within {TIMEOUT_S} s; heard {self.heard}"
            data = os.read(self.process.stdout.fileno(), 4096)
            assert data, f"it ended; heard {self.heard}"
            self.unread += data
        found, _, self.unread = self.unread.partition(b"\n")
        return found

    def until(self, *sources: str) -> None:
        """Until each of these said something."""
        while not set(sources) <= {source for source, _, _ in self.heard}:
            self.heard.append(json.loads(self.line()))


@contextlib.contextmanager
def listener(*disks: RealDisk, uid: int = 0) -> Iterator[Listener]:
    command = [sys.executable, "-c", textwrap.dedent(LISTENER), str(uid), *(str(disk.log_dir) for disk in disks)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        found = Listener(process, {})
        try:
            found.states = json.loads(found.line())
            yield found
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(TIMEOUT_S)
            finally:
                process.kill()


def test_an_instance_that_a_killed_process_left_is_removed_at_the_next_start_and_no_other(
    real_disk: Make, tracefs: Path
) -> None:
    disk = real_disk()
    theirs = tracefs / "instances" / f"kjbod-test-{os.getpid()}"  # an administrator's
    theirs.mkdir()
    with listener(disk) as living:
        running = f"kjbod-{living.process.pid}-0"
        with listener(disk) as killed:
            left = f"kjbod-{killed.process.pid}-0"
            assert {left, running} <= set(instances(tracefs))
            killed.process.send_signal(signal.SIGKILL)
            killed.process.wait(TIMEOUT_S)
        assert left in instances(tracefs)
        with listener(disk):
            assert left not in instances(tracefs)
            assert running in instances(tracefs)
        assert living.process.poll() is None
    assert running not in instances(tracefs)
    theirs.rmdir()


def test_without_privileges_three_sources_work_and_the_others_say_what_they_need(
    real_disk: Make, tracefs: Path
) -> None:
    ext4, btrfs = real_disk(), real_disk(fstype="btrfs")
    go_on_after_errors(ext4)
    with listener(ext4, uid=65534) as found:
        assert found.states["ext4-errors"] is found.states["uevents"] is None
        assert found.states["fs-error"] == "needs CAP_SYS_ADMIN"
        needed = found.states["block-errors"]
        assert needed is not None
        assert needed.endswith("needs CAP_DAC_OVERRIDE, or an instance made for it, instances/kjbod")
        ext4.trigger_fs_error()
        shrink(ext4)
        found.until("ext4-errors", "uevents")
    with listener(btrfs, uid=65534) as found:
        assert found.states["btrfs-stats"] is None
        btrfs.set(FaultMode.EIO_WRITES)
        use(btrfs)
        found.until("btrfs-stats")
        btrfs.set(FaultMode.OK)


def test_with_an_instance_made_for_it_block_errors_need_no_privilege(real_disk: Make, tracefs: Path) -> None:
    disk = real_disk()
    made = tracefs / "instances" / "kjbod"
    passages = {path: path.stat().st_mode for path in (tracefs, made.parent)}
    made.mkdir()
    try:
        subprocess.run(["chown", "-R", "65534", str(made)], check=True)
        for path in passages:
            path.chmod(0o711)
        with listener(disk, uid=65534) as found:
            assert found.states["block-errors"] is None
            with listener(disk) as second:  # whoever comes second gets one of its own
                assert second.states["block-errors"] is None
                assert f"kjbod-{second.process.pid}-0" in instances(tracefs)
                disk.set(FaultMode.EIO)
                use(disk)
                found.until("block-errors")
                second.until("block-errors")
            disk.set(FaultMode.OK)
        assert made.exists()
        assert (made / "events" / "enable").read_text().strip() == "0"
    finally:
        for path, mode in passages.items():
            path.chmod(mode & 0o777)
        made.rmdir()


async def test_without_tracefs_it_says_how_to_get_it(real_disk: Make, tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    disk = real_disk()
    source = BlockErrors(mountinfo=str(table))
    states = source.start([subject_of(disk.log_dir)], lambda event: None)
    source.close()
    reason = "tracefs is not mounted (mount -t tracefs tracefs /sys/kernel/tracing)"
    assert states == {str(disk.log_dir): reason}

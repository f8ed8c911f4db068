"""Real disks that really fail, and that leave nothing behind."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.faults import syscalls
from kjbod.faults.disks import FILE_SYSTEMS, DiskControl, FaultMode, RealDisk
from kjbod.faults.faults_error import FaultsError
from kjbod.faults.fusedisk import DiskGoneError, FuseDisk
from scripts.rig.processes import Processes, wait_until

pytestmark = pytest.mark.usefixtures("as_root")

Make = Callable[..., RealDisk]


def write_durably(path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, b"x" * 4096, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def read_from_the_device(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.pread(fd, 4096, 0)
    finally:
        os.close(fd)


def errno_of(call: Callable[[], object]) -> int | None:
    try:
        call()
    except OSError as error:
        return error.errno
    return None


def loop_devices_of(disk: FuseDisk) -> list[Path]:
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            text = backing.read_text()
        except OSError:
            continue
        if disk.image.name in text:
            found.append(backing)
    return found


def is_mounted(path: Path) -> bool:
    return f" {path} " in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("fstype", FILE_SYSTEMS)
def test_a_disk_in_eio_mode_fails_writes_and_reads_with_the_kernels_eio(real_disk: Make, fstype: str) -> None:
    disk = real_disk(fstype=fstype)
    write_durably(disk.log_dir / "old")
    disk.set(FaultMode.EIO)
    assert errno_of(lambda: read_from_the_device(disk.log_dir / "old")) == errno.EIO
    assert errno_of(lambda: write_durably(disk.log_dir / "new")) in (errno.EIO, errno.EROFS)


@pytest.mark.parametrize(
    ("mode", "read", "write"),
    [
        (FaultMode.OK, None, None),
        (FaultMode.EIO_READS, errno.EIO, None),
        (FaultMode.EIO_WRITES, None, errno.EIO),
        (FaultMode.ENOSPC, None, errno.ENOSPC),
        (FaultMode.LOSE_WRITES, None, None),
    ],
)
def test_a_mode_fails_what_it_says_and_nothing_else(
    real_disk: Make, mode: FaultMode, read: int | None, write: int | None
) -> None:
    disk = real_disk()
    write_durably(disk.log_dir / "file")
    disk.set(mode)
    assert errno_of(lambda: read_from_the_device(disk.log_dir / "file")) == read
    assert errno_of(lambda: write_durably(disk.log_dir / "file")) == write


def test_flipped_reads_differ_from_what_was_written(real_disk: Make) -> None:
    disk = real_disk()
    write_durably(disk.log_dir / "file")
    disk.set(FaultMode.FLIP_READS)
    assert read_from_the_device(disk.log_dir / "file") == bytes([ord("x") ^ 0xFF]) + b"x" * 4095


def test_a_lost_write_is_gone_when_the_page_cache_forgets_it(real_disk: Make) -> None:
    disk = real_disk()
    path = disk.log_dir / "file"
    write_durably(path)
    disk.set(FaultMode.LOSE_WRITES)
    path.write_bytes(b"y" * 4096)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    assert read_from_the_device(path) != b"y" * 4096


@pytest.mark.parametrize("end", [FaultMode.OK, FaultMode.EIO])
def test_a_hung_disk_holds_its_caller_until_the_mode_changes(
    real_disk: Make, processes: Processes, end: FaultMode
) -> None:
    disk = real_disk()
    write_durably(disk.log_dir / "file")
    disk.set(FaultMode.HANG)
    # conv=notrunc,fsync overwrites in place; dd says which error it met
    command = ["dd", "if=/dev/zero", f"of={disk.log_dir / 'file'}", "bs=4096", "count=1", "conv=notrunc,fsync"]
    writer = processes.start(command, name="writer")
    wait_until(lambda: disk.counters().held, 10, "a request that the disk holds back")
    assert writer.running
    disk.set(end)
    assert (writer.wait(10) == 0) == (end is FaultMode.OK)
    assert ("Input/output error" in writer.stderr()) == (end is FaultMode.EIO)


def test_a_delayed_disk_still_works(real_disk: Make) -> None:
    disk = real_disk()
    disk.delay_us(20_000)
    flushes = disk.counters().flushes
    write_durably(disk.log_dir / "file")
    assert disk.counters().flushes > flushes


@pytest.mark.parametrize("pull", [DiskControl.kill, DiskControl.abort])
def test_pulling_the_disk_frees_a_stuck_caller_with_an_error(
    real_disk: Make, processes: Processes, pull: Callable[[DiskControl], None]
) -> None:
    disk = real_disk()
    write_durably(disk.log_dir / "file")
    disk.set(FaultMode.HANG)
    writer = processes.start(["dd", f"of={disk.log_dir / 'file'}", "if=/dev/zero", "count=1", "conv=fsync"], name="w")
    wait_until(lambda: disk.counters().held, 10, "a request that the disk holds back")
    pull(disk)
    assert writer.wait(10) == 1
    assert errno_of(lambda: write_durably(disk.log_dir / "new")) in (errno.EIO, errno.EROFS)


def test_another_process_controls_the_disk_by_its_directory(real_disk: Make) -> None:
    disk = real_disk()
    program = (
        "import sys; from pathlib import Path; from kjbod.faults.disks import DiskControl, FaultMode;"
        "DiskControl(Path(sys.argv[1])).set(FaultMode.EIO)"
    )
    subprocess.run([sys.executable, "-c", program, str(disk.directory)], check=True)
    assert errno_of(lambda: write_durably(disk.log_dir / "new")) in (errno.EIO, errno.EROFS)


def test_a_file_system_shut_down_answers_eio_until_it_is_mounted_again(real_disk: Make) -> None:
    disk = real_disk()
    write_durably(disk.log_dir / "old")
    disk.shutdown()
    assert errno_of(lambda: write_durably(disk.log_dir / "new")) == errno.EIO
    disk.unmount()
    disk.mount()
    write_durably(disk.log_dir / "new")
    assert (disk.log_dir / "old").exists()


def test_a_frozen_file_system_holds_writers_until_thawed(real_disk: Make, processes: Processes) -> None:
    disk = real_disk()
    disk.freeze()
    writer = processes.start(["touch", str(disk.log_dir / "new")], name="writer")
    wait_until(lambda: Path(f"/proc/{writer.pid}/wchan").read_text() == "percpu_rwsem_wait", 10, "a stuck writer")
    disk.thaw()
    assert writer.wait(10) == 0


def test_an_ext4_error_makes_the_file_system_read_only(real_disk: Make) -> None:
    disk = real_disk()
    disk.trigger_fs_error()
    assert errno_of(lambda: write_durably(disk.log_dir / "new")) == errno.EROFS


def test_unmounting_and_over_mounting_hide_the_log_directory(real_disk: Make) -> None:
    disk = real_disk(log_dir="kafka")
    disk.over_mount()
    assert not disk.log_dir.exists()
    disk.unmount()
    assert disk.log_dir.exists()
    disk.unmount()
    assert not disk.log_dir.exists()


def test_the_root_of_the_file_system_is_an_empty_log_directory(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk(tmp_path / "mnt" / "d1")
    assert disk.log_dir == tmp_path / "mnt" / "d1"
    assert os.listdir(disk.log_dir) == []


def test_closing_leaves_no_mount_no_loop_device_no_file_and_no_process(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "d1")
    server = disk.server_pid()
    disk.close()
    disk.close()  # once more does no harm
    assert not disk.directory.exists()
    assert not (tmp_path / "d1").exists()
    assert not is_mounted(tmp_path / "d1")
    wait_until(lambda: not loop_devices_of(disk), 5, "the loop device to clear itself")
    assert not Path(f"/proc/{server}").exists()


@pytest.mark.parametrize("state", ["healthy", "hung", "frozen", "over-mounted", "pulled"])
def test_a_holder_that_is_killed_leaves_nothing_behind(tmp_path: Path, state: str) -> None:
    holder = (
        "import sys, signal; from pathlib import Path; from kjbod.faults.disks import *\n"
        "disk = RealDisk(Path(sys.argv[1])); (disk.log_dir / 'file').write_bytes(b'x')\n"
        "{'healthy': lambda: None, 'hung': lambda: disk.set(FaultMode.HANG), 'frozen': disk.freeze,\n"
        " 'over-mounted': disk.over_mount, 'pulled': disk.kill}[sys.argv[2]]()\n"
        "print(disk.directory, disk.server_pid(), flush=True); signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path / "d1"), state], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        directory, server = process.stdout.readline().split()
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not Path(directory).exists(), 20, "the disk's directory to go")
    assert not is_mounted(tmp_path / "d1")
    assert not (tmp_path / "d1").exists()
    wait_until(lambda: directory not in loop_files(), 5, "the loop device to clear itself")
    wait_until(lambda: not Path(f"/proc/{server}/exe").exists(), 5, "the server to end")


def loop_files() -> str:
    return subprocess.run(
        ["losetup", "--list", "--noheadings", "-O", "BACK-FILE"], stdout=-1, text=True, check=True
    ).stdout


def test_a_released_disk_outlives_its_maker_until_somebody_closes_it(tmp_path: Path) -> None:
    maker = (
        "import sys; from pathlib import Path; from kjbod.faults.disks import *\n"
        "disk = RealDisk(Path(sys.argv[1])); disk.release(); print(disk.directory, flush=True)"
    )
    made = subprocess.run([sys.executable, "-c", maker, str(tmp_path / "d1")], stdout=subprocess.PIPE, check=True)
    control = DiskControl(Path(made.stdout.decode().strip()))
    assert is_mounted(tmp_path / "d1")
    assert control.counters().writes > 0
    control.close()
    assert not is_mounted(tmp_path / "d1")
    with pytest.raises(DiskGoneError, match="its server is gone"):
        control.counters()


def test_a_thread_that_makes_a_disk_may_end_before_it(tmp_path: Path) -> None:
    made: list[RealDisk] = []
    thread = threading.Thread(target=lambda: made.append(RealDisk(tmp_path / "d1")))
    thread.start()
    thread.join()
    with made[0] as disk:
        write_durably(disk.log_dir / "file")


def test_the_directory_of_a_disk_may_have_a_name_longer_than_a_socket_address(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    with FuseDisk(1 << 20, deep) as disk:
        assert disk.image.stat().st_size == 1 << 20
    assert os.listdir(deep) == []


def test_an_unknown_file_system_is_one_clear_line() -> None:
    with pytest.raises(FaultsError, match=r"^file system 'zfs': choose one of ext4, xfs, btrfs$"):
        RealDisk(fstype="zfs")


def test_an_order_that_makes_no_sense_is_refused_and_the_disk_goes_on() -> None:
    with FuseDisk(1 << 20) as disk:
        with pytest.raises(FaultsError, match="unknown order 'dance'"):
            disk._ask({"do": "dance"})
        with pytest.raises(FaultsError, match="ValueError"):
            disk._ask({"do": "set", "mode": "sad"})
        assert disk.counters().reads == 0


def test_content_is_found_however_often_it_is_there() -> None:
    with FuseDisk(40 << 20) as disk:
        with open(disk.image, "r+b", buffering=0) as image:
            for _ in range(9):
                image.write((b"here" + bytes(508)) * 2048)
        assert disk.find(b"here", 512) == list(range(0, 9 << 20, 512))
        assert disk.find(b"ere", 512, 1) == list(range(0, 9 << 20, 512))
        assert disk.find(b"nowhere", 512) == []


def test_a_number_that_no_disk_has_is_refused_and_the_disk_goes_on() -> None:
    with FuseDisk(1 << 20) as disk:
        with pytest.raises(FaultsError, match="OverflowError"):
            disk._ask({"do": "content", "how": "truncate", "size_bytes": 1 << 70})
        assert disk.counters().reads == 0


def test_restored_content_is_that_of_before_also_while_writes_are_lost() -> None:
    with FuseDisk(1 << 20) as disk:
        disk.keep()
        disk.set(FaultMode.LOSE_WRITES)
        with open(disk.image, "r+b", buffering=0) as image:
            image.write(b"lost" * 1024)
        assert disk.restore()
        disk.recover_writes()
        assert disk.image.read_bytes() == bytes(1 << 20)


def test_a_mount_that_somebody_made_over_a_disk_outlives_it(real_disk: Make, tmp_path: Path) -> None:
    place = tmp_path / "d1"
    disk = RealDisk(place)
    syscalls.mount("somebody", place, "tmpfs")
    try:
        disk.close()
        assert Path("/proc/self/mounts").read_text().count(f"somebody {place} ") == 1
    finally:
        syscalls.umount_all(place)
        place.rmdir()


def test_real_disks_without_root_are_one_clear_line() -> None:
    program = (
        "import os; from kjbod.faults import disks, faults_error\n"
        "os.setuid(65534)\n"
        "try: disks.RealDisk()\n"
        "except faults_error.FaultsError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", program], stdout=-1, stderr=-1, text=True, check=False)
    assert result.stdout == "real disks need root and this is uid 65534: run it with sudo\n", result.stderr


def test_thawing_what_is_not_frozen_does_nothing(real_disk: Make) -> None:
    disk = real_disk()
    assert syscalls.thaw(disk.mount_point) is False


def test_a_disk_that_reads_another_block_now_and_then_keeps_what_it_has() -> None:
    with FuseDisk(8 << 20) as disk:
        content = bytes(range(1, 256)) * 4096
        with open(disk.image, "r+b") as file:
            file.write(content)
        disk.misread([4096], every=2, times=2)
        with open(disk.image, "rb") as file:
            reads = [os.pread(file.fileno(), 4096, 4096) == content[4096:8192] for _ in range(6)]
            assert reads == [True, False, True, False, True, True]
            assert os.pread(file.fileno(), 4096, 8192) == content[8192:12288]
        assert disk.image.read_bytes()[: len(content)] == content

"""The catalog of faults: each is visible to plain system calls, each is undone, whatever became of the injector."""

import contextlib
import errno
import functools
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace

from kjbod.faults import catalog, syscalls
from kjbod.faults.catalog import FAULTS, inject, list_injections, undo
from kjbod.faults.disks import FILE_SYSTEMS, RealDisk
from kjbod.faults.faults_error import FaultsError
from kjbod.faults.model import Injection, Target
from kjbod.faults.mount_table import mounts, mounts_on
from scripts.rig.processes import Processes, wait_until

pytestmark = pytest.mark.usefixtures("as_root")

Make = Callable[..., RealDisk]
SMALL_BYTES = 16 << 20
"""Enough for ext4, and quickly filled."""
OLD = b"old content\n" * 4096
META = b"#\nnode.id=1\nversion=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAEg\ncluster.id=c\n"
FEW = ("eio", "device-gone", "lost-writes", "bit-rot", "wiped", "truncated", "shrunk", "hang", "freeze", "umount")
CASES = [("ext4", name) for name in FAULTS if "ext4" in FAULTS[name].file_systems]
CASES += [("xfs", name) for name in (*FEW, "fs-shutdown", "metadata-damage", "full", "bind-ro")]
CASES += [("btrfs", name) for name in (*FEW, "quota", "metadata-damage", "full", "remount-ro", "immutable")]


def prepare(disk: RealDisk) -> Target:
    """Old content on the medium, and a file for a probe to overwrite."""
    (disk.log_dir / "meta.properties").write_bytes(META)
    (disk.log_dir / "old").write_bytes(OLD)
    (disk.log_dir / "probe").write_bytes(bytes(4096))
    syscalls.sync_filesystem(disk.mount_point)
    return Target.of(disk)


def said(call: Callable[[], object]) -> str:
    """Name of the errno; ``ok``."""
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def read(log_dir: Path) -> None:
    fd = os.open(log_dir / "old", os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if os.pread(fd, len(OLD), 0) != OLD:
            raise OSError(errno.EILSEQ, "not what was written")
    finally:
        os.close(fd)


def write(log_dir: Path) -> None:
    """Overwrite, and read back from the medium."""
    fd = os.open(log_dir / "probe", os.O_RDWR)
    try:
        data = os.pread(fd, 4096, 0).translate(bytes((i + 1) % 256 for i in range(256)))
        os.pwrite(fd, data, 0)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if os.pread(fd, 4096, 0) != data:
            raise OSError(errno.EILSEQ, "not what was written")
    finally:
        os.close(fd)


def create(log_dir: Path) -> None:
    fd = os.open(log_dir / "new", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.write(fd, b"x" * 4096)
        os.fsync(fd)
    finally:
        os.close(fd)
    (log_dir / "new").unlink()


def is_well(disk: RealDisk) -> bool:
    """Everything works and the old content is there."""
    return (
        [said(functools.partial(call, disk.log_dir)) for call in (read, write, create)] == ["ok"] * 3
        and (disk.log_dir / "meta.properties").read_bytes() == META
        and sorted(os.listdir(disk.log_dir)) == ["meta.properties", "old", "probe"]
    )


DEAD = ("EIO", "EROFS")
LIES = ("EILSEQ", "EIO")
DAMAGED = ("EUCLEAN", "EBADMSG", "EIO", "EROFS")
SEEN: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "eio": (read, DEAD),
    "eio-writes": (write, DEAD),
    "eio-reads": (read, DEAD),
    "device-gone": (write, DEAD),
    "lost-writes": (write, LIES),
    "bit-rot": (read, LIES),
    "wiped": (read, LIES),
    "truncated": (read, DEAD),
    "shrunk": (create, DEAD),
    "thin-pool-full": (write, ("ENOSPC", "EIO")),
    "remount-ro": (write, ("EROFS",)),
    "bind-ro": (write, ("EROFS",)),
    "umount": (read, ("ENOENT",)),
    "over-mount": (read, ("ENOENT",)),
    "swapped-disk": (read, ("ENOENT",)),
    "ext4-error-continue": (write, ("ok",)),
    "ext4-error-remount-ro": (write, ("EROFS",)),
    "fs-shutdown": (write, ("EIO",)),
    "metadata-damage": (create, DAMAGED),
    "full": (create, ("ENOSPC",)),
    "no-inodes": (create, ("ENOSPC",)),
    "quota": (create, ("EDQUOT",)),
    "immutable": (write, ("EPERM",)),
    "permissions": (read, ("ok",)),
    "directory-deleted": (read, ("ENOENT",)),
    "meta-properties-replaced": (read, ("ok",)),
}
"""A call that meets the fault, and what the kernel answers. The others hold their caller."""


def assert_it_holds_a_writer(disk: RealDisk, processes: Processes, name: str) -> None:
    command = ["dd", "if=/dev/zero", f"of={disk.log_dir / 'probe'}", "bs=4096", "count=1", "conv=notrunc,fsync"]
    writer = processes.start(command, name="writer")
    if name == "freeze":
        wait_until(lambda: "percpu_rwsem_wait" in Path(f"/proc/{writer.pid}/wchan").read_text(), 10, "a stuck writer")
    else:
        wait_until(lambda: disk.counters().held, 10, "a request that the disk holds back")
    assert writer.running


@pytest.mark.parametrize(("fstype", "name"), CASES)
def test_a_fault_is_visible_to_plain_system_calls_and_gone_after_undo(
    real_disk: Make, tmp_path: Path, processes: Processes, fstype: str, name: str
) -> None:
    disk = real_disk(fstype=fstype, size_bytes=SMALL_BYTES if fstype == "ext4" else None)
    injection = inject(name, prepare(disk), state_dir=tmp_path / "state")
    if name in SEEN:
        call, answers = SEEN[name]
        assert said(lambda: call(disk.log_dir)) in answers
    else:
        assert_it_holds_a_writer(disk, processes, name)
    undo(injection)
    processes.close()
    assert is_well(disk)
    assert os.listdir(tmp_path / "state") == []
    assert len(mounts_on(disk.mount_point)) == 1


def test_each_fault_of_each_layer_has_its_place_in_the_list() -> None:
    assert set(catalog.FAULTS) == set(catalog._BY_NAME)


def test_what_no_call_shows_is_there_all_the_same(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk(log_dir="kafka")
    target, state_dir = prepare(disk), tmp_path / "state"
    errors = Path(f"/sys/fs/ext4/{disk.device.name}/errors_count")
    meta = disk.log_dir / "meta.properties"
    seen: dict[str, Callable[[], object]] = {
        "ext4-error-continue": lambda: int(errors.read_text()) > 0,
        "permissions": lambda: stat.S_IMODE(disk.log_dir.stat().st_mode) == 0,
        "meta-properties-replaced": lambda: meta.read_bytes() != META and meta.read_bytes().startswith(META[:20]),
        "directory-deleted": lambda: not disk.log_dir.exists(),
    }
    for name, is_there in seen.items():
        assert not is_there()
        injection = inject(name, target, state_dir=state_dir)
        assert is_there(), name
        undo(injection)
        if name == "ext4-error-continue":  # mounted anew, without the error on record, on another device
            errors = Path(f"/sys/fs/ext4/{Path(mounts_on(disk.mount_point)[0].source).name}/errors_count")
        assert not is_there(), name
        assert is_well(disk)


def test_a_slow_disk_takes_the_milliseconds_that_were_asked_for(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk()
    injection = inject("slow", prepare(disk), state_dir=tmp_path / "state", options={"ms": 35})
    assert disk.state()["delay_us"] == 35_000
    undo(injection)
    assert disk.state()["delay_us"] == 0


def test_writes_that_were_lost_are_stored_after_all_by_undo(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk()
    injection = inject("lost-writes", prepare(disk), state_dir=tmp_path / "state")
    fd = os.open(disk.log_dir / "probe", os.O_RDWR)
    try:
        os.pwrite(fd, b"lost" * 1024, 0)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(fd, 4096, 0) == bytes(4096)
        undo(injection)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(fd, 4096, 0) == b"lost" * 1024
    finally:
        os.close(fd)


@pytest.mark.parametrize("fstype", FILE_SYSTEMS)
@pytest.mark.parametrize("name", ["eio", "device-gone", "wiped", "umount"])
def test_a_disk_is_mended_although_somebody_holds_a_file_open(
    real_disk: Make, tmp_path: Path, fstype: str, name: str
) -> None:
    disk = real_disk(fstype=fstype)
    target = prepare(disk)
    held = os.open(disk.log_dir / "probe", os.O_RDWR)  # a file object seeks as it closes: EIO on an xfs that shut down
    try:
        injection = inject(name, target, state_dir=tmp_path / "state")
        said(lambda: write(disk.log_dir))
        undo(injection)
        assert is_well(disk)
    finally:
        os.close(held)


# what may happen to the injector --------------------------------------------------------------------------------------


def die(_injection: Injection) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def inject_and_die(name: str, target: Target, state_dir: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a child process, killed after the record, after the preparation, or after the deed."""
    fault = FAULTS[name]

    def deed_and_die(injection: Injection) -> None:
        fault.deed(injection)
        die(injection)

    deeds = {"record": die, "preparation": die, "deed": deed_and_die}
    broken = replace(fault, deed=deeds[when], arm=die if when == "record" else fault.arm)
    with monkeypatch.context() as patch:
        patch.setitem(catalog.FAULTS, name, broken)
        pid = os.fork()
        if pid == 0:
            try:
                inject(name, target, state_dir=state_dir)
            finally:
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("name", [name for fstype, name in CASES if fstype == "ext4"])
def test_undo_mends_the_disk_after_the_injector_was_killed_at_any_step_and_may_be_repeated(
    real_disk: Make, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = real_disk(log_dir="kafka", size_bytes=SMALL_BYTES)
    target, state_dir = prepare(disk), tmp_path / "state"
    for when in ("record", "preparation", "deed"):
        inject_and_die(name, target, state_dir, when, monkeypatch)
        [left] = list_injections(state_dir)
        assert not left.done
        undo(left)
        undo(left)
        left.save()  # as if the injector of the undo had died just before it removed the record
        undo(left)
        assert is_well(disk)
        assert list_injections(state_dir) == []


@pytest.mark.parametrize(("fstype", "name"), [("xfs", "shrunk"), ("btrfs", "quota"), ("btrfs", "metadata-damage")])
def test_that_holds_on_other_file_systems(
    real_disk: Make, tmp_path: Path, fstype: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = real_disk(fstype=fstype)
    target, state_dir = prepare(disk), tmp_path / "state"
    for when in ("record", "deed"):
        inject_and_die(name, target, state_dir, when, monkeypatch)
        [left] = list_injections(state_dir)
        undo(left)
        assert is_well(disk)


def test_half_of_the_files_immutable_or_moved_is_undone_too(
    real_disk: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = real_disk()
    target, state_dir = prepare(disk), tmp_path / "state"

    def after_one(call: Callable[..., object]) -> Callable[..., object]:
        def once(*arguments: object) -> None:
            call(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        return once

    for name, place, attribute in (
        ("immutable", syscalls, "set_inode_flags"),
        ("directory-deleted", Path, "rename"),
        ("swapped-disk", syscalls, "umount"),
    ):
        with monkeypatch.context() as patch:
            pid = os.fork()
            if pid == 0:
                try:
                    patch.setattr(place, attribute, after_one(getattr(place, attribute)))
                    inject(name, target, state_dir=state_dir)
                finally:
                    os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        [left] = list_injections(state_dir)
        undo(left)
        assert is_well(disk), name


def test_a_frozen_file_system_is_thawed_although_its_path_leads_elsewhere(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk()
    injection = inject("freeze", prepare(disk), state_dir=tmp_path / "state")
    disk.over_mount()
    undo(injection)
    disk.unmount()
    assert is_well(disk)


def test_what_somebody_else_has_frozen_stays_frozen(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk()
    disk.freeze()
    with pytest.raises(FaultsError, match="somebody else has frozen it already"):
        inject("freeze", Target.of(disk), state_dir=tmp_path / "state")
    assert list_injections(tmp_path / "state") == []
    assert syscalls.thaw(disk.mount_point)


def test_a_fault_that_fails_half_way_is_undone_and_says_why_in_one_line(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk()
    target = prepare(disk)
    with (
        open(disk.log_dir / "probe", "r+b"),
        pytest.raises(FaultsError, match=rf"open for writing by .*{os.getpid()} \(\w+\): take bind-ro"),
    ):
        inject("remount-ro", target, state_dir=tmp_path / "state")
    assert list_injections(tmp_path / "state") == []
    assert is_well(disk)


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("explode", {}, "no fault 'explode': see kjbod faults list"),
        ("hang", {"ms": 3}, "hang has no option ms"),
        ("quota", {}, "quota does not exist on ext4: .*"),
        (
            "meta-properties-replaced",
            {},
            r"/.*/meta.properties: No such file or directory: format the directory first .*",
        ),
    ],
)
def test_what_cannot_be_injected_is_one_clear_line(
    real_disk: Make, tmp_path: Path, name: str, options: dict[str, int], line: str
) -> None:
    with pytest.raises(FaultsError, match=f"^{line}$"):
        inject(name, Target.of(real_disk()), state_dir=tmp_path / "state", options=options)
    assert list_injections(tmp_path / "state") == []


def test_one_fault_at_a_time_on_a_disk(real_disk: Make, tmp_path: Path) -> None:
    target = Target.of(real_disk())
    injection = inject("eio", target, state_dir=tmp_path / "state")
    with pytest.raises(FaultsError, match=f"eio is injected already; .*undo {injection.id}"):
        inject("hang", target, state_dir=tmp_path / "state")
    undo(injection)


def test_that_is_so_also_where_the_disk_is_mounted_at_two_places(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk()
    target, second = Target.of(disk), tmp_path / "second"
    second.mkdir()
    syscalls.mount(str(disk.mount_point), second, "", syscalls.MS_BIND)
    try:
        injection = inject("freeze", replace(target, mount_point=second, log_dir=second), state_dir=tmp_path / "state")
        with pytest.raises(FaultsError, match="freeze is injected already"):
            inject("full", target, state_dir=tmp_path / "state")
        undo(injection)
    finally:
        syscalls.umount(second, syscalls.MNT_DETACH)
    prepare(disk)
    assert is_well(disk)


def test_the_records_must_not_lie_on_the_disk_that_breaks(real_disk: Make) -> None:
    disk = real_disk()
    with pytest.raises(FaultsError, match="lies on the disk that is to break"):
        inject("freeze", Target.of(disk), state_dir=disk.mount_point / "state")


def test_a_disk_that_is_gone_has_nothing_left_to_undo(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk()
    injection = inject("umount", Target.of(disk), state_dir=tmp_path / "state")
    disk.close()
    undo(injection)
    assert os.listdir(tmp_path / "state") == []


@pytest.fixture
def after_a_reboot(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    yield lambda: monkeypatch.setattr(catalog, "boot_id", lambda: "another")


def test_after_a_reboot_what_the_kernel_forgot_is_forgotten_and_what_is_on_the_disk_is_undone(
    real_disk: Make, tmp_path: Path, after_a_reboot: Callable[[], None]
) -> None:
    frozen, immutable = real_disk(), real_disk()
    state_dir = tmp_path / "state"
    inject("slow", prepare(frozen), state_dir=state_dir)
    inject("immutable", prepare(immutable), state_dir=state_dir)
    after_a_reboot()
    for injection in list_injections(state_dir):
        undo(injection)
    assert frozen.state()["delay_us"] == 200_000, "nobody touched it: after a real reboot there is no such delay"
    assert is_well(immutable)


def test_files_are_not_undone_on_another_file_system_that_is_now_at_that_place(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk()
    injection = inject("permissions", prepare(disk), state_dir=tmp_path / "state")
    disk.over_mount()
    before = disk.mount_point.stat().st_mode
    with pytest.raises(FaultsError, match="is not mounted there: mount it, then"):
        undo(injection)
    assert disk.mount_point.stat().st_mode == before
    disk.unmount()
    undo(injection)
    assert is_well(disk)


def test_a_swapped_disk_is_an_empty_one_of_the_same_type(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk()
    injection = inject("swapped-disk", prepare(disk), state_dir=tmp_path / "state")
    [other] = mounts_on(disk.mount_point)
    assert other.fstype == disk.fstype
    assert os.listdir(disk.mount_point) == ["lost+found"]
    loop = Path("/sys/block") / Path(other.source).name / "loop"
    undo(injection)
    assert is_well(disk)
    wait_until(lambda: not loop.exists(), 10, "the other disk's loop device to clear itself")


def test_an_other_disk_goes_with_the_disk_that_it_was_swapped_for(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk()
    injection = inject("swapped-disk", prepare(disk), state_dir=tmp_path / "state")
    disk.close()
    assert [mount for mount in mounts() if tmp_path in mount.mount_point.parents] == []
    undo(injection)
    assert os.listdir(tmp_path / "state") == []


def test_a_file_system_of_the_same_type_with_the_same_device_number_is_another_one(
    real_disk: Make, tmp_path: Path, after_a_reboot: Callable[[], None]
) -> None:
    for fstype in FILE_SYSTEMS:
        disk = real_disk(fstype=fstype)
        injection = inject("permissions", prepare(disk), state_dir=tmp_path / "state")
        disk.unmount()
        wait_until(lambda device=disk.device: not loop_file(device).exists(), 10, "the loop device to clear itself")  # type: ignore[misc]
        disk.format()
        disk.mount()
        after_a_reboot()
        with pytest.raises(FaultsError, match="is not mounted there: mount it, then"):
            undo(injection)
        catalog.forget(injection)


def loop_file(device: Path) -> Path:
    return Path("/sys/block") / device.name / "loop"


@pytest.mark.parametrize("name", ["no-inodes", "directory-deleted"])
def test_undo_follows_no_link_that_somebody_put_there_since(real_disk: Make, tmp_path: Path, name: str) -> None:
    disk = real_disk(log_dir="kafka", size_bytes=SMALL_BYTES)
    injection = inject(name, prepare(disk), state_dir=tmp_path / "state")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    hidden = disk.mount_point / injection.hidden_name
    moved = hidden.rename(disk.mount_point / "moved")
    next(moved.iterdir()).unlink()  # an inode, for the link
    hidden.symlink_to(precious)
    with contextlib.suppress(FaultsError):
        undo(injection)
    assert os.listdir(precious) == ["file"]


def test_a_log_directory_that_became_a_link_is_not_followed(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk(log_dir="kafka")
    injection = inject("meta-properties-replaced", prepare(disk), state_dir=tmp_path / "state")
    disk.log_dir.rename(disk.mount_point / "moved")
    disk.log_dir.symlink_to(tmp_path)
    with pytest.raises(FaultsError, match="has become a symbolic link"):
        undo(injection)
    assert not (tmp_path / "meta.properties").exists()


def test_a_mount_that_somebody_made_since_the_fault_stays(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk()
    target, state_dir = prepare(disk), tmp_path / "state"
    for name in ("umount", "swapped-disk", "over-mount", "bind-ro"):
        injection = inject(name, target, state_dir=state_dir)
        syscalls.mount("somebody", disk.mount_point, "tmpfs")
        with pytest.raises(FaultsError, match="somebody was mounted there since the fault: unmount it, then"):
            undo(injection)
        assert "somebody was mounted there" in list_injections(state_dir)[0].undo_error
        assert mounts_on(disk.mount_point)[-1].source == "somebody"
        syscalls.umount(disk.mount_point)
        undo(injection)
        assert is_well(disk), name


def test_what_somebody_else_made_meanwhile_is_not_overwritten_by_undo(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk(log_dir="kafka")
    injection = inject("directory-deleted", prepare(disk), state_dir=tmp_path / "state")
    disk.log_dir.mkdir()
    (disk.log_dir / "t-0").mkdir()
    with pytest.raises(FaultsError, match="was made since the fault and is not empty"):
        undo(injection)
    (disk.log_dir / "t-0").rmdir()
    undo(injection)
    assert is_well(disk)
    injection = inject("meta-properties-replaced", Target.of(disk), state_dir=tmp_path / "state")
    (disk.log_dir / "meta.properties").write_bytes(b"formatted anew")
    with pytest.raises(FaultsError, match="was changed since the fault"):
        undo(injection)
    (disk.log_dir / "meta.properties").unlink()
    undo(injection)
    assert is_well(disk)


def test_a_record_that_is_not_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.fault").write_text("{}")
    with pytest.raises(FaultsError, match=r"x\.fault: not a record of kjbod faults"):
        list_injections(tmp_path)


def test_every_fault_says_what_it_does_and_what_to_expect_or_why_it_does_not_exist() -> None:
    for fault in FAULTS.values():
        assert all((fault.title, fault.does, fault.needs, fault.says))
        assert not any("\n" in text for text in (fault.title, fault.does, fault.needs, fault.says))
        for fstype in FILE_SYSTEMS:
            if fstype in fault.file_systems:
                expectation = fault.expect(fstype)
                assert expectation.states == ("failed",) or expectation.why
            else:
                assert fault.not_on[fstype]
                with pytest.raises(FaultsError, match=f"{fault.name} does not exist on {fstype}"):
                    fault.expect(fstype)

"""A helper that lets go of a disk, so that it can be unmounted, and takes hold of what is mounted there next."""

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from kjbod.faults import syscalls
from kjbod.faults.disks import RealDisk
from kjbod.faults.orders import FaultMode
from kjbod_guard import helper
from kjbod_guard.actions import Outcome
from scripts.rig.processes import wait_until
from tests.guard.helper_rig import HOLDER, PATIENCE_S, Make, Open, Process, outcome, refusal, state

DONE = Outcome.DONE
IN_TIME_MS: Final = 1 << 50
"""A moment of CLOCK_MONOTONIC that no host reaches."""


def umount(disk: RealDisk) -> None:
    """Unmount it as an operator does, not lazily; again where it is busy: the child of the helper that closes it last
    answers before it has ended."""

    def unmounted() -> bool:
        try:
            syscalls.umount(disk.mount_point, 0)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    wait_until(unmounted, 10, f"{disk.mount_point} to be free")


async def test_a_disk_that_was_cut_is_unmounted_and_the_next_one_at_its_place_is_cut_too(
    real_disk: Make, open_hand: Open
) -> None:
    disk, other = real_disk(log_dir="kafka"), real_disk(log_dir="kafka")
    link, path = await open_hand(disk.log_dir, other.log_dir), str(disk.log_dir)
    assert outcome(await link.cut(path, IN_TIME_MS)) is DONE
    with pytest.raises(OSError, match="busy"):
        syscalls.umount(disk.mount_point, 0)
    assert outcome(await link.let_go(path)) is DONE
    assert outcome(await link.let_go(path)) is DONE, "once more changes nothing"
    umount(disk)
    assert link.directories[path].reason == "the guard has let go of it"
    assert "is not held" in refusal(await link.cut(path, IN_TIME_MS)) and "is not held" in refusal(
        await link.mask(path)
    )
    disk.format()
    disk.mount()
    (disk.mount_point / "lost+found").rmdir()
    disk.log_dir.mkdir()
    assert outcome(await link.freeze(path)) is DONE
    assert link.directories[path].reason is link.directories[path].no_cut is None
    assert outcome(await link.mask(path)) is DONE and outcome(await link.unmask(path)) is DONE
    with (disk.log_dir / "0.log").open("wb", buffering=0) as file:
        assert outcome(await link.cut(path, IN_TIME_MS)) is DONE
        with pytest.raises(OSError, match="Input/output"):
            file.write(b"x")
    (other.log_dir / "alive").write_bytes(b"x")


async def test_a_directory_that_was_missing_or_hung_when_the_guard_started_is_frozen_when_it_is_well(
    real_disk: Make, open_hand: Open, tmp_path: Path
) -> None:
    missing, later = real_disk(tmp_path / "d1", log_dir="kafka"), real_disk(log_dir="kafka")
    umount(missing)
    link = await open_hand(missing.log_dir, later=(str(later.log_dir),))
    assert "not well when the guard was started" in refusal(await link.cut(str(later.log_dir), IN_TIME_MS))
    assert "No such file" in refusal(await link.cut(str(missing.log_dir), IN_TIME_MS))
    done = await link.freeze(str(missing.log_dir))
    assert (outcome(done), done.reason) == (Outcome.FAILED, "No such file or directory")
    missing.mount()
    for disk in (missing, later):
        assert outcome(await link.freeze(str(disk.log_dir))) is DONE
        assert outcome(await link.cut(str(disk.log_dir), IN_TIME_MS)) is DONE


async def test_what_was_not_told_when_it_started_is_never_frozen(
    real_disk: Make, open_hand: Open, tmp_path: Path
) -> None:
    disk, foreign = real_disk(tmp_path / "d1", log_dir="kafka"), real_disk(log_dir="kafka")
    link, path = await open_hand(disk.log_dir), str(disk.log_dir)
    assert "is no log directory that was frozen" in refusal(await link.freeze(str(foreign.log_dir)))
    assert outcome(await link.let_go(path)) is DONE
    # Who owns the log directory may put a link in its place.
    disk.log_dir.rmdir()
    disk.log_dir.symlink_to(foreign.log_dir)
    assert f"leads to {foreign.log_dir}, and led to {path} when" in refusal(await link.freeze(path))
    disk.log_dir.unlink()
    disk.log_dir.symlink_to("/usr")
    assert "leads to /usr" in refusal(await link.freeze(path))
    assert "is not held" in refusal(await link.cut(path, IN_TIME_MS))
    disk.log_dir.unlink()
    disk.log_dir.mkdir()
    assert outcome(await link.freeze(path)) is DONE
    assert "is held" in refusal(await link.freeze(path))


async def test_what_is_mounted_there_later_is_looked_at_as_strictly_as_at_the_start(
    real_disk: Make, open_hand: Open, tmp_path: Path
) -> None:
    disk = real_disk(tmp_path / "d1", log_dir="kafka")
    link, path = await open_hand(disk.log_dir), str(disk.log_dir)
    assert outcome(await link.let_go(path)) is DONE
    (disk.mount_point / "backup").mkdir()
    assert outcome(await link.freeze(path)) is DONE
    assert "backup lies on its file system as well" in refusal(await link.cut(path, IN_TIME_MS))
    assert outcome(await link.let_go(path)) is DONE
    umount(disk)
    disk.log_dir.mkdir()  # of the host's own file system, which is under it
    assert outcome(await link.freeze(path)) is DONE
    refusal(await link.cut(path, IN_TIME_MS))


async def test_two_log_directories_of_one_disk_are_let_go_and_frozen_one_after_the_other(
    real_disk: Make, open_hand: Open
) -> None:
    disk = real_disk(log_dir="a")
    other = disk.mount_point / "b"
    other.mkdir()
    paths = [str(disk.log_dir), str(other)]
    link = await open_hand(disk.log_dir, other)
    assert outcome(await link.let_go(paths[0])) is DONE
    assert f"{paths[0]} lies on its file system as well" in refusal(await link.cut(paths[1], IN_TIME_MS)), (
        "it is to be left alone"
    )
    assert outcome(await link.let_go(paths[1])) is DONE
    umount(disk)
    disk.mount()
    for path in paths:
        assert outcome(await link.freeze(path)) is DONE
    assert [one.no_cut for one in link.directories.values()] == [None, None]


async def test_cuts_are_counted_for_each_file_system_and_all_together(real_disk: Make, open_hand: Open) -> None:
    disk = real_disk(log_dir="kafka")
    written = os.open(disk.mount_point, os.O_RDONLY)
    os.fsync(written)  # a cut loses what is not
    os.close(written)
    link, path = await open_hand(disk.log_dir), str(disk.log_dir)
    for number in range(helper.CUTS_EVER_MAX):
        if number and number % helper.CUTS_MAX == 0:
            assert f"was cut {helper.CUTS_MAX} times" in refusal(await link.cut(path, IN_TIME_MS))
            assert outcome(await link.let_go(path)) is DONE
            umount(disk)
            disk.mount()
            assert outcome(await link.freeze(path)) is DONE
        assert outcome(await link.cut(path, IN_TIME_MS)) is DONE
    assert outcome(await link.let_go(path)) is DONE
    umount(disk)
    disk.mount()
    assert outcome(await link.freeze(path)) is DONE
    assert f"were cut {helper.CUTS_EVER_MAX} times" in refusal(await link.cut(path, IN_TIME_MS))


async def test_a_disk_of_another_process_is_not_frozen_while_the_broker_runs(
    real_disk: Make, open_hand: Open, run: Callable[..., Process]
) -> None:
    disk, other = real_disk(log_dir="kafka"), real_disk(log_dir="kafka")
    broker = run(HOLDER, other.log_dir)
    link = await open_hand(disk.log_dir, other.log_dir, broker=broker.identity)
    assert outcome(await link.let_go(str(disk.log_dir))) is DONE
    rival = run(HOLDER, disk.log_dir)
    assert f"process {rival.pid} holds its .lock" in refusal(await link.freeze(str(disk.log_dir)))
    rival.end()
    assert outcome(await link.freeze(str(disk.log_dir))) is DONE


async def test_the_hand_goes_on_when_a_disk_that_hangs_is_let_go_or_frozen(
    real_disk: Make, open_hand: Open, run: Callable[..., Process]
) -> None:
    disk, well = real_disk(log_dir="kafka"), real_disk(log_dir="kafka")
    link, path = await open_hand(disk.log_dir, well.log_dir), str(disk.log_dir)
    with (disk.log_dir / "0.log").open("wb", buffering=0) as file:
        file.write(b"x")
    disk.set(FaultMode.HANG)
    try:
        disk.unmount()  # lazily: who closes it last waits for the disk
        assert outcome(await link.let_go(path)) is Outcome.PENDING
        assert outcome(await link.cut(str(well.log_dir), IN_TIME_MS)) is DONE
        # The child of the cut has answered, and may still wait for its disk, which is well, at its end.
        await asyncio.to_thread(
            wait_until, lambda: len(stuck_children_of(link.pid)) == 1, PATIENCE_S, "the one child that hangs"
        )
    finally:
        disk.set(FaultMode.OK)
    await asyncio.to_thread(wait_until, lambda: not stuck_children_of(link.pid), PATIENCE_S, "a disk that is closed")


def stuck_children_of(pid: int) -> list[int]:
    """Those that wait for a disk at this moment."""
    stuck = []
    for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            stuck += [int(one)] if state(int(one)) == "D" else []
    return stuck


async def test_a_process_is_known_by_the_directories_that_are_still_held(
    real_disk: Make, open_hand: Open, run: Callable[..., Process]
) -> None:
    disk, other = real_disk(log_dir="kafka"), real_disk(log_dir="kafka")
    link = await open_hand(disk.log_dir, other.log_dir)
    assert outcome(await link.let_go(str(disk.log_dir))) is DONE
    broker = run(HOLDER, disk.log_dir)
    assert "does not hold .lock" in refusal(await link.hold(*broker.identity))
    assert outcome(await link.freeze(str(disk.log_dir))) is DONE
    assert outcome(await link.hold(*broker.identity)) is DONE

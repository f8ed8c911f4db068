"""A ``kjbod.state.dir`` that is full, read-only, gone or silent while a guard acts: what needs it is refused in one
line, the rest goes on. On real file systems."""

import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from kjbod.ids import Uuid
from kjbod_guard.act_mode import _Scribe
from kjbod_guard.journal import NAME, Evicted, Journal, decode, encode
from kjbod_host.files.file_process import FileProcess
from scripts.rig.processes import Processes, wait_until
from tests.agent.daemon_cluster import Cluster
from tests.guard.conftest import Beside
from tests.guard.test_action_runner import CUT_AFTER_MS, WELL, Guard, World
from tests.guard.test_copies import NODE

ROOM = "64k"


@pytest.fixture
def small(as_root: None, tmp_path: Path) -> Iterator[Path]:
    """A small file system."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "none", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
async def files(world: None) -> AsyncIterator[FileProcess]:
    process = FileProcess("kjbod-state")
    yield process
    process.close()


def fill(place: Path) -> None:
    try:
        with open(place / "more", "ab", buffering=0) as file:
            while file.write(b"x" * 512):
                pass
    except OSError:
        return


def remount(place: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", place], check=True)


def on(state: Path, files: FileProcess) -> World:
    """A broker and its cluster, beside guards whose journal is a file."""
    found = World()
    scribe = _Scribe(state / NAME, NODE, "", found.clock, files, cast(Any, SimpleNamespace()))
    found.save = scribe.save  # type: ignore[method-assign,assignment]
    return found


@pytest.mark.parametrize(
    ("damage", "mend", "reason"),
    [
        (fill, lambda place: (place / "more").unlink(), "No space left on device"),
        (lambda place: remount(place, "ro"), lambda place: remount(place, "rw"), "Read-only file system"),
    ],
    ids=["full", "read-only"],
)
async def test_a_disk_is_masked_and_not_cut_while_no_lists_can_be_kept(
    small: Path, files: FileProcess, damage: Callable[[Path], None], mend: Callable[[Path], None], reason: str
) -> None:
    """After a cut without an eviction a leader might take the broker back into the ISR, without its page cache."""
    world = on(small / "state", files)
    guard = Guard(world)
    await guard.until("suspect")  # for which nothing is written down
    damage(small)
    await guard.run(CUT_AFTER_MS + 50)
    assert world.acts == ["mask"] and guard.evicted == []
    mend(small)
    await guard.run(5_000)
    assert "cut" not in world.acts


@pytest.mark.parametrize(
    ("damage", "mend", "reason"),
    [
        (fill, lambda place: (place / "more").unlink(), "No space left on device"),
        (lambda place: remount(place, "ro"), lambda place: remount(place, "rw"), "Read-only file system"),
    ],
    ids=["full", "read-only"],
)
async def test_nothing_is_evicted_until_the_lists_can_be_kept(
    small: Path, files: FileProcess, damage: Callable[[Path], None], mend: Callable[[Path], None], reason: str
) -> None:
    world = on(small / "state", files)
    guard = Guard(world)
    await guard.until("cut")
    damage(small)
    await guard.run(1_000)
    assert world.acts == ["report", "cut"] and guard.evicted == []
    said = world.trouble[-1]
    assert re.fullmatch(rf"evict: the replica lists cannot be written down: {small}\S*: {reason}", said), said
    assert guard.acting.unwritten and said.endswith(guard.acting.unwritten)
    mend(small)
    await guard.run(5_000)
    assert world.acts == ["report", "cut", "evict"] and not guard.acting.unwritten
    written = decode((small / "state" / NAME).read_bytes(), NODE, now_ms=0, wall_ms=0)
    assert {one.before for one in written.evicted.values()} == {(2, 1, 3)} and len(written.evicted) == 3


async def test_a_state_directory_that_was_removed_is_made_anew_with_all_that_is_to_be_restored(
    tmp_path: Path, files: FileProcess
) -> None:
    state = tmp_path / "state"
    world = on(state, files)
    guard = Guard(world)
    await guard.run(10_000)
    assert world.acts == ["report", "cut", "evict"]
    rmtree(state)
    guard.acting.release(WELL)  # writes the journal, about another directory
    await guard.run(1_000)
    world.saved = (state / NAME).read_bytes()
    world.restart()
    await Guard(world).run(5_000)
    assert world.lists == [(2, 1, 3)]


def test_a_guard_whose_state_directory_is_full_or_silent_goes_on_and_says_so_until_it_can(
    tmp_path: Path, processes: Processes, beside: Callable[..., Beside], small: Path
) -> None:
    cluster = Cluster(tmp_path, processes)
    directory = cluster.directory(1, 2)
    watch = beside(cluster.configure(1, directories=2, kjbod_host="h"), guard_mode="act")
    own = watch.own.read_text().replace(str(watch.state), f"{small}/state")
    watch.own.write_text(f"{own}kjbod.reports.dir={tmp_path}/reports\n")
    guard = watch.start()
    guard.wait_for_event("guard.broker", state="absent")  # it acts

    def told() -> str:
        asked = processes.kjbod("status", "--check", *watch.arguments, name="status")
        assert asked.wait() == 1, asked.stdout() + asked.stderr()
        return asked.stdout()

    def release() -> None:
        asked = processes.kjbod("guard", "release", str(directory), *watch.arguments, name="release")
        assert asked.wait() == 0, asked.stderr()

    assert "replica lists are not kept" not in told()
    state = children_named("kjbod-state", guard.pid)[0]
    cases: tuple[tuple[Callable[[], None], Callable[[], None], str], ...] = (
        (partial(fill, small), (small / "more").unlink, "No space left on device"),
        (partial(os.kill, state, signal.SIGSTOP), partial(os.kill, state, signal.SIGCONT), "did not answer within"),
    )
    for damage, mend, reason in cases:
        damage()
        release()
        said = guard.wait_for_event("guard.journal.not.written", where=because(reason))
        assert f"nothing can be evicted or demoted, replica lists are not kept: {said['reason']}" in told()
        mend()
        wait_until(lambda: "replica lists are not kept" not in told(), 60, "the journal to be written again")
    assert guard.stop() == 0


def test_a_guard_that_observes_says_what_one_that_acted_has_left(
    tmp_path: Path, processes: Processes, beside: Callable[..., Beside]
) -> None:
    cluster = Cluster(tmp_path, processes)
    watch = beside(cluster.configure(1, directories=2, kjbod_host="h"))
    watch.state.mkdir()
    lost = Evicted(directory_id=str(Uuid.of(5, 1)), topic="load", before=(1, 2), at_ms=0)
    journal = watch.state / NAME
    journal.write_bytes(encode(Journal(evicted={(Uuid.of(7, 7), 0): lost}), 1, ahead_ms=0))
    guard = watch.start()
    left = "a guard that acted has left 1 partition evicted: only one that acts undoes that (kjbod.guard.mode=act)"
    told = guard.wait_for_event("guard.left.behind")["reason"]
    assert told.startswith(left) and told.endswith(f"where it was put back by hand: move {journal} away")
    watch.wait_until_answering()
    asked = processes.kjbod("status", "--check", *watch.arguments, name="status")
    assert asked.wait() == 1 and left in asked.stdout()
    asked = processes.kjbod("guard", "restore", *watch.arguments, name="restore")
    assert asked.wait() == 1 and "only one that acts undoes" in asked.stderr()
    assert guard.stop() == 0

    journal.write_text("{")
    again = watch.start("again")
    assert str(journal) in again.wait_for_event("guard.journal.not.read")["reason"]
    watch.wait_until_answering()
    assert again.stop() == 0


def because(reason: str) -> Callable[[dict[str, Any]], bool]:
    return lambda line: reason in line["reason"]


def children_named(name: str, pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children() if child.name() == name]

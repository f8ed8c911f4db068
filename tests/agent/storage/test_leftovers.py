"""Starts of an agent beside a worker that an earlier one had to leave behind."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kjbod.faults.disks import FaultMode, RealDisk
from kjbod.runtime.waiting import process_sleep
from kjbod_host.storage import leftovers
from scripts.rig.processes import wait_until

AGENT = """
import asyncio, json, sys
from kjbod.clock import SystemClock
from kjbod.errors import StorageError
from kjbod_host.storage.posix import PosixStorageAgent
from kjbod_host.storage.api import StorageOptions
def say(**words):
    print(json.dumps(words), flush=True)
async def main(path, timeout_ms):
    storage = PosixStorageAgent(StorageOptions(clock=SystemClock()))
    await storage.start()
    agent = storage.directory(path)
    try:
        await agent.load(timeout_ms=int(timeout_ms))
        await agent.probe(full=False, timeout_ms=60_000)
        while len(storage.process_ids()) < 3:
            await asyncio.sleep(0.01)
        say(loaded=agent.worker_pid, all=storage.process_ids())
        sys.stdin.readline()
        probe = asyncio.create_task(agent.probe(full=False, timeout_ms=600_000))
        while not probe.done():
            blocked = agent.blocked()
            if blocked is not None and blocked.age_ms > 1000 and blocked.process_state == "D":
                say(stuck=blocked.call)
                break
            await asyncio.sleep(0.05)
    except StorageError as error:
        blocked = agent.blocked()
        held = None if blocked is None else [blocked.call, blocked.pid, blocked.process_state]
        say(error=str(error), kind=type(error).__name__, blocked=held)
    sys.stdin.readline()
asyncio.run(main(*sys.argv[1:]))
"""


class Agent:
    """A process with a storage agent of one directory, ended by SIGKILL."""

    def __init__(self, path: Path, timeout_ms: int = 60_000) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(path), str(timeout_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            cwd="/",
        )

    def said(self) -> dict[str, object]:
        assert self.process.stdout is not None
        line: dict[str, object] = json.loads(self.process.stdout.readline())
        return line

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def agent(path: Path, timeout_ms: int = 60_000) -> Iterator[Agent]:
    made = Agent(path, timeout_ms)
    with made.process:
        yield made
        made.process.kill()


def stuck_workers(path: Path) -> list[int]:
    pids = leftovers.named_processes().get(leftovers.worker_name("broker", str(path)), [])
    return [pid for pid in pids if process_sleep(pid)[0] == "D"]


def leave_one_behind(disk: RealDisk, break_it: Callable[[], None]) -> int:
    """A worker that is stuck in the disk, of an agent that was killed."""
    with agent(disk.log_dir) as first:
        worker = first.said()["loaded"]
        assert isinstance(worker, int)
        break_it()
        first.go_on()
        assert first.said()["stuck"]
    assert process_sleep(worker)[0] == "D"
    return worker


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("fault", ["freeze", "hang of writes"])
def test_any_number_of_starts_leaves_one_stuck_process_and_says_that_the_directory_does_not_answer(
    real_disk: Callable[..., RealDisk], fault: str
) -> None:
    disk = real_disk()
    break_it = disk.freeze if fault == "freeze" else lambda: disk.set(FaultMode.HANG_WRITES)
    try:
        worker = leave_one_behind(disk, break_it)
        for _ in range(3):
            with agent(disk.log_dir, timeout_ms=700) as again:
                said = again.said()
            assert said["kind"] == "DirectoryTimeout"
            assert f"a call of an earlier agent, whose worker (pid {worker}) is stuck in it" in str(said["error"])
            assert said["blocked"] == ["a call of an earlier agent", worker, "D"], (
                "the health monitor judges it by that"
            )
            assert stuck_workers(disk.log_dir) == [worker]
    finally:
        disk.set(FaultMode.OK)
        disk.thaw()
    with agent(disk.log_dir) as last:
        assert "loaded" in last.said(), "when it is gone the directory is as good as ever"


@pytest.mark.usefixtures("as_root")
def test_a_start_does_not_wait_long_for_a_worker_that_hangs_in_a_device(real_disk: Callable[..., RealDisk]) -> None:
    disk = real_disk()
    try:
        leave_one_behind(disk, lambda: disk.set(FaultMode.HANG_WRITES))
        with agent(disk.log_dir, timeout_ms=600_000) as again:
            assert again.said()["kind"] == "DirectoryTimeout"
    finally:
        disk.set(FaultMode.OK)


@pytest.mark.usefixtures("as_root")
def test_a_replacement_disk_at_the_same_path_does_not_wait_for_the_worker_in_the_old_one(
    real_disk: Callable[..., RealDisk],
) -> None:
    disk = real_disk()
    try:
        worker = leave_one_behind(disk, lambda: disk.set(FaultMode.HANG_WRITES))
        disk.unmount()
        real_disk(disk.mount_point)
        with agent(disk.log_dir) as again:
            assert "loaded" in again.said()
            assert process_sleep(worker)[0] == "D"
    finally:
        disk.set(FaultMode.OK)
    wait_until(lambda: process_sleep(worker)[0] in ("", "Z"), 10, "end of the stuck worker")


@pytest.mark.usefixtures("world")
def test_processes_say_what_they_are_for(tmp_path: Path) -> None:
    path = tmp_path / "log dir with a name that is longer than what the kernel keeps of a process"
    path.mkdir()
    with agent(path) as running:
        pids = running.said()["all"]
        assert isinstance(pids, list)
        expected = ["kjbod-zygote", "kjbod-keeper of the .lock files", f"kjbod-worker broker {path}"]

        def titles() -> list[str]:
            return [Path(f"/proc/{pid}/cmdline").read_bytes().strip(b"\0").decode() for pid in pids]

        # A process is told of before it has had its first turn.
        wait_until(lambda: titles() == expected, 10, f"{expected} instead of {titles()}")
        assert leftovers.named_processes()[leftovers.worker_name("broker", str(path))] == [pids[2]]


@pytest.mark.usefixtures("as_root")
def test_a_process_of_another_user_is_nobody_s_left_over_worker_whatever_its_name_and_its_owner_in_proc(
    tmp_path: Path,
) -> None:
    name = leftovers.worker_name("broker", str(tmp_path))
    pretend = (
        "import os, sys, ctypes, signal\n"
        "ctypes.CDLL(None).prctl(15, sys.argv[1].encode())\n"
        "uid = int(sys.argv[2]); os.setresuid(uid, 0, 0)\n"
        "print(flush=True); signal.pause()\n"
    )
    for uid, found in ((65534, False), (0, True)):
        command = [sys.executable, "-c", pretend, name, str(uid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/") as other:
            assert other.stdout is not None and other.stdout.readline()
            assert Path(f"/proc/{other.pid}").stat().st_uid == 0
            assert (leftovers.named_processes().get(name) == [other.pid]) is found
            other.kill()


def test_names_differ_by_role_and_path_and_fit_into_what_the_kernel_keeps(tmp_path: Path) -> None:
    names = {
        leftovers.worker_name(role, str(path))
        for role in ("broker", "guard")
        for path in (tmp_path, tmp_path / "b", Path("/no/such/place"))
    }
    assert len(names) == 6
    assert all(len(name.encode()) <= 15 for name in names)


def test_a_process_that_does_not_wait_in_the_kernel_or_has_another_name_is_in_nobodys_way() -> None:
    name = Path("/proc/self/comm").read_text().strip()
    assert leftovers.stuck(name, [os.getpid(), 1 << 30]) is None

"""The helper on real disks, processes and connections: what it does, and what it refuses."""

import asyncio
import errno
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from kjbod.clock import SystemClock
from kjbod.faults import syscalls
from kjbod.faults.orders import FaultMode
from kjbod_guard import helper, helper_broker, helper_kernel, helper_requests, helper_rights, surroundings
from kjbod_guard.actions import Done, Helper, Outcome, Verb
from kjbod_guard.helper_link import Facts, HelperLink, start_helper
from kjbod_guard.helper_netlink import go_on, reset, reset_for, table_of, unreset
from scripts.rig.processes import wait_until
from tests.guard.helper_rig import HOLDER, PATIENCE_S, Make, Open, Process, outcome, refusal, state

IN_TIME_MS: Final = 1 << 50
"""A moment of CLOCK_MONOTONIC that no host reaches: a cut that need not hurry."""
APPENDER = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(fd, b"x" * 4096)
print("open", flush=True)
signal.sigwait({signal.SIGUSR1})
try:
    os.write(fd, b"x" * 4096)
    print("written", flush=True)
except OSError as error:
    print(error.errno, flush=True)
"""
"""Kafka's appends: into the page cache, the next one when it is told to.

An append that waits already, for a journal's block that the disk has got, stays where it is, also after a cut.
"""
SYNCER = """
import fcntl, os, sys, time
lock = open(sys.argv[2] + "/.lock", "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
print("open", flush=True)
while True:
    os.write(fd, b"x" * 4096)
    os.fsync(fd)
    time.sleep(0.01)
"""
"""Kafka's checkpoints. What waits for blocks that the disk has got stays there, also after a cut."""
# ------------------------------------------------------------------------------------------------------------ a program


def test_it_starts_without_anything_of_kjbod_but_itself(world: None) -> None:
    program = (
        "import runpy, sys; runpy.run_path(sys.argv[1], run_name='helper');"
        "print(*sorted(one for one in sys.modules if one not in sys.stdlib_module_names))"
    )
    root = str(Path(helper.__file__).parents[1])
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({root!r}); {program}", helper.__file__],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    ours = {one for one in said if one.startswith("kjbod")}
    assert ours == {
        "kjbod_guard",
        "kjbod_guard.helper_broker",
        "kjbod_guard.helper_directory",
        "kjbod_guard.helper_freezing",
        "kjbod_guard.helper_kernel",
        "kjbod_guard.helper_netlink",
        "kjbod_guard.helper_requests",
        "kjbod_guard.helper_resets",
        "kjbod_guard.helper_rights",
    }
    assert {one.partition(".")[0] for one in said} - {"kjbod_guard", "__main__"} <= sys.stdlib_module_names


def test_its_verbs_are_those_of_the_means_and_its_system_directories_those_of_the_survey() -> None:
    beside = {"hold", "let_go", "freeze"}
    assert set(helper_requests.DEADLINES_MS) == {*map(str, Verb), *beside} == set(helper_rights.RIGHTS)
    assert helper_kernel.SYSTEM_DIRECTORIES == surroundings.SYSTEM_DIRECTORIES


async def test_it_is_a_hand(open_hand: Open) -> None:
    link: Helper = await open_hand()
    assert outcome(await link.kill()) is Outcome.REFUSED


# ------------------------------------------------------------------------------------------------------------------ cut


@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
async def test_a_cut_of_a_hung_disk_gives_an_open_file_an_error(
    real_disk: Make, open_hand: Open, run: Callable[..., Process], fstype: str
) -> None:
    disk = real_disk(fstype=fstype, log_dir="kafka")
    other = real_disk(log_dir="kafka")
    broker = run(HOLDER, other.log_dir)
    link = await open_hand(disk.log_dir, other.log_dir, broker=broker.identity)
    assert all(one.reason is one.no_cut is one.no_mask is None for one in link.directories.values()), link.directories
    appender = run(APPENDER, disk.log_dir / "0.log")
    syncer = run(SYNCER, disk.log_dir / "1.log", disk.log_dir)
    disk.set(FaultMode.HANG)
    try:
        wait_until(lambda: state(syncer.pid) == "D", PATIENCE_S, "a process that waits for its disk")
        assert outcome(await link.cut(str(disk.log_dir), IN_TIME_MS)) in (Outcome.DONE, Outcome.PENDING)
        os.kill(appender.pid, signal.SIGUSR1)
        assert await asyncio.to_thread(appender.line) == str(errno.EIO)
        # The others are not touched, and the helper goes on.
        (other.log_dir / "1.log").write_bytes(b"x")
        assert await link.threads() == ()
        assert outcome(await link.cut(str(disk.log_dir), IN_TIME_MS)) in (Outcome.DONE, Outcome.PENDING)
    finally:
        disk.set(FaultMode.OK)


async def test_a_stuck_thread_is_named_with_its_file_and_since_when(
    real_disk: Make, open_hand: Open, run: Callable[..., Process]
) -> None:
    disk, well = real_disk(log_dir="kafka"), real_disk(log_dir="kafka")
    broker = run(SYNCER, disk.log_dir / "0.log", well.log_dir)
    link = await open_hand(disk.log_dir, well.log_dir, broker=broker.identity)
    disk.set(FaultMode.HANG)
    try:
        wait_until(lambda: state(broker.pid) == "D", PATIENCE_S, "a thread that waits for its disk")
        first = await link.threads()
        second = await link.threads()
    finally:
        disk.set(FaultMode.OK)
    assert not isinstance(first, Done) and not isinstance(second, Done)
    assert [(one.tid, one.directory, one.file, one.call) for one in first] == [
        (broker.pid, str(disk.log_dir), str(disk.log_dir / "0.log"), "fsync")
    ]
    assert second == first, "it has not come back, so it waits since the same moment"


async def test_what_carries_more_than_log_directories_is_not_cut(real_disk: Make, open_hand: Open) -> None:
    disk, own = real_disk(log_dir="kafka"), real_disk(log_dir="kafka")
    (disk.mount_point / "backup").mkdir()
    link = await open_hand(disk.log_dir, own.log_dir, own=(str(own.mount_point),))
    assert "backup lies on its file system as well" in refusal(await link.cut(str(disk.log_dir), IN_TIME_MS))
    assert str(own.mount_point) in refusal(await link.cut(str(own.log_dir), IN_TIME_MS))
    (disk.log_dir / "alive").write_bytes(b"x")


async def test_two_log_directories_may_share_a_disk(real_disk: Make, open_hand: Open) -> None:
    disk = real_disk(log_dir="a")
    (disk.mount_point / "b" / "deep").mkdir(parents=True)
    link = await open_hand(disk.log_dir, disk.mount_point / "b" / "deep")
    assert outcome(await link.cut(str(disk.log_dir), IN_TIME_MS)) is Outcome.DONE
    with pytest.raises(OSError, match="Input/output"):
        (disk.log_dir / "x").write_bytes(b"x")


async def test_the_host_s_own_file_systems_are_never_cut_and_its_directories_never_masked(
    open_hand: Open, as_root: None, tmp_path: Path
) -> None:
    places = [Path(one) for one in ("/", "/usr", "/var", "/home", "/tmp", "/dev", "/proc")]
    link = await open_hand(*places, tmp_path)
    for place in (*places, tmp_path):
        refusal(await link.cut(str(place), IN_TIME_MS))
    for place in places[:5]:
        assert "would be masked with it" in refusal(await link.mask(str(place)))


async def test_what_was_not_frozen_is_refused(real_disk: Make, open_hand: Open, tmp_path: Path) -> None:
    disk, foreign = real_disk(), real_disk()
    link = await open_hand(disk.log_dir, tmp_path / "missing")
    for path in (foreign.log_dir, f"{disk.log_dir}/", f"{disk.log_dir}/..", ""):
        for verb in (functools.partial(link.cut, until_ms=IN_TIME_MS), link.mask, link.unmask):
            assert "is no log directory that was frozen" in refusal(await verb(str(path)))
    assert "No such file" in refusal(await link.cut(str(tmp_path / "missing"), IN_TIME_MS))


@pytest.mark.parametrize("what", ["unmounted", "covered", "above", "twice", "swapped"])
async def test_a_disk_that_is_not_where_it_was_is_neither_cut_nor_masked(
    real_disk: Make, open_hand: Open, tmp_path: Path, what: str
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    disk, other = real_disk(base / "d1", log_dir="kafka"), real_disk(log_dir="kafka")
    link = await open_hand(disk.log_dir, other.log_dir)
    path = str(disk.log_dir)
    undo = disk.mount_point
    if what == "unmounted":
        disk.unmount()
    elif what == "covered":
        disk.over_mount()
    elif what == "above":
        syscalls.mount("none", base, "tmpfs")
        undo = base
    elif what == "swapped":
        syscalls.mount(str(other.mount_point), disk.mount_point, "", syscalls.MS_BIND)
    else:
        undo = tmp_path / "again"
        undo.mkdir()
        syscalls.mount(str(disk.mount_point), undo, "", syscalls.MS_BIND)
    refusal(await link.cut(path, IN_TIME_MS))
    if what != "twice":
        refusal(await link.mask(path))
    if what != "unmounted":
        syscalls.umount(undo, syscalls.MNT_DETACH)
        assert outcome(await link.cut(path, IN_TIME_MS)) is Outcome.DONE


async def test_a_cut_without_a_deadline_or_after_it_is_refused_and_counts_for_nothing(
    real_disk: Make, open_hand: Open
) -> None:
    disk = real_disk(log_dir="kafka")
    link, path = await open_hand(disk.log_dir), str(disk.log_dir)
    now_ms = SystemClock().monotonic_ms()
    late: list[Any] = [now_ms - 1, 0, -1, None, True, float(IN_TIME_MS), str(IN_TIME_MS)]
    for until_ms in late:
        said = refusal(await link.cut(path, until_ms))
        assert said == f"{path}: it is too late: the metadata that allowed it are old by now"
    (disk.log_dir / "alive").write_bytes(b"x")
    assert len(late) > helper.CUTS_MAX
    assert outcome(await link.cut(path, now_ms + 600_000)) is Outcome.DONE
    with pytest.raises(OSError, match="Input/output"):
        (disk.log_dir / "x").write_bytes(b"x")


CUTTER = """
import sys
sys.path.append(sys.argv[1])
from kjbod_guard import helper_freezing, helper_kernel
try:
    print(helper_kernel.cut(helper_freezing.freeze(sys.argv[2]), None, int(sys.argv[3])), flush=True)
except OSError as error:
    print(error.errno, flush=True)
"""
"""The child of a helper that cuts, without the look at the deadline that the helper takes before."""


@pytest.mark.parametrize(("until_ms", "said"), [(1, str(errno.ETIME)), (IN_TIME_MS, "None")])
def test_a_host_that_stood_still_after_the_request_was_taken_cuts_nothing_when_the_deadline_has_passed(
    real_disk: Make, run: Callable[..., Process], until_ms: int, said: str
) -> None:
    disk = real_disk(log_dir="kafka")
    is_late = until_ms != IN_TIME_MS
    assert run(CUTTER, Path(helper.__file__).parents[1], disk.log_dir, until_ms).said == said
    try:
        (disk.log_dir / "alive").write_bytes(b"x")
    except OSError as error:
        assert error.errno == errno.EIO and not is_late
    else:
        assert is_late


# ----------------------------------------------------------------------------------------------------------------- mask


async def test_a_mask_hides_the_directory_and_comes_off_again(real_disk: Make, open_hand: Open) -> None:
    disk = real_disk(log_dir="kafka")
    (disk.log_dir / "meta.properties").write_bytes(b"x")
    link = await open_hand(disk.log_dir)
    path = str(disk.log_dir)
    for _ in range(2):  # as often as is wanted
        assert outcome(await link.mask(path)) is Outcome.DONE
        assert outcome(await link.mask(path)) is Outcome.DONE, "one mask is enough"
        with pytest.raises(IsADirectoryError):
            (disk.log_dir / "meta.properties").read_bytes()
        with pytest.raises(OSError, match="Read-only"):
            (disk.log_dir / "replication-offset-checkpoint.tmp").write_bytes(b"x")
        assert outcome(await link.unmask(path)) is Outcome.DONE
        assert (disk.log_dir / "meta.properties").read_bytes() == b"x"
    assert outcome(await link.unmask(path)) is Outcome.DONE, "there is none"


async def test_a_later_hand_takes_the_mask_off_and_nothing_else(real_disk: Make, open_hand: Open) -> None:
    disk = real_disk(log_dir="kafka")
    path = str(disk.log_dir)
    assert outcome(await (await open_hand(disk.log_dir)).mask(path)) is Outcome.DONE
    later = await open_hand(disk.log_dir)
    assert later.directories[path].masked
    assert "masked" in refusal(await later.cut(path, IN_TIME_MS))
    syscalls.mount("none", disk.log_dir, "tmpfs")
    assert "something else is mounted over the mask" in refusal(await later.unmask(path))
    syscalls.umount(disk.log_dir)
    assert outcome(await later.unmask(path)) is Outcome.DONE
    (disk.log_dir / "x").write_bytes(b"x")


async def test_a_masked_disk_may_still_be_cut(real_disk: Make, open_hand: Open) -> None:
    disk = real_disk(log_dir="kafka")
    link = await open_hand(disk.log_dir)
    open_file = os.open(disk.log_dir / "0.log", os.O_WRONLY | os.O_CREAT)
    assert outcome(await link.mask(str(disk.log_dir))) is Outcome.DONE
    assert outcome(await link.cut(str(disk.log_dir), IN_TIME_MS)) is Outcome.DONE
    with pytest.raises(OSError, match="Input/output"):
        os.write(open_file, b"x")
    os.close(open_file)
    assert outcome(await link.unmask(str(disk.log_dir))) is Outcome.DONE


async def test_a_mask_is_made_where_the_broker_sees_it(
    real_disk: Make, open_hand: Open, run: Callable[..., Process]
) -> None:
    disk = real_disk(log_dir="kafka")
    broker = run(
        "import ctypes; ctypes.CDLL(None).unshare(0x20000);"
        "ctypes.CDLL(None).mount(b'none', b'/', None, 0x44000, None)\n" + HOLDER,
        disk.log_dir,
    )
    link = await open_hand(disk.log_dir, broker=broker.identity)
    seen = Path(f"/proc/{broker.pid}/root{disk.log_dir}")
    assert outcome(await link.mask(str(disk.log_dir))) is Outcome.DONE
    assert (seen / "meta.properties").is_dir()
    assert not (disk.log_dir / "meta.properties").exists()
    assert outcome(await link.unmask(str(disk.log_dir))) is Outcome.DONE
    assert not (seen / "meta.properties").exists()
    assert outcome(await link.cut(str(disk.log_dir), IN_TIME_MS)) is Outcome.DONE


# ---------------------------------------------------------------------------------------------- the broker's process


async def test_it_kills_the_holder_of_the_lock_and_nobody_else(
    tmp_path: Path, open_hand: Open, run: Callable[..., Process]
) -> None:
    broker, foreign = run(HOLDER, tmp_path), run("import time\nprint(1, flush=True)\ntime.sleep(1000)")
    pid, started = broker.identity
    link = await open_hand(tmp_path, broker=(pid, started + 1))
    assert any("is another one than that of start time" in one for one in link.missing), link.missing
    assert refusal(await link.kill()) == "no broker runs that the helper knows of"
    assert "does not hold .lock" in refusal(await link.hold(*foreign.identity))
    assert "does not hold .lock" in refusal(await link.hold(1, helper_broker.started_at(1) or 0))
    assert outcome(await link.hold(pid, started)) is Outcome.DONE
    assert outcome(await link.kill()) is Outcome.DONE
    assert await asyncio.to_thread(broker.process.wait) == -signal.SIGKILL
    assert foreign.process.poll() is None
    # Its number may be used again: the helper has seen by the pidfd that it has ended.
    assert "no broker runs" in refusal(await link.kill())
    again = run(HOLDER, tmp_path)
    assert outcome(await link.hold(*again.identity)) is Outcome.DONE
    assert outcome(await link.kill()) is Outcome.DONE


@pytest.mark.parametrize("fstype", [None, "ext4", "xfs", "btrfs"])
async def test_a_broker_whose_lock_is_another_file_after_a_clean_stop_is_known(
    fstype: str | None, tmp_path: Path, real_disk: Make, open_hand: Open, run: Callable[..., Process]
) -> None:
    directory = tmp_path if fstype is None else real_disk(fstype=fstype, log_dir="kafka").log_dir
    (other := tmp_path / "other").mkdir()
    first = run(HOLDER, directory)
    link = await open_hand(other, directory, broker=first.identity)
    for _ in range(2):
        assert outcome(await link.kill()) is Outcome.DONE
        first.end()
        (directory / ".lock").rename(directory / f"before-{first.process.pid}")  # its inode is not free
        first = run(HOLDER, directory)
        assert outcome(await link.hold(*first.identity)) is Outcome.DONE
    foreign = run("import time\nprint(1, flush=True)\ntime.sleep(1000)")
    assert outcome(await link.kill()) is Outcome.DONE
    first.end()
    assert "does not hold .lock" in refusal(await link.hold(*foreign.identity))


async def test_a_broker_that_runs_is_not_exchanged_for_another(
    tmp_path: Path, open_hand: Open, run: Callable[..., Process]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, other = run(HOLDER, tmp_path / "a"), run(HOLDER, tmp_path / "b")
    link = await open_hand(tmp_path / "a", tmp_path / "b", broker=one.identity)
    assert "has not ended" in refusal(await link.hold(*other.identity))
    assert outcome(await link.hold(*one.identity)) is Outcome.DONE
    assert outcome(await link.kill()) is Outcome.DONE
    assert await asyncio.to_thread(one.process.wait) == -signal.SIGKILL


# ---------------------------------------------------------------------------------------------------------- connections


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


async def test_connections_to_the_broker_are_reset_and_destroyed_and_others_are_not(
    tmp_path: Path, open_hand: Open, run: Callable[..., Process], as_root: None
) -> None:
    (tmp_path / "other").mkdir()
    broker, other = run(HOLDER, tmp_path), run(HOLDER, tmp_path / "other")
    port, never = int(broker.said), int(other.said)
    link = await open_hand(tmp_path, broker=broker.identity, ports=(port,), never_ports=(never,))
    with connected(port) as idle, connected(never) as untouched:
        assert outcome(await link.destroy()) is Outcome.DONE
        with pytest.raises(ConnectionResetError):
            idle.recv(1)
        untouched.send(b"x")
        with connected(port) as talking:
            assert outcome(await link.reset()) is Outcome.DONE
            assert outcome(await link.reset()) is Outcome.DONE, "once more changes nothing"
            talking.send(b"x")
            with pytest.raises(ConnectionResetError):
                talking.recv(1)
        with pytest.raises(ConnectionRefusedError):
            connected(port)
        connected(never).close()
        assert outcome(await link.unreset()) is Outcome.DONE
        connected(port).close()
        assert outcome(await link.unreset()) is Outcome.DONE, "there are none"


async def test_reset_rules_go_when_the_broker_has_ended_also_when_the_guard_has(
    tmp_path: Path, open_hand: Open, run: Callable[..., Process], as_root: None
) -> None:
    broker = run(HOLDER, tmp_path)
    port = int(broker.said)
    link = await open_hand(tmp_path, broker=broker.identity, ports=(port,))
    assert outcome(await link.reset()) is Outcome.DONE
    link.close()
    with pytest.raises(ConnectionRefusedError):
        connected(port)
    assert is_reset(port)
    broker.end()
    wait_until(lambda: not is_reset(port), PATIENCE_S, "rules that are gone")


async def test_reset_rules_of_a_killed_hand_are_kept_while_their_process_lives_whoever_finds_them(
    tmp_path: Path, open_hand: Open, run: Callable[..., Process], as_root: None
) -> None:
    broker = run(HOLDER, tmp_path)
    ports = (int(broker.said),)
    link = await open_hand(tmp_path, broker=broker.identity, ports=ports)
    assert outcome(await link.reset()) is Outcome.DONE
    os.kill(link.pid, signal.SIGKILL)
    same = await open_hand(tmp_path, broker=broker.identity, ports=ports)
    assert is_reset(*ports)
    os.kill(same.pid, signal.SIGKILL)
    stranger = await open_hand(
        tmp_path, ports=ports
    )  # of another cluster's broker with the same id and port, elsewhere
    assert is_reset(*ports)
    assert outcome(await stranger.unreset()) is Outcome.DONE
    assert is_reset(*ports)
    broker.end()
    wait_until(lambda: not is_reset(*ports), PATIENCE_S, "rules that are gone")


async def test_reset_rules_go_when_the_broker_has_ended_also_when_hand_and_guard_were_killed(
    tmp_path: Path, open_hand: Open, run: Callable[..., Process], as_root: None
) -> None:
    broker = run(HOLDER, tmp_path)
    port = int(broker.said)
    link = await open_hand(tmp_path, broker=broker.identity, ports=(port,))
    assert outcome(await link.reset()) is Outcome.DONE
    os.kill(link.pid, signal.SIGKILL)
    with pytest.raises(ConnectionRefusedError):
        connected(port)
    broker.end()
    wait_until(lambda: not is_reset(port), PATIENCE_S, "rules that are gone")


async def test_rules_that_nobody_keeps_any_more_are_void_by_themselves(
    tmp_path: Path, run: Callable[..., Process], as_root: None
) -> None:
    port = int(run(HOLDER, tmp_path).said)
    table, chain = table_of(port, [port]), "broker_1_1"
    try:
        reset(table, chain, [port], timeout_ms=60_000)
        go_on(table, chain, [port], timeout_ms=300)
        with pytest.raises(ConnectionRefusedError):
            connected(port)
        wait_until(lambda: takes(port), PATIENCE_S, "a connection")
        go_on(table, chain, [port], timeout_ms=60_000)
        assert not takes(port)
        with pytest.raises(FileNotFoundError):
            go_on(table, "broker_2_2", [port])
    finally:
        unreset(table)
    with pytest.raises(FileNotFoundError):
        go_on(table, chain, [port])


def takes(port: int) -> bool:
    try:
        connected(port).close()
    except ConnectionRefusedError:
        return False
    return True


def is_reset(port: int) -> bool:
    return reset_for(table_of(port, [port])) is not None


async def test_it_works_in_the_broker_s_network_namespace(
    tmp_path: Path, open_hand: Open, run: Callable[..., Process], as_root: None
) -> None:
    program = (
        "import ctypes, subprocess; ctypes.CDLL(None).unshare(0x40000000)\n"
        "subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)\n"
        + HOLDER.replace(
            "taken = []", "mine = socket.create_connection(listener.getsockname()); taken = [listener.accept()]"
        ).replace(
            "while True:", "\ntry: mine.recv(1)\nexcept OSError as error: print(error.errno, flush=True)\nwhile True:"
        )
    )
    broker = run(program, tmp_path)
    link = await open_hand(tmp_path, broker=broker.identity, ports=(int(broker.said),))
    assert link.apart
    assert outcome(await link.destroy()) is Outcome.DONE
    assert await asyncio.to_thread(broker.line) == str(errno.ECONNRESET)
    assert outcome(await link.reset()) is Outcome.DONE
    assert not is_reset(int(broker.said)), "the rules are in the broker's"
    assert outcome(await link.unreset()) is Outcome.DONE


async def test_a_controller_s_port_is_never_among_those_that_are_reset(open_hand: Open) -> None:
    link = await open_hand(ports=(9092, 9093), never_ports=(9093,))
    assert link.problem is not None and "port 9093 is a controller's" in link.problem
    assert outcome(await link.reset()) is Outcome.FAILED


# ------------------------------------------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize("verb", ["cut", "mask", "unmask", "kill", "reset", "unreset", "destroy", "threads", "hold"])
async def test_a_hand_that_is_killed_fails_every_means_with_one_reason(tmp_path: Path, verb: str, world: None) -> None:
    told: list[str] = []
    facts = Facts(node=1, directories=(str(tmp_path),))
    link = await HelperLink.open(start_helper(), facts, clock=SystemClock(), told=told.append)
    path = str(tmp_path)
    arguments = {"cut": (path, IN_TIME_MS), "mask": (path,), "unmask": (path,), "hold": (1, 1)}
    os.kill(link.pid, signal.SIGSTOP)
    asked = asyncio.ensure_future(getattr(link, verb)(*arguments.get(verb, ())))
    await asyncio.sleep(0)
    os.kill(link.pid, signal.SIGKILL)
    assert outcome(await asked) is Outcome.FAILED
    done = await getattr(link, verb)(*arguments.get(verb, ()))
    assert (done.outcome, done.reason) == (
        Outcome.FAILED,
        f"the privileged helper (process {link.pid}) has died: start the guard again",
    )
    assert told == [link.problem]
    link.close()


async def test_a_hand_that_does_not_answer_is_left_and_cuts_nothing_when_it_goes_on_too_late(
    real_disk: Make, open_hand: Open
) -> None:
    disk = real_disk(log_dir="kafka")
    link, path = await open_hand(disk.log_dir), str(disk.log_dir)
    os.kill(link.pid, signal.SIGSTOP)
    found = await asyncio.gather(link.cut(path, SystemClock().monotonic_ms()), link.threads())
    assert [outcome(one) for one in found] == [Outcome.PENDING, Outcome.FAILED]
    os.kill(link.pid, signal.SIGCONT)
    assert outcome(await link.kill()) is Outcome.REFUSED
    assert outcome(await link.mask(path)) is outcome(await link.unmask(path)) is Outcome.DONE
    (disk.log_dir / "alive").write_bytes(b"x")


async def test_a_request_that_hangs_leaves_the_hand_usable(
    real_disk: Make, open_hand: Open, run: Callable[..., Process]
) -> None:
    frozen, well = real_disk(log_dir="kafka"), real_disk(log_dir="kafka")
    link = await open_hand(frozen.log_dir, well.log_dir)
    # A thread that waits in a create holds the lock of the directory, for which a mount waits.
    frozen.freeze()
    creating = run("import sys\nprint(1, flush=True)\nopen(sys.argv[1], 'w')", frozen.log_dir / "x")
    try:
        wait_until(lambda: state(creating.pid) == "D", PATIENCE_S, "a create that waits")
        hung, quick = await asyncio.gather(link.mask(str(frozen.log_dir)), link.mask(str(well.log_dir)))
        assert quick.outcome is Outcome.DONE
        assert hung.outcome in (Outcome.PENDING, Outcome.DONE)
        assert outcome(await link.unmask(str(well.log_dir))) is Outcome.DONE
    finally:
        frozen.thaw()
    wait_until(lambda: (frozen.log_dir / "meta.properties").is_dir(), PATIENCE_S, "the mask that was left behind")
    assert outcome(await link.unmask(str(frozen.log_dir))) is Outcome.DONE


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"cut"',
        b"\xff\xfe",
        b"{}",
        b'{"n": 1}',
        b'{"n": "x", "verb": "kill"}',
        b'{"n": true, "verb": "kill"}',
        b'{"n": 1, "verb": []}',
        b'{"n": 1, "verb": "shutdown"}',
        b'{"n": 1, "verb": "cut"}',
        b'{"n": 1, "verb": "cut", "directory": ["/"]}',
        b'{"n": 1, "verb": "cut", "directory": 3}',
        b'{"n": 1, "verb": "hold", "pid": 999999999999999999999999, "started": 1}',
        b'{"n": 1, "verb": "hold", "pid": "x", "started": 1}',
        b'{"n": 1, "verb": "hold", "pid": -1, "started": 1}',
        b'{"n": 1, "verb": "kill", "pid": 1}',
        b"[" * 4000,
        b"x" * 5_000,
        b"x" * 10_000_000,
    ],
)
def test_what_is_no_request_is_refused_in_one_line_and_the_next_one_is_heard(line: bytes, world: None) -> None:
    started = start_helper()
    started.control.setblocking(True)
    started.control.settimeout(PATIENCE_S)
    with started.control, started.control.makefile("rwb") as wire:
        wire.write(b'{"node": 1, "directories": [], "ports": [], "never_ports": [], "own": [], "broker": null}\n')
        wire.flush()
        assert json.loads(wire.readline())["directories"] == {}
        wire.write(line + b"\n" + b'{"n": 7, "verb": "kill"}\n')
        wire.flush()
        first = json.loads(wire.readline())
        assert first["outcome"] in ("refused", "failed") and first["reason"], first
        assert json.loads(wire.readline())["n"] == 7
    assert os.waitpid(started.pid, 0)[1] == 0


@pytest.mark.parametrize("facts", [b"{}\n", b"[]\n", b"x\n", b'{"node": "1", "directories": []}\n', b""])
def test_facts_of_another_form_end_the_hand(facts: bytes, world: None) -> None:
    started = start_helper()
    started.control.setblocking(True)
    started.control.settimeout(PATIENCE_S)
    with started.control:
        started.control.sendall(facts)
        started.control.shutdown(socket.SHUT_WR)
        said = started.control.recv(1 << 16)
    assert os.waitpid(started.pid, 0)[1] == 0
    assert facts == said == b"" or "error" in json.loads(said)


async def test_without_rights_each_means_is_one_clear_refusal(
    real_disk: Make, run: Callable[..., Process], tmp_path: Path
) -> None:
    disk = real_disk(log_dir="kafka")
    disk.log_dir.chmod(0o777)
    broker = run(HOLDER.replace("taken = []", "taken = []\nos.setuid(65534)"), disk.log_dir)
    program = f"""
import asyncio, os, sys
sys.path[:] = {sys.path!r}
import ctypes
for capability in range(41):
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: the helper has none after its exec
from kjbod.clock import SystemClock
from kjbod_guard.helper_link import Facts, HelperLink, start_helper
from kjbod_guard.actions import Done
async def main():
    path = {str(disk.log_dir)!r}
    facts = Facts(node=1, directories=(path,), ports=({broker.said},), broker={broker.identity!r})
    link = await HelperLink.open(start_helper(), facts, clock=SystemClock(), told=print)
    arguments = {{"cut": (path, {IN_TIME_MS}), "mask": (path,)}}
    for name in ("cut", "mask", "kill", "threads", "reset", "unreset", "destroy"):
        done = await getattr(link, name)(*arguments.get(name, ()))
        print(done.outcome, done.reason) if isinstance(done, Done) else print(done)
    print(*link.missing, sep="; ")
    link.close()
asyncio.run(main())
"""
    command = [sys.executable, "-c", program]
    with socket.create_connection(("127.0.0.1", int(broker.said))):  # one to be destroyed
        result = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "CAP_SYS_ADMIN" in lines[0] and "CAP_SYS_ADMIN" in lines[1], lines
    assert "CAP_KILL" in lines[2], lines
    assert "CAP_NET_ADMIN" in lines[4] and "CAP_NET_ADMIN" in lines[5] and "CAP_NET_ADMIN" in lines[6], lines
    assert all(line.startswith("refused ") for line in lines[:3] + lines[4:7]), lines
    (disk.log_dir / "alive").write_bytes(b"x")


@pytest.mark.parametrize(
    ("dropped", "lacks"),
    [
        ((), []),
        ((2, 5, 14, 18), []),  # it does without them, or with a part of what it does
        ((21,), ["CAP_SYS_ADMIN is missing: no file system is shut down or over-mounted"]),
        ((19,), ["CAP_SYS_PTRACE is missing: nobody sees whether the broker is stuck"]),
        ((12,), ["CAP_NET_ADMIN is missing: clients of a killed broker wait for their time-outs"]),
        (range(41), ["CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_ADMIN"]),
    ],
)
def test_a_capability_without_which_something_is_not_done_is_one_line_that_says_what(
    dropped: Sequence[int], lacks: list[str], as_root: None
) -> None:
    program = f"""
import asyncio, ctypes, json, sys
sys.path[:] = {sys.path!r}
for capability in {list(dropped)}:
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
from kjbod.clock import SystemClock
from kjbod_guard.helper_link import Facts, HelperLink, start_helper
async def main():
    link = await HelperLink.open(start_helper(), Facts(node=1, directories=()), clock=SystemClock(), told=print)
    print(json.dumps([link.lacks, link.missing]))
    link.close()
asyncio.run(main())
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    found, missing = json.loads(said)
    assert len(found) == len(lacks) and all(map(str.startswith, found, lacks)), found
    assert missing[len(missing) - len(found) :] == found, "it is also among all that is missing"

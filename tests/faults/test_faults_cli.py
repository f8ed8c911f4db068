"""``kjbod faults`` in this process, without a disk: what is told of records, refused, and left after an interrupt."""

import errno
import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec.structs import replace

from kjbod.faults import catalog, cli, filesystem, mount_table, scratch, syscalls, watchdog
from kjbod.faults.catalog import FAULTS
from kjbod.faults.disks import DiskControl
from kjbod.faults.faults_error import FaultsError
from kjbod.faults.model import Injection, Target, boot_id, read_record
from kjbod.faults.mount_table import Mount, mount_above
from kjbod.faults.program import typed
from kjbod.faults.scratch import ScratchDisk
from kjbod.faults.state import State, state_of

Run = Callable[..., tuple[int, str, str]]
HOUR_MS = 3_600_000
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in SIGNALS]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line; its exit code and what it wrote."""
    monkeypatch.setattr(cli, "_require_root", lambda command: None)

    def run_it(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([*map(str, arguments), "--state-dir", str(tmp_path)])
        return (code, *capsys.readouterr())

    return run_it


def recorded(state_dir: Path, **changes: Any) -> Injection:
    """An injection as on record, of a fault that nothing is left of."""
    target = Target(state_dir / "disk", state_dir / "disk", "ext4")
    mounted = {"device": "7:1", "source": "/dev/loop1", "fstype": "ext4", "id": "00000000000000aa"}
    made = Injection(
        id="aaaaaa",
        fault="over-mount",
        target=target,
        state_dir=state_dir,
        details={"mounted": mounted, "mount_id": 1},
        done=True,
        boot=boot_id(),
    )
    made = replace(made, **changes)
    made.save()
    return made


def now_ms() -> float:
    return time.time() * 1000


def heals_never(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    def heal(_injection: Injection) -> NoReturn:
        raise FaultsError(reason)

    fault = replace(FAULTS["over-mount"], heal=heal)
    monkeypatch.setattr(catalog, "find_fault", lambda name: fault)


# what status says of a fault that does not end as it was to -----------------------------------------------------------


@pytest.mark.parametrize(("until_ms", "state"), [(-2000, "overdue"), (HOUR_MS, "injected")])
def test_a_timed_fault_without_its_timer_is_told(tmp_path: Path, run: Run, until_ms: float, state: str) -> None:
    injection = recorded(tmp_path, until_ms=now_ms() + until_ms)
    injection.log.touch()
    code, out, _ = run("status")
    assert code == 3
    assert out.endswith(f"\naaaaaa (over-mount on {tmp_path}/disk): {state}: its timer is gone: run undo\n")
    code, out, _ = run("status", "--json")
    assert code == 3
    assert [(told["state"], told["trouble"]) for told in json.loads(out)] == [(state, "its timer is gone: run undo")]


def test_a_watchdog_at_work_is_seen_as_long_as_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    injection = recorded(tmp_path, until_ms=now_ms() - 2000)
    injection.log.touch()
    seen = []
    monkeypatch.setattr(watchdog, "_wait", lambda injection: seen.append(state_of(injection)))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert watchdog.main(tmp_path, injection.id) == 0
    assert seen == [State("injected")]
    assert os.listdir(tmp_path) == []


def test_why_a_fault_could_not_be_undone_is_on_record(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    injection = recorded(tmp_path, until_ms=now_ms() - 1)
    heals_never(monkeypatch, "x was mounted there since the fault")
    with pytest.raises(FaultsError, match="x was mounted there"):
        catalog.undo(injection)
    code, out, _ = run("status")
    assert code == 3
    assert "overdue: could not be undone: x was mounted there since the fault\n" in out
    monkeypatch.undo()
    catalog.undo(injection)
    assert os.listdir(tmp_path) == []


def test_a_fault_that_ends_as_it_was_to_is_no_trouble(tmp_path: Path, run: Run) -> None:
    recorded(tmp_path)
    code, out, _ = run("status")
    assert (code, out.count("\n")) == (0, 2)
    assert " injected " in out


def test_a_disk_that_is_gone_is_told_by_status_and_undo(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(tmp_path / "disk", tmp_path / "disk", "ext4", DiskControl(tmp_path / "nowhere"))
    recorded(tmp_path, fault="hang", target=target)
    code, out, _ = run("status")
    assert code == 3
    assert f": gone: its disk is gone: {typed()} disk remove {tmp_path}/disk" in out
    monkeypatch.setattr(scratch, "list_disks", lambda state_dir: [])
    assert run("undo", "--all")[:2] == (0, f"over, and its disk is gone: hang on {tmp_path}/disk\n")


def test_a_disk_that_may_not_be_asked_is_not_called_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: object, flags: int) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(FaultsError, match="only root may ask it") as told:
        DiskControl(tmp_path).state()
    assert type(told.value) is FaultsError


# what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["inject", "nosuch", "/x"], "no fault 'nosuch': see kjbod faults list"),
        (["list", "nosuch"], "no fault 'nosuch': see kjbod faults list"),
        (["inject", "eio", "/x", "--ms", "5"], "eio has no option ms"),
        (
            ["disk", "create", "/x", "--log-dir", "/abs"],
            "--log-dir /abs: give the name of one directory on the disk",
        ),
        (
            ["disk", "create", "/x", "--log-dir", "../x"],
            "--log-dir ../x: give the name of one directory on the disk",
        ),
    ],
)
def test_what_makes_sense_on_no_machine_is_a_mistake_of_the_command_line(
    run: Run, arguments: list[str], line: str
) -> None:
    assert run(*arguments) == (2, "", f"kjbod faults: {line}\n")


def test_remount_ro_names_only_what_is_possible_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> NoReturn:
        raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr(syscalls, "mount", busy)
    monkeypatch.setattr(filesystem, "holders", lambda ids: ["7 (java)"])
    monkeypatch.setattr(filesystem, "mount_here", lambda injection: mount_above(Path("/")))
    injection = recorded(tmp_path, details={"flags": 0})
    disk = DiskControl(tmp_path)
    for fstype, control, advice in (
        ("ext4", None, "bind-ro"),
        ("xfs", disk, "bind-ro"),
        ("ext4", disk, "bind-ro or ext4-error-remount-ro"),
    ):
        target = replace(injection.target, fstype=fstype, disk=control)
        with pytest.raises(FaultsError, match=rf"by 7 \(java\): take {advice}$"):
            FAULTS["remount-ro"].deed(replace(injection, target=target))


def mounted(device: str, place: Path) -> Mount:
    return Mount(1, device, "/", place, ("rw",), "ext4", f"/dev/loop{device[-1]}", ("rw",))


def test_a_second_fault_on_a_file_system_is_told_where_the_first_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = recorded(tmp_path)
    target = Target(tmp_path / "other", tmp_path / "other", "ext4")
    monkeypatch.setattr(catalog, "mounts", lambda: [mounted("7:1", tmp_path / "disk"), mounted("7:1", tmp_path)])
    with pytest.raises(
        FaultsError,
        match=f"^{tmp_path}/other: over-mount is injected already on {tmp_path}/disk, where the same file system is",
    ):
        catalog._refuse_second(target, tmp_path, first.details["mounted"])


@pytest.mark.parametrize(("other_is_mounted", "same"), [(True, False), (False, True)])
def test_a_copy_of_a_disk_is_another_disk_while_both_are_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_is_mounted: bool, same: bool
) -> None:
    first = recorded(tmp_path)
    table = [mounted("7:2", tmp_path / "copy")] + [mounted("7:1", tmp_path / "disk")] * other_is_mounted
    monkeypatch.setattr(catalog, "mounts", lambda: table)
    copy = {**first.details["mounted"], "device": "7:2", "source": "/dev/loop2"}
    assert catalog._is_same_disk(first, copy) == same


# scratch disks are not taken away from somebody -----------------------------------------------------------------------


def scratch_disk(path: Path, disk_id: str) -> ScratchDisk:
    return ScratchDisk(
        id=disk_id,
        path=path,
        log_dir=path,
        fstype="ext4",
        size_bytes=1 << 26,
        directory=path / "nowhere",
        image="kjbod-disk",
        since_ms=0,
        boot=boot_id(),
        made=True,
        made_path=True,
    )


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ScratchDisk]:
    """Two, one mounted on the other, that can be removed as the kernel lets us: the upper one first."""
    there = [scratch_disk(tmp_path / "a", "aaaaaa"), scratch_disk(tmp_path / "a" / "b", "bbbbbb")]

    def remove(disk: ScratchDisk, _state_dir: Path) -> None:
        if any(disk.path in other.path.parents for other in there):
            raise FaultsError(f"{disk.path}: something is mounted below it: unmount that first")
        there.remove(disk)

    monkeypatch.setattr(scratch, "list_disks", lambda state_dir: list(there))
    monkeypatch.setattr(scratch, "remove_disk", remove)
    return there


def test_all_scratch_disks_go_also_those_on_others(tmp_path: Path, run: Run, disks: list[ScratchDisk]) -> None:
    assert run("disk", "remove", "--all") == (0, f"removed {tmp_path}/a/b\nremoved {tmp_path}/a\n", "")
    assert disks == []


def test_a_scratch_disk_in_use_is_removed_only_when_that_is_said(
    tmp_path: Path, run: Run, disks: list[ScratchDisk], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {tmp_path / "a": ["7 (java)"]}
    monkeypatch.setattr(scratch, "users_of", lambda disk, injections: used.get(disk.path, []))
    code, out, error = run("disk", "remove", "--all")
    assert (code, out) == (1, f"removed {tmp_path}/a/b\n")
    assert error == f"kjbod faults: {tmp_path}/a: in use by 7 (java): stop that first, or say --even-in-use\n"
    assert run("disk", "remove", tmp_path / "a", "--even-in-use")[0] == 0
    assert disks == []


def test_what_was_broken_on_a_removed_disk_is_told(
    tmp_path: Path, run: Run, disks: list[ScratchDisk], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(tmp_path / "a", tmp_path / "a", "ext4", DiskControl(disks[0].directory))
    recorded(tmp_path, fault="eio", target=target)
    code, out, _ = run("disk", "remove", "--all")
    assert (code, out.splitlines()[1:]) == (0, [f"gone with its disk: eio on {tmp_path}/a", f"removed {tmp_path}/a"])
    assert os.listdir(tmp_path) == []


def test_who_has_a_file_open_on_a_file_system_is_named_also_after_its_mount_was_detached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = mount_above(tmp_path)
    me = f"{os.getpid()} ("
    with open(tmp_path / "file", "w"):
        assert any(name.startswith(me) for name in mount_table.users({mount.device}, set()))
        assert not any(name.startswith(me) for name in mount_table.users(set(), {mount.mount_id}))
        monkeypatch.setattr(mount_table, "mounts", lambda process: [])
        assert any(name.startswith(me) for name in mount_table.users(set(), {mount.mount_id}))


# interrupts -----------------------------------------------------------------------------------------------------------


def injecting(monkeypatch: pytest.MonkeyPatch, injection: Injection, after: Callable[[], None] = lambda: None) -> None:
    def inject(*_: object, recorded: Callable[[Injection], None], **__: object) -> Injection:
        injection.save()
        recorded(injection)
        after()
        return injection

    monkeypatch.setattr(cli, "find_target", lambda *_, **__: injection.target)
    monkeypatch.setattr(catalog, "inject", inject)


def test_an_interrupt_when_the_fault_is_just_injected_undoes_it(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    injecting(monkeypatch, recorded(tmp_path), lambda: signal.raise_signal(signal.SIGINT))
    assert run("inject", "over-mount", "/x") == (130, "", "kjbod faults: interrupted; nothing is injected\n")
    assert os.listdir(tmp_path) == []


def test_an_interrupt_when_it_is_said_that_a_fault_is_injected_changes_nothing(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    injection = recorded(tmp_path)
    injecting(monkeypatch, injection)

    def print_interrupted(_text: str) -> None:
        for number in SIGNALS:
            signal.raise_signal(number)

    monkeypatch.setattr(cli, "_print", print_interrupted)
    assert run("inject", "over-mount", "/x")[0] == 0
    assert read_record(injection.record) == injection


def test_an_interrupt_when_all_is_done_does_not_change_the_exit_code(run: Run) -> None:
    assert run("status")[0] == 0
    for number in SIGNALS:
        signal.raise_signal(number)

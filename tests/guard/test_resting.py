"""When a guard keeps its probes away from a log directory that has failed."""

from typing import Any, cast

import pytest
from msgspec.structs import replace

from kjbod_guard import watching
from kjbod_guard.watching import REST_MS, Watching
from kjbod_host.health.mounts import Mount
from tests.guard.test_action_runner import SetClock

PATH = "/mnt/d1/kafka"
ROOT = Mount(20, 1, "8:1", "/", "/", "ext4", "/dev/sda1", frozenset({"rw"}))
DISK = Mount(30, 20, "7:1", "/", "/mnt/d1", "ext4", "/dev/sdb1", frozenset({"rw"}))


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> list[Mount]:
    found = [ROOT, DISK]
    monkeypatch.setattr(watching, "mounts_now", lambda pid=None: tuple(found))
    return found


def watch() -> tuple[Watching, SetClock]:
    clock, nobody = SetClock(), cast(Any, None)
    return Watching(1, [PATH], nobody, clock, nobody, nobody), clock


def test_a_released_directory_is_left_alone_for_a_minute_or_until_something_else_is_mounted(table: list[Mount]) -> None:
    found, clock = watch()
    entry = found.entries[PATH]
    assert not found._rests(entry)
    found.rest(PATH)
    assert found._rests(entry)
    clock.ms += REST_MS
    assert not found._rests(entry)
    found.rest(PATH)
    table.remove(DISK)
    assert not found._rests(entry)
    found.rest(PATH)
    table.append(replace(DISK, mount_id=31))
    assert not found._rests(entry)


def test_a_file_system_that_was_shut_down_is_left_alone_until_it_is_mounted_again(table: list[Mount]) -> None:
    found, clock = watch()
    entry = found.entries[PATH]
    table[1] = replace(DISK, options=frozenset({"rw", "shutdown"}))
    clock.ms += 100 * REST_MS
    assert found._rests(entry) and found.mount(PATH) == table[1]
    table[1] = DISK
    assert not found._rests(entry)


def test_a_file_system_that_was_shut_down_answers_errors_though_the_first_look_at_it_hung(table: list[Mount]) -> None:
    found, _ = watch()
    assert not found.errs(PATH)
    found.entries[PATH].errs = True
    assert found.errs(PATH)
    found.entries[PATH].errs = False
    table[1] = replace(DISK, options=frozenset({"rw", "shutdown"}))
    assert found.errs(PATH)

"""What a guard reads and writes outside the disks: the audit, the table of locks, the two files of its configuration;
and what its worker sees around a log directory."""

import fcntl
import os
import socket
from pathlib import Path
from typing import Any

from kjbod_guard.start_up import read_config
from kjbod_host.files.file_worker import append_line, holders
from kjbod_host.storage.worker import Worker
from tests.guard.test_bad_input import BROKER


def test_an_audit_that_gets_too_large_is_set_aside_once(tmp_path: Path) -> None:
    path = tmp_path / "state" / "audit.jsonl"
    for number in range(7):
        append_line(str(path), b"%d\n" % number, 6)
    assert path.read_bytes() == b"6\n"
    assert path.with_name("audit.jsonl.1").read_bytes() == b"3\n4\n5\n"


def test_the_process_that_holds_a_lock_is_found_with_its_command_line(tmp_path: Path) -> None:
    (tmp_path / "free").touch()
    with open(tmp_path / "held", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        places = []
        for name in ("held", "free"):
            status = (tmp_path / name).stat()
            places.append([os.major(status.st_dev), os.minor(status.st_dev), status.st_ino])
        # Some file systems have other numbers in the table of locks.
        found, free = holders(places, by_inode=True)
    assert free is None and found is not None
    pid, started, arguments, _ = found
    assert pid == os.getpid() and started > 0
    assert arguments == [os.fsdecode(one) for one in Path("/proc/self/cmdline").read_bytes().split(b"\0") if one]


def survey(directory: Path, levels: list[list[str]]) -> Any:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        status = os.memfd_create("status")
        try:
            worker = Worker(str(directory), "guard", status, ours)
            return worker.answer({"n": 1, "op": "survey", "levels": levels, "expect": [None, None]})["ok"]
        finally:
            os.close(status)


def test_a_worker_sees_what_lies_beside_a_log_directory_and_where_its_lock_is(tmp_path: Path) -> None:
    log_dir = tmp_path / "a" / "kafka"
    log_dir.mkdir(parents=True)
    for name in ("a/postgres", "lost+found"):
        (tmp_path / name).mkdir()
    levels = [[str(tmp_path), "a"], [str(tmp_path / "a"), "kafka"]]
    assert survey(log_dir, levels) == {
        "lock": None,
        "beside": [f"{tmp_path}/lost+found", f"{tmp_path}/a/postgres"],
    }
    (log_dir / ".lock").touch()
    found = (log_dir / ".lock").stat()
    assert survey(log_dir, [])["lock"] == [os.major(found.st_dev), os.minor(found.st_dev), found.st_ino]


def test_own_keys_come_from_the_second_file_and_all_others_from_the_brokers(tmp_path: Path) -> None:
    broker, own = tmp_path / "server.properties", tmp_path / "own"
    broker.write_text(f"{BROKER}kjbod.slow.ms=5\nssl.keystore.password=secret\n")
    own.write_text("kjbod.slow.ms=700\nkjbod.host=h\n")
    alone, both = read_config(broker, None), read_config(broker, own)
    assert (alone.kjbod_slow_ms, both.kjbod_slow_ms, both.kjbod_host, both.node_id) == (5, 700, "h", 1)
    assert both.log_dirs == ("/mnt/d1", "/mnt/d2") and both.source == str(broker)

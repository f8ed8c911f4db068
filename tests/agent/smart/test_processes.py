"""Processes that ask a disk: real ones, with a smartctl of ours on the path, and what happens when it hangs."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from kjbod.runtime.waiting import process_sleep
from kjbod_host.smart import asker, processes
from kjbod_host.smart.processes import ANSWER_BYTES_MAX, Answer, Processes
from kjbod_host.smart.smartctl import exit_status, parse_smartctl, why_unread
from scripts.rig.processes import wait_until
from tests.agent.smart.test_smartctl import DATA

pytestmark = pytest.mark.usefixtures("world")
PATIENCE_MS = 60_000
"""For a smartctl that answers."""


@pytest.fixture
def disk() -> str:
    """The name of a block device of this machine. A process of ours asks any: which ones is decided before."""
    return min(os.listdir("/sys/block"))


Smartctl = Callable[[str], Path]


@pytest.fixture
def smartctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smartctl:
    """Puts a ``smartctl`` with this body on the path, and the rights into our hands; gives the file of arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    told = tmp_path / "arguments"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(processes, "has_rights", lambda: True)

    def put(body: str) -> Path:
        program = folder / "smartctl"
        program.write_text(f'#!/bin/sh\necho "$@" > {told}\necho $$ > {tmp_path}/pid\n{body}\n')
        program.chmod(0o755)
        return told

    return put


def ask(disk: str, helper: str = "/nowhere/at/all", timeout_ms: int = PATIENCE_MS) -> Answer:
    async def main() -> Answer:
        asking = Processes(helper, timeout_ms)
        try:
            return await asking.ask(disk)
        finally:
            wait_until(lambda: _ended(asking), 20, "the end of the process")

    return asyncio.run(main())


def _ended(asking: Processes) -> bool:
    asking.reap()
    return not asking.process_ids()


def parts(answer: Answer) -> tuple[dict[str, Any], Any]:
    facts, _, document = answer.content.partition(b"\n")
    return json.loads(facts), json.loads(document) if document else None


def test_smartctl_is_asked_for_the_disk_and_for_nothing_that_changes_it(disk: str, smartctl: Smartctl) -> None:
    arguments = smartctl(f"cat {DATA}/ata-hdd-packed.json")
    answer = ask(disk)
    facts, document = parts(answer)
    assert (answer.source, answer.reason, facts["smartctl"]) == ("smartctl", "", True)
    found = parse_smartctl(document)
    assert found is not None and found.serial == "ZTEST001"
    options = "--json=c --info --health --attributes --log=error --log=ssd --log=scterc --nocheck=standby"
    assert arguments.read_text() == f"{options} /dev/{disk}\n"


def test_whatever_the_exit_status_the_document_counts(disk: str, smartctl: Smartctl) -> None:
    for status in (*(1 << bit for bit in range(8)), 255):
        smartctl(f'echo \'{{"smartctl": {{"exit_status": {status}}}}}\'\nexit {status}')
        _, document = parts(ask(disk))
        assert exit_status(document) == status
        assert (why_unread(document) is not None) == bool(status & 3)


def test_a_smartctl_that_says_nothing_or_ends_by_a_signal_is_no_error(disk: str, smartctl: Smartctl) -> None:
    smartctl("exit 0")
    assert parts(ask(disk))[1] is None
    smartctl("printf '{\"smart'\nkill -9 $$")
    assert ask(disk).content.endswith(b'{"smart')


def test_one_that_does_not_stop_talking_is_cut_off(disk: str, smartctl: Smartctl) -> None:
    smartctl("head -c 10000000 /dev/zero")
    with pytest.raises(OSError, match=f"smartctl says more than {ANSWER_BYTES_MAX} bytes"):
        ask(disk)


def test_one_that_hangs_is_given_up_and_killed(disk: str, smartctl: Smartctl) -> None:
    smartctl("kill -STOP $$")
    with pytest.raises(TimeoutError):
        ask(disk, timeout_ms=1000)


def test_a_disk_whose_process_is_still_stuck_is_not_asked_again(
    disk: str, smartctl: Smartctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    smartctl("kill -STOP $$")

    async def main() -> None:
        asking = Processes("/nowhere/at/all", 1000)
        with monkeypatch.context() as patched:
            patched.setattr(os, "kill", lambda *_: None)  # as the kernel does with one that it does not let go
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    await asking.ask(disk)
            assert len(asking.process_ids()) == 1
        os.kill(asking.process_ids()[0], signal.SIGKILL)
        wait_until(lambda: _ended(asking), 20, "the end of the process")

    asyncio.run(main())


def test_a_process_that_asks_has_nothing_of_ours_and_ends_with_us(
    disk: str, smartctl: Smartctl, tmp_path: Path
) -> None:
    smartctl(f"ls -l /proc/$$/fd > {tmp_path}/fds\ncut -d' ' -f6 /proc/$$/stat > {tmp_path}/session\nkill -STOP $$")
    program = f"""
import asyncio, socket
from kjbod_host.smart import processes
processes.has_rights = lambda: True
port = socket.create_server(("localhost", 0))
asyncio.run(processes.Processes("/nowhere/at/all").ask({disk!r}))
"""
    parent = subprocess.Popen([sys.executable, "-c", program])
    try:
        wait_until(lambda: (tmp_path / "session").exists() and (tmp_path / "session").read_text(), 30, "it to hang")
    finally:
        parent.kill()
        parent.wait()
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not psutil.pid_exists(pid) or process_sleep(pid)[0] == "Z", 20, "its end")
    assert int((tmp_path / "session").read_text()) == pid, "no signal of the terminal reaches it"
    open_files = (tmp_path / "fds").read_text()
    assert open_files.count("socket:") == 2, "its standard input and output, and no port"


def test_without_the_rights_sysfs_alone_is_asked(
    disk: str, smartctl: Smartctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = smartctl("exit 0")
    monkeypatch.setattr(processes, "has_rights", lambda: False)
    answer = ask(disk)
    facts, document = parts(answer)
    assert (answer.source, facts["smartctl"], document) == ("sysfs", False, None)
    assert "CAP_SYS_RAWIO and CAP_SYS_ADMIN" in answer.reason and "kjbod-smart.socket" in answer.reason
    assert not arguments.exists()


# ---------------------------------------------------------------------------------------------------------- the helper


@contextmanager
def helper(path: Path, program: str) -> Iterator[None]:
    """Does for one connection what systemd does for each to kjbod-smart.socket."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            end = connection.fileno()
            with connection, subprocess.Popen([sys.executable, "-c", program], stdin=end, stdout=end):
                connection.close()

        server = threading.Thread(target=serve)
        server.start()
        yield
        server.join()


def test_the_helper_is_asked_before_a_process_of_ours(tmp_path: Path, disk: str, smartctl: Smartctl) -> None:
    smartctl(f"cat {DATA}/nvme.json")
    names = f"from kjbod_host.smart import names\nnames.is_physical = {{{disk!r}}}.__contains__\n"
    main = "from kjbod_host.smart import asker\nasker.main(0, with_smartctl=True)"
    with helper(tmp_path / "smart.sock", names + main):
        answer = ask(disk, helper=str(tmp_path / "smart.sock"))
    found = parse_smartctl(parts(answer)[1])
    assert answer.source == "helper"
    assert found is not None and found.serial == "NTEST007"


@pytest.mark.parametrize("line", ["../../etc/passwd", "sda /dev/sdb", "-s", "sda\x00", "", "loop0", "x" * 1000])
def test_the_helper_does_nothing_for_a_line_that_names_no_disk(smartctl: Smartctl, line: str) -> None:
    arguments = smartctl("exit 0")
    command = [sys.executable, "-I", "-m", asker.__name__]
    done = subprocess.run(command, input=f"{line}\n".encode(), capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert not arguments.exists()


def test_a_helper_that_is_not_there_any_more_is_done_without_and_said(disk: str, tmp_path: Path) -> None:
    path = tmp_path / "smart.sock"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    answer = ask(disk, helper=str(path))
    assert answer.source in ("smartctl", "sysfs")
    assert answer.reason == f"{path}: Connection refused"

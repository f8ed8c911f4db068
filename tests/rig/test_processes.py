"""Real processes: watched, and always reaped."""

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from scripts.rig.processes import Processes, WaitTimeoutError, children, free_port, wait_until
from scripts.rig.rig_error import RigError


def python(program: str) -> list[str]:
    return [sys.executable, "-c", f"import json, os, signal, sys, time\n{program}"]


LOG = "def log(**fields): print(json.dumps(fields), file=sys.stderr, flush=True)\n"


def test_an_event_is_found_by_name_and_fields_when_it_comes(processes: Processes) -> None:
    program = LOG + "log(event='a.b', n=1); print('no json', file=sys.stderr); log(event='a.b', n=2); signal.pause()"
    process = processes.start(python(program), name="p")
    assert process.wait_for_event("a.b", n=2) == {"event": "a.b", "n": 2}
    assert process.wait_for_event("a.b", where=lambda line: line["n"] > 1)["n"] == 2
    assert process.wait_for_event("a.b", after=1)["n"] == 2
    assert [line["n"] for line in process.events("a.b")] == [1, 2]
    assert process.events("a.b", n=3) == []


def test_half_a_line_is_not_an_event_yet(processes: Processes) -> None:
    program = "sys.stderr.write('{\"event\": '); sys.stderr.flush(); signal.pause()"
    process = processes.start(python(program), name="p")
    process.wait_for_text('{"event"')
    assert process.events() == []


def test_waiting_for_an_event_of_a_process_that_ended_says_so_with_the_end_of_its_log(processes: Processes) -> None:
    process = processes.start(python("sys.exit('no such disk')"), name="p")
    with pytest.raises(RigError, match=r"(?s)p ended with 1 before it logged agent\.started:\nno such disk"):
        process.wait_for_event("agent.started")


def test_waiting_in_vain_names_what_was_waited_for() -> None:
    with pytest.raises(WaitTimeoutError, match=r"^waited 0 s for a miracle; last seen: None$"):
        wait_until(lambda: None, 0, "a miracle")


def test_a_stopped_process_stops_and_goes_on(processes: Processes) -> None:
    process = processes.start(["sleep", "1000"], name="p")
    process.signal(signal.SIGSTOP)
    wait_until(lambda: state(process.pid) == "T", 10, "the process to stop")
    process.signal(signal.SIGCONT)
    wait_until(lambda: state(process.pid) == "S", 10, "the process to go on")
    assert process.stop() == -signal.SIGTERM


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.usefixtures("world")
def test_at_the_end_everything_is_killed_and_reaped_children_too(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        process = processes.start(["sh", "-c", "sleep 1000 & echo $!; trap '' TERM; wait"], name="p")
        process.wait_for_text("\n")
        child = int(process.stdout())
    assert process.exit_code == -signal.SIGKILL
    wait_until(lambda: not Path(f"/proc/{child}/exe").exists(), 10, "the child to end")


@pytest.mark.usefixtures("world")
def test_a_test_run_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from scripts.rig.processes import Processes\n"
        f"p = Processes(Path({str(tmp_path)!r})).start(['sleep', '1000'], name='p')\n"
        "print(p.pid, flush=True); signal.pause()"
    )
    with subprocess.Popen(python(program), stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        holder.kill()
    wait_until(lambda: not Path(f"/proc/{pid}/exe").exists(), 10, "the process to end")


def test_a_restart_under_the_same_name_keeps_the_first_log(processes: Processes) -> None:
    first = processes.start(["sh", "-c", "echo one >&2"], name="agent-1")
    first.wait()
    second = processes.start(["sh", "-c", "echo two >&2"], name="agent-1")
    second.wait()
    assert (first.name, second.name) == ("agent-1", "agent-1.2")
    assert (first.stderr(), second.stderr()) == ("one\n", "two\n")


def test_a_command_that_does_not_exist_is_one_clear_line(processes: Processes) -> None:
    with pytest.raises(RigError, match=r"^cannot start p: no-such-command: command not found$"):
        processes.start(["no-such-command"], name="p")


def test_free_ports_are_free_and_different() -> None:
    ports = {free_port() for _ in range(50)}
    assert len(ports) == 50
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


@pytest.mark.usefixtures("world")
def test_a_child_of_a_thread_that_is_just_ending_is_counted() -> None:
    over = threading.Event()
    # To be looked at between the first one, which inherits the child, and the one that ends.
    between = [threading.Thread(target=over.wait) for _ in range(60)]
    for thread in between:
        thread.start()
    try:
        for _ in range(60):
            started: list[subprocess.Popen[bytes]] = []
            is_there, may_end = threading.Event(), threading.Event()

            def start(into: list[subprocess.Popen[bytes]], told: threading.Event, ends: threading.Event) -> None:
                into.append(subprocess.Popen(["sleep", "1000"]))
                told.set()
                ends.wait()

            threading.Thread(target=start, args=(started, is_there, may_end)).start()
            is_there.wait()
            may_end.set()
            found = [children() for _ in range(3)]
            started[0].kill()
            started[0].wait()
            assert all(started[0].pid in one for one in found)
    finally:
        over.set()
        for thread in between:
            thread.join()

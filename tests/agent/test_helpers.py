"""How processes beside the daemon are started, asked and let go of."""

import contextlib
import errno
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from kjbod_host import helpers
from scripts.rig.processes import wait_until

TELLS = """
import json, os, socket, sys
ours = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
def name(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]
    except OSError:
        return None  # the listing's own
found = {"fds": {fd: name(fd) for fd in ours if name(fd)}, "args": sys.argv[1:], "environment": sorted(os.environ)}
socket.socket(fileno=int(sys.argv[1])).sendall(json.dumps(found).encode())
"""


def told(script: Path, control: int, descriptors: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a process says that was started with a socket at a number, and these descriptors."""
    monkeypatch.setenv("KAFKA_OPTS", "-Dsecret=1")
    pid, ours = helpers.start_connected(str(script), str(control), "more", at=[control], descriptors=descriptors)
    with contextlib.closing(ours):
        ours.setblocking(True)
        found = json.loads(ours.recv(64 << 10))
    wait_until(lambda: helpers.has_ended(pid), 30, "the end of the process")
    assert helpers.has_ended(pid), "it is no child any more"
    return found


@pytest.mark.usefixtures("world")
def test_a_process_has_its_descriptors_and_nothing_else_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "tells.py"
    script.write_text(TELLS)
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    with open(read_end, "rb"), open(write_end, "wb"), open(script, "rb") as other:
        # Numbers that the child gets may be in use in this process, even for the same file.
        found = told(script, 3, {4: read_end}, monkeypatch)
        assert found["fds"] == {"0": "/dev/null", "1": "/dev/null", "2": "/dev/null", "3": "socket", "4": "pipe"} | (
            {str(write_end): "pipe"} if write_end > 4 else {}
        )
        assert found["args"] == ["3", "more"] and set(found["environment"]) <= {"PATH", "LD_LIBRARY_PATH", "LC_CTYPE"}
        same = told(script, read_end + 20, {read_end: read_end, other.fileno(): other.fileno()}, monkeypatch)
        assert (same["fds"][str(read_end)], same["fds"][str(other.fileno())]) == ("pipe", str(script))
        assert os.get_inheritable(read_end) is False


def test_a_process_that_cannot_be_started_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EAGAIN, "no room")

    monkeypatch.setattr(os, "posix_spawn", full)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no room"):
        helpers.start_connected("x.py", at=[3], kind=socket.SOCK_SEQPACKET, descriptors={4: 0})
    assert os.listdir("/proc/self/fd") == before


async def test_an_answer_goes_to_its_request_and_who_waits_learns_that_the_process_is_gone() -> None:
    calls = helpers.Calls()
    (one, first), (two, second), (three, third) = (calls.begin() for _ in range(3))
    waiting = calls.take(two)
    assert waiting is second and calls.take(two) is None and calls.take(99) is None
    third.cancel()
    assert calls.take(three) is None, "nobody waits for it"
    calls.fail("it has died")
    assert calls.take(one) is None
    with pytest.raises(OSError, match="it has died"):
        await first
    second.cancel()

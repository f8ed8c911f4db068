"""The zygote where the machine has no process left to give."""

import errno
import marshal
import os
import select
import socket

import pytest

from kjbod_host.storage import zygote


def test_a_worker_that_cannot_be_forked_does_not_end_those_of_other_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", no_process)
    daemon, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keeper, keeper_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    status = os.memfd_create("status")
    one = zygote.Zygote.__new__(zygote.Zygote)  # it takes its socket by a number that the tests use otherwise
    one._control, one._keeper_end, one._children, one._poll = ours, keeper_end, {}, select.poll()
    with daemon, ours, keeper, keeper_end, channel:
        request = {"op": "spawn", "id": 7, "config": {"role": "broker", "path": "/x", "name": "x"}}
        socket.send_fds(daemon, [marshal.dumps(request)], [theirs.fileno(), status])
        theirs.close()
        os.close(status)
        assert one._obey()
        assert marshal.loads(daemon.recv(4096)) == {"spawned": 7, "pid": 0}
        assert channel.recv(1) == b"", "whoever waits for the worker is told that there is none"

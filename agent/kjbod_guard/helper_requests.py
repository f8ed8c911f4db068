"""Requests of the daemon to the helper: read from the socket, carried out by a child each, and answered in time.

:mod:`.helper` describes the requests, and the handling of stuck children.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time

from kjbod_guard import helper_kernel as kernel
from kjbod_guard.helper_broker import is_there
from kjbod_guard.helper_netlink import Refused
from kjbod_guard.helper_rights import carried_out

TYPE_CHECKING = False  # importing typing costs memory
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from typing import Any

    from kjbod_guard.helper_broker import Broker

REQUEST_BYTES_MAX = 4096
"""Maximum size of a request. The facts may have that size for each of :data:`.helper.DIRECTORIES_MAX`."""
UNSENT_BYTES_MAX = 4 << 20
"""Maximum size of answers that wait for a daemon that does not read. Further answers are dropped."""
CHILDREN_MAX = 64
"""Maximum number of children at a time, including children that were left behind."""
DEADLINES_MS = {
    "threads": 1_000,
    "cut": 500,
    "mask": 500,
    "unmask": 1_000,
    "kill": 500,
    "reset": 1_000,
    "unreset": 1_000,
    "destroy": 2_000,
    "hold": 1_000,
    "let_go": 1_000,
    "freeze": 4_000,
}
"""Maximum time from request to answer, in ms. A late request is answered "pending", or "failed" if it changes
nothing."""
HARMLESS = frozenset({"threads", "hold", "freeze"})


def nothing(_answer: dict[str, Any]) -> None:
    """Do nothing after an answer."""


class Task:
    """Work for a request.

    Attributes:
        work: function that the child runs.
        after: called with the answer.
        needed: descriptors that the child keeps.
        begun: called when the child has started.
    """

    def __init__(
        self,
        work: Callable[[], Any],
        after: Callable[[dict[str, Any]], None] | None = None,
        needed: Sequence[int] = (),
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        self.work, self.after, self.needed, self.begun = work, after or nothing, needed, begun


class Job:
    """A request in progress.

    Attributes:
        number: of the request; None: a request of the helper itself.
        after: called with the answer.
    """

    def __init__(self, number: Any, verb: str, pid: int, after: Callable[[dict[str, Any]], None]) -> None:
        self.number, self.verb, self.pid, self.after = number, verb, pid, after
        self.until_ns = time.monotonic_ns() + DEADLINES_MS[verb] * 1_000_000
        self.said = b""


class Requests:
    """Server of requests over a socket, and the requests in progress.

    Args:
        control: the socket.
        work: returns the task for a verb and its request; raises Refused.
        broker: returns the broker's process, if there is one.
        broker_ended: called when the broker's process has ended.
    """

    def __init__(
        self,
        control: socket.socket,
        work: Callable[[str, dict[str, Any]], Task],
        broker: Callable[[], Broker | None],
        broker_ended: Callable[[], None],
    ) -> None:
        self.control, self.work, self.broker, self.broker_ended = control, work, broker, broker_ended
        self.unsent = bytearray()
        self.jobs: dict[int, Job] = {}
        self.left: set[int] = set()

    def serve(self) -> None:
        """Answer requests until the daemon's end of the socket is closed."""
        self.control.setblocking(False)
        received, open_, too_long = b"", True, False
        while open_:
            poll = select.poll()
            poll.register(self.control, select.POLLIN | (select.POLLOUT if self.unsent else 0))
            if (broker := self.broker()) is not None:
                poll.register(broker.pidfd, select.POLLIN)
            for fd in self.jobs:
                poll.register(fd, select.POLLIN)
            now_ns = time.monotonic_ns()
            due = min((job.until_ns for job in self.jobs.values()), default=None)
            ready = dict(poll.poll(None if due is None else max(0, due - now_ns) // 1_000_000 + 1))
            for fd in [fd for fd in self.jobs if fd in ready]:
                self._heard(fd)
            self._overdue()
            if (broker := self.broker()) is not None and broker.pidfd in ready:
                self.broker_ended()
            if self.control.fileno() in ready:
                self._send()
                try:
                    data = self.control.recv(64 << 10)
                    open_ = bool(data)
                except BlockingIOError:
                    continue
                except OSError:
                    open_ = False
                    continue
                *lines, received = (received + data).split(b"\n")
                for line in lines:
                    if too_long or len(line) > REQUEST_BYTES_MAX:
                        self._answer(None, "refused", f"a request has at most {REQUEST_BYTES_MAX} bytes")
                        too_long = False
                    else:
                        self._take(line)
                if len(received) > REQUEST_BYTES_MAX:
                    received, too_long = b"", True

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # the next read shows that the daemon is gone
            while self.unsent:
                del self.unsent[: self.control.send(self.unsent)]

    def _answer(self, number: Any, outcome: str, reason: str = "", **more: Any) -> None:
        line = json.dumps({"n": number, "outcome": outcome, "reason": reason, **more}).encode() + b"\n"
        if len(self.unsent) + len(line) <= UNSENT_BYTES_MAX:
            self.unsent += line
        self._send()

    def _take(self, line: bytes) -> None:
        number = None
        try:
            request = json.loads(line)
            number = request["n"]
            if type(number) is not int:
                raise TypeError("its number is none")
            verb = request["verb"]
            if verb not in DEADLINES_MS:
                raise Refused(f"there is no verb {verb!r}")
            task = self.work(verb, request)
            try:
                self._start(number, verb, task)
            except (OSError, Refused) as error:
                task.after({"outcome": "failed", "reason": str(error)})
                raise
            task.begun()
        except Refused as refusal:
            self._answer(number, "refused", str(refusal))
        except OSError as error:
            self._answer(number, "failed", f"{error.strerror}")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            self._answer(number if type(number) is int else None, "refused", f"not a request: {error!r}")

    # ---- children

    def _start(self, number: Any, verb: str, task: Task) -> None:
        self.left = {pid for pid in self.left if is_there(pid)}
        if len(self.jobs) + len(self.left) >= CHILDREN_MAX:
            raise Refused(f"{CHILDREN_MAX} requests are under way or stuck")
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            try:
                self.control.detach()
                broker = self.broker()
                kept = () if broker is None else (broker.pidfd, *broker.namespaces.values())
                # without other descriptors, so that the daemon sees when the helper dies
                kernel.keep_only(write_end, *task.needed, *kept)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                said = json.dumps(carried_out(task.work, verb)).encode()
                kernel.keep_only(write_end)  # close the directory before the answer is sent
                while said:
                    said = said[os.write(write_end, said) :]
            finally:
                os._exit(0)  # a child that left this block would be a second helper
        os.close(write_end)
        os.set_blocking(read_end, False)
        self.jobs[read_end] = Job(number, verb, pid, task.after)

    def _heard(self, fd: int) -> None:
        job = self.jobs[fd]
        with contextlib.suppress(BlockingIOError):
            while data := os.read(fd, 64 << 10):
                job.said += data
            try:
                answer = json.loads(job.said)
            except ValueError:
                answer = {"outcome": "failed", "reason": "the process that did it was killed"}
            self._end(fd, answer)

    def _overdue(self) -> None:
        now_ns = time.monotonic_ns()
        for fd in [fd for fd, job in self.jobs.items() if job.until_ns <= now_ns]:
            job = self.jobs[fd]
            self.left.add(job.pid)
            reason = f"it did not end within {DEADLINES_MS[job.verb]} ms"
            if job.verb in HARMLESS:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(job.pid, signal.SIGKILL)
            self._end(fd, {"outcome": "failed" if job.verb in HARMLESS else "pending", "reason": reason})

    def _end(self, fd: int, answer: dict[str, Any]) -> None:
        job = self.jobs.pop(fd)
        os.close(fd)
        job.after(answer)
        if job.number is not None:
            self._answer(job.number, **answer)

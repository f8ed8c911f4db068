"""The daemon's side of the privileged helper: starts the helper, and sends requests with a deadline.

The daemon starts the helper once, while it still has its rights, so it cannot start a dead helper again. After the
helper has died, every action fails with that reason. :attr:`HelperLink.problem` has the reason, and ``told`` is called
with it. The remedy is a restart of the guard.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from msgspec import Struct
from msgspec.structs import asdict

from kjbod.clock import Clock
from kjbod_guard import helper, helper_requests, stuck
from kjbod_guard.actions import Done, Outcome, Thread, Verb
from kjbod_host import helpers

START_TIMEOUT_MS: Final = 30_000
"""How long the helper may take to look at its directories: :data:`.helper_freezing.FREEZE_MS` each, if all hang."""
GRACE_MS: Final = 500
"""Additional time that the daemon waits for an answer, after the helper's deadline for its child."""
LINE_BYTES_MAX: Final = 4 << 20


class Facts(Struct, frozen=True, kw_only=True):
    """Facts that the daemon sends to a helper at its start: the targets of its actions.

    Attributes:
        node: id of the broker.
        directories: the broker's log directories, as configured; the helper refuses all others.
        later: log directories that are not looked at now, and may be frozen later.
        ports: of its listeners.
        never_ports: of controllers, which must not be among them.
        own: paths that kjbod needs to run: code, state, reports.
        broker: pid and start time of the process that holds ``.lock``; None: no broker runs.
    """

    node: int
    directories: tuple[str, ...]
    later: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    never_ports: tuple[int, ...] = ()
    own: tuple[str, ...] = ()
    broker: tuple[int, int] | None = None


class Frozen(Struct, frozen=True):
    """State of a directory in the helper.

    Attributes:
        reason: why the helper does nothing to the directory; None: the helper holds it.
        no_cut: why the helper does not cut it; None: it would.
        no_mask: why the helper does not mask it; None: it would.
        masked: whether the directory was masked when the helper was started.
    """

    reason: str | None
    no_cut: str | None
    no_mask: str | None
    masked: bool


class Started(Struct, frozen=True):
    """A helper that was started, and has not got its facts yet."""

    pid: int
    control: socket.socket


def start_helper() -> Started:
    """Exec the helper. Blocks for an exec from the system's disk, some milliseconds.

    Raises:
        OSError: the process cannot be started.
    """
    return Started(*helpers.start_connected(helper.__file__, at=[helper.CONTROL_FD]))


class HelperLink:
    """Client of the privileged helper. Implements :class:`.actions.Helper`. No method raises. Made by :meth:`open`.

    Attributes:
        pid: of the helper.
        directories: state of each directory in the helper, by path.
        missing: rights and protections that the helper lacks, a line each, also those without effect on actions.
        lacks: missing capabilities without which the helper cannot act, a line each.
        problem: why the helper does nothing any more; None: it works.
        apart: whether the broker is in another network namespace; None: not known.
    """

    def __init__(self, started: Started, *, clock: Clock, told: Callable[[str], None]) -> None:
        self.pid = started.pid
        self.directories: Mapping[str, Frozen] = {}
        self.missing: Sequence[str] = ()
        self.lacks: Sequence[str] = ()
        self.problem: str | None = None
        self.apart: bool | None = None
        self._clock, self._told = clock, told
        self._calls = helpers.Calls()
        self._hello = 0
        """Call number for the answer to the facts. That answer has no number."""
        self._threads: Mapping[int, stuck.Waiting] = stuck.NONE_WAITING
        self._closed = False
        self._wire = _Wire(self._heard, self._lost)

    @classmethod
    async def open(cls, started: Started, facts: Facts, *, clock: Clock, told: Callable[[str], None]) -> "HelperLink":
        """Send a helper its facts, and store its answer. If the helper refuses them, :attr:`problem` has the reason.

        Args:
            started: the helper.
            facts: targets of the helper's actions.
            clock: for the times of answers.
            told: called once with the reason when the helper is of no more use.
        """
        link = cls(started, clock=clock, told=told)
        await asyncio.get_running_loop().create_unix_connection(lambda: link._wire, sock=started.control)
        link._hello, hello = link._calls.begin()
        link._wire.send(asdict(facts))
        try:
            async with asyncio.timeout(START_TIMEOUT_MS / 1000):
                found = await hello
        except TimeoutError:
            found = {"error": f"it did not answer within {START_TIMEOUT_MS} ms"}
        except OSError:  # the connection is lost, which was reported
            return link
        if "error" in found:
            link._useless(f"the privileged helper (process {link.pid}) refuses its facts: {found['error']}")
            link._wire.close()
            return link
        link._take(found)
        link.lacks, link.apart = tuple(found["lacks"]), found["apart"]
        link.missing = (*found["missing"], *link.lacks)
        return link

    # ---- actions.Helper

    async def cut(self, directory: str, until_ms: int) -> Done:
        return await self._do(Verb.CUT, directory=directory, until_ms=until_ms)

    async def mask(self, directory: str) -> Done:
        return await self._do(Verb.MASK, directory=directory)

    async def unmask(self, directory: str) -> Done:
        return await self._do(Verb.UNMASK, directory=directory)

    async def kill(self) -> Done:
        return await self._do(Verb.KILL)

    async def reset(self) -> Done:
        return await self._do(Verb.RESET)

    async def unreset(self) -> Done:
        return await self._do(Verb.UNRESET)

    async def destroy(self) -> Done:
        return await self._do(Verb.DESTROY)

    async def threads(self) -> Sequence[Thread] | Done:
        done, answer = await self._ask(Verb.THREADS)
        if done.outcome is not Outcome.DONE:
            return done
        samples = [stuck.Sample(**row) for row in answer["threads"]]
        self._threads = stuck.follow(self._threads, samples, self._clock.monotonic_ms())
        return stuck.threads(self._threads)

    # ---- other requests

    async def hold(self, pid: int, started: int) -> Done:
        """Tell the helper that another process is the broker now. The helper itself checks that the process holds a
        ``.lock``, and that the earlier process has ended."""
        self._threads = stuck.NONE_WAITING
        done, answer = await self._ask("hold", pid=pid, started=started)
        self.apart = answer.get("apart")
        return done

    async def let_go(self, directory: str) -> Done:
        """Have the helper close a directory, so that its file system can be unmounted."""
        return await self._on("let_go", directory)

    async def freeze(self, directory: str) -> Done:
        """Have the helper open the directory that is at a path now."""
        return await self._on("freeze", directory)

    async def _on(self, verb: str, directory: str) -> Done:
        done, answer = await self._ask(verb, directory=directory)
        self._take(answer)
        return done

    def _take(self, answer: dict[str, Any]) -> None:
        if "directories" in answer:
            self.directories = {path: Frozen(**row) for path, row in answer["directories"].items()}

    def close(self) -> None:
        """Let the helper end, without waiting. The keeper removes the reset rules when the broker has ended."""
        self._closed = True
        self._wire.close()
        self._lost()

    async def _do(self, verb: str, **arguments: object) -> Done:
        return (await self._ask(verb, **arguments))[0]

    async def _ask(self, verb: str, **arguments: object) -> tuple[Done, dict[str, Any]]:
        began_ms = self._clock.monotonic_ms()
        if self.problem is not None:
            return Done(outcome=Outcome.FAILED, reason=self.problem), {}
        number, waiting = self._calls.begin()
        self._wire.send({"n": number, "verb": verb, **arguments})
        limit_ms = helper_requests.DEADLINES_MS[verb] + GRACE_MS
        try:
            async with asyncio.timeout(limit_ms / 1000):
                answer = await waiting
            outcome, reason = Outcome(answer["outcome"]), str(answer["reason"])
        except TimeoutError:
            harmless = verb in helper_requests.HARMLESS
            outcome = Outcome.FAILED if harmless else Outcome.PENDING
            answer, reason = {}, f"the privileged helper (process {self.pid}) did not answer within {limit_ms} ms"
        except OSError as error:  # the action may have worked before the helper died
            answer, outcome, reason = {}, Outcome.FAILED, str(error.strerror)
        finally:
            self._calls.take(number)
        return Done(outcome=outcome, reason=reason, took_ms=self._clock.monotonic_ms() - began_ms), answer

    # ---- the wire

    def _heard(self, answer: dict[str, Any]) -> None:
        if (waiting := self._calls.take(answer.get("n") or self._hello)) is not None:
            waiting.set_result(answer)

    def _lost(self) -> None:
        if self._closed:
            self.problem = "the guard is ending" if self.problem is None else self.problem
        else:
            self._useless(f"the privileged helper (process {self.pid}) has died: start the guard again")
        self._calls.fail(self.problem or "")
        helpers.has_ended(self.pid)

    def _useless(self, reason: str) -> None:
        if self.problem is None:
            self.problem = reason
            self._told(reason)


class _Wire(asyncio.Protocol):
    """The socket to the helper."""

    def __init__(self, heard: Callable[[dict[str, Any]], None], lost: Callable[[], None]) -> None:
        self._heard, self._lost = heard, lost
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def send(self, request: dict[str, Any]) -> None:
        """Send a request as a line."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(json.dumps(request).encode() + b"\n")

    def close(self) -> None:
        """Close the socket at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._heard(json.loads(line))
        if len(self._received) > LINE_BYTES_MAX:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()

"""Look-ups of names that take longer than who asks can wait, on both event loops."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from kjbod.clock import SystemClock
from kjbod.runtime import names as module
from kjbod.runtime.names import LOOKUPS_MAX, Names, Resolved, UnresolvedError, listening_addresses
from kjbod.wire.client import Connection, Disconnected
from tests.agent.core.recording import Log

Run = Callable[[Coroutine[Any, Any, None]], None]


class Servers:
    """Name servers that answer when they are told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.known = {"kafka1": ("10.0.0.1",)}
        self.answer = threading.Event()

    def __call__(self, host: str) -> tuple[str, ...]:
        self.asked.append(host)
        assert self.answer.wait(30)
        if host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.known[host]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def go(story: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(story)

    return go


def test_a_look_up_goes_on_beyond_who_asked_and_serves_who_asks_next(run: Run) -> None:
    servers = Servers()
    names = Names(servers)

    async def story() -> None:
        with pytest.raises(UnresolvedError, match=r"cannot resolve kafka1: the name servers have not answered") as one:
            await names.resolve("kafka1", timeout_ms=20)
        assert one.value.slow
        second = asyncio.ensure_future(names.resolve("kafka1", timeout_ms=30_000))
        await asyncio.sleep(0)
        servers.answer.set()
        assert await second == Resolved(("10.0.0.1",))
        assert servers.asked == ["kafka1"]

    run(story())


def test_the_last_good_answer_serves_while_the_servers_are_silent_and_when_they_refuse(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_MS", 20)
    servers = Servers()
    servers.answer.set()
    names = Names(servers)

    async def story() -> None:
        await names.resolve("kafka1", timeout_ms=30_000)
        servers.answer.clear()
        found = await names.resolve("kafka1", timeout_ms=30_000)
        assert found.addresses == ("10.0.0.1",) and "have not answered" in found.doubt
        servers.known["kafka1"] = ("10.0.0.2",)
        servers.answer.set()
        while (await names.resolve("kafka1", timeout_ms=30_000)) != Resolved(("10.0.0.2",)):
            pass
        servers.known.clear()
        monkeypatch.setattr(module, "PATIENCE_MS", 30_000)
        assert await names.resolve("kafka1", timeout_ms=30_000) == Resolved(("10.0.0.2",), "Name or service not known")

    run(story())


def test_neither_the_end_of_the_loop_nor_work_in_its_executor_waits_for_a_look_up(run: Run) -> None:
    servers = Servers()
    names = Names(servers)

    async def story() -> None:
        for number in range(LOOKUPS_MAX):
            with pytest.raises(UnresolvedError):
                await names.resolve(f"kafka{number}", timeout_ms=1)
        assert await asyncio.to_thread(lambda: "at once") == "at once"
        with pytest.raises(UnresolvedError, match="other names are being looked up"):
            await names.resolve("one-too-many", timeout_ms=1)

    run(story())  # closing the loop returns although no look-up has
    assert not servers.answer.is_set()
    servers.answer.set()


def test_an_address_is_never_looked_up(run: Run) -> None:
    servers = Servers()

    async def story() -> None:
        for address in ("127.0.0.1", "::1"):
            assert await Names(servers).resolve(address, timeout_ms=1) == Resolved((address,))

    run(story())
    assert servers.asked == []


def test_no_room_for_the_thread_of_a_look_up_is_its_failure_and_not_the_process_s(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    names = Names(Servers())

    async def story() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", full)
            with pytest.raises(UnresolvedError, match="cannot resolve kafka1: there is no room for a thread"):
                await names.resolve("kafka1", timeout_ms=1)
        with pytest.raises(UnresolvedError, match="have not answered"):
            await names.resolve("kafka1", timeout_ms=1)

    run(story())


def test_a_connection_names_the_look_up_as_the_trouble(run: Run) -> None:
    servers = Servers()
    names = Names(servers)

    def connect(port: int, timeout_ms: int) -> Coroutine[Any, Any, Connection]:
        return Connection.open(
            "kafka1", port, client_id="1", clock=SystemClock(), connect_timeout_ms=timeout_ms, names=names
        )

    async def story() -> None:
        with pytest.raises(
            Disconnected, match=r"^cannot resolve kafka1: the name servers have not answered for \d+ ms"
        ):
            await connect(9092, 20)
        servers.known["kafka1"] = ("127.0.0.1",)
        servers.answer.set()
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
            with pytest.raises(Disconnected, match=rf"^cannot connect to kafka1:{port}: (?!.*last known)"):
                await connect(port, 30_000)
            servers.known.clear()
            doubt = r"\(at 127.0.0.1, its last known address: cannot resolve kafka1: Name or service not known\)"
            with pytest.raises(Disconnected, match=rf"^cannot connect to kafka1:{port}: .* {doubt}$"):
                await connect(port, 30_000)

    run(story())


def test_a_listener_waits_for_its_own_name_and_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LISTEN_TOLD_MS", 20)
    servers, log = Servers(), Log()
    names = Names(servers)

    async def story() -> None:
        waiting = asyncio.ensure_future(listening_addresses("kafka1", log, names))
        while not log.of("listener.waits"):  # noqa: ASYNC110  a log has no event for tests
            await asyncio.sleep(0.001)
        servers.answer.set()
        assert await waiting == ["10.0.0.1"]

    run(story())

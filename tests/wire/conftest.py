"""Real sockets on loopback, on both event loops."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest
import uvloop

import kjbod.wire.admin_messages  # noqa: F401  enters its messages into API
from kjbod.clock import Clock, SystemClock
from kjbod.wire.frames import Request, VersionRanges
from kjbod.wire.limits import Limits
from kjbod.wire.messages import API, ApiKey, ResponseBody
from kjbod.wire.server import Peer, Server, serve

T = TypeVar("T")
Run = Callable[[Callable[[], Coroutine[Any, Any, T]]], T]
SERVED: VersionRanges = {
    key: (API[key].min_version, API[key].max_version)
    for key in (ApiKey.API_VERSIONS, ApiKey.BROKER_HEARTBEAT, ApiKey.UNREGISTER_BROKER, ApiKey.FETCH, ApiKey.METADATA)
}


class Lines:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def _keep(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})

    info = warning = exception = _keep

    def reasons(self) -> list[str]:
        return [line["reason"] for line in self.lines]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run[Any]:
    """Runs a story on a fresh loop and checks that it left no task behind and no error to the loop."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def go(story: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def checked() -> T:
            stray: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: stray.append(context))
            async with asyncio.timeout(60):
                result = await story()
            await asyncio.sleep(0)  # callbacks of what has just ended
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"tasks left behind: {left}"
            assert not stray, f"left to the event loop: {stray}"
            return result

        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(checked())

    return go


@pytest.fixture
def log() -> Lines:
    return Lines()


Handler = Callable[[Request, Peer], Awaitable[ResponseBody | None]]
Serve = Callable[..., Coroutine[Any, Any, Server]]


@pytest.fixture
def start(log: Lines) -> Serve:
    """Starts a server on a free port of loopback."""

    async def start(
        handler: Handler, *, apis: VersionRanges = SERVED, clock: Clock | None = None, **limits: Any
    ) -> Server:
        clock = clock or SystemClock()
        return await serve("127.0.0.1", 0, handler, apis=apis, clock=clock, log=log, limits=Limits(**limits))

    return start


async def until(condition: Callable[[], bool]) -> None:
    """Wait for ``condition``; the story's timeout bounds it."""
    while not condition():  # noqa: ASYNC110 - conditions of the code under test have no event
        await asyncio.sleep(0.005)

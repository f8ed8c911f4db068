"""A control socket with canned answers, for tests of the commands: what a command says of what an agent answers."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from kjbod.runtime.control_socket import SOCKET_NAME, ControlError, ControlServer, Handler

SERVER_PROPERTIES = """\
process.roles=broker
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:9093
controller.listener.names=CONTROLLER
log.dirs={root}/d1,{root}/d2
kjbod.state.dir={root}/state
"""


def configure(root: Path) -> Path:
    """A broker's configuration with two directories, which do not exist, and a state directory."""
    (root / "state").mkdir()
    path = root / "server.properties"
    path.write_text(SERVER_PROPERTIES.format(root=root))
    return path


class _Log:
    def warning(self, event: str, **fields: Any) -> None:
        raise AssertionError(event)

    def exception(self, event: str, **fields: Any) -> None:
        raise AssertionError(event)


def answers(answer: Any, asked: list[dict[str, Any]]) -> Handler:
    """A handler that always answers the same; an error is raised."""

    async def handle(request: dict[str, Any]) -> Any:
        asked.append(request)
        if isinstance(answer, ControlError):
            raise answer
        return answer

    return handle


def streams(parts: Sequence[Any], asked: list[dict[str, Any]]) -> Handler:
    """A handler that answers in parts."""

    async def handle(request: dict[str, Any]) -> AsyncIterator[Any]:
        asked.append(request)
        for part in parts:
            yield part

    return handle


@contextlib.contextmanager
def fake_agent(root: Path, **canned: Any) -> Iterator[list[dict[str, Any]]]:
    """Serves on a thread: by operation (``_`` for ``-``) an answer, or a list of parts. Gives what was asked."""
    asked: list[dict[str, Any]] = []
    handlers = {
        operation.replace("_", "-"): (streams if isinstance(answer, list) else answers)(answer, asked)
        for operation, answer in canned.items()
    }
    loop = asyncio.new_event_loop()
    server = ControlServer(root / "state" / SOCKET_NAME, handlers, log=_Log(), identity={"node": 1})
    loop.run_until_complete(server.open())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def close() -> None:
        server.close()
        await asyncio.sleep(0)

    try:
        yield asked
    finally:
        asyncio.run_coroutine_threadsafe(close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

"""Doors of a daemon for others on its host: the control socket and the metrics listener."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from kjbod.config import Config
from kjbod.config.endpoints import HostPort
from kjbod.runtime.control_socket import SOCKET_NAME, ControlError, ControlServer, Handler
from kjbod.usage import Usage
from kjbod_host.files.file_process import FileProcess

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from kjbod.metrics.listener import MetricsListener

T = TypeVar("T")

CONTROL_EVERY_MS: Final = 10_000
"""Between two looks for the name of the control socket."""


class Log(Protocol):
    """The part of a structlog logger that is used here."""

    def warning(self, event: str, **fields: Any) -> Any: ...

    def error(self, event: str, **fields: Any) -> Any: ...

    def exception(self, event: str, **fields: Any) -> Any: ...


async def open_control(
    config: Config, handlers: Mapping[str, Handler], *, files: FileProcess, log: Log
) -> ControlServer | None:
    """Open the control socket. A daemon without one still watches its disks: why there is none is only said.

    Args:
        config: where, and whose.
        handlers: by the name of the operation.
        files: does the file calls in ``kjbod.state.dir``.
        log: for why there is none.
    """
    control = ControlServer(
        Path(config.kjbod_state_dir) / SOCKET_NAME,
        handlers,
        log=log,
        identity={"node": config.node_id},
        remove=lambda path, inode: files.tell("remove", str(path), inode),
    )
    try:
        await control.open()
    except ControlError as error:
        log.error("control.unavailable", reason=str(error))
        return None
    return control


async def keep_control(control: ControlServer | None, *, files: FileProcess, log: Log) -> None:
    """Look for the control socket from time to time, until cancelled: without its name no command finds the daemon, and
    who cleans up ``kjbod.state.dir`` does not know that. None: there is none."""
    said = ""
    while control is not None:
        await asyncio.sleep(CONTROL_EVERY_MS / 1000)
        try:
            if await control.renew(await files.call("inode_of", str(control.path))):
                log.warning("control.renewed", path=str(control.path), reason="its name was removed")
            said = ""
        except (ControlError, OSError) as error:
            if str(error) != said:
                log.error("control.unavailable", reason=str(error))
            said = str(error)


async def open_metrics(
    where: HostPort | None,
    take: Callable[[], T],
    load: "Callable[[], Callable[[T], Iterable[Metric]]]",
    usage: Callable[[], Awaitable[Usage | None]],
) -> "MetricsListener[T] | None":
    """Open the metrics listener, where one is wanted.

    Args:
        where: to listen.
        take: a picture of this moment, on the event loop.
        load: imports what makes metrics of a picture, in a thread.
        usage: what the processes use.
    """
    if where is None:
        return None
    # some MiB, which only those pay who have the listener
    from kjbod.metrics.listener import MetricsListener

    listener = MetricsListener(take, load(), usage)
    await listener.open(where.host, where.port)
    return listener

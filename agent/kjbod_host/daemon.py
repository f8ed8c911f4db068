"""The process of a daemon, for agent, guard and controller. Each of them adds only its own work.

This module has the setup of the process, signals, tasks, which all end when one fails, the control socket, the
metrics listener, the usage meter, and the order of the end. :mod:`.ending` has the end's limit, last line and exit
code.

==================  =================================================  ===========================  ====================
phase               work                                               first SIGTERM or SIGINT      an error
==================  =================================================  ===========================  ====================
:meth:`Work.open`   check and open what can make the start fail        interrupts the start         is raised
:meth:`Work.serve`  start the tasks, wait for the decision to end      is ``on_signal``'s, if set   ends all the tasks
:meth:`Work.leave`  close in good order                                changes nothing              is logged
the last line       ``agent.stopped``                                  is not heard                 none
:meth:`Work.close`  release what is left, after a refused start too    is not heard                 is raised
==================  =================================================  ===========================  ====================
"""

import asyncio
import faulthandler
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.errors import KjbodError
from kjbod.runtime import memory
from kjbod.runtime.control_socket import SOCKET_NAME, ControlError, ControlServer, Handler
from kjbod.runtime.logging import configure_logging, get_logger
from kjbod.runtime.loop import share_interpreter
from kjbod.runtime.room import require_room
from kjbod.security.certificates import Certificates
from kjbod_host.ending import DEATHS, Ended, Ending, first_of
from kjbod_host.files.file_process import FileProcess

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from kjbod.metrics.listener import MetricsListener
    from kjbod.metrics.vitals import Vitals
    from kjbod.runtime.usage_meter import UsageMeter

T = TypeVar("T")

CONTROL_EVERY_MS: Final = 10_000
"""Time between two checks of the control socket's name."""


def begin(component: str, *, tasks: int, files: int) -> None:
    """Set up the process of a daemon, before there is an event loop.

    Args:
        component: of its log lines: ``agent``.
        tasks: threads and processes that its start takes.
        files: open files that its start takes.

    Raises:
        NoRoomError: the host, or a limit of this process, has no room for the start.
    """
    require_room(tasks=tasks, files=files)
    configure_logging(component)
    memory.economize()
    share_interpreter()
    # The watchdog ends a loop that hangs with SIGABRT: where it hung is then in the log.
    faulthandler.enable(file=2)


class Work(Protocol):
    """The work of a daemon."""

    async def open(self) -> None:
        """Check and open all that may refuse the start.

        Raises:
            KjbodError: the start is refused.
        """

    async def serve(self) -> Ended:
        """Start all parts as tasks of the daemon. Returns why it ends, once that is decided.

        Raises:
            KjbodError: the reason for the end.
        """

    async def leave(self, ended: Ended) -> Ended:
        """Close in good order, in the time that the end has. The tasks have ended.

        Args:
            ended: the end, as the tasks ended.

        Returns:
            The end that counts: ``ended``, or one that was decided before it.
        """

    async def close(self) -> None:
        """Release everything that is still open, however the daemon ends."""


class Daemon:
    """The process of a daemon, for one run.

    Args:
        ending: of the process.
        clock: the time.

    Attributes:
        on_signal: gets SIGTERM and SIGINT; None: the first one interrupts the start, and the next ones do nothing.
        usage: of this process and its helpers, see :meth:`meter`.
    """

    def __init__(self, ending: Ending, clock: Clock) -> None:
        self.ending = ending
        self.on_signal: Callable[[int], None] | None = None
        self.usage: UsageMeter
        self._clock = clock
        self._log = get_logger()
        self._main: asyncio.Task[Any] | None = None
        self._interrupted: Ended
        self._group: asyncio.TaskGroup
        self._tasks: set[asyncio.Task[Any]] = set()
        self._control: ControlServer | None = None
        self._metrics: MetricsListener[Any] | None = None

    async def run(self, work: Work, interrupted: str) -> int:
        """Run the daemon from start to end; return the exit code.

        Args:
            work: of the daemon.
            interrupted: reason for the end of a start that a signal interrupts.

        Raises:
            KjbodError: the start was refused.
        """
        self._main = asyncio.current_task()
        self._interrupted = Ended(0, interrupted, clean=True)
        self.ending.start(self._signalled)
        try:
            await work.open()
            return await self._serve(work)
        except asyncio.CancelledError:
            if not self.ending.signals:
                raise
            return self.ending.leave(self._interrupted)
        finally:
            self.ending.pass_over_signals()
            self._close_sockets()  # of a start that was interrupted
            await work.close()

    async def _serve(self, work: Work) -> int:
        try:
            async with asyncio.TaskGroup() as self._group:
                ended = await work.serve()
                for task in self._tasks:
                    task.cancel()
        except* KjbodError as group:
            ended = Ended(first_of(group).exit_code, str(first_of(group)), clean=False)
        except* Exception as group:  # noqa: BLE001  any bug in any part: the whole daemon ends, and says so
            ended = self.ending.after_bug(first_of(group))
        self.ending.limit(ended)
        self._close_sockets()
        try:
            ended = await work.leave(ended)
        except Exception as bug:  # noqa: BLE001  the end has been decided
            after = self.ending.after_bug(bug)
            ended = ended if ended.exit_code else after
        return self.ending.leave(ended)

    def _signalled(self, number: int) -> None:
        if self.on_signal is not None:
            self.on_signal(number)
        elif self._main is not None and self.ending.signals == 1 and not self.ending.decided:
            self.ending.limit(self._interrupted)
            self._main.cancel()  # a second one must not interrupt the clean-up

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a task of the daemon. All of them end with the first that fails, and when the end is decided."""
        self.task(coroutine)

    def task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """:meth:`spawn`, for a caller that waits for the task."""
        task = self._group.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def note(self, event: str, fields: Mapping[str, object]) -> None:
        """Log an event for a part without a log of its own."""
        say = self._log.warning if event in DEATHS else self._log.info
        say(event, **fields)

    # --------------------------------------------------------------------------------------------------------- sockets

    def _close_sockets(self) -> None:
        """Close control socket and metrics listener. A second call does nothing."""
        if self._control is not None:
            self._control.close()
        if self._metrics is not None:
            self._metrics.close()

    def meter(self, workers: Callable[[], Iterable[int]], helpers: Callable[[], Iterable[int]] = tuple) -> None:
        """Measure the use of the host by this process, by ``workers``, which touch disks, and by ``helpers``."""
        # some MiB, which a controller that shows no metrics does without
        from kjbod.runtime.usage_meter import UsageMeter

        self.usage = UsageMeter(self._clock, workers=workers, helpers=helpers)
        self.spawn(self.usage.run())

    async def open_control(self, config: Config, handlers: Mapping[str, Handler], files: FileProcess) -> None:
        """Open the control socket, and make the socket again when it is removed. A failure is only logged: a daemon
        watches its disks without the socket.

        Args:
            config: where, and whose.
            handlers: by the name of the operation.
            files: does the file calls in ``kjbod.state.dir``.
        """
        control = ControlServer(
            Path(config.kjbod_state_dir) / SOCKET_NAME,
            handlers,
            log=self._log,
            identity={"node": config.node_id},
            remove=lambda path, inode: files.tell("remove", str(path), inode),
        )
        try:
            await control.open()
        except ControlError as error:
            self._log.error("control.unavailable", reason=str(error))
            return
        self._control = control
        self.spawn(self._keep_control(control, files))

    async def _keep_control(self, control: ControlServer, files: FileProcess) -> None:
        """Look for the control socket from time to time, until cancelled: without its name no command finds the daemon,
        and a person or tool that cleans up ``kjbod.state.dir`` does not know that."""
        said = ""
        while True:
            await asyncio.sleep(CONTROL_EVERY_MS / 1000)
            try:
                if await control.renew(await files.call("inode_of", str(control.path))):
                    self._log.warning("control.renewed", path=str(control.path), reason="its name was removed")
                said = ""
            except (ControlError, OSError) as error:
                if str(error) != said:
                    self._log.error("control.unavailable", reason=str(error))
                said = str(error)

    async def open_metrics(
        self,
        config: Config,
        take: Callable[[], T],
        load: "Callable[[], Callable[[T], Iterable[Metric]]]",
        vitals: "Callable[[], Vitals]",
        certificates: Certificates,
    ) -> None:
        """Open the metrics listener, where one is wanted; :meth:`meter` was called before.

        Args:
            config: where to listen.
            take: a picture of this moment, on the event loop.
            load: imports the function that makes metrics of a picture, in a thread.
            vitals: whether the daemon works, on the event loop.
            certificates: of the daemon, to which the listener adds its own.

        Raises:
            MetricsListenerError: it cannot listen there.
            KjbodError: a file of TLS or logins cannot be used.
        """
        where = config.kjbod_metrics_listener
        if where is None:
            return
        # Imported here: some MiB, which a daemon without the listener does without.
        from kjbod.metrics.listener import MetricsListener

        web = None
        if (path := config.kjbod_metrics_web_config_file) is not None:
            from kjbod.metrics.web import Web

            web = Web(path, config.directories if "broker" in config.process_roles else ())
            certificates.add("metrics", web)
        self._metrics = MetricsListener(take, load(), self.usage.read, vitals, web)
        await self._metrics.open(where.host, where.port)

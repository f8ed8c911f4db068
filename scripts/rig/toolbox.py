"""The mains of Kafka's tools, one after the other in one Java that stays warm: a tool takes 0.05 s of CPU, not 0.6.

::

    with Toolbox(command) as toolbox:  # the command line of py4j's gateway with Kafka's class path
        done = toolbox.run("org.apache.kafka.tools.TopicCommand", ["--bootstrap-server", server, "--list"], 120)

Each call has standard streams of its own, and its exit code is the process's: what a tool gives to ``Exit.exit`` ends
that call there and then, an exception that nobody catches is written as Java does it. py4j comes with PySpark; where it
is not installed, each tool is a process.
"""

import importlib.util
import itertools
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from unittest import mock

from scripts.rig.rig_error import RigError

T = TypeVar("T")
GATEWAY: Final = "py4j.GatewayServer"
GATEWAY_ARGUMENTS: Final = ("--enable-auth", "--die-on-broken-pipe", "0")
_END_TIMEOUT_S: Final = 10.0


def gateway_jar() -> Path | None:
    """The jar of py4j; None where it is not installed."""
    if importlib.util.find_spec("py4j") is None:
        return None
    from py4j.java_gateway import find_jar_path

    return Path(found) if (found := find_jar_path()) else None


@contextmanager
def _own_exceptions() -> Iterator[None]:
    """Exceptions of Java as py4j gives them. A Spark session puts a function of its own into py4j, for the whole
    process, which looks an exception up in Spark's Java: there, the number of an exception of ours is another object's.
    """
    from py4j import java_gateway, protocol

    with mock.patch.object(java_gateway, "get_return_value", protocol.get_return_value):
        yield


class Toolbox:
    """A Java with Kafka's classes that runs one tool at a time. It is started by the first one.

    Args:
        command: which runs :data:`GATEWAY`; it ends with its standard input, so not after this process.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._gateway: Any = None
        self._numbers = itertools.count(1)

    def run(self, main_class: str, arguments: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a tool to its end. Raises :class:`subprocess.TimeoutExpired`; after any error another Java is begun."""
        with self._lock, _own_exceptions():
            try:
                return self._run(main_class, arguments, timeout_s)
            except BaseException:
                self._stop()
                raise

    def ask(self, question: Callable[[Any], T]) -> T:
        """The answer to a question to Kafka's classes; it is given py4j's view of that Java."""
        with self._lock, _own_exceptions():
            if self._gateway is None:
                self._start()
            return question(self._gateway.jvm)

    def close(self) -> None:
        """End the Java."""
        with self._lock:
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, main_class: str, arguments: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        if self._gateway is None:
            self._start()
        self._out.reset()
        self._err.reset()
        self._ends.clear()
        self._thread(main_class, arguments).start()
        end = self._ends.poll(round(timeout_s * 1000), self._gateway.jvm.java.util.concurrent.TimeUnit.MILLISECONDS)
        if end is None:
            raise subprocess.TimeoutExpired([main_class, *arguments], timeout_s)
        if not isinstance(end, int):
            self._gateway.jvm.System.err.print('Exception in thread "main" ')
            end.printStackTrace()
            end = 1
        texts = (stream.toString("UTF-8") for stream in (self._out, self._err))
        return subprocess.CompletedProcess([main_class, *arguments], end, *texts)

    def _start(self) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway

        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        port, token = (self._process.stdout.readline().strip() for _ in range(2))
        if not token:
            raise RigError(f"{GATEWAY}: it ended before it listened")
        # What little each call leaves in Java stays: no finalizer of ours asks for its removal, perhaps after the end.
        parameters = GatewayParameters(port=int(port), auth_token=token, enable_memory_management=False)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        jvm = self._gateway.jvm
        # Before any class that keeps the streams that it finds, as Scala's console and Log4j do.
        self._out, self._err = (jvm.java.io.ByteArrayOutputStream() for _ in range(2))
        jvm.System.setOut(jvm.java.io.PrintStream(self._out, True, "UTF-8"))
        jvm.System.setErr(jvm.java.io.PrintStream(self._err, True, "UTF-8"))
        self._ends = jvm.java.util.concurrent.LinkedBlockingQueue()
        self._prepare()

    def _stop(self) -> None:
        if self._gateway is not None:
            self._gateway.close()
            self._gateway = None
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=_END_TIMEOUT_S)
            self._process = None

    # ---- what Java is to do at an end; method handles, because there may be no Java compiler

    def _prepare(self) -> None:
        """Make what says how a tool has ended: its exit code, after which it stands still, or its exception."""
        jvm = self._gateway.jvm
        latch = jvm.java.util.concurrent.CountDownLatch(1)
        void, integer = jvm.Void.TYPE, jvm.Integer.TYPE
        text = self._class("java.lang.String")
        handles = jvm.java.lang.invoke.MethodHandles
        add = self._bound(self._ends, "add", jvm.Boolean.TYPE, self._class("java.lang.Object"))

        say_code = handles.dropArguments(add.asType(self._type(void, integer)), 1, self._classes(text))
        wait = handles.dropArguments(self._bound(latch, "await", void), 0, self._classes(integer, text))
        procedure = self._as_interface(
            "org.apache.kafka.common.utils.Exit$Procedure", handles.foldArguments(wait, say_code)
        )
        for setter in ("setExitProcedure", "setHaltProcedure"):
            getattr(jvm.org.apache.kafka.common.utils.Exit, setter)(procedure)
        self._say_error = add.asType(self._type(void, self._class("java.lang.Throwable")))
        self._say_done = handles.insertArguments(add, 0, self._array(jvm.Object, [0])).asType(self._type(void))

    def _thread(self, main_class: str, arguments: Sequence[str]) -> Any:
        """The thread that runs a main, and then says that it is done."""
        jvm = self._gateway.jvm
        handles = jvm.java.lang.invoke.MethodHandles
        given = self._array(jvm.String, arguments)
        kind = self._type(jvm.Void.TYPE, given.getClass())
        main = handles.publicLookup().findStatic(self._class(main_class), "main", kind).asFixedArity().bindTo(given)
        throwable = self._class("java.lang.Throwable")
        said = handles.catchException(handles.foldArguments(self._say_done, main), throwable, self._say_error)
        thread = jvm.Thread(self._as_interface("java.lang.Runnable", said), f"main-{next(self._numbers)}")
        thread.setDaemon(True)
        return thread

    def _class(self, name: str) -> Any:
        return self._gateway.jvm.Class.forName(name)

    def _array(self, kind: Any, values: Sequence[Any]) -> Any:
        made = self._gateway.new_array(kind, len(values))
        for number, value in enumerate(values):
            made[number] = value
        return made

    def _classes(self, *classes: Any) -> Any:
        return self._array(self._gateway.jvm.Class, classes)

    def _type(self, returned: Any, *parameters: Any) -> Any:
        return self._gateway.jvm.java.lang.invoke.MethodType.methodType(returned, self._classes(*parameters))

    def _bound(self, receiver: Any, name: str, returned: Any, *parameters: Any) -> Any:
        """A method of an object as a handle."""
        lookup = self._gateway.jvm.java.lang.invoke.MethodHandles.publicLookup()
        return lookup.findVirtual(receiver.getClass(), name, self._type(returned, *parameters)).bindTo(receiver)

    def _as_interface(self, name: str, handle: Any) -> Any:
        """An object whose one method is the handle."""
        return self._gateway.jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(self._class(name), handle)

"""The control socket: a command and an agent on one host, whatever one does to the other."""

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from kjbod.errors import ConfigError, KjbodError
from kjbod.runtime import control_socket
from kjbod.runtime.control_socket import (
    EXIT_NO_AGENT,
    SOCKET_NAME,
    ControlClient,
    ControlError,
    ControlLimits,
    ControlServer,
    NoAgentError,
    bind,
    guard_of,
    short_name,
)


class Log:
    """Keeps what a server says."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.events.append(event)

    def exception(self, event: str, **fields: Any) -> None:
        self.events.append(event)


async def echo(request: dict[str, Any]) -> Any:
    return request


async def parts(request: dict[str, Any]) -> AsyncIterator[int]:
    for number in range(request["count"]):
        yield number


async def refuse(request: dict[str, Any]) -> Any:
    raise ConfigError("no: do this instead")


async def crash(request: dict[str, Any]) -> Any:
    raise ZeroDivisionError("a bug")


async def hang(request: dict[str, Any]) -> Any:
    await asyncio.Event().wait()


HANDLERS: dict[str, control_socket.Handler] = {
    "echo": echo,
    "parts": parts,
    "refuse": refuse,
    "crash": crash,
    "hang": hang,
}


@contextlib.asynccontextmanager
async def serving(state: Path, log: Log | None = None, **limits: int) -> AsyncIterator[ControlServer]:
    server = ControlServer(
        state / SOCKET_NAME,
        HANDLERS,
        log=log or Log(),
        identity={"node": 1},
        limits=ControlLimits(**limits),
    )
    await server.open()
    try:
        yield server
    finally:
        server.close()


def client(state: Path, node_id: int = 1, **options: Any) -> ControlClient:
    return ControlClient(state, node_id=node_id, source="server.properties", **options)


async def ask(call: Callable[[], Any]) -> Any:
    """A command is another process; here it is another thread."""
    return await asyncio.to_thread(call)


async def test_a_command_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path):
        answer = await ask(lambda: client(tmp_path).call("echo", path="/mnt/d1 \u00fc\n\udcff"))
    assert answer == {"op": "echo", "node": 1, "path": "/mnt/d1 \u00fc\n\udcff"}


async def test_a_long_answer_comes_in_parts(tmp_path: Path) -> None:
    async with serving(tmp_path):
        assert await ask(lambda: list(client(tmp_path).stream("parts", count=1000))) == list(range(1000))


async def test_the_socket_is_for_the_agents_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with serving(tmp_path):
            mode = (tmp_path / SOCKET_NAME).lstat().st_mode
            assert stat.S_ISSOCK(mode)
            assert stat.S_IMODE(mode) == 0o600
    finally:
        os.umask(before)
    assert os.listdir(tmp_path) == []


async def test_the_socket_of_a_dead_agent_is_replaced_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / SOCKET_NAME
    bind(path).close()  # as SIGKILL leaves it
    assert path.is_socket()
    async with serving(tmp_path):
        with pytest.raises(ControlError, match="another agent or guard answers there"):
            bind(path)
        assert await ask(lambda: client(tmp_path).call("echo"))
        assert os.listdir(tmp_path) == [SOCKET_NAME]


async def test_something_that_is_no_socket_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / SOCKET_NAME
    path.write_text("mine")
    with pytest.raises(ControlError, match="not a socket: move it away"):
        bind(path)
    assert path.read_text() == "mine"


def _remove_directory(state: Path) -> None:
    shutil.rmtree(state)
    state.mkdir()


def _remove_name(state: Path) -> None:
    (state / SOCKET_NAME).unlink()


def _move_directory(state: Path) -> None:
    state.rename(state.with_name("away"))
    state.mkdir()


@pytest.mark.parametrize("remove", [_remove_directory, _remove_name, _move_directory])
async def test_a_socket_whose_name_was_removed_is_made_again_and_connections_go_on(
    tmp_path: Path, remove: Callable[[Path], None]
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    async with serving(state) as server:
        reader, writer = await asyncio.open_unix_connection(str(server.path))
        assert not await server.renew(server.path.lstat().st_ino)
        remove(state)
        assert await server.renew(None)
        assert stat.S_IMODE(server.path.lstat().st_mode) == 0o600
        assert await ask(lambda: client(state).call("echo")) == {"op": "echo", "node": 1}
        writer.write(b'{"op": "echo"}\n')
        assert b'"ok"' in await reader.readline()
        writer.close()
    assert not server.path.exists()


async def test_a_socket_in_the_place_of_ours_is_left_to_its_owner(tmp_path: Path) -> None:
    async with serving(tmp_path) as first:
        first.path.unlink()
        async with serving(tmp_path) as second:
            assert not await first.renew(second.path.lstat().st_ino)
            with pytest.raises(ControlError, match="another agent or guard answers there"):
                await first.renew(None)  # it came after the look


async def test_the_name_of_a_successor_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / SOCKET_NAME
    async with serving(tmp_path):
        path.unlink()
        successor = bind(path)
    assert path.is_socket()
    successor.close()


async def test_a_state_directory_with_a_long_path_works(tmp_path: Path) -> None:
    state = tmp_path / ("long" * 50)
    state.mkdir()
    async with serving(state):
        assert await ask(lambda: client(state).call("echo"))
        with pytest.raises(ControlError, match="another agent"):
            bind(state / SOCKET_NAME)
    with pytest.raises(NoAgentError):
        client(state).call("echo")


def test_a_long_path_without_proc_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "isdir", lambda _: False)
    state = tmp_path / ("long" * 50)
    state.mkdir()
    with pytest.raises(ControlError, match=r"longer than 107 bytes.*shorten kjbod\.state\.dir"):
        bind(state / SOCKET_NAME)


def test_no_descriptor_is_left_of_a_long_path(tmp_path: Path) -> None:
    state = tmp_path / ("long" * 50)
    state.mkdir()
    with short_name(state / "x") as name:
        assert len(name) < 107
        held = os.listdir("/proc/self/fd")
    assert len(os.listdir("/proc/self/fd")) == len(held) - 1


def test_a_state_directory_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="No such file or directory"):
        bind(tmp_path / "none" / SOCKET_NAME)


# ------------------------------------------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize("kind", ["no directory", "no socket", "dead socket"])
def test_without_an_agent_one_line_names_the_file_the_state_directory_and_the_way_to_start_it(
    tmp_path: Path, kind: str
) -> None:
    state = tmp_path / "none" if kind == "no directory" else tmp_path
    if kind == "dead socket":
        bind(state / SOCKET_NAME).close()
    with pytest.raises(NoAgentError) as caught:
        client(state).call("echo")
    assert str(caught.value) == (
        f"no agent or guard answers at {state}/control.sock (kjbod.state.dir={state} of server.properties): "
        "on a host with Kafka start a guard with `kjbod guard run -c server.properties` or systemctl start "
        "kjbod-guard, and give its --guard-config here too; only on a host without Kafka start "
        "`kjbod agent -c server.properties` or systemctl start kjbod-agent"
    )
    assert caught.value.exit_code == EXIT_NO_AGENT


@pytest.mark.parametrize(
    ("own", "source", "command"),
    [
        (None, "server.properties", "kjbod guard run -c server.properties"),
        (
            "guard.properties",
            "guard.properties",
            "kjbod guard run -c server.properties --guard-config guard.properties",
        ),
    ],
)
def test_without_the_guard_of_a_kafka_broker_one_line_names_the_way_to_start_it_and_no_agent(
    tmp_path: Path, own: str | None, source: str, command: str
) -> None:
    with pytest.raises(NoAgentError) as caught:
        client(tmp_path, answerer=guard_of("server.properties", own)).call("echo")
    assert str(caught.value) == (
        f"no guard answers at {tmp_path}/control.sock (kjbod.state.dir={tmp_path} of {source}): "
        f"start it with `{command}` or systemctl start kjbod-guard"
    )


def test_an_agent_that_has_its_state_directory_and_no_socket_yet_is_starting(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(NoAgentError, match="the agent or guard is starting or ending: see its log") as caught:
            client(tmp_path).call("echo")
    assert "start it with" not in str(caught.value)


async def test_a_refusal_keeps_its_text_and_its_exit_code(tmp_path: Path) -> None:
    async with serving(tmp_path):
        with pytest.raises(ControlError, match="no: do this instead") as caught:
            await ask(lambda: client(tmp_path).call("refuse"))
    assert caught.value.exit_code == 78


async def test_a_bug_in_a_handler_is_an_answer_and_a_line_in_the_log(tmp_path: Path) -> None:
    log = Log()
    async with serving(tmp_path, log):
        with pytest.raises(ControlError, match="internal error: ZeroDivisionError: a bug"):
            await ask(lambda: client(tmp_path).call("crash"))
        assert await ask(lambda: client(tmp_path).call("echo"))
    assert log.events == ["control.handler.crashed"]


async def test_the_agent_of_another_node_refuses(tmp_path: Path) -> None:
    async with serving(tmp_path):
        with pytest.raises(ControlError, match=r"control\.sock has node 1, not 2"):
            await ask(lambda: client(tmp_path, node_id=2).call("echo"))


async def test_an_agent_that_works_for_long_asks_for_patience_and_gives_up_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "WAIT_MS", 10)
    async with serving(tmp_path, step_timeout_ms=200) as server:
        reader, writer = await asyncio.open_unix_connection(str(server.path))
        writer.write(b'{"op": "hang"}\n{"op": "echo"}\n')
        answers = []
        while "error" not in (answer := json.loads(await reader.readline())):
            answers.append(answer)
        assert answer["error"] == "not done after 200 ms; it may still be"
        assert json.loads(await reader.readline()) == {"ok": {"op": "echo"}}
        writer.close()
    assert answers == [{"wait": True}] * len(answers) != []


def test_an_agent_that_hangs_is_told_from_one_that_works(tmp_path: Path) -> None:
    with (
        bind(tmp_path / SOCKET_NAME),
        pytest.raises(ControlError, match="the agent or guard does not answer") as caught,
    ):
        client(tmp_path, silence_timeout_ms=50).call("echo")
    assert caught.value.exit_code == EXIT_NO_AGENT


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "the guard does not answer: see its log"),
        (b"{}\n", "the program that answers is no guard of kjbod"),
        (b"", "the guard ended the conversation: see its log"),
    ],
)
def test_a_guard_is_called_a_guard_whatever_goes_wrong(tmp_path: Path, answer: bytes | None, text: str) -> None:
    options: dict[str, Any] = {"answerer": guard_of("server.properties", None), "silence_timeout_ms": 200}
    if answer is None:
        with bind(tmp_path / SOCKET_NAME), pytest.raises(ControlError, match=text):
            client(tmp_path, **options).call("echo")
        return
    ended = impostor(tmp_path, answer)
    with pytest.raises(ControlError, match=text):
        client(tmp_path, **options).call("echo")
    ended()


async def test_a_socket_that_may_not_be_opened_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_to_connect(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    class Refusing(socket.socket):
        connect = refuse_to_connect

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(ControlError, match="no permission: ask as root or as the user of the agent or guard"):
        client(tmp_path).call("echo")


def impostor(state: Path, answer: bytes) -> Callable[[], None]:
    """Something else that answers one request on the socket; gives a function that waits for its end."""
    listening = bind(state / SOCKET_NAME)
    listening.setblocking(True)

    def serve() -> None:
        with listening:
            peer, _ = listening.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread.join


def test_a_command_is_patient_for_as_long_as_it_is_asked_to(tmp_path: Path) -> None:
    ended = impostor(tmp_path, b'{"wait": true}\n' * 50 + b'{"ok": 1}\n')
    assert client(tmp_path).call("echo") == 1
    ended()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the program that answers is no agent or guard of kjbod"),
        (b"[1]\n", "the program that answers is no agent or guard of kjbod"),
        (b"{}\n", "the program that answers is no agent or guard of kjbod"),
        (b"[" * 100_000 + b"\n", "the program that answers is no agent or guard of kjbod"),
        (b'{"next": 1}\n', "ended the conversation"),
        (b"", "ended the conversation"),
        (b'{"error": "x", "code": "y"}\n', "x"),
    ],
)
def test_a_command_survives_whatever_answers(tmp_path: Path, answer: bytes, text: str) -> None:
    ended = impostor(tmp_path, answer)
    with pytest.raises(ControlError, match=text):
        client(tmp_path).call("echo")
    ended()


# -------------------------------------------------------------------------------------------------------- hostile peers

HOSTILE = [
    b"\n",
    b"{}\n",
    b"[]\n",
    b"null\n",
    b"\xff\xfe\x00\n",
    b'{"op": 1}\n',
    b'{"op": ["echo"]}\n',
    b'{"op": "nope"}\n',
    b'{"op": "echo"\n',
    b'{"op": "echo", "node": "1"}\n',
    b'{"op": "parts"}\n',
    b'{"op": "parts", "count": "x"}\n',
    b"[" * 100_000 + b"\n",
    b"9" * 10_000 + b"\n",
    b'{"op": "echo", "op": "crash"}\n',
    b"x" * 300_000 + b"\n",
]


def say(state: Path, line: bytes) -> dict[str, Any]:
    """Send a raw line; the first line of the answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(30)
        with short_name(state / SOCKET_NAME) as name:
            peer.connect(name)
        with contextlib.suppress(BrokenPipeError):  # it may have been refused before it was sent to its end
            peer.sendall(line)
        with peer.makefile("rb") as answers:
            answer = json.loads(answers.readline())
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_hostile_line_is_answered_with_one_line_and_the_server_lives(tmp_path: Path, line: bytes) -> None:
    async with serving(tmp_path):
        answer = await ask(lambda: say(tmp_path, line))
        assert answer["error"].count("\n") == 0
        assert len(answer["error"]) < 400
        assert await ask(lambda: client(tmp_path).call("echo"))


async def test_peers_above_the_limit_are_told_so(tmp_path: Path) -> None:
    async with serving(tmp_path, connections=2, idle_timeout_ms=60_000) as server:
        silent = [await asyncio.open_unix_connection(str(server.path)) for _ in range(2)]
        with pytest.raises(ControlError, match="2 connections are open already"):
            await ask(lambda: client(tmp_path).call("echo"))
        for reader, writer in silent:
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        assert await ask(lambda: client(tmp_path).call("echo"))


@pytest.mark.parametrize("refusal", [b'{"error": "not now"}\n', b""])
async def test_what_was_said_before_the_end_is_told_also_where_the_question_was_not_read(
    tmp_path: Path, refusal: bytes
) -> None:
    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(refusal)
        writer.close()

    async with await asyncio.start_unix_server(refuse, tmp_path / SOCKET_NAME):
        with pytest.raises(
            ControlError, match="^not now$" if refusal else r"the agent or guard ended the conversation \("
        ):
            await ask(lambda: client(tmp_path).call("echo", what="x" * 10_000_000))


@pytest.mark.parametrize("half", [b"", b'{"op": "echo"'])
async def test_a_peer_that_is_silent_makes_room(tmp_path: Path, half: bytes) -> None:
    async with serving(tmp_path, idle_timeout_ms=50) as server:
        reader, writer = await asyncio.open_unix_connection(str(server.path))
        writer.write(half)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert await ask(lambda: client(tmp_path).call("echo"))


async def test_a_peer_that_does_not_read_is_cut_and_its_handler_ends(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def flood(request: dict[str, Any]) -> AsyncIterator[str]:
        try:
            while True:
                yield "x" * 100_000
        finally:
            ended.set()

    server = ControlServer(
        tmp_path / SOCKET_NAME, {"flood": flood}, log=Log(), limits=ControlLimits(read_timeout_ms=100)
    )
    await server.open()
    _, writer = await asyncio.open_unix_connection(str(server.path), limit=10)
    writer.write(b'{"op": "flood"}\n')
    await ended.wait()
    writer.close()
    server.close()


async def test_closing_waits_for_nobody_and_cancels_what_is_under_way(tmp_path: Path) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def work(request: dict[str, Any]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = ControlServer(tmp_path / SOCKET_NAME, {"work": work}, log=Log())
    await server.open()
    _, writer = await asyncio.open_unix_connection(str(server.path))
    writer.write(b'{"op": "work"}\n')
    await begun.wait()
    server.close()
    await cancelled.wait()
    assert not server.path.exists()
    writer.close()


async def test_several_requests_may_follow_each_other_on_one_connection(tmp_path: Path) -> None:
    async with serving(tmp_path):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET_NAME))
        writer.write(b'{"op": "nope"}\n{"op": "echo", "n": 1}\n{"op": "parts", "count": 1}\n')
        answers = [json.loads(await reader.readline()) for _ in range(4)]
        writer.close()
    assert "unknown op" in answers[0]["error"]
    assert answers[1:] == [{"ok": {"op": "echo", "n": 1}}, {"next": 0}, {"ok": None}]


def test_errors_of_the_socket_are_errors_that_a_person_can_cause() -> None:
    assert issubclass(ControlError, KjbodError)
    assert issubclass(NoAgentError, ControlError)


def test_a_command_that_is_interrupted_amid_its_answer_is_no_bug_of_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the loop that an agent runs on: uvloop says RuntimeError where asyncio drops what is written."""
    monkeypatch.setattr(control_socket, "WAIT_MS", 1)
    log, unhandled = Log(), list[str]()
    said = asyncio.Event()
    say = control_socket._Waiting._say

    def noting(waiting: Any) -> None:
        say(waiting)
        if waiting._writer.is_closing():
            asyncio.get_running_loop().call_later(0.01, said.set)  # and its handle is closed

    monkeypatch.setattr(control_socket._Waiting, "_say", noting)

    async def endless(request: dict[str, Any]) -> AsyncIterator[int]:
        yield 1
        await said.wait()  # the peer is missed by who asks it for patience
        yield 2

    async def interrupt() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(str(context)))
        server = ControlServer(
            tmp_path / SOCKET_NAME, {"endless": endless}, log=log, identity={"node": 1}, limits=ControlLimits()
        )
        await server.open()
        try:
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET_NAME))
            writer.write(b'{"op": "endless", "node": 1}\n')
            await reader.readline()
            writer.transport.abort()
            while server._connections:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        finally:
            server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(interrupt(), 60))
    assert log.events == []
    assert unhandled == []

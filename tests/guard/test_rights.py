"""Whom a guard that acts goes on as, and that it has no rights then; and what it says where that cannot be. What it
may do on the cluster, and what it says where it may not."""

import asyncio
import fcntl
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, cast

import psutil
import pytest

from kjbod.errors import ConfigError
from kjbod.metadata.acls import CLUSTER_NAME, DENY, Operation, ResourceType
from kjbod.metadata.fetching import Leader
from kjbod.metadata.refusals import refusal
from kjbod.wire.client import Connection, RequestTimedOut
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import API, ApiKey, RequestBody
from kjbod_controller_stub.access.authorizer import is_authorized
from kjbod_controller_stub.access.request_screening import screen
from kjbod_guard import rights
from kjbod_guard.controller_client import RIGHTS_AGAIN_MS, RIGHTS_EVERY_MS, ControllerClient, Rights
from kjbod_guard.helper_rights import KEPT_CAPABILITIES
from kjbod_guard.start_up import read_config
from kjbod_host.channel import ControllerChannel
from scripts.rig.processes import Processes, wait_until
from tests.agent.conftest import VirtualLoop
from tests.agent.daemon_cluster import Cluster
from tests.controller.test_acls import RULES, acl, create
from tests.controller.world import World
from tests.guard.conftest import Beside

as_root = pytest.mark.usefixtures("as_root")

NOBODY = rights.User(65534, 65534, (65534,))
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def log_dir(path: Path, uid: int, *, formatted: bool = True) -> str:
    path.mkdir()
    if formatted:
        (path / "meta.properties").touch()
    os.chown(path, uid, uid)
    return str(path)


def status(pid: int | str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@as_root
def test_a_guard_of_root_s_goes_on_as_the_owner_of_the_log_directories(tmp_path: Path) -> None:
    paths = [log_dir(tmp_path / "d1", 65534), log_dir(tmp_path / "d2", 65534)]
    unmounted, masked = log_dir(tmp_path / "d3", 0, formatted=False), log_dir(tmp_path / "d4", 0, formatted=False)
    (Path(masked) / "meta.properties").mkdir()
    user = rights.owner([unmounted, masked, *paths, str(tmp_path / "none")])
    assert (user.uid, user.gid, user.text) == (65534, 65534, "nobody (uid 65534)")
    assert 65534 in user.groups


@as_root
def test_an_owner_without_a_name_has_the_group_of_his_directories(tmp_path: Path) -> None:
    assert rights.owner([log_dir(tmp_path / "d1", 54321)]) == rights.User(54321, 54321, ())


@as_root
def test_log_directories_of_different_users_are_refused_in_one_line(tmp_path: Path) -> None:
    paths = [log_dir(tmp_path / "d1", 65534), log_dir(tmp_path / "d2", 0), log_dir(tmp_path / "d3", 0)]
    with pytest.raises(ConfigError) as refused:
        rights.owner(paths)
    said = str(refused.value)
    assert f"{paths[1]} is root's and {paths[0]} is nobody's" in said and "\n" not in said
    assert refused.value.exit_code == 78


@as_root
def test_a_host_without_its_disks_may_be_asked_again(tmp_path: Path) -> None:
    path = log_dir(tmp_path / "d1", 0, formatted=False)
    with pytest.raises(rights.NoOwnerError, match="goes on as their owner: mount one") as refused:
        rights.owner([path])
    assert refused.value.exit_code == 1


@as_root
def test_a_disk_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hung, well = log_dir(tmp_path / "hung", 0), log_dir(tmp_path / "well", 65534)
    ask = rights._owner_of

    def hangs(path: str) -> tuple[int, int] | None:
        if path == hung:
            with open(tmp_path / "lock") as file:  # a description of its own
                fcntl.flock(file, fcntl.LOCK_EX)
        return ask(path)

    monkeypatch.setattr(rights, "_owner_of", hangs)
    monkeypatch.setattr(rights, "ANSWER_MS", 500)
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert rights.owner([hung, well]).uid == 65534
        fcntl.flock(lock, fcntl.LOCK_UN)
    os.wait()  # for the child that hung


GIVE_UP = """
import subprocess, sys
sys.path[:] = {path!r}
from kjbod_guard import rights
rights.give_up({user})
print(open("/proc/self/status").read())
print(subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout)
"""


@pytest.mark.parametrize("user", ["None", "rights.User(65534, 65534, (65534, 100))"])
@as_root
def test_it_gives_all_rights_up_and_programs_that_it_starts_get_none(user: str) -> None:
    program = GIVE_UP.format(path=sys.path, user=user)
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    for text in said.strip().split("\n\n"):
        found = {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
        assert [int(found[name], 16) for name in SETS] == [0] * 5
        assert found["NoNewPrivs"] == "1"
        if user != "None":
            assert found["Uid"].split() == found["Gid"].split() == ["65534"] * 4
            assert found["Groups"].split() == ["100", "65534"]


@pytest.fixture
def passable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that all may pass to, which no ``tmp_path`` is, with programs that all may read."""
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    monkeypatch.setattr(rights, "__file__", "/bin/sh")
    with tempfile.TemporaryDirectory(prefix="kjbod-passable-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def why(directory: Path, state: Path) -> str | None:
    config = directory / "server.properties"
    config.write_text(
        "process.roles=broker\nnode.id=1\ncontroller.quorum.bootstrap.servers=127.0.0.1:1\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs=/mnt/d1\nkjbod.state.dir={state}\n"
    )
    return rights.why_unusable(read_config(config, None), NOBODY)


@as_root
def test_directories_that_the_owner_cannot_use_are_named_with_what_to_do(passable: Path) -> None:
    state = passable / "state"
    assert why(passable, state) == (
        f"kjbod.state.dir={state}: it is not there, and nobody cannot make it in {passable}: "
        f"install -d -o nobody {state}"
    )
    state.mkdir()
    assert why(passable, state) == (
        f"kjbod.state.dir={state}: permission denied: {state} belongs to root (mode 0755), and this is nobody: "
        f"chown -R nobody: {state}"
    )
    os.chown(state, 65534, 65534)
    assert why(passable, state) is None
    (state / "guard-audit.jsonl").touch(mode=0o640)
    said = why(passable, state)
    assert said is not None and f"{state}/guard-audit.jsonl belongs to root" in said
    assert said.endswith(f"chown -R nobody: {state}")


@as_root
def test_a_program_that_the_owner_cannot_read_is_named(passable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = passable / "private"
    private.mkdir(mode=0o700)
    monkeypatch.setattr(sys, "executable", f"{private}/python")
    said = why(passable, passable)
    assert said is not None and f"{private} belongs to root (mode 0700), and this is nobody, who may not pass" in said


@as_root
def test_a_guard_of_root_s_directories_stays_root_without_rights_and_its_hand_keeps_its_own(
    tmp_path: Path, processes: Processes, beside: Callable[..., Beside]
) -> None:
    cluster = Cluster(tmp_path, processes)
    watch = beside(cluster.configure(1, directories=2, kjbod_host="h"), guard_mode="act")
    guard = watch.start()
    guard.wait_for_event("guard.started", mode="act")
    found = status(guard.pid)
    assert [int(found[name], 16) for name in SETS] == [0] * 5
    assert found["Uid"].split() == ["0"] * 4 and found["NoNewPrivs"] == "1"
    (helper,) = (one.pid for one in psutil.Process(guard.pid).children() if "helper.py" in " ".join(one.cmdline()))
    kept = f"{sum(1 << number for number in KEPT_CAPABILITIES):016x}"
    wait_until(lambda: [status(helper)[name] for name in ("CapPrm", "CapEff")] == [kept, kept], 20, "what it keeps")
    assert guard.stop() == 0


@as_root
def test_a_guard_is_not_started_for_directories_of_different_users(
    tmp_path: Path, processes: Processes, beside: Callable[..., Beside]
) -> None:
    cluster = Cluster(tmp_path, processes)
    watch = beside(cluster.configure(1, directories=2, kjbod_host="h"), guard_mode="act")
    os.chown(cluster.directory(1, 2), 65534, 65534)
    guard = watch.start()
    assert guard.wait() == 78
    assert "log directories of different users" in guard.stderr()


# ---------------------------------------------------------------------------------------------------- on the cluster

GUARD = "User:guard"
LACKS: Final = {
    Operation.CLUSTER_ACTION: "the guard lacks CLUSTER_ACTION on the cluster: no directory is reported and no broker "
    "fenced",
    Operation.ALTER: "the guard lacks ALTER on the cluster: no replica is evicted, restored or demoted, and nothing is "
    "cut",
    Operation.ALTER_CONFIGS: "the guard lacks ALTER_CONFIGS on the cluster: nothing that cannot be undone is done",
}


class Watched:
    """A guard that looks for its rights, and a controller with ACLs, to which it has a connection."""

    closed = False

    def __init__(self, loop: VirtualLoop, *granted: Operation) -> None:
        self.world = World(acl_rules=RULES)
        self.world.join(1)
        self.grant(*granted)
        self.ready, self.told, self.asked = True, 0, 0
        self.unanswered: ApiKey | None = None
        channel = ControllerChannel(client_id="g", clock=loop, spawn=loop.create_task, connect=self.connect)
        channel.set_leader(Leader(3000, 1, "c1", 9093))
        self.rights = Rights(ControllerClient(1, channel, channel, loop))
        self.watching = loop.create_task(self.rights.watch(lambda: self.ready, self.changed))

    def grant(self, *operations: Operation) -> None:
        """Let the guard do that on the cluster."""
        for one in operations:
            create(self.world, acl(one, ResourceType.CLUSTER, CLUSTER_NAME, principal=GUARD))

    def changed(self) -> None:
        self.told += 1

    async def connect(self, *_: object, **__: object) -> Connection:
        return cast(Connection, self)

    async def request(self, message: RequestBody[Any], *, timeout_ms: int) -> Any:
        """As the controller answers a request of the guard's (``ControllerServer``)."""
        self.asked += 1
        if message.API_KEY is self.unanswered:
            raise RequestTimedOut(f"no answer within {timeout_ms} ms")
        permissions = self.world.controller.permissions(GUARD, "10.0.0.1")
        if not is_authorized(permissions, message.API_KEY):
            return refusal(message, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, API[message.API_KEY].max_version)
        screened = screen(message, self.world.controller.image, permissions)
        return screened.merge(None if screened.allowed is None else self.world.ask(screened.allowed))

    async def close(self) -> None:
        """Nothing is to be closed."""


def watch(story: Callable[[Watched], Coroutine[Any, Any, None]], *granted: Operation) -> None:
    """Let a guard look for its rights in virtual time."""
    loop = VirtualLoop()

    async def main() -> None:
        watched = Watched(loop, *granted)
        await story(watched)
        watched.watching.cancel()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


def lacking(*lacks: Operation) -> tuple[str, ...]:
    return tuple(LACKS[one] for one in lacks)


@pytest.mark.parametrize(
    "granted",
    [one for count in range(4) for one in itertools.combinations(LACKS, count)],
    ids=lambda those: "+".join(one.name for one in those) or "none",
)
def test_each_right_that_is_missing_is_a_line_that_says_what_is_not_done_without_it(
    granted: tuple[Operation, ...],
) -> None:
    async def story(watched: Watched) -> None:
        offset = len(watched.world.log)
        await asyncio.sleep(0.5)
        assert watched.rights.missing == lacking(*(one for one in LACKS if one not in granted))
        assert watched.told == (len(granted) < len(LACKS))
        assert watched.asked == len(LACKS) and len(watched.world.log) == offset, "to ask changes nothing"

    watch(story, *granted)


def test_to_ask_for_rights_is_no_sign_of_life_of_the_broker() -> None:
    async def story(watched: Watched) -> None:
        world = watched.world
        world.tick(5_000)
        await asyncio.sleep(0.5)
        assert watched.asked == len(LACKS) and not world.broker(1).fenced
        world.tick(4_500)  # longer than broker.session.timeout.ms since the heartbeat of its own
        assert world.broker(1).fenced

    watch(story, *LACKS)


def test_a_right_that_is_granted_later_is_seen_at_the_next_look_and_told_once() -> None:
    async def story(watched: Watched) -> None:
        await asyncio.sleep(0.5)
        assert watched.rights.missing == lacking(Operation.ALTER) and watched.told == 1
        watched.grant(Operation.ALTER)
        await asyncio.sleep(RIGHTS_EVERY_MS / 1000)
        assert watched.rights.missing == () and (watched.told, watched.asked) == (2, 2 * len(LACKS))
        await asyncio.sleep(RIGHTS_EVERY_MS / 1000)
        assert (watched.told, watched.asked) == (2, 3 * len(LACKS))

    watch(story, Operation.CLUSTER_ACTION, Operation.ALTER_CONFIGS)


def test_a_right_that_was_taken_away_is_missed_as_soon_as_a_disk_is_in_doubt() -> None:
    async def story(watched: Watched) -> None:
        await asyncio.sleep(0.5)
        assert watched.rights.missing == () and watched.rights.may_alter
        denied = {"principal": GUARD, "permission_type": DENY}
        create(watched.world, acl(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME, **denied))
        watched.rights.in_doubt()
        await asyncio.sleep(0.1)
        assert watched.rights.missing == lacking(Operation.ALTER) and not watched.rights.may_alter
        assert (watched.told, watched.asked) == (1, 2 * len(LACKS))

    watch(story, *LACKS)


def test_nobody_is_asked_before_the_broker_is_registered_and_soon_after() -> None:
    async def story(watched: Watched) -> None:
        watched.ready = False
        await asyncio.sleep(60)
        assert (watched.asked, watched.told, watched.rights.missing) == (0, 0, ())
        watched.ready = True
        await asyncio.sleep(RIGHTS_AGAIN_MS / 1000)
        assert watched.rights.missing == lacking(*LACKS)

    watch(story)


@pytest.mark.parametrize("unanswered", [ApiKey.INCREMENTAL_ALTER_CONFIGS])
def test_a_controller_that_does_not_answer_says_nothing_of_rights_and_is_asked_again_soon(unanswered: ApiKey) -> None:
    async def story(watched: Watched) -> None:
        await asyncio.sleep(0.5)
        watched.unanswered = unanswered
        watched.grant(*LACKS)
        await asyncio.sleep(RIGHTS_EVERY_MS / 1000)
        assert watched.rights.missing == lacking(*LACKS)
        watched.unanswered = None
        await asyncio.sleep(RIGHTS_AGAIN_MS / 1000)
        assert watched.rights.missing == ()

    watch(story)

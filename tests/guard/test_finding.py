"""The broker of a file, and a broker of a file that is another one by now."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kjbod.config.load import load_config
from kjbod.ids import Uuid
from kjbod.metadata.image import BrokerRegistration
from kjbod.metadata.records import RegisterBrokerRecord
from kjbod_guard import finding
from kjbod_guard.binding import Holder
from kjbod_guard.finding import Finding
from kjbod_guard.observing import Observed
from kjbod_guard.processes import Processes

FILE = """process.roles=broker
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:1
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:9092
log.dirs=/mnt/d1,/mnt/d2
"""


class Running(Processes):
    """The process that holds ``.lock``, as the test has it; files are read as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.holder: Holder | None = None

    async def holders(self, locks: Any, file_systems: Any) -> dict[str, Holder | None] | None:
        return {"/mnt/d1": self.holder}

    def watch(self, pid: int | None, ended: Callable[[], None]) -> None: ...


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        (FILE.replace("/mnt/d1,/mnt/d2", "/mnt/d1,/mnt/d2,/mnt/d3"), "log.dirs"),
        (FILE.replace("/mnt/d1,/mnt/d2", "/mnt/d1"), "log.dirs"),
        (FILE.replace("/mnt/d1,/mnt/d2", "/mnt/d2,/mnt/d1"), "log.dirs"),
        (FILE + "metadata.log.dir=/mnt/d2\n", "metadata.log.dir"),
        (FILE.replace("9092", "9192"), "listeners"),
        (FILE.replace("/mnt/d1,/mnt/d2", "/mnt/d1 , /mnt/d2") + "num.io.threads=9\n", None),
    ],
)
@pytest.mark.usefixtures("world")
async def test_a_broker_that_was_started_with_another_file_than_the_guard_has_read_is_only_observed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, key: str | None
) -> None:
    monkeypatch.setattr(finding, "EVERY_MS", 1)
    monkeypatch.setattr(finding, "AGAIN_MS", 1)
    source = tmp_path / "server.properties"
    source.write_text(FILE)
    running, looked, told = Running(), asyncio.Event(), asyncio.Event()

    async def found(_: Holder | None) -> None: ...

    one = Finding(
        load_config(source),
        str(source),
        running,
        cast(
            Any,
            SimpleNamespace(
                owned={"/mnt/d1": None}, entries={"/mnt/d1": SimpleNamespace(survey=None)}, nobody_holds=told.set
            ),
        ),
        cast(Any, SimpleNamespace(status=list)),
        cast(Any, SimpleNamespace(is_followed=False)),
        found=found,
        review=looked.set,
    )

    def start(pid: int) -> Holder:
        return Holder(pid, pid, ("java", "kafka.Kafka", str(source)), {str(source): str(source)})

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                looked.clear()
                await looked.wait()

    task = asyncio.ensure_future(one.run())
    running.holder = start(7)
    await until(lambda: one.pid == 7)
    assert one.unbound is None
    source.write_text(changed)
    for _ in range(2):
        looked.clear()
        await looked.wait()
    assert one.unbound is None, "a broker that goes on has not read it"
    running.holder = None
    await asyncio.wait_for(told.wait(), 60)
    assert one.unbound == "no broker runs: nobody holds .lock in its log directories"
    running.holder = start(8)
    await until(lambda: one.pid == 8)
    if key is None:
        assert one.unbound is None
    else:
        assert one.unbound == (
            f"{key} in {source} has changed since the guard read it, and the broker was started since: "
            "restart the guard"
        )
        source.write_text(FILE)
        running.holder = start(9)
        await until(lambda: one.pid == 9)
        assert one.unbound is None
    task.cancel()
    await asyncio.wait([task])
    running.close()


@pytest.mark.parametrize("unread", [False, True])
def test_a_directory_that_is_known_from_memory_may_be_another_one_by_now_and_does_not_part_guard_and_broker(
    unread: bool,
) -> None:
    here, registered, source = Uuid.of(5, 1), Uuid.of(5, 2), "/etc/kafka/server.properties"
    record = RegisterBrokerRecord(
        broker_id=1, incarnation_id=Uuid.of(9, 1), broker_epoch=5, end_points=(), features=(), log_dirs=(registered,)
    )
    observed = Observed(1, complete=True, registration=BrokerRegistration.of(record, 5))
    watching = SimpleNamespace(
        owned={"/mnt/d1": SimpleNamespace(directory_id=here)},
        unwatched={},
        unread=frozenset(["/mnt/d1"] if unread else []),
    )
    nothing = cast(Any, None)
    one = Finding(
        cast(Any, SimpleNamespace(properties={})),
        source,
        nothing,
        cast(Any, watching),
        nothing,
        cast(Any, SimpleNamespace(is_followed=True, observed=observed)),
        found=nothing,
        review=nothing,
    )
    one._holders = {"/mnt/d1": Holder(7, 7, ("java", "kafka.Kafka", source), {source: source})}
    elsewhere = f"broker 1 has registered the directory {registered}, which is not here"
    assert one.unbound == (None if unread else elsewhere)


class Mounts:
    """Mounts of two directories, here and for the broker."""

    def __init__(self) -> None:
        self.entries = {"/mnt/d1": SimpleNamespace(place="8:1 / 31"), "/mnt/d2": SimpleNamespace(place="8:2 / 32")}
        self.here = {path: one.place for path, one in self.entries.items()}
        self.there = {"/mnt/d1": "8:1 / 901", "/mnt/d2": "8:2 / 902"}

    def is_elsewhere(self, path: str) -> bool:
        return bool(self.here[path] != self.entries[path].place)

    def place(self, path: str, pid: int) -> str:
        assert pid == 7
        return self.there[path]


def test_a_mount_that_has_changed_here_and_not_for_the_broker_is_kept() -> None:
    rest: Any = None
    mounts: Any = Mounts()
    one = Finding(rest, "", rest, mounts, rest, rest, found=rest, review=rest)
    one._holders = {"/mnt/d1": Holder(7, 1, ("java",), {})}
    mounts.here["/mnt/d1"] = "0:99 / 77"
    assert one.is_kept("/mnt/d1")
    mounts.there["/mnt/d1"] = "0:99 / 978"
    assert not one.is_kept("/mnt/d1"), "it has changed for the broker, too"
    mounts.there["/mnt/d1"] = ""
    assert not one.is_kept("/mnt/d1"), "nobody knows"
    assert not one.is_kept("/mnt/d2")
    mounts.here["/mnt/d2"] = ""
    assert not one.is_kept("/mnt/d2"), "it had failed before"
    mounts.there["/mnt/d1"] = "8:1 / 901"
    assert one.is_kept("/mnt/d1")
    one._holders = {}
    assert not one.is_kept("/mnt/d1"), "there is no broker"

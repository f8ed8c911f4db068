"""Adding directories to an agent that runs: disks in memory, a controller that answers when it is told to."""

import asyncio
import dataclasses
import errno
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from kjbod.config import Config
from kjbod.config.load import agent_problems
from kjbod.errors import KjbodError
from kjbod.ids import Uuid
from kjbod_agent.directories.additions import ANSWER_TIMEOUT_MS, Added, Additions
from kjbod_host.storage.api import DirectoryAgent, LoadedDirectory, Replica
from tests.agent.core.opened import Disks, config_of

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
PATHS = ("/d1", "/d2", "/d3")
TOPIC = Uuid.of(3, 1)


class Agent:
    """What the additions need of the rest, with a record of the order of things."""

    def __init__(self, disks: Disks) -> None:
        self.disks = disks
        self.failed: set[Uuid] = set()
        self.why: str | None = None
        self.problems: list[str] = []
        self.others: dict[Uuid, int] = {}
        self.answers = True
        self.keeps_offline = False
        self.mounted_wrongly: str | None = None
        self.story: list[str] = []
        self.added: list[Added] = []
        self.replicas: list[Replica] = []
        self.waiting: list[asyncio.Future[bool]] = []
        self.tasks: list[asyncio.Future[None]] = []
        self.file: Config = disks.config

    async def start(self) -> "Agent":
        self.opened = await self.disks.open()
        self.additions = Additions(
            config=self.disks.config,
            storage=self.disks.storage,
            opened=self.opened,
            remembering=self.disks.remembering,
            owner=self,
            monitor=self,
            clock=self.disks.clock,
            rng=self.disks.rng,
            log=self.disks.log,
            spawn=lambda work: self.tasks.append(asyncio.ensure_future(work)),
            read_config=self.read_file,
            checks=(agent_problems, lambda _: self.problems),
        )
        return self

    async def read_file(self, _: str) -> Config:
        return self.file

    def fail(self, path: str) -> Uuid:
        directory_id = self.disks.ids[path]
        self.failed.add(directory_id)
        return directory_id

    async def refusal(self, path: str) -> str:
        before = (self.opened.start_up, dict(self.opened.agents), self.disks.remembering.memory)
        with pytest.raises(KjbodError) as refused:
            await self.additions.add(path)
        assert (self.opened.start_up, self.opened.agents, self.disks.remembering.memory) == before
        assert not self.story
        assert "\n" not in str(refused.value)
        return str(refused.value)

    # ---- AdditionsOwner and Watcher

    def why_not_now(self, directories: int, failed: Uuid | None) -> str | None:
        return self.why

    def is_offline(self, directory_id: Uuid) -> bool:
        return directory_id in self.failed

    def registered_elsewhere(self) -> Mapping[Uuid, int]:
        return self.others

    def directory_added(self, added: Added) -> asyncio.Future[bool]:
        assert added.directory.directory_id in self.disks.remembering.memory.ids.values(), "remembered first"
        self.story.append("register")
        self.failed.discard(added.directory.directory_id)
        self.added.append(added)
        self.waiting.append(asyncio.get_running_loop().create_future())
        if self.answers:
            self.waiting[-1].set_result(not self.keeps_offline)
        return self.waiting[-1]

    def directory_refused(self, added: Added, reason: str) -> None:
        self.story.append("refused")
        self.failed.add(added.directory.directory_id)

    def directory_taken(self, added: Added, replicas: Sequence[Replica]) -> None:
        self.story.append("taken")
        self.replicas = list(replicas)

    def add(self, agent: DirectoryAgent, loaded: LoadedDirectory, directory_id: str) -> None:
        self.story.append("watch")

    def remove(self, path: str) -> None:
        self.story.append("watch no more")

    def not_mounted(self, path: str, loaded: LoadedDirectory, remembered: str | None) -> str | None:
        return self.mounted_wrongly


def test_a_new_disk_takes_the_place_of_a_dead_one(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        agent = await Agent(Disks(clock, PATHS)).start()
        disks, old = agent.disks, agent.fail("/d2")
        disks["/d2"].hang()
        new = disks.replace("/d2")
        said = await agent.additions.add("/d2/")
        assert said == f"/d2 is online with the directory.id {new} and 0 replicas: it takes the place of {old}"
        assert agent.story == ["register", "watch", "taken"]
        (added,) = agent.added
        assert (added.retired, added.unknown) == ((old,), False)
        assert added.log_dirs == (disks.ids["/d1"], new, disks.ids["/d3"])
        assert disks["/d2"].locked_by is disks.storage.directory("/d2") is agent.opened.agents[new]
        assert old not in agent.opened.agents
        assert [d.path for d in agent.opened.start_up.log_dirs] == list(PATHS)
        assert disks.remembering.memory.retired_as(old) is not None

    virtual(main)


def test_the_same_disk_back_again_is_adopted_with_what_lies_in_it_now(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS)
        disks["/d2"].clean_shutdown = b'{"version":0,"brokerEpoch":7}'
        agent = await Agent(disks).start()
        same = agent.fail("/d2")
        disks.put("/d2", ("t-0", TOPIC), ("t-1", TOPIC))
        said = await agent.additions.add("/d2")
        assert said.endswith("and 2 replicas: it is the one that was there before")
        assert [(r.name, r.topic_id) for r in agent.replicas] == [("t-0", TOPIC), ("t-1", TOPIC)]
        assert agent.added[0].retired == () and agent.added[0].log_dirs == tuple(disks.ids.values())
        assert agent.opened.agents[same] is disks.storage.directory("/d2")
        assert disks["/d2"].clean_shutdown is None

    virtual(main)


def test_a_directory_that_was_offline_since_the_start_is_added_when_its_disk_is_there(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS)
        disks["/d2"].present = False
        agent = await Agent(disks).start()
        assert [u.path for u in agent.opened.start_up.unreadable] == ["/d2"]
        assert "does not exist: mount its disk" in await agent.refusal("/d2")
        disks["/d2"].present = True
        assert "it is the one that was there before" in await agent.additions.add("/d2")
        assert agent.opened.start_up.unreadable == ()

    virtual(main)


def test_one_whose_id_nobody_remembers_is_told_to_be_replaced_all_the_same(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS, remembered=("/d1",))
        disks["/d2"].fail(errno.EIO)
        agent = await Agent(disks).start()
        disks.replace("/d2")
        assert "it takes the place of an unknown one" in await agent.additions.add("/d2")
        assert (agent.added[0].retired, agent.added[0].unknown) == ((), True)

    virtual(main)


def test_a_directory_that_is_new_in_log_dirs_is_added_when_the_file_has_it(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, ("/d1",))
        agent = await Agent(disks).start()
        disks.replace("/d2")
        assert (
            await agent.refusal("/d2")
            == "/d2 is not in log.dirs of server.properties: add it there, then run this again"
        )
        agent.file = config_of(["/d2", "/d1", "/d9"], metadata="/d1")
        assert "it is new" in await agent.additions.add("/d2")
        assert agent.added[0].log_dirs == (disks.ids["/d2"], disks.ids["/d1"])

    virtual(main)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (config_of(["/d2", "/d1"]), "the cluster metadata are in /d1, and the next start would look for them in /d2"),
        (config_of(["/d1", "/d2"], metadata="/d2"), "set metadata.log.dir=/d1"),
        (config_of(["/d1", "/d2"], metadata="/m"), "set metadata.log.dir=/d1"),
        (config_of(["/d1", "/d2"], node_id=2), "node.id is 2, the agent runs with 1: set it back"),
        (
            dataclasses.replace(config_of(["/d1", "/d2"]), process_roles=frozenset({"controller"})),
            "process.roles is controller",
        ),
        (
            dataclasses.replace(config_of(["/d1", "/d2"]), process_roles=frozenset()),
            "process.roles is , the agent runs with broker",
        ),
        (None, "listeners: what the next start refuses"),
    ],
)
def test_a_directory_with_which_the_next_start_would_fail_is_not_added(
    virtual: Run, file: Config | None, said: str
) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, ("/d1",))
        agent = await Agent(disks).start()
        disks.replace("/d2")
        agent.file = file or config_of(["/d1", "/d2"])
        agent.problems = [] if file else ["listeners: what the next start refuses"]
        refusal = await agent.refusal("/d2")
        assert refusal.startswith("/d2 is not added, the next start would fail: ")
        assert said in refusal
        agent.file, agent.problems = config_of(["/d1", "/d2"]), []
        assert "it is new" in await agent.additions.add("/d2")  # as soon as it is set right

    virtual(main)


def test_the_registration_may_take_its_time_and_the_rest_follows_it(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        agent = await Agent(Disks(clock, PATHS)).start()
        agent.fail("/d2")
        agent.answers = False
        agent.disks.replace("/d2")
        begun_ms = clock.monotonic_ms()
        said = await agent.additions.add("/d2")
        assert clock.monotonic_ms() - begun_ms == ANSWER_TIMEOUT_MS
        assert "waits for the controller to answer the registration" in said
        assert agent.story == ["register", "watch"]
        agent.waiting[0].set_result(True)
        await asyncio.sleep(0.01)
        assert agent.story == ["register", "watch", "taken"]

    virtual(main)


def test_a_retired_disk_that_comes_back_is_adopted_and_said(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS)
        agent = await Agent(disks).start()
        first, old_disk = agent.fail("/d2"), disks["/d2"]
        disks.replace("/d2")
        await agent.additions.add("/d2")
        second = agent.fail("/d2")
        disks.disks["/d2"], disks.ids["/d2"] = old_disk, first
        await agent.additions.add("/d2")
        (line,) = disks.log.of("directory.returned")
        assert (line["directory_id"], line["replaced_by"]) == (str(first), str(second))
        memory = disks.remembering.memory
        assert memory.retired_as(first) is None and memory.retired_as(second) is not None
        assert agent.added[1].retired == (second,)

    virtual(main)


def test_a_controller_that_keeps_a_failed_directory_offline_is_waited_for_with_a_restart(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        agent = await Agent(Disks(clock, PATHS)).start()
        agent.fail("/d2")
        agent.keeps_offline = True
        with pytest.raises(KjbodError, match="/d2 waits for a restart of the agent: the controller keeps"):
            await agent.additions.add("/d2")
        assert agent.story == ["register", "watch", "watch no more", "refused"]
        assert not agent.disks.log.of("directory.added")

    virtual(main)


def online(agent: Agent) -> None:
    agent.failed.clear()


def unformatted(agent: Agent) -> None:
    agent.disks.replace("/d2", formatted=False)


def foreign(agent: Agent) -> None:
    agent.disks.format("/d2", Uuid.of(6, 6), node=7)


def other_cluster(agent: Agent) -> None:
    agent.disks.format("/d2", Uuid.of(6, 6), cluster="other")


def twice(agent: Agent) -> None:
    agent.disks.format("/d2", agent.disks.ids["/d3"])


def of_another(agent: Agent) -> None:
    agent.disks.format("/d2", Uuid.of(6, 6))
    agent.others[Uuid.of(6, 6)] = 4


def still_dead(agent: Agent) -> None:
    agent.disks["/d2"].hang()


def sick(agent: Agent) -> None:
    agent.disks.replace("/d2")
    agent.disks["/d2"].fail(errno.EIO, ["probe"])


def held(agent: Agent) -> None:
    agent.disks.replace("/d2")
    agent.disks["/d2"].locked_by = object()


def stopping(agent: Agent) -> None:
    agent.why = "cannot be added: the agent stops"


def on_the_system_disk(agent: Agent) -> None:
    agent.disks.replace("/d2")
    agent.mounted_wrongly = "lies on the file system of / now: mount its disk on /d2 first"


def with_garbage(agent: Agent) -> None:
    agent.disks["/d2"].directories["lost+found"] = None


def used_by_kafka(agent: Agent) -> None:
    agent.disks["/d2"].checkpoints["replication-offset-checkpoint"] = b"0\n0\n"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (online, "is online already, with the directory.id"),
        (unformatted, "No `meta.properties` found in /d2: is its disk mounted, and have you run `kjbod format`"),
        (foreign, "Stored node id 7 doesn't match previous node id 1"),
        (other_cluster, "Expected c, but read other"),
        (twice, "of /d3: mount each disk once, at its own path"),
        (of_another, "which broker 4 has registered"),
        (still_dead, "/d2 cannot be read: /d2: no answer for 10000 ms at load of memory: unmount the dead disk"),
        (sick, "/d2 does not work: /d2: EIO at probe of memory: replace its disk"),
        (held, "is in use: another process holds /d2/.lock"),
        (stopping, "/d2 cannot be added: the agent stops"),
        (on_the_system_disk, "/d2 lies on the file system of / now: mount its disk on /d2 first"),
        (with_garbage, "Found directory /d2/lost+found"),
        (used_by_kafka, "/d2: an Apache Kafka broker has used this log directory (replication-offset-checkpoint)"),
    ],
)
def test_what_is_no_case_for_it_is_refused_in_one_line_and_nothing_changes(
    virtual: Run, make: Callable[[Agent], None], said: str
) -> None:
    async def main(clock: Any) -> None:
        agent = await Agent(Disks(clock, PATHS)).start()
        agent.fail("/d2")
        make(agent)
        locked_by = agent.disks["/d2"].locked_by
        assert said in await agent.refusal("/d2")
        if make in (sick, unformatted):
            assert agent.disks["/d2"].locked_by is None
        if make is held:
            assert agent.disks["/d2"].locked_by is locked_by

    virtual(main)


def test_a_directory_that_a_kafka_broker_has_used_is_added_by_an_agent_that_may_take_over(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS)
        disks.config = dataclasses.replace(disks.config, kjbod_agent_take_over=True)
        agent = await Agent(disks).start()
        agent.fail("/d2")
        used_by_kafka(agent)
        assert "/d2 is online with the directory.id" in await agent.additions.add("/d2")

    virtual(main)


def test_a_controller_that_learns_of_the_failure_while_the_disk_is_looked_at_is_asked_again(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS)
        agent = await Agent(disks).start()
        agent.fail("/d2")
        disks.replace("/d2")
        disks["/d2"].delay_ms = 100
        clock.call_later(0.25, setattr, agent, "why", "cannot be added: the agent stops")
        assert "the agent stops" in await agent.refusal("/d2")
        assert disks["/d2"].locked_by is None

    virtual(main)

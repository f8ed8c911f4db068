"""One broker of kjbod without its event loop, on disks that die, come back and are replaced.

:class:`Agent` is one process: :class:`Hosting`, :class:`Inventory`, :class:`Assignments` and the failures, joined as
``placement.py`` and ``broker.py`` join them, but each thing that takes time is a step of its own that can be left out,
late, or the last one before a SIGKILL. :class:`Disk` keeps what was durable then. Producers write all the time,
wherever the controller says that broker 1 is in sync; what is not allowed to get lost is in :attr:`World.acknowledged`.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata.image import Change, MetadataImage, Replayer
from kjbod.wire.messages import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from kjbod_agent import failures as failing
from kjbod_agent.assignments import Assignments
from kjbod_agent.moves.machine import State
from kjbod_agent.replicas.hosting import Hosting, Update
from kjbod_agent.replicas.inventory import Decision, Inventory, Wanted, delete_name, stray_name
from kjbod_agent.replicas.table import Action
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.storage.worker import parse_replica
from tests.agent.core.model_controller import NO_LEADER, US, Controller, identity
from tests.agent.core.replicas_mover import Mover

PATHS = ("d1", "d2", "d3")
IN_A_REQUEST = 3
"""Small, so that requests are full."""


@dataclass
class Copy:
    """A replica directory: ``partition.metadata``, and which of the acknowledged messages are in it."""

    topic_id: Uuid
    messages: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Disk:
    """A formatted log directory; its content outlives processes."""

    id: Uuid
    replicas: dict[str, Copy] = field(default_factory=dict)
    well: bool = True

    def current(self, key: TopicIdPartition) -> str | None:
        """The name under which a current copy of a replica lies."""
        for name, copy in self.replicas.items():
            if parsed(name)[1:] == (key.partition, "") and copy.topic_id == key.topic_id:
                return name
        return None

    def holds(self, key: TopicIdPartition, messages: set[int]) -> bool:
        """Whether all of these are in one copy, whatever it is called."""
        return any(
            copy.topic_id == key.topic_id and parsed(name)[1] == key.partition
            for name, copy in self.replicas.items()
            if copy.messages >= messages
        )


@dataclass(frozen=True)
class Job:
    """Work on a directory: ``does`` changes the disk and is durable then, ``then`` is told of the answer."""

    text: str
    does: Callable[[Disk], int]
    """An errno, 0 for success."""
    then: Callable[[int], None]


EEXIST, ENOENT = 17, 2


class Agent:
    """One process, from its start to its end."""

    def __init__(self, world: "World") -> None:
        self.world = world
        opened = {path: disk for path, disk in world.slots.items() if disk.well}
        self.directories = {disk.id: path for path, disk in opened.items()}
        self.inventory = Inventory(
            [(disk.id, path) for path, disk in opened.items()],
            [world.remembered.get(path) for path, disk in world.slots.items() if not disk.well],
        )
        world.remembered |= {path: disk.id for path, disk in opened.items()}
        for disk in opened.values():
            for name, copy in disk.replicas.items():
                _, number, suffix = parsed(name)
                self.inventory.add(disk.id, name, number, copy.topic_id, suffix)  # type: ignore[arg-type]
        self.image = MetadataImage()
        self._replayer = Replayer(self.image)
        self.hosting = Hosting(US)
        self.assignments = Assignments(US, IN_A_REQUEST)
        self.failures = failing.Failures(
            timeout_ms=30_000, usable=frozenset(self.directories), metadata_directory=identity(99, 0)
        )
        self.epoch = world.controller.register(sorted(self.directories))
        self.published = False
        self.ready = False
        self.refused: str | None = None
        self.request: AssignReplicasToDirsRequest | None = None
        self.newest: dict[TopicIdPartition, Uuid] = {}
        """What was submitted last, for each replica of which anything is queued."""
        self.jobs: dict[Uuid, deque[Job]] = {directory: deque() for directory in self.directories}
        self.mover = Mover(self)
        self._offset = 0
        self._due: dict[TopicIdPartition, None] = {}
        self._new: set[TopicIdPartition] = set()
        self._left: dict[TopicIdPartition, None] = {}
        self._uniques = 0

    # ---- metadata

    def learn(self, records: int) -> None:
        """The next records of the metadata log arrive."""
        changes: list[Change] = []
        end = min(self._offset + records, len(self.world.controller.records))
        for offset in range(self._offset, end):
            changes.extend(self._replayer.replay(offset, 0, self.world.controller.records[offset]))
        self._offset = end
        if self.published:
            self._follow(changes)
        elif self._offset > self.epoch:
            self.published = True
            self.hosting.load(self.image)
            for directory in self.inventory.online:
                self._set_strays_aside(directory)
            self._due |= dict.fromkeys(self.hosting.partitions)
        self._review()

    @property
    def behind(self) -> int:
        """How many records it has not seen."""
        return len(self.world.controller.records) - self._offset

    def _follow(self, changes: Iterable[Change]) -> None:
        for update in self.hosting.apply(changes):
            if update.new is None:
                self._remove(update)
                continue
            if update.old is None:
                self._new.add(update.partition)
            if update.old is None or update.old.directory != update.new.directory:
                self._due[update.partition] = None
            self.assignments.recorded(update.partition, update.new.directory)
            if self.failures.of(update.new.directory):
                self.failures = failing.placed(self.failures, [update.partition])

    def _remove(self, update: Update) -> None:
        assert update.old is not None
        key = update.partition
        self._new.discard(key)
        self._due.pop(key, None)
        self._left.pop(key, None)
        self.assignments.discard(key)
        self.newest.pop(key, None)
        self.failures = failing.placed(self.failures, [key])
        self._rename(key, f"{update.old.topic}-{key.partition}")
        self.mover.gone(key)

    def _set_strays_aside(self, directory: Uuid) -> None:
        """``LogManager.isStrayKraftReplica``: what lies here and is not this broker's is renamed, and kept."""
        for name, topic_id in list(self.inventory.names(directory).items()):
            _, number, suffix = parsed(name)
            assert topic_id is not None
            if suffix in ("", "future") and TopicIdPartition(topic_id, number) not in self.hosting:
                self.inventory.take_out(directory, name, number)
                self.set_aside(directory, name)

    # ---- decisions

    def review(self, key: TopicIdPartition) -> None:
        """Decide about this replica again, soon."""
        self._due[key] = None

    def _review(self) -> None:
        while self._due and self.refused is None:
            key, _ = self._due.popitem()
            self._left.pop(key, None)
            hosted = self.hosting.partitions.get(key)
            if hosted is not None:
                self._carry_out(self.inventory.decide(Wanted(key, hosted.topic, hosted.directory, key in self._new)))
        self.ready = self.ready or (
            self.published and not self.inventory.creating and not self.assignments.queued and self.refused is None
        )

    def _carry_out(self, decision: Decision) -> None:
        for aside in decision.aside:
            self.set_aside(aside.directory_id, aside.name)
        if decision.action is Action.REFUSE:
            self.refused = decision.why
        elif decision.action in (Action.CREATE, Action.CREATE_AND_ASSIGN):
            self._create(decision)
        elif decision.action is Action.RESUME and decision.directory_id is not None:
            self.mover.resume(decision.wanted, decision.directory_id, decision.future)
        elif decision.assign and decision.directory_id is not None:
            self.assign(decision.wanted.partition, decision.directory_id)
        elif decision.action is Action.SET_ASIDE:
            self._due[decision.wanted.partition] = None
        elif self.inventory.locate(decision.wanted.partition) is None:
            self._left[decision.wanted.partition] = None

    def assign(self, key: TopicIdPartition, directory: Uuid) -> None:
        now_ms = self.world.now_ms
        if self.failures.of(directory) and key not in self.assignments.acknowledged:
            self.failures = failing.misplaced(self.failures, directory, [key], now_ms)
        self.assignments.submit(key, directory, now_ms)
        self.newest[key] = directory

    def _create(self, decision: Decision) -> None:
        wanted, directory = decision.wanted, decision.directory_id
        assert directory is not None

        def does(disk: Disk) -> int:
            there = disk.replicas.get(wanted.name)
            if there is not None:
                return 0 if there.topic_id == wanted.partition.topic_id else EEXIST
            self.world.check_creation(self, wanted, disk)
            disk.replicas[wanted.name] = Copy(wanted.partition.topic_id)
            return 0

        def then(error: int) -> None:
            if error:
                self.inventory.not_created(wanted.partition)
                self._due[wanted.partition] = None
            else:
                self._made(wanted)

        self.jobs[directory].append(Job(f"create {wanted.name}", does, then))

    def _made(self, wanted: Wanted) -> None:
        directory = self.inventory.created(wanted.partition)
        if directory is None:
            return
        hosted = self.hosting.partitions.get(wanted.partition)
        if hosted is None:
            self._rename(wanted.partition, wanted.name)
            self._due |= self._left
        elif hosted.directory != directory:
            self.assign(wanted.partition, directory)

    def _rename(self, key: TopicIdPartition, name: str) -> None:
        for directory, each in self.inventory.remove(key, name):
            self.delete(key, directory, each)

    def delete(self, key: TopicIdPartition, directory: Uuid, name: str) -> None:
        """Rename to ``-delete``, and remove that later."""
        topic, _, _ = parsed(name)
        new_name = delete_name(topic, key.partition, self.unique())

        self.world.check_deletion(self, key, name)

        def then(error: int) -> None:
            self.inventory.renamed_away(key, directory)
            self.review(key)
            if not error:
                self.remove(directory, new_name)

        self.jobs[directory].append(Job(f"rename {name}", lambda disk: _renamed(disk, name, new_name), then))

    def remove(self, directory: Uuid, name: str) -> None:
        """Remove a replica directory that was renamed before."""
        self.jobs[directory].append(Job(f"remove {name}", lambda disk: _gone(disk, name), _nothing))

    def set_aside(self, directory: Uuid, name: str) -> None:
        """Rename to ``-stray``: it is kept."""
        topic, number, _ = parsed(name)
        new_name = stray_name(topic, number, self.unique())
        self.jobs[directory].append(Job(f"set {name} aside", lambda disk: _renamed(disk, name, new_name), _nothing))

    def unique(self) -> str:
        """32 hexadecimal digits that were never given before."""
        self._uniques += 1
        return f"{self.epoch * 1000 + self._uniques:032x}"

    # ---- directories

    def work(self, directory: Uuid, *, answered: bool = True) -> bool:
        """The next job of a directory is carried out; whether there was one that the disk did."""
        jobs, disk = self.jobs[directory], self.world.disk_of(directory)
        if not jobs or disk is None or not disk.well or self.failures.of(directory):
            return False
        error = jobs[0].does(disk)
        if answered:
            jobs.popleft().then(error)
            self._review()
        return True

    def find_dead(self, directory: Uuid) -> failing.Stop | None:
        """The verdict about a directory; a stop where nothing else is left to do."""
        if self.failures.of(directory):
            return None
        self.failures, stop = failing.directory_failed(
            self.failures,
            directory,
            path=self.directories[directory],
            cause="EIO",
            now_ms=self.world.now_ms,
            wall_ms=self.world.now_ms,
        )
        if stop is not None:
            return stop
        self.jobs[directory].clear()
        self.mover.directory_failed(directory)
        self.inventory.fail(directory)
        for key, hosted in self.hosting.partitions.items():
            if key in self.inventory.moving:
                continue
            if hosted.directory != directory and self.inventory.locate(key) == directory:
                self.assign(key, directory)
        self._due |= dict.fromkeys(self.hosting.partitions)
        self._review()
        return None

    def add_directory(self, path: str, disk: Disk) -> None:
        """``kjbod dirs add``: the disk of a path was replaced, or is back. Refused as long as the controller does not
        know of a failure that it ends."""
        gone = [d for d, where in self.directories.items() if where == path]
        gone += [d for d in [self.world.remembered.get(path)] if d is not None and d not in gone]
        if disk.id in self.inventory.online or not disk.well:
            return
        if any(failure is not None and not failure.settled for failure in map(self.failures.of, gone)):
            return
        if not self.world.controller.amend(self.epoch, [*self.inventory.online, disk.id]):
            return
        self.learn(self.behind)
        self.world.remembered[path] = disk.id
        for directory in {*gone, disk.id}:
            self.directories.pop(directory, None)
            self.jobs.pop(directory, None)
            self.failures = failing.retired(self.failures, directory)
            self.inventory.forget_directory(directory)
        self.directories[disk.id] = path
        self.jobs[disk.id] = deque()
        self.failures = failing.added(self.failures, disk.id)
        self.inventory.begin_directory(disk.id, path)
        for name, copy in disk.replicas.items():
            _, number, suffix = parsed(name)
            self.inventory.add(disk.id, name, number, copy.topic_id, suffix)  # type: ignore[arg-type]
        self.inventory.loaded(disk.id)
        self._set_strays_aside(disk.id)
        self._lead_again(disk)
        self._due |= dict.fromkeys(self.hosting.partitions)
        self._review()

    def _lead_again(self, disk: Disk) -> None:
        """A registration elects no leader; an assignment does, also of what is recorded already."""
        for name, copy in disk.replicas.items():
            _, number, suffix = parsed(name)
            key = TopicIdPartition(copy.topic_id, number)
            hosted, known = self.hosting.partitions.get(key), self.image.partition(*key)
            if hosted and known and not suffix and (hosted.directory, known.leader) == (disk.id, NO_LEADER):
                self.assign(key, disk.id)

    # ---- the controller

    def heartbeat(self, *, answered: bool) -> None:
        """A heartbeat arrives at the controller, and perhaps its answer here."""
        offline = [failure.directory_id for failure in self.failures.failed]
        taken = self.world.controller.heartbeat(self.epoch, offline, self.ready)
        if answered and taken:
            self.failures = failing.reported(self.failures, offline)

    def send_assignments(self) -> None:
        """Send the request that is due, if one is."""
        request = self.assignments.take(self.epoch, self.hosting.partitions.__contains__, self.world.now_ms)
        if request is not None:
            assert self.request is None, "two requests at once"
            self.request = request
            self.world.check_request(self, request)

    def answer(self, response: AssignReplicasToDirsResponse | None) -> None:
        """The answer to the request that is out; None: it never comes."""
        self.request = None
        if response is None:
            self.assignments.failed("no answer", self.world.now_ms)
            return
        outcome = self.assignments.answered(response, self.world.now_ms)
        in_failed = [key for key, directory in outcome.accepted.items() if self.failures.of(directory)]
        self.failures = failing.placed(self.failures, in_failed)
        for key, directory in outcome.accepted.items():
            self.mover.acknowledged(key, directory)
        self._review()

    def wake(self) -> failing.Stop | None:
        """What is due by time alone; a stop where a deadline says so."""
        self._due |= dict.fromkeys(self.assignments.expired(self.world.now_ms))
        self.mover.nudge()
        self._review()
        if not self.published:
            return failing.decide(self.failures, lambda _: None, self.world.now_ms)
        leaders = self.hosting.leaders_by(lambda key, hosted: self.inventory.locate(key) or hosted.directory)
        return failing.decide(self.failures, lambda directory: leaders.get(directory, 0), self.world.now_ms)


def parsed(name: str) -> tuple[str, int, str]:
    """Topic, partition and suffix of a replica directory."""
    found = parse_replica(name)
    assert found is not None, name
    return found


def _renamed(disk: Disk, name: str, new_name: str) -> int:
    if name not in disk.replicas:
        return ENOENT
    if new_name in disk.replicas:
        return EEXIST
    disk.replicas[new_name] = disk.replicas.pop(name)
    return 0


def _gone(disk: Disk, name: str) -> int:
    disk.replicas.pop(name, None)
    return 0


def _nothing(error: int) -> None:
    """Nobody waits for this answer."""


class World:
    """Everything, and what must hold of it."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.controller = Controller()
        self.slots = {path: Disk(identity(30, number)) for number, path in enumerate(PATHS)}
        self.shelf: dict[str, list[Disk]] = {path: [] for path in PATHS}
        self.remembered: dict[str, Uuid] = {}
        self.agent: Agent | None = None
        self.acknowledged: dict[TopicIdPartition, set[int]] = {}
        self.moved: set[TopicIdPartition] = set()
        """Replicas that were ever moved."""
        self._disks_made = len(PATHS)
        self._messages = 0

    # ---- disks

    def disk_of(self, directory: Uuid) -> Disk | None:
        """The disk with this id, if it is in its place."""
        return next((disk for disk in self.slots.values() if disk.id == directory), None)

    def put_in(self, path: str, disk: Disk | None) -> None:
        """A person replaces the disk of a path, by a new one for None. What only the old one had is given up."""
        old = self.slots[path]
        for key in list(self.acknowledged):
            if old.holds(key, {min(self.acknowledged[key])}):
                del self.acknowledged[key]
        if disk is None:
            disk = Disk(identity(30, self._disks_made))
            self._disks_made += 1
        else:
            self.shelf[path].remove(disk)
        self.shelf[path].append(old)
        self.slots[path] = dataclasses.replace(disk, well=True)

    # ---- the process

    def start(self) -> None:
        """Start the agent. Nothing happens where no directory can be read: it says so and ends."""
        if any(disk.well for disk in self.slots.values()):
            self.agent = Agent(self)

    def kill(self) -> None:
        self.agent = None

    def write(self) -> None:
        """Each producer writes one message to each partition with broker 1 in sync, and it is acknowledged where all
        in sync have it."""
        self._messages += 1
        for _, key, partition in self.controller.hosted():
            if US not in partition.isr or partition.leader == NO_LEADER or self.controller.image.brokers[US].fenced:
                continue
            copy = self.served(key)
            if copy is not None:
                copy.messages.add(self._messages)
                self.acknowledged.setdefault(key, set()).add(self._messages)

    def served(self, key: TopicIdPartition) -> Copy | None:
        """The copy that the agent serves, where its disk takes writes."""
        if self.agent is None or key not in self.agent.hosting:
            return None
        directory = self.agent.inventory.locate(key)
        disk = None if directory is None else self.disk_of(directory)
        if directory is None or disk is None or not disk.well or self.agent.failures.of(directory):
            return None
        name = disk.current(key)
        return None if name is None else disk.replicas[name]

    def fetched(self, key: TopicIdPartition) -> Copy | None:
        """The copy into which the agent fetches. Who has not seen the last change of a replica list fetches with an old
        leader epoch, and is refused (FENCED_LEADER_EPOCH)."""
        if self.agent is None or self.agent.image.partition(*key) != self.controller.image.partition(*key):
            return None
        return self.served(key)

    def give_up(self, key: TopicIdPartition) -> None:
        """What this broker has of a replica no longer counts: deleted, or reassigned away."""
        self.acknowledged.pop(key, None)

    def is_all_there_is(self, key: TopicIdPartition, copy: Copy | None) -> None:
        """A future replica is promoted whose source cannot be reached: as in Kafka (KAFKA-16082), what was written to
        the source after the last look is given up."""
        if copy is not None and key in self.acknowledged:
            self.acknowledged[key] &= copy.messages

    # ---- what must hold, at the moment of a deed

    def check_creation(self, agent: Agent, wanted: Wanted, where: Disk) -> None:
        """No replica is created beside another current one, nor while its copy may lie in an offline directory."""
        kept = self.acknowledged.get(wanted.partition)
        for path, disk in self.slots.items():
            if disk is where or disk.current(wanted.partition) is None:
                continue
            online = disk.id in agent.inventory.online
            assert not online, f"{wanted.name} is created in {agent.inventory.path(where.id)}, and lies in {path}"
            assert not kept or not disk.holds(wanted.partition, {max(kept)}), (
                f"{wanted.name} is created in {agent.inventory.path(where.id)}, and its messages lie in {path}, offline"
            )

    def check_deletion(self, agent: Agent, key: TopicIdPartition, name: str) -> None:
        """Only what the metadata of this agent no longer give to this broker, or a move that was abandoned."""
        assert key not in agent.hosting or parsed(name)[2] == "future", f"{name} is deleted and is still this broker's"

    def check_request(self, agent: Agent, request: AssignReplicasToDirsRequest) -> None:
        """The controller is told where replicas lie, or LOST, and of each replica once."""
        told: list[TopicIdPartition] = []
        for directory in request.directories:
            for topic in directory.topics:
                for partition in topic.partitions:
                    key = TopicIdPartition(topic.topic_id, partition.partition_index)
                    told.append(key)
                    assert self._may_be_told(key, directory.id_), f"{key} is said to lie in {directory.id_}"
        assert len(told) == len(set(told)), "a replica is in a request twice"

    def _may_be_told(self, key: TopicIdPartition, directory: Uuid) -> bool:
        if directory in (UNASSIGNED, MIGRATING):
            return False
        everywhere = [*self.slots.values(), *(disk for disks in self.shelf.values() for disk in disks)]
        there = next((disk for disk in everywhere if disk.id == directory), None)
        return directory == LOST or (there is not None and self._lies_in(there, key))

    def _lies_in(self, disk: Disk, key: TopicIdPartition) -> bool:
        """As the current replica, or as the one that a promotion under way will make the current one, or as the source
        that it had renamed when the disk died."""
        if disk.current(key) is not None:
            return True
        suffixes = {parsed(n)[2] for n, c in disk.replicas.items() if (c.topic_id, parsed(n)[1]) == key}
        assert self.agent is not None
        move = self.agent.mover.moves.get(key)
        promoting = move is not None and move.destination == disk.id and move.state is not State.NONE
        return ("future" in suffixes and promoting) or ("delete" in suffixes and key in self.moved)

    # ---- what must hold, always

    def check_queue(self) -> None:
        """Never two entries for one replica that count, and the newest wins."""
        if self.agent is None:
            return
        queue = self.agent.assignments
        for key in (*queue.ready, *queue.in_flight):
            if key in self.agent.newest:
                assert queue.target(key) == self.agent.newest[key]
        if self.agent.request is None:
            assert not queue.in_flight

    def check_data(self) -> None:
        """What was acknowledged by a broker in sync is on some disk, whole."""
        disks = [*self.slots.values(), *(disk for disks in self.shelf.values() for disk in disks)]
        for name, key, partition in self.controller.hosted():
            kept = self.acknowledged.get(key)
            if kept and US in partition.isr:
                assert any(disk.holds(key, kept) for disk in disks), f"messages of {name}-{key.partition} are lost"

    # ---- time

    def go_on(self, agent: Agent) -> None:
        """The controller answers what there is to answer, and each disk carries out one job."""
        self.now_ms += 100
        agent.learn(agent.behind)
        for directory in agent.directories:
            agent.work(directory)
        agent.heartbeat(answered=True)
        if agent.request is not None:
            agent.answer(self.controller.assign(agent.request))
        else:
            agent.send_assignments()
        if agent.wake() is not None:
            self.kill()

    # ---- quiet

    def calm_down(self) -> None:
        """Disks stay as they are, the controller answers, a person answers when asked: until nothing moves."""
        for _ in range(400):
            if self.agent is None:
                self._repair_one()
                self.start()
            assert self.agent is not None
            if self.agent.refused is not None:
                self._ask_a_person()
            elif not self._step_quietly(self.agent):
                return
        raise AssertionError(f"it never comes to rest: {self.agent and self.agent.assignments.ready}")

    def _step_quietly(self, agent: Agent) -> bool:
        """A round of everything that is waited for; whether anything is left to wait for."""
        self.now_ms += 1_000
        if any(agent.find_dead(d) for d in agent.directories if not self._is_well(d)):
            self.kill()
            return True
        agent.learn(agent.behind)
        agent.heartbeat(answered=True)
        for directory in agent.directories:
            while agent.work(directory):
                pass
        agent.send_assignments()
        if agent.request is not None:
            agent.answer(self.controller.assign(agent.request))
        if agent.wake() is not None:
            self.kill()
            return True
        return bool(
            agent.behind
            or agent.assignments.queued
            or agent.assignments.acknowledged
            or agent.inventory.creating
            or agent.mover.moves
            or any(jobs for directory, jobs in agent.jobs.items() if self._is_well(directory))
        ) or not self._unfenced(agent)

    def _repair_one(self) -> None:
        """Without any disk there is no broker."""
        if not any(disk.well for disk in self.slots.values()):
            self.slots["d1"].well = True

    def _unfenced(self, agent: Agent) -> bool:
        return not self.controller.image.brokers[US].fenced and all(f.settled for f in agent.failures.failed)

    def _is_well(self, directory: Uuid) -> bool:
        disk = self.disk_of(directory)
        return disk is not None and disk.well

    def _ask_a_person(self) -> None:
        """It lies in two directories: the person takes away the copy that has less, and starts the agent again."""
        assert self.agent is not None
        asked = False
        for _, key, _ in self.controller.hosted():
            there = [disk for disk in self.slots.values() if disk.well and disk.current(key) is not None]
            if len(there) > 1:
                asked = True
                poorest = min(there, key=lambda disk: len(disk.replicas[disk.current(key) or ""].messages))
                del poorest.replicas[poorest.current(key) or ""]
        assert asked, f"the agent refuses, and there is nothing to decide: {self.agent.refused}"
        self.start()

    def check_calm(self) -> None:
        """The metadata say where each replica lies, and nobody leads a dead disk."""
        assert self.agent is not None
        online = set(self.agent.inventory.online)
        for name, key, partition in self.controller.hosted():
            text = f"{name}-{key.partition}"
            assigned = partition.directory(US)
            lies = [disk.id for disk in self.slots.values() if disk.well and disk.id in online and disk.current(key)]
            if assigned in online:
                assert assigned in lies, f"{text} is assigned to {assigned} and is not there"
            else:
                unread = assigned not in self.agent.directories
                assert unread or not lies, f"{text} lies in {lies} and is assigned to {assigned}"
                assert assigned not in (UNASSIGNED, MIGRATING), f"{text} is never assigned"
                assert len(online) < len(PATHS), f"{text} is nowhere, and no directory is offline"
            if partition.leader == US:
                assert assigned in online, f"broker 1 leads {text}, which lies on a dead disk"

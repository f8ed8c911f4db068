"""Guards of a quorum's nodes, each with its core, its metadata and what the quorum tells it, under faults of all of
them: whatever the moments, the quorum keeps its majority, and no second broker is fenced after the first one."""

from dataclasses import dataclass, field

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kjbod.metadata.fetching import Committed
from kjbod.metadata.records import Record
from kjbod_guard import majority
from kjbod_guard.actions import Done, Outcome
from kjbod_guard.core import GuardCore, Task
from kjbod_guard.effects import Cut, Effect, Fence, Kill, Suspect, Trust
from kjbod_guard.journal import Journal
from kjbod_guard.observing import Observed
from kjbod_guard.situation import Situation
from kjbod_guard.suspects import encode
from kjbod_guard.voters_asking import EVERY_MS
from kjbod_host.health.state import Health
from tests.depth import examples
from tests.guard.test_deciding import METADATA, PATH, SITE, disk, well
from tests.guard.test_majority import described
from tests.guard.test_observing import D1, changed, config, in_batches, registered

STEP_MS = 50
FETCH_MS = 500
SEEN_MS = 50
"""From a record to the observers."""
ELECTION_MS = 2_200
SESSION_MS = 9_000
LAST_MS = 60_000
AFTER_MS = 15_000
"""How long a story goes on after the first death; a session has ended by then."""
EPOCH = 10
DONE, LOST = Done(outcome=Outcome.DONE), Done(outcome=Outcome.FAILED, reason="no controller is known")


@dataclass
class Cluster:
    """Controllers that are brokers too, and the metadata log that they keep.

    Attributes:
        size: how many there are; ids from 0.
        leader: the active one, and its epoch.
        died_ms: of those that are dead.
        log: records, and when observers see them.
    """

    size: int
    leader: tuple[int, int]
    died_ms: dict[int, int] = field(default_factory=dict)
    log: list[tuple[Record, int]] = field(default_factory=list)
    fenced: set[int] = field(default_factory=set)

    @property
    def alive(self) -> list[int]:
        return [one for one in range(self.size) if one not in self.died_ms]

    def leads(self, now_ms: int) -> bool:
        """Whether somebody leads, after an election where it is due."""
        died_ms = self.died_ms.get(self.leader[0])
        if len(self.alive) <= self.size // 2:
            return False
        if died_ms is not None and now_ms - died_ms >= ELECTION_MS:
            self.leader, died_ms = (self.alive[0], self.leader[1] + 1), None
        return died_ms is None

    def write(self, record: Record, now_ms: int) -> Done:
        if not self.leads(now_ms):
            return LOST
        self.log.append((record, now_ms + SEEN_MS))
        return DONE

    def fence(self, broker: int, now_ms: int) -> Done:
        if broker in self.fenced:
            return DONE
        done = self.write(changed(broker=broker, fenced=1), now_ms)
        if done.happened:
            self.fenced.add(broker)
        return done

    def expire(self, now_ms: int) -> None:
        """Sessions of brokers that are dead end."""
        for broker, died_ms in self.died_ms.items():
            if now_ms - died_ms >= SESSION_MS:
                self.fence(broker, now_ms)

    def marks(self, now_ms: int) -> dict[int, int]:
        """Time of the last fetch of each voter; one that waits at the leader is answered after the voter's death."""
        last = {one: now_ms if one == self.leader[0] else now_ms // FETCH_MS * FETCH_MS for one in self.alive}
        return last | {one: (ms // FETCH_MS + 1) * FETCH_MS for one, ms in self.died_ms.items()}


@dataclass
class OneGuard:
    """A guard whose node's metadata log hangs from a moment on, and how long a fsync and a request take it.

    Attributes:
        shared: whether other things lie on that file system, so that it is not shut down when the node is fenced.
        pauses: when the guard stands still, and for how long.
    """

    cluster: Cluster
    node: int
    wants_ms: int
    asks_ms: int
    fsync_ms: int
    request_ms: int
    ends_ms: int
    shared: bool
    pauses: tuple[tuple[int, int], ...] = ()
    quorum: majority.Quorum = field(default_factory=majority.Quorum)
    answered_ms: int = 0
    under_way: list[tuple[int, Task, Effect | None]] = field(default_factory=list)
    """When it ends, and what it is; without an effect it is written down until then."""
    next_ms: int = 0

    def __post_init__(self) -> None:
        site = replace(SITE, node_id=self.node, log_dirs=(PATH,), metadata_log_dir=METADATA, fence_brokers_max=2)
        self.observed = Observed(self.node)
        self.observed.committed(in_batches([(0, [one for one, _ in self.cluster.log])]), 0)
        self.core = GuardCore(site, Journal(), f"g{self.node}")
        self.core.acts = True

    def situation(self, now_ms: int) -> Situation:
        died_ms = self.cluster.died_ms.get(self.node)
        hung = disk(
            METADATA,
            failed_ms=self.wants_ms,
            bad_ms=self.wants_ms - 60_000,
            shared="/etc lies there" if self.shared else None,
        )
        disks = (hung if now_ms >= self.wants_ms else replace(hung, health=Health.ONLINE), well(PATH, directory_id=D1))
        return Situation(
            now_ms=now_ms,
            wall_ms=now_ms,
            disks={one.path: one for one in disks},
            observed=self.observed,
            answered_ms=self.answered_ms,
            unbound=None if died_ms is None else "no broker runs",
            pid=7 if died_ms is None else None,
            ended_pid=7 if died_ms is not None and now_ms - died_ms >= self.ends_ms else None,
            quorum=self.quorum,
        )

    def step(self, now_ms: int) -> None:
        """Whatever has come is taken, and the guard looks where anything has."""
        if any(at <= now_ms < at + still for at, still in self.pauses):
            return
        news = [self._read(now_ms), self._ask(now_ms), self._go_on(now_ms), now_ms >= self.next_ms]
        if not any(news):
            return
        look = self.core.look(self.situation(now_ms))
        self.next_ms = now_ms + min(1_000, 1_000 if look.again_ms is None else look.again_ms)
        for task in look.tasks:
            self.under_way.append((now_ms + (self.fsync_ms if task.is_saved else 0), task, None))

    def _read(self, now_ms: int) -> bool:
        if self.cluster.leads(now_ms):
            self.answered_ms = now_ms
        first = self.observed.offset + 1
        rest = enumerate(self.cluster.log[first:], first)
        new = [(offset, record) for offset, (record, at_ms) in rest if at_ms <= now_ms]
        if new:
            self.observed.committed(Committed(tuple(new), new[-1][0], 1, new[-1][0] + 1, ()), now_ms)
        return bool(new)

    def _ask(self, now_ms: int) -> bool:
        is_due = now_ms >= self.wants_ms and (now_ms - self.asks_ms) % EVERY_MS == 0
        if not is_due or self.node in self.cluster.died_ms or not self.cluster.leads(now_ms):
            return False
        leader = self.cluster.leader
        answer = described(self.cluster.marks(now_ms), leader=leader[0], epoch=leader[1])
        self.quorum = majority.heard(self.quorum, answer, now_ms)
        return True

    def _go_on(self, now_ms: int) -> bool:
        """What is over of what was begun."""
        ended = [one for one in self.under_way if one[0] <= now_ms]
        self.under_way = [one for one in self.under_way if one[0] > now_ms]
        for _, task, effect in ended:
            if effect is None:
                found = self.core.saved(task, None, self.situation(now_ms))
                if isinstance(found, Kill):  # at once
                    self.cluster.died_ms.setdefault(self.node, now_ms)
                if not isinstance(found, Done):
                    self.under_way.append((now_ms + self.request_ms, task, found))
            else:
                self.core.came_of(task, self._does(effect, now_ms), self.situation(now_ms))
        return bool(ended)

    def _does(self, effect: Effect, now_ms: int) -> Done:
        match effect:
            case Suspect():
                value = encode(effect.epoch, effect.directory_ids, effect.mark)
                return self.cluster.write(config(str(self.node), value), now_ms)
            case Trust():
                return self.cluster.write(config(str(self.node), None), now_ms)
            case Fence():
                return self.cluster.fence(self.node, now_ms)
            case Cut():
                assert self.node in self.cluster.fenced
        return DONE


MOMENTS = st.integers(0, 200).map(lambda steps: steps * STEP_MS)
PAUSES = st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 12_000)), max_size=2).map(tuple)


# What fails is shown as it was drawn: to shrink a story of a minute takes minutes.
@given(data=st.data(), size=st.sampled_from([3, 5]))
@settings(max_examples=examples(20), phases=[Phase.generate])
def test_whatever_the_moments_the_quorum_keeps_its_majority(data: st.DataObject, size: int) -> None:
    cluster = Cluster(size, (data.draw(st.integers(0, size - 1)), 1))
    cluster.log = [(registered(D1, broker=node, epoch=EPOCH), 0) for node in range(size)]
    guards = [
        OneGuard(
            cluster,
            node,
            wants_ms=data.draw(MOMENTS),
            asks_ms=data.draw(st.integers(0, 5)) * STEP_MS,
            fsync_ms=data.draw(st.integers(0, 10)) * STEP_MS,
            request_ms=data.draw(st.integers(0, 20)) * STEP_MS,
            ends_ms=data.draw(st.integers(0, 100)) * STEP_MS,
            shared=data.draw(st.booleans()),
            pauses=data.draw(PAUSES),
        )
        for node in range(size)
    ]
    for now_ms in range(0, LAST_MS, STEP_MS):
        cluster.expire(now_ms)
        for guard in guards:
            guard.step(now_ms)
        assert len(cluster.alive) >= size - 1, (now_ms, cluster.died_ms, cluster.log[size:])
        if now_ms - min(cluster.died_ms.values(), default=now_ms) > AFTER_MS:
            break
    assert cluster.died_ms, "it comes to an end"
    assert cluster.fenced == set(cluster.died_ms)

"""Guards of a quorum's nodes, each with what the ladder, its limits and the quorum tell it, under faults of all of
them: whatever the moments, the quorum keeps its majority."""

from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kjbod.ids import Uuid
from kjbod.metadata.fetching import Committed
from kjbod.metadata.records import BrokerRegistrationChangeRecord, Record, RegisterBrokerRecord
from kjbod_agent.guard import majority
from kjbod_agent.guard.broker_steps import Facts, Standing, State, advance, came_of, claimed_at
from kjbod_agent.guard.budget import NEIGHBOUR_MS, FenceCase, why_not_fence
from kjbod_agent.guard.effects import Cut, Effect, Fence, Kill
from kjbod_agent.guard.means import Done, Outcome
from kjbod_agent.guard.observing import RIVAL_MS, Observed
from kjbod_agent.guard.voters_asking import EVERY_MS
from tests.depth import examples
from tests.guard.test_majority import described

STEP_MS = 50
FETCH_MS = 500
HEARTBEAT_MS = 2_000
ELECTION_MS = 2_200
LAST_MS = 60_000
EPOCH = 7


def registered(broker: int) -> Record:
    return RegisterBrokerRecord(
        broker_id=broker,
        incarnation_id=Uuid.of(1, broker + 1),
        broker_epoch=EPOCH,
        end_points=(),
        features=(),
        fenced=False,
    )


def changed(broker: int, fenced: bool) -> Record:
    return BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=EPOCH, fenced=1 if fenced else -1)


@dataclass
class Site:
    """Controllers that are brokers too, and the metadata log that they keep.

    Attributes:
        size: how many there are; ids from 0.
        leader: the active one, and its epoch.
        died_ms: of those that are dead.
        records: broker, whether it is fenced, and when observers see it, by offset.
    """

    size: int
    leader: tuple[int, int]
    died_ms: dict[int, int] = field(default_factory=dict)
    records: list[tuple[int, bool, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.records = [(one, False, -RIVAL_MS) for one in range(self.size)]  # their registrations

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

    def is_fenced(self, broker: int) -> bool:
        return next((fenced for one, fenced, _ in reversed(self.records) if one == broker), False)

    def record(self, broker: int, fenced: bool, seen_ms: int) -> None:
        if self.is_fenced(broker) != fenced:
            last_ms = self.records[-1][2] if self.records else 0
            self.records.append((broker, fenced, max(seen_ms, last_ms)))

    def beat(self, now_ms: int) -> None:
        """Heartbeats of the brokers, which unfence themselves."""
        for one in self.alive:
            if (now_ms + one * 350) % HEARTBEAT_MS == 0 and self.leads(now_ms):
                self.record(one, fenced=False, seen_ms=now_ms + STEP_MS)

    def marks(self, now_ms: int) -> dict[int, int]:
        """Time of the last fetch of each voter; one that waits at the leader is answered after the voter's death."""
        last = {one: now_ms if one == self.leader[0] else now_ms // FETCH_MS * FETCH_MS for one in self.alive}
        return last | {one: (ms // FETCH_MS + 1) * FETCH_MS for one, ms in self.died_ms.items()}


@dataclass
class OneGuard:
    """A guard that wants its node given up from a moment on, and how long a cut and a question take it."""

    node: int
    wants_ms: int
    asks_ms: int
    cut_ms: int
    brokers_max: int
    standing: Standing = field(default_factory=lambda: Standing(state=State.SERVING, pid=1, epoch=EPOCH))
    quorum: majority.Quorum = field(default_factory=majority.Quorum)
    over_ms: int = 0
    under_way: Effect | None = None
    observed: Observed = field(init=False)
    pauses: tuple[tuple[int, int], ...] = ()
    """When it stands still, and for how long."""

    def __post_init__(self) -> None:
        self.observed = Observed(self.node)

    def read(self, site: Site, now_ms: int) -> None:
        """Follow the metadata log as far as it reaches an observer now."""
        first = self.observed.offset + 1
        new = [
            (offset, registered(one[0]) if offset < site.size else changed(*one[:2]))
            for offset, one in enumerate(site.records)
            if one[2] <= now_ms
        ]
        self.observed.committed(Committed(tuple(new[first:]), len(new) - 1, 1, len(new), ()), now_ms)

    def facts(self, site: Site, now_ms: int) -> Facts:
        observed = self.observed
        assert observed.registration is not None
        case = FenceCase(
            healthy=(),
            brokers_max=self.brokers_max,
            claimed_at=claimed_at(self.standing, observed.fenced_at),
            voters=range(site.size),
            needed=majority.why_needed(self.quorum, self.node, now_ms),
            now_ms=now_ms,
        )
        return Facts(
            pid=None if self.node in site.died_ms else 1,
            ended=1 if self.node in site.died_ms else None,
            epoch=EPOCH,
            fenced=observed.registration.fenced,
            wanted="its metadata log hangs",
            refusal=why_not_fence(observed, case),
            cuts=("/d1",),
            place=self.node,
            claims=True,
            fenced_at=observed.fenced_at,
        )

    def step(self, site: Site, now_ms: int) -> None:
        if now_ms < self.wants_ms or any(at <= now_ms < at + still for at, still in self.pauses):
            return
        self.read(site, now_ms)
        if (now_ms - self.asks_ms) % EVERY_MS == 0 and site.leads(now_ms):
            answer = described(site.marks(now_ms), leader=site.leader[0], epoch=site.leader[1])
            self.quorum = majority.heard(self.quorum, answer, now_ms)
        if self.under_way is not None:
            if now_ms < self.over_ms:
                return
            done = self.does(self.under_way, site, now_ms)
            self.under_way = None
            self.standing = came_of(self.standing, done, now_ms)
        move = advance(self.standing, self.facts(site, now_ms), now_ms)
        self.standing, self.under_way = move.standing, move.effect
        took = {Cut: self.cut_ms, Kill: 0, Fence: STEP_MS}
        self.over_ms = now_ms + took.get(type(move.effect), 0) if move.effect is not None else 0
        if isinstance(move.effect, Kill):  # at once
            site.died_ms.setdefault(self.node, now_ms)

    def does(self, effect: Effect, site: Site, now_ms: int) -> Done:
        if isinstance(effect, Fence):
            if not site.leads(now_ms):
                return Done(outcome=Outcome.FAILED, reason="no controller is known")
            site.record(self.node, fenced=True, seen_ms=now_ms + STEP_MS)
        return Done(outcome=Outcome.DONE)


MOMENTS = st.integers(0, 200).map(lambda steps: steps * STEP_MS)


# What fails is shown as it was drawn: to shrink a story of a minute takes minutes.
@pytest.mark.parametrize("brokers_max", [1, 9])
@given(data=st.data(), size=st.sampled_from([3, 5]))
@settings(max_examples=examples(40), phases=[Phase.generate])
def test_whatever_the_moments_the_quorum_keeps_its_majority(data: st.DataObject, size: int, brokers_max: int) -> None:
    site = Site(size, (data.draw(st.integers(0, size - 1)), 1))
    guards = [
        OneGuard(
            node,
            wants_ms=data.draw(MOMENTS),
            asks_ms=data.draw(st.integers(0, 5)) * STEP_MS,
            cut_ms=data.draw(st.integers(0, 60)) * STEP_MS,
            brokers_max=brokers_max,
            pauses=tuple(data.draw(st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 12_000)), max_size=2))),
        )
        for node in range(size)
    ]
    for now_ms in range(0, LAST_MS, STEP_MS):
        site.beat(now_ms)
        for guard in guards:
            guard.step(site, now_ms)
        assert len(site.alive) > size // 2, (now_ms, site.died_ms, site.records)
    assert brokers_max == 9 or len(site.died_ms) <= 1 + LAST_MS // NEIGHBOUR_MS
    assert site.died_ms, "it comes to an end"

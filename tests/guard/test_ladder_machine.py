"""Ladder and budget beside a model of Kafka: whatever fails, is lost or comes late, they keep their limits and end."""

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kjbod.ids import Uuid
from kjbod_agent.guard import broker_steps, directory_steps
from kjbod_agent.guard.budget import why_not_evict
from kjbod_agent.guard.effects import Cut, Effect, Evict, Fence, Kill, Mask, Report
from kjbod_agent.guard.ladder import NOTHING, Case, KafkaView, Step, Would, is_cut_in_fence, would
from kjbod_agent.guard.means import Done, Outcome
from kjbod_agent.guard.observing import Neighbour, Observed, Placed
from kjbod_agent.guard.prospects import Now, Prospects, Site, waits_for_host
from kjbod_agent.health.state import Cause, DirectoryHealth, Health
from tests.depth import examples

US, EPOCH, PID = 1, 5, 7
PATHS = ("/mnt/d1", "/mnt/d2", "/mnt/d3")
IDS = {path: Uuid.of(5, number) for number, path in enumerate(PATHS)}
T = Uuid.of(7, 1)
MIN_ISR = 2
ROUND_MS = 250
HAPPENED = (Outcome.DONE, Outcome.PENDING)


@dataclass
class Model:
    """A broker, its disks and its cluster.

    Attributes:
        handles: what Kafka's failure handler makes of a disk that is cut or masked: ``itself`` (reports it), ``told``
            (a report is needed), ``stuck`` (and the broker is crippled).
    """

    data: st.DataObject
    causes: dict[str, Cause]
    handles: str
    hand: list[Outcome]
    observed: Observed
    now_ms: int = 1_000_000
    blind: str | None = None
    offline: set[str] = field(default_factory=set)
    dealt: set[str] = field(default_factory=set)
    killed: bool = False
    fenced: bool = False
    prospects: Prospects = field(default_factory=lambda: Prospects(Site(host_fault_timeout_ms=5_000, min_isr=MIN_ISR)))
    directories: dict[str, directory_steps.Standing] = field(default_factory=dict)
    broker: broker_steps.Standing = field(default_factory=broker_steps.Standing)
    given: list[Effect] = field(default_factory=list)

    def view(self, path: str) -> KafkaView:
        if self.blind is not None:
            return KafkaView.UNKNOWN
        return KafkaView.OFFLINE if path in self.offline else KafkaView.ONLINE

    def now(self) -> Now:
        healthy = frozenset(IDS[path] for path in PATHS if path not in self.causes)
        return Now(observed=self.observed, healthy=healthy, blind=self.blind, now_ms=self.now_ms)

    def case(self, path: str) -> tuple[Case, Would]:
        cause = self.causes.get(path)
        standing = self.directories.get(path, directory_steps.Standing())
        case = Case(
            health=Health.ONLINE if cause is None else Health.FAILED,
            cause=cause or Cause.NONE,
            kafka=self.view(path),
            unbound="no broker runs" if self.killed else None,
            others_well=any(other not in self.causes for other in PATHS if other != path),
        )
        case = self.prospects.of(
            case,
            path,
            IDS[path],
            self.now(),
            failed_ms=None if cause is None else 1_000_000,
            unrecorded=directory_steps.is_unrecorded(standing),
        )
        return case, would(case)

    def round(self) -> None:
        """Look once, as the guard does, and end some of what is under way."""
        self.now_ms += ROUND_MS
        for path in PATHS:
            self.prospects.seen(path, self.view(path), self.now_ms)
        decided = {path: self.case(path) for path in PATHS if path in self.causes or path in self.offline}
        self._look_at_broker(decided)
        for path in PATHS:
            self._look_at(path, decided[path][1] if path in decided else NOTHING)
        if self.broker.under_way is not None and self._ends():
            self.broker = broker_steps.came_of(self.broker, self._done(self.broker.under_way), self.now_ms)

    def _look_at_broker(self, decided: dict[str, tuple[Case, Would]]) -> None:
        disks = [DirectoryHealth(health=Health.FAILED if path in self.causes else Health.ONLINE) for path in PATHS]
        waits = waits_for_host(disks, (case for case, _ in decided.values()))
        crippled = "stuck" if self.handles == "stuck" and self.dealt and not self.killed and not waits else None
        fences = {path: pair for path, pair in decided.items() if pair[1].step is Step.FENCE}
        facts = broker_steps.Facts(
            pid=None if self.killed else PID,
            ended=PID if self.killed else None,
            epoch=EPOCH,
            fenced=None if self.blind else self.fenced,
            wanted=crippled or next((pair[1].reason for pair in fences.values()), None),
            refusal=self.prospects.why_not_fence(self.now(), proven=crippled is not None),
            cuts=tuple(path for path, (case, _) in fences.items() if is_cut_in_fence(case)),
        )
        before = self.broker
        for _ in range(10):
            move = broker_steps.advance(self.broker, facts, self.now_ms)
            self.broker = move.standing
            if move.again_ms != 0:
                break
        if before.under_way is not None:
            assert move.effect is None
        if isinstance(move.effect, Cut | Kill):
            assert facts.refusal is None and not waits
        if move.effect is not None:
            self.given.append(move.effect)

    def _look_at(self, path: str, decided: Would) -> None:
        standing = self.directories.get(path, directory_steps.Standing())
        found = self.prospects.evictions(path, IDS[path], self.now())
        facts = directory_steps.Facts(
            path=path,
            directory_id=str(IDS[path]),
            decided=decided,
            view=self.view(path),
            epoch=EPOCH,
            well=path not in self.causes,
            present=not self.killed and self.broker.state is not broker_steps.State.FENCING,
            others_online=len(self.offline) < len(PATHS) - 1,
            evict=found.before if decided.step is Step.EVICT else {},
        )
        move = directory_steps.advance(standing, facts, self.now_ms)
        self.directories[path] = move.standing
        if standing.under_way is not None:
            assert move.effect is None and move.standing == standing
        self._check(path, move.effect, facts)
        if move.standing.under_way is not None and self._ends():
            done = self._done(move.standing.under_way)
            self.directories[path] = directory_steps.came_of(move.standing, done, self.now_ms)

    def _check(self, path: str, effect: Effect | None, facts: directory_steps.Facts) -> None:
        match effect:
            case None:
                return
            case Cut():
                assert facts.decided.step is Step.CUT
                assert any(other not in self.causes for other in PATHS if other != path)
            case Report():
                assert facts.others_online and self.view(path) is not KafkaView.OFFLINE
            case Evict():
                assert self.view(path) is KafkaView.OFFLINE and effect.before
                assert path in self.dealt or self.directories[path].reports == 0
                for key in effect.before:
                    assert why_not_evict(self.observed.partitions[key], US, MIN_ISR) is None
        self.given.append(effect)

    def _ends(self) -> bool:
        return bool(self.data.draw(st.booleans()))

    def _done(self, effect: Effect) -> Done:
        outcome = self.data.draw(st.sampled_from(self.hand))
        if outcome in HAPPENED:
            self._happens(effect)
        return Done(outcome=outcome, reason=str(outcome))

    def _happens(self, effect: Effect) -> None:
        match effect:
            case Cut() | Mask():
                self.dealt.add(effect.path)
                if self.handles == "itself":
                    self.offline.add(effect.path)
            case Report() if self.handles != "lost":
                self.offline.add(effect.path)
            case Evict():
                for key, before in effect.before.items():
                    now = self.observed.partitions.pop(key)
                    lists = tuple(one for one in before if one != US)
                    self.observed.others[key] = replace(now, position=-1, replicas=lists)
            case Kill():
                self.killed = self.data.draw(st.booleans())
            case Fence():
                self.fenced = self.data.draw(st.booleans())


ISRS = st.sampled_from([(1, 2, 3), (1, 2, 3), (1, 2), (2, 3), (1,)])
FAULTS = st.dictionaries(st.sampled_from(PATHS), st.sampled_from([Cause.HUNG, Cause.ERROR, Cause.HELD, Cause.MOUNT]))
OUTCOMES = st.sampled_from([[Outcome.DONE], [Outcome.DONE, Outcome.PENDING], list(Outcome), [Outcome.FAILED]])


@settings(max_examples=examples(80), deadline=None)
@given(st.data(), FAULTS, st.sampled_from(["itself", "told", "stuck", "lost"]), OUTCOMES)
def test_it_keeps_its_limits_and_every_path_ends(
    data: st.DataObject, causes: dict[str, Cause], handles: str, hand: list[Outcome]
) -> None:
    observed = Observed(US, complete=True, topics={T: "t"})
    for number, path in enumerate((*PATHS, *PATHS)):
        observed.partitions[T, number] = Placed(0, IDS[path], number < 3, (1, 2, 3), data.draw(ISRS))
    if data.draw(st.booleans()):
        observed.neighbours[2] = Neighbour(3, True, 1, fenced_ms=1_000_000)
    model = Model(data, {}, handles, hand, observed)
    model.round()
    model.causes = causes
    for _ in range(60):
        if data.draw(st.integers(0, 19)) == 0:
            model.blind = data.draw(st.sampled_from([None, "refused"]))
        model.round()
    model.blind = None
    for _ in range(400):
        model.round()
    settled = len(model.given)
    for _ in range(60):
        model.round()
    kinds = [type(effect) for effect in model.given]
    assert kinds.count(Fence) <= broker_steps.FENCES_MAX + broker_steps.FENCE_ATTEMPTS_MAX
    for path in PATHS:
        happened = [one for one in model.given if isinstance(one, Cut | Mask) and one.path == path]
        assert len(happened) <= 2 + kinds.count(Kill) * 2, path
    if Kill not in kinds or hand != [Outcome.FAILED]:
        late = [one for one in model.given[settled:] if not isinstance(one, Kill | Cut)]
        assert not late, late

"""Leadership that moves off a slow disk and comes back: the table, and what holds whatever the controllers do."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kjbod.ids import Uuid
from kjbod_agent.guard.budget import demoted, demotions, promotions
from kjbod_agent.guard.effects import Demote, Effect, Promote
from kjbod_agent.guard.means import Done, Outcome
from kjbod_agent.guard.observing import Key, Observed, Placed
from kjbod_agent.guard.slow_steps import (
    AGAIN_MS,
    ATTEMPTS_MAX,
    DEMOTES_MAX,
    PROMOTES_MAX,
    Facts,
    Standing,
    State,
    advance,
    came_of,
)
from tests.depth import examples

PATH, ID, T, D1 = "/mnt/d1", "d1", Uuid.of(7, 1), Uuid.of(5, 1)
KEY: Key = (T, 0)
LISTS = {KEY: ((1, 2, 3), (2, 3, 1))}
LED = Placed(0, D1, True, (1, 2, 3), (1, 2, 3))
DONE, PENDING, FAILED, REFUSED = (Done(outcome=one, reason=str(one)) for one in Outcome)
SLOW = Facts(path=PATH, directory_id=ID, slow=True, well=False, demote=LISTS)
WELL = Facts(path=PATH, directory_id=ID, promote={KEY: (1, 2, 3)})


class Run:
    """A directory that is taken through its steps by hand."""

    def __init__(self) -> None:
        self.standing = Standing()
        self.now_ms = 100_000

    def step(self, facts: Facts, after_ms: int = 0) -> Effect | None:
        self.now_ms += after_ms
        move = advance(self.standing, facts, self.now_ms)
        self.standing = move.standing
        return move.effect

    def over(self, done: Done) -> State:
        self.standing = came_of(self.standing, done, self.now_ms)
        return self.standing.state


def test_what_is_led_on_a_slow_disk_is_led_by_others_until_it_is_well() -> None:
    run = Run()
    assert run.step(SLOW) == Demote(PATH, ID, {KEY: (1, 2, 3)}, {KEY: (2, 3, 1)})
    assert run.step(SLOW) is None  # one at a time
    assert run.over(DONE) is State.DEMOTED
    assert run.step(replace(SLOW, demote={}), 60_000) is None
    assert run.step(WELL) == Promote(PATH, ID, {KEY: (1, 2, 3)})
    assert run.over(DONE) is State.PROMOTING
    assert run.step(WELL, AGAIN_MS - 1) is None
    assert run.step(replace(WELL, promote={})) is None and run.standing.state is State.LEADING


def test_two_slow_disks_do_not_hand_a_partition_to_each_other_for_ever() -> None:
    run = Run()
    for _ in range(DEMOTES_MAX):
        assert run.step(SLOW, AGAIN_MS) is not None
        run.over(DONE)
        assert run.step(SLOW, AGAIN_MS - 1) is None
    assert run.step(SLOW, 3_600_000) is None
    run.step(replace(WELL, promote={}))
    assert run.step(SLOW) is not None  # slow anew


def test_what_the_controllers_refuse_is_not_asked_for_again_and_what_fails_ten_seconds_later() -> None:
    run = Run()
    run.step(SLOW)
    assert run.over(FAILED) is State.LEADING and run.standing.reason == "failed"
    assert run.step(SLOW, AGAIN_MS - 1) is None
    assert run.step(SLOW, 1) is not None
    run.over(REFUSED)
    assert run.step(SLOW, 3_600_000) is None
    back = Run()
    for _ in range(PROMOTES_MAX):
        assert back.step(WELL, AGAIN_MS) is not None
        back.over(FAILED)
    assert back.step(WELL, 3_600_000) is None


@pytest.mark.parametrize(
    "facts", [replace(SLOW, free=False), replace(SLOW, slow=False), replace(SLOW, directory_id=None)]
)
def test_nothing_is_begun_beside_something_else_or_on_a_disk_that_is_neither_slow_nor_well(facts: Facts) -> None:
    assert Run().step(facts) is None


@pytest.mark.parametrize(
    ("placed", "after"),
    [
        (Placed(0, D1, True, (1, 2, 3), (1, 2, 3)), (2, 3, 1)),
        (Placed(0, D1, True, (1, 2, 3), (1, 3)), (3, 2, 1)),
        (Placed(1, D1, True, (2, 1, 3), (1, 3)), (3, 2, 1)),
        (Placed(0, D1, False, (1, 2, 3), (2, 3)), (2, 3, 1)),  # Kafka would have it lead again within minutes
        (Placed(1, D1, False, (2, 1, 3), (1, 2, 3)), None),
        (Placed(0, D1, True, (1, 2, 3), (1,)), None),
        (Placed(0, D1, True, (1,), (1,)), None),
        (Placed(0, D1, True, (1, 2, 3), (1, 2, 3), adding=(3,)), None),
        (Placed(0, D1, True, (1, 2, 3), (1, 2, 3), removing=(3,)), None),
    ],
)
def test_only_a_replica_that_is_in_sync_leads_instead(placed: Placed, after: tuple[int, ...] | None) -> None:
    assert demoted(placed, 1) == after
    observed = Observed(1, complete=True)
    observed.partitions[KEY] = placed
    assert demotions(observed, D1) == ({} if after is None else {KEY: (placed.replicas, after)})
    assert demotions(observed, Uuid.of(5, 2)) == {}


@pytest.mark.parametrize(
    ("placed", "comes_back"),
    [
        (Placed(2, D1, False, (2, 3, 1), (1, 2, 3)), True),
        (Placed(2, D1, False, (2, 3, 1), (2, 3)), False),  # it could not lead yet
        (Placed(0, D1, False, (1, 2, 3), (1, 2, 3)), True),  # and was not elected
        (Placed(0, D1, True, (1, 2, 3), (1, 2, 3)), False),
        (Placed(2, D1, False, (3, 2, 1), (1, 2, 3)), False),  # somebody has changed it
        (Placed(2, D1, False, (2, 3, 1), (1, 2, 3), adding=(1,)), False),
    ],
)
def test_a_list_is_put_back_only_as_it_was_left_and_where_its_first_is_in_sync(
    placed: Placed, comes_back: bool
) -> None:
    observed = Observed(1, complete=True)
    observed.partitions[KEY] = placed
    assert promotions(observed, LISTS) == ({KEY: (1, 2, 3)} if comes_back else {})
    assert promotions(Observed(1), LISTS) == {}


@dataclass
class Model:
    """A partition, led by whoever the controllers make lead it; another guard may take it for slow as well."""

    data: st.DataObject
    placed: Placed = LED
    before: tuple[int, ...] | None = None
    run: Run = field(default_factory=Run)
    demotes: int = 0

    def round(self, slow: bool) -> None:
        observed = Observed(1, complete=True)
        observed.partitions[KEY] = self.placed
        left = {} if self.before is None else {KEY: (self.before, self.placed.replicas)}
        facts = Facts(
            path=PATH,
            directory_id=ID,
            slow=slow,
            well=not slow,
            demote=demotions(observed, D1),
            promote=promotions(observed, left),
        )
        effect = self.run.step(facts, 1_000)
        if effect is None and self.run.standing.under_way is None:
            return
        done = self.data.draw(st.sampled_from([DONE, PENDING, FAILED]))
        self.take(done)
        self.run.over(done)

    def take(self, done: Done) -> None:
        match self.run.standing.under_way:
            case Demote(before=before, after=after):
                assert after[KEY][0] in self.placed.isr and after[KEY][-1] == 1
                assert sorted(after[KEY]) == sorted(before[KEY])
                self.demotes += 1
                if done.outcome is Outcome.DONE:
                    self.before = self.before or before[KEY]
                    self.placed = replace(self.placed, position=2, leads=False, replicas=after[KEY])
            case Promote(before=before):
                assert before[KEY] == self.before
                if done.outcome is Outcome.DONE:
                    self.placed = replace(self.placed, position=0, leads=True, replicas=before[KEY])
                    self.before = None


@given(st.data())
@settings(max_examples=examples(100))
def test_what_was_moved_off_comes_back_in_its_order_when_the_controllers_let_it(data: st.DataObject) -> None:
    model = Model(data)
    for slow in data.draw(st.lists(st.booleans(), max_size=60)):
        model.round(slow)
        assert model.run.standing.attempts <= ATTEMPTS_MAX
    for _ in range(PROMOTES_MAX * AGAIN_MS // 1_000 + 1):
        model.round(slow=False)
    if model.run.standing.reason == "":
        assert model.before is None or model.run.standing.attempts >= 1
    if model.before is None:
        assert model.placed.replicas == (1, 2, 3) and model.placed.leads

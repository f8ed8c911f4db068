"""Leadership that moves off a slow disk and comes back: the table, and what holds whatever the controllers do."""

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.image import BrokerRegistration
from kjbod_guard.actions import Done, Outcome
from kjbod_guard.budget import demoted, demotions, promotions
from kjbod_guard.effects import Demote, Effect, Promote
from kjbod_guard.observing import Key, Observed, Placed
from kjbod_guard.slow_steps import AGAIN_MS, DEMOTES_MAX, PROMOTES_MAX, Facts, Standing, State, advance, came_of
from kjbod_guard.suspects import Neighbour, decode, encode
from tests.depth import examples

PATH, ID, T = "/mnt/d1", "d1", Uuid.of(7, 1)
D1, D2, D3 = (Uuid.of(5, number) for number in (1, 2, 3))
KEY, OTHER = (T, 0), (T, 1)
LISTS = {KEY: ((1, 2, 3), (2, 3, 1))}
BEFORE = {KEY: (1, 2, 3)}
DONE, PENDING, FAILED, REFUSED = (Done(outcome=one, reason=str(one)) for one in Outcome)
TAKEN = Done(outcome=Outcome.DONE)
PARTLY = Done(outcome=Outcome.DONE, reason="1 of 2 partitions: it is being reassigned")
SLOW = Facts(path=PATH, directory_id=ID, slow=True, well=False, demote=LISTS)
WELL = Facts(path=PATH, directory_id=ID, promote=BEFORE)


def placed(replicas: tuple[int, ...], isr: tuple[int, ...], *, leads: bool = True, **changes: object) -> Placed:
    """A replica of broker 1; broker 2 has its in D2, broker 3 in D3."""
    lies = {1: D1, 2: D2, 3: D3}
    found = Placed(replicas.index(1), D1, leads, replicas, isr, directories=tuple(map(lies.__getitem__, replicas)))
    return replace(found, **changes)


def observed(there: Placed) -> Observed:
    found = Observed(1, complete=True, topics={T: "t"}, partitions={KEY: there})
    found.registration = BrokerRegistration(id=1, epoch=2, incarnation_id=Uuid.of(9, 1), fenced=False, log_dirs=(D1,))
    found.neighbours = {2: Neighbour(3, True, frozenset({D2})), 3: Neighbour(4, True, frozenset({D3}))}
    return found


LED = placed((1, 2, 3), (1, 2, 3))


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

    def over(self, done: Done, refused: Collection[Key] = ()) -> State:
        self.standing = came_of(self.standing, done, self.now_ms, refused)
        return self.standing.state


def test_what_is_led_on_a_slow_disk_is_led_by_others_until_it_is_healthy() -> None:
    run = Run()
    assert run.step(SLOW) == Demote(PATH, ID, BEFORE, {KEY: (2, 3, 1)})
    assert run.step(SLOW) is None  # one at a time
    assert run.over(TAKEN) is State.DEMOTED
    assert run.step(replace(SLOW, demote={}), 1_000) is None
    assert run.step(WELL) == Promote(PATH, ID, BEFORE)
    assert run.over(TAKEN) is State.PROMOTING
    assert run.step(WELL, AGAIN_MS - 1) is None
    assert run.step(replace(WELL, promote={})) is None and run.standing.state is State.LEADING


def test_two_slow_disks_do_not_hand_a_partition_to_each_other_for_ever() -> None:
    run = Run()
    for _ in range(DEMOTES_MAX):
        assert run.step(SLOW, AGAIN_MS) is not None
        run.over(TAKEN)
        assert run.step(SLOW, AGAIN_MS - 1) is None
    assert run.step(SLOW, 3_600_000) is None
    run.step(replace(WELL, promote={}))
    assert run.step(SLOW) is not None  # slow anew


@pytest.mark.parametrize("done", [FAILED, REFUSED])
def test_a_demotion_that_did_not_work_is_asked_for_again_when_it_is_due(done: Done) -> None:
    run = Run()
    for _ in range(50):
        assert run.step(SLOW) is not None
        assert run.over(done, [KEY]) is State.LEADING and run.standing.reason == done.reason
        assert run.step(replace(SLOW, demote={}), 1_000) is None, "none is due"


def test_a_partition_that_was_refused_is_not_counted_as_demoted_and_holds_up_no_other() -> None:
    run, both = Run(), {**LISTS, OTHER: ((1, 3), (3, 1))}
    run.step(replace(SLOW, demote=both))
    assert run.over(PARTLY, [OTHER]) is State.DEMOTED and run.standing.reason == PARTLY.reason
    assert run.standing.asked == {KEY: 1}
    for _ in range(DEMOTES_MAX):
        assert run.step(replace(SLOW, demote={OTHER: both[OTHER]}), AGAIN_MS) is not None
        run.over(TAKEN)
    assert run.step(replace(SLOW, demote=both), AGAIN_MS) == Demote(PATH, ID, BEFORE, {KEY: (2, 3, 1)})


def test_what_the_controllers_took_and_the_metadata_do_not_show_is_put_back_three_times() -> None:
    run = Run()
    for _ in range(PROMOTES_MAX):
        assert run.step(WELL, AGAIN_MS) is not None
        run.over(TAKEN)
        assert run.step(WELL, AGAIN_MS - 1) is None
    assert run.step(WELL, 3_600_000) is None


def test_what_was_refused_in_part_is_put_back_when_it_is_due() -> None:
    run, both = Run(), {**BEFORE, OTHER: (1, 3)}
    assert run.step(replace(WELL, promote=both)) == Promote(PATH, ID, both)
    run.over(PARTLY, [OTHER])
    rest = {OTHER: (1, 3)}
    assert run.step(replace(WELL, promote={}, later=1)) is None
    assert run.step(replace(WELL, promote=both), 1_000) is None, "the metadata may not show those that were taken yet"
    assert run.step(replace(WELL, promote=rest), AGAIN_MS - 1_000) == Promote(PATH, ID, rest)


def test_partitions_that_were_refused_are_put_back_however_many_requests_that_takes() -> None:
    run, left = Run(), {(KEY[0], number): (1, 2, 3) for number in range(3 * PROMOTES_MAX)}
    while left:
        assert run.step(replace(WELL, promote=left), AGAIN_MS) is not None
        del left[min(left)]
        run.over(PARTLY if left else TAKEN, list(left))


@pytest.mark.parametrize("done", [FAILED, REFUSED])
def test_what_the_controllers_did_not_take_is_put_back_when_it_is_due(done: Done) -> None:
    run = Run()
    waits = replace(WELL, promote={}, later=1)
    for _ in range(50):
        assert run.step(WELL) is not None
        assert run.over(done, [KEY]) is State.PROMOTING and run.standing.reason == done.reason
        assert run.step(waits, 1_000) is None and run.standing.state is State.PROMOTING
    assert run.step(replace(WELL, promote={})) is None and run.standing.state is State.LEADING


@pytest.mark.parametrize(
    "facts",
    [
        replace(SLOW, free=False),
        replace(SLOW, slow=False),
        replace(SLOW, directory_id=None),
        replace(SLOW, demote={}),
        replace(WELL, free=False),
        replace(WELL, well=False),
        replace(WELL, directory_id=None),
    ],
)
def test_nothing_is_begun_beside_something_else_or_on_a_disk_that_is_neither_slow_nor_healthy(facts: Facts) -> None:
    assert Run().step(facts) is None


# --------------------------------------------------------------------------------------------------------------- lists


@pytest.mark.parametrize(
    ("there", "after"),
    [
        (LED, (2, 3, 1)),
        (placed((1, 2, 3), (1, 3)), (3, 2, 1)),
        (placed((2, 1, 3), (1, 3)), (3, 2, 1)),
        (placed((1, 2, 3), (2, 3), leads=False), (2, 3, 1)),  # Kafka would have it lead again within minutes
        (placed((2, 1, 3), (1, 2, 3), leads=False), None),
        (placed((1, 2, 3), (1,)), None),
        (placed((1,), (1,)), None),
        (replace(LED, adding=(3,)), None),
        (replace(LED, removing=(3,)), None),
        (replace(LED, directories=(D1, UNASSIGNED, D3)), (3, 2, 1)),  # nobody knows on which disk that copy is
        (replace(LED, directories=()), None),
    ],
)
def test_only_a_copy_that_counts_leads_instead(there: Placed, after: tuple[int, ...] | None) -> None:
    found = observed(there)
    assert demoted(found, there, {}) == after
    assert demotions(found, D1) == ({} if after is None else {KEY: (there.replicas, after)})
    assert demotions(found, D2) == {}


@pytest.mark.parametrize(
    ("its", "suspected", "after"),
    [
        (Neighbour(3, False, frozenset({D2})), None, (3, 2, 1)),  # fenced, or about to stop
        (Neighbour(3, True, frozenset()), None, (3, 2, 1)),  # the directory is offline
        (Neighbour(3, True, frozenset({D2})), encode(3, [str(D2)], "m"), (3, 2, 1)),
        (Neighbour(3, True, frozenset({D2})), encode(2, [str(D2)], "m"), (2, 3, 1)),  # of a start before this one
    ],
)
def test_a_copy_on_a_broker_that_is_in_trouble_does_not_lead_instead(
    its: Neighbour, suspected: str | None, after: tuple[int, ...]
) -> None:
    found = observed(LED)
    found.neighbours[2] = its
    if suspected is not None:
        found.suspects[2] = decode(suspected, 100, 0)
    assert demotions(found, D1) == {KEY: ((1, 2, 3), after)}


@pytest.mark.parametrize(
    ("there", "comes_back"),
    [
        (placed((2, 3, 1), (1, 2, 3), leads=False), True),
        (placed((2, 3, 1), (2, 3), leads=False), False),  # it could not lead yet
        (placed((1, 2, 3), (1, 2, 3), leads=False), True),  # and was not elected
        (LED, False),
        (placed((3, 2, 1), (1, 2, 3), leads=False), False),  # somebody has changed it
        (placed((2, 3, 1), (1, 2, 3), leads=False, adding=(1,)), False),
    ],
)
def test_a_list_is_put_back_only_as_it_was_left_and_where_its_first_is_in_sync(there: Placed, comes_back: bool) -> None:
    assert promotions(observed(there), LISTS) == (BEFORE if comes_back else {})
    assert promotions(Observed(1), LISTS) == {}


@dataclass
class Model:
    """A partition, led by whoever the controllers make lead it; another guard may take it for slow as well."""

    there: Placed = LED
    before: tuple[int, ...] | None = None
    run: Run = field(default_factory=Run)

    def round(self, done: Done, *, slow: bool) -> None:
        found = observed(self.there)
        left = {} if self.before is None else {KEY: (self.before, self.there.replicas)}
        facts = Facts(
            path=PATH,
            directory_id=ID,
            slow=slow,
            well=not slow,
            demote=demotions(found, D1),
            promote=promotions(found, left),
        )
        if self.run.step(facts, 1_000) is not None:
            self.take(done)
            self.run.over(done, () if done.happened else [KEY])

    def take(self, done: Done) -> None:
        match self.run.standing.under_way:
            case Demote(before=before, after=after):
                assert after[KEY][0] in self.there.isr and after[KEY][-1] == 1
                assert sorted(after[KEY]) == sorted(before[KEY])
                if done.outcome is Outcome.DONE:
                    self.before = self.before or before[KEY]
                    self.there = placed(after[KEY], self.there.isr, leads=False)
            case Promote(before=before):
                assert before[KEY] == self.before
                if done.outcome is Outcome.DONE:
                    self.there, self.before = placed(before[KEY], self.there.isr), None


@given(st.randoms(use_true_random=True))
@settings(max_examples=examples(100))
def test_what_was_moved_off_comes_back_in_its_order_when_the_controllers_let_it(chance: Random) -> None:
    model, silent = Model(), Done(outcome=Outcome.PENDING)
    for _ in range(chance.randrange(60)):
        model.round(chance.choice([TAKEN, silent, FAILED]), slow=chance.random() < 0.5)
    for _ in range(PROMOTES_MAX * AGAIN_MS // 1_000 + 1):
        model.round(TAKEN, slow=False)
    if model.before is None:
        assert model.there == LED
        assert model.run.standing == Standing(since_ms=model.run.standing.since_ms)
    else:  # the controllers took it three times, and did nothing
        assert model.run.standing.attempts == PROMOTES_MAX
    model.round(FAILED, slow=True)  # slow once more, and healthy again: that begins anew
    model.round(TAKEN, slow=False)
    assert model.there == LED

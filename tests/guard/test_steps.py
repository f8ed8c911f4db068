"""Steps of a guard that acts: the tables, and what holds whatever Kafka, the hand and the controllers do."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kjbod.ids import Uuid
from kjbod_agent.guard import broker_steps, directory_steps
from kjbod_agent.guard.broker_steps import State as BrokerState
from kjbod_agent.guard.budget import EVICT_WITHIN_MS
from kjbod_agent.guard.directory_steps import REPORTS_MAX, RESTORES_MAX, Facts, Standing, State, may_evict
from kjbod_agent.guard.effects import (
    Cut,
    Destroy,
    Effect,
    Evict,
    Fence,
    Kill,
    Mask,
    Report,
    Reset,
    Restore,
    Unmask,
    Unreset,
)
from kjbod_agent.guard.ladder import KafkaView, Step, Would
from kjbod_agent.guard.means import Done, Outcome
from tests.depth import examples

PATH, ID = "/mnt/d1", "d1"
LISTS = {(Uuid.of(7, 1), 0): (1, 2, 3)}
DONE, PENDING, FAILED, REFUSED = (Done(outcome=one, reason=str(one)) for one in Outcome)
FAILED_DISK = Facts(path=PATH, directory_id=ID, decided=Would(Step.CUT), epoch=5, well=False)
OFFLINE = replace(FAILED_DISK, view=KafkaView.OFFLINE, decided=Would(Step.NOTHING), evict=LISTS)


class Run:
    """A directory that is taken through its steps by hand."""

    def __init__(self, standing: Standing | None = None) -> None:
        self.standing = standing or Standing(seen_online=True, epoch=5)
        self.now_ms = 100_000

    def step(self, facts: Facts, after_ms: int = 0) -> Effect | None:
        self.now_ms += after_ms
        move = directory_steps.advance(self.standing, facts, self.now_ms)
        self.standing = move.standing
        return move.effect

    def over(self, done: Done) -> State:
        self.standing = directory_steps.came_of(self.standing, done, self.now_ms)
        return self.standing.state


@pytest.mark.parametrize("done", [DONE, PENDING])
def test_a_cut_that_kafka_reports_by_itself_is_followed_by_the_eviction_alone(done: Done) -> None:
    run = Run()
    assert run.step(FAILED_DISK) == Cut(PATH)
    assert run.step(FAILED_DISK) is None  # one at a time
    assert run.over(done) is State.CUT
    assert run.step(FAILED_DISK, 100) is None
    assert run.step(OFFLINE, 50) == Evict(PATH, ID, LISTS)
    assert run.over(DONE) is State.EVICTED
    assert run.step(replace(OFFLINE, evict={}), 10_000) is None
    # The broker registers again, the disk with it, and is well.
    back = replace(FAILED_DISK, epoch=9, well=True, decided=Would(Step.NOTHING), restore=LISTS)
    assert run.step(back, 60_000) == Restore(PATH, ID, LISTS)
    run.over(DONE)
    assert run.step(replace(back, restore={})) is None and run.standing.state is State.WELL


def test_a_cut_that_kafka_does_not_report_is_reported_three_times_half_a_second_apart() -> None:
    run = Run()
    run.step(FAILED_DISK)
    run.over(DONE)
    assert run.step(FAILED_DISK, 499) is None
    for _ in range(REPORTS_MAX):
        assert run.step(FAILED_DISK, 1) == Report(PATH, ID, 5)
        assert run.over(DONE) is State.REPORTING
        assert run.step(FAILED_DISK, 499) is None
    assert run.step(FAILED_DISK, 1) is None
    assert run.standing.state is State.LEFT and "were told 3 times" in run.standing.reason
    assert directory_steps.is_unrecorded(run.standing)


def test_a_mask_is_reported_a_checkpoint_later() -> None:
    run = Run()
    masked = replace(FAILED_DISK, decided=Would(Step.MASK))
    assert run.step(masked) == Mask(PATH)
    assert run.over(DONE) is State.MASKED
    assert run.step(masked, 5_499) is None
    assert run.step(masked, 1) == Report(PATH, ID, 5)


@pytest.mark.parametrize("done", [FAILED, REFUSED])
def test_where_a_cut_does_not_work_a_mask_is_next_and_then_nothing_is_reported(done: Done) -> None:
    run = Run()
    assert run.step(FAILED_DISK) == Cut(PATH)
    run.over(done)
    assert run.step(FAILED_DISK) == Mask(PATH)
    run.over(done)
    assert run.step(FAILED_DISK) is None and run.standing.state is State.LEFT
    assert run.step(FAILED_DISK, 60_000) is None
    assert run.standing.reason == done.reason


def test_a_mount_that_is_gone_is_reported_and_never_evicted() -> None:
    run = Run()
    gone = replace(FAILED_DISK, decided=Would(Step.REPORT))
    assert run.step(gone) == Report(PATH, ID, 5)
    run.over(DONE)
    assert run.step(OFFLINE, 10) is None and run.standing.state is State.OFFLINE


def test_the_last_directory_of_a_broker_is_not_reported() -> None:
    run = Run()
    assert run.step(replace(FAILED_DISK, decided=Would(Step.REPORT), others_online=False)) is None
    assert run.standing.reason == "the last directory of a broker is not reported"


def test_a_directory_that_kafka_has_lost_by_itself_is_evicted_but_not_one_that_was_offline_before() -> None:
    run = Run()
    run.step(replace(FAILED_DISK, decided=Would(Step.NOTHING)))
    assert run.step(OFFLINE) == Evict(PATH, ID, LISTS)
    late = Run(Standing())
    assert late.step(OFFLINE) is None and late.standing.state is State.OFFLINE
    # A broker that starts without it has nobody wait for it.
    again = Run()
    assert again.step(replace(OFFLINE, epoch=9)) is None


def test_an_eviction_is_tried_again_only_as_long_as_leaders_wait() -> None:
    run = Run()
    asked = 0
    for _ in range(100):
        if run.step(OFFLINE, 500):
            asked += 1
            run.over(FAILED)
    assert 10 <= asked <= EVICT_WITHIN_MS // directory_steps.AGAIN_MS
    denied = Run()
    denied.step(OFFLINE)
    denied.over(REFUSED)
    assert all(denied.step(OFFLINE, 1000) is None for _ in range(20))


def test_an_eviction_waits_for_its_turn_and_takes_the_lists_of_then() -> None:
    run = Run()
    late = replace(OFFLINE, turn_ms=300)
    assert run.step(late) is None and run.step(late, 299) is None
    left = dict.fromkeys(LISTS, (1, 3))
    assert run.step(replace(late, evict=left), 1) == Evict(PATH, ID, left)


def test_what_cannot_be_put_back_is_left_after_three_attempts_and_said() -> None:
    run = Run()
    back = replace(FAILED_DISK, epoch=9, well=True, decided=Would(Step.NOTHING), restore=LISTS)
    asked = 0
    for _ in range(100):
        if run.step(back, 1000):
            asked += 1
            run.over(FAILED)
    assert asked == RESTORES_MAX
    assert run.standing.state is State.WELL and run.standing.reason == "not restored: failed"


def test_a_release_takes_a_mask_away_and_leaves_the_directory_until_it_is_well() -> None:
    masked = Standing(state=State.MASKED, means=Step.MASK, epoch=5, seen_online=True)
    move = directory_steps.release(masked, PATH, 1)
    assert move is not None and move.effect == Unmask(PATH)
    assert directory_steps.release(move.standing, PATH, 1) is None
    freed = Run(directory_steps.came_of(move.standing, DONE, 2))
    assert (freed.standing.state, freed.standing.means) == (State.LEFT, None)
    assert freed.step(replace(FAILED_DISK, decided=Would(Step.MASK)), 60_000) is None
    assert freed.step(replace(FAILED_DISK, decided=Would(Step.NOTHING), well=True)) is None
    assert freed.standing.state is State.WELL


def test_a_released_directory_is_left_alone_when_kafka_notices_and_when_the_broker_starts_again() -> None:
    cut = Standing(state=State.CUT, means=Step.CUT, epoch=5, seen_online=True)
    move = directory_steps.release(cut, PATH, 1)
    assert move is not None
    run = Run(move.standing)
    assert run.step(OFFLINE) is None
    assert run.step(replace(FAILED_DISK, epoch=6)) is None
    assert directory_steps.is_released(run.standing)
    assert isinstance(run.step(replace(FAILED_DISK, epoch=6, well=True, restore=LISTS)), Restore)


@pytest.mark.parametrize(("step", "then"), [(Step.MASK, Mask(PATH)), (Step.WAIT, None)])
def test_what_the_table_says_by_now_counts_more_than_the_cut_of_a_guard_that_was_killed(
    step: Step, then: Mask | None
) -> None:
    run = Run(Standing(state=State.CUTTING, epoch=5, seen_online=True))
    assert run.step(replace(FAILED_DISK, decided=Would(step, "the only replica in sync lies there"))) == then


def test_a_guard_that_was_killed_while_it_cut_cuts_again() -> None:
    run = Run(Standing(state=State.CUTTING, epoch=5, seen_online=True))
    assert run.step(replace(FAILED_DISK, decided=Would(Step.NOTHING))) == Cut(PATH)


# ---------------------------------------------------------------------------------------------------------- the broker

SERVING = broker_steps.Facts(pid=7, epoch=5, fenced=False)
STUCK = replace(SERVING, wanted="its fetchers are stuck", cuts=(PATH,))


class BrokerRun:
    """A broker that is taken through its steps by hand."""

    def __init__(self) -> None:
        self.standing = broker_steps.Standing()
        self.now_ms = 100_000

    @property
    def state(self) -> BrokerState:
        return self.standing.state

    def step(self, facts: broker_steps.Facts, after_ms: int = 0) -> Effect | None:
        self.now_ms += after_ms
        for _ in range(10):
            move = broker_steps.advance(self.standing, facts, self.now_ms)
            self.standing = move.standing
            if move.again_ms != 0:
                return move.effect
        raise AssertionError("it goes round")

    def over(self, done: Done) -> None:
        self.standing = broker_steps.came_of(self.standing, done, self.now_ms)

    def does(self, facts: broker_steps.Facts, after_ms: int = 0) -> Effect | None:
        effect = self.step(facts, after_ms)
        if effect is not None:
            self.over(DONE)
        return effect


def test_a_broker_is_absent_starts_serves_stops_and_ends() -> None:
    run = BrokerRun()
    states = []
    for facts in (
        broker_steps.Facts(),
        broker_steps.Facts(pid=7),
        SERVING,
        replace(SERVING, fenced=None),
        replace(SERVING, stopping=True),
        broker_steps.Facts(ended=7, epoch=5, fenced=True),
        broker_steps.Facts(pid=8, ended=7, epoch=5, fenced=True),
    ):
        assert run.step(facts) is None
        states.append(str(run.standing.state))
    assert states == ["absent", "starting", "serving", "serving", "stopping", "ended", "starting"]


def test_a_stuck_broker_is_cut_killed_fenced_and_its_connections_are_ended_where_it_is_still_there() -> None:
    run = BrokerRun()
    run.step(SERVING)
    assert [run.does(STUCK) for _ in range(3)] == [Cut(PATH), Kill(5), Fence(5)]
    fenced = replace(STUCK, fenced=True)
    assert run.does(fenced) is None
    assert [run.does(fenced, 200), run.does(fenced), run.does(fenced)] == [Reset(), Destroy(), None]
    assert run.state.value == "fenced"
    ended = broker_steps.Facts(ended=7, epoch=5, fenced=True)
    assert run.does(ended, 60_000) == Unreset()
    assert run.does(ended) is None and run.state.value == "ended"


def test_a_process_that_dies_at_once_needs_no_reset() -> None:
    run = BrokerRun()
    run.step(SERVING)
    ended = broker_steps.Facts(ended=7, epoch=5, fenced=True, wanted=STUCK.wanted)
    assert [run.does(STUCK) for _ in range(3)] == [Cut(PATH), Kill(5), Fence(5)]
    assert run.does(ended) is None and run.state.value == "ended"


def test_a_heartbeat_of_the_broker_that_came_late_is_answered_by_one_more_fence() -> None:
    run = BrokerRun()
    run.step(SERVING)
    for _ in range(3):
        run.does(STUCK)
    ended = replace(SERVING, pid=None, ended=7)
    assert [run.does(ended, 300), run.does(ended, 300), run.does(ended, 60_000)] == [None, Fence(5), None]


@pytest.mark.parametrize("stage", [0, 1])
def test_what_speaks_against_a_fence_counts_until_the_kill(stage: int) -> None:
    run = BrokerRun()
    run.step(SERVING)
    for _ in range(stage):
        run.does(STUCK)
    assert run.does(replace(STUCK, refusal="broker 2 was fenced")) is None
    assert run.state.value == "crippled" and "broker 2 was fenced" in run.standing.reason
    assert run.does(SERVING) is None and run.state.value == "serving"


@pytest.mark.parametrize(("pid", "epoch"), [(8, 6), (8, 5), (7, 6)])
@pytest.mark.parametrize("left", [(Kill(5), Fence(5), Reset(), Destroy()), (Fence(5), Reset(), Destroy()), ()])
def test_a_fence_that_was_not_ended_is_not_for_the_process_that_came_after(
    left: tuple[Effect, ...], pid: int, epoch: int
) -> None:
    """A host that is started anew in the middle of a fence, and broker and guard with it."""
    run = BrokerRun()
    state = BrokerState.FENCING if left else BrokerState.FENCED
    run.standing = broker_steps.Standing(state=state, pid=7, epoch=5, left=left, fences=1, killed_ms=0)
    anew = replace(SERVING, pid=pid, epoch=epoch)
    assert [run.does(anew, 1_000) for _ in range(5)] == [None] * 5
    assert run.state.value in ("serving", "ended")
    assert run.does(replace(STUCK, pid=pid, epoch=epoch)) == Cut(PATH)


def resumed() -> BrokerRun:
    """A guard that follows one which was killed when it was about to kill the broker."""
    run = BrokerRun()
    left = (Kill(5), Fence(5), Reset(), Destroy())
    run.standing = broker_steps.Standing(state=BrokerState.FENCING, pid=7, epoch=5, left=left, killed_ms=run.now_ms)
    return run


def test_a_kill_that_a_guard_before_us_was_about_to_do_waits_until_somebody_has_looked() -> None:
    run = resumed()
    unknown = replace(STUCK, pid=None, fenced=None, looked=False)
    assert [run.step(unknown, 1_000) for _ in range(3)] == [None] * 3
    assert run.state is BrokerState.FENCING
    assert [run.does(STUCK), run.does(STUCK)] == [Kill(5), Fence(5)]


@pytest.mark.parametrize("done", [FAILED, REFUSED])
def test_a_broker_that_a_guard_before_us_may_have_killed_is_not_taken_for_killed_while_it_is_there(done: Done) -> None:
    run = resumed()
    assert run.step(STUCK) == Kill(5)
    run.over(done)
    assert run.state is BrokerState.CRIPPLED and run.standing.killed_ms is None
    assert run.step(STUCK, 1_000) is None, "no heartbeat in the name of a broker that lives"


@pytest.mark.parametrize("facts", [replace(STUCK, refusal="broker 2 was fenced"), SERVING])
def test_a_kill_of_the_guard_before_us_is_asked_about_again(facts: broker_steps.Facts) -> None:
    run = resumed()
    assert run.step(facts) is None and run.state is BrokerState.CRIPPLED


def test_a_broker_that_a_guard_before_us_has_killed_is_fenced() -> None:
    for facts in (replace(SERVING, pid=None), replace(SERVING, pid=None, ended=7, looked=False)):
        assert resumed().does(facts) == Fence(5)


def test_silence_is_no_reason_to_kill_a_broker_that_stops_or_is_fenced() -> None:
    assert broker_steps.silence("no answer", fenced=False, stopping=False) == "no answer"
    assert broker_steps.silence("no answer", fenced=False, stopping=True) is None
    assert broker_steps.silence("no answer", fenced=True, stopping=False) is None


def test_of_two_brokers_the_one_with_the_lower_id_goes_first() -> None:
    run = BrokerRun()
    run.step(SERVING)
    assert run.step(replace(STUCK, place=2)) is None
    assert run.step(replace(STUCK, place=2), 199) is None
    assert run.step(replace(STUCK, place=2), 1) == Cut(PATH)


CLAIMS = replace(STUCK, claims=True, fenced_at=40)
SHOWN = replace(CLAIMS, fenced=True, fenced_at=60)


def claimed() -> BrokerRun:
    run = BrokerRun()
    run.step(replace(SERVING, claims=True, fenced_at=40))
    assert run.does(CLAIMS) == Fence(5)
    return run


def test_a_node_of_the_quorum_is_fenced_first_and_killed_when_the_metadata_show_it() -> None:
    run = claimed()
    assert run.step(CLAIMS) is None and run.step(CLAIMS, 900) is None
    assert broker_steps.claimed_at(run.standing, 40) is None and broker_steps.claimed_at(run.standing, 60) == 60
    assert run.does(SHOWN, 50) == Cut(PATH)
    unfenced = replace(SHOWN, fenced=False)  # by its own heartbeat: its claim was first all the same
    assert run.does(unfenced) == Kill(5)
    assert run.does(replace(unfenced, ended=7, pid=None)) == Fence(5)
    assert run.does(replace(SHOWN, ended=7, pid=None)) is None and run.state is BrokerState.ENDED


def test_a_node_of_the_quorum_that_stays_fenced_is_not_fenced_again_when_it_is_killed() -> None:
    run = claimed()
    assert [run.does(SHOWN) for _ in range(2)] == [Cut(PATH), Kill(5)]
    assert run.does(replace(SHOWN, ended=7, pid=None)) is None and run.state is BrokerState.ENDED


def test_a_claim_that_does_not_show_is_given_up_and_made_again_later_three_times() -> None:
    run = claimed()
    for wait_ms in (10_000, 10_000, 600_000):
        assert run.step(CLAIMS, 1_000) is None
        assert run.state is BrokerState.CRIPPLED and "no controller has recorded its fence" in run.standing.reason
        assert run.step(CLAIMS, wait_ms - 1) is None
        assert run.does(CLAIMS, 1) == Fence(5)


def test_a_claim_is_over_before_others_forget_it() -> None:
    run = claimed()
    assert run.does(SHOWN, 4_000) == Cut(PATH)
    assert run.step(SHOWN, 1_001) is None
    assert run.state is BrokerState.CRIPPLED and "too old" in run.standing.reason


def test_a_node_of_the_quorum_that_a_guard_before_us_was_about_to_kill_is_claimed_anew() -> None:
    run = resumed()
    assert run.step(replace(SHOWN, fenced=False)) is None
    assert run.state is BrokerState.CRIPPLED and "claimed first" in run.standing.reason
    assert run.step(CLAIMS) == Fence(5)


def test_a_fence_that_may_be_our_own_claim_is_known_as_such() -> None:
    run = BrokerRun()
    run.step(replace(SERVING, claims=True))
    assert not broker_steps.is_claimed(run.standing)
    run.step(CLAIMS)
    assert broker_steps.is_claimed(run.standing), "it may be recorded before it is answered"
    run.over(DONE)
    assert broker_steps.is_claimed(run.standing)


@pytest.mark.parametrize("spoke", [replace(SHOWN, refusal="broker 2 was first"), replace(SHOWN, wanted=None)])
def test_what_speaks_against_it_after_the_claim_keeps_the_node(spoke: broker_steps.Facts) -> None:
    run = claimed()
    assert run.step(spoke) is None and run.state is BrokerState.CRIPPLED


def test_a_claim_that_reaches_nobody_kills_nobody() -> None:
    run = BrokerRun()
    run.step(replace(SERVING, claims=True))
    assert run.step(CLAIMS) == Fence(5)
    run.over(FAILED)
    assert run.state is BrokerState.CRIPPLED and run.standing.reason == "not fenced: failed"
    assert run.step(SHOWN, 9_999) is None


def test_a_node_of_the_quorum_that_is_fenced_already_is_let_be() -> None:
    run = BrokerRun()
    run.step(replace(SERVING, claims=True))
    assert run.step(replace(CLAIMS, fenced=True)) is None
    assert "it is fenced already" in run.standing.reason
    assert run.step(replace(CLAIMS, stopping=True)) is None
    assert "it is being shut down" in run.standing.reason


def test_a_kill_that_does_not_work_is_no_fence_and_is_tried_again_later() -> None:
    run = BrokerRun()
    run.step(SERVING)
    run.does(STUCK)
    assert run.step(STUCK) == Kill(5)
    run.over(FAILED)
    assert run.step(STUCK, 9_999) is None and run.standing.reason == "not killed: failed"
    assert run.step(STUCK, 1) == Cut(PATH)


@pytest.mark.parametrize(
    ("facts", "fences"),
    [
        (replace(SERVING, pid=None, ended=7), 1),
        (replace(SERVING, pid=None, ended=7, stopping=True), 0),
        (replace(SERVING, pid=None, ended=7, fenced=True), 0),
        (replace(SERVING, pid=None, ended=7, epoch=6), 0),
        (replace(SERVING, pid=None, ended=3), 0),
        (replace(SERVING, pid=None), 0),
    ],
)
def test_a_process_that_ends_without_a_shutdown_is_fenced_by_one_heartbeat(
    facts: broker_steps.Facts, fences: int
) -> None:
    run = BrokerRun()
    run.step(SERVING)
    assert [run.does(facts) for _ in range(4)] == ([Fence(5)] if fences else [None]) + [None] * 3


# ------------------------------------------------------------------------------- whatever Kafka and the hand make of it


def draw_done(data: st.DataObject) -> Done:
    return data.draw(st.sampled_from([DONE, DONE, PENDING, FAILED, REFUSED]))


@settings(max_examples=examples(80))
@given(st.data())
def test_every_path_of_a_directory_ends_and_no_means_begins_beside_another(data: st.DataObject) -> None:
    """A model of Kafka: it marks a directory that was dealt with, or does not; it may start again; answers may lack."""
    run = Run(Standing() if data.draw(st.booleans()) else None)
    kafka_reports = data.draw(st.sampled_from(["itself", "when told", "never"]))
    step = data.draw(st.sampled_from([Step.CUT, Step.MASK, Step.REPORT, Step.WAIT]))
    offline, restarted, evicted = False, False, False
    effects: list[Effect] = []
    for _ in range(120):
        view = KafkaView.OFFLINE if offline else KafkaView.ONLINE
        if data.draw(st.integers(0, 9)) == 0:
            view = KafkaView.UNKNOWN
        if not restarted and data.draw(st.integers(0, 99)) == 0:
            restarted, offline = True, False
        facts = Facts(
            path=PATH,
            directory_id=ID,
            decided=Would(step if view is KafkaView.ONLINE and not restarted else Step.NOTHING),
            view=view,
            epoch=6 if restarted else 5,
            well=restarted,
            evict={} if evicted or view is not KafkaView.OFFLINE else LISTS,
            restore=LISTS if evicted else {},
        )
        before = run.standing
        effect = run.step(facts, data.draw(st.sampled_from([0, 100, 600, 6_000])))
        if before.under_way is not None:
            assert effect is None and run.standing == before
        if isinstance(effect, Evict):
            assert view is KafkaView.OFFLINE and may_evict(before if before.offline_ms else run.standing, run.now_ms)
        if isinstance(effect, Report):
            assert view is not KafkaView.OFFLINE
        if effect is not None:
            effects.append(effect)
        if run.standing.under_way is not None and data.draw(st.booleans()):
            under_way, done = run.standing.under_way, draw_done(data)
            run.over(done)
            happened = done.outcome in (Outcome.DONE, Outcome.PENDING)
            offline |= isinstance(under_way, Cut | Mask) and happened and kafka_reports == "itself"
            offline |= isinstance(under_way, Report) and happened and kafka_reports == "when told"
            if isinstance(under_way, Evict | Restore) and done.outcome is Outcome.DONE:
                evicted = isinstance(under_way, Evict)
    kinds = [type(effect) for effect in effects]
    starts = 2 if restarted else 1
    assert kinds.count(Cut) <= starts and kinds.count(Mask) <= starts
    assert kinds.count(Report) <= starts * (REPORTS_MAX + directory_steps.ATTEMPTS_MAX)
    assert kinds.count(Restore) <= RESTORES_MAX
    assert len(effects) < 80


@settings(max_examples=examples(80))
@given(st.data())
def test_a_broker_is_killed_only_when_it_may_be_and_fenced_twice_at_most(data: st.DataObject) -> None:
    """Heartbeats are lost or late, the process dies or hangs in the kernel, budgets and reasons come and go."""
    run = BrokerRun()
    run.step(SERVING)
    dies = data.draw(st.booleans())
    pid: int | None = 7
    fenced, ended = False, None
    given: list[Effect] = []
    for _ in range(80):
        wanted = data.draw(st.sampled_from([None, "stuck"]))
        refusal = data.draw(st.sampled_from([None, None, "no"]))
        facts = broker_steps.Facts(
            pid=pid, ended=ended, epoch=5, fenced=fenced, wanted=wanted, refusal=refusal, cuts=(PATH,)
        )
        effect = run.step(facts, data.draw(st.sampled_from([0, 100, 600, 20_000])))
        if isinstance(effect, Cut | Kill):
            assert refusal is None and (wanted is not None or run.standing.begun)
        if effect is not None:
            done = draw_done(data)
            run.over(done)
            if done.outcome in (Outcome.DONE, Outcome.PENDING):
                given.append(effect)
                if isinstance(effect, Kill) and dies:
                    pid, ended = None, 7
                if isinstance(effect, Fence):
                    fenced = data.draw(st.booleans())
    kinds = [type(effect) for effect in given]
    assert kinds.count(Kill) <= 1 and kinds.count(Fence) <= broker_steps.FENCES_MAX
    assert Kill in kinds or Fence not in kinds
    assert Kill in kinds or Reset not in kinds
    if dies and Reset not in kinds:
        assert Destroy not in kinds or Fence in kinds or not fenced

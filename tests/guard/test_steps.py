"""Steps of a guard that acts: the tables, and what holds whatever Kafka, the helper and the controllers do."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kjbod.ids import Uuid
from kjbod_guard import broker_steps, directory_steps, journal
from kjbod_guard.actions import Done, Outcome
from kjbod_guard.broker_steps import State as BrokerState
from kjbod_guard.budget import EVICT_WITHIN_MS
from kjbod_guard.directory_steps import ANSWERED, ATTEMPTS_MAX, OVER_MS, REPORTS_MAX, Facts, Standing, State
from kjbod_guard.effects import (
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
from kjbod_guard.ladder import NOTHING, KafkaView, Step, Would
from tests.depth import examples

PATH, ID = "/mnt/d1", str(Uuid.of(5, 1))
BESIDE = (ID, str(Uuid.of(5, 2)))
LISTS = {(Uuid.of(7, 1), 0): (1, 2, 3)}
DONE, PENDING, FAILED, REFUSED = (Done(outcome=one, reason=str(one)) for one in Outcome)
CUT, MASK, REPORT = (Would(one) for one in (Step.CUT, Step.MASK, Step.REPORT))
WAITS = Would(Step.WAIT, "the only copy in sync lies there")

FAILS = Facts(path=PATH, directory_id=ID, beside=BESIDE, decided=CUT, epoch=5, well=False)
RECORDED = replace(FAILS, view=KafkaView.OFFLINE, decided=NOTHING, open=True)
"""The metadata show it offline, and the guard has reported it and done nothing else."""
OFFLINE = replace(RECORDED, open=False, decided=Would(Step.EVICT), evict=LISTS)
"""The metadata show it offline, and partitions wait for the broker."""
HEALTHY = replace(FAILS, decided=NOTHING, well=True)
ANSWERS = replace(FAILS, decided=NOTHING, answers=True)
BACK = replace(HEALTHY, epoch=9)
"""The broker has registered again, the directory with it."""


class Run:
    """A directory that is taken through its steps by hand."""

    def __init__(self, standing: Standing | None = None) -> None:
        self.standing = standing or Standing(seen_online=True, epoch=5)
        self.now_ms = 100_000
        self.again_ms: int | None = None

    def step(self, facts: Facts, after_ms: int = 0) -> Effect | None:
        self.now_ms += after_ms
        move = directory_steps.advance(self.standing, facts, self.now_ms)
        self.standing, self.again_ms = move.standing, move.again_ms
        return move.effect

    def over(self, done: Done) -> State:
        self.standing = directory_steps.came_of(self.standing, done, self.now_ms)
        return self.standing.state

    def does(self, facts: Facts, done: Done = DONE, after_ms: int = 0) -> Effect | None:
        effect = self.step(facts, after_ms)
        if effect is not None:
            self.over(done)
        return effect


def reported(done: Done = DONE) -> Run:
    """A directory that was reported, so that it can be cut."""
    run = Run()
    assert run.does(FAILS, done) == Report(PATH, BESIDE, 5)
    return run


def masked() -> Run:
    run = Run()
    assert run.does(replace(FAILS, decided=MASK)) == Mask(PATH)
    return run


# -------------------------------------------------------------------------------------------- report, cut and eviction


@pytest.mark.parametrize("done", [DONE, PENDING])
def test_a_directory_is_reported_then_cut_then_evicted_and_restored_when_the_broker_has_it_again(done: Done) -> None:
    run = Run()
    assert run.step(FAILS) == Report(PATH, BESIDE, 5), "all that a shutdown of its file system takes along"
    assert run.step(RECORDED) is None  # one at a time
    assert run.over(done) is State.REPORTING
    assert run.step(FAILS, 100) is None
    assert run.step(RECORDED) == Cut(PATH)
    assert run.over(done) is State.CUT
    assert (run.standing.means, run.standing.acted_ms) == (Step.CUT, 100_000), "the report was the first act"
    assert run.step(OFFLINE, 50) == Evict(PATH, ID, LISTS)
    assert run.standing.reason == ""
    assert run.over(DONE) is State.EVICTED
    assert run.step(replace(OFFLINE, evict={}), 10_000) is None
    assert run.step(replace(BACK, restore=LISTS), 60_000) == Restore(PATH, ID, LISTS)
    run.over(DONE)
    assert run.step(BACK) is None and run.standing.state is State.WELL


@pytest.mark.parametrize("decided", [CUT, MASK, REPORT])
@pytest.mark.parametrize(
    "lacks",
    [{"may": False}, {"present": False}, {"epoch": None}, {"decided": WAITS}, {"view": KafkaView.OFFLINE}],
    ids=str,
)
def test_nothing_begins_before_it_may(decided: Would, lacks: dict[str, object]) -> None:
    run = Run()
    assert run.step(replace(FAILS, **{"decided": decided, **lacks})) is None
    assert run.standing.acted_ms is None and run.standing.reports == 0


def test_a_report_that_the_metadata_do_not_show_is_repeated_half_a_second_apart_and_then_left() -> None:
    run = Run()
    for _ in range(REPORTS_MAX):
        assert run.does(FAILS, after_ms=1) == Report(PATH, BESIDE, 5)
        assert run.step(FAILS, 499) is None and run.again_ms == 1
    assert run.step(FAILS, 1) is None
    assert run.standing.state is State.LEFT and "were told 3 times" in run.standing.reason
    assert run.step(RECORDED, 60_000) is None
    assert run.standing.state.value == "offline", "Kafka found out by itself"


def test_a_report_that_reaches_no_controller_is_repeated_each_second_and_one_that_is_refused_is_not() -> None:
    run = Run()
    assert run.does(FAILS, FAILED) is not None
    for _ in range(ATTEMPTS_MAX - 1):
        assert run.step(FAILS, 999) is None and run.again_ms == 1
        assert run.does(FAILS, FAILED, after_ms=1) is not None
    assert run.standing.acted_ms is None, "nothing was done"
    assert run.step(FAILS, 1_000) is None and run.standing.state is State.LEFT
    assert run.standing.reason == "failed"
    refused = reported(REFUSED)
    assert refused.step(FAILS, 60_000) is None and refused.standing.state is State.LEFT
    assert refused.standing.reason == "refused"


@pytest.mark.parametrize("done", [DONE, FAILED])
def test_a_report_is_not_repeated_while_no_controller_answers(done: Done) -> None:
    """It would be recorded later, when the disk may answer again."""
    run = reported(done)
    assert run.step(replace(FAILS, heard=False), 10_000) is None
    assert run.step(replace(FAILS, view=KafkaView.UNKNOWN, heard=False), 10_000) is None
    assert run.step(FAILS, 1) == Report(PATH, BESIDE, 5)


def test_a_directory_is_cut_only_when_the_metadata_allow_it() -> None:
    run = reported()
    waits = replace(RECORDED, not_cut="the metadata still have the replica here in the ISR of t-0")
    assert run.step(waits) is None and run.step(waits, 60_000) is None
    assert run.standing.reason == f"reported, and not cut yet: {waits.not_cut}"
    assert run.step(replace(RECORDED, present=False), 1) is None, "the broker is being fenced, or is not there"
    assert run.step(RECORDED, 1) == Cut(PATH)


def test_a_directory_that_the_broker_has_started_without_is_not_cut() -> None:
    run = reported()
    assert run.step(replace(RECORDED, epoch=9)) is None and run.standing.state is State.OFFLINE


@pytest.mark.parametrize("answer", [{"answers": True}, {"well": True}], ids=str)
def test_a_disk_that_answers_after_the_report_is_not_cut_and_its_partitions_stay(answer: dict[str, bool]) -> None:
    recorded = reported()
    assert recorded.step(replace(OFFLINE, open=True, **answer)) is None
    assert (recorded.standing.state, recorded.standing.reason) == (State.OFFLINE, directory_steps.ANSWERED)
    early = reported()
    assert early.step(replace(FAILS, decided=NOTHING, **answer), 100) is None
    assert early.standing.state is State.WELL
    # The controllers record the report all the same.
    assert early.step(replace(OFFLINE, open=True, **answer), 100) is None
    assert early.standing.state.value == "offline"


def test_a_cut_that_does_not_work_leaves_the_directory_reported() -> None:
    run = reported()
    assert run.does(RECORDED, FAILED) == Cut(PATH)
    assert run.step(replace(OFFLINE, open=True)) is None and run.standing.state is State.OFFLINE
    assert run.standing.reason == "failed"


def test_a_mount_that_is_gone_is_reported_alone_and_never_cut_or_evicted() -> None:
    run = Run()
    assert run.does(replace(FAILS, decided=REPORT)) == Report(PATH, (ID,), 5)
    assert run.step(replace(OFFLINE, open=True), 10) is None and run.standing.state is State.OFFLINE


def test_a_directory_whose_id_nobody_knows_is_not_reported() -> None:
    run = Run()
    assert run.step(replace(FAILS, directory_id=None)) is None
    assert (run.standing.state, run.standing.reason) == (State.LEFT, "its id is not known, so it cannot be reported")


@pytest.mark.parametrize(("done", "attempts"), [(REFUSED, 1), (DONE, REPORTS_MAX), (FAILED, ATTEMPTS_MAX)])
def test_a_directory_that_was_left_begins_anew_when_its_disk_is_healthy(done: Done, attempts: int) -> None:
    run = Run()
    for _ in range(2):
        for _ in range(attempts):
            assert run.does(FAILS, done, after_ms=1_000) is not None
        assert run.step(FAILS, 1_000) is None and run.standing.state is State.LEFT
        assert run.step(HEALTHY) is None
        assert (run.standing.state, run.standing.acted_ms, run.standing.reason) == (State.WELL, None, "")


def test_a_cut_disk_that_answers_while_the_metadata_are_not_followed_stays_cut() -> None:
    run = reported()
    assert run.does(RECORDED) == Cut(PATH)
    assert run.step(replace(ANSWERS, view=KafkaView.UNKNOWN, heard=False), 60_000) is None
    assert run.standing.state is State.CUT


def test_a_directory_that_kafka_has_lost_by_itself_is_evicted_but_not_one_that_was_offline_before() -> None:
    run = Run()
    run.step(replace(FAILS, decided=NOTHING))
    assert run.step(OFFLINE) == Evict(PATH, ID, LISTS)
    late = Run(Standing())
    assert late.step(OFFLINE) is None and late.standing.state is State.OFFLINE
    again = Run()
    assert again.step(replace(OFFLINE, evict={})) is None
    assert again.step(replace(OFFLINE, epoch=9)) is None, "the broker started without it, so nobody waits for it"
    seen = Run(Standing())
    assert seen.step(HEALTHY) is None
    assert seen.step(OFFLINE) == Evict(PATH, ID, LISTS)


@pytest.mark.parametrize(
    "lacks", [{"may": False}, {"present": False}, {"open": True}, {"directory_id": None}, {"evict": {}}], ids=str
)
def test_no_partition_is_evicted_without_a_record_or_while_the_broker_has_its_files_open(
    lacks: dict[str, object],
) -> None:
    run = Run()
    assert run.step(replace(OFFLINE, **lacks)) is None
    assert run.step(OFFLINE) is not None


def test_partitions_are_evicted_as_they_come_due_and_only_as_long_as_leaders_wait() -> None:
    run = Run()
    assert run.does(OFFLINE, FAILED) is not None
    assert run.step(replace(OFFLINE, evict={}), 1) is None, "the controllers refused all, so none is due"
    assert run.does(OFFLINE) is not None
    assert run.step(OFFLINE, 999) is None and run.again_ms == 1, "the metadata may not show the last eviction yet"
    rest = {(Uuid.of(7, 1), 1): (1, 3)}
    assert run.does(replace(OFFLINE, evict=rest), after_ms=1) == Evict(PATH, ID, rest)
    assert run.step(OFFLINE, EVICT_WITHIN_MS - 1_002) is not None
    run.over(FAILED)
    assert run.step(OFFLINE, 1) is None


def test_partitions_are_restored_as_they_come_due_while_disk_and_broker_are_there() -> None:
    due = replace(BACK, restore=LISTS)
    for lacks in (replace(due, well=False), replace(due, present=False), replace(due, restore={})):
        run = Run(Standing(state=State.EVICTED, epoch=5, seen_online=True))
        assert run.step(lacks) is None and run.standing.state is State.WELL
        assert run.does(due, REFUSED) == Restore(PATH, ID, LISTS)
        assert run.step(BACK, 60_000) is None, "none is due"
        assert run.does(due, after_ms=1) == Restore(PATH, ID, LISTS)
        assert run.step(due, 999) is None and run.again_ms == 1, "the metadata may not show the last one yet"
        assert run.step(due, 1) is not None


@pytest.mark.parametrize("now", [replace(FAILS, decided=WAITS), replace(FAILS, may=False), replace(FAILS, heard=False)])
def test_a_report_that_reached_no_controller_is_decided_anew(now: Facts) -> None:
    run = reported(FAILED)
    assert run.step(now, 1_000) is None and run.standing.state is State.REPORTING
    assert run.step(FAILS, 1) == Report(PATH, BESIDE, 5)


def test_an_act_that_is_over_does_not_count_for_the_next_failure() -> None:
    run = reported()
    assert run.step(HEALTHY, 100) is None
    assert run.does(FAILS, after_ms=3_600_000) == Report(PATH, BESIDE, 5)
    assert (run.standing.acted_ms, run.standing.reports) == (run.now_ms, 1)


def test_a_report_that_is_recorded_when_its_disk_is_healthy_again_asks_for_a_restart_and_evicts_nothing() -> None:
    """The broker has its files open: it would delete a replica that it is evicted from."""
    run = reported()
    assert run.step(HEALTHY, 100) is None
    assert run.step(replace(OFFLINE, well=True, open=True), 5_000) is None
    assert (run.standing.state, run.standing.reason, run.standing.plan) == (State.OFFLINE, ANSWERED, Step.CUT)


@pytest.mark.parametrize("answer", [{"answers": True}, {"well": True}], ids=str)
def test_a_disk_that_answers_long_after_a_report_of_the_guard_before_asks_for_a_restart(
    answer: dict[str, bool],
) -> None:
    run = Run(Standing(plan=Step.REPORT, epoch=5, seen_online=True))
    assert run.step(replace(OFFLINE, open=True)) is None and run.standing.reason == ""
    assert run.step(replace(OFFLINE, open=True, **answer), 60_000) is None
    assert (run.standing.state, run.standing.reason) == (State.OFFLINE, ANSWERED)


def test_a_guard_that_is_started_after_the_report_cuts_nothing_before_it_has_judged_the_disk() -> None:
    run = reported()
    recorded = replace(OFFLINE, open=True)
    assert run.step(replace(recorded, unjudged=True, open=True), 100) is None and run.standing.state is State.REPORTING
    assert run.step(recorded, 100) == Cut(PATH)


def test_a_report_is_lost_when_a_controller_has_answered_long_after_it() -> None:
    """What Kafka takes offline later it has taken offline itself."""
    run = reported()
    assert run.step(HEALTHY, 100) is None
    assert run.step(replace(HEALTHY, heard=False), OVER_MS) is None and run.standing.plan is Step.CUT
    assert run.step(HEALTHY, 0) is None and run.standing.plan is None


# ----------------------------------------------------------------------------------------------------------------- mask


@pytest.mark.parametrize("reports", [1, REPORTS_MAX])
def test_a_mask_comes_off_after_its_report_too(reports: int) -> None:
    run, facts = masked(), replace(FAILS, decided=MASK)
    for _ in range(reports):
        assert run.does(facts, after_ms=5_500) is not None
    run.step(facts, 499 if reports < REPORTS_MAX else 5_500)
    assert run.does(HEALTHY, after_ms=1_000) == Unmask(PATH)
    assert (run.standing.state, run.standing.plan) == (State.WELL, Step.REPORT), "it may still be recorded"


def test_a_mask_stays_while_nobody_knows_what_kafka_has() -> None:
    assert masked().step(replace(HEALTHY, view=KafkaView.UNKNOWN, may=False, heard=False)) is None


def test_a_mask_is_reported_a_checkpoint_later_and_evicted_when_kafka_notices() -> None:
    run, facts = masked(), replace(FAILS, decided=MASK)
    assert run.standing.acted_ms == run.now_ms
    assert run.step(facts, 5_499) is None and run.again_ms == 1
    assert run.does(facts, after_ms=1) == Report(PATH, (ID,), 5)
    assert run.step(OFFLINE, 1) == Evict(PATH, ID, LISTS), "and it is not cut"
    assert run.standing.reason == ""
    early = masked()
    assert early.step(OFFLINE, 1) == Evict(PATH, ID, LISTS)


@pytest.mark.parametrize("done", [FAILED, REFUSED])
@pytest.mark.parametrize("tried", [frozenset({Step.CUT}), frozenset[Step]()])
def test_where_neither_cut_nor_mask_works_nothing_is_reported(done: Done, tried: frozenset[Step]) -> None:
    """A broker that has not seen the disk fail would follow there, and stall with it."""
    run = Run(Standing(seen_online=True, epoch=5, tried=tried))
    facts = FAILS if tried else replace(FAILS, decided=MASK)
    assert run.does(facts, done) == Mask(PATH)
    assert run.step(facts) is None and run.standing.state is State.LEFT
    assert run.step(facts, 60_000) is None
    assert run.standing.reason == done.reason


def test_what_was_tried_in_vain_is_tried_again_when_the_disk_has_been_healthy() -> None:
    run = Run(Standing(seen_online=True, epoch=5, tried=frozenset({Step.CUT, Step.MASK}), reason="failed"))
    assert run.step(replace(FAILS, decided=WAITS)) is None and run.standing.tried
    assert run.step(HEALTHY) is None and run.standing.reason == ""
    assert run.step(FAILS) == Report(PATH, BESIDE, 5)


def test_a_mount_that_is_gone_is_reported_where_a_cut_did_not_work() -> None:
    run = Run(Standing(seen_online=True, epoch=5, tried=frozenset({Step.CUT})))
    assert run.step(replace(FAILS, decided=REPORT)) == Report(PATH, (ID,), 5)


@pytest.mark.parametrize(
    "facts",
    [
        HEALTHY,
        replace(HEALTHY, restore=LISTS),
        ANSWERS,
        replace(FAILS, decided=NOTHING, needed="t-0 has no other copy"),
    ],
    ids=["healthy", "due", "answers", "needed"],
)
def test_a_mask_comes_off_when_the_disk_answers_or_is_needed_and_kafka_has_the_directory_online(facts: Facts) -> None:
    run = masked()
    assert run.does(facts, FAILED, after_ms=100) == Unmask(PATH)
    assert (run.standing.state, run.standing.reason) == (State.MASKED, "failed")
    assert run.step(facts, 999) is None and run.again_ms == 1
    assert run.does(facts, after_ms=1) == Unmask(PATH)
    assert run.standing == replace(Run().standing, since_ms=run.now_ms)
    assert run.step(replace(facts, restore={})) is None
    assert run.step(replace(FAILS, decided=MASK), 60_000) == Mask(PATH), "it fails once more"


def test_a_mask_that_did_not_come_off_is_reported_a_checkpoint_later_where_the_disk_fails_again() -> None:
    run, facts = masked(), replace(FAILS, decided=MASK)
    assert run.does(HEALTHY, FAILED) == Unmask(PATH)
    assert run.step(facts, 5_499) is None and run.step(facts, 1) == Report(PATH, (ID,), 5)


def test_a_mask_stays_when_kafka_has_noticed() -> None:
    run = masked()
    assert run.step(replace(HEALTHY, view=KafkaView.OFFLINE), 100) is None and run.standing.means is Step.MASK


# -------------------------------------------------------------------------------------------------------------- release


def test_a_release_takes_a_mask_away_and_leaves_the_directory_until_it_is_healthy() -> None:
    move = directory_steps.release(masked().standing, PATH, 1)
    assert move is not None and move.effect == Unmask(PATH)
    assert directory_steps.release(move.standing, PATH, 1) is None, "it is under way"
    freed = Run(directory_steps.came_of(move.standing, DONE, 2))
    assert directory_steps.is_released(freed.standing)
    assert (freed.standing.state, freed.standing.means) == (State.LEFT, None)
    assert freed.step(replace(FAILS, decided=MASK), 60_000) is None
    assert freed.step(HEALTHY) is None and freed.standing.state is State.WELL
    stays = directory_steps.came_of(move.standing, FAILED, 2)
    assert (stays.state, stays.means, stays.reason) == (State.LEFT, Step.MASK, "failed")
    again = directory_steps.release(stays, PATH, 3)
    assert again is not None and again.effect == Unmask(PATH)


def test_a_released_directory_is_left_alone_when_kafka_notices_and_when_the_broker_starts_again() -> None:
    cut = Standing(state=State.CUT, means=Step.CUT, epoch=5, seen_online=True)
    move = directory_steps.release(cut, PATH, 1)
    assert move is not None and move.effect is None
    run = Run(move.standing)
    assert run.step(OFFLINE) is None and run.step(replace(FAILS, epoch=6)) is None
    gate = replace(FAILS, gate=CUT, present=False)
    assert directory_steps.before_start(run.standing, gate, run.now_ms, masks=True).effect is None
    assert directory_steps.is_released(run.standing)
    assert isinstance(run.step(replace(BACK, epoch=6, restore=LISTS)), Restore)


@pytest.mark.parametrize(
    ("standing", "is_over", "is_settled"),
    [
        (Standing(), False, True),
        (Standing(state=State.REPORTING, plan=Step.CUT), False, False),
        (Standing(state=State.CUTTING), False, False),
        (Standing(state=State.CUT, means=Step.CUT), False, False),
        (Standing(state=State.MASKED, means=Step.MASK), False, False),
        (Standing(state=State.OFFLINE, means=Step.CUT), True, True),
        (Standing(state=State.EVICTED, means=Step.CUT), True, True),
        (Standing(state=State.OFFLINE, means=Step.MASK), False, True),
        (Standing(state=State.OFFLINE), False, True),
        (Standing(state=State.LEFT, reason="refused"), False, True),
        (Standing(state=State.LEFT, reason=directory_steps.RELEASED), True, True),
    ],
)
def test_a_directory_that_nothing_is_left_to_do_about_is_over_and_one_that_gives_no_doubt_is_settled(
    standing: Standing, is_over: bool, is_settled: bool
) -> None:
    assert directory_steps.is_over(standing) is is_over
    assert directory_steps.is_settled(standing) is is_settled


# ----------------------------------------------------------------------------------------------- a guard that is killed


def followed(standing: Standing) -> Run:
    """The guard after one that was killed: it has what the journal has."""
    before = journal.Journal(directories={PATH: (standing, ID, 0)})
    found = journal.decode(journal.encode(before, 1, ahead_ms=0), 1, now_ms=100_000, wall_ms=0)
    return Run(found.directories[PATH][0])


@pytest.mark.parametrize(
    ("facts", "effect"),
    [
        (FAILS, Report(PATH, BESIDE, 5)),
        (RECORDED, Cut(PATH)),
        (replace(RECORDED, not_cut="no controller answers"), None),
        (replace(RECORDED, answers=True), None),
        (HEALTHY, None),
    ],
)
@pytest.mark.parametrize("killed", ["while it reports", "after the report", "while it cuts", "after a cut in vain"])
def test_a_guard_that_was_killed_between_report_and_cut_is_followed_by_one_that_goes_on(
    killed: str, facts: Facts, effect: Effect | None
) -> None:
    run = Run()
    run.step(FAILS)
    if killed != "while it reports":
        run.over(DONE)
    if killed == "while it cuts":
        assert run.step(RECORDED) == Cut(PATH)
    if killed == "after a cut in vain":  # the guard after it may have the helper that this one lacks
        assert run.does(RECORDED, REFUSED) == Cut(PATH)
        assert run.step(RECORDED) is None and run.standing.state is State.OFFLINE
    assert followed(run.standing).step(facts, 1_000) == effect


def test_a_directory_whose_disk_has_answered_is_not_cut_by_the_guard_after_this_one() -> None:
    run = reported()
    assert run.step(replace(RECORDED, answers=True)) is None
    assert followed(run.standing).step(RECORDED, 1_000) is None


def test_a_guard_that_was_killed_while_it_evicted_is_followed_by_one_that_evicts_the_rest() -> None:
    run = Run()
    assert run.step(OFFLINE) == Evict(PATH, ID, LISTS)
    assert followed(run.standing).step(OFFLINE, 1) == Evict(PATH, ID, LISTS)


@pytest.mark.parametrize(
    ("facts", "effect"),
    [
        (replace(FAILS, decided=NOTHING), Mask(PATH)),  # it is not judged yet
        (replace(FAILS, decided=MASK), Mask(PATH)),
        (FAILS, Report(PATH, BESIDE, 5)),
        (replace(FAILS, decided=WAITS), None),
        (HEALTHY, None),
    ],
)
def test_what_the_ladder_says_by_now_counts_more_than_the_mask_of_a_guard_that_was_killed(
    facts: Facts, effect: Effect | None
) -> None:
    run = Run()
    run.step(replace(FAILS, decided=MASK))
    assert followed(run.standing).step(facts) == effect


def test_a_mask_that_a_guard_before_took_off_or_was_about_to_is_taken_off() -> None:
    run = masked()
    assert run.step(HEALTHY) == Unmask(PATH)
    assert followed(run.standing).step(HEALTHY) == Unmask(PATH)


# ---------------------------------------------------------------------------------------------------------- the broker

SERVING = broker_steps.Facts(pid=7, epoch=5, fenced=False)
STUCK = replace(SERVING, wanted="its fetchers are stuck", cuts=(PATH,))
FENCED = replace(STUCK, fenced=True)
ENDED = replace(SERVING, pid=None, ended=7)
LEFT = (Kill(5), Fence(5), Reset(), Destroy())
SPEAKS_AGAINST = [
    replace(STUCK, refusal="broker 2 lost a directory"),
    replace(STUCK, wanted=None),
    replace(STUCK, may=False),
]


class BrokerRun:
    """A broker that is taken through its steps by hand."""

    def __init__(self, *, serves: bool = True) -> None:
        self.standing = broker_steps.Standing()
        self.now_ms = 100_000
        self.again_ms: int | None = None
        if serves:
            self.step(SERVING)

    @property
    def state(self) -> BrokerState:
        return self.standing.state

    def step(self, facts: broker_steps.Facts, after_ms: int = 0) -> Effect | None:
        self.now_ms += after_ms
        for _ in range(10):
            move = broker_steps.advance(self.standing, facts, self.now_ms)
            self.standing, self.again_ms = move.standing, move.again_ms
            if move.again_ms != 0:
                return move.effect
        raise AssertionError("it goes round")

    def over(self, done: Done) -> None:
        self.standing = broker_steps.came_of(self.standing, done, self.now_ms)

    def does(self, facts: broker_steps.Facts, after_ms: int = 0, done: Done = DONE) -> Effect | None:
        effect = self.step(facts, after_ms)
        if effect is not None:
            self.over(done)
        return effect


def killed() -> BrokerRun:
    """A broker that was killed and fenced; the metadata do not show that yet."""
    run = BrokerRun()
    assert [run.does(STUCK), run.does(STUCK)] == [Kill(5), Fence(5)]
    return run


def test_a_broker_is_absent_starts_serves_stops_and_ends() -> None:
    run = BrokerRun(serves=False)
    states = []
    for facts in (
        broker_steps.Facts(),
        broker_steps.Facts(pid=7),
        SERVING,
        replace(SERVING, fenced=None),
        replace(SERVING, stopping=True),
        broker_steps.Facts(ended=7, epoch=5, fenced=True),
        broker_steps.Facts(),
        broker_steps.Facts(pid=8, ended=7, epoch=5, fenced=True),
        replace(SERVING, pid=8, epoch=6),
        broker_steps.Facts(),  # the kernel has not told that it has ended
        replace(SERVING, pid=9, epoch=None, fenced=None),
    ):
        assert run.step(facts) is None
        states.append(str(run.state))
    assert states[:7] == ["absent", "starting", "serving", "serving", "stopping", "ended", "ended"]
    assert states[7:] == ["starting", "serving", "serving", "starting"]


def test_a_stuck_broker_is_killed_and_fenced_then_its_disk_is_cut_and_its_connections_are_ended() -> None:
    run = killed()
    assert run.does(STUCK, 100) is None and run.again_ms == 400, "the metadata do not show the fence yet"
    assert run.does(FENCED) == Cut(PATH)
    assert run.does(FENCED) is None and run.again_ms == 100
    assert [run.does(FENCED, 100), run.does(FENCED), run.does(FENCED)] == [Reset(), Destroy(), None]
    assert run.state is BrokerState.FENCED
    ended = replace(ENDED, fenced=True)
    assert run.does(ended, 60_000) == Unreset()
    assert run.does(ended) is None and run.state.value == "ended"


def test_a_process_that_dies_at_once_needs_neither_cut_nor_reset() -> None:
    run = killed()
    assert run.does(replace(FENCED, pid=None, ended=7)) is None and run.state is BrokerState.ENDED


def test_only_a_kill_that_worked_makes_a_broker_one_that_the_guard_has_killed() -> None:
    assert broker_steps.is_killed(killed().standing)
    lives, dead = BrokerRun(), BrokerRun()
    assert lives.does(STUCK, done=FAILED) == Kill(5)
    assert dead.does(ENDED) == Fence(5)
    assert not broker_steps.is_killed(lives.standing) and not broker_steps.is_killed(dead.standing)


@pytest.mark.parametrize(
    ("facts", "after_ms"),
    [
        (STUCK, 500),
        (replace(STUCK, fenced=None), 500),
        (replace(FENCED, not_cut={PATH: "t-0 has no other copy in sync"}), 500),
        (replace(FENCED, epoch=6, wanted=None), 0),
        (replace(FENCED, epoch=6, pid=None), 500),
        (replace(FENCED, cuts=()), 200),
    ],
    ids=["not fenced", "not followed", "the only copy", "another start", "it starts", "the disk answers"],
)
def test_a_disk_is_not_cut_before_the_metadata_show_the_fence_and_allow_the_cut(
    facts: broker_steps.Facts, after_ms: int
) -> None:
    run = killed()
    effects = [run.does(facts, after_ms), *(run.does(facts, 1) for _ in range(5))]
    assert Cut(PATH) not in effects
    assert (Reset() in effects) is (facts.epoch == 5 or facts.pid is None), "the rest is done all the same"


@pytest.mark.parametrize("fenced", [True, False, None])
def test_a_broker_that_has_registered_anew_after_the_kill_is_not_fenced(fenced: bool | None) -> None:
    run = BrokerRun()
    assert run.does(STUCK) == Kill(5)
    anew = replace(STUCK, pid=None, epoch=6, fenced=fenced)
    assert [run.does(anew, 1_000) for _ in range(4)] == [Reset(), Destroy(), None, None]


def test_a_heartbeat_of_the_broker_that_came_late_is_answered_by_one_more_fence() -> None:
    run = BrokerRun()
    assert [run.does(STUCK), run.does(STUCK, 100)] == [Kill(5), Fence(5)]
    assert run.does(ENDED, 499) is None and run.again_ms == 1
    assert [run.does(ENDED, 1), run.does(ENDED, 60_000)] == [Fence(5), None]


@pytest.mark.parametrize("lacks", [{"stopping": True}, {"epoch": 6}, {"fenced": None}, {"fenced": True}], ids=str)
def test_a_broker_that_is_not_unfenced_again_is_fenced_once(lacks: dict[str, object]) -> None:
    run = killed()
    facts = replace(ENDED, **lacks)
    assert [run.does(facts, 1_000) for _ in range(3)] == [None] * 3


def test_a_fence_that_reaches_no_controller_comes_after_the_rest_and_is_repeated_each_half_second() -> None:
    run = BrokerRun()
    assert run.does(STUCK) == Kill(5)
    assert run.does(STUCK, done=FAILED) == Fence(5)
    assert [run.does(STUCK, 500), run.does(STUCK)] == [Reset(), Destroy()], "the disk is not cut"
    for attempt in range(1, broker_steps.FENCE_ATTEMPTS_MAX):
        assert run.does(STUCK, 0 if attempt == 1 else 500, FAILED) == Fence(5)
        assert run.does(STUCK, 0) is None
    assert run.does(STUCK, 60_000) is None and run.state is BrokerState.FENCED
    anew = replace(STUCK, pid=8, epoch=6)
    assert run.does(anew) == Unreset() and run.does(anew) is None
    assert [run.does(anew), run.does(anew, done=FAILED), run.does(anew, 500)] == [Kill(6), Fence(6), Reset()]
    assert [run.does(anew), run.does(anew)] == [Destroy(), Fence(6)], "another process begins anew"


def test_a_fence_that_the_controllers_refuse_is_not_repeated() -> None:
    run = BrokerRun()
    assert run.does(STUCK) == Kill(5)
    assert run.does(STUCK, done=REFUSED) == Fence(5)
    assert [run.does(STUCK, 500), *(run.does(STUCK, 500) for _ in range(3))] == [Reset(), Destroy(), None, None]


def test_a_broker_waits_until_the_record_of_its_guard_is_first() -> None:
    run = BrokerRun()
    behind = replace(STUCK, may=False)
    assert run.step(behind) is None and run.step(behind, 60_000) is None
    assert (run.state, run.standing.reason) == (BrokerState.CRIPPLED, STUCK.wanted)
    assert run.step(STUCK) == Kill(5)


def test_a_broker_that_may_not_be_fenced_is_stuck_with_the_reason_until_the_reason_has_passed() -> None:
    run = BrokerRun()
    assert run.does(SPEAKS_AGAINST[0]) is None
    assert run.state is BrokerState.CRIPPLED
    assert run.standing.reason == "its fetchers are stuck, and it is not fenced: broker 2 lost a directory"
    assert run.does(SERVING) is None and run.state.value == "serving"


@pytest.mark.parametrize("facts", SPEAKS_AGAINST)
def test_a_fence_is_asked_about_again_right_before_the_kill(facts: broker_steps.Facts) -> None:
    run = BrokerRun()
    assert run.step(STUCK) == Kill(5)
    run.standing = replace(run.standing, under_way=None)  # it is written down, and not begun
    assert run.step(facts) is None and run.state is BrokerState.CRIPPLED
    assert run.does(STUCK) == Kill(5)
    assert run.does(facts) == Fence(5), "after the kill there is no way back"


@pytest.mark.parametrize(("pid", "epoch"), [(8, 6), (8, 5), (7, 6)])
@pytest.mark.parametrize("left", [LEFT, LEFT[1:], (Cut(PATH), *LEFT[2:]), ()])
def test_a_fence_that_was_not_ended_is_not_for_the_process_that_came_after(
    left: tuple[Effect, ...], pid: int, epoch: int
) -> None:
    """A host that is started anew in the middle of a fence, and broker and guard with it."""
    run = BrokerRun()
    state = BrokerState.FENCING if left else BrokerState.FENCED
    run.standing = broker_steps.Standing(state=state, pid=7, epoch=5, left=left, fences=1, killed_ms=0)
    anew = replace(SERVING, pid=pid, epoch=epoch)
    assert [run.does(anew, 1_000) for _ in range(5)] == [None] * 5
    assert run.state in (BrokerState.SERVING, BrokerState.ENDED)
    assert run.does(replace(STUCK, pid=pid, epoch=epoch)) == Kill(epoch)


def resumed() -> BrokerRun:
    """A guard that follows one which was killed when it was about to kill the broker."""
    run = BrokerRun()
    assert run.step(STUCK) == Kill(5)
    before = journal.Journal(broker=run.standing)
    found = journal.decode(journal.encode(before, 1, ahead_ms=0), 1, now_ms=run.now_ms, wall_ms=0)
    run.standing = found.broker
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
    assert run.does(STUCK, done=done) == Kill(5)
    assert run.state is BrokerState.CRIPPLED and run.standing.killed_ms is None
    assert run.step(STUCK, 1_000) is None, "no heartbeat in the name of a broker that lives"


@pytest.mark.parametrize("facts", SPEAKS_AGAINST)
def test_a_kill_of_the_guard_before_us_is_asked_about_again(facts: broker_steps.Facts) -> None:
    run = resumed()
    assert run.step(facts) is None and run.state is BrokerState.CRIPPLED


@pytest.mark.parametrize("facts", [replace(SERVING, pid=None), replace(ENDED, looked=False)])
def test_a_broker_that_a_guard_before_us_has_killed_is_fenced(facts: broker_steps.Facts) -> None:
    assert resumed().does(facts) == Fence(5)


def test_silence_is_no_reason_to_kill_a_broker_that_stops_or_is_fenced() -> None:
    assert broker_steps.silence("no answer", fenced=False, stopping=False) == "no answer"
    assert broker_steps.silence("no answer", fenced=False, stopping=True) is None
    assert broker_steps.silence("no answer", fenced=True, stopping=False) is None


@pytest.mark.parametrize("done", [FAILED, REFUSED])
def test_a_kill_that_does_not_work_is_no_fence_and_is_tried_again_later_and_later(done: Done) -> None:
    run = BrokerRun()
    assert run.does(STUCK, done=done) == Kill(5)
    for wait_ms in (10_000, 10_000, 600_000, 600_000):
        assert run.step(STUCK, wait_ms - 1) is None and run.again_ms == 1
        assert (run.state, run.standing.reason) == (BrokerState.CRIPPLED, f"not killed: {done.reason}")
        assert run.does(STUCK, 1, done) == Kill(5)
    anew = replace(STUCK, pid=8, epoch=6)
    assert run.does(anew, done=done) == Kill(6) and run.step(anew, 10_000) == Kill(6), "another process begins anew"


@pytest.mark.parametrize(
    ("facts", "fences"),
    [
        (ENDED, 1),
        (replace(ENDED, fenced=None), 1),
        (replace(ENDED, epoch=None, fenced=None), 1),
        (replace(ENDED, stopping=True), 0),
        (replace(ENDED, fenced=True), 0),
        (replace(ENDED, epoch=6), 0),
        (replace(ENDED, ended=3), 0),
        (replace(ENDED, ended=None), 0),
    ],
)
def test_a_process_that_ends_without_a_shutdown_is_fenced_by_one_heartbeat(
    facts: broker_steps.Facts, fences: int
) -> None:
    run = BrokerRun()
    assert [run.does(facts) for _ in range(4)] == [Fence(5)] * fences + [None] * (4 - fences)
    again = replace(SERVING, pid=8, epoch=6)
    assert [run.does(again), run.does(again), run.does(replace(again, pid=None, ended=8))] == [None, None, Fence(6)]


@pytest.mark.parametrize("fenced", [True, False, None])
def test_a_process_that_ends_after_a_shutdown_was_granted_is_not_fenced(fenced: bool | None) -> None:
    run = BrokerRun()
    assert run.does(replace(SERVING, stopping=True)) is None
    assert [run.does(replace(ENDED, fenced=fenced)) for _ in range(3)] == [None] * 3
    assert run.state is BrokerState.ENDED


@pytest.mark.parametrize("fenced", [True, None])
def test_a_process_that_ends_before_it_serves_is_not_fenced(fenced: bool | None) -> None:
    run = BrokerRun(serves=False)
    assert run.does(replace(SERVING, fenced=fenced)) is None
    assert [run.does(replace(ENDED, fenced=fenced)) for _ in range(3)] == [None] * 3


def test_a_broker_that_is_stuck_or_was_lost_is_told_and_one_that_was_stopped_is_not() -> None:
    run = BrokerRun()
    assert broker_steps.lost(run.standing) is None
    run.step(SPEAKS_AGAINST[0])
    assert (broker_steps.lost(run.standing) or "").startswith("the broker is stuck: its fetchers are stuck, and")
    lost = killed()
    for facts in (FENCED, replace(ENDED, fenced=True)):
        assert (broker_steps.lost(lost.standing) or "").startswith("the broker is lost (its fetchers are stuck)")
        lost.step(facts)
    assert lost.state is BrokerState.FENCING
    stopped = BrokerRun()
    stopped.step(replace(ENDED, stopping=True))
    assert stopped.state is BrokerState.ENDED and broker_steps.lost(stopped.standing) is None


# ------------------------------------------------------------------------- whatever Kafka and the helper make of a step

DONES = (DONE, DONE, PENDING, FAILED, REFUSED)
CHANCE = st.randoms(use_true_random=True)
"""One draw for a whole story: it is told by its seed."""


class Story:
    """A directory of a modelled Kafka, which marks one that was acted on, or does not; it may start again; answers may
    be lost."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.run = Run(chance.choice([Standing(), None]))
        self.kafka = chance.choice(["notices", "is told", "never"])
        self.decided = chance.choice([CUT, MASK, REPORT])
        self.epoch, self.offline, self.evicted = 5, False, False
        self.cuts = self.reports = 0
        """Since the broker started; and at all."""

    def facts(self) -> Facts:
        view = KafkaView.OFFLINE if self.offline else KafkaView.ONLINE
        disk, follows = self.chance.choice(["fails", "fails", "fails", "answers", "healthy"]), self.often()
        standing, decided = self.run.standing, self.decided if disk == "fails" else NOTHING
        return Facts(
            path=PATH,
            directory_id=ID,
            beside=BESIDE,
            decided=decided if follows and view is KafkaView.ONLINE and self.often() else NOTHING,
            view=view if follows else KafkaView.UNKNOWN,
            epoch=self.epoch,
            well=disk == "healthy",
            answers=disk == "answers",
            heard=follows and self.often(),
            present=self.often(),
            may=follows and self.often(),
            not_cut=None if follows and self.often() else "in sync",
            open=standing.plan in (Step.CUT, Step.REPORT) and standing.means is None,
            evict=LISTS if follows and not self.evicted else {},
            restore=LISTS if follows and self.evicted else {},
        )

    def often(self) -> bool:
        return self.chance.random() < 0.8

    def step(self) -> None:
        facts, before = self.facts(), self.run.standing
        effect = self.run.step(facts, self.chance.choice([0, 100, 600, 6_000]))
        if before.under_way is not None:
            assert effect is None and self.run.standing == before
        if effect is not None:
            self.check(effect, facts, before)
        if self.run.standing.under_way is not None and self.chance.random() < 0.5:
            self.end(self.chance.choice(DONES))

    def check(self, effect: Effect, facts: Facts, before: Standing) -> None:
        answers = facts.well or facts.answers
        match effect:
            case Cut():
                assert facts.view is KafkaView.OFFLINE and facts.not_cut is None and facts.present and not answers
                self.cuts += 1
                assert self.reports and self.cuts == 1
            case Mask():
                assert facts.may and facts.present and facts.decided.step in (Step.CUT, Step.MASK)
            case Report():
                assert facts.view is not KafkaView.OFFLINE
                assert facts.heard if before.state is not State.WELL else facts.may and facts.decided == self.decided
                self.reports += 1
            case Unmask():
                assert answers and before.means is Step.MASK
            case Evict():
                assert facts.view is KafkaView.OFFLINE and facts.may and facts.present and not facts.open
                assert self.run.standing.offline_ms is not None
                assert self.run.now_ms - self.run.standing.offline_ms < EVICT_WITHIN_MS
            case Restore():
                assert facts.view is KafkaView.ONLINE and facts.well and facts.present

    def end(self, done: Done) -> None:
        effect = self.run.standing.under_way
        self.run.over(done)
        if done.happened:
            self.offline |= isinstance(effect, Mask) and self.kafka == "notices"
            self.offline |= isinstance(effect, Report) and self.kafka != "never" and effect.epoch == self.epoch
        if isinstance(effect, Evict | Restore) and done.outcome is Outcome.DONE:
            self.evicted = isinstance(effect, Evict)

    def goes_on(self) -> bool:
        """Whether something is done, waited for or told, where the disk stays as it is."""
        standing, facts = self.run.standing, replace(FAILS, decided=self.decided, epoch=self.epoch)
        if self.offline:
            facts = replace(facts, view=KafkaView.OFFLINE, evict=LISTS)
        for _ in range(2):  # the first look may find that the broker has registered again
            if standing.under_way is not None:
                return True
            move = directory_steps.advance(standing, facts, self.run.now_ms)
            standing = move.standing
        is_left = standing.state is State.LEFT and bool(standing.reason)
        return move.effect is not None or move.again_ms is not None or is_left or standing.state in directory_steps.GONE

    def restart(self, *, without: bool = False) -> None:
        self.epoch, self.offline, self.cuts = self.epoch + 1, without, 0


@settings(max_examples=examples(150))
@given(CHANCE)
def test_every_state_of_a_directory_has_a_way_on_and_a_way_back(chance: Random) -> None:
    story = Story(chance)
    for _ in range(60):
        if chance.random() < 0.02:
            story.restart(without=chance.random() < 0.5)
        story.step()
        assert story.goes_on()
    if story.run.standing.under_way is not None:
        story.end(DONE)
    # The disk is changed, and the broker is started again.
    story.restart()
    facts = replace(HEALTHY, epoch=story.epoch, restore=LISTS if story.evicted else {})
    assert (story.run.does(facts) is not None) is story.evicted
    assert story.run.step(replace(facts, restore={})) is None
    assert (story.run.standing.state, story.run.standing.means) == (State.WELL, None)
    assert story.run.does(replace(FAILS, epoch=story.epoch)) == Report(PATH, BESIDE, story.epoch)


@settings(max_examples=examples(150))
@given(CHANCE)
def test_a_broker_is_killed_only_when_it_may_be_and_fenced_twice_at_most(chance: Random) -> None:
    """Heartbeats are lost or late, the process dies or hangs in the kernel, budgets and reasons come and go."""
    run = BrokerRun()
    dies = chance.random() < 0.5
    pid: int | None = 7
    fenced, ended = False, None
    given: list[Effect] = []
    for _ in range(80):
        facts = replace(
            STUCK,
            pid=pid,
            ended=ended,
            fenced=fenced,
            wanted=chance.choice([None, "stuck"]),
            refusal=chance.choice([None, None, "no"]),
            may=chance.choice([True, True, False]),
            not_cut=chance.choice([{}, {}, {PATH: "in sync"}]),
        )
        effect = run.step(facts, chance.choice([0, 100, 600, 20_000]))
        if isinstance(effect, Kill):
            assert facts.wanted is not None and facts.refusal is None and facts.may
        if isinstance(effect, Cut):
            assert facts.fenced and not facts.not_cut
        if effect is not None:
            assert isinstance(effect, Kill) or Kill(5) in given
            done = chance.choice(DONES)
            run.over(done)
            if done.happened:
                given.append(effect)
                if isinstance(effect, Kill) and dies:
                    pid, ended = None, 7
                if isinstance(effect, Fence):
                    fenced = chance.random() < 0.5
    kinds = [type(effect) for effect in given]
    assert kinds.count(Kill) <= 1 and kinds.count(Cut) <= 1 and kinds.count(Fence) <= broker_steps.FENCES_MAX
    # Whatever there was, the end of the process ends it.
    over = replace(ENDED, fenced=True)
    for _ in range(5):
        run.does(over, 1_000)
    assert run.state is BrokerState.ENDED and run.does(over, 60_000) is None

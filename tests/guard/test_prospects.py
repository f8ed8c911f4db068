"""What only time and the budget tell about a directory."""

from dataclasses import replace
from typing import Any

import pytest

from kjbod.ids import Uuid
from kjbod_agent.guard.budget import EVICT_WITHIN_MS
from kjbod_agent.guard.directory_steps import Standing, State
from kjbod_agent.guard.journal import Journal, decode, encode
from kjbod_agent.guard.ladder import Case, KafkaView, Step, would
from kjbod_agent.guard.observing import Observed, Placed
from kjbod_agent.guard.prospects import Now, Prospects, Site, waits_for_host
from kjbod_agent.health.state import Cause, DirectoryHealth, Health

PATH, D1, T = "/mnt/d1", Uuid.of(5, 1), Uuid.of(7, 1)
HUNG = Case(health=Health.FAILED, cause=Cause.HUNG)
GONE = replace(HUNG, kafka=KafkaView.OFFLINE)


def now(now_ms: int = 100_000, *, blind: str | None = None, leads: bool = True) -> Now:
    observed = Observed(1, complete=True, topics={T: "t"})
    observed.partitions[T, 0] = Placed(0, D1, leads, (1, 2, 3), (1, 2, 3))
    return Now(observed=observed, healthy=(), blind=blind, now_ms=now_ms)


def step(prospects: Prospects, case: Case, at: Now, *, failed_ms: int = 100_000, unrecorded: bool = False) -> Step:
    return would(prospects.of(case, PATH, D1, at, failed_ms=failed_ms, unrecorded=unrecorded)).step


def test_what_went_offline_while_it_was_watched_is_left_for_as_long_as_leaders_wait() -> None:
    prospects = Prospects(Site())
    prospects.seen(PATH, KafkaView.ONLINE, 0)
    prospects.seen(PATH, KafkaView.OFFLINE, 100_000)
    assert step(prospects, GONE, now()) is Step.EVICT
    assert step(prospects, GONE, now(100_000 + EVICT_WITHIN_MS - 1)) is Step.EVICT
    assert step(prospects, GONE, now(100_000 + EVICT_WITHIN_MS)) is Step.NOTHING
    prospects.registered_anew()
    assert step(prospects, GONE, now()) is Step.NOTHING


def test_what_was_offline_before_is_not_left_and_never_where_the_site_says_so() -> None:
    late = Prospects(Site())
    late.seen(PATH, KafkaView.OFFLINE, 100_000)
    assert step(late, GONE, now()) is Step.NOTHING
    never = Prospects(Site(evict=False))
    never.seen(PATH, KafkaView.ONLINE, 0)
    never.seen(PATH, KafkaView.OFFLINE, 100_000)
    assert step(never, GONE, now()) is Step.NOTHING


def test_what_a_guard_before_cut_goes_offline_before_the_eyes_of_the_next_one() -> None:
    cut = Standing(state=State.CUT, means=Step.CUT, epoch=5, seen_online=True)
    noticed = replace(cut, state=State.OFFLINE, offline_ms=99_000)
    for standing in (cut, noticed):
        told = encode(Journal(directories={PATH: (standing, str(D1), 1_700_000_000_000)}), 1, ahead_ms=0)
        prospects = Prospects(Site())
        prospects.seen(PATH, KafkaView.OFFLINE, 100_000)  # Kafka noticed while no guard ran
        assert step(prospects, GONE, now()) is Step.NOTHING
        prospects.resumed(
            {
                path: row[0]
                for path, row in decode(told, 1, now_ms=100_000, wall_ms=1_700_000_001_000).directories.items()
            }
        )
        prospects.seen(PATH, KafkaView.OFFLINE, 100_000)
        assert step(prospects, GONE, now()) is Step.EVICT
        assert step(prospects, GONE, now(100_000 + EVICT_WITHIN_MS)) is Step.NOTHING


def test_a_broker_without_a_disk_that_is_well_is_given_up_after_the_timeout() -> None:
    prospects = Prospects(Site(host_fault_timeout_ms=5_000))
    alone = replace(HUNG, others_well=False)
    assert step(prospects, alone, now(100_000)) is Step.WAIT
    assert step(prospects, alone, now(104_999)) is Step.WAIT
    assert step(prospects, alone, now(105_000)) is Step.FENCE
    assert step(prospects, HUNG, now(105_001)) is Step.CUT
    assert step(prospects, alone, now(105_002)) is Step.WAIT


@pytest.mark.parametrize("again", [{"others_answer": True}, {"outlived": "its disk answers again"}])
def test_a_disk_that_answers_again_ends_the_time_of_a_fault_of_the_host(again: dict[str, Any]) -> None:
    prospects = Prospects(Site(host_fault_timeout_ms=5_000))
    alone = replace(HUNG, others_well=False)
    assert step(prospects, alone, now(100_000)) is Step.WAIT
    assert step(prospects, replace(alone, **again), now(105_000)) in (Step.WAIT, Step.NOTHING)
    assert step(prospects, alone, now(105_001)) is Step.WAIT
    assert step(prospects, alone, now(110_001)) is Step.FENCE


@pytest.mark.parametrize(
    ("others", "waits"),
    [
        ([Health.FAILED, Health.FAILED], True),
        ([Health.SUSPECT, Health.HELD], True),
        ([], True),
        ([Health.FAILED, Health.ONLINE], False),
        ([Health.FAILED, Health.SLOW], False),
    ],
)
def test_what_is_stuck_proves_nothing_while_no_disk_is_known_to_be_well(others: list[Health], waits: bool) -> None:
    disks = [DirectoryHealth(health=one, cause=Cause.HUNG) for one in (Health.FAILED, *others)]
    assert waits_for_host(disks, [HUNG]) is waits
    assert not waits_for_host(disks, [replace(HUNG, lasted=True)])
    assert not waits_for_host(disks[1:], []) or Health.FAILED in others


def test_a_failure_that_nobody_takes_up_ends_the_broker_where_it_leads() -> None:
    prospects = Prospects(Site(failure_timeout_ms=30_000))
    unknown = replace(HUNG, kafka=KafkaView.UNKNOWN)
    assert step(prospects, unknown, now(129_999, blind="refused")) is Step.NOTHING
    assert step(prospects, unknown, now(130_000, blind="refused")) is Step.FENCE
    assert step(prospects, unknown, now(130_000, blind="refused", leads=False)) is Step.NOTHING
    half_read = now(130_000, blind="refused")
    half_read.observed.complete = False
    assert step(prospects, unknown, half_read) is Step.NOTHING
    assert step(prospects, HUNG, now(130_000), unrecorded=True) is Step.FENCE
    assert step(prospects, HUNG, now(130_000)) is Step.CUT


def test_leadership_moves_off_a_slow_disk_only_where_the_site_wants_it_and_another_disk_is_quick() -> None:
    slow, at = Case(health=Health.SLOW, cause=Cause.SLOW), now()
    wants = Prospects(Site(demote=True))
    assert step(wants, slow, at) is Step.DEMOTE
    assert step(Prospects(Site()), slow, at) is Step.NOTHING
    assert step(wants, replace(slow, others_quick=False), at) is Step.NOTHING
    assert step(wants, slow, now(blind="refused")) is Step.NOTHING
    assert step(wants, replace(slow, health=Health.ONLINE), at) is Step.NOTHING


def test_a_broker_is_not_given_up_without_a_hand_to_do_it() -> None:
    frozen = replace(HUNG, cause=Cause.HELD)
    assert step(Prospects(Site()), frozen, now()) is Step.FENCE
    assert step(Prospects(Site()), frozen, replace(now(), no_hand="the hand has died")) is Step.WAIT


def test_a_file_system_is_not_cut_where_another_directory_of_it_has_the_only_replica_in_sync() -> None:
    at, d2 = now(), Uuid.of(5, 2)
    at.observed.partitions[T, 1] = Placed(0, d2, True, (1, 2, 3), (1,))
    prospects = Prospects(Site())
    alone = prospects.of(HUNG, PATH, D1, at, failed_ms=100_000, unrecorded=False)
    shared = prospects.of(HUNG, PATH, D1, at, failed_ms=100_000, unrecorded=False, beside=[d2])
    assert (would(alone).step, would(shared).step) == (Step.CUT, Step.MASK)

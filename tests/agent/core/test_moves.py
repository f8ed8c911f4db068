"""KIP-858's promotion machine as a table, and the answers to AlterReplicaLogDirs."""

import itertools

import pytest
from msgspec.structs import replace

from kjbod.ids import Uuid
from kjbod.wire.error_codes import ErrorCode
from kjbod_agent.moves.machine import (
    ENDS,
    IGNORED,
    PROGRESS,
    TABLE,
    Effect,
    Event,
    Future,
    Judgement,
    Lane,
    Situation,
    State,
    directory_failed,
    future_name,
    judge,
    may_run,
    resumed,
    source_name,
    step,
)
from kjbod_host.partitions import TopicIdPartition

D1, D2, D3 = Uuid.of(2, 1), Uuid.of(2, 2), Uuid.of(2, 3)
IN_SWAP = (State.RENAMING, State.RENAMED, State.PROMOTING, State.RESTORING)
UNDER_WAY = tuple(state for state in State if state not in ENDS)


def after(*events: Event, start: State = State.MAKING) -> tuple[State, list[Effect]]:
    """The state after these events, and all effects on the way."""
    state = start
    effects: list[Effect] = []
    for event in events:
        state, now = step(state, event)
        effects.extend(now)
    return state, effects


# ---------------------------------------------------------------------------------------------------------- the machine


def test_every_event_in_every_state_is_decided_exactly_once() -> None:
    assert TABLE.keys() == set(itertools.product(State, Event))
    for state, event in TABLE:
        changes = TABLE[state, event] != (state, ())
        assert changes != (event in IGNORED[state]), (state, event)


def test_an_end_is_an_end() -> None:
    for state, event in itertools.product(ENDS, Event):
        assert step(state, event) == (state, ())
        assert state.ended


def test_mv_2_promotion_only_after_the_controllers_answer() -> None:
    state, effects = after(Event.FUTURE_MADE, Event.CAUGHT_UP)
    assert (state, effects) == (State.QUEUED, [Effect.ASSIGN])
    assert after(Event.CAUGHT_UP, Event.CAUGHT_UP, start=state) == (State.QUEUED, [])
    state, effects = after(Event.ACKNOWLEDGED, start=state)
    assert (state, effects) == (State.ACCEPTED, [])
    state, effects = after(Event.CAUGHT_UP, Event.SOURCE_RENAMED, Event.CAUGHT_UP, Event.SWAPPED, start=state)
    assert (state, effects) == (State.EFFECTIVE, [Effect.PROMOTED, Effect.REMOVE_SOURCE])


def test_nothing_but_the_controllers_answer_or_what_was_found_at_the_start_leads_to_a_promotion() -> None:
    """All that can be reached without an answer, from a move that a user asked for."""
    reached = {State.MAKING}
    while True:
        further = {step(s, e).state for s in reached for e in Event if e is not Event.ACKNOWLEDGED} | reached
        if further == reached:
            break
        reached = further
    assert reached == {State.MAKING, State.NONE, State.QUEUED, State.DROPPED, State.LEFT}


def test_what_an_earlier_process_asked_for_and_happens_late_is_taken_as_done() -> None:
    assert step(State.ACCEPTED, Event.SOURCE_RENAMED) == (State.RENAMED, ())
    assert step(State.RENAMED, Event.SWAPPED) == (State.EFFECTIVE, (Effect.PROMOTED, Effect.REMOVE_SOURCE))
    assert step(State.RENAMED, Event.SOURCE_RESTORED) == (State.ACCEPTED, (Effect.SOURCE_BACK,))


@pytest.mark.parametrize("state", [State.NONE, State.MAKING, State.RENAMED, State.EFFECTIVE])
def test_an_answer_that_nobody_waits_for_changes_nothing(state: State) -> None:
    assert step(state, Event.ACKNOWLEDGED) == (state, ())


def test_a_refused_assignment_is_left_to_the_queue_that_asks_again() -> None:
    assert step(State.QUEUED, Event.REFUSED) == (State.QUEUED, ())


@pytest.mark.parametrize("event", [Event.CANCELLED, Event.NEW_TARGET])
def test_mv_3_a_move_that_was_asked_for_is_taken_back_when_it_is_cancelled(event: Event) -> None:
    assert step(State.QUEUED, event) == (State.DROPPED, (Effect.REVERT, Effect.REMOVE_FUTURE))


@pytest.mark.parametrize(
    ("state", "reverts"),
    [(State.NONE, False), (State.QUEUED, True), (State.ACCEPTED, True), (State.EFFECTIVE, False)],
)
def test_mv_4_only_a_move_that_is_queued_or_accepted_is_taken_back(state: State, reverts: bool) -> None:
    assert (Effect.REVERT in step(state, Event.CANCELLED).effects) == reverts


@pytest.mark.parametrize("event", [Event.CANCELLED, Event.NEW_TARGET, Event.GIVEN_UP, Event.DESTINATION_FAILED])
def test_a_source_that_was_renamed_gets_its_name_back_before_the_move_is_taken_back(event: Event) -> None:
    for state in (State.RENAMING, State.RENAMED):
        assert step(state, event) == (State.RESTORING, ())
    state, effects = after(event, Event.SOURCE_RESTORED, start=State.RENAMED)
    assert (state, effects) == (State.DROPPED, [Effect.SOURCE_BACK, Effect.REVERT, Effect.REMOVE_FUTURE])


def test_a_destination_that_fails_or_refuses_in_the_promotion_gives_the_source_its_name_back() -> None:
    for event in (Event.DESTINATION_FAILED, Event.GIVEN_UP):
        assert step(State.PROMOTING, event) == (State.RESTORING, ())


@pytest.mark.parametrize("state", [State.PROMOTING, State.FINISHING])
@pytest.mark.parametrize("event", [Event.CANCELLED, Event.NEW_TARGET])
def test_a_promotion_that_is_being_carried_out_cannot_be_cancelled(state: State, event: Event) -> None:
    assert step(state, event) == (state, ())


@pytest.mark.parametrize("state", [State.QUEUED, State.ACCEPTED])
def test_a_destination_that_fails_takes_the_move_back_and_its_future_replica_with_it(state: State) -> None:
    assert step(state, Event.DESTINATION_FAILED) == (State.LEFT, (Effect.REVERT,))
    assert step(State.NONE, Event.DESTINATION_FAILED) == (State.LEFT, ())


def test_a_source_that_fails_ends_a_move_that_is_not_complete() -> None:
    for equal in (Event.SOURCE_FAILED, Event.SOURCE_FAILED_EQUAL):
        assert step(State.NONE, equal) == (State.LEFT, ())
        assert step(State.QUEUED, equal) == (State.LEFT, (Effect.REVERT,))
    assert step(State.ACCEPTED, Event.SOURCE_FAILED) == (State.LEFT, (Effect.REVERT,))
    assert step(State.RENAMED, Event.SOURCE_FAILED) == (State.LEFT, (Effect.SOURCE_BACK, Effect.REVERT))


@pytest.mark.parametrize("state", [State.ACCEPTED, State.RENAMING, State.RENAMED, State.PROMOTING])
def test_a_source_that_fails_after_the_controller_agreed_is_replaced_by_its_equal(state: State) -> None:
    assert step(state, Event.SOURCE_FAILED_EQUAL) == (State.FINISHING, ())
    assert step(State.FINISHING, Event.SWAPPED).state is State.EFFECTIVE


@pytest.mark.parametrize("state", UNDER_WAY)
def test_both_directories_fail_and_nothing_is_touched_any_more(state: State) -> None:
    ended, effects = step(state, Event.BOTH_FAILED)
    assert ended is State.LEFT
    assert set(effects) <= {Effect.REVERT}


@pytest.mark.parametrize("state", UNDER_WAY)
def test_a_replica_that_is_no_longer_ours_loses_both_copies(state: State) -> None:
    ended, effects = step(state, Event.GONE)
    assert ended is State.DROPPED
    assert Effect.REMOVE_FUTURE in effects
    assert Effect.REVERT not in effects  # there is nobody to tell
    # Before the swap the current replica has its plain name, and is renamed as that of any deleted topic.
    assert (Effect.REMOVE_SOURCE in effects) == (state in (*IN_SWAP, State.FINISHING))


@pytest.mark.parametrize("state", UNDER_WAY)
def test_mv_15_an_agent_that_stops_leaves_the_future_replica_for_the_next_start(state: State) -> None:
    assert step(state, Event.STOPPING) == (State.LEFT, ())


@pytest.mark.parametrize("state", UNDER_WAY)
@pytest.mark.parametrize("event", [e for e in Event if e not in PROGRESS])
def test_no_end_leaves_the_source_renamed_while_it_can_be_reached(state: State, event: Event) -> None:
    """What is not undone at once is being undone, or was asked for by someone who wants it gone, or is for a start."""
    ended, effects = step(state, event)
    if state in IN_SWAP and ended.ended and event not in (Event.GONE, Event.STOPPING, Event.BOTH_FAILED):
        assert Effect.SOURCE_BACK in effects


# ------------------------------------------------------------------------------------------------------ after a start


def test_mv_15_a_future_replica_that_was_found_goes_on_from_the_beginning() -> None:
    event = resumed(current=True, renamed=False, assigned_here=False)
    assert after(event, start=State.FOUND) == (State.NONE, [])


def test_mv_9_a_move_that_the_controller_had_accepted_is_completed_without_asking_again() -> None:
    event = resumed(current=True, renamed=False, assigned_here=True)
    state, effects = after(event, Event.CAUGHT_UP, Event.SOURCE_RENAMED, Event.CAUGHT_UP, start=State.FOUND)
    assert (state, effects) == (State.PROMOTING, [])


def test_mv_8_a_future_replica_alone_in_the_assigned_directory_is_promoted() -> None:
    event = resumed(current=False, renamed=False, assigned_here=True)
    assert after(event, Event.SWAPPED, start=State.FOUND) == (
        State.EFFECTIVE,
        [Effect.PROMOTED, Effect.REMOVE_SOURCE],
    )


def test_a_crash_within_the_swap_loses_nothing_of_the_last_difference() -> None:
    event = resumed(current=False, renamed=True, assigned_here=True)
    assert after(event, start=State.FOUND) == (State.RENAMED, [])


def test_a_renamed_source_that_the_metadata_name_gets_its_name_back() -> None:
    event = resumed(current=False, renamed=True, assigned_here=False)
    assert after(event, start=State.FOUND) == (State.RESTORING, [])


def test_a_future_replica_that_nobody_names_and_nothing_explains_is_left_alone() -> None:
    event = resumed(current=False, renamed=False, assigned_here=False)
    assert after(event, start=State.FOUND) == (State.LEFT, [])


def test_the_two_names_of_a_swap_share_their_digits() -> None:
    future = future_name("my.topic-2", 7, "0123456789abcdef" * 2)
    assert future == "my.topic-2-7.0123456789abcdef0123456789abcdef-future"
    assert source_name(future) == "my.topic-2-7.0123456789abcdef0123456789abcdef-delete"


@pytest.mark.parametrize(
    ("failed", "other_failed", "equal", "event"),
    [
        (D1, False, False, Event.SOURCE_FAILED),
        (D1, False, True, Event.SOURCE_FAILED_EQUAL),
        (D2, False, True, Event.DESTINATION_FAILED),
        (D1, True, True, Event.BOTH_FAILED),
        (D2, True, False, Event.BOTH_FAILED),
    ],
)
def test_the_failure_of_a_directory_is_told_from_the_other_one(
    failed: Uuid, other_failed: bool, equal: bool, event: Event
) -> None:
    assert directory_failed(failed, D1, D2, other_failed=other_failed, equal=equal) is event


# ---------------------------------------------------------------------------------------------------- who may copy now


def lane(number: int, source: Uuid | None, destination: Uuid) -> Lane:
    return Lane(TopicIdPartition(Uuid.of(3, 1), number), source, destination)


def numbers(found: list[TopicIdPartition]) -> list[int]:
    return [each.partition for each in found]


def test_one_move_at_a_time_reads_from_or_writes_to_a_directory() -> None:
    assert numbers(may_run([], [lane(0, D1, D2), lane(1, D1, D2), lane(2, D3, D1)], 1)) == [0]


def test_moves_between_other_directories_go_on_beside_it() -> None:
    d4 = Uuid.of(2, 4)
    assert numbers(may_run([lane(0, D1, D2)], [lane(1, D3, d4), lane(2, D2, d4)], 1)) == [1]


def test_a_move_that_waits_is_not_overtaken_on_its_directories() -> None:
    waiting = [lane(1, D2, D3), lane(2, D3, Uuid.of(2, 4))]
    assert numbers(may_run([lane(0, D1, D2)], waiting, 1)) == []


def test_several_at_a_time_when_configured() -> None:
    assert numbers(may_run([lane(0, D1, D2)], [lane(1, D1, D2), lane(2, D1, D2)], 2)) == [1]
    assert numbers(may_run([], [lane(0, None, D2), lane(1, D2, D1), lane(2, D1, D2)], 2)) == [0, 1]


# ------------------------------------------------------------------------------------------------- AlterReplicaLogDirs

FINE = Situation(
    name_bytes=50,
    configured=True,
    online=True,
    cordoned=False,
    offline=False,
    hosted=True,
    known=True,
    current_here=False,
    future=Future.NONE,
    some_offline=False,
)
"""A replica here, and another directory that would take it."""


def test_mv_10_a_replica_is_moved_to_another_directory() -> None:
    assert judge(FINE) == Judgement(ErrorCode.NONE, begin=True)


def test_mv_11_alter_row_1_a_name_too_long_for_a_future_replica() -> None:
    assert judge(replace(FINE, name_bytes=255)).code == ErrorCode.NONE
    assert judge(replace(FINE, name_bytes=256, configured=False)) == Judgement(ErrorCode.INVALID_TOPIC_EXCEPTION)


def test_mv_11_alter_row_2_a_directory_that_is_not_configured() -> None:
    situation = replace(FINE, configured=False, online=False, known=False, hosted=False)
    assert judge(situation) == Judgement(ErrorCode.LOG_DIR_NOT_FOUND)


def test_mv_11_alter_row_3_a_destination_that_is_offline() -> None:
    assert judge(replace(FINE, online=False, some_offline=True)) == Judgement(ErrorCode.KAFKA_STORAGE_ERROR)


def test_co_4_a_cordoned_destination_is_refused() -> None:
    assert judge(replace(FINE, cordoned=True)) == Judgement(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    assert judge(replace(FINE, cordoned=True, known=False, hosted=False)).code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert judge(replace(FINE, cordoned=True, online=False)).code == ErrorCode.KAFKA_STORAGE_ERROR


def test_mv_11_alter_row_4_a_replica_in_an_offline_directory() -> None:
    situation = replace(FINE, offline=True, hosted=False, some_offline=True)
    assert judge(situation) == Judgement(ErrorCode.KAFKA_STORAGE_ERROR)


def test_mv_11_alter_row_5_a_move_to_another_directory_ends_for_the_new_one() -> None:
    situation = replace(FINE, future=Future.ELSEWHERE)
    assert judge(situation) == Judgement(ErrorCode.NONE, cancel=True, begin=True)


def test_mv_11_alter_row_7_a_replica_that_is_not_made_yet_remembers_where_it_is_wanted() -> None:
    assert judge(replace(FINE, hosted=False)) == Judgement(ErrorCode.REPLICA_NOT_AVAILABLE, prefer=True)


def test_mv_10_alter_row_8_so_does_one_of_a_topic_that_is_not_there_yet() -> None:
    situation = replace(FINE, hosted=False, known=False)
    assert judge(situation) == Judgement(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, prefer=True)
    assert judge(replace(situation, some_offline=True)).code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_mv_11_alter_row_9_a_move_to_where_it_is_is_done() -> None:
    assert judge(replace(FINE, current_here=True, some_offline=True)) == Judgement(ErrorCode.NONE)


def test_mv_11_alter_row_9_a_move_to_where_it_goes_is_under_way() -> None:
    assert judge(replace(FINE, future=Future.HERE, some_offline=True)) == Judgement(ErrorCode.NONE)


def test_a_move_back_to_where_it_is_ends_the_move() -> None:
    situation = replace(FINE, current_here=True, future=Future.ELSEWHERE)
    assert judge(situation) == Judgement(ErrorCode.NONE, cancel=True)


def test_mv_11_alter_row_10_no_move_begins_while_a_directory_is_offline() -> None:
    assert judge(replace(FINE, some_offline=True)) == Judgement(ErrorCode.KAFKA_STORAGE_ERROR, prefer=True)
    situation = replace(FINE, some_offline=True, future=Future.ELSEWHERE)
    assert judge(situation) == Judgement(ErrorCode.KAFKA_STORAGE_ERROR, cancel=True, prefer=True)


def test_a_refusal_changes_nothing() -> None:
    """Rows 1 to 4, whatever else is the case."""
    flags = itertools.product([True, False], repeat=6)
    for configured, online, cordoned, offline, hosted, known in flags:
        for future in Future:
            now = replace(
                FINE,
                configured=configured,
                online=online,
                cordoned=cordoned,
                offline=offline,
                hosted=hosted,
                known=known,
                future=future,
            )
            judgement = judge(now)
            if not configured or not online or cordoned or offline:
                assert judgement == Judgement(judgement.code)
                assert judgement.code != ErrorCode.NONE
            assert not (judgement.begin and judgement.prefer)

"""When a failed directory ends the process, and when not."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kjbod.ids import Uuid
from kjbod_agent.failures import (
    Failures,
    Stop,
    added,
    decide,
    directory_failed,
    forgotten,
    is_overdue,
    next_deadline_ms,
    placed,
    reported,
    resumed,
    retired,
)
from kjbod_agent.failures import misplaced as place_elsewhere
from kjbod_host.partitions import TopicIdPartition
from tests.depth import examples

A, B, C, METADATA = (Uuid.of(1, n) for n in range(1, 5))
P, Q = TopicIdPartition(Uuid.of(7, 7), 0), TopicIdPartition(Uuid.of(7, 7), 1)
TIMEOUT_MS = 30_000


def healthy(*usable: Uuid, metadata: Uuid = METADATA) -> Failures:
    return Failures(timeout_ms=TIMEOUT_MS, usable=frozenset(usable), metadata_directory=metadata)


def fail(
    state: Failures, directory: Uuid, at_ms: int, misplaced: tuple[TopicIdPartition, ...] = ()
) -> tuple[Failures, Stop | None]:
    known = state.of(directory) is not None
    after, stop = directory_failed(
        state, directory, path=f"/mnt/{directory}", cause="EIO at fsync", now_ms=at_ms, wall_ms=0
    )
    return after if known else place_elsewhere(after, directory, misplaced, at_ms), stop


def leads_some(_directory: Uuid) -> int:
    return 3


def leads_none(_directory: Uuid) -> int:
    return 0


def leads_unknown(_directory: Uuid) -> None:
    return None


def test_one_of_several_directories_may_fail_and_the_broker_goes_on() -> None:
    state, stop = fail(healthy(A, B), A, 0)
    assert stop is None
    assert state.usable == {B}


def test_the_last_directory_ends_the_process_at_once_and_all_failed_ones_are_named() -> None:
    state, _ = fail(healthy(A, B), A, 0)
    _, stop = fail(state, B, 10)
    assert stop is not None
    assert f"/mnt/{A}" in stop.reason and f"/mnt/{B}" in stop.reason


def test_a_single_directory_broker_stops_at_once() -> None:
    assert fail(healthy(A), A, 0)[1] is not None


def test_the_metadata_directory_ends_the_process_at_once_also_when_it_holds_no_replicas() -> None:
    assert fail(healthy(A, B, metadata=A), A, 0)[1] is not None
    assert fail(healthy(A, B), METADATA, 0)[1] is not None


def test_a_directory_that_cannot_be_reported_ends_the_process_in_time_if_it_leads_there() -> None:
    state, _ = fail(healthy(A, B), A, 1_000)
    assert decide(state, leads_some, 1_000 + TIMEOUT_MS - 1) is None
    stop = decide(state, leads_some, 1_000 + TIMEOUT_MS)
    assert stop is not None
    for part in (f"/mnt/{A}", str(A), "failed since 1970-01-01T00:00:00.000+00:00", "EIO at fsync", "leads 3"):
        assert part in stop.reason


def test_unknown_leadership_counts_as_leadership() -> None:
    state, _ = fail(healthy(A, B), A, 0)
    assert decide(state, leads_unknown, TIMEOUT_MS) is not None


def test_without_leadership_the_process_stays_until_leadership_comes() -> None:
    state, _ = fail(healthy(A, B), A, 0)
    assert decide(state, leads_none, TIMEOUT_MS) is None
    assert is_overdue(state, TIMEOUT_MS)
    assert next_deadline_ms(state, TIMEOUT_MS) is None
    assert decide(state, leads_some, TIMEOUT_MS + 5) is not None


def test_a_second_failure_does_not_put_off_the_deadline_of_the_first() -> None:
    state, _ = fail(healthy(A, B, C), A, 0)
    state, _ = fail(state, B, 20_000)
    state = reported(state, [B])
    assert next_deadline_ms(state, 20_000) == TIMEOUT_MS
    stop = decide(state, leads_some, TIMEOUT_MS)
    assert stop is not None and f"/mnt/{A}" in stop.reason


def test_only_what_was_reported_is_settled() -> None:
    state, _ = fail(healthy(A, B, C), A, 0)
    state, _ = fail(state, B, 0)
    state = reported(state, [A])
    stop = decide(state, leads_some, TIMEOUT_MS)
    assert stop is not None and f"/mnt/{B}" in stop.reason
    assert decide(reported(state, [B]), leads_some, TIMEOUT_MS) is None


def test_a_replica_that_the_metadata_do_not_place_in_the_failed_directory_has_to_be_placed_there_too() -> None:
    state, _ = fail(healthy(A, B), A, 0, misplaced=(P, Q))
    state = placed(reported(state, [A]), [P])
    stop = decide(state, leads_some, TIMEOUT_MS)
    assert stop is not None and "1 replicas in it could not be assigned to it" in stop.reason
    assert decide(placed(state, [Q]), leads_some, TIMEOUT_MS) is None


def test_a_directory_that_a_new_registration_revives_gets_a_new_deadline() -> None:
    state, _ = fail(healthy(A, B), A, 0)
    state = forgotten(reported(state, [A]), [A], 50_000)
    assert decide(state, leads_some, 50_000 + TIMEOUT_MS - 1) is None
    assert decide(state, leads_some, 50_000 + TIMEOUT_MS) is not None


def test_a_new_registration_does_not_put_off_a_deadline_that_runs() -> None:
    state, _ = fail(healthy(A, B), A, 0)
    assert decide(forgotten(state, [A], 29_000), leads_some, TIMEOUT_MS) is not None


def test_a_directory_fails_once() -> None:
    state, _ = fail(healthy(A, B), A, 0)
    assert fail(state, A, 25_000) == (state, None)


events = st.one_of(
    st.tuples(st.just("fail"), st.sampled_from([A, B])),
    st.tuples(st.just("reported"), st.sampled_from([A, B])),
    st.tuples(st.just("placed"), st.sampled_from([P, Q])),
    st.tuples(st.just("forgotten"), st.sampled_from([A, B])),
)


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(events, st.integers(0, 10_000)), max_size=40))
def test_no_directory_stays_unsettled_past_its_deadline_with_leaders_on_it(
    script: list[tuple[tuple[str, object], int]],
) -> None:
    state, now_ms = healthy(A, B, C), 0
    open_since: dict[Uuid, int] = {}
    for (kind, value), wait_ms in script:
        now_ms += wait_ms
        if kind == "fail" and isinstance(value, Uuid):
            if state.of(value) is None:
                open_since[value] = now_ms
            state, stop = fail(state, value, now_ms, misplaced=(P,) if value == A else ())
            assert stop is None
        elif kind == "reported" and isinstance(value, Uuid):
            state = reported(state, [value])
        elif kind == "placed" and isinstance(value, TopicIdPartition):
            state = placed(state, [value])
        elif isinstance(value, Uuid):
            before = state.of(value)
            if before is not None and before.settled:
                open_since[value] = now_ms
            state = forgotten(state, [value], now_ms)
        unsettled = [f.directory_id for f in state.failed if not f.settled]
        late = [d for d in unsettled if now_ms - open_since[d] >= TIMEOUT_MS]
        assert (decide(state, leads_some, now_ms) is not None) is bool(late)


def test_a_replica_that_the_metadata_take_out_of_a_settled_directory_starts_a_new_deadline() -> None:
    state, _ = fail(healthy(A, B), A, 0)
    state = place_elsewhere(reported(state, [A]), A, [P], 100_000)
    assert decide(state, leads_some, 100_000) is None
    assert decide(state, leads_some, 100_000 + state.timeout_ms) is not None
    assert place_elsewhere(state, A, [P], 110_000) == state, "the same again does not put it off"


def test_a_replaced_disk_leaves_the_failures_and_the_new_one_is_one_more_to_live_on() -> None:
    state, _ = fail(healthy(A, B), A, 0)
    state = added(retired(reported(state, [A]), A), C)
    assert (state.usable, state.failed) == (frozenset({B, C}), ())
    after, stop = fail(state, B, 1_000)
    assert stop is None and after.usable == {C}


def test_a_disk_that_is_well_again_may_fail_again_with_a_deadline_of_its_own() -> None:
    state, _ = fail(healthy(A, B), A, 0)
    state, _ = fail(added(reported(state, [A]), A), A, 50_000)
    failure = state.of(A)
    assert failure is not None and not failure.reported and failure.deadline_ms == 50_000 + TIMEOUT_MS


def test_other_failures_keep_their_deadlines_when_a_disk_is_replaced() -> None:
    state, _ = fail(healthy(A, B, C), A, 0)
    state, _ = fail(state, B, 10_000)
    after = added(retired(reported(state, [A]), A), METADATA)
    assert after.of(B) == state.of(B)


def test_after_a_pause_what_passed_meanwhile_is_decided_one_round_later_and_no_deadline_comes_sooner() -> None:
    state, _ = fail(healthy(A, B, C), A, 0)
    state, _ = fail(state, B, 200_000)
    state = resumed(state, decided_ms=102_000)
    assert decide(state, leads_some, 101_999) is None
    assert next_deadline_ms(state, 100_000) == 102_000
    stop = decide(state, leads_some, 102_000)
    assert stop is not None
    assert str(A) in stop.reason
    assert decide(reported(state, [A]), leads_some, 229_999) is None
    assert decide(reported(state, [A]), leads_some, 230_000) is not None

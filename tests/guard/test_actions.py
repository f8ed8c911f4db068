"""What came of many partitions, in one: several requests to the controllers, one after the other."""

import pytest

from kjbod_guard.actions import REQUEST_PARTITIONS_MAX, Done, Outcome, in_requests, summed

DONE = Done(outcome=Outcome.DONE, took_ms=40)
FAILED = Done(outcome=Outcome.FAILED, reason="NOT_CONTROLLER (41)", took_ms=40)
REFUSED = Done(outcome=Outcome.REFUSED, reason="CLUSTER_AUTHORIZATION_FAILED (31)", took_ms=40)
PENDING = Done(outcome=Outcome.PENDING, reason="no answer within 5000 ms", took_ms=40)


def test_two_requests_that_took_equally_long_took_twice_as_long() -> None:
    names = [("t", number) for number in range(REQUEST_PARTITIONS_MAX + 1)]
    answers = [dict.fromkeys(piece, DONE) for piece in in_requests(names)]
    assert [len(one) for one in answers] == [REQUEST_PARTITIONS_MAX, 1]
    assert summed(answers) == Done(outcome=Outcome.DONE, took_ms=80)


def test_a_partition_that_the_controller_left_out_of_its_answer_adds_no_time() -> None:
    left_out = Done(outcome=Outcome.FAILED, reason="left out")
    found = summed([{("t", 0): left_out, ("t", 1): DONE}])
    assert found == Done(
        outcome=Outcome.DONE, reason="1 of 2 partitions: left out", took_ms=40, refused={("t", 0): "left out"}
    )


def test_of_a_partition_that_was_asked_about_twice_the_last_answer_counts() -> None:
    reason = "1 of 1 partitions: NOT_CONTROLLER (41)"
    assert summed([{("t", 0): DONE}, {("t", 0): FAILED}]) == Done(
        outcome=Outcome.FAILED, reason=reason, took_ms=80, refused={("t", 0): FAILED.reason}
    )
    assert summed([{("t", 0): FAILED}, {("t", 0): DONE}]) == Done(outcome=Outcome.DONE, took_ms=80)


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([DONE, DONE], Outcome.DONE),
        ([DONE, FAILED], Outcome.DONE),
        ([REFUSED, DONE], Outcome.DONE),
        ([FAILED, FAILED], Outcome.FAILED),
        ([REFUSED, FAILED], Outcome.FAILED),
        ([FAILED, REFUSED], Outcome.FAILED),
        ([REFUSED, REFUSED], Outcome.REFUSED),
        ([PENDING, REFUSED], Outcome.DONE),
    ],
)
def test_it_is_done_where_it_is_for_one_partition_and_each_other_one_is_told_with_its_reason(
    answers: list[Done], outcome: Outcome
) -> None:
    told = {("t", number): one for number, one in enumerate(answers)}
    refused = {name: one.reason for name, one in told.items() if one in (FAILED, REFUSED)}
    reason = f"{len(refused)} of 2 partitions: {next(iter(refused.values()))}" if refused else ""
    assert summed([told]) == Done(outcome=outcome, reason=reason, took_ms=40, refused=refused)


def test_nothing_to_be_asked_is_done() -> None:
    assert summed([]) == summed([{}]) == Done(outcome=Outcome.DONE)

"""Which broker may be unregistered without a word, and what is said of others."""

import pytest

from kjbod.cluster.partitions import Share
from kjbod.cluster.unregistering import Standing, objections, refusal
from kjbod.wire.error_codes import ErrorCode


@pytest.mark.parametrize(
    ("fenced", "replicas", "force", "stranded", "said"),
    [
        (True, 0, False, False, []),
        (True, 3, False, False, ["3 replicas, 1 of them the only copy in sync: move them"]),
        (True, 3, False, True, []),
        (True, 3, True, False, ["3 replicas"]),
        (False, 0, False, False, ["broker 5 is alive: stop it first"]),
        (False, 0, False, True, ["broker 5 is alive"]),
        (False, 0, True, False, []),
        (False, 3, False, False, ["broker 5 is alive", "3 replicas"]),
        (False, 3, True, True, []),
    ],
)
def test_a_broker_that_is_alive_or_has_replicas_is_left_unless_told_otherwise(
    fenced: bool, replicas: int, force: bool, stranded: bool, said: list[str]
) -> None:
    standing = Standing(registered=True, fenced=fenced, share=Share(replicas, sole=min(replicas, 1)), whole=True)
    found = objections(5, standing, force=force, stranded=stranded)
    assert len(found) == len(said)
    assert all(part in line for part, line in zip(said, found, strict=True))


def test_an_unknown_broker_is_named_with_those_that_there_are() -> None:
    standing = Standing(registered=False, fenced=True, share=Share(), others=[2, 1], whole=True)
    assert objections(5, standing, force=True, stranded=True) == ["broker 5 is not registered: there are 1, 2"]
    nobody = Standing(registered=False, fenced=True, share=Share(), whole=False)
    assert objections(5, nobody, force=False, stranded=False) == ["broker 5 is not registered: there are none"]


@pytest.mark.parametrize(
    ("replicas", "said"), [(0, "it is not known whether broker 5 still has"), (3, "at least 3 re")]
)
def test_a_broker_of_which_not_all_topics_are_seen_is_left_unless_told_otherwise(replicas: int, said: str) -> None:
    standing = Standing(registered=True, fenced=True, share=Share(replicas), whole=False)
    (line,) = objections(5, standing, force=True, stranded=False)
    assert said in line and "--yes" in line
    assert objections(5, standing, force=False, stranded=True) == []


def test_a_refusal_says_which_right_is_missing_in_a_line() -> None:
    java = "Error to be thrown" + "x" * 5000
    assert refusal(5, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, java) == (
        "broker 5 was not unregistered: CLUSTER_AUTHORIZATION_FAILED: it takes ALTER on the cluster"
    )
    other = refusal(5, ErrorCode.INVALID_REQUEST, "no\n\x1b[2J" + "x" * 5000)
    assert other.startswith("broker 5 was not unregistered: INVALID_REQUEST: no\\n\\x1b[2Jxx") and len(other) < 300


def test_an_error_that_leaves_the_outcome_open_is_no_refusal() -> None:
    line = refusal(5, ErrorCode.REQUEST_TIMED_OUT, None)
    assert line.startswith("it is not known whether broker 5 was unregistered: REQUEST_TIMED_OUT")
    assert "kjbod cluster log-dirs" in line

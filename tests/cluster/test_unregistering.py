"""Which broker may be unregistered without a word, and what is said of others."""

import pytest

from kjbod.cluster.partitions import Share
from kjbod.cluster.unregistering import Standing, objections


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
    standing = Standing(registered=True, fenced=fenced, share=Share(replicas, sole=min(replicas, 1)))
    found = objections(5, standing, force=force, stranded=stranded)
    assert len(found) == len(said)
    assert all(part in line for part, line in zip(said, found, strict=True))


def test_an_unknown_broker_is_named_with_those_that_there_are() -> None:
    standing = Standing(registered=False, fenced=True, share=Share(), others=[2, 1])
    assert objections(5, standing, force=True, stranded=True) == ["broker 5 is not registered: there are 1, 2"]
    nobody = Standing(registered=False, fenced=True, share=Share())
    assert objections(5, nobody, force=False, stranded=False) == ["broker 5 is not registered: there are none"]

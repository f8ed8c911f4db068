"""Which replica directories of a guard's broker are strays, by their names and by the metadata."""

import pytest

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod_guard.observing import Observed, Placed
from kjbod_guard.stray_rules import DELETED, EVICTED, SET_ASIDE, strays
from kjbod_host.storage.api import Replica, ReplicaSuffix
from kjbod_host.strays import NO_TOPIC, NOT_HERE

HERE, THERE, UNKNOWN = Uuid.of(5, 1), Uuid.of(5, 2), Uuid.of(5, 3)
PATHS = {HERE: "/mnt/d1", THERE: "/mnt/d2"}
TOPIC = Uuid.of(3, 1)


def metadata(directory: Uuid | None, *, evicted: bool = False) -> Observed:
    """Metadata with the topic orders, of which partition 0 lies in this directory of broker 1; None: it does not."""
    observed = Observed(1, topics={TOPIC: "orders"})
    if directory is not None:
        observed.partitions[TOPIC, 0] = Placed(0, directory, True)
    if evicted:
        observed.follow_evicted([(TOPIC, 0)])
    return observed


def reason(observed: Observed | None, suffix: ReplicaSuffix = "", topic: str = "orders") -> str | None:
    """Why partition 0 of a topic in /mnt/d1 is a stray; None: it is none."""
    found = strays([Replica("name", topic, 0, None, suffix)], HERE, observed, PATHS)
    return found[0].reason if found else None


@pytest.mark.parametrize("observed", [None, metadata(HERE), metadata(None)])
def test_names_tell_what_the_broker_set_aside_or_removes(observed: Observed | None) -> None:
    assert reason(observed, "stray") == SET_ASIDE
    assert reason(observed, "delete") == DELETED
    assert reason(observed, "future") is None, "a move writes to it"


def test_a_replica_is_where_the_metadata_assign_it() -> None:
    assert reason(metadata(HERE)) is None


@pytest.mark.parametrize("directory", [MIGRATING, UNASSIGNED, LOST])
def test_a_replica_that_the_broker_has_not_assigned_yet_is_no_stray(directory: Uuid) -> None:
    assert reason(metadata(directory)) is None


def test_a_replica_of_a_topic_or_partition_that_the_metadata_do_not_place_on_the_broker_is_a_stray() -> None:
    assert reason(metadata(HERE), topic="gone") == NO_TOPIC
    assert reason(metadata(None)) == NOT_HERE


def test_a_replica_that_the_metadata_assign_to_another_directory_is_a_stray_and_that_directory_is_named() -> None:
    assert reason(metadata(THERE)) == "the metadata assign this replica to /mnt/d2"
    assert reason(metadata(UNKNOWN)) == f"the metadata assign this replica to directory {UNKNOWN}"


def test_a_replica_that_the_guard_evicted_is_named_with_the_way_back() -> None:
    assert reason(metadata(None, evicted=True)) == EVICTED
    assert "kjbod guard restore" in EVICTED


def test_without_the_metadata_no_replica_with_a_plain_name_is_called_a_stray() -> None:
    assert reason(None) is None

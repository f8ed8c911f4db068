"""Copies that count, and what an act that cannot be undone may cost by them. Helpers of other tests, too: the metadata
of broker 1, whose partitions other brokers have as well."""

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata.image import BrokerRegistration
from kjbod_guard.copies import Need, copies, named, need
from kjbod_guard.observing import ALWAYS, Observed, Placed
from kjbod_guard.suspects import Neighbour, Suspects, decode, encode

NODE, EPOCH = 1, 5
OTHERS = (2, 3, 4)
D1, D2 = Uuid.of(5, 1), Uuid.of(5, 2)
T = Uuid.of(7, 1)


def home(broker: int) -> Uuid:
    """The directory of another broker in which all of its replicas lie."""
    return Uuid.of(6, broker)


def placed(*replicas: int, at: Uuid = D1, isr: tuple[int, ...] | None = None, **changes: Any) -> Placed:
    """A partition: the replica of broker 1 lies at ``at``, and each other one in the :func:`home` of its broker. All
    are in sync, and the first one leads, if nothing else is said."""
    first = replicas[0] if replicas else -1
    found = Placed(
        position=replicas.index(NODE) if NODE in replicas else -1,
        directory=at if NODE in replicas else MIGRATING,
        leads=first == NODE,
        replicas=replicas,
        isr=replicas if isr is None else isr,
        directories=tuple(at if one == NODE else home(one) for one in replicas),
        leader=first,
    )
    return replace(found, **changes)


ALL = placed(1, 2, 3)


def neighbour(broker: int, **changes: Any) -> Neighbour:
    return replace(Neighbour(EPOCH, True, frozenset([home(broker)])), **changes)


def observed(*partitions: Placed, min_isr: int = 2, online: tuple[Uuid, ...] = (D1, D2)) -> Observed:
    """The metadata of broker 1, complete, with partitions ``t-0``, ``t-1`` and so on; three other brokers are there."""
    found = Observed(NODE, complete=True, came=True, topics={T: "t"}, min_isr={"t": min_isr}, known_ms=ALWAYS)
    found.registration = BrokerRegistration(
        id=NODE, epoch=EPOCH, incarnation_id=Uuid.of(9, 1), fenced=False, log_dirs=online
    )
    found.partitions = {(T, number): one for number, one in enumerate(partitions)}
    found.neighbours = {broker: neighbour(broker) for broker in OTHERS}
    return found


def suspected(*directories: Uuid, epoch: int | None = EPOCH, offset: int = 10, seen_ms: int = 0) -> Suspects:
    """The record of a guard; no directories: all of its broker. No epoch: it cannot be read."""
    value = "not JSON" if epoch is None else encode(epoch, list(map(str, directories)), "g-1")
    return decode(value, offset, seen_ms)


# --------------------------------------------------------------------------------------------------- copies that count


@pytest.mark.parametrize(
    ("partition", "its", "record", "counts"),
    [
        (ALL, neighbour(2), None, True),
        (replace(ALL, isr=(1, 3)), neighbour(2), None, False),
        (replace(ALL, replicas=(1, 3), isr=(1, 3)), neighbour(2), None, False),
        (ALL, None, None, False),
        (ALL, neighbour(2, active=False), None, False),
        (ALL, neighbour(2, log_dirs=frozenset([home(9)])), None, False),
        (ALL, neighbour(2, log_dirs=frozenset()), None, False),
        *((replace(ALL, directories=(D1, one, home(3))), neighbour(2), None, False) for one in (LOST, UNASSIGNED)),
        (replace(ALL, directories=(D1, MIGRATING, home(3))), neighbour(2), None, False),
        (replace(ALL, directories=()), neighbour(2), None, False),
        (ALL, neighbour(2), suspected(home(2)), False),
        (ALL, neighbour(2), suspected(), False),
        (ALL, neighbour(2), suspected(home(9)), True),
        (ALL, neighbour(2), suspected(home(2), epoch=EPOCH - 1), True),
        (ALL, neighbour(2), suspected(epoch=None), False),
    ],
)
def test_a_copy_counts_where_it_is_in_sync_on_a_broker_and_in_a_directory_that_nothing_speaks_against(
    partition: Placed, its: Neighbour | None, record: Suspects | None, counts: bool
) -> None:
    now = observed(partition)
    now.neighbours.pop(2)
    if its is not None:
        now.neighbours[2] = its
    if record is not None:
        now.suspects[2] = record
    assert (2 in copies(now, partition)) is counts


def test_the_copy_of_the_broker_itself_never_counts() -> None:
    assert copies(observed(ALL), ALL) == (2, 3)


# ------------------------------------------------------------------------------------------------------ what is needed

SHORT = placed(1, 2, 3, isr=(1, 3))
SOLE = placed(1, 2, 3, isr=(1,))
LEFT = placed(1, 2, 3, isr=(2, 3))


@pytest.mark.parametrize(
    ("partitions", "directories", "expected"),
    [
        ([], [D1], Need()),
        ([LEFT], [D1], Need()),
        ([ALL], [D1], Need(in_sync=("t-0",))),
        ([SHORT, SOLE], [D1], Need(sole=("t-1",), short=("t-0",), in_sync=("t-0", "t-1"))),
        ([replace(LEFT, isr=(3,))], [D1], Need(short=("t-0",))),
        ([replace(LEFT, isr=())], [D1], Need(sole=("t-0",))),
        ([SOLE], [D2], Need()),
        ([ALL, placed(1, 2, 3, at=D2, isr=(1,))], [D1, D2], Need(sole=("t-1",), in_sync=("t-0", "t-1"))),
        # A replica whose directory nobody has recorded may lie there. Nobody counts it, so it is not waited for.
        *(([placed(1, 2, 3, at=one)], [D1], Need()) for one in (LOST, UNASSIGNED, MIGRATING)),
        *(([placed(1, 2, at=one, isr=(1,))], [D1], Need(sole=("t-0",))) for one in (LOST, UNASSIGNED, MIGRATING)),
        # The broker as a whole: only what it has in sync, in any directory that is online.
        ([ALL, LEFT, SOLE], None, Need(sole=("t-2",), in_sync=("t-0", "t-2"))),
        ([placed(1, 2, 3, at=D2, isr=(1,))], None, Need(sole=("t-0",), in_sync=("t-0",))),
        ([placed(1, 2, 3, at=Uuid.of(5, 9), isr=(1,))], None, Need()),
        ([replace(LEFT, isr=())], None, Need()),
    ],
)
def test_partitions_need_a_replica_here_where_too_few_copies_elsewhere_count(
    partitions: list[Placed], directories: list[Uuid] | None, expected: Need
) -> None:
    assert need(observed(*partitions), directories, 1) == expected


def test_a_topic_without_its_own_min_insync_replicas_is_held_to_that_of_the_brokers_file() -> None:
    now = observed(SHORT)
    now.min_isr.clear()
    assert (need(now, [D1], 1).short, need(now, [D1], 2).short) == ((), ("t-0",))


def test_a_partition_of_a_deleted_topic_needs_nothing() -> None:
    now = observed(SOLE)
    del now.partitions[T, 0]
    assert need(now, [D1], 1) == Need()


@pytest.mark.parametrize(
    ("needed", "refusal", "shut_down"),
    [
        (Need(), None, None),
        (Need(in_sync=("t-0",)), None, "the metadata still have the replica here in the ISR of t-0"),
        (
            Need(in_sync=("t-1", "t-0")),
            None,
            "the metadata still have the replica here in the ISR of 2 partitions (t-0 is one)",
        ),
        (Need(sole=("t-0",), short=("t-1",), in_sync=("t-0",)), "t-0 has no other copy in sync", "t-0 has no other"),
        (
            Need(short=("t-0", "t-1")),
            "2 partitions (t-0 is one) have fewer other copies in sync than min.insync.replicas",
            "2 partitions (t-0 is one) have fewer",
        ),
    ],
)
def test_a_need_says_why_replicas_may_not_leave_and_why_a_file_system_may_not_be_shut_down(
    needed: Need, refusal: str | None, shut_down: str | None
) -> None:
    assert needed.refusal == refusal
    told = needed.why_not_shut_down
    assert (told is None) == (shut_down is None) and (told or "").startswith(shut_down or "")


def test_of_many_partitions_the_first_one_is_named() -> None:
    assert named(["t-1"]) == "t-1"
    assert named({"t-2", "t-1", "u-0"}) == "3 partitions (t-1 is one)"


ISRS = st.lists(st.integers(1, 4), unique=True).map(tuple)
PARTITIONS = st.lists(st.tuples(ISRS, st.sampled_from([D1, D2, UNASSIGNED])), max_size=4)


@given(PARTITIONS, st.integers(1, 3), st.sets(st.sampled_from(OTHERS)), st.sets(st.sampled_from(OTHERS)), st.booleans())
def test_what_may_be_shut_down_is_out_of_sync_here_and_has_enough_copies_on_brokers_that_nobody_doubts(
    parts: list[tuple[tuple[int, ...], Uuid]],
    min_isr: int,
    inactive: Collection[int],
    doubted: Collection[int],
    both: bool,
) -> None:
    now = observed(*(placed(1, 2, 3, 4, isr=isr, at=at) for isr, at in parts), min_isr=min_isr)
    for broker in inactive:
        now.neighbours[broker] = neighbour(broker, active=False)
    now.suspects = {broker: suspected(home(broker)) for broker in doubted}
    found = need(now, [D1, D2] if both else [D1], 1)
    for isr, at in parts:
        concerned = at != D2 or both
        enough = len({*isr} - {NODE, *inactive, *doubted}) >= max(1, min_isr)
        assert not concerned or enough or found.refusal is not None
        assert not concerned or NODE not in isr or at == UNASSIGNED or found.why_not_shut_down is not None
    if all(len({*isr} - {NODE, *inactive, *doubted}) >= max(1, min_isr) for isr, _ in parts):
        assert found.refusal is None, "nothing waits without a reason"


def test_a_replica_that_is_only_being_added_is_not_needed_before_it_is_in_sync() -> None:
    """Of a partition that becomes this broker's the ISR is not known before it changes."""
    joining = placed(2, 3, 1, at=UNASSIGNED, isr=(), adding=(1,))
    assert need(observed(joining), [D1], 2) == Need()
    assert need(observed(replace(joining, isr=(1,))), [D1], 2).sole == ("t-0",)

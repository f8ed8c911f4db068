"""KIP-858's table and what a broker does by it. Ids are those of kafka-jbod 9.5 and 9.7."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod_agent.partitions import TopicIdPartition
from kjbod_agent.replicas import (
    RULES,
    Action,
    Assigned,
    Decision,
    Found,
    Hidden,
    Inventory,
    Wanted,
    delete_name,
    look_up,
)

D1, D2, D3, UNREAD, FOREIGN = (Uuid.of(2, n) for n in range(1, 6))
TOPIC, OTHER_TOPIC = Uuid.of(3, 1), Uuid.of(3, 2)
P0 = TopicIdPartition(TOPIC, 0)

Copies = dict[Uuid, Iterable[tuple[str, Uuid | None]]]


def disks(
    copies: Copies | None = None, *, failed: Iterable[Uuid] = (), unread: Iterable[Uuid | None] = ()
) -> Inventory:
    """Three directories with these replica directories in them, by name and topic id."""
    inventory = Inventory([(D1, "/d1"), (D2, "/d2"), (D3, "/d3")], unread)
    for directory, found in (copies or {}).items():
        for name, topic_id in found:
            suffix = next((s for s in ("future", "delete", "stray") if name.endswith(f"-{s}")), "")
            number = int(name.split(".")[0].rpartition("-")[2])
            inventory.add(directory, name, number, topic_id, suffix)  # type: ignore[arg-type]  # one of the four
    for directory in failed:
        inventory.fail(directory)
    return inventory


def want(assigned: Uuid, partition: TopicIdPartition = P0, *, topic: str = "t", new: bool = False) -> Wanted:
    return Wanted(partition, topic, assigned, new)


def outcome(decision: Decision) -> tuple[Action, Uuid | None, bool]:
    return decision.action, decision.directory_id, decision.assign


HERE: Copies = {D1: [("t-0", TOPIC)]}
NOTHING = (Action.LEAVE, None, False)


def test_every_combination_of_metadata_disks_and_directories_is_decided_by_exactly_one_rule() -> None:
    for case in itertools.product(Assigned, Found, Hidden):
        assigned, found, hidden = case
        rules = [r for r in RULES if assigned in r.assigned and found in r.found and hidden in r.hidden]
        assert len(rules) == 1, case
        assert look_up(*case) is rules[0]


@pytest.mark.parametrize("assigned", [UNASSIGNED, MIGRATING])
@pytest.mark.parametrize("unread", [(), (UNREAD,)])
def test_a_replica_without_a_directory_that_exists_is_assigned_where_it_lies(
    assigned: Uuid, unread: tuple[Uuid, ...]
) -> None:
    assert outcome(disks(HERE, unread=unread).decide(want(assigned))) == (Action.ASSIGN, D1, True)


@pytest.mark.parametrize("assigned", [UNASSIGNED, MIGRATING, LOST, FOREIGN])
def test_rp_2_rp_3_rp_7_a_replica_that_lies_nowhere_is_created_in_the_emptiest_directory_and_assigned(
    assigned: Uuid,
) -> None:
    inventory = disks({D1: [("a-0", OTHER_TOPIC)], D2: [("a-1", OTHER_TOPIC)]})
    assert outcome(inventory.decide(want(assigned))) == (Action.CREATE_AND_ASSIGN, D3, True)


def test_rp_1_rp_6_a_replica_is_created_in_the_directory_that_the_metadata_name_and_nobody_is_told() -> None:
    assert outcome(disks().decide(want(D2))) == (Action.CREATE, D2, False)


def test_a_replica_that_lies_where_the_metadata_say_is_left_alone() -> None:
    assert outcome(disks(HERE).decide(want(D1))) == NOTHING


@pytest.mark.parametrize("assigned", [D2, LOST, FOREIGN])
def test_a_replica_that_was_moved_by_hand_is_accepted_and_corrected(assigned: Uuid) -> None:
    assert outcome(disks(HERE).decide(want(assigned))) == (Action.ASSIGN, D1, True)


@pytest.mark.parametrize("assigned", [LOST, FOREIGN, UNREAD])
def test_rp_8_nothing_is_created_while_the_copy_may_lie_in_an_offline_directory(assigned: Uuid) -> None:
    assert outcome(disks(unread=[UNREAD]).decide(want(assigned))) == NOTHING


@pytest.mark.parametrize("assigned", [UNASSIGNED, MIGRATING])
def test_an_unassigned_replica_whose_copy_may_lie_in_an_offline_directory_is_declared_lost_not_created_empty(
    assigned: Uuid,
) -> None:
    inventory = disks(unread=[None])
    assert outcome(inventory.decide(want(assigned))) == (Action.ASSIGN_LOST, LOST, True)
    assert inventory.locate(P0) is None


def test_a_new_topic_is_created_also_while_a_directory_is_offline() -> None:
    assert disks(unread=[UNREAD]).decide(want(UNASSIGNED, new=True)).action is Action.CREATE_AND_ASSIGN
    assert disks(failed=[D1]).decide(want(UNASSIGNED)).action is Action.CREATE_AND_ASSIGN


def test_a_replica_of_a_failed_directory_is_left_and_not_made_anew_elsewhere() -> None:
    inventory = disks(HERE, failed=[D1])
    assert outcome(inventory.decide(want(D1))) == NOTHING
    assert outcome(disks(failed=[D1]).decide(want(D1))) == NOTHING


def test_a_replica_in_a_failed_directory_that_the_metadata_do_not_place_there_is_assigned_to_it() -> None:
    assert outcome(disks(HERE, failed=[D1]).decide(want(UNASSIGNED))) == (Action.ASSIGN, D1, True)


def test_rp_5_new_replicas_are_spread_evenly() -> None:
    inventory = disks()
    for number in range(31):
        inventory.decide(want(UNASSIGNED, TopicIdPartition(TOPIC, number)))
    assert sorted(inventory.replica_count(d) for d in (D1, D2, D3)) == [10, 10, 11]


def test_rp_4_a_creation_that_fails_is_tried_in_another_directory() -> None:
    inventory = disks()
    first = inventory.decide(want(UNASSIGNED)).directory_id
    inventory.not_created(P0)
    second = inventory.decide(want(UNASSIGNED)).directory_id
    assert second is not None and second != first


def test_what_is_being_created_is_not_created_twice() -> None:
    inventory = disks()
    inventory.decide(want(UNASSIGNED))
    assert outcome(inventory.decide(want(UNASSIGNED))) == NOTHING
    assert inventory.created(P0) == D1
    assert outcome(inventory.decide(want(UNASSIGNED))) == (Action.ASSIGN, D1, True)


def test_a_creation_that_a_failing_directory_swallowed_is_done_elsewhere() -> None:
    inventory = disks()
    assert inventory.decide(want(UNASSIGNED)).directory_id == D1
    inventory.fail(D1)
    assert inventory.created(P0) is None
    assert inventory.decide(want(UNASSIGNED)).directory_id == D2


def test_the_same_replica_in_two_directories_is_an_error_that_names_both() -> None:
    decision = disks({D1: [("t-0", TOPIC)], D2: [("t-0", TOPIC)]}).decide(want(UNASSIGNED))
    assert decision.action is Action.REFUSE
    assert "/d1/t-0" in decision.why and "/d2/t-0" in decision.why


def test_of_two_copies_the_one_that_the_metadata_name_counts() -> None:
    inventory = disks({D1: [("t-0", TOPIC)], D2: [("t-0", TOPIC)]})
    assert outcome(inventory.decide(want(D2))) == NOTHING
    assert inventory.duplicates(want(D2)) == ("/d1/t-0",)
    assert inventory.locate(P0) == D2


def test_an_interrupted_move_is_left_for_a_person_or_a_later_start() -> None:
    inventory = disks({D1: [("t-0.0123456789abcdef0123456789abcdef-future", TOPIC)]})
    assert outcome(inventory.decide(want(D1))) == NOTHING


def test_sy_a_name_that_a_stray_replica_holds_sends_the_new_replica_elsewhere() -> None:
    inventory = disks({D1: [("t-0", OTHER_TOPIC)]})
    assert outcome(inventory.decide(want(D1))) == (Action.CREATE, D2, True)
    everywhere = disks({d: [("t-0", None)] for d in (D1, D2, D3)})
    decision = everywhere.decide(want(UNASSIGNED))
    assert decision.action is Action.LEAVE and "taken" in decision.why


def test_sy_1_to_4_strays_are_those_without_topic_id_unknown_or_of_other_brokers() -> None:
    inventory = disks(
        {
            D1: [("mine-0", TOPIC), ("mine-1", TOPIC), ("idless-0", None)],
            D2: [("gone-0", OTHER_TOPIC), ("old-0.0123456789abcdef0123456789abcdef-delete", OTHER_TOPIC)],
        }
    )
    found = sorted((name, directory) for directory, name, _ in inventory.strays(lambda p: p == P0))
    assert found == [("gone-0", D2), ("idless-0", D1), ("mine-1", D1)]


def test_a_deleted_replica_is_renamed_only_where_its_directory_is_online_and_frees_its_name() -> None:
    inventory = disks({D1: [("t-0", TOPIC)], D2: [("t-1", TOPIC)]}, failed=[D2])
    assert inventory.remove(P0, "t-0") == (D1,)
    assert inventory.remove(TopicIdPartition(TOPIC, 1), "t-1") == ()
    again = inventory.decide(want(D1, TopicIdPartition(OTHER_TOPIC, 0), new=True))
    assert outcome(again) == (Action.CREATE, D1, False)


def test_a_long_topic_name_still_has_room_for_its_delete_suffix() -> None:
    name = delete_name("t" * 249, 11, "0" * 32)
    assert len(name) == 255 and name.endswith("-11." + "0" * 32 + "-delete")
    assert delete_name("t", 0, "a" * 32) == "t-0." + "a" * 32 + "-delete"


assigned_ids = st.sampled_from([UNASSIGNED, MIGRATING, LOST, D1, D2, D3, UNREAD, FOREIGN])


@settings(max_examples=400, deadline=None)
@given(
    assigned_ids,
    st.sets(st.sampled_from([D1, D2, D3])),
    st.sets(st.sampled_from([D1, D2, D3]), max_size=2),
    st.booleans(),
    st.booleans(),
)
def test_no_replica_is_ever_created_while_a_copy_lies_or_may_lie_anywhere_else(
    assigned: Uuid, copies: set[Uuid], failed: set[Uuid], unread: bool, new: bool
) -> None:
    inventory = disks({d: [("t-0", TOPIC)] for d in copies}, failed=failed, unread=[UNREAD] if unread else [])
    decision = inventory.decide(want(assigned, new=new))
    creates = decision.action in (Action.CREATE, Action.CREATE_AND_ASSIGN)
    if creates:
        assert not copies
        assert decision.directory_id in inventory.online
        assert assigned in inventory.online or new or not unread
    if decision.assign and not creates and decision.action is not Action.ASSIGN_LOST:
        assert decision.directory_id in copies and decision.directory_id != assigned


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), assigned_ids), min_size=1, max_size=30), st.booleans())
def test_once_the_controller_recorded_what_it_was_told_there_is_nothing_left_to_do(
    partitions: list[tuple[int, Uuid]], unread: bool
) -> None:
    inventory = disks(unread=[UNREAD] if unread else [])
    metadata = {TopicIdPartition(TOPIC, number): assigned for number, assigned in partitions}
    for _ in range(2):
        for partition, assigned in metadata.items():
            decision = inventory.decide(want(assigned, partition))
            if decision.action in (Action.CREATE, Action.CREATE_AND_ASSIGN):
                inventory.created(partition)
            if decision.assign and decision.directory_id is not None:
                metadata[partition] = decision.directory_id
    assert all(inventory.decide(want(a, p)).action is Action.LEAVE for p, a in metadata.items())

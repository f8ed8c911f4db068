"""KIP-858's table and what a broker does by it. Ids are those of kafka-jbod 9.5 and 9.7."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod_agent.replicas.choice import Chooser, Site
from kjbod_agent.replicas.inventory import Decision, Inventory, StrayCopy, Wanted, delete_name, stray_name
from kjbod_agent.replicas.table import RULES, Action, Assigned, Found, Hidden, look_up
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.storage.api import Replica
from tests.depth import examples

D1, D2, D3, UNREAD, FOREIGN = (Uuid.of(2, n) for n in range(1, 6))
TOPIC, OTHER_TOPIC = Uuid.of(3, 1), Uuid.of(3, 2)
P0 = TopicIdPartition(TOPIC, 0)

Copies = dict[Uuid, Iterable[tuple[str, Uuid | None]]]


def disks(
    copies: Copies | None = None,
    *,
    failed: Iterable[Uuid] = (),
    unread: Iterable[Uuid | None] = (),
    loading: Iterable[Uuid] = (),
) -> Inventory:
    """Three directories with these replica directories in them, by name and topic id."""
    inventory = Inventory([(D1, "/d1"), (D2, "/d2"), (D3, "/d3")], unread, loading)
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
WAITS = (Action.WAIT, None, False)
HEX = "0123456789abcdef0123456789abcdef"
FUTURE, DELETED = f"t-0.{HEX}-future", f"t-0.{HEX}-delete"


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


@pytest.mark.parametrize("unread", [UNREAD, None])
def test_a_copy_that_may_be_older_than_the_one_that_cannot_be_read_is_not_assigned(unread: Uuid | None) -> None:
    assert outcome(disks(HERE, unread=[unread]).decide(want(UNREAD))) == NOTHING
    assert outcome(disks({D1: [*HERE[D1]], D2: [(FUTURE, TOPIC)]}, unread=[unread]).decide(want(UNREAD))) == NOTHING


def test_a_copy_is_assigned_when_the_directory_that_the_metadata_name_is_gone_for_good() -> None:
    inventory = disks(HERE, unread=[UNREAD])
    inventory.forget_directory(UNREAD)
    assert outcome(inventory.decide(want(UNREAD))) == (Action.ASSIGN, D1, True)


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


def test_a_full_directory_that_the_metadata_name_sends_its_replica_elsewhere_until_all_were_full() -> None:
    inventory, went = disks(), []
    for _ in range(4):
        went.append(inventory.decide(want(D2)).directory_id)
        inventory.not_created(P0)
    assert went == [D2, D1, D3, D2]


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


def test_of_two_copies_the_one_that_the_metadata_name_counts_and_the_other_is_set_aside_as_a_stray() -> None:
    inventory = disks({D1: [("t-0", TOPIC)], D2: [("t-0", TOPIC)]})
    decision = inventory.decide(want(D2))
    assert decision.action is Action.SET_ASIDE
    assert decision.aside == (StrayCopy(D1, "t-0", "superseded copy"),)
    assert inventory.copies(P0) == (D2,)
    assert "t-0" not in inventory.names(D1)
    assert outcome(inventory.decide(want(D2))) == NOTHING


def test_of_two_copies_one_in_a_failed_directory_is_not_touched() -> None:
    inventory = disks({D1: [("t-0", TOPIC)], D2: [("t-0", TOPIC)]}, failed=[D1])
    assert inventory.decide(want(D2)).aside == ()
    assert inventory.copies(P0) == (D2,)


def test_of_two_copies_neither_is_touched_while_that_which_the_metadata_name_is_offline() -> None:
    inventory = disks({D1: [("t-0", TOPIC)], D2: [("t-0", TOPIC)]}, failed=[D2])
    assert outcome(inventory.decide(want(D2))) == NOTHING
    assert (inventory.locate(P0), set(inventory.names(D1))) == (D2, {"t-0"})


def test_a_copy_on_a_disk_that_is_added_does_not_count_beside_one_that_was_known_before() -> None:
    inventory = disks(HERE)
    assert inventory.decide(want(UNASSIGNED)).directory_id == D1  # the controller has not recorded it yet
    inventory.add_directory(FOREIGN, "/d4", [Replica("t-0", "t", 0, TOPIC)])
    assert inventory.decide(want(UNASSIGNED)).aside == (StrayCopy(FOREIGN, "t-0", "superseded copy"),)
    again = disks(HERE)
    again.add_directory(FOREIGN, "/d4", [Replica("t-0", "t", 0, TOPIC)])
    assert again.decide(want(FOREIGN)).aside == (StrayCopy(D1, "t-0", "superseded copy"),)


def test_two_copies_in_directories_that_are_loaded_at_the_start_are_an_error_in_whatever_order() -> None:
    inventory = disks(loading=[D1, D2, D3])
    for directory in (D3, D1):
        inventory.add_directory(directory, "", [Replica("t-0", "t", 0, TOPIC)])
    inventory.add_directory(D2, "", [])
    assert inventory.decide(want(UNASSIGNED)).action is Action.REFUSE


def test_a_copy_that_turns_up_of_a_replica_that_this_process_made_is_set_aside_also_before_the_metadata_know() -> None:
    inventory = disks(unread=[UNREAD])
    assert inventory.decide(want(UNASSIGNED, new=True)).directory_id == D1
    inventory.created(P0)
    inventory.add_directory(UNREAD, "/d4", [Replica("t-0", "t", 0, TOPIC)])
    decision = inventory.decide(want(UNASSIGNED, new=True))
    assert decision.aside == (StrayCopy(UNREAD, "t-0", "superseded copy"),)
    assert outcome(inventory.decide(want(UNASSIGNED, new=True))) == (Action.ASSIGN, D1, True)


# ------------------------------------------------------------------------------------------------------------- futures


def test_a_move_that_was_interrupted_early_goes_on() -> None:
    inventory = disks({D1: [("t-0", TOPIC)], D2: [(FUTURE, TOPIC)]})
    decision = inventory.decide(want(D1))
    assert (outcome(decision), decision.future) == ((Action.RESUME, D2, False), FUTURE)


@pytest.mark.parametrize("failed", [[], [D1]])
def test_mv_8_mv_9_a_future_replica_where_the_metadata_say_is_for_the_mover_to_promote(failed: list[Uuid]) -> None:
    beside = disks({D1: [("t-0", TOPIC)], D2: [(FUTURE, TOPIC)]}, failed=failed).decide(want(D2))
    assert (outcome(beside), beside.future) == ((Action.RESUME, D2, False), FUTURE)
    alone = disks({D2: [(FUTURE, TOPIC)]}, failed=failed).decide(want(D2))
    assert (outcome(alone), alone.future) == ((Action.RESUME, D2, False), FUTURE)


def test_a_replica_that_lies_elsewhere_is_assigned_before_its_move_to_a_third_place_goes_on() -> None:
    inventory = disks({D1: [("t-0", TOPIC)], D2: [(FUTURE, TOPIC)]})
    assert outcome(inventory.decide(want(UNASSIGNED))) == (Action.ASSIGN, D1, True)
    assert inventory.decide(want(D1)).action is Action.RESUME


@pytest.mark.parametrize("assigned", [D1, D2, UNASSIGNED, LOST, FOREIGN])
def test_a_future_replica_whose_source_was_renamed_is_for_the_mover_whatever_the_metadata_say(assigned: Uuid) -> None:
    inventory = disks({D1: [(DELETED, TOPIC)], D2: [(FUTURE, TOPIC)]})
    assert outcome(inventory.decide(want(assigned))) == (Action.RESUME, D2, False)
    assert inventory.left_behind(P0) == ((D1, DELETED),)


def test_a_future_replica_whose_source_is_gone_is_kept_as_a_stray_where_a_fresh_replica_is_made() -> None:
    inventory = disks({D2: [(FUTURE, TOPIC)]})
    decision = inventory.decide(want(D1))
    assert outcome(decision) == (Action.CREATE, D1, False)
    assert [(a.directory_id, a.name) for a in decision.aside] == [(D2, FUTURE)]
    assert inventory.future(P0) is None


def test_a_future_replica_whose_source_may_lie_in_an_offline_directory_is_left() -> None:
    inventory = disks({D2: [(FUTURE, TOPIC)]}, unread=[UNREAD])
    assert outcome(inventory.decide(want(UNREAD))) == NOTHING
    assert outcome(inventory.decide(want(UNASSIGNED))) == (Action.ASSIGN_LOST, LOST, True)
    assert inventory.future(P0) == (D2, FUTURE)


def test_a_future_replica_in_a_failed_directory_does_not_count() -> None:
    inventory = disks({D1: [("t-0", TOPIC)], D2: [(FUTURE, TOPIC)]}, failed=[D2])
    assert outcome(inventory.decide(want(D1))) == NOTHING
    assert inventory.future(P0) is None


def test_of_two_future_replicas_that_where_the_metadata_say_goes_on_and_the_other_is_kept_as_a_stray() -> None:
    other = f"t-0.{'f' * 32}-future"
    inventory = disks({D1: [("t-0", TOPIC)], D2: [(other, TOPIC)], D3: [(FUTURE, TOPIC)]})
    decision = inventory.decide(want(D3))
    assert (outcome(decision), decision.future) == ((Action.RESUME, D3, False), FUTURE)
    assert [(a.directory_id, a.name) for a in decision.aside] == [(D2, other)]


def test_a_future_replica_beside_its_current_one_is_kept_as_a_stray() -> None:
    inventory = disks({D1: [("t-0", TOPIC), (FUTURE, TOPIC)]})
    decision = inventory.decide(want(D1))
    assert (decision.action, [a.name for a in decision.aside]) == (Action.LEAVE, [FUTURE])
    assert outcome(inventory.decide(want(D2))) == (Action.ASSIGN, D1, True)


def test_a_move_in_progress_is_not_re_assigned_and_ends_with_one_copy() -> None:
    inventory = disks(HERE)
    inventory.begin_move(P0, D2, FUTURE)
    assert (inventory.replica_count(D1), inventory.replica_count(D2)) == (1, 1)
    for assigned in (D1, D2, UNASSIGNED, FOREIGN):
        assert outcome(inventory.decide(want(assigned))) == NOTHING
    inventory.source_gone(P0)
    assert outcome(inventory.decide(want(D2))) == NOTHING
    assert inventory.locate(P0) == D2
    inventory.promoted(P0)
    assert (inventory.copies(P0), inventory.future(P0)) == ((D2,), None)
    assert (inventory.replica_count(D1), inventory.replica_count(D2)) == (0, 1)
    assert set(inventory.names(D2)) == {"t-0"}
    assert outcome(inventory.decide(want(D2))) == NOTHING
    assert outcome(inventory.decide(want(D1))) == (Action.ASSIGN, D2, True)


def test_a_move_that_ended_before_its_promotion_leaves_what_was() -> None:
    inventory = disks(HERE)
    inventory.begin_move(P0, D2, FUTURE)
    inventory.source_gone(P0)
    inventory.source_back(P0, D1)
    inventory.end_move(P0)
    assert (inventory.copies(P0), inventory.future(P0), inventory.moving) == ((D1,), None, set())
    assert (inventory.replica_count(D1), inventory.replica_count(D2)) == (1, 0)
    assert outcome(inventory.decide(want(D1))) == NOTHING


# ---------------------------------------------------------------------------------------------- directories not loaded


@pytest.mark.parametrize("assigned", [UNASSIGNED, MIGRATING, LOST, FOREIGN, D2, D3])
def test_nothing_is_made_or_assigned_before_the_directories_are_loaded_that_may_hold_the_copy(assigned: Uuid) -> None:
    inventory = disks(loading=[D3])
    assert outcome(inventory.decide(want(assigned))) == WAITS
    inventory.add_directory(D3, "/d3", [Replica("t-0", "t", 0, TOPIC)])
    assert inventory.decide(want(assigned)).action is (Action.LEAVE if assigned == D3 else Action.ASSIGN)


def test_a_replica_that_lies_where_the_metadata_say_waits_for_nobody() -> None:
    assert outcome(disks(HERE, loading=[D3]).decide(want(D1))) == NOTHING


def test_a_replica_elsewhere_waits_for_the_directory_that_the_metadata_name() -> None:
    inventory = disks(HERE, loading=[D3])
    assert outcome(inventory.decide(want(D3))) == WAITS
    inventory.add_directory(D3, "/d3", [Replica("t-0", "t", 0, TOPIC)])
    assert inventory.decide(want(D3)).aside == (StrayCopy(D1, "t-0", "superseded copy"),)


def test_a_new_replica_is_made_while_a_directory_is_loaded_and_never_in_it() -> None:
    inventory = disks({D1: [("a-0", OTHER_TOPIC)]}, loading=[D2, D3])
    assert outcome(inventory.decide(want(UNASSIGNED, new=True))) == (Action.CREATE_AND_ASSIGN, D1, True)
    assert inventory.decide(want(D3, TopicIdPartition(TOPIC, 1), new=True)).action is Action.WAIT


def test_a_directory_that_fails_before_it_was_loaded_may_hold_anything() -> None:
    inventory = disks(loading=[D3])
    inventory.fail(D3)
    assert outcome(inventory.decide(want(D3))) == NOTHING
    assert outcome(inventory.decide(want(UNASSIGNED))) == (Action.ASSIGN_LOST, LOST, True)
    assert inventory.some_offline


def test_when_the_only_unreadable_directory_is_loaded_or_replaced_what_was_lost_is_made_anew() -> None:
    back = disks(unread=[UNREAD])
    back.add_directory(UNREAD, "/d4", [])
    assert back.decide(want(LOST)).action is Action.CREATE_AND_ASSIGN
    replaced = disks(unread=[None])
    replaced.forget_directory(None)
    replaced.add_directory(FOREIGN, "/d4", [])
    assert replaced.decide(want(LOST)).action is Action.CREATE_AND_ASSIGN


def test_what_lay_on_a_disk_that_was_replaced_is_made_anew() -> None:
    inventory = disks({D1: [("t-0", TOPIC)], D2: [(FUTURE, TOPIC)]}, failed=[D1])
    inventory.forget_directory(D1)
    assert D1 not in inventory and inventory.copies(P0) == ()
    assert inventory.decide(want(D1)).action is Action.CREATE_AND_ASSIGN


def test_a_failed_directory_that_is_read_anew_holds_what_it_holds_then() -> None:
    inventory = disks({D1: [("t-0", TOPIC)]}, failed=[D1])
    inventory.add_directory(D1, "/d1", [Replica("t-0", "t", 0, TOPIC)])
    assert (inventory.copies(P0), inventory.replica_count(D1)) == ((D1,), 1)
    assert outcome(inventory.decide(want(D1))) == NOTHING
    empty = disks({D1: [("t-0", TOPIC)]}, failed=[D1])
    empty.add_directory(D1, "/d1", [])
    assert outcome(empty.decide(want(D1))) == (Action.CREATE, D1, False)


def test_a_replica_that_a_failed_directory_is_known_not_to_hold_is_made_anew_beside_it() -> None:
    assert disks(failed=[D1]).decide(want(FOREIGN)).action is Action.CREATE_AND_ASSIGN


# ------------------------------------------------------------------------------------------------------------- wishes


def test_mv_10_a_person_who_wants_a_replica_somewhere_is_heard_once_when_it_is_made() -> None:
    inventory = disks()
    inventory.prefer("t", 0, D3)
    assert outcome(inventory.decide(want(D1))) == (Action.CREATE, D3, True)
    inventory.not_created(P0)
    assert outcome(inventory.decide(want(D1))) == (Action.CREATE, D1, False)


@pytest.mark.parametrize("away", ["failed", "loading"])
def test_a_wish_that_cannot_be_is_no_obstacle(away: str) -> None:
    inventory = disks(failed=[D3] if away == "failed" else [], loading=[D3] if away == "loading" else [])
    inventory.prefer("t", 0, D3)
    assert inventory.decide(want(D1, new=True)).directory_id == D1


def test_what_the_metadata_place_in_a_cordoned_directory_is_made_there() -> None:
    chooser = Chooser()
    inventory = Inventory([(D1, "/d1"), (D2, "/d2")], chooser=chooser)
    chooser.observe({D1: Site(cordoned=True), D2: Site()}, {}, 0)
    assert outcome(inventory.decide(want(D1))) == (Action.CREATE, D1, False)
    other = inventory.decide(want(UNASSIGNED, TopicIdPartition(TOPIC, 1)))
    assert outcome(other) == (Action.CREATE_AND_ASSIGN, D2, True)


@pytest.mark.parametrize("topic_id", [OTHER_TOPIC, None])
def test_sy_no_replica_is_made_anywhere_while_a_stray_that_could_not_be_renamed_has_its_name(
    topic_id: Uuid | None,
) -> None:
    for assigned in (D1, D2, UNASSIGNED):
        inventory = disks({D1: [("t-0", topic_id)]})
        decision = inventory.decide(want(assigned))
        assert (outcome(decision), decision.taken) == ((Action.ASSIGN_LOST, LOST, True), True)
        assert "/d1/t-0" in decision.why
        inventory.fail(D1)
        assert inventory.decide(want(D2)).action is Action.CREATE, "it is a stray when its directory is back"


def test_a_deleted_replica_is_renamed_only_where_its_directory_is_online_and_frees_its_name() -> None:
    inventory = disks({D1: [("t-0", TOPIC)], D2: [("t-1", TOPIC)], D3: [(FUTURE, TOPIC)]}, failed=[D2])
    assert inventory.remove(P0, "t-0") == ((D1, "t-0"), (D3, FUTURE))
    assert inventory.remove(TopicIdPartition(TOPIC, 1), "t-1") == ()
    again = inventory.decide(want(D1, TopicIdPartition(OTHER_TOPIC, 0), new=True))
    assert outcome(again) == (Action.CREATE, D1, False)


def test_a_long_topic_name_still_has_room_for_its_suffix() -> None:
    name = delete_name("t" * 249, 11, "0" * 32)
    assert len(name) == 255 and name.endswith("-11." + "0" * 32 + "-delete")
    foreign = stray_name("ü" * 124, 0, "0" * 32)
    assert 253 <= len(foreign.encode()) <= 255 and foreign.startswith("üü")
    stray = stray_name("t" * 249, 2_147_483_647, "0" * 32)
    assert len(stray) == 255 and stray.endswith("-2147483647." + "0" * 32 + "-stray")
    assert delete_name("t", 0, "a" * 32) == "t-0." + "a" * 32 + "-delete"


assigned_ids = st.sampled_from([UNASSIGNED, MIGRATING, LOST, D1, D2, D3, UNREAD, FOREIGN])


directories = st.sets(st.sampled_from([D1, D2, D3]))


@settings(max_examples=examples(600))
@given(assigned_ids, directories, directories, directories, directories, st.booleans(), st.booleans())
def test_no_replica_is_ever_created_while_a_copy_lies_or_may_lie_anywhere_else(
    assigned: Uuid,
    copies: set[Uuid],
    futures: set[Uuid],
    failed: set[Uuid],
    loading: set[Uuid],
    unread: bool,
    new: bool,
) -> None:
    assume(not loading & (copies | futures | failed))
    found: Copies = {d: [("t-0", TOPIC)] if d in copies else [] for d in (D1, D2, D3)}
    for directory in futures:
        found[directory] = [*found[directory], (FUTURE, TOPIC)]
    inventory = disks(found, failed=failed, unread=[UNREAD] if unread else [], loading=loading)
    decision = inventory.decide(want(assigned, new=new))
    creates = decision.action in (Action.CREATE, Action.CREATE_AND_ASSIGN)
    if creates:
        assert not copies
        assert new or not loading
        assert decision.directory_id in inventory.online
        assert assigned in inventory.online or new or not unread
    if decision.assign and not creates and decision.action is not Action.ASSIGN_LOST:
        assert decision.directory_id in copies and decision.directory_id != assigned
    if decision.action is Action.RESUME:
        assert decision.directory_id in futures - failed - copies
    for aside in decision.aside:
        assert aside.directory_id in inventory.online
        assert aside.name == FUTURE or aside.directory_id != inventory.locate(P0)
    assert len(inventory.copies(P0)) <= 1 or decision.action in (Action.REFUSE, Action.WAIT, Action.LEAVE)


@settings(max_examples=examples(200))
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


def test_a_replica_that_left_and_is_back_is_made_anew_when_its_old_copy_has_been_renamed() -> None:
    inventory = disks(HERE)
    assert inventory.remove(P0, "t-0") == ((D1, "t-0"),)
    assert outcome(inventory.decide(want(UNASSIGNED, new=True))) == WAITS
    inventory.renamed_away(P0, D1)
    assert outcome(inventory.decide(want(UNASSIGNED, new=True))) == (Action.CREATE_AND_ASSIGN, D1, True)


def test_a_replica_that_left_does_not_wait_for_a_directory_that_fails() -> None:
    inventory = disks(HERE)
    inventory.remove(P0, "t-0")
    inventory.fail(D1)
    assert outcome(inventory.decide(want(UNASSIGNED, new=True))) == (Action.CREATE_AND_ASSIGN, D2, True)

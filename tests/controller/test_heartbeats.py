"""Heartbeats, sessions, fencing and controlled shutdown: rows CT-9, CT-13 and CT-16, and section 6.3 as observed."""

import pytest

from kjbod.metadata.records import BrokerRegistrationChangeRecord, PartitionChangeRecord
from kjbod.wire.error_codes import ErrorCode
from kjbod_controller_stub.brokers.heartbeats import BrokerState, Heartbeats, Situation, next_state
from kjbod_controller_stub.rules import KAFKA, KIP_858, Rules
from tests.controller.world import World, directories, directory

BOTH = pytest.mark.parametrize("rules", [KIP_858, KAFKA], ids=lambda rules: rules.name)
F, U, C, S = BrokerState.FENCED, BrokerState.UNFENCED, BrokerState.CONTROLLED_SHUTDOWN, BrokerState.SHUTDOWN_NOW


@pytest.mark.parametrize(
    ("current", "said", "expected"),
    [
        (F, "shut", S),
        (F, "shut fence", S),
        (F, "caught_up", U),
        (F, "", F),
        (F, "fence caught_up", F),
        (F, "caught_up held", F),
        (F, "caught_up dead", F),
        (U, "fence shut", S),
        (U, "fence", F),
        (U, "shut leads", C),
        (U, "shut", S),
        (U, "", U),
        (U, "held", U),
        (U, "dead", F),
        (U, "dead shut leads", S),
        (C, "leads", C),
        (C, "leads may_go", C),
        (C, "may_go", S),
        (C, "", C),
        (C, "dead leads", S),
        (S, "caught_up", S),
        (S, "shut", S),
    ],
)
def test_ct9_next_state_of_a_broker(current: BrokerState, said: str, expected: BrokerState) -> None:
    words = set(said.split())
    situation = Situation(
        want_fence="fence" in words,
        want_shut_down="shut" in words,
        caught_up="caught_up" in words,
        leads="leads" in words,
        may_go="may_go" in words,
        held="held" in words,
        no_directory="dead" in words,
    )
    assert next_state(current, situation) is expected


def test_ct9_a_session_lasts_exactly_its_timeout_and_belongs_to_one_epoch() -> None:
    heartbeats = Heartbeats(9_000)
    heartbeats.touch(1, 10, 100)
    assert heartbeats.has_valid_session(1, 10, 9_100)
    assert not heartbeats.has_valid_session(1, 10, 9_101)
    assert not heartbeats.has_valid_session(1, 11, 100)
    assert not heartbeats.has_valid_session(2, 10, 100)


def test_ct9_the_broker_heard_longest_ago_is_stale_first() -> None:
    heartbeats = Heartbeats(9_000)
    assert heartbeats.find_one_stale(0) is None
    assert heartbeats.next_check_ms() is None
    heartbeats.touch(1, 10, 0)
    heartbeats.touch(2, 11, 5)
    heartbeats.touch(1, 10, 10)
    assert heartbeats.next_check_ms() == 9_006
    assert heartbeats.find_one_stale(9_005) is None
    assert heartbeats.find_one_stale(9_006) == 2


def test_ct9_controlled_shutdown_offset_is_set_once() -> None:
    heartbeats = Heartbeats(9_000)
    contact = heartbeats.touch(1, 10, 0)
    heartbeats.enter_controlled_shutdown(1, 10, 50)
    heartbeats.enter_controlled_shutdown(1, 10, 60)
    assert contact.controlled_shutdown_offset == 50


@BOTH
def test_unfencing_needs_the_brokers_own_registration_applied(rules: Rules) -> None:
    world = World(rules)
    epoch = world.register(1).broker_epoch
    answer = world.beat(1, offset=epoch - 1)
    assert (answer.is_caught_up, answer.is_fenced, world.last) == (False, True, [])
    answer = world.beat(1, offset=epoch, fence=True)
    assert (answer.is_caught_up, answer.is_fenced, world.last) == (True, True, [])
    answer = world.beat(1, offset=epoch)
    assert (answer.is_caught_up, answer.is_fenced) == (True, False)
    assert world.last_versions == [0]


@BOTH
@pytest.mark.parametrize("delta", [-1, 1])
def test_another_epoch_is_stale(rules: Rules, delta: int) -> None:
    world = World(rules)
    epoch = world.register(1).broker_epoch
    answer = world.beat(1, epoch=epoch + delta)
    assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert (answer.is_caught_up, answer.is_fenced, answer.should_shut_down) == (False, True, False)


@BOTH
def test_ct13_controlled_shutdown_moves_leaders_and_waits_for_the_others(rules: Rules) -> None:
    world = World(rules)
    for broker in (1, 2):
        world.join(broker)
    world.create("t", (1, 2), (1, 2))
    world.beat(2, offset=world.controller.next_offset - 1)
    answer = world.beat(1, shut=True)
    assert (answer.should_shut_down, answer.is_fenced) == (False, False)
    assert world.last_versions == [1, 2, 2]
    assert world.broker_changes()[0].in_controlled_shutdown == 1
    assert all(change.leader == 2 for change in world.changes())
    assert not world.beat(1, shut=True).should_shut_down  # broker 2 has not applied it
    world.beat(2, offset=world.controller.next_offset - 1)
    answer = world.beat(1, shut=True)
    assert (answer.should_shut_down, answer.is_fenced) == (True, True)
    assert world.broker_changes()[-1].fenced == 1


@BOTH
def test_a_broker_that_leads_nothing_may_go_at_once(rules: Rules) -> None:
    world = World(rules)
    world.join(1)
    assert world.beat(1, shut=True).should_shut_down


@BOTH
def test_without_eligible_replicas_the_last_in_sync_broker_shuts_down_and_stays_in_the_isr(rules: Rules) -> None:
    world = World(rules, with_elr=False)
    world.join(1, 1)
    world.create("t", (1,))
    assert not world.beat(1, shut=True).should_shut_down
    assert (world.partition("t").leader, world.partition("t").isr) == (-1, (1,))
    assert world.beat(1, shut=True).should_shut_down
    world.now_ms += 9_001
    while world.expire():
        pass
    world.join(1, 1, number=1)
    assert (world.partition("t").leader, world.partition("t").isr) == (1, (1,))


@BOTH
def test_the_last_in_sync_broker_shuts_down_and_leads_again_when_it_is_back(rules: Rules) -> None:
    world = World(rules)
    world.join(1, 1)
    world.create("t", (1,))
    assert not world.beat(1, shut=True).should_shut_down
    assert (world.partition("t").leader, world.partition("t").isr) == (-1, ())
    assert world.partition("t").eligible_leader_replicas == (1,)
    assert world.beat(1, shut=True).should_shut_down
    epoch = world.broker(1).epoch
    world.tick(9_001)
    world.join(1, 1, number=1, previous_broker_epoch=epoch)
    now = world.partition("t")
    assert (now.leader, now.isr, now.eligible_leader_replicas, now.leader_recovery_state) == (1, (1,), (), 0)


def test_after_a_granted_shutdown_the_broker_comes_back_at_once_under_kip_rules() -> None:
    world = World(KIP_858)
    world.join(1)
    assert world.beat(1, shut=True).should_shut_down
    assert world.register(1, number=1).error_code == 0
    shipped = World(KAFKA)
    shipped.join(1)
    assert shipped.beat(1, shut=True).should_shut_down
    assert shipped.register(1, number=1).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    shipped.now_ms += 9_001
    assert shipped.expire()  # and the fenced broker is fenced again
    assert shipped.broker_changes()[0].fenced == 1
    assert shipped.register(1, number=1).error_code == 0


def test_repeated_requests_to_shut_down_write_one_record_under_kip_rules() -> None:
    for rules, records in ((KIP_858, 0), (KAFKA, 1)):
        world = World(rules)
        world.join(1)
        world.beat(1, shut=True)
        assert world.beat(1, shut=True).should_shut_down
        assert len(world.last) == records, rules.name


@BOTH
def test_ct16_silent_brokers_are_fenced_one_per_pass_and_their_leaders_move(rules: Rules) -> None:
    world = World(rules)
    for broker in (1, 2, 3):
        world.join(broker)
    world.create("t", (1, 2, 3), (2, 1, 3))
    world.now_ms += 5_000
    world.beat(3)
    world.now_ms += 4_000
    assert not world.expire()
    world.now_ms += 1
    assert world.expire()
    assert [type(record) for record in world.last] == [
        PartitionChangeRecord,
        PartitionChangeRecord,
        BrokerRegistrationChangeRecord,
    ]
    assert world.broker(1).fenced
    assert not world.broker(2).fenced
    assert world.expire()
    assert not world.expire()
    assert {world.partition("t", number).leader for number in (0, 1)} == {3}
    assert world.partition("t").isr == (3,)


@BOTH
def test_a_broker_whose_session_expired_returns_with_its_next_heartbeat(rules: Rules) -> None:
    world = World(rules)
    world.join(1)
    world.create("t", (1,))
    world.now_ms += 9_001
    assert world.expire()
    assert world.partition("t").leader == -1
    assert not world.beat(1).is_fenced
    assert world.partition("t").leader == 1


def test_a_controller_that_starts_gives_every_unfenced_broker_a_full_session() -> None:
    world = World()
    world.join(1)
    world.register(2)
    controller = world.replayed()
    controller.activate(50_000)
    assert controller.next_timer_ms() == 59_001
    assert controller.expire_session(59_000) is None
    result = controller.expire_session(59_001)
    assert result is not None
    assert [r.broker_id for r in result.records if isinstance(r, BrokerRegistrationChangeRecord)] == [1]


@BOTH
def test_cordoned_directories_are_recorded_when_they_change(rules: Rules) -> None:
    world = World(rules)
    world.join(1)
    for cordoned, records in (((), 1), (directories(1)[:1], 1), (directories(1)[:1], 0), (None, 0), ((), 1)):
        world.beat(1, cordoned=cordoned)
        assert len(world.last) == records
        assert world.last_versions == [3] * records


def test_kip_multi_directory_broker_stays_fenced_until_its_replicas_are_placed() -> None:
    world = World()
    world.join(1)
    world.join(2)
    topic = world.create("t", (1, 2))
    world.now_ms += 9_001
    world.beat(2)
    assert world.expire()
    world.register(1, number=1)
    answer = world.beat(1)
    assert (answer.is_caught_up, answer.is_fenced) == (True, True)
    assert not world.last
    world.assign(1, (directory(1, 0), topic, (0,)))  # accepted from a fenced broker
    assert not world.beat(1).is_fenced


def test_kip_rule_does_not_hold_single_directory_brokers_nor_those_that_were_unfenced_before() -> None:
    world = World()
    world.join(1, 1)
    world.join(2, 3)
    world.create("t", (1, 2))
    world.now_ms += 9_001
    while world.expire():
        pass
    assert not world.beat(1).is_fenced
    # The same incarnation: a shipped broker would never assign what a reassignment brought, and never come back.
    assert not world.beat(2).is_fenced


def test_shipped_rules_unfence_with_unassigned_replicas() -> None:
    world = World(KAFKA)
    world.join(1)
    world.create("t", (1,))
    world.now_ms += 9_001
    world.expire()
    world.register(1, number=1)
    assert not world.beat(1).is_fenced

"""Replica lists that controllers refuse: since Kafka 4.4.0 one with a broker whose directories are all cordoned, and
always one with a broker that is not registered. The guard begins no change that is refused, and puts back what it has
changed however long that takes."""

import dataclasses
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from kjbod.ids import Uuid
from kjbod.metadata.fetching import Committed
from kjbod.metadata.image import MetadataImage
from kjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    FeatureRange,
    Record,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    decode_record,
    encode_record,
)
from kjbod.metadata.versions import METADATA_VERSION
from kjbod_guard import redundancy
from kjbod_guard.actions import Done, Outcome, summed
from kjbod_guard.budget import barred, demotions, evictions, why_list_refused
from kjbod_guard.condition import condition
from kjbod_guard.deciding import Deciding
from kjbod_guard.directory_steps import State
from kjbod_guard.effects import Evict, Restore
from kjbod_guard.ladder import UNEVICTED, Step
from kjbod_guard.observing import Observed
from kjbod_guard.retries import GIVE_UP_MS
from kjbod_host.condition import Level
from tests.guard.test_action_runner import PATH
from tests.guard.test_copies import ALL, D1, D2, LEFT, NODE, T, home, neighbour, observed
from tests.guard.test_core import BACK, GONE, NOW_MS, ONLINE, WAS_CUT, Moment, evicted, record

LEVEL_4_3, LEVEL_4_4 = 30, 31
REFUSED = "t-0: INVALID_REPLICA_ASSIGNMENT (39): The manual partition assignment includes broker 3, which is cordoned."


def controller(number: int, newest: int) -> RegisterControllerRecord:
    features = (FeatureRange(name=METADATA_VERSION, min_supported_version=7, max_supported_version=newest),)
    return RegisterControllerRecord(
        controller_id=number,
        incarnation_id=Uuid.of(8, number),
        features=features,
        end_points=(),
        zk_migration_ready=False,
    )


def cordon(now: Observed, broker: int, *, all_of_them: bool = True) -> None:
    """Cordon all directories of a broker; else one that it has not."""
    if broker == NODE:
        assert now.registration is not None
        dirs = now.registration.log_dirs if all_of_them else now.registration.log_dirs[:1]
        now.registration = dataclasses.replace(now.registration, cordoned_log_dirs=dirs)
    else:
        its = now.neighbours[broker]
        now.neighbours[broker] = replace(its, cordoned_dirs=its.log_dirs if all_of_them else frozenset())


def _nothing(now: Observed) -> None: ...


def _cordoned(broker: int) -> Callable[[Observed], None]:
    return lambda now: cordon(now, broker)


def _two_directories(cordoned: int) -> Callable[[Observed], None]:
    """Broker 3 has two directories, and has cordoned so many."""

    def change(now: Observed) -> None:
        dirs = (home(3), Uuid.of(6, 33))
        now.neighbours[3] = neighbour(3, log_dirs=frozenset(dirs), cordoned_dirs=frozenset(dirs[:cordoned]))

    return change


def _before_directories(now: Observed) -> None:
    """Broker 3 registered without directories, so none of them is cordoned."""
    now.neighbours[3] = neighbour(3, log_dirs=frozenset(), cordoned_dirs=frozenset([home(3)]))


def _lost_the_rest(now: Observed) -> None:
    """Broker 3 lost the directory that was not cordoned."""
    now.neighbours[3] = neighbour(3, cordoned_dirs=frozenset([home(3), Uuid.of(6, 33)]))


def _gone(now: Observed) -> None:
    del now.neighbours[3]


LISTS: dict[str, tuple[Callable[[Observed], None], bool, bool]] = {
    "nothing": (_nothing, False, False),
    "broker 3": (_cordoned(3), False, True),
    "broker 2": (_cordoned(2), False, True),
    "no replica": (_cordoned(4), False, False),
    "this broker": (_cordoned(NODE), False, False),  # the list is the one without it
    "none of two": (_two_directories(0), False, False),
    "one of two": (_two_directories(1), False, False),
    "two of two": (_two_directories(2), False, True),
    "before directories": (_before_directories, False, False),
    "lost the rest": (_lost_the_rest, False, True),
    "unregistered": (_gone, True, True),
}
"""A change of the brokers; whether Kafka 4.3 then refuses the list without this broker, and whether Kafka 4.4 does."""


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("is_4_4", [False, True])
def test_no_eviction_begins_that_the_controllers_refuse(name: str, is_4_4: bool) -> None:
    change, refused_by_4_3, refused_by_4_4 = LISTS[name]
    now = observed(LEFT, min_isr=1)
    now.controllers = {9: LEVEL_4_4 if is_4_4 else LEVEL_4_3}
    change(now)
    found = evictions(now, D1, 1)
    assert bool(found.refused) is (refused_by_4_4 if is_4_4 else refused_by_4_3)
    if found.refused:
        assert found.before == {} and "the controllers refuse a list with broker" in (found.refusal or "")


@pytest.mark.parametrize(
    ("level", "controllers", "refuses"),
    [
        (LEVEL_4_3, {}, False),
        (LEVEL_4_3, {9: LEVEL_4_3}, False),
        (LEVEL_4_3, {9: 33}, True),  # Kafka 4.4.0 before the upgrade of metadata.version
        (LEVEL_4_3, {9: LEVEL_4_3, 10: 33}, True),  # while the controllers are upgraded, either may be active
        (LEVEL_4_4, {}, True),
        (33, {9: LEVEL_4_3}, True),
        (21, {9: 99}, True),
    ],
)
def test_controllers_of_kafka_4_4_refuse_cordoned_brokers_at_each_metadata_version(
    level: int, controllers: dict[int, int], refuses: bool
) -> None:
    now = Observed(NODE)
    records: list[Record] = [FeatureLevelRecord(name=METADATA_VERSION, feature_level=level)]
    records += [controller(number, newest) for number, newest in controllers.items()]
    now.committed(Committed(tuple(enumerate(records)), len(records) - 1, 1, len(records)))
    assert now.refuses_cordoned is refuses


def test_cordons_are_read_from_registrations_and_their_changes() -> None:
    now = Observed(NODE)
    dirs = (home(2), Uuid.of(6, 22))

    def register(broker: int, *cordoned: Uuid) -> RegisterBrokerRecord:
        return RegisterBrokerRecord(
            broker_id=broker,
            incarnation_id=Uuid.of(9, broker),
            broker_epoch=broker,
            end_points=(),
            features=(),
            log_dirs=dirs,
            cordoned_log_dirs=cordoned,
        )

    def changed(broker: int, *cordoned: Uuid) -> BrokerRegistrationChangeRecord:
        return BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=broker, cordoned_log_dirs=cordoned)

    steps: list[tuple[Record, tuple[int, ...]]] = [
        (register(2), ()),
        (changed(2, *dirs), (2,)),
        (register(NODE, *dirs), (1, 2)),
        (BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=2, fenced=-1), (1, 2)),  # null: unchanged
        (changed(2, dirs[0]), (1,)),
        (BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=2, log_dirs=(dirs[0],)), (1, 2)),
        (changed(NODE), (2,)),
        (changed(2), ()),
        (register(2, *dirs), (2,)),
        (UnregisterBrokerRecord(broker_id=2, broker_epoch=2), (2,)),
    ]
    for offset, (each, expected) in enumerate(steps):
        now.committed(Committed(((offset, each),), offset, 1, offset + 1))
        assert tuple(sorted(barred(now, (1, 2)) - set(now.unregistered((1,))))) == expected


def test_leadership_moves_in_no_list_that_the_controllers_refuse() -> None:
    for broker in (1, 2, 3):
        now = observed(ALL)
        now.controllers = {9: LEVEL_4_4}
        assert demotions(now, D1)
        cordon(now, broker)
        assert demotions(now, D1) == {} and why_list_refused(now, (1, 2, 3)) is not None


def test_a_file_system_is_not_cut_where_the_eviction_would_be_refused() -> None:
    moment = Moment(None, ALL)
    deciding = Deciding(moment.core.site)
    for controllers, step, reason in (({9: LEVEL_4_3}, Step.CUT, ""), ({9: LEVEL_4_4}, Step.MASK, UNEVICTED)):
        moment.observed.controllers = dict(controllers)
        cordon(moment.observed, 3)
        case = deciding.case(PATH, moment.core.known, moment.now)
        assert case.evicts is (step is Step.CUT), reason


def test_a_file_system_is_not_cut_where_a_list_has_a_broker_that_is_not_registered() -> None:
    moment = Moment(None, ALL)
    deciding = Deciding(moment.core.site)
    assert deciding.case(PATH, moment.core.known, moment.now).evicts
    _gone(moment.observed)
    assert not deciding.case(PATH, moment.core.known, moment.now).evicts


def _evicting() -> Moment:
    moment = Moment(WAS_CUT, LEFT, LEFT, online=(D2,), own=record(D1))
    moment.observed.controllers = {9: LEVEL_4_4}
    return moment


def test_an_eviction_that_is_refused_begins_when_the_cordon_is_taken_off_within_its_time() -> None:
    moment = _evicting()
    cordon(moment.observed, 3)
    assert not any(isinstance(one, Evict) for one in moment.effects()) and not moment.core.journal.evicted
    moment.observed.neighbours[3] = neighbour(3)
    assert moment.begun(Evict).effect == Evict(PATH, str(D1), {(T, 0): (1, 2, 3), (T, 1): (1, 2, 3)})


def test_nothing_is_sent_nor_kept_where_a_broker_is_cordoned_while_the_journal_is_written() -> None:
    moment = _evicting()
    task = moment.begun(Evict)
    cordon(moment.observed, 2)
    assert moment.core.to_send(task, moment.now) == {} and moment.core.journal.evicted == {}


def _restoring() -> Moment:
    moment = Moment(BACK, disk=ONLINE, evicted=evicted(0, 1))
    moment.observed.others = {(T, number): GONE for number in range(2)}
    moment.observed.controllers = {9: LEVEL_4_4}
    cordon(moment.observed, 3)
    return moment


def _refuse(moment: Moment) -> None:
    moment.core.came_of(moment.begun(Restore), Done(outcome=Outcome.FAILED, reason=REFUSED), moment.now)


def _lines(moment: Moment) -> tuple[Level, str]:
    core, observed = moment.core, moment.observed
    lacks = redundancy.problems(core.journal, observed, core.needs(observed))
    found = condition({PATH: "online"}, unnoticed=(), unbound=None, blind=None, redundancy=lacks)
    return found.level, found.line


def test_partitions_are_restored_however_long_they_are_refused_and_the_guard_is_degraded_until_then() -> None:
    moment = _restoring()
    now_ms, tries = NOW_MS, 0
    while now_ms < NOW_MS + 3 * GIVE_UP_MS:
        moment.changes.update(now_ms=now_ms, answered_ms=now_ms)
        look = moment.core.look(moment.now)
        if any(isinstance(task.effect, Restore) for task in look.tasks):
            (task,) = [task for task in look.tasks if isinstance(task.effect, Restore)]
            moment.core.came_of(task, Done(outcome=Outcome.FAILED, reason=REFUSED), moment.now)
            tries += 1
        level, line = _lines(moment)
        assert level is Level.DEGRADED and "2 partitions have 2 of 3 replicas" in line
        now_ms += 1_000
    assert 30 <= tries <= 40 and len(moment.core.journal.evicted) == 2
    shown = redundancy.refusals(moment.core.refused, moment.core.journal, moment.observed, now_ms, now_ms)
    assert [(row["means"], row["reason"], row["left"]) for row in shown] == [("restore", REFUSED, False)] * 2
    del moment.observed.neighbours[3]
    moment.observed.neighbours[3] = neighbour(3)
    assert isinstance(moment.begun(Restore).effect, Restore)


CHANGES: dict[str, Callable[[Observed], object]] = {
    "none cordoned": lambda now: now.neighbours.update({3: neighbour(3)}),
    "another one cordoned": lambda now: now.neighbours.update({3: neighbour(3, cordoned_dirs=frozenset([D1]))}),
    "a new directory": lambda now: now.neighbours.update(
        {3: replace(now.neighbours[3], log_dirs=frozenset([home(3), D2]))}
    ),
    "broker 2 as well": lambda now: cordon(now, 2),
    "this broker as well": lambda now: cordon(now, NODE),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_refused_restoration_is_tried_at_once_when_a_cordon_of_its_list_changes(
    name: str,
) -> None:
    moment = _restoring()
    _refuse(moment)
    moment.changes.update(now_ms=NOW_MS + 1_000, answered_ms=NOW_MS + 1_000)
    _refuse(moment)
    moment.changes.update(now_ms=NOW_MS + 2_000, answered_ms=NOW_MS + 2_000)
    assert not any(isinstance(one, Restore) for one in moment.effects()), "again after 2 s"
    cordon(moment.observed, 4)  # which has nothing of it
    assert not any(isinstance(one, Restore) for one in moment.effects())
    CHANGES[name](moment.observed)
    assert isinstance(moment.begun(Restore).effect, Restore)


def test_a_restoration_ends_where_a_person_changes_the_list() -> None:
    moment = _restoring()
    moment.core.look(moment.now)
    moment = _restoring()
    _refuse(moment)
    moment.core.look(moment.now)  # the metadata show the lists as the guard left them
    moment.observed.others = {(T, number): replace(GONE, replicas=(2, 4)) for number in range(2)}
    look = moment.core.look(moment.now)
    assert look.forgotten and not moment.core.journal.evicted and moment.core.refused == {}
    assert _lines(moment)[0] is Level.OK


@pytest.mark.parametrize(("works", "fails"), [(3, 0), (2, 1), (1, 2), (0, 3), (1_500, 1)])
def test_only_partitions_that_the_controllers_took_are_counted(works: int, fails: int) -> None:
    took, refused = Done(outcome=Outcome.DONE), Done(outcome=Outcome.FAILED, reason=REFUSED)
    answer = {("t", number): took if number < works else refused for number in range(works + fails)}
    found = summed([answer])
    assert (found.changed, len(found.refused), found.happened) == (works, fails, works > 0)


def test_an_eviction_that_was_refused_is_not_shown_as_done() -> None:
    moment = _evicting()
    moment.core.came_of(moment.begun(Evict), Done(outcome=Outcome.FAILED, reason=REFUSED), moment.now)
    assert redundancy.evicted(moment.core.journal, moment.observed) == []
    assert moment.core.standing(PATH).state is State.OFFLINE and moment.core.standing(PATH).reason == REFUSED


def test_a_controller_that_was_unregistered_says_nothing_of_what_controllers_refuse() -> None:
    """Record 29 of metadata.version 33, which ended each view of the metadata."""
    now, image = Observed(NODE), MetadataImage()
    records: list[Record] = [controller(9, 33), controller(10, LEVEL_4_3), UnregisterControllerRecord(controller_id=9)]
    records.append(UnregisterControllerRecord(controller_id=99))  # of one that is not there: Kafka goes on, too
    for offset, each in enumerate(records):
        decoded, version = decode_record(encode_record(each, 0))
        assert (decoded, version) == (each, 0)
        image.replay(decoded, offset)
        now.committed(Committed(((offset, decoded),), offset, 1, offset + 1))
    assert now.controllers == {10: LEVEL_4_3} and not now.refuses_cordoned
    assert list(image.controllers) == [10]

"""The core of a guard alone: what it begins in which situation, what stops it, and what comes of it."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kjbod.ids import Uuid
from kjbod.metadata.records import UnknownRecord
from kjbod_guard import broker_steps, suspecting
from kjbod_guard.actions import Done, Outcome
from kjbod_guard.broker_steps import State as BrokerState
from kjbod_guard.core import DOUBT_MS, GATE_MS, GuardCore, Part, Task
from kjbod_guard.directory_steps import CHECKPOINT_MS, RELEASED, REPORT_AFTER_MS, Standing, State
from kjbod_guard.effects import (
    Cut,
    Demote,
    Destroy,
    Effect,
    Evict,
    Fence,
    Kill,
    Mask,
    Promote,
    Report,
    Reset,
    Restore,
    Suspect,
    Trust,
    Unmask,
)
from kjbod_guard.journal import Demoted, Evicted, Journal, decode, encode
from kjbod_guard.ladder import Step
from kjbod_guard.majority import Quorum
from kjbod_guard.observing import Key, Placed
from kjbod_guard.situation import Disk, Site, Situation
from kjbod_guard.suspects import VALID_MS, Suspects
from kjbod_host.health.state import Cause, Health
from tests.guard.test_action_runner import PATH, WELL
from tests.guard.test_copies import ALL, D1, D2, EPOCH, LEFT, NODE, T, home, observed, placed, suspected

NOW_MS, WALL_MS = 10_000_000, 1_700_000_000_000
OFFSET = 70
"""Of this guard's own record."""
SITE = Site(node_id=NODE, log_dirs=(PATH, WELL), metadata_log_dir="/metadata", min_isr=2)
HUNG = Disk(
    path=PATH,
    directory_id=D1,
    health=Health.FAILED,
    cause=Cause.HUNG,
    failed_ms=NOW_MS - 8_000,
    bad_ms=NOW_MS - 10_000,
    file_system="ext4",
    cut_after_ms=3_000,
)
ONLINE = Disk(path=PATH, directory_id=D1, health=Health.ONLINE, file_system="ext4", bad_ms=NOW_MS)
SECOND = replace(ONLINE, path=WELL, directory_id=D2)
SERVING = broker_steps.Standing(state=BrokerState.SERVING, pid=7, epoch=EPOCH)
WELL_STANDING = Standing(epoch=EPOCH, seen_online=True)
REPORTED = Standing(
    state=State.REPORTING, plan=Step.CUT, epoch=EPOCH, reports=1, acted_ms=NOW_MS - 50, seen_online=True
)
WAS_CUT = replace(REPORTED, state=State.CUT, means=Step.CUT, acted_ms=NOW_MS - 2_000, offline_ms=NOW_MS - 1_000)
LED = placed(1, 2, 3, at=D2)
DONE, PENDING, FAILED, REFUSED = (Done(outcome=one, reason=str(one)) for one in Outcome)


def record(*directories: Uuid, offset: int = OFFSET) -> Suspects:
    """This guard's own record, with the mark ``g-1``; no directories: all of the broker."""
    return suspected(*directories, offset=offset, seen_ms=NOW_MS - 100)


class Moment:
    """A core, and what it knows."""

    def __init__(
        self,
        standing: Standing | None = WELL_STANDING,
        *partitions: Placed,
        disk: Disk = HUNG,
        online: tuple[Uuid, ...] = (D1, D2),
        own: Suspects | None = None,
        site: Site = SITE,
        broker: broker_steps.Standing = SERVING,
        evicted: Mapping[Key, Evicted] | None = None,
        demoted: Mapping[Key, Demoted] | None = None,
        **changes: Any,
    ) -> None:
        directories = {} if standing is None else {PATH: (standing, str(D1), 0)}
        journal = Journal(directories=directories, broker=broker, evicted=evicted or {}, demoted=demoted or {})
        self.core = GuardCore(site, journal, "g")
        self.core.acts = True
        if own is not None:
            self.core.record = suspecting.Standing(run="g", count=1, mark="g-1", asked_ms=NOW_MS - 100, answered=True)
        self.disks = {PATH: disk, WELL: SECOND}
        self.observed = observed(*partitions, online=online)
        self.observed.follow_evicted(journal.evicted)
        if own is not None:
            self.observed.suspects[NODE] = own
        self.changes: dict[str, Any] = {"pid": 7, "answered_ms": NOW_MS - 100, **changes}
        self.at_gate = False
        """Whether a broker that is about to start asks."""

    @property
    def now(self) -> Situation:
        facts = {"now_ms": NOW_MS, "wall_ms": WALL_MS, **self.changes}
        return Situation(disks=self.disks, observed=self.observed, **facts)

    def register(self, **changes: Any) -> None:
        if self.observed.registration is not None:
            self.observed.registration = dataclasses.replace(self.observed.registration, **changes)

    def move(self, number: int, **changes: Any) -> None:
        self.observed.partitions[T, number] = replace(self.observed.partitions[T, number], **changes)

    def change(self, path: str, **changes: Any) -> None:
        self.disks[path] = replace(self.disks[path], **changes)

    def tasks(self) -> list[Task]:
        if self.at_gate:
            return list(self.core.before_start(self.now, masks=True)[1])
        return list(self.core.look(self.now).tasks)

    def effects(self) -> list[Effect]:
        return [task.effect for task in self.tasks()]

    def begun(self, kind: type[Effect]) -> Task:
        """Look, and return the task of this kind, not of the other disk."""
        (task,) = [one for one in self.tasks() if isinstance(one.effect, kind) and one.path != WELL]
        return task


# ------------------------------------------------------------------------------------- what stops what cannot be undone


def _report() -> Moment:
    return Moment(WELL_STANDING, ALL, own=record(D1))


def _mask() -> Moment:
    return Moment(WELL_STANDING, ALL, own=record(D1), disk=replace(HUNG, file_system="btrfs"))


def _cut() -> Moment:
    return Moment(REPORTED, LEFT, online=(D2,), own=record(D1))


def _evict() -> Moment:
    return Moment(WAS_CUT, LEFT, online=(D2,), own=record(D1))


def _kill() -> Moment:
    """A fetcher is stuck on a disk that was cut, and the broker is in sync on the other one."""
    return Moment(WAS_CUT, LED, online=(D2,), own=record(), stuck="a fetcher is stuck", waits=True)


def _fence_cut() -> Moment:
    """The broker was killed and fenced, and its threads wait for a disk still."""
    left = (Cut(PATH), Reset(), Destroy())
    fencing = broker_steps.Standing(
        state=BrokerState.FENCING, pid=7, epoch=EPOCH, left=left, fences=1, killed_ms=NOW_MS - 50, since_ms=NOW_MS - 10
    )
    found = Moment(WELL_STANDING, LEFT, own=record(), broker=fencing)
    found.register(fenced=True)
    return found


def _gate_cut() -> Moment:
    """A broker that was stopped is about to start on a disk that hangs."""
    found = Moment(
        WELL_STANDING, LEFT, own=record(D1), broker=broker_steps.Standing(), pid=None, unbound="no broker runs"
    )
    found.register(fenced=True)
    found.at_gate = True
    return found


def _gate_mask() -> Moment:
    found = _gate_cut()
    found.change(PATH, file_system="btrfs")
    return found


ACTS: Mapping[str, tuple[Callable[[], Moment], Effect]] = {
    "report": (_report, Report(PATH, (str(D1),), EPOCH)),
    "mask": (_mask, Mask(PATH)),
    "cut": (_cut, Cut(PATH)),
    "evict": (_evict, Evict(PATH, str(D1), {(T, 0): (1, 2, 3)})),
    "kill": (_kill, Kill(EPOCH)),
    "fence-cut": (_fence_cut, Cut(PATH)),
    "gate-cut": (_gate_cut, Cut(PATH)),
    "gate-mask": (_gate_mask, Mask(PATH)),
}


def _own(**changes: Any) -> Callable[[Moment], None]:
    def change(one: Moment) -> None:
        if (own := one.observed.suspects.get(NODE)) is not None:
            one.observed.suspects[NODE] = replace(own, **changes)

    return change


def _theirs(broker: int, found: Suspects) -> Callable[[Moment], None]:
    return lambda one: one.observed.suspects.update({broker: found})


def _neighbour(broker: int, **changes: Any) -> Callable[[Moment], None]:
    return lambda one: one.observed.neighbours.update({broker: replace(one.observed.neighbours[broker], **changes)})


def _isr(change: Callable[[set[int]], Collection[int]]) -> Callable[[Moment], None]:
    return lambda one: one.move(0, isr=tuple(sorted(change({*one.observed.partitions[T, 0].isr}))))


def _silent(for_ms: int) -> Callable[[Moment], None]:
    """No controller has answered for so long at least."""

    def change(one: Moment) -> None:
        if (answered_ms := one.changes["answered_ms"]) is not None:
            one.changes["answered_ms"] = min(answered_ms, NOW_MS - for_ms)

    return change


def _site(**changes: Any) -> Callable[[Moment], None]:
    def change(one: Moment) -> None:
        one.core = _as(one.core, replace(one.core.site, **changes))

    return change


def _both(*changes: Callable[[Moment], None]) -> Callable[[Moment], None]:
    def change(one: Moment) -> None:
        for each in changes:
            each(one)

    return change


def _as(core: GuardCore, site: Site) -> GuardCore:
    """The same core at another site."""
    made = GuardCore(site, core.to_write(NOW_MS, WALL_MS), "g")
    made.acts, made.record = core.acts, core.record
    return made


def _unknown(api_key: int, version: int) -> Callable[[Moment], None]:
    return lambda one: one.observed.newer.note(UnknownRecord(api_key=api_key, version=version))


LATELY = NOW_MS - 1
AT_FIRST = {"report", "mask", "gate-cut", "gate-mask"}
UNEVICTED = {"evict", "report", "cut", "gate-cut"}
"""A directory is masked, where no eviction can follow a cut."""
RECORDED = AT_FIRST | {"evict", "kill"}
"""Actions that need this guard's record in the metadata."""
ON_DISKS = AT_FIRST | {"cut", "fence-cut"}
EVERY = set(ACTS)
STOPS: Mapping[str, tuple[Callable[[Moment], object], Collection[str]]] = {
    # no act without this guard's own record in the log, which counts
    "it observes": (lambda one: setattr(one.core, "acts", False), EVERY),
    "no record": (lambda one: one.observed.suspects.pop(NODE, None), RECORDED),
    "the record of another run": (_own(mark="f-1"), RECORDED),
    "the record of another start": (_own(epoch=EPOCH - 1), RECORDED),
    "the record of another directory": (_own(directories=frozenset([D2])), RECORDED),
    "a record of a snapshot": (_own(offset=-1), RECORDED),
    "a record that is too old": (
        lambda one: setattr(one.core, "record", replace(one.core.record, asked_ms=NOW_MS - VALID_MS - 1)),
        RECORDED,
    ),
    # the budget of the cluster
    "another broker is first": (_theirs(4, suspected(home(4), offset=OFFSET - 1, seen_ms=LATELY)), RECORDED | {"cut"}),
    "another broker is first, and two may lose a directory": (
        _both(_site(cut_brokers_max=2), _theirs(4, suspected(home(4), offset=OFFSET - 1, seen_ms=LATELY))),
        UNEVICTED | {"kill"},  # it alone may evict: each guard tells whole lists
    ),
    "another broker is later": (_theirs(3, suspected(home(9), offset=OFFSET + 1, seen_ms=LATELY)), set()),
    "another broker lost a directory": (_neighbour(4, lost_ms=LATELY), AT_FIRST | {"kill"}),
    "another broker was fenced": (_neighbour(4, active=False, fenced_ms=LATELY), {"kill"}),
    "no broker may lose a directory": (_site(cut_brokers_max=0), AT_FIRST),
    "no broker may be fenced": (_site(fence_brokers_max=0), {"kill"}),
    "a guard that has just started": (lambda one: setattr(one.observed, "known_ms", LATELY), AT_FIRST | {"kill"}),
    # what counts as a copy
    "a copy that is suspected": (_theirs(2, suspected(home(2), offset=90, seen_ms=LATELY)), EVERY),
    "a copy on a broker that is fenced": (_neighbour(2, active=False), EVERY),
    "a copy in a directory that is offline": (_neighbour(2, log_dirs=frozenset()), EVERY),
    "no other copy": (_isr(lambda isr: isr & {NODE}), EVERY),
    "the replica here is in sync": (_isr(lambda isr: isr | {NODE}), {"cut", "fence-cut", "gate-cut"}),
    "an unclean election": (lambda one: one.move(0, unclean=True), UNEVICTED),
    "a reassignment of somebody else": (lambda one: one.move(0, adding=(4,)), UNEVICTED),
    "kjbod.guard.evict=never": (_site(evict=False), UNEVICTED),
    # blindness is no evidence
    "the metadata are not followed": (lambda one: one.changes.update(blind="no answer"), EVERY),
    "a record of a type that nobody knows": (_unknown(30, 0), EVERY),
    "a partition record of a newer version": (_unknown(3, 3), EVERY),
    "a registration of a newer version": (_unknown(0, 5), EVERY),
    "a configuration of a newer version": (_unknown(4, 1), EVERY),
    "a record that is damaged": (_unknown(-1, -1), EVERY),
    "a record of a controller that is not known": (_unknown(29, 0), set()),
    "an ACL of a newer version": (_unknown(18, 1), set()),
    "a metadata.version that is not known": (lambda one: setattr(one.observed, "metadata_version", 99), set()),
    "no answer for 2 s": (_silent(2_000), AT_FIRST | {"cut", "fence-cut"}),
    "no answer for 4 s": (_silent(4_000), AT_FIRST | {"cut", "kill", "fence-cut"}),
    "no answer ever": (
        lambda one: one.changes.update(answered_ms=None),
        AT_FIRST | {"cut", "kill", "fence-cut"},
    ),
    # the disk
    "it has stood still for too short": (lambda one: one.change(PATH, bad_ms=NOW_MS - 2_999), AT_FIRST),
    "it answers again": (lambda one: one.change(PATH, over="its probes pass again"), ON_DISKS),
    "it is healthy": (lambda one: one.change(PATH, health=Health.ONLINE, cause=Cause.NONE), ON_DISKS),
    "the broker has another mount": (lambda one: one.change(PATH, kept="the broker has mounts of its own"), AT_FIRST),
    "the other disk hangs too": (
        lambda one: one.change(WELL, health=Health.FAILED, cause=Cause.HUNG, failed_ms=LATELY, bad_ms=LATELY),
        RECORDED,  # an eviction waits for a record that has both
    ),
    # the broker
    "no broker": (
        lambda one: one.changes.update(unbound="no broker runs", pid=None, stuck=None, waits=False),
        {"report", "mask", "cut", "evict", "kill"},
    ),
    "no registration": (lambda one: setattr(one.observed, "registration", None), EVERY),
    "the last directory": (lambda one: one.register(log_dirs=(D1,)), {"report", "mask"}),
    "a fence ten minutes ago": (
        lambda one: setattr(one.core, "journal", replace(one.core.journal, fenced=(EPOCH - 1, NOW_MS - 599_999))),
        {"kill"},
    ),
    "no thread is stuck": (lambda one: one.changes.update(stuck=None, waits=False), {"kill"}),
    "a broker that is silent": (lambda one: one.changes.update(stuck=None, waits=False, silent="no answer"), {"kill"}),
    "the helper is gone": (lambda one: one.changes.update(no_helper="the helper has died"), AT_FIRST | {"kill"}),
    "the quorum needs this node": (lambda one: one.changes.update(quorum=Quorum()), {"kill"}),
    "it was released": (
        lambda one: one.core.directories.update({PATH: Standing(state=State.LEFT, reason=RELEASED, epoch=EPOCH)}),
        RECORDED | {"cut"},
    ),
    "something is under way": (
        lambda one: one.core.directories.update({PATH: replace(one.core.standing(PATH), under_way=Unmask(PATH))}),
        AT_FIRST | {"cut", "evict"},
    ),
}
SETTINGS = (
    "another broker is first, and two may lose a directory",
    "no broker may lose a directory",
    "no broker may be fenced",
    "kjbod.guard.evict=never",
)
OPEN = {
    # The act is not about the last directory, or the moment does not come.
    *((act, "the last directory") for act in ACTS if act not in ("report", "mask")),
    *(("fence-cut", stop) for stop in ("it was released", "something is under way", "no broker")),
}
"""Cells of which this table says nothing."""
SETTLED = ("it observes", "it was released", "something is under way")
"""Reasons that are not tried while the journal is being written: none of them can begin then."""


def stopped_by(stop: str) -> set[str]:
    return {act for act in STOPS[stop][1] if (act, stop) not in OPEN}


@pytest.mark.parametrize("act", ACTS)
def test_an_act_begins_where_nothing_speaks_against_it(act: str) -> None:
    make, effect = ACTS[act]
    assert effect in make().effects()


@pytest.mark.parametrize("stop", STOPS)
def test_an_act_does_not_begin_where_one_thing_speaks_against_it(stop: str) -> None:
    stopped = set()
    for act, (make, effect) in ACTS.items():
        moment = make()
        STOPS[stop][0](moment)
        if effect not in moment.effects() and (act, stop) not in OPEN:
            stopped.add(act)
    assert stopped == stopped_by(stop)


def test_a_gate_asks_the_same_of_a_directory_that_kafka_has_offline() -> None:
    """Kafka opens it when it starts, and a disk that hangs holds up the start."""
    moment = _gate_cut()
    moment.register(log_dirs=(D2,))
    assert moment.effects() == [Cut(PATH)]
    moment = _gate_cut()
    moment.register(log_dirs=(D2,))
    moment.change(PATH, bad_ms=NOW_MS)
    assert moment.effects() == [], "it has stood still for too short"
    moment = _gate_cut()
    moment.register(log_dirs=(D2,))
    moment.move(0, isr=(1,))
    assert moment.effects() == [], "no other copy is in sync"


def test_the_reason_at_the_gate_is_the_gates() -> None:
    moment = _gate_cut()
    task = moment.begun(Cut)
    moment.change(PATH, over="its probes pass again")
    found = moment.core.saved(task, None, moment.now)
    assert isinstance(found, Done) and found.reason == "recovered: its probes pass again"


MANY = [
    stop for stop in STOPS if stop not in ("it is healthy", "another broker is first, and two may lose a directory")
]
"""A disk that is healthy speaks for a kill where the other one hangs, and where two may lose one the first may."""


@given(st.sampled_from(list(ACTS)), st.lists(st.sampled_from(MANY), min_size=1, unique=True))
def test_whatever_else_is_so_one_thing_that_speaks_against_an_act_is_enough(act: str, stops: list[str]) -> None:
    make, effect = ACTS[act]
    moment = make()
    for stop in stops:
        if (act, stop) not in OPEN:
            STOPS[stop][0](moment)
    if any(act in stopped_by(stop) for stop in stops):
        assert effect not in moment.effects()


def test_no_cut_follows_a_report_whose_record_is_too_old_while_another_guard_has_one() -> None:
    # A record for the eviction would be written anew, and be last in order: the eviction would come too late.
    moment = _cut()
    STOPS["another broker is later"][0](moment)
    assert Cut(PATH) in moment.effects()
    moment = _cut()
    STOPS["another broker is later"][0](moment)
    STOPS["a record that is too old"][0](moment)
    assert Cut(PATH) not in moment.effects()


@pytest.mark.parametrize("stop", [stop for stop in STOPS if stop not in (*SETTLED, *SETTINGS)])
def test_an_act_that_cannot_be_undone_is_decided_once_more_when_it_is_written_down(stop: str) -> None:
    stopped = set()
    for act, (make, effect) in ACTS.items():
        moment = make()
        before = moment.core.journal.fenced
        task = moment.begun(type(effect))
        STOPS[stop][0](moment)
        found = moment.core.saved(task, None, moment.now)
        if not isinstance(found, Done):
            assert found == effect
            continue
        if (act, stop) not in OPEN:
            stopped.add(act)
        assert found.outcome is Outcome.REFUSED and found.reason.startswith(("recovered: ", "not due any more: "))
        assert task.part is Part.BROKER or moment.core.standing(PATH) == task.before
        assert moment.core.broker.under_way is None
        assert moment.core.journal.fenced == before or "fenced 599 s ago" in found.reason
    assert stopped == stopped_by(stop) - {"evict"}, "whole lists are compared when they are sent"


@pytest.mark.parametrize("act", ACTS)
def test_only_replica_lists_wait_for_a_journal_that_cannot_be_written(act: str) -> None:
    make, effect = ACTS[act]
    moment = make()
    task = moment.begun(type(effect))
    found = moment.core.saved(task, "No space left on device", moment.now)
    if act != "evict":
        assert found == effect and task.is_saved is (act not in ("cut", "fence-cut"))
        return
    assert isinstance(found, Done) and found.outcome is Outcome.FAILED
    assert found.reason == "the replica lists cannot be written down: No space left on device"
    assert moment.core.journal.evicted == {} and moment.core.standing(PATH).under_way is None


# ------------------------------------------------------------------------------------------------------- time and doubt


@pytest.mark.parametrize(
    ("stood_ms", "partition", "again_ms"),
    [
        (1_000, ALL, 2_000),
        (2_999, ALL, 1),
        (3_000, ALL, None),
        (1_000, placed(1, 2, 3, isr=(1, 2)), 5_000),
        (5_999, placed(1, 2, 3, isr=(1, 2)), 1),
        (6_000, placed(1, 2, 3, isr=(1, 2)), None),
    ],
)
def test_the_core_says_when_its_patience_ends_which_is_doubled_where_copies_are_short(
    stood_ms: int, partition: Placed, again_ms: int | None
) -> None:
    moment = Moment(WELL_STANDING, partition, own=record(D1), disk=replace(HUNG, bad_ms=NOW_MS - stood_ms))
    assert moment.core.look(moment.now).again_ms == again_ms


def test_patience_stays_doubled_when_the_copies_are_back_until_the_disk_is_healthy() -> None:
    moment = Moment(
        WELL_STANDING, placed(1, 2, 3, isr=(1, 2)), own=record(D1), disk=replace(HUNG, bad_ms=NOW_MS - 5_000)
    )
    assert moment.effects() == []
    moment.move(0, isr=(1, 2, 3))
    assert moment.effects() == [], "6 s, not 3 s"
    moment.disks[PATH] = ONLINE
    moment.effects()
    assert moment.core.record.under_way == Trust()
    again = replace(HUNG, bad_ms=NOW_MS - 3_000)
    moment.disks[PATH] = again
    assert moment.core.look(moment.now).again_ms is None


def test_a_core_that_observes_decides_the_same_and_begins_nothing() -> None:
    moments = [Moment(WELL_STANDING, ALL, own=record(D1)) for _ in range(2)]
    moments[0].core.acts = False
    looks = [one.core.look(one.now) for one in moments]
    assert looks[0].decided[PATH][1].step is Step.CUT is looks[1].decided[PATH][1].step
    assert looks[0].tasks == () != looks[1].tasks


LONG_AGO = NOW_MS - DOUBT_MS


@pytest.mark.parametrize(
    ("standing", "doubt"),
    [
        (Standing(), False),
        (Standing(state=State.MASKING, epoch=EPOCH), False),  # nothing was done yet
        (REPORTED, True),
        (replace(REPORTED, acted_ms=LONG_AGO), True),  # for as long as Kafka has the directory
        (replace(WAS_CUT, state=State.MASKED, means=Step.MASK, acted_ms=LONG_AGO), True),
        (replace(WAS_CUT, acted_ms=LONG_AGO), True),
        # Kafka has it offline: only for a while, from then on.
        *(
            (replace(WAS_CUT, state=one, acted_ms=LONG_AGO, offline_ms=LONG_AGO + ms), ms > 0)
            for one in (State.OFFLINE, State.EVICTED)
            for ms in (0, 1, 500, 6_000, DOUBT_MS)
        ),
        (replace(WAS_CUT, state=State.OFFLINE, acted_ms=LONG_AGO + 1, offline_ms=None), True),
        (replace(WAS_CUT, state=State.OFFLINE, acted_ms=LONG_AGO, offline_ms=None), False),
        (replace(WAS_CUT, state=State.OFFLINE, acted_ms=None), False),  # Kafka found out by itself
        (replace(REPORTED, state=State.LEFT, reason=RELEASED), False),
        (replace(REPORTED, state=State.LEFT, reason="the controllers do not show it"), False),
    ],
)
def test_an_act_gives_ground_to_doubt_the_broker_until_kafka_has_the_directory_offline_or_it_is_left(
    standing: Standing, doubt: bool
) -> None:
    core = Moment(standing).core
    assert core.acted(NOW_MS) == ({PATH: standing.acted_ms} if doubt else {}) and core.in_doubt(NOW_MS) is doubt


@pytest.mark.parametrize("state", BrokerState)
def test_a_broker_that_is_to_be_fenced_is_looked_at_closely_whatever_its_disks_do(state: BrokerState) -> None:
    core = Moment(broker=replace(SERVING, state=state)).core
    assert core.in_doubt(NOW_MS) is (state in (BrokerState.CRIPPLED, BrokerState.FENCING))


@pytest.mark.parametrize(
    ("waits", "registration", "kills"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"in_controlled_shutdown": True}, False),  # its listeners are closed
        (True, {"fenced": True}, False),  # nobody waits for an answer of it
    ],
)
def test_a_broker_that_does_not_answer_is_killed_only_while_a_thread_of_it_waits_for_a_disk_that_was_acted_on(
    waits: bool, registration: Mapping[str, bool], kills: bool
) -> None:
    moment = _kill()
    moment.changes.update(stuck=None, waits=waits, silent="it has not answered for 5 s")
    moment.register(**registration)
    assert (Kill(EPOCH) in moment.effects()) is kills


@pytest.mark.parametrize("stuck", [None, "a fetcher is stuck"])
@pytest.mark.parametrize("health", [Health.SLOW, Health.SUSPECT, Health.FAILED])
def test_a_broker_is_not_killed_for_its_silence_alone_while_another_disk_is_late(
    health: Health, stuck: str | None
) -> None:
    moment = _kill()
    moment.changes.update(stuck=stuck, waits=True, silent="it has applied no metadata for 5 s")
    third = "/mnt/d3"
    moment.disks[third] = replace(SECOND, path=third, health=health)
    assert (Kill(EPOCH) in moment.effects()) is (stuck is not None)


# ---------------------------------------------------------------------------------------------- the record of suspicion


def _failed_second(one: Moment) -> None:
    one.disks[WELL] = replace(HUNG, path=WELL, directory_id=D2)


def _on_one(**changes: Any) -> Callable[[Moment], None]:
    """Both directories are on one file system."""
    return lambda one: one.change(PATH, beside=frozenset([WELL]), shares=frozenset([WELL]), **changes)


SUSPECTED: Mapping[str, tuple[Callable[[Moment], None], tuple[Uuid, ...]]] = {
    "it hangs": (lambda one: None, (D1,)),
    "both hang": (_failed_second, (D1, D2)),
    "a file system that would be shut down": (_on_one(), (D1, D2)),
    "a file system that cannot be shut down": (_on_one(file_system="btrfs"), (D1,)),
    "a file system that carries more": (_on_one(shared="it carries /mnt/d1/db"), (D1,)),
    "it has just failed": (lambda one: one.change(PATH, bad_ms=NOW_MS), (D1,)),
    "the only copy lies there": (lambda one: one.move(0, isr=(1,)), (D1,)),
    "no controller has answered": (lambda one: one.changes.update(answered_ms=None), (D1,)),
    "it is slow": (lambda one: one.change(PATH, health=Health.SLOW), ()),
    "it is full": (lambda one: one.change(PATH, health=Health.FULL), ()),
    "it is not judged yet": (lambda one: one.change(PATH, health=Health.SUSPECT), ()),
    "it is held": (lambda one: one.change(PATH, health=Health.HELD), ()),
    "it is not watched": (lambda one: one.change(PATH, health=None), ()),
    "it answers again": (lambda one: one.change(PATH, over="it answers again"), ()),
    "the broker has another mount": (lambda one: one.change(PATH, kept="the broker has mounts of its own"), ()),
    "only its meta.properties is gone": (lambda one: one.change(PATH, unidentified=True, cause=Cause.ERROR), ()),
    "Kafka has noticed": (lambda one: one.register(log_dirs=(D2,)), ()),
    "no broker": (lambda one: one.changes.update(unbound="no broker runs", pid=None), ()),
    "the metadata are not followed": (lambda one: one.changes.update(blind="no answer"), ()),
    "no registration": (lambda one: setattr(one.observed, "registration", None), ()),
}


@pytest.mark.parametrize("case", SUSPECTED)
def test_a_directory_that_has_failed_is_suspected_at_once_and_one_that_has_not_or_that_kafka_has_lost_is_not(
    case: str,
) -> None:
    change, wanted = SUSPECTED[case]
    moment = Moment(WELL_STANDING, ALL)
    change(moment)
    assert moment.effects() == ([Suspect(EPOCH, tuple(map(str, wanted)), "g-1")] if wanted else [])


@pytest.mark.parametrize(
    ("standing", "kept"),
    [
        (WELL_STANDING, False),
        (REPORTED, True),
        (WAS_CUT, True),
        (replace(WAS_CUT, state=State.OFFLINE), False),
        (replace(WAS_CUT, state=State.EVICTED), False),
        (replace(REPORTED, state=State.LEFT, reason=RELEASED), False),
    ],
)
def test_the_record_stays_until_the_directory_is_offline_and_evicted(standing: Standing, kept: bool) -> None:
    moment = Moment(standing, own=record(D1), disk=replace(HUNG, over="it answers again"))
    assert (Trust() in moment.effects()) is not kept


def test_a_masked_directory_stays_suspected_until_the_broker_that_has_ended_is_back_without_it() -> None:
    masked = replace(WELL_STANDING, state=State.MASKED, means=Step.MASK, acted_ms=NOW_MS - 50)
    moment = Moment(masked, own=record(D1), unbound="no broker runs", pid=None)
    assert moment.effects() == []
    moment.register(log_dirs=(D2,))
    assert moment.effects() == [Trust()]


def test_a_mask_comes_off_where_other_copies_have_left_the_isr_before_kafka_met_it() -> None:
    masked = replace(WELL_STANDING, state=State.MASKED, since_ms=NOW_MS, means=Step.MASK, acted_ms=NOW_MS)
    moment = Moment(masked, ALL, own=record(D1))
    assert moment.effects() == []
    moment.move(0, isr=(1,))
    assert moment.effects() == [Unmask(PATH)]


def test_a_broker_that_is_to_be_fenced_is_suspected_as_a_whole_before() -> None:
    moment = _kill()
    moment.observed.suspects[NODE] = record(D1)
    assert moment.effects() == [Suspect(EPOCH, (), "g-2")]
    moment.changes["answered_ms"] = None
    refused = _kill()
    refused.observed.suspects[NODE] = record(D1)
    refused.changes["answered_ms"] = None
    assert Suspect(EPOCH, (), "g-2") not in refused.effects(), "it may not be fenced now"


def test_a_record_is_written_anew_for_an_act_when_it_is_too_old() -> None:
    moment = _report()
    moment.core.record = replace(moment.core.record, asked_ms=NOW_MS - VALID_MS - 1)
    assert moment.effects() == [Suspect(EPOCH, (str(D1),), "g-2")]


# ----------------------------------------------------------------------------------------------------- what comes of it


def test_a_fence_is_in_the_journal_before_the_kill_and_not_any_more_where_the_kill_is_left_out() -> None:
    moment = _kill()
    moment.core.journal = replace(moment.core.journal, fenced=(EPOCH, 5))
    task = moment.begun(Kill)
    assert moment.core.to_write(NOW_MS, WALL_MS).fenced == (EPOCH, NOW_MS)
    moment.changes.update(stuck=None, waits=False)
    assert isinstance(moment.core.saved(task, None, moment.now), Done)
    assert moment.core.to_write(NOW_MS, WALL_MS).fenced == (EPOCH, 5)


@pytest.mark.parametrize(("done", "means"), [(DONE, Step.CUT), (PENDING, Step.CUT), (FAILED, None), (REFUSED, None)])
def test_a_disk_that_is_cut_in_a_fence_is_known_as_cut(done: Done, means: Step | None) -> None:
    moment = _fence_cut()
    moment.core.came_of(moment.begun(Cut), done, moment.now)
    standing = moment.core.standing(PATH)
    assert (standing.means, standing.state is State.CUT) == (means, means is not None)
    assert moment.core.broker.left == (Reset(), Destroy()) and moment.core.broker.under_way is None


def test_partitions_that_the_controllers_refuse_are_asked_for_again_alone_and_later() -> None:
    moment = Moment(WAS_CUT, LEFT, LEFT, online=(D2,), own=record(D1))
    task = moment.begun(Evict)
    refused = Done(outcome=Outcome.DONE, refused={("t", 1): "INVALID_REPLICA_ASSIGNMENT"})
    moment.core.came_of(task, refused, moment.now)
    del moment.observed.partitions[T, 0]
    assert moment.core.refused[T, 1].reason == "INVALID_REPLICA_ASSIGNMENT" and len(moment.core.refused) == 1
    look = moment.core.look(moment.now)
    assert (look.tasks, look.again_ms) == ((Task(Part.RECORD, None, Trust(), is_saved=False),), 1_000)
    moment.core.record = Moment(own=record(D1)).core.record
    moment.changes.update(now_ms=NOW_MS + 1_000, answered_ms=NOW_MS + 1_000)
    assert moment.effects() == [Evict(PATH, str(D1), {(T, 1): (1, 2, 3)})]


@pytest.mark.parametrize("done", [FAILED, REFUSED])
def test_a_request_that_fails_as_a_whole_is_asked_for_again_later_with_all_its_partitions(done: Done) -> None:
    moment = Moment(WAS_CUT, LEFT, LEFT, online=(D2,), own=record(D1))
    moment.core.came_of(moment.begun(Evict), done, moment.now)
    assert {key: one.reason for key, one in moment.core.refused.items()} == {(T, 0): done.reason, (T, 1): done.reason}
    assert moment.core.standing(PATH).reason == done.reason and len(moment.core.journal.evicted) == 2


# -------------------------------------------------------------------------------------------------------- replica lists


def evicted(*numbers: int, before: tuple[int, ...] = (1, 2, 3), of: Uuid = D1) -> dict[Key, Evicted]:
    return {(T, number): Evicted(str(of), "t", before, 99) for number in numbers}


GONE = placed(2, 3)
"""A partition that the broker has left."""
BACK = Standing(state=State.EVICTED, means=Step.CUT, plan=Step.CUT, epoch=EPOCH - 1)


SILENT_MS = [1_501, 3_000, 12_000, 60_000, 1_000_000]


@pytest.mark.parametrize("silent_ms", SILENT_MS)
def test_a_record_that_failed_is_asked_for_at_once_when_controllers_answer_again(silent_ms: int) -> None:
    one = _evict()
    del one.observed.suspects[NODE]
    one.core.record = suspecting.Standing(run="g", mark="g-1", due_ms=NOW_MS + 40_000, wait_ms=40_000)
    found = []
    for answered_ms in (NOW_MS - 100, NOW_MS - silent_ms, NOW_MS):
        one.changes["answered_ms"] = answered_ms
        found.append(Suspect in map(type, one.effects()))
    assert found == [False, False, True]


@pytest.mark.parametrize("silent_ms", SILENT_MS)
def test_lists_that_were_refused_are_due_at_once_when_controllers_answer_again(silent_ms: int) -> None:
    one = _evict()
    one.core.came_of(one.begun(Evict), FAILED, one.now)
    found = []
    for answered_ms in (NOW_MS - 1_500, NOW_MS, NOW_MS - silent_ms, NOW_MS):
        one.changes["answered_ms"] = answered_ms
        found.append(one.core.look(one.now).decided[PATH][1].step is Step.EVICT)
    assert found == [False, False, False, True]


@pytest.mark.parametrize("refused_ms", [101, 1_000, 1_501, 20_000, 59_000])
def test_what_the_controllers_refused_before_they_were_silent_waits_on(refused_ms: int) -> None:
    one = _evict()
    one.core.came_of(one.begun(Evict), FAILED, one.now)
    due_ms = NOW_MS - refused_ms + 60_000
    one.core.refused = {key: replace(its, due_ms=due_ms, wait_ms=60_000) for key, its in one.core.refused.items()}
    one.core.record = replace(one.core.record, due_ms=due_ms, wait_ms=60_000)
    for answered_ms in (NOW_MS - 100, NOW_MS - 3_000, NOW_MS):
        one.changes["answered_ms"] = answered_ms
        look = one.core.look(one.now)
        assert look.decided[PATH][1].step is Step.NOTHING and not look.tasks


def test_lists_are_in_the_journal_before_they_are_changed_with_names_and_the_time() -> None:
    moment = _evict()
    task = moment.begun(Evict)
    assert moment.core.to_write(NOW_MS, WALL_MS).evicted == {(T, 0): Evicted(str(D1), "t", (1, 2, 3), WALL_MS)}
    assert task.added == ((T, 0),) and moment.observed.evicted == {(T, 0)}
    assert moment.core.to_send(task, moment.now) == {("t", 0): (2, 3)}


def test_of_lists_that_somebody_has_changed_meanwhile_none_is_sent_nor_kept() -> None:
    moment = Moment(WAS_CUT, LEFT, LEFT, LEFT, online=(D2,), own=record(D1))
    task = moment.begun(Evict)
    moment.move(1, replicas=(1, 3))
    del moment.observed.partitions[T, 2]  # its topic was deleted
    assert moment.core.to_send(task, moment.now) == {("t", 0): (2, 3)}
    assert moment.core.journal.evicted.keys() == {(T, 0), (T, 2)}


def test_a_guard_that_is_started_after_a_cut_goes_on_with_the_eviction_of_what_nobody_can_read() -> None:
    unread = replace(HUNG, health=None, directory_id=None, failed_ms=None)
    standing = replace(WAS_CUT, state=State.OFFLINE)
    found = Moment(standing, LEFT, disk=unread, online=(D2,)).effects()
    assert [type(one) for one in found] == [Suspect], "its own record is gone, and decides the order"
    task = Moment(standing, LEFT, disk=unread, online=(D2,), own=record(D1)).begun(Evict)
    assert isinstance(task.effect, Evict) and task.effect.before


UNREAD = Disk(path=PATH)
THIRD, D3 = "/mnt/d3", Uuid.of(5, 3)


def test_a_guard_that_is_started_after_one_that_was_killed_before_it_wrote_down_a_cut_goes_on_with_the_eviction() -> (
    None
):
    # The journal has the report alone. Who waits for the cut there waits for ever, and the leader takes the copy in.
    moment = Moment(REPORTED, LEFT, disk=replace(UNREAD, errors=True), online=(D2,), own=record(D1))
    assert moment.effects() == []
    assert (moment.core.standing(PATH).state, moment.core.standing(PATH).reason) == (State.OFFLINE, "")
    assert moment.effects() == [Evict(PATH, str(D1), {(T, 0): (1, 2, 3)})]
    hangs = Moment(REPORTED, LEFT, disk=UNREAD, online=(D2,), own=record(D1))
    assert [hangs.effects(), hangs.effects()] == [[], []], "the broker may have files open there"
    assert hangs.core.acted(NOW_MS), "and a thread of it that waits there is a ground to fence"


@pytest.mark.parametrize("disk", [replace(HUNG, cause=Cause.ERROR, errors=True), replace(UNREAD, errors=True)])
def test_a_guard_whose_state_is_lost_goes_on_with_the_eviction_of_what_the_record_of_the_one_before_names(
    disk: Disk,
) -> None:
    before = replace(record(D1), mark="old-1")
    moment = Moment(None, LEFT, disk=disk, online=(D2,))
    moment.observed.suspects[NODE] = before
    assert moment.effects() == [Suspect(EPOCH, (str(D1),), "g-1")]
    assert moment.core.to_write(NOW_MS, WALL_MS).directories[PATH][1] == str(D1)
    for other in (replace(before, epoch=EPOCH - 1), replace(before, directories=frozenset({D2}))):
        moment = Moment(None, LEFT, disk=disk, online=(D2,))
        moment.observed.suspects[NODE] = other
        assert moment.effects() == [Trust()], "another registration's, or of a directory that is online"


@pytest.mark.parametrize("disk", [HUNG, UNREAD, ONLINE])
def test_a_guard_whose_state_is_lost_evicts_nothing_from_a_disk_that_may_only_have_been_reported(disk: Disk) -> None:
    # The broker has its files open: it would delete them, or wait for a disk that hangs with its metadata thread.
    moment = Moment(None, LEFT, disk=disk, online=(D2,))
    moment.observed.suspects[NODE] = replace(record(D1), mark="old-1")
    (task,) = moment.tasks()
    assert task.effect == Trust()
    assert moment.core.acted(NOW_MS) == {PATH: NOW_MS}, "a thread of the broker that waits there is a ground to fence"
    moment.core.came_of(task, DONE, moment.now)
    del moment.observed.suspects[NODE]
    moment.disks[PATH] = replace(UNREAD, errors=True)
    assert [type(one) for one in moment.effects()] == [Suspect], "it was shut down, and says so by now"


@pytest.mark.parametrize(
    ("named", "errs", "evicts"),
    [
        ((D1,), (True, True), True),  # the other one was dead when the broker started
        ((D1,), (True, False), False),
        ((D1,), (False, False), False),
        ((D1, D3), (True, True), True),
        ((D1, D3), (True, False), False),  # one was cut and the other one only reported, and nobody knows which
        ((D1, D3), (False, True), False),
    ],
)
def test_a_guard_whose_state_is_lost_evicts_from_several_that_nobody_can_read_where_all_of_them_answer_errors(
    named: tuple[Uuid, ...], errs: tuple[bool, bool], evicts: bool
) -> None:
    site = replace(SITE, log_dirs=(PATH, THIRD, WELL))
    there = (LEFT, placed(1, 2, 3, isr=(2, 3), at=D3))
    moment = Moment(None, *there, disk=replace(UNREAD, errors=errs[0]), online=(D2,), site=site)
    moment.disks[THIRD] = Disk(path=THIRD, errors=errs[1])
    moment.observed.suspects[NODE] = replace(record(*named), mark="old-1")
    asked = [one for one in moment.effects() if isinstance(one, Suspect)]
    assert asked == ([Suspect(EPOCH, tuple(sorted(map(str, named))), "g-1")] if evicts else [])


def test_a_directory_that_was_reported_with_another_one_of_its_file_system_is_known_as_that_to_the_next_guard() -> None:
    site = replace(SITE, log_dirs=(PATH, THIRD, WELL))
    there = (LEFT, placed(1, 2, 3, isr=(2, 3), at=D3))
    disk = replace(HUNG, beside=frozenset([THIRD]), shares=frozenset([THIRD]))
    moment = Moment(REPORTED, *there, disk=disk, online=(D2,), own=record(D1, D3), site=site)
    moment.core.ids[THIRD], moment.core.directories[THIRD] = str(D3), WELL_STANDING
    beside = replace(disk, path=THIRD, directory_id=D3, beside=frozenset([PATH]), shares=frozenset([PATH]))
    moment.disks[THIRD] = beside
    assert moment.effects() == [Cut(PATH)]
    told = encode(moment.core.to_write(NOW_MS, WALL_MS), NODE, ahead_ms=WALL_MS - NOW_MS)
    # It was killed before the cut, and what was known of the disks is lost: nobody knows which file system they are on.
    journal = decode(told, NODE, now_ms=NOW_MS, wall_ms=WALL_MS)
    moment.core = GuardCore(site, journal, "g")
    moment.core.acts, moment.core.record = True, Moment(own=record(D1, D3)).core.record
    moment.disks |= {PATH: UNREAD, THIRD: Disk(path=THIRD)}
    found = [one for _ in range(3) for one in moment.effects()]
    assert not any(isinstance(one, Evict) for one in found), "the broker has files open in both"
    assert moment.core.acted(NOW_MS).keys() == {PATH, THIRD}
    moment.disks |= {path: Disk(path=path, errors=True) for path in (PATH, THIRD)}
    moment.core.record = Moment(own=record(D1, D3)).core.record
    assert Evict(THIRD, str(D3), {(T, 1): (1, 2, 3)}) in moment.effects()


def test_a_mask_of_a_guard_whose_state_is_lost_comes_off() -> None:
    # Nobody would see that the disk below answers, and Kafka would meet the mask then.
    moment = Moment(None, ALL, disk=Disk(path=PATH, masked=True))
    look = moment.core.look(moment.now)
    assert (look.tasks, look.again_ms) == ((), CHECKPOINT_MS + REPORT_AFTER_MS), "Kafka may be about to meet it"
    moment.changes.update(now_ms=NOW_MS + 5_500, answered_ms=NOW_MS + 5_500)
    assert moment.effects() == [Unmask(PATH)]
    moment.core.came_of(Task(Part.DIRECTORY, PATH, Unmask(PATH)), DONE, moment.now)
    moment.disks[PATH] = UNREAD
    assert moment.effects() == [] and moment.core.standing(PATH).means is None and not moment.core.acted(NOW_MS)
    released = Moment(replace(WELL_STANDING, state=State.LEFT, reason=RELEASED), ALL, disk=Disk(path=PATH, masked=True))
    assert released.effects() == []


@pytest.mark.parametrize("means", [None, Step.MASK])
def test_a_mask_of_a_guard_before_comes_off_whether_it_is_written_down_or_not_while_kafka_has_not_met_it(
    means: Step | None,
) -> None:
    state = State.MASKING if means is None else State.MASKED
    masked = replace(WELL_STANDING, state=state, since_ms=NOW_MS, plan=Step.MASK, means=means)
    moment = Moment(masked, ALL, disk=Disk(path=PATH, masked=True))
    assert Unmask(PATH) not in moment.effects()
    needed = Moment(masked, placed(1, 2, isr=(1,)), disk=Disk(path=PATH, masked=True))
    assert Unmask(PATH) in needed.effects()
    moment.changes.update(now_ms=NOW_MS + 5_500)
    assert Unmask(PATH) not in moment.effects(), "no controller has just answered"
    moment.changes.update(answered_ms=NOW_MS + 5_500)
    assert Unmask(PATH) in moment.effects()
    met = Moment(masked, LEFT, disk=Disk(path=PATH, masked=True), online=(D2,))
    assert Unmask(PATH) not in met.effects() and met.core.standing(PATH).state is State.OFFLINE


def test_a_report_that_was_on_its_way_when_its_guard_was_killed_is_not_taken_for_kafkas_own() -> None:
    moment = Moment(None, ALL, disk=HUNG)
    moment.observed.suspects[NODE] = replace(record(D1), mark="old-1")
    (task,) = moment.tasks()
    assert isinstance(task.effect, Suspect)
    moment.core.came_of(task, DONE, moment.now)
    moment.observed.suspects[NODE] = record(D1)
    moment.register(log_dirs=(D2,))
    moment.move(0, isr=(2, 3))
    for disk, step in ((HUNG, Step.NOTHING), (replace(HUNG, cause=Cause.ERROR, errors=True), Step.EVICT)):
        moment.disks[PATH] = disk
        moment.tasks()
        (_, would) = moment.core.look(moment.now).decided[PATH]
        assert would.step is step, "while the disk hangs, the broker has files open there"


def test_a_list_whose_other_copies_have_left_the_isr_meanwhile_is_not_sent() -> None:
    moment = Moment(WAS_CUT, LEFT, LEFT, online=(D2,), own=record(D1))
    task = moment.begun(Evict)
    moment.move(1, isr=())
    assert moment.core.to_send(task, moment.now) == {("t", 0): (2, 3)}
    assert moment.core.journal.evicted.keys() == {(T, 0)}


def test_partitions_are_restored_as_they_were_where_nobody_has_changed_them() -> None:
    moment = Moment(BACK, disk=ONLINE, evicted=evicted(0, 1, 2) | evicted(3, of=D2))
    moment.observed.others = {(T, number): GONE for number in range(4)}
    moment.observed.others[T, 1] = replace(GONE, replicas=(2, 4))
    task = moment.begun(Restore)
    assert task.effect == Restore(PATH, str(D1), {(T, 0): (1, 2, 3), (T, 2): (1, 2, 3)})
    moment.observed.others[T, 2] = replace(GONE, adding=(4,))
    assert moment.core.to_send(task, moment.now) == {("t", 0): (1, 2, 3)}
    assert moment.core.to_restore(moment.now) == {("t", 0): (1, 2, 3), ("t", 3): (1, 2, 3)}


@pytest.mark.parametrize(
    ("disk", "changes"),
    [
        (HUNG, {}),
        (replace(ONLINE, unread=True, health=Health.SUSPECT), {}),
        (ONLINE, {"unbound": "no broker runs", "pid": None}),
        (ONLINE, {"blind": "no answer"}),
    ],
)
def test_nothing_is_restored_to_a_disk_that_is_not_healthy_or_for_a_broker_that_is_not_there(
    disk: Disk, changes: Mapping[str, Any]
) -> None:
    moment = Moment(BACK, disk=disk, evicted=evicted(0), **changes)
    moment.observed.others[T, 0] = GONE
    assert not [one for one in moment.effects() if isinstance(one, Restore)]


@pytest.mark.parametrize(
    ("there", "forgotten", "kept"),
    [
        ([GONE], [], True),
        ([GONE, placed(3)], [], True),  # broker 2 was evicted as well, and comes back
        ([GONE, placed(2, 3, 4)], ["t-0"], False),
        ([GONE, ALL], [], False),
        ([GONE, None], ["t-0"], False),
        ([ALL], [], True),  # not shown yet
    ],
)
def test_a_list_is_forgotten_when_it_is_back_or_somebody_else_has_changed_it_which_is_told(
    there: Sequence[Placed | None], forgotten: list[str], kept: bool
) -> None:
    moment = Moment(Standing(), disk=ONLINE, evicted=evicted(0), online=())
    told: list[str] = []
    for one in there:
        moment.observed.partitions.clear()
        moment.observed.others.clear()
        if one is not None:
            (moment.observed.partitions if NODE in one.replicas else moment.observed.others)[T, 0] = one
        look = moment.core.look(moment.now)
        told += look.forgotten
        assert look.changed is ((T, 0) not in moment.core.journal.evicted)
    assert told == forgotten and ((T, 0) in moment.core.journal.evicted) is kept
    assert moment.observed.evicted == moment.core.journal.evicted.keys()


def test_lists_are_not_compared_with_metadata_that_are_not_followed_or_while_they_are_changed() -> None:
    moment = Moment(Standing(), disk=ONLINE, evicted=evicted(0), online=())
    moment.observed.others[T, 0] = GONE
    moment.core.look(moment.now)
    moment.observed.others.clear()
    moment.changes["blind"] = "no answer"
    assert moment.core.look(moment.now).forgotten == ()
    moment.changes["blind"] = None
    moment.core.directories[PATH] = Standing(under_way=Restore(PATH, str(D1), {}))
    assert moment.core.look(moment.now).forgotten == ()
    moment.core.directories[PATH] = Standing()
    assert moment.core.look(moment.now).forgotten == ("t-0",)


@pytest.mark.parametrize(
    ("second", "online", "directory_id"),
    [
        (D2, (D1, D2), D1),  # nothing has changed
        (D2, (Uuid.of(5, 9), D2), Uuid.of(5, 9)),  # a new disk is in the place of the old one
        (D1, (D1, D2), D1),  # two disks are mounted in each other's place
        (D2, (D1, D2, Uuid.of(5, 9)), D1),  # the broker has the old one still
    ],
    ids=["the same", "a new disk", "two that are swapped", "a new one beside the old one"],
)
def test_lists_of_a_disk_that_was_replaced_are_restored_to_the_new_one(
    second: Uuid, online: tuple[Uuid, ...], directory_id: Uuid
) -> None:
    first = D2 if second == D1 else online[-1] if len(online) == 3 else online[0]
    moment = Moment(WELL_STANDING, disk=replace(ONLINE, directory_id=first), evicted=evicted(0), online=online)
    moment.observed.others[T, 0] = GONE
    moment.change(WELL, directory_id=second)
    if second == D1:
        moment.core.ids[WELL] = str(D2)
    moment.core.look(moment.now)
    assert {one.directory_id for one in moment.core.journal.evicted.values()} == {str(directory_id)}


# ----------------------------------------------------------------------------------------------------------- leadership

DEMOTES = replace(SITE, demote=True)
SLOW = replace(ONLINE, health=Health.SLOW, cause=Cause.SLOW)


def demoted(*numbers: int) -> dict[Key, Demoted]:
    return {(T, number): Demoted(str(D1), "t", (1, 2, 3), (2, 3, 1)) for number in numbers}


def test_leadership_moves_off_a_slow_disk_where_the_site_wants_it_and_another_disk_is_quick() -> None:
    effect = Demote(PATH, str(D1), {(T, 0): (1, 2, 3)}, {(T, 0): (2, 3, 1)})
    moment = Moment(WELL_STANDING, ALL, disk=SLOW, site=DEMOTES)
    task = moment.begun(Demote)
    assert (task.part, task.effect, task.added) == (Part.LEADING, effect, ((T, 0),))
    assert moment.core.to_write(NOW_MS, WALL_MS).demoted == demoted(0)
    assert moment.core.to_order(effect, moment.now) == {("t", 0): ((1, 2, 3), (2, 3, 1))}
    moment.move(0, replicas=(1, 3, 2))
    assert moment.core.to_order(effect, moment.now) == {}
    assert Moment(WELL_STANDING, ALL, disk=SLOW).effects() == []
    slow = Moment(WELL_STANDING, ALL, disk=SLOW, site=DEMOTES)
    slow.change(WELL, health=Health.SLOW)
    assert slow.effects() == []


def test_lists_that_cannot_be_written_down_are_not_put_in_another_order_and_not_kept() -> None:
    moment = Moment(WELL_STANDING, ALL, disk=SLOW, site=DEMOTES)
    found = moment.core.saved(moment.begun(Demote), "No space left on device", moment.now)
    assert isinstance(found, Done) and found.outcome is Outcome.FAILED
    assert moment.core.journal.demoted == {} and moment.core.leadership(PATH).under_way is None


def test_leadership_is_put_back_as_it_was_where_nobody_has_changed_the_lists() -> None:
    left = placed(2, 3, 1)
    moment = Moment(WELL_STANDING, left, replace(left, replicas=(3, 1, 2)), left, disk=ONLINE, demoted=demoted(0, 1, 2))
    task = moment.begun(Promote)
    assert task.effect == Promote(PATH, str(D1), {(T, 0): (1, 2, 3), (T, 2): (1, 2, 3)})
    moment.move(2, adding=(4,))
    assert moment.core.to_order(task.effect, moment.now) == {("t", 0): ((2, 3, 1), (1, 2, 3))}


def test_while_leadership_moves_a_disk_that_fails_is_reported_and_its_lists_wait() -> None:
    moment = Moment(WELL_STANDING, ALL, disk=SLOW, site=DEMOTES, own=record(D1))
    leading = moment.begun(Demote)
    moment.disks[PATH] = HUNG
    moment.observed.suspects[NODE] = record(D1)
    moment.core.record = Moment(own=record(D1)).core.record
    assert Report(PATH, (str(D1),), EPOCH) in moment.effects()
    moment.core.directories[PATH] = WAS_CUT
    moment.register(log_dirs=(D2,))
    moment.move(0, isr=(2, 3))
    assert not [one for one in moment.effects() if isinstance(one, Evict)]
    moment.core.came_of(leading, DONE, moment.now)
    assert [one for one in moment.effects() if isinstance(one, Evict)]


# ---------------------------------------------------------------------------------------------- by hand, and at a start


@pytest.mark.parametrize(
    ("standing", "broker", "found"),
    [
        (WELL_STANDING, SERVING, []),
        (WAS_CUT, SERVING, []),
        (replace(WAS_CUT, means=Step.MASK, state=State.MASKED), SERVING, [Unmask(PATH)]),
        (replace(REPORTED, under_way=Report(PATH, (), EPOCH)), SERVING, "report is under way there"),
        (
            WELL_STANDING,
            replace(SERVING, state=BrokerState.FENCING, left=(Fence(EPOCH),)),
            "the broker is being fenced",
        ),
    ],
)
def test_a_directory_is_released_unless_something_is_being_done(
    standing: Standing, broker: broker_steps.Standing, found: list[Effect] | str
) -> None:
    core = Moment(standing, broker=broker).core
    released = core.release(PATH, NOW_MS)
    assert (released if isinstance(released, str) else [one.effect for one in released]) == found
    if isinstance(released, str):
        assert core.standing(PATH) == standing
        return
    for task in released:
        core.came_of(task, DONE, Moment().now)
    assert core.released == {PATH} and core.acted(NOW_MS) == {}


def test_a_directory_that_was_released_is_looked_at_again_when_it_is_healthy() -> None:
    moment = Moment(WELL_STANDING, ALL, own=record(D1))
    moment.core.release(PATH, NOW_MS)
    assert moment.effects() == [] and moment.core.released == {PATH}
    moment.disks[PATH] = ONLINE
    moment.core.look(moment.now)
    assert moment.core.released == frozenset()


def test_a_broker_that_is_about_to_start_has_its_directories_suspected_for_as_long_as_it_asks() -> None:
    moment = _gate_cut()
    del moment.observed.suspects[NODE]
    moment.core.record = suspecting.Standing(run="g")
    assert moment.core.look(moment.now).tasks == (), "nobody asks"
    gates, tasks = moment.core.before_start(moment.now, masks=True)
    assert tasks == () and gates[PATH].step is Step.CUT and gates[WELL].step is Step.NOTHING
    moment.at_gate = False
    task = moment.begun(Suspect)
    assert task.effect == Suspect(EPOCH, (str(D1),), "g-1")
    moment.core.came_of(task, DONE, moment.now)
    moment.observed.suspects[NODE] = record(D1)
    _, tasks = moment.core.before_start(moment.now, masks=True)
    assert [(one.effect, one.at_gate, one.is_saved) for one in tasks] == [(Cut(PATH), True, True)]
    moment.core.saved(tasks[0], None, moment.now)
    moment.core.came_of(tasks[0], FAILED, moment.now)
    moment.changes["now_ms"] = NOW_MS + GATE_MS
    assert moment.effects() == [Trust()]


def test_while_a_broker_runs_nothing_is_done_for_one_that_asks() -> None:
    moment = Moment(WELL_STANDING, LEFT, own=record(D1))
    gates, tasks = moment.core.before_start(moment.now, masks=True)
    assert tasks == () and {one.step for one in gates.values()} == {Step.NOTHING}


def test_the_journal_has_each_directory_with_its_id_and_the_wall_clock_of_its_failure() -> None:
    unread = replace(HUNG, directory_id=None)
    moment = Moment(replace(WAS_CUT, state=State.OFFLINE), disk=unread, evicted=evicted(0), online=(D2,))
    moment.core.look(moment.now)
    told = moment.core.to_write(NOW_MS, WALL_MS)
    standing, directory_id, at_ms = told.directories[PATH]
    assert (standing, directory_id, at_ms) == (moment.core.standing(PATH), str(D1), WALL_MS - 1_000)
    assert told.directories[WELL][1:] == (str(D2), WALL_MS) and told.broker == moment.core.broker
    assert told.evicted == evicted(0)

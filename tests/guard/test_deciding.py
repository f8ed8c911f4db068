"""What is decided about the directories of a broker: what a guard knows, as cases for the ladder."""

import dataclasses
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.ids import Uuid
from kjbod_guard import directory_steps, suspecting
from kjbod_guard.actions import Done, Outcome
from kjbod_guard.budget import ANSWERED_MS, EVICT_WITHIN_MS, FENCE_AGAIN_MS, FRESH_MS
from kjbod_guard.core import DOUBT_MS, GuardCore
from kjbod_guard.deciding import METADATA_BESIDE, Deciding, Known
from kjbod_guard.directory_steps import Standing, State
from kjbod_guard.entry import Entry
from kjbod_guard.journal import Evicted, Journal, decode, encode
from kjbod_guard.ladder import ALONE, LAST, NOTHING, NOTICED, UNIDENTIFIED, KafkaView, Step, Would
from kjbod_guard.looking import Looking, bad_since_ms
from kjbod_guard.majority import UNDECIDED_MS, Quorum
from kjbod_guard.observing import Key, Observed, Placed
from kjbod_guard.retries import FIRST_MS, after
from kjbod_guard.situation import Disk, Site, Situation
from kjbod_guard.suspects import VALID_MS
from kjbod_host.health.block import BlockDevice
from kjbod_host.health.evidence import Evidence, Verdict
from kjbod_host.health.medium import CUT_AFTER_MS, Medium
from kjbod_host.health.state import Cause, DirectoryHealth, Health
from kjbod_host.health.watched import DirectoryStatus
from tests.guard.test_copies import ALL, D1, D2, EPOCH, SHORT, SOLE, T, neighbour, observed, placed, suspected

PATH, PATH2, METADATA = "/mnt/d1", "/mnt/d2", "/mnt/metadata"
IDS = {PATH: D1, PATH2: D2}
SITE = Site(node_id=1, log_dirs=(PATH, PATH2), metadata_log_dir=METADATA)
NOW_MS = 1_000_000


def disk(path: str = PATH, **changes: Any) -> Disk:
    """A disk of an ext4 file system of its own, that has stood still for a minute."""
    found = Disk(
        path=path,
        directory_id=IDS.get(path),
        health=Health.FAILED,
        cause=Cause.HUNG,
        failed_ms=NOW_MS - 57_000,
        bad_ms=NOW_MS - 60_000,
        file_system="ext4",
    )
    return replace(found, **changes)


def well(path: str = PATH2, **changes: Any) -> Disk:
    return disk(path, **{"health": Health.ONLINE, "cause": Cause.NONE, "failed_ms": None, "bad_ms": NOW_MS} | changes)


def situation(*disks: Disk, now: Observed | None = None, now_ms: int = NOW_MS, **changes: Any) -> Situation:
    """One partition, on brokers 1, 2 and 3, of which 1 leads; the first disk has failed, the second is well."""
    found = Situation(
        now_ms=now_ms,
        wall_ms=now_ms,
        disks={one.path: one for one in disks or (disk(), well())},
        observed=observed(ALL) if now is None else now,
        answered_ms=now_ms,
        pid=7,
    )
    return replace(found, **changes)


def known(**changes: Any) -> Known:
    return replace(Known(standings={}, ids={}, record=suspecting.Standing(run="g"), retries={}), **changes)


def decided(
    now: Situation, deciding: Deciding | None = None, *, path: str = PATH, site: Site = SITE, **more: Any
) -> Would:
    """What is decided about a directory; without a case: nothing."""
    found = (deciding or Deciding(site)).decide_all(known(**more), now)
    return found[path][1] if path in found else NOTHING


def step(now: Situation, deciding: Deciding | None = None, **more: Any) -> Step:
    return decided(now, deciding, **more).step


def test_a_disk_that_has_failed_for_long_is_cut() -> None:
    assert decided(situation()) == Would(Step.CUT, "its ext4 carries nothing but this broker's log directories")


@pytest.mark.parametrize(
    ("health", "demotes", "is_looked_at"),
    [
        (Health.FAILED, False, True),
        (Health.SLOW, False, False),
        (Health.SLOW, True, True),
        (Health.SUSPECT, True, False),
        (Health.ONLINE, True, False),
        (None, True, False),  # it is not watched
    ],
)
def test_only_directories_that_have_failed_or_are_offline_or_slow_are_cases(
    health: Health | None, demotes: bool, is_looked_at: bool
) -> None:
    deciding = Deciding(replace(SITE, demote=demotes))
    assert (PATH in deciding.decide_all(known(), situation(disk(health=health), well()))) is is_looked_at
    offline = situation(disk(health=health), well(), now=observed(ALL, online=(D2,)))
    assert (PATH in deciding.decide_all(known(), offline)) is (health is not None)


# ----------------------------------------------------------------------------------------------- what Kafka makes of it


@pytest.mark.parametrize(
    ("online", "read", "before", "view"),
    [
        ((D2,), D1, None, KafkaView.OFFLINE),
        ((D1, D2), D1, None, KafkaView.ONLINE),
        ((D2,), None, D1, KafkaView.OFFLINE),
        ((D1, D2), None, D1, KafkaView.ONLINE),
        ((D1, D2), None, None, KafkaView.UNKNOWN),
        ((D2,), D2, D1, KafkaView.ONLINE),
    ],
)
def test_what_kafka_makes_of_an_unreadable_directory_is_known_by_the_id_that_a_guard_before_has_read(
    online: tuple[Uuid, ...], read: Uuid | None, before: Uuid | None, view: KafkaView
) -> None:
    now = situation(disk(directory_id=read), well(), now=observed(online=online))
    memory = known(ids={} if before is None else {PATH: str(before)})
    assert Deciding(SITE).view(PATH, memory, now) is view
    assert Deciding(SITE).view(PATH, memory, replace(now, blind="no answer")) is KafkaView.UNKNOWN


@pytest.mark.parametrize("fenced", [False, True])
def test_the_directory_of_the_metadata_alone_is_online_while_the_broker_is_unfenced(fenced: bool) -> None:
    now = situation(disk(METADATA), well())
    assert now.observed.registration is not None
    now.observed.registration = dataclasses.replace(now.observed.registration, fenced=fenced)
    assert Deciding(SITE).view(METADATA, known(), now) is (KafkaView.UNKNOWN if fenced else KafkaView.ONLINE)
    now.observed.registration = None
    assert Deciding(SITE).view(METADATA, known(), now) is KafkaView.UNKNOWN


# ------------------------------------------------------------------------------------------------------------- patience

FLASH_MS, OTHER_MS = CUT_AFTER_MS[Medium.FLASH], CUT_AFTER_MS[Medium.OTHER]


@pytest.mark.parametrize(
    ("now", "changes", "stood_ms", "reason"),
    [
        (observed(ALL), {"cut_after_ms": 4_000}, 3_999, "before 4 s (kjbod.guard.cut.after.ms)"),
        (observed(ALL), {"cut_after_ms": 4_000}, 4_000, None),
        (observed(ALL), {"cut_after_ms": 0}, 0, None),
        (observed(ALL), {"cut_after_ms": FLASH_MS, "medium": "flash"}, FLASH_MS - 1, "before 3 s (…, flash)"),
        (observed(SHORT), {"cut_after_ms": 4_000}, 7_999, "before 8 s (…, doubled: too few other copies in sync)"),
        (observed(SOLE), {"cut_after_ms": 4_000}, 7_999, "before 8 s (…, doubled: too few other copies in sync)"),
        (observed(SOLE), {"cut_after_ms": 4_000}, 8_000, "yet: t-0 has no other copy in sync"),
    ],
)
def test_nothing_that_cannot_be_undone_is_done_before_the_disk_has_stood_still_for_long_enough(
    now: Observed, changes: dict[str, Any], stood_ms: int, reason: str | None
) -> None:
    found = decided(situation(disk(bad_ms=NOW_MS - stood_ms, **changes), well(), now=now))
    assert found.step is (Step.CUT if reason is None else Step.WAIT)
    assert reason is None or reason.replace("…", "kjbod.guard.cut.after.ms") in found.reason


@pytest.mark.parametrize("copies", [SHORT, SOLE])
def test_the_patience_stays_doubled_when_copies_come_back_and_is_single_again_after_the_disk_was_well(
    copies: Placed,
) -> None:
    deciding, failed = Deciding(SITE), disk(bad_ms=NOW_MS - 15_000)
    assert step(situation(failed, well(), now=observed(copies)), deciding) is Step.WAIT
    assert step(situation(failed, well()), deciding) is Step.WAIT
    assert step(situation(replace(failed, health=Health.SUSPECT), well()), deciding) is Step.NOTHING
    assert step(situation(failed, well()), deciding) is Step.CUT


@given(st.integers(0, 25_000), st.integers(0, 12_000), st.booleans())
def test_a_guard_that_waits_for_time_looks_again_when_that_is_over(
    stood_ms: int, cut_after_ms: int, short: bool
) -> None:
    deciding, failed = Deciding(SITE), disk(bad_ms=NOW_MS - stood_ms, cut_after_ms=cut_after_ms)
    now = situation(failed, well(), now=observed(SHORT if short else ALL, min_isr=2))
    (case, _) = deciding.decide_all(known(), now)[PATH]
    wait_ms = deciding.wait_ms(PATH, now)
    assert (wait_ms is None) == (case.patience is None)
    if wait_ms is not None:
        later = replace(now, now_ms=NOW_MS + wait_ms)
        assert deciding.decide_all(known(), later)[PATH][0].patience is None
        assert deciding.wait_ms(PATH, later) is None
    assert deciding.wait_ms(PATH2, now) is None, "it has not failed"


# ------------------------------------------------------------------------------------------------------------ evictions

GONE = observed(ALL, online=(D2,))
SEEN_OFFLINE = {PATH: Standing(state=State.OFFLINE, epoch=EPOCH, seen_online=True, offline_ms=NOW_MS)}
CUT = Standing(state=State.CUT, means=Step.CUT, plan=Step.CUT, epoch=EPOCH, seen_online=True)


def test_what_went_offline_while_it_was_watched_is_left_for_as_long_as_leaders_wait() -> None:
    at = [NOW_MS, NOW_MS + EVICT_WITHIN_MS - 1, NOW_MS + EVICT_WITHIN_MS]
    steps = [step(situation(now=GONE, now_ms=now_ms), standings=SEEN_OFFLINE) for now_ms in at]
    assert steps == [Step.EVICT, Step.EVICT, Step.NOTHING]


def test_what_was_offline_before_is_not_left_and_never_where_the_site_says_so() -> None:
    assert decided(situation(now=GONE)) == Would(Step.NOTHING, NOTICED)
    never = replace(SITE, evict=False)
    assert step(situation(now=GONE), standings=SEEN_OFFLINE, site=never) is Step.NOTHING


def test_what_may_not_be_left_is_told_with_why() -> None:
    found = decided(situation(now=observed(SOLE, online=(D2,))), standings=SEEN_OFFLINE)
    assert found == Would(Step.NOTHING, f"{NOTICED}; not evicted: 1 no other copy in sync")


def test_a_partition_whose_eviction_was_refused_is_left_out_until_it_is_due_again() -> None:
    now = situation(now=observed(ALL, ALL, online=(D2,)))
    refused: dict[Key, str] = {(T, 0): "NOT_CONTROLLER (41)"}
    retries = after({}, "evict", dict.fromkeys(refused, (1, 2, 3)), refused, NOW_MS, lambda _: frozenset())
    assert decided(now, standings=SEEN_OFFLINE, retries=retries).reason == "1 partition would wait for it"
    later = replace(now, now_ms=NOW_MS + FIRST_MS)
    assert decided(later, standings=SEEN_OFFLINE, retries=retries).reason == "2 partitions would wait for it"


@pytest.mark.parametrize("standing", [CUT, replace(CUT, state=State.OFFLINE, offline_ms=NOW_MS - 1_000)])
def test_what_a_guard_before_cut_goes_offline_before_the_eyes_of_the_next_one(standing: Standing) -> None:
    content = encode(Journal(directories={PATH: (standing, str(D1), NOW_MS - 1_000)}), 1, ahead_ms=0)
    core = GuardCore(SITE, decode(content, 1, now_ms=NOW_MS, wall_ms=NOW_MS), "g")
    core.look(situation(now=GONE))  # Kafka noticed while no guard ran
    assert core.decide(situation(now=GONE))[PATH][1].step is Step.EVICT
    late = situation(now=GONE, now_ms=NOW_MS + EVICT_WITHIN_MS)
    assert core.decide(late)[PATH][1].step is Step.NOTHING
    anew = GuardCore(SITE, Journal(), "g")
    anew.look(situation(now=GONE))
    assert anew.decide(situation(now=GONE))[PATH][1].step is Step.NOTHING, "nobody has seen it online"


@pytest.mark.parametrize(
    ("own", "beside", "is_open"),
    [
        (Standing(), None, False),
        (Standing(plan=Step.CUT), None, True),
        (Standing(plan=Step.REPORT), None, True),
        (Standing(plan=Step.MASK), None, False),
        (Standing(plan=Step.CUT, means=Step.CUT), None, False),
        (Standing(plan=Step.CUT, means=Step.MASK), None, False),
        # A cut takes along what lies beside it on the file system; a report of a mount that is gone does not.
        (Standing(), Standing(plan=Step.CUT), True),
        (Standing(plan=Step.CUT), Standing(plan=Step.CUT, means=Step.CUT), False),
        (Standing(), Standing(plan=Step.REPORT), False),
    ],
)
def test_nothing_is_left_of_a_directory_in_which_the_broker_may_have_files_open(
    own: Standing, beside: Standing | None, is_open: bool
) -> None:
    """A broker that is told to leave a partition deletes its replica."""
    there = frozenset() if beside is None else frozenset([PATH2])
    now = situation(disk(beside=there), disk(PATH2), now=GONE)
    standings = {PATH: replace(own, offline_ms=NOW_MS)} | ({} if beside is None else {PATH2: beside})
    assert Deciding.is_open(PATH, known(standings=standings), now) is is_open
    assert step(now, standings=standings) is (Step.NOTHING if is_open else Step.EVICT)


# ---------------------------------------------------------------------------------------------------- other disks of it

PATIENT = replace(SITE, host_fault_timeout_ms=5_000)


def at(now_ms: int, *disks: Disk) -> Situation:
    return situation(*disks, now_ms=NOW_MS + now_ms)


def test_a_broker_without_a_disk_that_is_well_is_fenced_after_the_timeout() -> None:
    deciding, both = Deciding(PATIENT), (disk(), disk(PATH2))
    assert decided(at(0, *both), deciding) == Would(Step.WAIT, ALONE)
    assert step(at(4_999, *both), deciding) is Step.WAIT
    assert decided(at(5_000, *both), deciding) == Would(Step.FENCE, ALONE)
    assert step(at(5_001, disk(), well()), deciding) is Step.CUT
    assert step(at(5_002, *both), deciding) is Step.WAIT, "from the start"


@pytest.mark.parametrize("which", [PATH, PATH2])
def test_a_disk_that_answers_again_ends_the_time_of_a_fault_of_the_host(which: str) -> None:
    deciding, both = Deciding(PATIENT), (disk(), disk(PATH2))
    again = [replace(one, over="its disk answers again" if one.path == which else None) for one in both]
    assert step(at(0, *both), deciding) is Step.WAIT
    assert step(at(5_000, *again), deciding) in (Step.WAIT, Step.NOTHING)
    assert step(at(5_001, *both), deciding) is Step.WAIT
    assert step(at(10_001, *both), deciding) is Step.FENCE


@pytest.mark.parametrize(
    ("other", "is_alone"),
    [
        (well(), False),
        (well(health=Health.SLOW), False),
        (well(health=Health.FULL), False),
        (well(health=Health.SUSPECT, cause=Cause.DAMAGE), False),
        (well(health=Health.SUSPECT, in_trouble=True), True),
        (well(health=Health.HELD), True),
        (well(health=None), True),
        (disk(PATH2), True),
        (disk(PATH2, cause=Cause.ERROR, unidentified=True), False),  # only its meta.properties is gone
        (well(METADATA), True),  # no log directory
    ],
)
def test_a_disk_is_no_fault_of_the_host_where_another_one_of_a_log_directory_is_known_to_be_well(
    other: Disk, is_alone: bool
) -> None:
    now = situation(disk(), other)
    assert step(now) is (Step.WAIT if is_alone else Step.CUT)
    shared = situation(replace(disk(), shares=frozenset([other.path])), other)
    assert decided(shared) == Would(Step.WAIT, ALONE), "what happens to the one happens to the other"


@pytest.mark.parametrize(
    ("others", "waits"),
    [
        ([Health.FAILED, Health.FAILED], True),
        ([Health.SUSPECT, Health.HELD], True),
        ([], True),
        ([Health.FAILED, Health.ONLINE], False),
        ([Health.FAILED, Health.SLOW], False),
    ],
)
def test_what_is_stuck_proves_nothing_while_no_disk_is_known_to_be_well(others: list[Health], waits: bool) -> None:
    paths = tuple(f"/mnt/d{number}" for number in range(1, len(others) + 2))
    deciding = Deciding(replace(SITE, log_dirs=paths))
    disks = [
        disk(path, health=health, in_trouble=health is Health.SUSPECT)
        for path, health in zip(paths, [Health.FAILED, *others], strict=True)
    ]
    now = situation(*disks)
    found = deciding.decide_all(known(), now)
    assert deciding.waits_for_host(found, now) is waits
    lasted = {path: (replace(case, lasted=True), would) for path, (case, would) in found.items()}
    assert not deciding.waits_for_host(lasted, now)
    none_failed = situation(well(PATH, health=Health.SUSPECT, in_trouble=True))
    assert not deciding.waits_for_host({}, none_failed)


# ----------------------------------------------------------------------------------------- what lies on its file system


def beside(**changes: Any) -> tuple[Disk, Disk]:
    """Two directories on one file system."""
    shares = {"beside": frozenset([PATH2]), "shares": frozenset([PATH2])}
    back = {"beside": frozenset([PATH]), "shares": frozenset([PATH])}
    return disk(**shares | changes), disk(PATH2, **back | changes)


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({}, {D1, D2}),
        ({"file_system": "xfs"}, {D1, D2}),
        ({"file_system": "btrfs"}, {D1}),
        ({"file_system": None}, {D1}),
        ({"shared": "/etc lies there"}, {D1}),
    ],
)
def test_what_lies_on_a_file_system_that_would_be_shut_down_is_lost_with_it(
    changes: dict[str, Any], lost: set[Uuid]
) -> None:
    assert set(Deciding(SITE).lost_with(PATH, known(), situation(*beside(**changes)))) == lost


def test_a_file_system_is_not_cut_where_another_directory_of_it_has_the_only_copy_in_sync() -> None:
    now = observed(ALL, placed(1, 2, 3, at=D2, isr=(1,)))
    site, third = replace(SITE, log_dirs=(*SITE.log_dirs, "/mnt/d3")), well("/mnt/d3")
    alone = decided(situation(disk(), well(), third, now=now), site=site)
    shared = decided(situation(*beside(), third, now=now), site=site)
    assert alone.step is Step.CUT
    assert shared == Would(Step.WAIT, "no cut yet: t-1 has no other copy in sync")


def test_the_last_directory_that_the_broker_has_online_is_not_taken_away() -> None:
    found = decided(situation(now=observed(ALL, online=(D1,))))
    assert found == Would(Step.WAIT, f"no cut yet: {LAST}")


def test_a_file_system_with_the_metadata_log_is_not_shut_down_for_another_directory() -> None:
    now = situation(disk(beside=frozenset([METADATA])), well())
    assert decided(now) == Would(Step.MASK, METADATA_BESIDE)


@pytest.mark.parametrize(
    ("changes", "standing", "expected"),
    [
        ({}, Standing(), Step.CUT),
        ({"kept": "its mount is another one here and not for the broker"}, Standing(), Step.NOTHING),
        ({"over": "its disk answers again"}, Standing(), Step.NOTHING),
        ({"unidentified": True, "cause": Cause.ERROR}, Standing(), Step.NOTHING),
        ({"elsewhere": True, "cause": Cause.ERROR}, Standing(), Step.REPORT),
        ({"elsewhere": True, "cause": Cause.ERROR, "unidentified": True}, Standing(), Step.REPORT),
        ({"elsewhere": True, "cause": Cause.ERROR, "file_system": "zfs"}, Standing(means=Step.MASK), Step.MASK),
    ],
)
def test_where_the_path_leads_and_whether_the_disk_answers_decide_what_failed(
    changes: dict[str, Any], standing: Standing, expected: Step
) -> None:
    found = decided(situation(disk(**changes), well()), standings={PATH: standing})
    assert found.step is expected
    told = {"kept", "over"}.intersection(changes)
    assert not told or found.reason == changes[told.pop()]
    assert "unidentified" not in changes or "elsewhere" in changes or found.reason == UNIDENTIFIED


def test_a_directory_that_only_the_broker_still_has_is_no_disk_that_answers_for_another_one() -> None:
    deciding = Deciding(PATIENT)
    both = (disk(), disk(PATH2, kept="its mount is another one here"))
    assert step(at(0, *both), deciding) is Step.WAIT
    assert step(at(5_000, *both), deciding) is Step.FENCE


# --------------------------------------------------------------------------------------- what Kafka should have noticed

QUICK = replace(SITE, failure_timeout_ms=30_000)
ACTED = {PATH: Standing(state=State.CUT, means=Step.CUT, epoch=EPOCH, seen_online=True, acted_ms=NOW_MS)}
ERRORS = disk(cause=Cause.ERROR, failed_ms=NOW_MS)
DONE_NOTHING: Mapping[str, Standing] = {}


@pytest.mark.parametrize(
    ("failed", "standings", "now", "expected"),
    [
        # Kafka could notice since the act, or since the disk answers errors: then it leads without a disk.
        (disk(), ACTED, observed(ALL), Step.FENCE),
        (ERRORS, DONE_NOTHING, observed(ALL), Step.FENCE),
        # A disk that hangs gives Kafka no error, however long ago it failed.
        (disk(), DONE_NOTHING, observed(ALL), Step.CUT),
        # Only what it leads waits for that.
        (ERRORS, DONE_NOTHING, observed(placed(2, 1, 3)), Step.CUT),
        (ERRORS, DONE_NOTHING, observed(placed(1, 2, 3, at=D2), placed(2, 1, 3)), Step.CUT),
    ],
)
def test_a_broker_that_does_not_notice_what_it_could_is_fenced_where_it_leads(
    failed: Disk, standings: Mapping[str, Standing], now: Observed, expected: Step
) -> None:
    deciding, found = Deciding(QUICK), []
    for after_ms in (0, 29_999, 30_000):
        moment = situation(failed, well(), now=now, now_ms=NOW_MS + after_ms)
        found.append(step(moment, deciding, standings=standings))
    assert found == [Step.CUT, Step.CUT, expected]


@pytest.mark.parametrize(
    "break_ms", [{"answered_ms": None}, {"answered_ms": NOW_MS + 15_000 - ANSWERED_MS - 1}, {"blind": "no answer"}]
)
def test_lateness_counts_only_while_a_controller_answers_that_it_is_online(break_ms: dict[str, Any]) -> None:
    deciding = Deciding(QUICK)

    def found(after_ms: int, **changes: Any) -> Step:
        return step(replace(situation(ERRORS, well(), now_ms=NOW_MS + after_ms), **changes), deciding)

    found(0)
    assert found(15_000, **break_ms) is not Step.FENCE
    assert found(31_000) is Step.CUT, "the time begins anew"
    assert found(60_999) is Step.CUT
    assert found(61_000) is Step.FENCE


def test_a_guard_that_does_not_follow_the_metadata_does_nothing_however_late_it_is() -> None:
    deciding = Deciding(QUICK)
    for after_ms in (0, 30_000, 3_000_000):
        now = situation(ERRORS, well(), now_ms=NOW_MS + after_ms, blind="no answer")
        assert step(now, deciding, standings=ACTED) is Step.NOTHING


# ----------------------------------------------------------------------------------------------------- slow directories


@pytest.mark.parametrize(
    ("slow", "other", "changes", "demotes", "expected"),
    [
        (well(PATH, health=Health.SLOW), well(), {}, True, Step.DEMOTE),
        (well(PATH, health=Health.SLOW), well(), {}, False, Step.NOTHING),
        (well(PATH, health=Health.SLOW), well(health=Health.SLOW), {}, True, Step.NOTHING),
        (well(PATH, health=Health.SLOW), disk(PATH2), {}, True, Step.NOTHING),
        (well(PATH, health=Health.SLOW, shares=frozenset([PATH2])), well(), {}, True, Step.NOTHING),
        (well(PATH, health=Health.SLOW), well(), {"blind": "no answer"}, True, Step.NOTHING),
        (well(PATH, health=Health.SLOW), well(), {"now": observed(SOLE)}, True, Step.NOTHING),
        (well(PATH), well(), {}, True, Step.NOTHING),
    ],
)
def test_leadership_moves_off_a_slow_disk_only_where_the_site_wants_it_and_another_disk_is_quick(
    slow: Disk, other: Disk, changes: dict[str, Any], demotes: bool, expected: Step
) -> None:
    now = situation(slow, other, **changes)
    assert step(now, site=replace(SITE, demote=demotes)) is expected


# ---------------------------------------------------------------------------------------------- what the metadata allow


@pytest.mark.parametrize(
    ("partition", "changes", "reason"),
    [
        (placed(1, 2, 3, isr=(2, 3)), {}, None),
        (ALL, {}, "the metadata still have the replica here in the ISR of t-0"),
        (placed(1, 2, 3, isr=(2,)), {}, "t-0 has fewer other copies in sync than min.insync.replicas"),
        (placed(1, 2, 3, isr=(2, 3)), {"answered_ms": NOW_MS - FRESH_MS}, None),
        (placed(1, 2, 3, isr=(2, 3)), {"answered_ms": NOW_MS - FRESH_MS - 1}, "no controller has answered for 1.5 s"),
        (placed(1, 2, 3, isr=(2, 3)), {"answered_ms": None}, "no controller has answered for 1.5 s"),
        (placed(1, 2, 3, isr=(2, 3)), {"blind": "no answer"}, "no controller has answered for 1.5 s"),
    ],
)
def test_a_file_system_is_shut_down_only_by_metadata_that_a_controller_has_just_confirmed(
    partition: Placed, changes: dict[str, Any], reason: str | None
) -> None:
    now = situation(now=observed(partition), **changes)
    assert Deciding(SITE).why_not_shut_down(PATH, known(), now) == reason
    heard = reason is None or not reason.startswith("no controller")
    assert (Deciding.unheard(now) is None) is heard
    left = observed(placed(1, 2, 3, isr=(2, 3)))
    assert step(replace(now, observed=left)) is (
        Step.CUT if heard else Step.WAIT if now.blind is None else Step.NOTHING
    )


def written(*directories: Uuid, now_ms: int = NOW_MS - 1_000, offset: int = 50) -> tuple[suspecting.Standing, Observed]:
    """This guard's record of directories, as asked for and as the metadata show it; another guard wrote one at 70."""
    wanted = suspecting.Wanted(epoch=EPOCH, directories=frozenset(directories), whole=not directories)
    move = suspecting.advance(suspecting.Standing(run="g"), wanted, None, now_ms)
    record, now = suspecting.came_of(move.standing, Done(outcome=Outcome.DONE), now_ms), observed(ALL)
    now.suspects[1] = replace(suspected(*directories, offset=offset, seen_ms=now_ms), mark=record.mark)
    now.suspects[2] = suspected(Uuid.of(6, 9), offset=70, seen_ms=now_ms)
    return record, now


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (written(D1), Step.CUT),
        (written(D1, D2), Step.CUT),
        (written(), Step.CUT),
        (written(D1, offset=90), Step.WAIT),
        (written(D2), Step.WAIT),
        (written(D1, now_ms=NOW_MS - VALID_MS - 1), Step.WAIT),
    ],
)
def test_a_guard_goes_on_while_its_own_record_is_first_names_the_directory_and_is_not_old(
    pair: tuple[suspecting.Standing, Observed], expected: Step
) -> None:
    record, now = pair
    found = decided(situation(now=now), record=record)
    assert found.step is expected
    assert expected is Step.CUT or "yet: broker 2 lost a directory or is about to" in found.reason
    offset = Deciding(SITE).offset(known(record=record), situation(now=now, blind="no answer"), frozenset([D1]))
    assert offset is None, "the metadata are not followed"


def test_another_broker_that_lost_a_directory_comes_first_whatever_the_records_say() -> None:
    record, now = written(D1)
    now.neighbours[3] = neighbour(3, lost_ms=NOW_MS - 1)
    assert "yet: broker 3" in decided(situation(now=now), record=record).reason
    more = replace(SITE, cut_brokers_max=2)
    assert step(situation(now=now), record=record, site=more) is Step.CUT


@pytest.mark.parametrize(
    ("failed", "expected"), [(disk(), Step.WAIT), (disk(cause=Cause.MOUNT, elsewhere=True), Step.REPORT)]
)
def test_a_guard_that_can_do_nothing_to_a_disk_waits_and_still_reports_a_mount_that_is_gone(
    failed: Disk, expected: Step
) -> None:
    found = decided(situation(failed, well(), no_helper="the privileged helper has ended"))
    assert found.step is expected
    assert expected is Step.REPORT or found.reason == "no cut yet: the privileged helper has ended"


FROZEN = disk(cause=Cause.HELD)


@pytest.mark.parametrize(
    ("changes", "last_fence", "reason"),
    [
        ({}, None, None),
        ({"no_helper": "the privileged helper has ended"}, None, "the privileged helper has ended"),
        ({"answered_ms": NOW_MS - ANSWERED_MS - 1}, None, "no controller answers"),
        ({"quorum": Quorum()}, None, "this node is a controller too"),
        ({}, (EPOCH - 1, NOW_MS - 1_000), "it was fenced 1 s ago"),
        ({}, (EPOCH - 1, NOW_MS - FENCE_AGAIN_MS), None),
        ({}, (EPOCH, NOW_MS - 1_000), None),  # this very start of it: the fence goes on
        ({"now": observed(SOLE)}, None, "t-0 has no other copy in sync"),
    ],
)
def test_a_broker_is_fenced_for_a_frozen_file_system_only_where_nothing_speaks_against_it(
    changes: dict[str, Any], last_fence: tuple[int, int] | None, reason: str | None
) -> None:
    now, deciding = situation(FROZEN, well(), **changes), Deciding(SITE)
    told = deciding.why_not_fence(known(last_fence=last_fence), now)
    assert (told is None) == (reason is None) and (told or "").startswith(reason or "")
    found = decided(now, deciding, last_fence=last_fence)
    assert found.step is (Step.FENCE if reason is None else Step.WAIT) and (reason or "") in found.reason


def test_a_guard_that_is_blind_does_not_fence_and_says_why_it_is() -> None:
    now = situation(FROZEN, well(), blind="no answer")
    assert Deciding(SITE).why_not_fence(known(), now) == "the metadata are not followed: no answer"


def test_a_site_that_prefers_a_fence_waits_for_the_quorums_answer_before_it_cuts() -> None:
    site, asked = replace(SITE, fence_first=True), Quorum(NOW_MS - UNDECIDED_MS + 1)
    assert step(situation(), site=site) is Step.FENCE
    assert step(situation(quorum=asked), site=site) is Step.WAIT
    assert step(situation(quorum=Quorum(NOW_MS - UNDECIDED_MS)), site=site) is Step.CUT


# ----------------------------------------------------------------------------------- the broker, and what it stands for


def core_of(*standings: Standing, **journal: Any) -> GuardCore:
    """A guard that acts, whose directories stand as they do."""
    rows = {path: (one, str(IDS[path]), NOW_MS) for path, one in zip(IDS, standings, strict=False)}
    core = GuardCore(SITE, Journal(directories=rows, **journal), "g")
    core.acts = True
    return core


@pytest.mark.parametrize(
    ("second", "state"), [(disk(PATH2), "serving"), (well(health=Health.HELD), "serving"), (well(), "crippled")]
)
def test_a_broker_with_stuck_threads_waits_with_its_disks_while_none_is_known_to_be_well(
    second: Disk, state: str
) -> None:
    core, now = core_of(ACTED[PATH]), situation(disk(), second, stuck="a fetcher is stuck")
    core.look(now)
    assert core.broker.state == state
    core.look(replace(now, now_ms=NOW_MS + SITE.host_fault_timeout_ms, answered_ms=NOW_MS))
    assert core.broker.state == "crippled", "a fault of the host that has lasted speaks for itself"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"stuck": "a fetcher is stuck"}, "crippled"),
        ({"silent": "it does not answer", "waits": True}, "crippled"),
        ({"silent": "it does not answer"}, "serving"),  # silence is no proof: no thread waits for the disk
        ({"stuck": "a fetcher is stuck", "blind": "no answer"}, "starting"),
    ],
)
def test_a_broker_is_stuck_when_a_thread_waits_for_a_disk_that_was_acted_on(
    changes: dict[str, Any], state: str
) -> None:
    core = core_of(ACTED[PATH])
    core.look(situation(**changes))
    assert core.broker.state == state
    untouched = core_of()
    untouched.look(situation(**changes))
    assert untouched.broker.state != "crippled", "nothing was done that a thread could hang on"


@pytest.mark.parametrize(
    ("changes", "state"), [({"fenced": True}, "starting"), ({"in_controlled_shutdown": True}, "stopping")]
)
def test_a_broker_for_which_nobody_waits_is_not_stuck_by_its_silence(changes: dict[str, Any], state: str) -> None:
    now = situation(silent="it does not answer", waits=True)
    assert now.observed.registration is not None
    now.observed.registration = dataclasses.replace(now.observed.registration, **changes)
    core = core_of(ACTED[PATH])
    core.look(now)
    assert str(core.broker.state) == state
    core.look(replace(now, silent=None, stuck="a fetcher is stuck"))
    assert str(core.broker.state) == "crippled", "a thread that is stuck never comes back"


@pytest.mark.parametrize(
    ("standing", "is_doubted"),
    [
        (ACTED[PATH], True),
        (replace(ACTED[PATH], acted_ms=NOW_MS - 100 * DOUBT_MS), True),
        (replace(ACTED[PATH], state=State.OFFLINE), True),
        (replace(ACTED[PATH], state=State.OFFLINE, acted_ms=NOW_MS - DOUBT_MS), False),
        (replace(ACTED[PATH], state=State.LEFT, reason=directory_steps.RELEASED), False),
        (replace(ACTED[PATH], state=State.LEFT), False),
        (Standing(epoch=EPOCH), False),
    ],
)
def test_a_directory_that_kafka_has_offline_or_that_was_left_is_no_ground_for_a_later_fence(
    standing: Standing, is_doubted: bool
) -> None:
    assert core_of(standing).in_doubt(NOW_MS) is is_doubted


def test_a_guard_keeps_its_place_in_the_log_until_the_metadata_show_its_act() -> None:
    """A record that is written again is last: another broker would be first before this loss is in the log."""
    core = core_of(Standing(epoch=EPOCH, state=State.MASKED, means=Step.MASK, since_ms=NOW_MS, acted_ms=NOW_MS))
    core.record = replace(core.record, mark="g-1", asked_ms=NOW_MS - VALID_MS - 1, answered=True, count=1)
    now = situation(disk(file_system="btrfs"), well())
    now.observed.suspects[1] = replace(suspected(D1, offset=50, seen_ms=NOW_MS), mark="g-1")
    assert [task.effect.name for task in core.look(now).tasks] == []


def test_the_record_of_a_broker_that_is_killed_stays_until_the_metadata_show_the_fence() -> None:
    """Else another broker would be next while this one, which is gone, still counts as one that is there."""
    now, core = situation(replace(FROZEN, shared="/etc lies there"), well()), core_of()
    ended = replace(now, unbound="no broker runs", pid=None, ended_pid=7)
    done = []
    for moment in (now, now, ended, ended):
        for task in core.look(moment).tasks:
            done.append(task.effect.name)
            if task.effect.name == "suspect":
                mark = core.record.mark
                now.observed.suspects[1] = replace(suspected(offset=50, seen_ms=NOW_MS), mark=mark)
            core.saved(task, None, moment)
            core.came_of(task, Done(outcome=Outcome.DONE), moment)
    assert done == ["suspect", "kill", "fence"]
    assert now.observed.registration is not None
    now.observed.registration = dataclasses.replace(now.observed.registration, fenced=True)
    assert [task.effect.name for task in core.look(ended).tasks] == ["trust"]


@pytest.mark.parametrize("unread", [False, True])
def test_a_directory_that_is_known_from_memory_alone_stays_released_and_evicted(unread: bool) -> None:
    there = well(PATH, health=Health.SUSPECT, cause=Cause.SILENT, unread=unread)
    assert there.is_well is not unread
    released = core_of(Standing(state=State.LEFT, reason=directory_steps.RELEASED, epoch=EPOCH))
    released.look(situation(there, well()))
    assert (PATH in released.released) is unread
    now = observed()
    now.others = {(T, 0): placed(2, 3)}
    evicted = {(T, 0): Evicted(str(D1), "t", (1, 2, 3), NOW_MS)}
    core = core_of(Standing(state=State.EVICTED, means=Step.CUT, epoch=EPOCH - 1), evicted=evicted)
    tasks = core.look(situation(there, well(), now=now)).tasks
    assert ("restore" in [one.effect.name for one in tasks]) is not unread


# ------------------------------------------------------------------------------------------------ what a guard looks at


def failed(path: str, **changes: Any) -> Verdict:
    found = Verdict(
        path=path,
        directory_id=str(D1),
        state=Health.FAILED,
        previous=Health.SUSPECT,
        cause=Cause.HUNG,
        evidence=Evidence(path=path, directory_id=str(D1), device="sda 8:0", errno=None, call="open"),
        at_ns=NOW_MS * 1_000_000,
    )
    return replace(found, **changes)


@pytest.mark.parametrize(
    ("errno", "call", "is_about_identity"),
    [
        ("ENOENT", "read of meta.properties", True),
        ("EACCES", "read of meta.properties", True),
        ("ESTALE", "directory.id in meta.properties", True),
        ("EIO", "read of meta.properties", False),
        ("EILSEQ", "comparison of meta.properties", False),
        ("ESTALE", "identity of /mnt/d1", False),
        ("ENOENT", "open of /mnt/d1", False),
    ],
)
def test_a_broker_that_works_on_without_meta_properties_is_not_in_doubt(
    errno: str, call: str, is_about_identity: bool
) -> None:
    evidence = replace(failed(PATH).evidence, errno=errno, call=call)
    verdict = failed(PATH, cause=Cause.ERROR, evidence=evidence)
    assert verdict.is_about_identity is is_about_identity
    assert not replace(verdict, state=Health.SUSPECT).is_about_identity
    assert not replace(verdict, cause=Cause.HUNG).is_about_identity
    seen = looked(status(cause=Cause.ERROR), verdicts={PATH: verdict})
    assert seen.disks[PATH].unidentified is is_about_identity
    blocked = looked(status(cause=Cause.ERROR, blocked_ms=10), verdicts={PATH: verdict})
    assert not blocked.disks[PATH].unidentified, "its disk does not answer"


def status(
    path: str = PATH,
    *,
    health: Health = Health.FAILED,
    cause: Cause = Cause.HUNG,
    blocked_ms: int | None = None,
    silent_ms: int = 0,
    trouble_ms: int | None = None,
    no_counters: str | None = None,
) -> DirectoryStatus:
    number = path[-1]
    return DirectoryStatus(
        path=path,
        directory_id=str(IDS[path]),
        health=DirectoryHealth(health=health, cause=cause, trouble_ms=trouble_ms),
        last_probe=None,
        probes=0,
        probe_failures=0,
        probe_histogram={},
        blocked_ms=blocked_ms,
        device=BlockDevice((f"sd{number}",), f"8:{number}", reason=no_counters, disks=(f"sd{number}",)),
        counters=None,
        file_system="ext4",
        silent_ms=silent_ms,
    )


def looked(
    *statuses: DirectoryStatus,
    verdicts: Mapping[str, Verdict],
    kept: Iterable[str] = (),
    unread: Iterable[str] = (),
    cut_after_ms: int = -1,
) -> Situation:
    """What a guard sees with this knowledge of its monitor."""
    watching = SimpleNamespace(
        paths=tuple(one.path for one in statuses),
        entries={one.path: Entry(one.path, reason=None) for one in statuses},
        directory_id=IDS.get,
        unread=frozenset(unread),
        is_elsewhere=lambda path: False,
        why_over=lambda *_: None,
    )
    finding = SimpleNamespace(
        holder=None, unbound="no broker runs", looked=True, ended_pid=None, is_kept=lambda path: path in kept
    )
    following = SimpleNamespace(observed=observed(), blind=None, answered_ms=NOW_MS, registered_ms=0)
    clock = SimpleNamespace(monotonic_ms=lambda: NOW_MS, wall_ms=lambda: NOW_MS)
    looking = Looking(
        cast(Config, SimpleNamespace(kjbod_guard_cut_after_ms=cut_after_ms, log_dir_failure_timeout_ms=30_000)),
        cast(Any, watching),
        cast(Any, SimpleNamespace(status=lambda: statuses)),
        cast(Any, finding),
        cast(Any, following),
        None,
        {},
        cast(Clock, clock),
    )
    return looking.situation(None, verdicts)


def test_a_mount_that_has_changed_for_the_guard_alone_is_left_alone() -> None:
    both = (status(), status(PATH2))
    verdicts = {path: failed(path) for path in IDS}
    mounts = "its mount is another one here and not for the broker, which has mounts of its own"
    seen = looked(*both, verdicts=verdicts, kept=[PATH])
    assert {path: one.kept for path, one in seen.disks.items()} == {PATH: mounts, PATH2: None}
    assert looked(*both, verdicts={PATH2: failed(PATH2)}, kept=[PATH]).disks[PATH].kept is None, "it has not failed"


def test_a_directory_that_is_known_from_memory_alone_is_no_disk_that_answers() -> None:
    well_there = status(health=Health.SUSPECT, cause=Cause.SILENT)
    seen = looked(well_there, status(PATH2, health=Health.ONLINE), verdicts={}, unread=[PATH])
    assert [seen.disks[path].is_well for path in IDS] == [False, True]


def test_a_disk_that_answers_errors_is_one_that_answers_eio_now() -> None:
    def errs(error: str, blocked_ms: int | None = None) -> bool:
        verdict = failed(PATH, cause=Cause.ERROR, evidence=replace(failed(PATH).evidence, errno=error))
        seen = looked(status(cause=Cause.ERROR, blocked_ms=blocked_ms), verdicts={PATH: verdict})
        return seen.disks[PATH].errors

    assert (errs("EIO"), errs("EIO", 2_000), errs("EACCES")) == (True, False, False)


@pytest.mark.parametrize(
    ("configured", "expected"), [(-1, (OTHER_MS, str(Medium.OTHER))), (0, (0, "")), (7_000, (7_000, ""))]
)
def test_the_patience_is_what_the_site_says_or_what_the_medium_needs(
    configured: int, expected: tuple[int, str]
) -> None:
    seen = looked(status(), verdicts={PATH: failed(PATH)}, cut_after_ms=configured).disks[PATH]
    assert (seen.cut_after_ms, seen.medium) == expected


@pytest.mark.parametrize(
    ("now", "stood_ms"),
    [
        # A request that is not answered counts from when it was sent.
        (status(cause=Cause.SILENT, blocked_ms=4_000), 4_000),
        # Where the device has counters, from the last request of anybody that it completed.
        (status(blocked_ms=4_000, silent_ms=1_500), 1_500),
        (status(blocked_ms=4_000, silent_ms=0), 0),
        (status(blocked_ms=4_000, silent_ms=1_500, no_counters="no block device"), 4_000),
        # Nothing is blocked: it answers errors, from the first one on.
        (status(cause=Cause.ERROR, trouble_ms=NOW_MS - 9_000), 9_000),
        (status(cause=Cause.ERROR), 3_000),
        (status(cause=Cause.ERROR, trouble_ms=NOW_MS - 1_000), 3_000),
    ],
)
def test_a_disk_stands_still_since_the_last_request_that_it_completed(now: DirectoryStatus, stood_ms: int) -> None:
    assert NOW_MS - bad_since_ms(now, NOW_MS - 3_000, NOW_MS) == stood_ms

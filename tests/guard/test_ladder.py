"""What a guard would do, as a table, and what holds for every case there is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kjbod_guard.ladder import (
    CUT_FILE_SYSTEMS,
    LAST,
    WAITS_FOR,
    Case,
    KafkaView,
    Step,
    before_start,
    may_be_shut_down,
    would,
)
from kjbod_host.health.state import Cause, Health

HUNG = Case(health=Health.FAILED, cause=Cause.HUNG)
GONE = replace(HUNG, cause=Cause.MOUNT)
HELD = replace(HUNG, cause=Cause.HELD)
OFFLINE = replace(HUNG, kafka=KafkaView.OFFLINE)
ALONE = replace(HUNG, others_well=False)
SLOW = Case(health=Health.SLOW, cause=Cause.SLOW, demotable=2)
EARLY, SHORT, BEHIND = "nothing before 3 s", "t-0 has no other copy in sync", "broker 2 lost a directory"
HELPLESS, UNHEARD = "the guard has no helper", "no controller has answered for 1.5 s"
OVERDUE, OVER, BESIDE = "3 partitions are led there", "it failed before", "/mnt/d1/b"
IRREVERSIBLE = (Step.CUT, Step.MASK, Step.REPORT, Step.FENCE)

ROWS = [
    # which act is right
    (HUNG, Step.CUT, "its ext4 carries nothing but this broker's log directories"),
    (replace(HUNG, file_system="xfs"), Step.CUT, "its xfs carries nothing"),
    (replace(HUNG, cause=Cause.ERROR), Step.CUT, "its ext4"),
    (replace(HUNG, cause=Cause.SILENT), Step.CUT, "its ext4"),
    (replace(HUNG, well_beside=BESIDE), Step.CUT, "its ext4"),
    (replace(HUNG, file_system="btrfs"), Step.MASK, "btrfs cannot be cut"),
    (replace(HUNG, file_system=None), Step.MASK, "an unknown file system cannot be cut"),
    (replace(HUNG, shared="it carries /mnt/d1/db as well"), Step.MASK, "it carries /mnt/d1/db as well"),
    (replace(HUNG, cause=Cause.ERROR, well_beside=BESIDE), Step.MASK, "/mnt/d1/b lies on its file system as"),
    (replace(HUNG, cause=Cause.REPEATED_ERRORS, well_beside=BESIDE), Step.MASK, "/mnt/d1/b lies on its file"),
    (GONE, Step.REPORT, "its mount is not what it was"),
    (replace(GONE, holds_metadata=True), Step.REPORT, "its mount is not what it was"),
    (replace(HUNG, holds_metadata=True), Step.FENCE, "the metadata log lies there"),
    (HELD, Step.FENCE, "its file system is frozen"),
    (replace(HUNG, overdue=OVERDUE), Step.FENCE, OVERDUE),
    (replace(GONE, overdue=OVERDUE), Step.FENCE, OVERDUE),
    (replace(ALONE, lasted=True), Step.FENCE, "no other disk"),
    (replace(HUNG, fence_first=True), Step.FENCE, "kjbod.guard.ladder=fence"),
    (replace(HUNG, fence_first=True, not_fenced="no"), Step.CUT, "its ext4"),
    # why it waits
    (replace(HUNG, patience=EARLY), Step.WAIT, EARLY),
    (replace(HUNG, patience=EARLY, overdue=OVERDUE), Step.WAIT, EARLY),
    (replace(ALONE, patience=EARLY, lasted=True), Step.WAIT, EARLY),
    (replace(HUNG, patience=EARLY, holds_metadata=True, fence_first=True), Step.WAIT, EARLY),
    (ALONE, Step.WAIT, "no other disk of this broker is known to be healthy"),
    (replace(ALONE, cause=Cause.MOUNT), Step.WAIT, "no other disk"),
    (replace(ALONE, overdue=OVERDUE), Step.WAIT, "no other disk"),
    (
        replace(ALONE, lasted=True, not_fenced="no"),
        Step.WAIT,
        "no other disk of this broker is known to be healthy, a",
    ),
    (replace(HUNG, needed=SHORT), Step.WAIT, f"no cut yet: {SHORT}"),
    (replace(HUNG, last=True), Step.WAIT, f"no cut yet: {LAST}"),
    (replace(HUNG, behind=BEHIND), Step.WAIT, f"no cut yet: {BEHIND}"),
    (replace(HUNG, helpless=HELPLESS), Step.WAIT, f"no cut yet: {HELPLESS}"),
    (replace(HUNG, helpless=HELPLESS, unheard=UNHEARD), Step.WAIT, f"no cut yet: {HELPLESS}"),
    (replace(GONE, helpless=HELPLESS), Step.REPORT, "its mount is not what it was"),
    (replace(HUNG, unheard=UNHEARD), Step.WAIT, f"no cut yet: {UNHEARD}"),
    (replace(HUNG, needed=SHORT, last=True, behind=BEHIND), Step.WAIT, f"no cut yet: {SHORT}"),
    (replace(HUNG, unheard=UNHEARD, needed=SHORT), Step.WAIT, f"no cut yet: {UNHEARD}"),
    (replace(HUNG, file_system="btrfs", needed=SHORT), Step.WAIT, f"no mask yet: {SHORT}"),
    (replace(GONE, last=True), Step.WAIT, f"no report yet: {LAST}"),
    (
        replace(HELD, not_fenced="no"),
        Step.WAIT,
        "its file system is frozen, and a cut frees no thread that",
    ),
    (replace(HUNG, overdue=OVERDUE, not_fenced="no"), Step.WAIT, f"{OVERDUE}, and it is not fenced: no"),
    (replace(HUNG, holds_metadata=True, not_fenced="no"), Step.WAIT, "the metadata log lies there, and it is not fenc"),
    (replace(HUNG, fence_first=True, not_fenced="no", undecided=True), Step.WAIT, "kjbod.guard.ladder=fence, and it"),
    # what is left unchanged
    (replace(HUNG, outlived=OVER), Step.NOTHING, OVER),
    (replace(HUNG, outlived=OVER, holds_metadata=True), Step.NOTHING, OVER),
    (replace(HUNG, outlived=OVER, overdue=OVERDUE), Step.NOTHING, OVER),
    (replace(HUNG, outlived=OVER, patience=EARLY), Step.NOTHING, OVER),
    (replace(OFFLINE, outlived=OVER), Step.NOTHING, "Kafka has noticed"),
    (replace(HUNG, cause=Cause.ERROR, unidentified=True), Step.NOTHING, "its meta.properties is not what it was"),
    (replace(HUNG, unidentified=True, overdue=OVERDUE), Step.NOTHING, "its meta.properties"),
    (replace(HUNG, unidentified=True, holds_metadata=True), Step.NOTHING, "its meta.properties"),
    (replace(ALONE, unidentified=True, lasted=True), Step.NOTHING, "its meta.properties"),
    (replace(HUNG, kafka=KafkaView.UNKNOWN), Step.NOTHING, "whether Kafka has noticed is not known"),
    (replace(HUNG, kafka=KafkaView.UNKNOWN, overdue=OVERDUE), Step.NOTHING, "whether Kafka has noticed is not known"),
    (replace(HUNG, kafka=KafkaView.UNKNOWN, patience=EARLY), Step.NOTHING, "whether Kafka has noticed is not known"),
    (replace(HUNG, unbound="no broker runs"), Step.NOTHING, "no broker runs"),
    (replace(HUNG, health=Health.SLOW, cause=Cause.SLOW), Step.NOTHING, ""),
    (replace(HUNG, health=Health.FULL, cause=Cause.FULL), Step.NOTHING, ""),
    (replace(HUNG, health=Health.HELD, cause=Cause.HELD), Step.NOTHING, ""),
    (replace(HUNG, health=Health.SUSPECT), Step.NOTHING, ""),
    (Case(health=Health.ONLINE), Step.NOTHING, ""),
    (Case(health=Health.ONLINE, unbound="no broker runs"), Step.NOTHING, ""),
    # when Kafka has noticed
    (OFFLINE, Step.NOTHING, "Kafka has noticed"),
    (replace(OFFLINE, overdue=OVERDUE, patience=EARLY), Step.NOTHING, "Kafka has noticed"),
    (replace(OFFLINE, not_evicted="1 y"), Step.NOTHING, "Kafka has noticed; 1 y"),
    (replace(OFFLINE, evictable=3), Step.EVICT, "3 partitions would wait for it"),
    (replace(OFFLINE, evictable=3, patience=EARLY), Step.EVICT, "3 partitions"),
    (Case(health=Health.ONLINE, kafka=KafkaView.OFFLINE, evictable=1), Step.EVICT, "1 partition would wait"),
    (replace(OFFLINE, cause=Cause.MOUNT, evictable=3), Step.NOTHING, "Kafka has noticed"),
    (replace(OFFLINE, evictable=3, unbound="no broker runs"), Step.NOTHING, "no broker runs"),
    # a slow disk
    (SLOW, Step.DEMOTE, "others can lead 2 partitions of it"),
    (replace(SLOW, kafka=KafkaView.UNKNOWN), Step.NOTHING, ""),
    (replace(SLOW, unbound="no broker runs"), Step.NOTHING, ""),
    (replace(SLOW, health=Health.ONLINE), Step.NOTHING, ""),
]


@pytest.mark.parametrize(("case", "step", "reason"), ROWS)
def test_the_first_row_that_fits_counts(case: Case, step: Step, reason: str) -> None:
    decided = would(case)
    assert decided.step is step
    assert decided.reason.startswith(reason) and bool(decided.reason) == bool(reason)


def test_every_step_is_in_the_table() -> None:
    assert {would(case).step for case, _, _ in ROWS} == set(Step)


@pytest.mark.parametrize(
    ("case", "word"),
    [
        (replace(HUNG, patience=EARLY, needed=SHORT), "time"),
        (ALONE, "host"),
        (replace(ALONE, needed=SHORT, behind=BEHIND, not_fenced="no"), "host"),
        (replace(HUNG, helpless=HELPLESS, unheard=UNHEARD), "helper"),
        (replace(HUNG, unheard=UNHEARD, needed=SHORT), "controller"),
        (replace(HUNG, needed=SHORT), "copies"),
        (replace(HUNG, behind=BEHIND), "budget"),
        (replace(HELD, not_fenced="no"), "fence"),
        (replace(ALONE, lasted=True, not_fenced="no"), "fence"),
        (replace(HUNG, last=True), "last"),
        # The word is of the reason in the line, whatever else is so.
        (replace(HUNG, last=True, behind=BEHIND, not_fenced="no"), "last"),
        (replace(HUNG, holds_metadata=True, not_fenced="once in ten minutes", needed=SHORT), "fence"),
        (HUNG, None),
        (OFFLINE, None),
        (replace(HUNG, outlived=OVER, needed=SHORT), None),
    ],
)
def test_a_step_that_waits_has_a_word_for_metrics(case: Case, word: str | None) -> None:
    assert would(case).waits == (word or "")


@pytest.mark.parametrize(
    ("case", "step", "reason"),
    [
        (HUNG, Step.CUT, "its ext4"),
        (replace(HUNG, cause=Cause.SILENT), Step.CUT, "its ext4"),
        (replace(HUNG, file_system="btrfs"), Step.MASK, "btrfs cannot be cut"),
        (HELD, Step.MASK, "its file system is frozen"),
        (replace(HUNG, kafka=KafkaView.OFFLINE), Step.CUT, "its ext4"),
        (replace(HUNG, in_sync=SHORT), Step.WAIT, SHORT),
        (replace(HUNG, in_sync=SHORT, file_system="btrfs"), Step.MASK, "btrfs cannot be cut"),
        (replace(HUNG, helpless=HELPLESS), Step.NOTHING, HELPLESS),
        (replace(HUNG, unheard=UNHEARD), Step.WAIT, UNHEARD),
        (replace(HUNG, patience=EARLY), Step.WAIT, EARLY),
        (replace(HUNG, behind=BEHIND), Step.WAIT, BEHIND),
        (ALONE, Step.WAIT, "no other disk"),
        (replace(HUNG, needed=SHORT), Step.NOTHING, SHORT),
        (replace(HUNG, cause=Cause.ERROR), Step.NOTHING, "it answers, with an error"),
        (GONE, Step.NOTHING, "it answers, with an error"),
        (replace(HUNG, outlived=OVER), Step.NOTHING, OVER),
        (replace(HUNG, kafka=KafkaView.UNKNOWN), Step.NOTHING, "which partitions lie there only is not known"),
        (replace(HUNG, holds_metadata=True), Step.NOTHING, "the metadata log lies there"),
        (SLOW, Step.NOTHING, ""),
        (Case(health=Health.SUSPECT, cause=Cause.HUNG), Step.NOTHING, ""),
    ],
)
def test_what_hangs_is_taken_away_from_a_broker_that_is_about_to_start(case: Case, step: Step, reason: str) -> None:
    decided = before_start(case)
    assert decided.step is step
    assert decided.reason.startswith(reason) and bool(decided.reason) == bool(reason)


@pytest.mark.parametrize(
    ("case", "may"),
    [
        (HUNG, True),
        (HELD, True),
        (replace(HUNG, needed=SHORT), True),  # the metadata are asked when they show the fence
        (replace(HUNG, file_system="btrfs"), False),
        (replace(HUNG, shared="it carries more"), False),
        (replace(HUNG, cause=Cause.ERROR, well_beside=BESIDE), False),
        (replace(ALONE, lasted=True), False),
        (GONE, False),
    ],
)
def test_a_disk_of_a_broker_that_is_fenced_is_shut_down_only_where_it_is_ours_and_not_the_host(
    case: Case, may: bool
) -> None:
    assert may_be_shut_down(case) is may


# ----------------------------------------------------------------------------------------------------------- every case

CASES = st.builds(
    Case,
    health=st.sampled_from([Health.FAILED, *Health]),
    cause=st.sampled_from(Cause),
    kafka=st.sampled_from([KafkaView.ONLINE, *KafkaView]),
    unbound=st.sampled_from([None, None, None, "no broker runs"]),
    patience=st.sampled_from([None, None, EARLY]),
    others_well=st.booleans(),
    holds_metadata=st.booleans(),
    file_system=st.sampled_from(["ext4", "xfs", "btrfs", None]),
    shared=st.sampled_from([None, "it carries more"]),
    well_beside=st.sampled_from([None, BESIDE]),
    helpless=st.sampled_from([None, None, None, HELPLESS]),
    unheard=st.sampled_from([None, None, UNHEARD]),
    needed=st.sampled_from([None, None, SHORT]),
    in_sync=st.sampled_from([None, SHORT]),
    last=st.booleans(),
    behind=st.sampled_from(["", "", BEHIND]),
    evictable=st.integers(0, 1),
    demotable=st.integers(0, 1),
    overdue=st.sampled_from([None, OVERDUE]),
    outlived=st.sampled_from([None, None, OVER]),
    unidentified=st.booleans(),
    lasted=st.booleans(),
    fence_first=st.booleans(),
    not_fenced=st.sampled_from([None, "broker 2 was fenced"]),
    undecided=st.booleans(),
)


@given(CASES)
def test_nothing_is_done_to_what_works_or_is_not_ours_or_is_not_known(case: Case) -> None:
    decided = would(case)
    if case.unbound is None and case.kafka is KafkaView.OFFLINE:
        evicts = case.evictable and case.cause is not Cause.MOUNT
        assert decided.step is (Step.EVICT if evicts else Step.NOTHING)
    elif case.health is Health.SLOW and case.unbound is None and case.demotable and case.kafka is KafkaView.ONLINE:
        assert decided.step is Step.DEMOTE
    elif (
        case.health is not Health.FAILED
        or case.unbound is not None
        or case.kafka is KafkaView.UNKNOWN
        or case.outlived is not None
        or case.unidentified
    ):
        assert decided.step is Step.NOTHING
    else:
        assert decided.step is not Step.NOTHING and decided.reason


@given(CASES)
def test_nothing_that_cannot_be_undone_happens_early_or_blindly_or_beside_a_host_that_fails(case: Case) -> None:
    if would(case).step in IRREVERSIBLE:
        assert case.patience is None and case.kafka is KafkaView.ONLINE and case.health is Health.FAILED
        assert case.others_well or (case.lasted and would(case).step is Step.FENCE)


@given(CASES)
def test_a_directory_is_taken_away_only_where_enough_copies_are_elsewhere_and_no_other_broker_is_first(
    case: Case,
) -> None:
    if would(case).step in (Step.CUT, Step.MASK, Step.REPORT):
        assert case.needed is None and not case.last and not case.behind
        assert case.unheard is None and case.overdue is None
        assert case.helpless is None or would(case).step is Step.REPORT
    if before_start(case).step in (Step.CUT, Step.MASK):
        assert case.needed is None and not case.behind and case.patience is None and case.others_well
        assert case.unheard is None and case.helpless is None
        assert case.kafka is not KafkaView.UNKNOWN and not case.holds_metadata and case.outlived is None


@given(CASES)
def test_only_a_file_system_that_is_ours_alone_is_cut_and_never_that_of_the_metadata(case: Case) -> None:
    if Step.CUT in (would(case).step, before_start(case).step):
        assert case.file_system in CUT_FILE_SYSTEMS and case.shared is None
        assert not case.holds_metadata and case.cause is not Cause.MOUNT
        assert case.well_beside is None or case.cause not in (Cause.ERROR, Cause.REPEATED_ERRORS)
    assert before_start(case).step is not Step.CUT or case.in_sync is None


@given(CASES)
def test_a_broker_that_may_not_be_fenced_is_not(case: Case) -> None:
    assert case.not_fenced is None or would(case).step is not Step.FENCE


@given(CASES)
def test_only_a_step_that_waits_has_a_word_for_what_it_waits_for(case: Case) -> None:
    decided = would(case)
    assert (decided.waits in WAITS_FOR) is (decided.step is Step.WAIT)
    assert decided.step is not Step.WAIT or decided.reason

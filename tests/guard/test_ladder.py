"""What a guard would do, as a table, and what holds for every case there is."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kjbod_agent.guard.ladder import CUT_FILE_SYSTEMS, Case, KafkaView, Step, would
from kjbod_agent.health.state import Cause, Health

HUNG = Case(health=Health.FAILED, cause=Cause.HUNG)


@pytest.mark.parametrize(
    ("case", "step", "reason"),
    [
        (HUNG, Step.CUT, "its ext4 carries nothing but this broker's log directories"),
        (replace(HUNG, file_system="xfs"), Step.CUT, "its xfs carries nothing"),
        (replace(HUNG, cause=Cause.ERROR), Step.CUT, "its ext4"),
        (replace(HUNG, cause=Cause.SILENT), Step.CUT, "its ext4"),
        (replace(HUNG, file_system="btrfs"), Step.MASK, "btrfs cannot be cut"),
        (replace(HUNG, file_system=None), Step.MASK, "an unknown file system cannot be cut"),
        (replace(HUNG, shared="it carries /mnt/d1/db as well"), Step.MASK, "it carries /mnt/d1/db as well"),
        (replace(HUNG, cause=Cause.MOUNT), Step.REPORT, "its mount is not what it was"),
        (replace(HUNG, holds_metadata=True), Step.FENCE, "the metadata log lies there"),
        (replace(HUNG, others_well=False), Step.WAIT, "no other disk of this broker is known to be well"),
        (replace(HUNG, others_well=False, cause=Cause.MOUNT), Step.WAIT, "no other disk"),
        (replace(HUNG, sole_copies=2), Step.MASK, "the only replica in sync of 2 partitions lies there"),
        (replace(HUNG, cause=Cause.ERROR, well_beside="/mnt/d1/b"), Step.MASK, "/mnt/d1/b lies on its file system as"),
        (replace(HUNG, cause=Cause.REPEATED_ERRORS, well_beside="/mnt/d1/b"), Step.MASK, "/mnt/d1/b lies on its file"),
        (replace(HUNG, well_beside="/mnt/d1/b"), Step.CUT, "its ext4"),
        (replace(HUNG, others_well=False, lasted=True), Step.FENCE, "no other disk"),
        (replace(HUNG, cause=Cause.HELD), Step.FENCE, "its file system is frozen"),
        (replace(HUNG, cause=Cause.HELD, not_fenced="no"), Step.WAIT, "its file system is frozen, and a cut frees no"),
        (replace(HUNG, fence_first=True), Step.FENCE, "kjbod.guard.ladder=fence"),
        (replace(HUNG, fence_first=True, not_fenced="no"), Step.CUT, "its ext4"),
        (
            replace(HUNG, fence_first=True, not_fenced="no", undecided=True),
            Step.WAIT,
            "kjbod.guard.ladder=fence, and it",
        ),
        (
            replace(HUNG, holds_metadata=True, not_fenced="no"),
            Step.WAIT,
            "the metadata log lies there, and it is not f",
        ),
        (replace(HUNG, overdue="nobody heard"), Step.FENCE, "nobody heard"),
        (replace(HUNG, overdue="nobody heard", kafka=KafkaView.UNKNOWN), Step.FENCE, "nobody heard"),
        (replace(HUNG, overdue="nobody heard", kafka=KafkaView.OFFLINE), Step.NOTHING, "Kafka has noticed"),
        (replace(HUNG, overdue="nobody heard", others_well=False), Step.WAIT, "nobody heard; no other disk"),
        (replace(HUNG, overdue="nobody heard", others_well=False, lasted=True), Step.FENCE, "nobody heard"),
        (replace(HUNG, outlived="it failed before"), Step.NOTHING, "it failed before"),
        (replace(HUNG, outlived="it failed before", holds_metadata=True), Step.NOTHING, "it failed before"),
        (replace(HUNG, outlived="it failed before", overdue="nobody heard"), Step.NOTHING, "it failed before"),
        (replace(HUNG, outlived="it failed before", kafka=KafkaView.OFFLINE), Step.NOTHING, "Kafka has noticed"),
        (replace(HUNG, cause=Cause.ERROR, unidentified=True), Step.NOTHING, "its meta.properties is not what it was"),
        (replace(HUNG, unidentified=True, overdue="nobody heard"), Step.NOTHING, "its meta.properties"),
        (replace(HUNG, unidentified=True, holds_metadata=True), Step.NOTHING, "its meta.properties"),
        (replace(HUNG, unidentified=True, others_well=False, lasted=True), Step.NOTHING, "its meta.properties"),
        (replace(HUNG, kafka=KafkaView.OFFLINE, evictable=3), Step.EVICT, "3 partitions would wait for it"),
        (replace(HUNG, kafka=KafkaView.OFFLINE, not_evicted="1 y"), Step.NOTHING, "Kafka has noticed; 1 y"),
        (Case(health=Health.ONLINE, kafka=KafkaView.OFFLINE, evictable=1), Step.EVICT, "1 partition would wait"),
        (replace(HUNG, kafka=KafkaView.OFFLINE), Step.NOTHING, "Kafka has noticed"),
        (replace(HUNG, kafka=KafkaView.UNKNOWN), Step.NOTHING, "whether Kafka has noticed is not known"),
        (replace(HUNG, unbound="no broker runs"), Step.NOTHING, "no broker runs"),
        (replace(HUNG, health=Health.SLOW, cause=Cause.SLOW), Step.NOTHING, ""),
        (Case(health=Health.SLOW, demotable=2), Step.DEMOTE, "others can lead 2 partitions of it"),
        (Case(health=Health.SLOW, demotable=2, kafka=KafkaView.UNKNOWN), Step.NOTHING, ""),
        (Case(health=Health.SLOW, demotable=2, unbound="no broker runs"), Step.NOTHING, ""),
        (replace(HUNG, health=Health.FULL, cause=Cause.FULL), Step.NOTHING, ""),
        (replace(HUNG, health=Health.HELD, cause=Cause.HELD), Step.NOTHING, ""),
        (replace(HUNG, health=Health.SUSPECT), Step.NOTHING, ""),
        (Case(health=Health.ONLINE), Step.NOTHING, ""),
    ],
)
def test_the_first_row_that_fits_counts(case: Case, step: Step, reason: str) -> None:
    decided = would(case)
    assert decided.step is step
    assert decided.reason.startswith(reason) and bool(decided.reason) == bool(reason)


CASES = st.builds(
    Case,
    health=st.sampled_from(Health),
    cause=st.sampled_from(Cause),
    kafka=st.sampled_from(KafkaView),
    unbound=st.none() | st.just("no broker runs"),
    others_well=st.booleans(),
    holds_metadata=st.booleans(),
    file_system=st.sampled_from(["ext4", "xfs", "btrfs", None]),
    shared=st.none() | st.just("it carries more"),
    well_beside=st.none() | st.just("/mnt/d1/b"),
    sole_copies=st.integers(0, 1),
    evictable=st.integers(0, 1),
    demotable=st.integers(0, 1),
    overdue=st.none() | st.just("nobody heard"),
    outlived=st.none() | st.just("it failed before"),
    unidentified=st.booleans(),
    lasted=st.booleans(),
    fence_first=st.booleans(),
    not_fenced=st.none() | st.just("broker 2 was fenced"),
)


def _is_known(case: Case) -> bool:
    """Whether enough is known to do anything."""
    return case.kafka is KafkaView.ONLINE or case.overdue is not None


@given(CASES)
def test_nothing_is_done_to_what_works_or_is_not_ours_or_is_known(case: Case) -> None:
    decided = would(case)
    if case.unbound is None and case.kafka is KafkaView.OFFLINE:
        evicts = case.evictable and case.cause is not Cause.MOUNT
        assert decided.step is (Step.EVICT if evicts else Step.NOTHING)
    elif case.health is Health.SLOW and case.unbound is None and case.demotable and case.kafka is KafkaView.ONLINE:
        assert decided.step is Step.DEMOTE
    elif (
        case.health is not Health.FAILED
        or case.unbound is not None
        or (case.kafka is KafkaView.UNKNOWN and case.overdue is None)
        or case.outlived is not None
        or case.unidentified
    ):
        assert decided.step is Step.NOTHING
    else:
        assert decided.step is not Step.NOTHING and decided.reason


@given(CASES)
def test_only_a_file_system_that_is_ours_alone_is_cut_and_never_the_last_disk_or_the_metadata(case: Case) -> None:
    if would(case).step is Step.CUT:
        assert case.file_system in CUT_FILE_SYSTEMS and case.shared is None
        assert case.others_well and not case.sole_copies and not case.holds_metadata and case.cause is not Cause.MOUNT
        assert case.well_beside is None or case.cause not in (Cause.ERROR, Cause.REPEATED_ERRORS)


@given(CASES)
def test_a_broker_that_may_not_be_given_up_is_not(case: Case) -> None:
    assert case.not_fenced is None or would(case).step is not Step.FENCE


@given(CASES)
def test_without_a_disk_that_is_well_nothing_ends_the_broker_before_the_timeout(case: Case) -> None:
    assert case.others_well or case.lasted or would(case).step in (Step.NOTHING, Step.WAIT, Step.EVICT, Step.DEMOTE)


def test_every_step_is_reached() -> None:
    kinds = itertools.product([Cause.HUNG, Cause.MOUNT], [True, False], [True, False], ["ext4", "btrfs"])
    steps = {
        would(replace(HUNG, cause=cause, others_well=well, holds_metadata=metadata, file_system=fs)).step
        for cause, well, metadata, fs in kinds
    }
    noticed = replace(HUNG, kafka=KafkaView.OFFLINE, evictable=1)
    slow = Case(health=Health.SLOW, demotable=1)
    assert steps | {would(one).step for one in (Case(health=Health.ONLINE), noticed, slow)} == set(Step)

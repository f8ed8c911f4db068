"""The table of differences between the KIPs, Apache Kafka and kjbod in ``kjbod/README.md``: each row that is listed
here is held by the tests that are named, and those that are about a form only are tested here."""

import re
from pathlib import Path

import pytest
from msgspec import structs

from kjbod.ids import Uuid
from kjbod.metadata.records import BrokerRegistrationChangeRecord, RegisterBrokerRecord, decode_record, encode_record
from kjbod.wire.messages import ApiKey, BrokerRegistrationRequest
from kjbod_agent.admin.listener import SERVED

ROOT = Path(__file__).parents[1]
_ROW = re.compile(r"^\| (\d+) \| ", re.MULTILINE)

CONTROLLER, AGENT = "tests/controller/", "tests/agent/"
TESTS = {
    4: [
        f"{CONTROLLER}test_unplaced.py::test_a_broker_that_got_a_second_directory_stays_fenced_until_its_old_replicas_are_placed",
        f"{CONTROLLER}test_unplaced.py::test_one_replica_that_cannot_be_made_does_not_keep_a_broker_fenced_for_ever",
        f"{CONTROLLER}test_unplaced.py::test_a_replica_without_a_known_directory_is_not_elected_when_another_broker_comes",
        f"{AGENT}test_unmade.py::test_a_replica_that_cannot_be_made_is_named_by_both_sides_and_keeps_the_broker_fenced_for_a_while_only",
    ],
    8: [
        f"{AGENT}test_daemon.py::test_a_directory_that_is_away_gets_no_second_copies_and_is_welcome_when_it_is_back",
        f"{AGENT}test_daemon.py::test_directories_that_cannot_be_used_are_refused_with_one_line_and_nothing_is_changed",
    ],
    11: [f"{AGENT}core/test_metrics.py::test_queued_assignments_have_the_names_of_the_kip_and_of_kafka"],
    17: ["tests/test_kip_table.py::test_a_registration_says_neither_an_offset_nor_that_directories_are_offline"],
    23: [f"{CONTROLLER}test_directories.py::test_an_assignment_to_no_directory_takes_the_replica_offline"],
    24: [
        f"{AGENT}core/test_replicas.py::test_a_copy_that_may_be_older_than_the_one_that_cannot_be_read_is_not_assigned"
    ],
    25: [f"{AGENT}core/test_moves.py::test_a_source_that_fails_after_the_controller_agreed_is_replaced_by_its_equal"],
    26: [f"{CONTROLLER}test_registration.py::test_ct5_another_clusters_broker_is_refused"],
    27: [f"{CONTROLLER}test_reassignments.py::test_newcomers_are_added_first_and_take_over_when_they_are_in_sync"],
    28: [f"{CONTROLLER}test_reassignments.py::test_the_target_comes_first_while_a_reassignment_is_under_way"],
    29: ["tests/test_kip_table.py::test_a_registration_says_neither_an_offset_nor_that_directories_are_offline"],
    30: ["tests/test_kip_table.py::test_a_change_of_directories_is_written_as_kafka_writes_it"],
    31: [
        "tests/test_kip_table.py::test_an_agent_does_not_offer_what_is_for_controllers",
        f"{AGENT}test_admin_tools_kafka.py::test_a_broker_that_is_gone_is_unregistered_through_an_agent",
    ],
}


def test_the_rows_are_numbered_and_none_is_missing() -> None:
    table = (
        (ROOT / "kjbod" / "README.md").read_text().partition("## KIP text or shipped Kafka?")[2].partition("\n## ")[0]
    )
    numbers = [int(number) for number in _ROW.findall(table)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers[-1] == max(TESTS)


@pytest.mark.parametrize("row", TESTS)
def test_what_a_row_claims_is_tested(row: int) -> None:
    for test in TESTS[row]:
        path, name = test.split("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), test


def test_a_registration_says_neither_an_offset_nor_that_directories_are_offline() -> None:
    for kind in (BrokerRegistrationRequest, RegisterBrokerRecord):
        names = {field.name for field in structs.fields(kind)}
        assert "log_dirs" in names
        assert not any("offset" in name or "offline" in name for name in names)


def test_a_change_of_directories_is_written_as_kafka_writes_it() -> None:
    change = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2, log_dirs=(Uuid.of(5, 6),))
    value = encode_record(change, 2)
    # Frame version, type and version; broker and epoch; one tagged field, 2, of 17 bytes: a list of one.
    assert value == b"\x01\x11\x02" + bytes([0, 0, 0, 1]) + bytes(7) + b"\x02" + b"\x01\x02\x11\x02" + Uuid.of(5, 6)
    assert decode_record(value) == (change, 2)
    assert encode_record(structs.replace(change, log_dirs=()), 2)[-1:] == b"\x00", "no tagged field: no change"


def test_an_agent_does_not_offer_what_is_for_controllers() -> None:
    for key in (ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT, ApiKey.ASSIGN_REPLICAS_TO_DIRS):
        assert key not in SERVED
    assert ApiKey.UNREGISTER_BROKER in SERVED

"""What scripts/real-brokers compares, and what it says of replicas."""

import pytest

from scripts.brokers import __main__ as command
from scripts.brokers.agreement import Metadata
from scripts.brokers.differences import Allowed
from scripts.brokers.tools import Outcome, Step, compare, normal

NAMES = {"/srv/broker-1-d1": "DIR-1-1", "127.0.0.1:9092": "BROKER1"}
TOPIC = "QUI0mWvqSXm5hUW6t_4ZmQ"


def test_what_must_differ_has_the_same_name_in_both_transcripts() -> None:
    said = (
        "[2026-11-21 20:30:00,123] INFO AdminClientConfig values: (org.apache.kafka.clients.admin.AdminClientConfig)\n"
        "\tretries = 5\n"
        f"Topic: t TopicId: {TOPIC} at 127.0.0.1:9092 in /srv/broker-1-d1 since 1795290000123 epoch 7\n"
        "RegisterControllerRecord\n"
        "\tat org.apache.kafka.tools.TopicCommand.main(TopicCommand.java:1)\n"
    )
    outcome = normal(Step("topics --describe", mask=r"(?<=epoch )\d+"), 1, said, NAMES)
    assert outcome.lines == (
        "RegisterControllerRecord",
        "Topic: t TopicId: ID at BROKER1 in DIR-1-1 since TIME epoch *",
    )
    assert outcome.code == 1


def test_directories_are_compared_by_what_is_in_them_and_not_where_it_is() -> None:
    replica = '{"partition":"t-0","size":7,"offsetLag":0,"isFuture":false}'
    log_dir = f'{{"logDir":"/srv/broker-1-d1","error":null,"partitions":[{replica}]}}'
    outcome = normal(Step("log-dirs"), 0, f'{{"brokers":[{{"broker":1,"logDirs":[{log_dir}]}}]}}', NAMES)
    assert outcome.lines == ("broker 1 DIR-1-1 error None", "broker 1 t-0 lag 0 future False")


def test_a_difference_fails_unless_each_of_its_lines_has_a_reason() -> None:
    theirs = [Outcome("a", 0, ("same",)), Outcome("b", 0, ("old",)), Outcome("c", 0, ("old", "x"))]
    ours = [Outcome("a", 0, ("same",)), Outcome("b", 0, ("old and more",)), Outcome("c", 1, ("old and more", "x"))]
    found = compare(ours, theirs, [Allowed("b|c", "^old", "it says more")])
    assert [(difference.name, difference.reason) for difference in found] == [("b", "it says more"), ("c", None)]
    assert found[1].lines == ("-exit code 0", "-old", "+exit code 1", "+old and more")


def test_the_metadata_of_a_replica_follow_its_records() -> None:
    metadata = Metadata()
    metadata.replay("TOPIC_RECORD", {"topicId": TOPIC, "name": "t"})
    metadata.replay(
        "PARTITION_RECORD", {"topicId": TOPIC, "partitionId": 0, "replicas": [1, 2], "directories": ["A", "B"]}
    )
    metadata.replay("PARTITION_CHANGE_RECORD", {"topicId": TOPIC, "partitionId": 0, "isr": [1]})
    metadata.replay("PARTITION_CHANGE_RECORD", {"topicId": TOPIC, "partitionId": 0, "directories": ["A", "C"]})
    assert metadata.replicas() == {(1, "t", 0): (TOPIC, "A"), (2, "t", 0): (TOPIC, "C")}
    metadata.replay("PARTITION_CHANGE_RECORD", {"topicId": TOPIC, "partitionId": 0, "replicas": [2]})
    assert metadata.replicas() == {(2, "t", 0): (TOPIC, "C")}
    metadata.replay("REMOVE_TOPIC_RECORD", {"topicId": TOPIC})
    assert metadata.replicas() == {}


@pytest.mark.parametrize("arguments", [["--parts", "tool"], ["--minutes", "-1"], ["--controller", "x"]])
def test_bad_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.arguments(arguments)
    assert ended.value.code == 2
    assert "real-brokers: error: " in capsys.readouterr().err

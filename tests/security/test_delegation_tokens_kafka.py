"""Delegation tokens with Kafka's own tool, through an unmodified broker on kjbod's controller: they are logins at the
broker, at the controller and at an agent, outlive a restart, and Kafka reads what is written of them."""

from pathlib import Path

import pytest

from scripts.brokers.peers import start
from scripts.brokers.tokens import TokenStory
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes, wait_until
from scripts.rig.secured import Secured
from tests.depth import only_deep

pytestmark = pytest.mark.usefixtures("kafka_kit")
PROTOCOL = "SASL_PLAINTEXT"
LINES = {"metadata.log.max.record.bytes.between.snapshots": 200}


def transcript(base: Path, kit: KafkaKit, *, kafka: bool) -> str:
    """What Kafka's tools say of tokens on this controller, whose directory is ``controller`` in ``base``."""
    base.mkdir()
    secured = Secured(base / "stores")
    with Processes(base / "logs") as processes, kit.one_java():
        cluster = start(base, processes, kit, secured, PROTOCOL, kafka=kafka, more=LINES)
        story = TokenStory(cluster, kit, secured, PROTOCOL)
        story.start()
        story.tell()
        story.tell_after_a_restart()
        wait_until(lambda: any(map(has_tokens, snapshots(base))), 60, "a snapshot with the tokens")
        cluster.stop()
    return story.transcript()


def snapshots(base: Path) -> list[Path]:
    """From the oldest on, without that of formatting."""
    return sorted((base / "controller" / "__cluster_metadata-0").glob("*[1-9]-*.checkpoint"))


def has_tokens(snapshot: Path) -> bool:
    return b"User:alice" in snapshot.read_bytes()


def test_tokens_that_kafkas_tool_makes_are_logins_everywhere_and_kafka_reads_them(
    tmp_path: Path, kafka_kit: KafkaKit
) -> None:
    told = transcript(tmp_path / "kjbod", kafka_kit, kafka=False)
    assert "ID-0 ID-2" in told  # of who describes
    assert told.count("DelegationTokenNotFoundException") == 2
    newest = next(each for each in reversed(snapshots(tmp_path / "kjbod")) if has_tokens(each))
    kept = [record["data"] for _, record in kafka_kit.metadata_records(newest) if "TOKEN" in record["type"]]
    assert "User:alice" in {record["owner"] for record in kept}
    listed = kafka_kit.look_into(newest, "ls", "/image/delegationToken").split()
    assert sorted(listed) == sorted(record["tokenId"] for record in kept)
    log = kafka_kit.metadata_records(*sorted(newest.parent.glob("*.log")))
    kinds = [record["type"] for _, record in log]
    assert kinds.count("REMOVE_DELEGATION_TOKEN_RECORD") == 1


@only_deep("Kafka's controller, broker and tools for a minute")
def test_kafkas_tools_say_the_same_of_tokens_on_both_controllers(tmp_path: Path, kafka_kit: KafkaKit) -> None:
    ours, kafkas = (transcript(tmp_path / str(kafka), kafka_kit, kafka=kafka) for kafka in (False, True))
    assert ours == kafkas

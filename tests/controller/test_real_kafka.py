"""Unmodified Apache Kafka 4.3.1 brokers live on the controller, with clients that write and read all the while.

The long form, with Kafka's own tools and its controller beside ours, is ``scripts/real-brokers``.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from scripts.brokers.agreement import disagreements
from scripts.brokers.cluster import RealCluster
from scripts.brokers.load import GroupReader, TransactionalWriter, Writer, read_all
from scripts.rig.kafka import KafkaKit

FAILING = (1, 3)
"""The third directory of broker 1 is on a real disk of its own."""


@pytest.fixture
def cluster(tmp_path: Path, kafka_kit: KafkaKit) -> Iterator[RealCluster]:
    with RealCluster(tmp_path / "cluster", kafka_kit, "kjbod", brokers=2, disks=[FAILING]) as made:
        made.start()
        yield made


def create(cluster: RealCluster, *names: str, partitions: int = 6) -> None:
    topics = [NewTopic(name, num_partitions=partitions, replication_factor=2) for name in names]
    for future in cluster.admin.create_topics(topics).values():
        future.result()
    cluster.wait_until_in_sync()


@pytest.mark.every_run
@pytest.mark.usefixtures("as_root")
@pytest.mark.usefixtures("kafka_kit")
@pytest.mark.timeout(600)
def test_no_acknowledged_record_is_lost_by_sigkill_of_the_controller_a_dead_disk_or_a_restart(
    cluster: RealCluster, kafka_kit: KafkaKit
) -> None:
    create(cluster, "plain", "transactional")
    writer = Writer(cluster.bootstrap, "plain")
    transactions = TransactionalWriter(cluster.bootstrap, "transactional")
    reader = GroupReader(cluster.bootstrap, ["plain", "transactional"], group="readers", name="reader")

    def go_on(records: int = 100) -> None:
        """Until clients have made progress again."""
        more, commits = len(writer.acknowledged) + records, transactions.commits + 3
        cluster.wait_for(f"{more} records", lambda: len(writer.acknowledged) >= more)
        cluster.wait_for(f"{commits} transactions", lambda: transactions.commits >= commits)

    with reader:
        with writer, transactions:
            go_on()

            cluster.kill_controller()
            go_on()  # brokers do without for a while
            cluster.start_controller()
            create(cluster, "later")

            cluster.break_disk(FAILING)
            cluster.wait_for("the replicas on the dead disk to leave the ISR", cluster.out_of_sync)
            go_on()
            leaders = [part.leader for part in cluster.partitions().values()]
            assert set(leaders) == {1, 2}, (
                "broker 1 goes on with its other directories, and every partition has a leader"
            )

            cluster.stop_broker(1)
            assert {part.leader for part in cluster.partitions().values()} == {2}
            cluster.mend_disk(FAILING)
            cluster.start_broker(1)
            assert cluster.controller is not None
            assert not cluster.controller.events("broker.refused")  # a shipped controller answers 101 for nine seconds
            cluster.wait_until_in_sync()
            go_on()
        acknowledged = writer.acknowledged | transactions.acknowledged
        cluster.wait_for("the group to have read all", lambda: acknowledged <= reader.seen)

    seen = read_all(cluster.bootstrap, ["plain", "transactional"])
    assert acknowledged <= set(seen)
    assert not transactions.aborted & set(seen)
    assert set(seen.values()) == {1}
    assert writer.failed == 0, writer.last_error

    cluster.stop()
    assert disagreements(cluster) == []
    log = cluster.controller_dir / "__cluster_metadata-0" / f"{0:020d}.log"
    read = {record["type"] for _, record in kafka_kit.metadata_records(log)}
    assert {"REGISTER_BROKER_RECORD", "PARTITION_RECORD", "PARTITION_CHANGE_RECORD", "NO_OP_RECORD"} <= read

"""Kafka's own dump tool and a real controller on the files that kjbod writes."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from kjbod.clock import SystemClock
from kjbod.ids import UNASSIGNED, Uuid, random_directory_id, random_uuid
from kjbod.metadata import versions
from kjbod.metadata.batches import encode_batch
from kjbod.metadata.checkpoint_files import checkpoints_in, read_checkpoint, write_checkpoint
from kjbod.metadata.control_records import ControlRecord, KRaftVersion, KRaftVoters, LeaderChange, LeaderChangeVoter
from kjbod.metadata.dump import record_json
from kjbod.metadata.fetching import Committed, Snapshot
from kjbod.metadata.follower import MetadataFollower
from kjbod.metadata.image import MetadataImage, Replayer, image_of
from kjbod.metadata.log import MetadataLog
from kjbod.metadata.log_files import DIRECTORY_NAME, open_log
from kjbod.metadata.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from kjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    Endpoint,
    FeatureLevelRecord,
    FeatureRange,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
    encode_record,
)
from kjbod.metadata.snapshot import SnapshotId
from scripts.rig.kafka import DUMP_LOG, RELEASE, KafkaKit, controller_properties
from scripts.rig.processes import Processes, free_port, wait_until

pytestmark = pytest.mark.usefixtures("kafka_kit")

NODE = 3000
CLUSTER = "kjbodMetadataLogTest00"
LEVEL = versions.release_level(RELEASE)


def story(rng: random.Random) -> list[list[Record]]:
    """The records of a small cluster's life, one list per batch."""
    dirs = tuple(sorted(random_directory_id(rng) for _ in range(3)))
    features = tuple(
        FeatureRange(name=name, min_supported_version=low, max_supported_version=high)
        for name, (low, high) in versions.SUPPORTED_FEATURES.items()
    )
    broker = RegisterBrokerRecord(
        broker_id=1,
        incarnation_id=random_uuid(rng),
        broker_epoch=9,
        end_points=(Endpoint(name="PLAINTEXT", host="127.0.0.1", port=9092),),
        features=features,
        log_dirs=dirs,
    )
    batches: list[list[Record]] = [
        [FeatureLevelRecord(name=n, feature_level=v) for n, v in versions.default_features(LEVEL).items()],
        [broker],
        [BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=9, fenced=-1)],
        [BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=9, cordoned_log_dirs=())],
    ]
    topic = random_uuid(rng)
    batches.append([TopicRecord(name="t", topic_id=topic), *(_partition(topic, number) for number in range(200))])
    batches += [
        [PartitionChangeRecord(partition_id=n, topic_id=topic, directories=(dirs[n % 3],)), NoOpRecord()]
        for n in range(200)
    ]
    batches.append([BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=9, log_dirs=dirs[1:])])
    return batches


def _partition(topic: Uuid, number: int) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=topic,
        replicas=(1,),
        isr=(1,),
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=(UNASSIGNED,),
    )


async def write_log(directory: Path, head: list[ControlRecord], batches: list[list[Record]]) -> MetadataImage:
    """Write a log of many segments; the image after it."""
    log = await MetadataLog.open(directory, segment_bytes=8_000)
    await log.append([encode_batch(head, 0, 1, 1_700_000_000_000, control=True)])
    replayer = Replayer()
    for records in batches:
        base = log.next_offset
        values = [encode_record(record, versions.record_version(record, LEVEL)) for record in records]
        await log.append([encode_batch(values, base, 1, 1_700_000_000_000 + base)])
        for offset, record in enumerate(records, start=base):
            replayer.replay(offset, 1, record)
    await log.close()
    return replayer.image


def expected(batches: list[list[Record]], base: int) -> list[tuple[int, dict[str, Any]]]:
    records = [record for batch in batches for record in batch]
    return [
        (offset, record_json(record, versions.record_version(record, LEVEL)))
        for offset, record in enumerate(records, start=base)
    ]


async def test_kafka_dump_log_reads_our_log_indexes_and_checkpoints(kafka_kit: KafkaKit, tmp_path: Path) -> None:
    directory = tmp_path / DIRECTORY_NAME
    voter = LeaderChangeVoter(voter_id=NODE)
    batches = story(random.Random(1))
    image = await write_log(
        directory, [LeaderChange(leader_id=NODE, voters=(voter,), granting_voters=(voter,))], batches
    )
    logs = sorted(directory.glob("*.log"))
    assert len(logs) > 3
    assert kafka_kit.metadata_records(*logs) == expected(batches, 1)

    indexes = [path for log in logs for path in (log.with_suffix(".index"), log.with_suffix(".timeindex"))]
    assert any(path.stat().st_size for path in indexes)
    dump = kafka_kit.run(DUMP_LOG, "--verify-index-only", "--files", ",".join(map(str, indexes)))
    assert "ismatch" not in dump.stdout + dump.stderr
    assert "not found" not in dump.stdout
    assert "out of order" not in dump.stdout

    checkpoint = directory / SnapshotId(image.offset + 1, 1).file_name
    records = list(image.to_records())
    write_checkpoint(checkpoint, header_timestamp_ms=1_700_000_000_000, kraft=None, records=records, leader_epoch=1)
    assert kafka_kit.metadata_records(checkpoint) == expected([records], 1)


async def follow(port: int, directory: Uuid, replica_id: int, offset: int) -> MetadataImage:
    """The image that an observer of the real controller has once it has applied ``offset``."""
    replayer, enough = Replayer(), asyncio.Event()

    def committed(batch: Committed) -> None:
        for at, record in batch.records:
            replayer.replay(at, batch.epoch, record)
        replayer.skip(batch.last_offset, batch.epoch)
        if replayer.image.offset > offset:
            enough.set()

    def snapshot(loaded: Snapshot) -> None:
        replayer.image = image_of(loaded.records, offset=loaded.id.end_offset - 1, epoch=loaded.id.epoch)

    follower = MetadataFollower(
        [("127.0.0.1", port)],
        client_id="1",
        clock=SystemClock(),
        rng=random.Random(1),
        on_committed=committed,
        on_snapshot=snapshot,
        cluster_id=CLUSTER,
        replica_id=replica_id,
        directory_id=directory,
    )
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        run = group.create_task(follower.run())
        await enough.wait()
        run.cancel()
    assert follower.leader is not None
    assert follower.leader.node_id == NODE
    return replayer.image


async def test_a_real_controller_goes_on_with_our_log_and_we_with_its(
    kafka_kit: KafkaKit, processes: Processes, tmp_path: Path
) -> None:
    data, port = tmp_path / "data", free_port()
    config = tmp_path / "controller.properties"
    snapshots = "metadata.log.max.record.bytes.between.snapshots=1\n"
    config.write_text(controller_properties(NODE, port, data) + snapshots)
    kafka_kit.format(config, CLUSTER, "--standalone")
    directory = data / DIRECTORY_NAME
    zero = read_checkpoint(checkpoints_in(directory)[SnapshotId(0, 0)])
    assert isinstance(zero.voters, KRaftVoters)
    voter = LeaderChangeVoter(voter_id=NODE)
    head: list[ControlRecord] = [
        LeaderChange(leader_id=NODE, voters=(voter,), granting_voters=(voter,)),
        KRaftVersion(k_raft_version=1),
        zero.voters,
    ]
    ours = await write_log(directory, head, story(random.Random(2)))
    write_quorum_state(directory, QuorumState(leader_id=NODE, leader_epoch=1))

    controller = kafka_kit.start_server(processes, config, name="controller")
    wait_until(lambda: max(checkpoints_in(directory)).end_offset > ours.offset, 30, "a snapshot of the real controller")
    for replica_id in (-1, 1):
        followed = await follow(port, zero.voters.voters[0].voter_directory_id, replica_id, ours.offset)
        assert followed.topics == ours.topics
        assert followed.brokers[1].log_dirs == ours.brokers[1].log_dirs
    controller.stop()

    assert (state := read_quorum_state(directory)) is not None
    assert state.leader_epoch >= 2
    snapshot = max(checkpoints_in(directory))
    image = MetadataImage()
    for record in read_checkpoint(checkpoints_in(directory)[snapshot]).records:
        image.replay(record)
    assert image.topics == ours.topics
    assert image.brokers[1].log_dirs == ours.brokers[1].log_dirs
    log = open_log(directory)
    assert log.torn is None
    assert log.epochs[0] == (1, 0)
    assert log.epochs[-1][0] >= 2
    log.close()

"""A snapshot's records with something of everything that metadata can have."""

from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    Endpoint,
    FeatureLevelRecord,
    FeatureRange,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntity,
    Record,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from kjbod.metadata.snapshot import encode_checkpoint

TOPIC_ID = Uuid.of(9, 9)
WALL_MS = 1_795_199_817_816


def _quota(key: str, limit: float, **entity: str | None) -> ClientQuotaRecord:
    parts = tuple(QuotaEntity(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in entity.items())
    return ClientQuotaRecord(entity=parts, key=key, value=limit, remove=False)


def rich_records() -> tuple[Record, ...]:
    """The records, in the order of a snapshot."""
    plain = Endpoint(name="PLAINTEXT", host="h1", port=9092, security_protocol=0)
    ssl = Endpoint(name="A_SSL", host="h1", port=9093, security_protocol=1)
    features = (
        FeatureRange(name="metadata.version", min_supported_version=7, max_supported_version=30),
        FeatureRange(name="group.version", min_supported_version=0, max_supported_version=1),
    )
    return (
        FeatureLevelRecord(name="metadata.version", feature_level=30),
        FeatureLevelRecord(name="group.version", feature_level=1),
        RegisterBrokerRecord(
            broker_id=1,
            incarnation_id=Uuid.of(1, 200),
            broker_epoch=7,
            end_points=(plain, ssl),
            features=features,
            rack="r1",
            fenced=False,
            in_controlled_shutdown=True,
            log_dirs=(Uuid.of(1, 201), Uuid.of(1, 202)),
            cordoned_log_dirs=(Uuid.of(1, 202),),
        ),
        RegisterBrokerRecord(
            broker_id=2,
            incarnation_id=Uuid.of(2, 200),
            broker_epoch=8,
            end_points=(plain,),
            features=features,
            fenced=True,
            log_dirs=(Uuid.of(2, 201),),
        ),
        RegisterControllerRecord(
            controller_id=3000,
            incarnation_id=Uuid.of(3, 200),
            zk_migration_ready=False,
            end_points=(plain,),
            features=features,
        ),
        TopicRecord(name="t", topic_id=TOPIC_ID),
        PartitionRecord(
            partition_id=0,
            topic_id=TOPIC_ID,
            replicas=(1, 2),
            isr=(),
            removing_replicas=(1,),
            adding_replicas=(2,),
            leader=-1,
            leader_epoch=3,
            partition_epoch=4,
            directories=(Uuid.of(1, 201), UNASSIGNED),
            leader_recovery_state=1,
            eligible_leader_replicas=(1,),
            last_known_elr=(2,),
        ),
        ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="5"),
        ConfigRecord(resource_type=4, resource_name="", name="min.insync.replicas", value="1"),
        ConfigRecord(resource_type=4, resource_name="1", name="log.cleaner.threads", value="2"),
        ConfigRecord(resource_type=16, resource_name="m", name="interval.ms", value="100"),
        ConfigRecord(resource_type=32, resource_name="g", name="consumer.session.timeout.ms", value="45000"),
        _quota("producer_byte_rate", 1.5e7, user="a(b)\\", client_id="c"),
        _quota("connection_creation_rate", 0.0001, ip="10.0.0.1"),
        _quota("request_percentage", 123_456_789.125, user="u2"),
        _quota("request_percentage", 1e20, user="u3"),
        _quota("request_percentage", 12.5, user="u4"),
        ProducerIdsRecord(broker_id=1, broker_epoch=7, next_producer_id=2000),
        AccessControlEntryRecord(
            id=Uuid.of(5, 5),
            resource_type=2,
            resource_name="t",
            pattern_type=4,
            principal="User:x",
            host="*",
            operation=3,
            permission_type=3,
        ),
        AccessControlEntryRecord(
            id=Uuid.of(5, 6),
            resource_type=5,
            resource_name="x",
            pattern_type=3,
            principal="User:y",
            host="1.2.3.4",
            operation=15,
            permission_type=2,
        ),
        UserScramCredentialRecord(
            name="u", mechanism=1, salt=b"\x01\xff", stored_key=b"ab", server_key=b"cd", iterations=4096
        ),
        DelegationTokenRecord(
            owner="User:o",
            requester="User:r",
            renewers=("User:a", "User:b"),
            issue_timestamp=1,
            max_timestamp=2,
            expiration_timestamp=3,
            token_id="tok",
        ),
    )


def rich_checkpoint() -> bytes:
    """A snapshot of them."""
    return encode_checkpoint(header_timestamp_ms=WALL_MS, kraft=(1, None), records=rich_records(), leader_epoch=2)

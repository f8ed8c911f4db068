"""What administrators ask of a controller: ours, under Kafka's rules, answers and writes as a real one of 4.3.1."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kjbod.ids import METADATA_TOPIC_NAME, ZERO, Uuid
from kjbod.metadata.acls import ALLOW, ANY, DENY, LITERAL, MATCH, PREFIXED, STANDARD_AUTHORIZER, Operation, ResourceType
from kjbod.wire.admin_messages import (
    AddRaftVoterRequest,
    AddRaftVoterRequestListener,
    BeginQuorumEpochRequest,
    BeginQuorumEpochRequestPartition,
    BeginQuorumEpochRequestTopic,
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    EndQuorumEpochRequest,
    EndQuorumEpochRequestPartition,
    EndQuorumEpochRequestTopic,
    ExpireDelegationTokenRequest,
    RemoveRaftVoterRequest,
    RenewDelegationTokenRequest,
    UpdateRaftVoterRequest,
    UpdateRaftVoterRequestKRaftVersionFeature,
    UpdateRaftVoterRequestListener,
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import decode_response, encode_request
from kjbod.wire.messages import (
    API,
    DescribeClusterRequest,
    EnvelopeRequest,
    ListPartitionReassignmentsRequest,
    RequestBody,
)
from kjbod.wire.principals import ForwardedPrincipal, encode_principal
from scripts.rig.cluster import Cluster
from scripts.rig.kafka import ACLS, CONFIGS, KafkaKit
from scripts.rig.processes import Processes, free_port, wait_until
from tests.controller.pair import Difference, Pair, View
from tests.controller.random_requests import Step, producer_ids, quota, register, scram, unscram
from tests.controller.test_acls import CLUSTER_REQUESTS, acl, wanted
from tests.controller.test_differential import CLUSTER_ID, NODE_ID, both

LOCALHOST = bytes((127, 0, 0, 1))
FOREIGN = Uuid.of(77, 77)
LIST_NONE = ListPartitionReassignmentsRequest(timeout_ms=1_000, topics=None)


def _same(request: Any, view: View) -> Any:
    return request


def steps(prefix: str, *requests: Any) -> list[Step]:
    """Requests that are the same for both, or made for each."""
    return [
        (f"{prefix} {number}", request if callable(request) else partial(_same, request))
        for number, request in enumerate(requests)
    ]


def behind(request: RequestBody[Any] | bytes, principal: str | bytes | None = "User:alice", **fields: Any) -> Any:
    """A client's request, as a broker forwards it."""
    if not isinstance(request, bytes):
        request = encode_request(request, API[request.API_KEY].max_version, 5, "client")[4:]
    who = encode_principal(ForwardedPrincipal.of(principal)) if isinstance(principal, str) else principal
    return EnvelopeRequest(
        **({"request_data": request, "request_principal": who, "client_host_address": LOCALHOST} | fields)
    )


def vote(epoch: int, replica: int = 8, topic: str = METADATA_TOPIC_NAME, **fields: Any) -> VoteRequest:
    given: dict[str, Any] = {"last_offset_epoch": 0, "last_offset": 0} | fields
    outer = {name: given.pop(name) for name in ("cluster_id", "voter_id") if name in given}
    partition = VoteRequestPartition(partition_index=0, replica_epoch=epoch, replica_id=replica, **given)
    return VoteRequest(topics=(VoteRequestTopic(topic_name=topic, partitions=(partition,)),), **outer)


def begin(leader: int, epoch: int, **fields: Any) -> BeginQuorumEpochRequest:
    partition = BeginQuorumEpochRequestPartition(partition_index=0, leader_id=leader, leader_epoch=epoch)
    topic = BeginQuorumEpochRequestTopic(topic_name=METADATA_TOPIC_NAME, partitions=(partition,))
    return BeginQuorumEpochRequest(topics=(topic,), **fields)


def end(leader: int, epoch: int) -> EndQuorumEpochRequest:
    partition = EndQuorumEpochRequestPartition(partition_index=0, leader_id=leader, leader_epoch=epoch)
    return EndQuorumEpochRequest(
        topics=(EndQuorumEpochRequestTopic(topic_name=METADATA_TOPIC_NAME, partitions=(partition,)),)
    )


def add(voter: int, directory: Uuid = FOREIGN, listener: str = "CONTROLLER", **fields: Any) -> AddRaftVoterRequest:
    where = AddRaftVoterRequestListener(name=listener, host="127.0.0.1", port=1)
    return AddRaftVoterRequest(
        timeout_ms=1_000, voter_id=voter, voter_directory_id=directory, listeners=(where,), **fields
    )


def update_voter(voter: int, epoch: int, *, high: int = 1, **fields: Any) -> UpdateRaftVoterRequest:
    where = UpdateRaftVoterRequestListener(name="CONTROLLER", host="127.0.0.1", port=1)
    return UpdateRaftVoterRequest(
        current_leader_epoch=epoch,
        voter_id=voter,
        voter_directory_id=FOREIGN,
        listeners=(where,),
        k_raft_version_feature=UpdateRaftVoterRequestKRaftVersionFeature(max_supported_version=high),
        **fields,
    )


VOTERS = (
    vote(0),
    vote(1),
    vote(1, pre_vote=True),
    vote(1, -1),
    vote(1, topic="other"),
    vote(1, last_offset=-1),
    vote(1, last_offset_epoch=1),
    vote(1, last_offset_epoch=1, pre_vote=True),
    vote(1, last_offset_epoch=2, pre_vote=True),
    vote(1, cluster_id="another"),
    vote(1, voter_id=7),
    vote(1, voter_id=NODE_ID),
    vote(1, voter_id=NODE_ID, voter_directory_id=FOREIGN),
    VoteRequest(),
    begin(NODE_ID, 0),
    begin(NODE_ID, 1),
    begin(-1, 1),
    begin(NODE_ID, 1, voter_id=7),
    begin(NODE_ID, 1, cluster_id="another"),
    end(NODE_ID, 0),
    end(NODE_ID, 1),
    end(-1, 1),
    add(8, ZERO),
    add(-1),
    add(8, listener="OTHER"),
    add(8, cluster_id="another"),
    RemoveRaftVoterRequest(voter_id=8, voter_directory_id=ZERO),
    RemoveRaftVoterRequest(voter_id=-1, voter_directory_id=FOREIGN),
    RemoveRaftVoterRequest(cluster_id="another", voter_id=8, voter_directory_id=FOREIGN),
    update_voter(8, 0),
    update_voter(8, 1),
    update_voter(8, 2),
    update_voter(8, 1, high=0),
    update_voter(8, 1, high=-1),
    update_voter(8, 1, cluster_id="another"),
)
ENVELOPES = (
    behind(LIST_NONE),
    behind(LIST_NONE, None),
    behind(LIST_NONE, b"\0"),
    behind(LIST_NONE, b"\0\1\1\1\0\0"),
    behind(LIST_NONE, client_host_address=b"\1\2\3"),
    behind(LIST_NONE, client_host_address=bytes(16)),
    behind(behind(LIST_NONE)),
    behind(b"\0\x3f" + bytes(30)),
    behind(b"\0\0" + bytes(30)),
    behind(b"\x03\xe7" + bytes(30)),
    behind(b"\0\x2e\0\x63" + bytes(30)),
    behind(b""),
)
QUOTAS = (
    quota((("user", "u"),), "producer_byte_rate", 1024.0),
    quota((("user", "u"),), "producer_byte_rate", 1024.0),
    quota((("user", "u"), ("client-id", None)), "request_percentage", 0.25),
    quota((("user", None),), "controller_mutation_rate", 5.0),
    quota((("ip", "10.0.0.1"),), "connection_creation_rate", 10.0),
    quota((("ip", None),), "connection_creation_rate", 10.5),
    quota((("ip", "10.0.0.1"), ("user", "u")), "connection_creation_rate", 10.0),
    quota((("ip", "10.0.0.1"),), "producer_byte_rate", 10.0),
    quota((("ip", "not an address"),), "connection_creation_rate", 10.0),
    quota((("user", "u"),), "connection_creation_rate", 10.0),
    quota((("user", "u"),), "producer_byte_rate", 0.0),
    quota((("user", "u"),), "producer_byte_rate", -1.0),
    quota((("user", "u"),), "producer_byte_rate", 1.5),
    quota((("user", "u"),), "producer_byte_rate", 1e30),
    quota((("user", "u"),), "consumer_byte_rate", 2.0**63),
    quota((("user", "u"),), "consumer_byte_rate", 5.0000001),
    quota((("ip", None),), "connection_creation_rate", 2.0**31),
    quota((("user", ""),), "producer_byte_rate", 1.0),
    quota((("group", "g"),), "producer_byte_rate", 1.0),
    quota((), "producer_byte_rate", 1.0),
    quota((("user", "u"),), "request_percentage", float("inf")),
    quota((("user", "u"),), "request_percentage", float("nan")),
    quota((("ip", None),), "connection_creation_rate", float("nan")),
    quota((("user", "u"),), "producer_byte_rate", 0.0, remove=True),
    quota((("user", "u"),), "producer_byte_rate", 0.0, remove=True),
)
CREDENTIALS = (
    scram("u", 1, 4096),
    scram("u", 2, 16384),
    scram("u", 1, 4095),
    scram("u", 1, 16385),
    scram("u", 3, 4096),
    scram("", 1, 4096),
    unscram("u", 1),
    unscram("u", 1),
    unscram("v", 0),
    producer_ids(1),
    producer_ids(1, 5),
    producer_ids(9),
)
TOKENS: tuple[RequestBody[Any], ...] = (
    CreateDelegationTokenRequest(max_lifetime_ms=-1),
    RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=1),
    ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=1),
)
SMALL = (
    DescribeClusterRequest(),
    DescribeClusterRequest(endpoint_type=3),
    DescribeClusterRequest(endpoint_type=2, include_cluster_authorized_operations=True),
    DescribeClusterRequest(endpoint_type=2, include_fenced_brokers=True),
)
ENTRIES = (
    acl(),
    acl(),
    acl(Operation.WRITE),
    acl(name="t", resource_pattern_type=PREFIXED),
    acl(name="*"),
    acl(name="cidr", host="10.0.0.0/8"),
    acl(name="cidr", host=""),
    acl(Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster", permission_type=DENY),
    acl(kind=ResourceType.USER, name="User:u"),
    acl(15, kind=ResourceType.TRANSACTIONAL_ID, name="x"),
    acl(kind=ANY),
    acl(kind=ResourceType.CLUSTER, name="t"),
    acl(resource_pattern_type=MATCH),
    acl(ANY),
    acl(permission_type=ANY),
    acl(name=""),
    acl(principal="alice"),
    acl(kind=99),
    acl(16),
    acl(permission_type=9),
    acl(resource_pattern_type=9),
)
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"resource_type_filter": ResourceType.TOPIC, "resource_name_filter": "tea", "pattern_type_filter": MATCH},
    {"resource_type_filter": ResourceType.TOPIC, "resource_name_filter": "t", "pattern_type_filter": LITERAL},
    {"resource_name_filter": "t", "pattern_type_filter": PREFIXED},
    {"resource_name_filter": "*", "pattern_type_filter": MATCH},
    {"principal_filter": "User:alice", "host_filter": "*", "operation": Operation.READ, "permission_type": ALLOW},
    {"permission_type": DENY},
    {"principal_filter": "User:bob"},
)


def describe(fields: dict[str, Any]) -> DescribeAclsRequest:
    return DescribeAclsRequest(**{name: getattr(wanted(**fields), name) for name in type(wanted()).__struct_fields__})


@pytest.mark.usefixtures("newest_kit")
async def test_what_administrators_ask_is_answered_and_written_as_by_kafka(
    tmp_path: Path, processes: Processes, newest_kit: KafkaKit
) -> None:
    async with both(newest_kit, processes, tmp_path / "open") as pair:
        story = [
            *steps("register", register(1, CLUSTER_ID)),
            *steps("voters", *VOTERS),
            *steps("envelope", *ENVELOPES),
            *steps("quota", *QUOTAS),
            *steps("credential", *CREDENTIALS),
            *steps("token", *TOKENS, *map(behind, TOKENS)),
            *steps("cluster", *SMALL),
            *steps("without an authorizer", CreateAclsRequest(creations=(acl(),)), describe({})),
            *steps("without an authorizer", DeleteAclsRequest(filters=(wanted(),))),
        ]
        found = await tell(pair, story)
    assert not found, "\n\n".join(difference.describe() for difference in found)


async def tell(pair: Pair, story: list[Step]) -> list[Difference]:
    """All differences. UNKNOWN_SERVER_ERROR is an answer here: a real controller gives it and goes on."""
    found = []
    for name, make in story:
        real, ours = await pair.real.ask(make), await pair.ours.ask(make)
        if real.as_json() != ours.as_json():
            found.append(Difference(name, real, ours))
    return found


def without_words(difference: Difference, request: RequestBody[Any]) -> list[str]:
    """The two forwarded answers, without their error messages: Kafka's tells a refused client what it knows of the
    connection of the broker that forwards."""
    version = API[request.API_KEY].max_version
    told = []
    for outcome in (difference.real, difference.ours):
        data = bytes.fromhex(outcome.answer["response_data"])
        answer = str(decode_response(data, request.API_KEY, version).message)
        told.append(re.sub(r"error_message='[^']*'|error_message=\"[^\"]*\"", "", answer) + str(outcome.records))
    return told


@pytest.mark.usefixtures("newest_kit")
async def test_access_is_kept_and_decided_as_by_kafka(
    tmp_path: Path, processes: Processes, newest_kit: KafkaKit
) -> None:
    extra = f"authorizer.class.name={STANDARD_AUTHORIZER}\nsuper.users=User:ANONYMOUS\n"
    some = acl(Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster")
    requests: list[RequestBody[Any]] = [request for request, _ in CLUSTER_REQUESTS]
    async with both(newest_kit, processes, tmp_path / "guarded", extra=extra) as pair:
        story = [
            *steps("register", register(1, CLUSTER_ID)),
            *steps("create", *(CreateAclsRequest(creations=(each,)) for each in ENTRIES)),
            *steps("create again", CreateAclsRequest(creations=ENTRIES), CreateAclsRequest(creations=ENTRIES[:8])),
            *steps("describe", *map(describe, FILTERS)),
            *steps("allow", CreateAclsRequest(creations=(some,))),
            *steps("delete", *(DeleteAclsRequest(filters=(wanted(**fields),)) for fields in reversed(FILTERS))),
        ]
        found = await tell(pair, story)
        for principal in ("User:alice", "User:bob"):
            for request in (*requests, *TOKENS):
                name = f"{type(request).__name__} of {principal}"
                for difference in await tell(pair, steps(name, behind(request, principal))):
                    real, ours = without_words(difference, request)
                    assert ours == real, name
    assert not found, "\n\n".join(difference.describe() for difference in found)


class Site:
    """Our controller with an authorizer, and one real broker with a listener where clients have names."""

    def __init__(self, path: Path, processes: Processes, kit: KafkaKit) -> None:
        self._kit = kit
        self.port, self.named_port = free_port(), free_port()
        access = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
        cluster = Cluster(path, processes, properties=access)
        cluster.format_controller()
        cluster.start_controller()
        named = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},NAMED://127.0.0.1:{self.named_port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,NAMED:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.named.scram-sha-256.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
        }
        broker = cluster.configure_broker(1, [path / "d1", path / "d2"], {**named, **access}, port=self.port)
        cluster.format_broker(broker)
        kit.start_server(processes, broker, name="broker")

    def tool(self, name: str, *arguments: str) -> str:
        """One of Kafka's command line tools, as the super user."""
        return self._kit.run(name, "--bootstrap-server", f"127.0.0.1:{self.port}", *arguments).stdout

    def alice(self, **config: Any) -> dict[str, Any]:
        """The configuration of a client that is alice."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self.named_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": "secret",
            **config,
        }


def create_topic(admin: AdminClient, name: str) -> int:
    """Its error code."""
    future = admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name]
    error = future.exception(timeout=20)
    return error.args[0].code() if isinstance(error, KafkaException) else 0


@pytest.mark.usefixtures("kafka_kit")
def test_users_of_real_brokers_have_passwords_quotas_and_rights(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    site = Site(tmp_path, processes, kafka_kit)
    alice = ("--entity-type", "users", "--entity-name", "alice")
    for config in ("SCRAM-SHA-256=[password=secret]", "producer_byte_rate=9000000"):
        site.tool(CONFIGS, "--alter", *alice, "--add-config", config)
    # What the controller has answered to is told by the broker when it has fetched it, a moment later.
    known = ("producer_byte_rate=9000000.0", "SCRAM-SHA-256=iterations=4096")
    wait_until(lambda: all(map(site.tool(CONFIGS, "--describe", *alice).__contains__, known)), 20, "the user")

    admin = AdminClient(site.alice())
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert create_topic(admin, "mine") == refused
    rights = ("--allow-principal", "User:alice", "--operation", "All", "--resource-pattern-type", "prefixed")
    site.tool(ACLS, "--add", *rights, "--topic", "mine", "--transactional-id", "mine")
    wait_until(lambda: "mine" in site.tool(ACLS, "--list", "--principal", "User:alice"), 20, "the rights")
    assert create_topic(admin, "mine") == 0
    assert create_topic(admin, "other") == refused

    idempotent = Producer(site.alice(**{"enable.idempotence": True}))
    idempotent.produce("mine", b"idempotent")
    assert idempotent.flush(20) == 0
    transactional = Producer(site.alice(**{"transactional.id": "mine-1"}))
    transactional.init_transactions(30)
    transactional.begin_transaction()
    transactional.produce("mine", b"transactional")
    transactional.commit_transaction(20)

    site.tool(ACLS, "--remove", "--force", *rights, "--topic", "mine")
    error = admin.delete_topics(["mine"])["mine"].exception(timeout=20)
    assert isinstance(error, KafkaException)
    assert error.args[0].code() == refused
    site.tool(CONFIGS, "--alter", *alice, "--delete-config", "SCRAM-SHA-256")
    wait_until(lambda: "SCRAM" not in site.tool(CONFIGS, "--describe", *alice), 20, "the password to be gone")

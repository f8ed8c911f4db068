"""The listener on a real socket: who may do what, what the controller carries out, and what hostile bytes can do."""

import asyncio
import random
import signal
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import Struct, structs

from kjbod.clock import SystemClock
from kjbod.config import Config, load_config
from kjbod.ids import Uuid
from kjbod.metadata.acls import STANDARD_AUTHORIZER, Operation, ResourceType
from kjbod.metadata.fetching import Leader
from kjbod.metadata.image import BROKER, TOPIC, MetadataImage, image_of
from kjbod.metadata.records import (
    AccessControlEntryRecord,
    Endpoint,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
)
from kjbod.security.certificates import Certificates
from kjbod.wire.admin_messages import (
    AddRaftVoterRequest,
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntity,
    AlterClientQuotasRequestEntry,
    AlterClientQuotasRequestOp,
    AlterConfigsRequest,
    AlterConfigsRequestResource,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestScramCredentialDeletion,
    CreateAclsRequest,
    CreateAclsRequestAclCreation,
    CreateDelegationTokenRequest,
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
    DeleteAclsRequest,
    DeleteAclsRequestFilter,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartition,
    ExpireDelegationTokenRequest,
    ListConfigResourcesRequest,
    RemoveRaftVoterRequest,
    RenewDelegationTokenRequest,
    UnregisterControllerRequest,
    UpdateFeaturesRequest,
)
from kjbod.wire.client import Connection
from kjbod.wire.connection import api_versions_response
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import Request, VersionRanges, decode_request, encode_request, encode_response
from kjbod.wire.messages import (
    API,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsRequestDir,
    AlterReplicaLogDirsRequestTopic,
    ApiKey,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
    CreateTopicsResponseTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DeleteTopicsResponse,
    DeleteTopicsResponseTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeQuorumRequest,
    EnvelopeRequest,
    EnvelopeResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    RequestBody,
    ResponseBody,
    UnregisterBrokerRequest,
)
from kjbod.wire.principals import decode_host, decode_principal
from kjbod.wire.server import Peer, serve
from kjbod_agent.admin.forwarding import BY_THE_CONTROLLER, CLUSTER_OPERATIONS, Forwarder
from kjbod_agent.admin.listener import SERVED, ListenerError, Listeners, Parts, listener_problems
from kjbod_agent.admin.view import DirectoryView, Wants
from kjbod_host.channel import ControllerChannel
from scripts.rig.kafka import broker_properties
from scripts.rig.processes import Processes, free_port
from tests.agent.daemon_cluster import Cluster, wait_assigned
from tests.depth import examples, seeds
from tests.wire.composer import Composer

EVENTS = Uuid.of(7, 1)
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
CLUSTER, TOPIC_RESOURCE = ResourceType.CLUSTER, ResourceType.TOPIC
ANONYMOUS = "User:ANONYMOUS"
NONE, TOPIC_DENIED, CLUSTER_DENIED = 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class Lines:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def _keep(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    info = warning = exception = _keep


@dataclass
class FakeController:
    """Answers what it is told to, and keeps what it was asked."""

    asked: list[Request] = field(default_factory=list)
    answers: list[ResponseBody | Exception | None] = field(default_factory=list)
    apis: VersionRanges = field(default_factory=lambda: {key: _versions(key) for key in (*SERVED, ApiKey.ENVELOPE)})
    senders: list[tuple[str, str]] = field(default_factory=list)
    """Principals and addresses of what was forwarded."""
    by_token: list[bool] = field(default_factory=list)
    """Whether these had shown a token."""
    envelope_error: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: Request, peer: Peer) -> ResponseBody | None:
        if request.api_key is ApiKey.API_VERSIONS:
            return api_versions_response(request, self.apis)
        if isinstance(request.message, EnvelopeRequest):
            return await self._open(request.message)
        self.asked.append(request)
        self.reached.set()
        answer = self.answers.pop(0) if self.answers else _plain(request.message)
        if isinstance(answer, Exception):
            await asyncio.Event().wait()
        return cast("ResponseBody | None", answer)

    async def _open(self, envelope: EnvelopeRequest) -> ResponseBody | None:
        """What is forwarded, as if its sender had sent it."""
        if self.envelope_error:
            return EnvelopeResponse(error_code=self.envelope_error)
        principal = decode_principal(envelope.request_principal)
        self.senders.append((str(principal), decode_host(envelope.client_host_address)))
        self.by_token.append(principal.token_authenticated)
        inner = decode_request(envelope.request_data, self.apis)
        answer = await self.answer(inner, Peer("127.0.0.1", 0))
        if answer is None:
            return None
        return EnvelopeResponse(response_data=encode_response(answer, inner.version, inner.correlation_id)[4:])


def _versions(key: ApiKey) -> tuple[int, int]:
    return API[key].min_version, API[key].max_version


def _plain(message: RequestBody[Any]) -> ResponseBody:
    """A controller that agrees to everything."""
    match message:
        case CreateTopicsRequest():
            return CreateTopicsResponse(topics=tuple(CreateTopicsResponseTopic(name=t.name) for t in message.topics))
        case DeleteTopicsRequest():
            names = [t.name for t in message.topics] + list(message.topic_names)
            return DeleteTopicsResponse(responses=tuple(DeleteTopicsResponseTopic(name=name) for name in names))
        case IncrementalAlterConfigsRequest():
            return IncrementalAlterConfigsResponse(
                responses=tuple(
                    IncrementalAlterConfigsResponseResource(
                        resource_type=each.resource_type, resource_name=each.resource_name
                    )
                    for each in message.resources
                )
            )
        case AlterPartitionReassignmentsRequest():
            return AlterPartitionReassignmentsResponse()
    return API[message.API_KEY].response()


class FakeAgent:
    """What the listener needs of an agent: metadata, directories, a mover, a controller."""

    def __init__(self, config: Config, *acls: AccessControlEntryRecord) -> None:
        self.config = config
        self.image = metadata(*acls)
        self.kraft_version = 1
        self.caught_up = asyncio.Event()
        self.caught_up.set()
        self.alters: list[tuple[str, int, str]] = []
        self.controller = FakeController()
        self.log = Lines()
        self.directories_seen: tuple[DirectoryView, ...] = ()

    def alter(self, topic: str, partition: int, path: str) -> ErrorCode:
        self.alters.append((topic, partition, path))
        return ErrorCode.LOG_DIR_NOT_FOUND if path == "/nowhere" else ErrorCode.NONE

    async def directories(self, wants: Wants | None = None) -> tuple[DirectoryView, ...]:
        return self.directories_seen

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Listeners]:
        clock = SystemClock()
        async with asyncio.TaskGroup() as tasks:
            controller = await serve(
                "127.0.0.1", 0, self.controller.answer, apis=self.controller.apis, clock=clock, log=self.log
            )
            channel = ControllerChannel(client_id="1", clock=clock, spawn=tasks.create_task)
            channel.set_leader(Leader(3000, 1, "127.0.0.1", controller.port))
            parts = Parts(
                broker=self,
                view=cast(Any, self),
                mover=lambda: self,
                forwarder=Forwarder(channel, clock),
                cluster_id=CLUSTER_ID,
                log_dirs=lambda: self.config.log_dirs,
            )
            listeners = Listeners(self.config, parts, Certificates(), clock=clock, log=self.log)
            try:
                await listeners.open()
                yield listeners
            finally:
                await listeners.close()
                channel.forget()
                await controller.close()

    async def connect(self) -> Connection:
        port = self.config.listeners[0].port
        return await Connection.open("127.0.0.1", port, client_id="t", clock=SystemClock())

    async def ask(self, request: RequestBody[Any], version: int | None = None) -> Any:
        async with await self.connect() as connection:
            return await connection.request(request, timeout_ms=20_000, version=version)


def metadata(*acls: AccessControlEntryRecord) -> MetadataImage:
    records: list[Record] = [
        RegisterBrokerRecord(
            broker_id=1, incarnation_id=EVENTS, broker_epoch=1, features=(), fenced=False,
            end_points=(
                Endpoint(name="PLAINTEXT", host="127.0.0.1", port=1234),
                Endpoint(name="INSIDE", host="10.0.0.1", port=4321),
            ),
        ),
        TopicRecord(name="events", topic_id=EVENTS),
        PartitionRecord(partition_id=0, topic_id=EVENTS, replicas=(1,), isr=(1,), leader=1),
    ]  # fmt: skip
    return image_of([*records, *acls], offset=10)


def acl(
    operation: Operation, kind: ResourceType = CLUSTER, name: str = "kafka-cluster", permission: int = 3
) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=Uuid.of(kind, operation), resource_type=kind, resource_name=name, pattern_type=3, principal=ANONYMOUS,
        host="*", operation=operation, permission_type=permission,
    )  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Config]:
    def make(**settings: object) -> Config:
        text = broker_properties(1, free_port(), free_port(), [tmp_path / "d1", tmp_path / "d2"])
        path = tmp_path / "server.properties"
        path.write_text(text + "".join(f"{key.replace('_', '.')}={value}\n" for key, value in settings.items()))
        return load_config(path)

    return make


Story = Callable[[FakeAgent], Awaitable[None]]


def told(config: Config, story: Story, *acls: AccessControlEntryRecord) -> None:
    async def main() -> None:
        agent = FakeAgent(config, *acls)
        async with agent.serving():
            await story(agent)

    asyncio.run(main())


def create(*names: str) -> CreateTopicsRequest:
    topics = tuple(CreateTopicsRequestTopic(name=n, num_partitions=1, replication_factor=1) for n in names)
    return CreateTopicsRequest(topics=topics, timeout_ms=5_000)


def move(*places: tuple[str, str, int]) -> AlterReplicaLogDirsRequest:
    return AlterReplicaLogDirsRequest(
        dirs=tuple(
            AlterReplicaLogDirsRequestDir(
                path=path, topics=(AlterReplicaLogDirsRequestTopic(name=topic, partitions=(partition,)),)
            )
            for path, topic, partition in places
        )
    )


def alter_config(*resources: tuple[int, str]) -> IncrementalAlterConfigsRequest:
    change = IncrementalAlterConfigsRequestConfig(name="retention.ms", value="5")
    return IncrementalAlterConfigsRequest(
        resources=tuple(
            IncrementalAlterConfigsRequestResource(resource_type=kind, resource_name=name, configs=(change,))
            for kind, name in resources
        )
    )


# ---------------------------------------------------------------- authorization


def strict(config: Callable[..., Config], **settings: object) -> Config:
    return config(authorizer_class_name=STANDARD_AUTHORIZER, **settings)


def test_without_rights_on_the_cluster_directories_are_not_told_and_replicas_not_moved(
    config: Callable[..., Config],
) -> None:
    async def story(agent: FakeAgent) -> None:
        described = await agent.ask(DescribeLogDirsRequest())
        assert (described.error_code, described.results) == (CLUSTER_DENIED, ())
        assert (await agent.ask(DescribeLogDirsRequest(), 2)).results == ()
        moved = await agent.ask(move(("/d1", "events", 0), ("/d1", "events", 1)))
        assert [p.error_code for p in moved.results[0].partitions] == [CLUSTER_DENIED] * 2
        assert agent.alters == []
        for request in (AlterPartitionReassignmentsRequest(), ListPartitionReassignmentsRequest()):
            assert (await agent.ask(request)).error_code == CLUSTER_DENIED
        changed = await agent.ask(alter_config((BROKER, "1"), (TOPIC, "events"), (32, "g")))
        assert [each.error_code for each in changed.responses] == [
            CLUSTER_DENIED, TOPIC_DENIED, ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ]  # fmt: skip
        assert [t.error_code for t in (await agent.ask(create("a"))).topics] == [TOPIC_DENIED]
        assert agent.controller.asked == []
        assert (await agent.ask(MetadataRequest(topics=None))).topics == ()

    told(strict(config), story)


def test_rights_on_the_cluster_open_what_they_are_for(config: Callable[..., Config]) -> None:
    async def story(agent: FakeAgent) -> None:
        assert (await agent.ask(DescribeLogDirsRequest())).error_code == NONE
        assert (await agent.ask(move(("/d1", "events", 0)))).results[0].partitions[0].error_code == NONE
        assert (await agent.ask(ListPartitionReassignmentsRequest())).error_code == NONE
        assert [t.error_code for t in (await agent.ask(create("a"))).topics] == [TOPIC_DENIED]

    told(strict(config), story, acl(Operation.ALTER))


def test_super_users_and_openness_are_as_configured(config: Callable[..., Config]) -> None:
    async def story(agent: FakeAgent) -> None:
        assert (await agent.ask(DescribeLogDirsRequest())).error_code == NONE

    told(strict(config, super_users=f"User:admin;{ANONYMOUS}"), story, acl(Operation.ALL, permission=2))
    told(strict(config, allow_everyone_if_no_acl_found="true"), story)


def test_of_a_request_for_many_topics_what_is_allowed_is_done_and_the_rest_refused(
    config: Callable[..., Config],
) -> None:
    rights = (
        acl(Operation.CREATE, TOPIC_RESOURCE, "mine"),
        acl(Operation.DESCRIBE_CONFIGS, TOPIC_RESOURCE, "mine"),
        acl(Operation.DELETE, TOPIC_RESOURCE, "events"),
        acl(Operation.ALTER_CONFIGS, TOPIC_RESOURCE, "events"),
    )

    async def story(agent: FakeAgent) -> None:
        made = await agent.ask(create("mine", "theirs"))
        assert {t.name: t.error_code for t in made.topics} == {"mine": NONE, "theirs": TOPIC_DENIED}
        (sent,) = agent.controller.asked
        assert [t.name for t in cast(CreateTopicsRequest, sent.message).topics] == ["mine"]
        wanted = (DeleteTopicsRequestTopic(topic_id=EVENTS), DeleteTopicsRequestTopic(name="theirs"))
        gone = await agent.ask(DeleteTopicsRequest(topics=wanted, timeout_ms=5_000))
        assert [t.error_code for t in gone.responses] == [NONE, TOPIC_DENIED]
        changed = await agent.ask(alter_config((TOPIC, "theirs"), (TOPIC, "events"), (BROKER, "")))
        assert {(r.resource_type, r.resource_name): r.error_code for r in changed.responses} == {
            (TOPIC, "events"): NONE, (TOPIC, "theirs"): TOPIC_DENIED, (BROKER, ""): CLUSTER_DENIED,
        }  # fmt: skip

    told(strict(config), story, *rights)


def test_who_may_delete_in_the_whole_cluster_may_delete_any_topic(config: Callable[..., Config]) -> None:
    async def story(agent: FakeAgent) -> None:
        gone = await agent.ask(
            DeleteTopicsRequest(topics=(DeleteTopicsRequestTopic(topic_id=EVENTS),), timeout_ms=5_000)
        )
        assert [topic.error_code for topic in gone.responses] == [NONE]

    told(strict(config), story, acl(Operation.DELETE))


def test_the_configuration_of_a_new_topic_is_for_those_who_may_describe_it(config: Callable[..., Config]) -> None:
    async def story(agent: FakeAgent) -> None:
        made = CreateTopicsResponseTopic(name="mine", num_partitions=4, replication_factor=2)
        agent.controller.answers = [CreateTopicsResponse(topics=(made,))]
        (told,) = (await agent.ask(create("mine"))).topics
        assert (told.error_code, told.num_partitions, told.topic_config_error_code) == (NONE, -1, TOPIC_DENIED)

    told(strict(config), story, acl(Operation.CREATE, TOPIC_RESOURCE, "mine"))


SAMPLES: tuple[RequestBody[Any], ...] = (
    ElectLeadersRequest(
        election_type=0, topic_partitions=(ElectLeadersRequestTopicPartition(topic="events", partitions=(0,)),)
    ),
    UnregisterBrokerRequest(broker_id=7),
    UnregisterControllerRequest(controller_id=7),
    UpdateFeaturesRequest(),
    DescribeQuorumRequest(),
    AddRaftVoterRequest(cluster_id=None, timeout_ms=1_000, voter_id=7, voter_directory_id=EVENTS, listeners=()),
    RemoveRaftVoterRequest(cluster_id=None, voter_id=7, voter_directory_id=EVENTS),
    CreateAclsRequest(
        creations=(
            CreateAclsRequestAclCreation(
                resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
            ),
        )
    ),
    DeleteAclsRequest(filters=(DeleteAclsRequestFilter(resource_type_filter=1, operation=1, permission_type=1),)),
    AlterClientQuotasRequest(
        entries=(
            AlterClientQuotasRequestEntry(
                entity=(AlterClientQuotasRequestEntity(entity_type="user", entity_name="a"),),
                ops=(AlterClientQuotasRequestOp(key="producer_byte_rate", value=1.0, remove=False),),
            ),
        ),
        validate_only=False,
    ),
    AlterUserScramCredentialsRequest(
        deletions=(AlterUserScramCredentialsRequestScramCredentialDeletion(name="a", mechanism=1),), upsertions=()
    ),
    AlterPartitionReassignmentsRequest(topics=()),
    ListPartitionReassignmentsRequest(topics=None),
)
"""What a broker forwards and a right on the cluster decides."""
BY_ITEM: tuple[RequestBody[Any], ...] = (
    CreatePartitionsRequest(
        topics=(CreatePartitionsRequestTopic(name="events", count=2, assignments=None),), timeout_ms=1_000,
        validate_only=False,
    ),
    AlterConfigsRequest(
        resources=(AlterConfigsRequestResource(resource_type=2, resource_name="events", configs=()),),
        validate_only=False,
    ),
)  # fmt: skip
"""What the controller decides item by item."""


def said_in(answer: Any) -> set[int]:
    """All error codes of an answer."""
    codes: set[int] = set()
    for each in structs.fields(answer):
        value = getattr(answer, each.name)
        if each.name == "error_code":
            codes.add(int(value))
        for item in value if isinstance(value, tuple) else ():
            codes |= said_in(item) if isinstance(item, Struct) else set()
    return codes


def test_there_is_a_sample_of_each_request_that_is_forwarded_for_rights_on_the_cluster() -> None:
    assert {sample.API_KEY for sample in SAMPLES} == set(CLUSTER_OPERATIONS)
    assert {sample.API_KEY for sample in BY_ITEM} == BY_THE_CONTROLLER


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_what_a_broker_forwards_is_forwarded_for_whom_the_acls_allow_it(
    config: Callable[..., Config], sample: RequestBody[Any]
) -> None:
    spec = API[sample.API_KEY]

    async def refused(agent: FakeAgent) -> None:
        for version in range(spec.min_version, spec.max_version + 1):
            assert CLUSTER_DENIED in said_in(await agent.ask(sample, version))
        assert not agent.controller.asked

    async def done(agent: FakeAgent) -> None:
        for version in range(spec.min_version, spec.max_version + 1):
            assert not any(said_in(await agent.ask(sample, version)))
        asked = [(request.api_key, request.version) for request in agent.controller.asked]
        assert asked == [(sample.API_KEY, version) for version in range(spec.min_version, spec.max_version + 1)]
        assert {request.message for request in agent.controller.asked} == {sample}

    told(strict(config), refused)
    told(strict(config), done, acl(CLUSTER_OPERATIONS[sample.API_KEY]))


@pytest.mark.parametrize("sample", (*SAMPLES, *BY_ITEM), ids=lambda sample: type(sample).__name__)
def test_a_controller_that_refuses_to_act_is_told_in_every_version(
    config: Callable[..., Config], sample: RequestBody[Any]
) -> None:
    spec = API[sample.API_KEY]

    async def story(agent: FakeAgent) -> None:
        agent.controller.envelope_error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        for version in range(spec.min_version, spec.max_version + 1):
            assert ErrorCode.UNKNOWN_SERVER_ERROR in said_in(await agent.ask(sample, version))

    told(config(), story)


@pytest.mark.parametrize("sample", BY_ITEM, ids=lambda sample: type(sample).__name__)
def test_what_is_decided_item_by_item_is_left_to_the_controller(
    config: Callable[..., Config], sample: RequestBody[Any]
) -> None:
    async def story(agent: FakeAgent) -> None:
        await agent.ask(sample)
        assert [request.message for request in agent.controller.asked] == [sample]
        assert agent.controller.senders == [(ANONYMOUS, "127.0.0.1")]

    told(strict(config), story)


def test_an_agent_offers_all_that_a_broker_of_4_4_0_does_but_for_the_data_plane() -> None:
    broker = {*range(4), *range(8, 52), 55, 57, 60, 61, *range(64, 67), 68, 69, 71, 72, *range(74, 82), *range(83, 95)}
    data = {*range(3), *range(8, 17), *range(21, 29), 42, 47, 61, 65, 66}
    groups = {68, 69, *range(76, 80), *range(83, 94)}
    telemetry = {71, 72}
    assert {int(key) for key in SERVED} == broker - data - groups - telemetry


@pytest.mark.parametrize(("level", "said"), [(1, {"kraft.version": 1}), (0, {})])
def test_the_level_of_the_quorum_is_told_as_a_broker_tells_it(
    config: Callable[..., Config], level: int, said: dict[str, int]
) -> None:
    async def story(agent: FakeAgent) -> None:
        agent.kraft_version = level
        async with await agent.connect() as connection:
            finalized = connection.features.finalized
        assert {name: level for name, level in finalized.items() if name == "kraft.version"} == said

    told(config(), story)


def test_what_the_metadata_tell_is_for_those_who_may_see_it(config: Callable[..., Config]) -> None:
    asks: dict[RequestBody[Any], Operation] = {
        DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1): Operation.DESCRIBE,
        DescribeClientQuotasRequest(components=()): Operation.DESCRIBE_CONFIGS,
        DescribeUserScramCredentialsRequest(users=None): Operation.DESCRIBE,
        ListConfigResourcesRequest(): Operation.DESCRIBE_CONFIGS,
    }

    async def refused(agent: FakeAgent) -> None:
        for request in asks:
            assert (await agent.ask(request)).error_code == CLUSTER_DENIED

    told(strict(config), refused)
    for request, operation in asks.items():

        async def seen(agent: FakeAgent, request: RequestBody[Any] = request) -> None:
            assert (await agent.ask(request)).error_code == NONE

        told(strict(config), seen, acl(operation))


def test_acls_are_told_as_far_as_there_are_any(config: Callable[..., Config]) -> None:
    everything = DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1)

    async def none(agent: FakeAgent) -> None:
        assert (await agent.ask(everything)).error_code == ErrorCode.SECURITY_DISABLED

    async def one(agent: FakeAgent) -> None:
        (resource,) = (await agent.ask(everything)).resources
        assert (resource.resource_type, resource.resource_name) == (CLUSTER, "kafka-cluster")
        assert [entry.operation for entry in resource.acls] == [Operation.DESCRIBE]
        odd = await agent.ask(DescribeAclsRequest(resource_type_filter=99, operation=1, permission_type=1))
        assert (odd.error_code, odd.error_message) == (ErrorCode.INVALID_REQUEST, "Unknown patternFilter.")

    told(config(), none)
    told(strict(config), one, acl(Operation.DESCRIBE))


def test_nobody_gets_a_delegation_token_over_plaintext(config: Callable[..., Config]) -> None:
    async def story(agent: FakeAgent) -> None:
        for request in (
            CreateDelegationTokenRequest(max_lifetime_ms=-1),
            RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=1),
            ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=1),
            DescribeDelegationTokenRequest(owners=None),
        ):
            spec = API[request.API_KEY]
            for version in range(spec.min_version, spec.max_version + 1):
                answer = await agent.ask(request, version)
                assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED

    told(config(), story)


def test_an_authorizer_of_another_make_is_named_in_the_log(config: Callable[..., Config]) -> None:
    async def story(agent: FakeAgent) -> None:
        assert ("authorizer.unknown", {"class_name": "com.example.A", "allowed": "by ACLs"}) in agent.log.lines
        assert (await agent.ask(DescribeLogDirsRequest())).error_code == CLUSTER_DENIED

    told(config(authorizer_class_name="com.example.A", allow_everyone_if_no_acl_found="true"), story)


def test_each_listener_tells_of_endpoints_that_its_own_clients_can_reach(config: Callable[..., Config]) -> None:
    ports = [free_port(), free_port()]
    made = config(
        listeners=f"PLAINTEXT://127.0.0.1:{ports[0]},INSIDE://127.0.0.1:{ports[1]}",
        listener_security_protocol_map="CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
    )

    async def story(agent: FakeAgent) -> None:
        for port, advertised in zip(ports, (1234, 4321), strict=True):
            async with await Connection.open("127.0.0.1", port, client_id="t", clock=SystemClock()) as connection:
                answer = await connection.request(MetadataRequest(topics=()), timeout_ms=5_000)
                assert [broker.port for broker in answer.brokers] == [advertised]

    told(made, story)


# ---------------------------------------------------------------- moves


def test_each_replica_is_answered_and_of_one_named_twice_the_last_counts(config: Callable[..., Config]) -> None:
    async def story(agent: FakeAgent) -> None:
        answer = await agent.ask(move(("/d1", "events", 0), ("/nowhere", "other", 3), ("/d2", "events", 0)))
        assert agent.alters == [("events", 0, "/d2"), ("other", 3, "/nowhere")]
        assert [(t.topic_name, t.partitions[0].error_code) for t in answer.results] == [
            ("events", NONE),
            ("other", ErrorCode.LOG_DIR_NOT_FOUND),
        ]

    told(config(), story)


# ---------------------------------------------------------------- the controller


def test_a_request_is_repeated_until_the_controller_that_is_active_answers(config: Callable[..., Config]) -> None:
    async def story(agent: FakeAgent) -> None:
        not_controller = CreateTopicsResponse(
            topics=(CreateTopicsResponseTopic(name="a", error_code=ErrorCode.NOT_CONTROLLER),)
        )
        agent.controller.answers = [not_controller, None]  # None: it closes the connection
        assert [t.error_code for t in (await agent.ask(create("a"))).topics] == [NONE]
        assert len(agent.controller.asked) == 3

    told(config(), story)


def test_a_controller_that_does_not_answer_in_time_is_said_so(config: Callable[..., Config]) -> None:
    async def story(agent: FakeAgent) -> None:
        agent.controller.answers = [TimeoutError()]
        request = CreateTopicsRequest(topics=create("a").topics, timeout_ms=1_000)
        (topic,) = (await agent.ask(request)).topics
        assert topic.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "The controller did not answer" in topic.error_message

    told(config(), story)


def test_topics_to_delete_reach_a_controller_of_any_age(config: Callable[..., Config]) -> None:
    async def story(agent: FakeAgent) -> None:
        agent.controller.apis = {**agent.controller.apis, ApiKey.DELETE_TOPICS: (1, 5)}
        answer = await agent.ask(DeleteTopicsRequest(topic_names=("events",), timeout_ms=5_000), 4)
        assert [(t.name, t.error_code) for t in answer.responses] == [("events", NONE)]
        (sent,) = agent.controller.asked
        assert (sent.version, cast(DeleteTopicsRequest, sent.message).topic_names) == (5, ("events",))
        by_id = (DeleteTopicsRequestTopic(topic_id=EVENTS),)
        refused = await agent.ask(DeleteTopicsRequest(topics=by_id, timeout_ms=5_000))
        assert refused.responses[0].error_code == ErrorCode.UNSUPPORTED_VERSION

    told(config(), story)


def test_a_controller_without_the_api_is_said_so(config: Callable[..., Config]) -> None:
    async def story(agent: FakeAgent) -> None:
        agent.controller.apis = {key: v for key, v in SERVED.items() if key is not ApiKey.INCREMENTAL_ALTER_CONFIGS}
        answer = await agent.ask(alter_config((TOPIC, "events")))
        assert answer.responses[0].error_code == ErrorCode.UNSUPPORTED_VERSION

    told(config(), story)


def test_the_controller_learns_who_asks_and_from_where(config: Callable[..., Config]) -> None:
    async def story(agent: FakeAgent) -> None:
        assert (await agent.ask(ListPartitionReassignmentsRequest())).error_code == NONE
        assert agent.controller.senders == [(ANONYMOUS, "127.0.0.1")]
        (sent,) = agent.controller.asked
        assert sent.client_id == "t"

    told(config(), story)


@pytest.mark.parametrize(
    ("code", "client_sees"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_an_agent_that_may_not_forward_says_so(
    config: Callable[..., Config], code: ErrorCode, client_sees: ErrorCode
) -> None:
    async def story(agent: FakeAgent) -> None:
        agent.controller.envelope_error = code
        answer = await agent.ask(ListPartitionReassignmentsRequest())
        assert answer.error_code == client_sees
        assert "The controller " in answer.error_message

    told(config(), story)


# ---------------------------------------------------------------- life


def test_nothing_is_answered_before_the_metadata_are_known(config: Callable[..., Config]) -> None:
    async def story(agent: FakeAgent) -> None:
        agent.caught_up.clear()
        asked = asyncio.ensure_future(agent.ask(MetadataRequest(topics=None)))
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.config.listeners[0].port)
        writer.write(encode_request(MetadataRequest(topics=None), 9, 1, None))
        answer = asyncio.ensure_future(reader.read(1))
        done, _ = await asyncio.wait([asked, answer], timeout=0.2)
        assert not done
        agent.caught_up.set()
        assert [t.name for t in (await asked).topics] == ["events"]
        assert await answer
        writer.close()

    told(config(), story)


def test_clients_that_wait_do_not_delay_the_end(config: Callable[..., Config]) -> None:
    async def main() -> None:
        agent = FakeAgent(config())
        async with agent.serving() as listeners:
            agent.controller.answers = [TimeoutError()]
            asked = asyncio.ensure_future(agent.ask(create("a")))
            await agent.controller.reached.wait()
            await listeners.close()
            with pytest.raises(Exception, match="closed"):
                await asked
            assert listeners.connections == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listener_security_protocol_map": "CONTROLLER:PLAINTEXT,PLAINTEXT:SSL"}, "ssl.keystore.location is missing"),
        ({"listeners": "PLAINTEXT://127.0.0.1:0", "advertised_listeners": "PLAINTEXT://h:1"}, "a port of 0"),
    ],
)
def test_a_listener_that_cannot_be_is_a_mistake_of_the_configuration(
    config: Callable[..., Config], settings: dict[str, object], said: str
) -> None:
    (problem,) = listener_problems(config(**settings))
    assert said in problem


def test_an_address_that_is_taken_is_one_line_that_names_it(config: Callable[..., Config]) -> None:
    made = config()
    with socket.create_server(("127.0.0.1", made.listeners[0].port)):

        async def main() -> None:
            async with FakeAgent(made).serving():
                pass

        with pytest.raises(ExceptionGroup) as caught:
            asyncio.run(main())
    (error,) = caught.value.exceptions
    assert isinstance(error, ListenerError)
    assert f"listeners: PLAINTEXT://127.0.0.1:{made.listeners[0].port}: " in str(error)
    assert len(str(error).splitlines()) == 1


# ---------------------------------------------------------------- hostile peers


@pytest.mark.parametrize("seed", seeds(deep=1))
def test_hostile_bytes_cost_their_own_connection_and_nothing_else(config: Callable[..., Config], seed: int) -> None:
    rng = random.Random(seed)
    composer = Composer(rng, [EVENTS], SERVED)
    frames = [composer.frame() for _ in range(examples(400))]

    async def story(agent: FakeAgent) -> None:
        for frame in frames:
            raw = bytearray(frame)
            for _ in range(rng.randint(0, 3)):
                at = rng.randrange(len(raw) + 1)
                match rng.randrange(4):
                    case 0:
                        del raw[at:]
                    case 1:
                        raw[at:at] = rng.randbytes(5)
                    case 2:
                        raw[at:at] = b"\xff\xff\xff\xff\x0f"
                    case 3:
                        raw[at : at + 1] = rng.randbytes(1)
            await throw(agent, struct.pack(">i", len(raw)) + raw)
        for start in (b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n", b"\x7f\xff\xff\xff", b"\x00\x00"):
            await throw(agent, start)
        assert [t.name for t in (await agent.ask(MetadataRequest(topics=None))).topics] == ["events"]
        assert [event for event, _ in agent.log.lines if event == "request.failed"] == []

    told(config(), story)


async def throw(agent: FakeAgent, raw: bytes | bytearray) -> None:
    await throw_at(agent.config.listeners[0].port, raw)


async def throw_at(port: int, raw: bytes | bytearray, *, whole: bool = False) -> None:
    """Send bytes and go: of a whole request when it is answered, else when the other end has had enough."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(bytes(raw))
    if not whole:
        writer.write_eof()
    try:
        async with asyncio.timeout(60):
            await reader.read(100)
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.transport.abort()


# ---------------------------------------------------------------- the agent as a process


@pytest.mark.parametrize("seed", seeds(deep=1))
def test_any_message_that_is_well_formed_leaves_a_running_agent_alive(
    tmp_path: Path, processes: Processes, seed: int
) -> None:
    cluster = Cluster(tmp_path, processes)
    cluster.start_controller()
    config = cluster.configure(1)
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced")
    cluster.create_topic("t", partitions=3, replication_factor=1)
    wait_assigned(agent, 3)
    paths = tuple(str(cluster.directory(1, number)) for number in (1, 2, 3))
    composer = Composer(random.Random(seed), [EVENTS], SERVED, ("t", *paths, "1", "kafka-cluster", "retention.ms"))

    async def attack() -> int:
        port = load_config(config).listeners[0].port
        for _ in range(examples(400)):
            frame = composer.frame()
            await throw_at(port, struct.pack(">i", len(frame)) + frame, whole=True)
        async with await Connection.open("127.0.0.1", port, client_id="t", clock=SystemClock()) as connection:
            answer = await connection.request(DescribeLogDirsRequest(), timeout_ms=20_000)
            return len(answer.results)

    assert asyncio.run(attack()) == 3
    assert agent.events("request.failed") == []
    assert agent.events("agent.crashed") == []
    assert agent.stop() == 0


def test_an_agent_whose_address_is_taken_says_so_and_stops(tmp_path: Path, processes: Processes) -> None:
    cluster = Cluster(tmp_path, processes)
    cluster.start_controller()
    config = cluster.configure(1)
    port = load_config(config).listeners[0].port
    with socket.create_server(("127.0.0.1", port)):
        agent = cluster.start_agent(config)
        assert agent.wait() == 1
    (stopped,) = agent.events("agent.stopped")
    assert f"listeners: PLAINTEXT://127.0.0.1:{port}" in stopped["reason"]
    assert agent.events("broker.registered") == []


def test_an_agent_whose_controller_is_away_still_tells_of_its_directories(tmp_path: Path, processes: Processes) -> None:
    cluster = Cluster(tmp_path, processes)
    controller = cluster.start_controller()
    config = cluster.configure(1)
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced")
    cluster.create_topic("events", partitions=3, replication_factor=1)
    wait_assigned(agent, 3)
    controller.signal(signal.SIGSTOP)

    async def ask() -> tuple[DescribeLogDirsResponse, CreateTopicsResponse]:
        port = load_config(config).listeners[0].port
        async with await Connection.open("127.0.0.1", port, client_id="t", clock=SystemClock()) as connection:
            described = await connection.request(DescribeLogDirsRequest(), timeout_ms=20_000)
            request = CreateTopicsRequest(topics=create("more").topics, timeout_ms=1_000)
            return described, await connection.request(request, timeout_ms=20_000)

    described, created = asyncio.run(ask())
    assert [result.error_code for result in described.results] == [0, 0, 0]
    names = [topic.name for result in described.results for topic in result.topics]
    assert names == ["events"] * 3
    assert created.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    controller.signal(signal.SIGCONT)
    assert agent.stop() == 0


def test_a_listener_that_cannot_be_secured_is_refused_before_anything_is_touched(
    tmp_path: Path, processes: Processes
) -> None:
    cluster = Cluster(tmp_path, processes)
    config = cluster.configure(1)
    config.write_text(config.read_text() + "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_SSL\n")
    agent = cluster.start_agent(config)
    assert agent.wait() == 78
    said = agent.stderr_path.read_text()
    assert "ssl.keystore.location is missing: expected a keystore, as the listener PLAINTEXT has TLS" in said
    assert (
        "expected the keytab of this host" in said and "or sasl.enabled.mechanisms without GSSAPI, its default" in said
    )

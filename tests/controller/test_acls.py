"""Access control: entries are kept as Kafka keeps them, and who may do what is decided by them."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kjbod.config import load_config
from kjbod.config.load import require_controller
from kjbod.errors import ConfigError, KjbodError
from kjbod.ids import Uuid
from kjbod.metadata import describing, live
from kjbod.metadata.acls import (
    ALLOW,
    ANY,
    DENY,
    LITERAL,
    MATCH,
    PREFIXED,
    STANDARD_AUTHORIZER,
    AclFilter,
    Operation,
    ResourceType,
)
from kjbod.metadata.acls import Rules as AclRules
from kjbod.metadata.live import LiveImage
from kjbod.metadata.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from kjbod.metadata.refusals import refusal
from kjbod.wire.admin_messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntry,
    AlterConfigsRequest,
    AlterConfigsRequestResource,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestScramCredentialDeletion,
    CreateAclsRequest,
    CreateAclsRequestAclCreation,
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
    DeleteAclsRequest,
    DeleteAclsRequestFilter,
    DescribeAclsRequest,
    ElectLeadersRequest,
    UpdateFeaturesRequest,
)
from kjbod.wire.client import Connection
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import decode_request, decode_response, encode_request, encode_response
from kjbod.wire.messages import (
    API,
    ApiKey,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DescribeClusterRequest,
    EnvelopeRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestResource,
    ListPartitionReassignmentsRequest,
    RequestBody,
    UnregisterBrokerRequest,
)
from kjbod.wire.principals import ForwardedPrincipal, encode_host, encode_principal
from kjbod_controller_stub.access import entries
from kjbod_controller_stub.access.authorizer import REQUIRED
from kjbod_controller_stub.limits import SERVED
from tests.controller.conftest import Serving, Site
from tests.controller.test_server import connect, join
from tests.controller.world import World
from tests.depth import seeds
from tests.wire.composer import Composer

RULES = AclRules(class_name=STANDARD_AUTHORIZER)
ALICE = "User:alice"
CLUSTER, GROUP, TOPIC = ResourceType.CLUSTER, ResourceType.GROUP, ResourceType.TOPIC


def acl(operation: int = Operation.READ, kind: int = TOPIC, name: str = "t", **fields: Any) -> Any:
    given: dict[str, Any] = {
        "resource_pattern_type": LITERAL,
        "principal": ALICE,
        "host": "*",
        "permission_type": ALLOW,
    }
    return CreateAclsRequestAclCreation(resource_type=kind, resource_name=name, operation=operation, **(given | fields))


def wanted(**fields: Any) -> Any:
    given: dict[str, Any] = {
        "resource_type_filter": ANY,
        "pattern_type_filter": ANY,
        "operation": ANY,
        "permission_type": ANY,
    }
    return DeleteAclsRequestFilter(**(given | fields))


def create(world: World, *creations: Any) -> list[tuple[int, str | None]]:
    answer = world.ask(CreateAclsRequest(creations=creations))
    return [(result.error_code, result.error_message) for result in answer.results]


# ---------------------------------------------------------------- the entries


def test_an_entry_is_written_once_and_deleted_by_what_matches_it() -> None:
    world = World(acl_rules=RULES)
    assert create(world, acl(), acl(), acl(Operation.WRITE)) == [(0, "")] * 3
    first, second = world.last
    assert isinstance(first, AccessControlEntryRecord)
    assert isinstance(second, AccessControlEntryRecord)
    assert (first.resource_type, first.resource_name, first.pattern_type) == (TOPIC, "t", LITERAL)
    assert (first.principal, first.host, first.operation, first.permission_type) == (ALICE, "*", Operation.READ, ALLOW)
    assert first.id != second.id
    assert create(world, acl()) == [(0, "")]
    assert not world.last  # it is there
    answer = world.ask(
        DeleteAclsRequest(filters=(wanted(operation=Operation.READ), wanted(), wanted(principal_filter="User:bob")))
    )
    assert [len(result.matching_acls) for result in answer.filter_results] == [1, 2, 0]
    gone = RemoveAccessControlEntryRecord(id=first.id), RemoveAccessControlEntryRecord(id=second.id)
    assert world.last == list(gone)  # each once
    assert not world.replayed().image.acls


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (acl(kind=ANY), "Invalid resourceType ANY"),
        (acl(kind=99), "Invalid resourceType UNKNOWN"),
        (acl(resource_pattern_type=MATCH), "Invalid patternType MATCH"),
        (acl(ANY), "Invalid operation ANY"),
        (acl(16), "Invalid operation UNKNOWN"),
        (acl(permission_type=ANY), "Invalid permissionType ANY"),
        (acl(permission_type=0), "Invalid permissionType UNKNOWN"),
        (acl(name=""), "Invalid empty resource name"),
        (acl(kind=CLUSTER), "The only valid name for the CLUSTER resource is kafka-cluster"),
        (acl(principal="alice"), "Could not parse principal from `alice`"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_and_the_others_are_written(bad: Any, message: str) -> None:
    world = World(acl_rules=RULES)
    (refused, good) = create(world, bad, acl())
    assert refused[0] == ErrorCode.INVALID_REQUEST
    assert message in (refused[1] or "")
    assert good == (0, "")
    assert len(world.last) == 1


BELOW_32 = "CIDR-based ACL host patterns require metadata version 4.4-IV1 or higher."
NETWORKS = ("10.0.0.0/8", "10.5.6.7/32", "0.0.0.0/0", "010.1.2.3/08", "fe80::/10", "::/0", "[2001:db8::1]/64", "::/+8")
NO_NETWORKS = {
    "10.0.0.0/33": "Value [33] not in range [0,32]",
    "300.0.0.1/8": "Value [300] not in range [0,255]",
    "10.0.0.0/": "Could not parse [10.0.0.0/]",
    "10.0.0.0/-1": "Could not parse [10.0.0.0/-1]",
    "1.2.3/8": "Could not parse [1.2.3/8]",
    "10.0.0.0/8 ": "Could not parse [10.0.0.0/8 ]",
    "10.0.0.0/255.0.0.0": "Could not parse [10.0.0.0/255.0.0.0]",
    "localhost/8": "Could not parse [localhost/8]",
    "/": "Could not parse [/]",
    "*/8": "Could not parse [*/8]",
    "fe80::/129": "Could not parse [fe80::/129] - prefix length must be between 0 and 128",
    "fe80::/-1": "Could not parse [fe80::/-1] - prefix length must be between 0 and 128",
    "fe80::/": "Could not parse [fe80::/] - invalid prefix length",
    "fe80::/10/3": "Could not parse [fe80::/10/3] - invalid prefix length",
    "g::/8": "Could not parse [g::]",
    "1.2.3.4:/8": "Could not parse [1.2.3.4:]",
}
"""The words are those of Kafka 4.4.0."""


@pytest.mark.parametrize("level", [32, 33])
@pytest.mark.parametrize("host", NETWORKS)
def test_a_network_may_be_the_host_of_an_entry(host: str, level: int) -> None:
    world = World(acl_rules=RULES, metadata_version=level)
    assert create(world, acl(host=host), acl(host=host)) == [(0, "")] * 2
    (entry,) = world.last
    assert isinstance(entry, AccessControlEntryRecord)
    assert entry.host == host
    assert world.replayed().image.acls.keys() == {entry.id}


@pytest.mark.parametrize("level", [7, 15, 30, 31])
@pytest.mark.parametrize("host", [*NETWORKS, *NO_NETWORKS])
def test_no_network_is_written_at_a_level_that_has_none(host: str, level: int) -> None:
    world = World(acl_rules=RULES, metadata_version=level)
    assert create(world, acl(host=host), acl()) == [(ErrorCode.UNSUPPORTED_VERSION, BELOW_32), (0, "")]
    assert len(world.last) == 1


@pytest.mark.parametrize(("host", "message"), NO_NETWORKS.items())
def test_a_host_that_could_match_nobody_is_refused_in_kafkas_words(host: str, message: str) -> None:
    world = World(acl_rules=RULES)
    assert create(world, acl(host=host), acl()) == [
        (ErrorCode.INVALID_REQUEST, f"Invalid CIDR notation '{host}': {message}"),
        (0, ""),
    ]
    assert len(world.last) == 1


@pytest.mark.parametrize("level", [7, 30, 33])
def test_an_empty_host_is_refused_at_each_level_and_a_name_at_none(level: int) -> None:
    world = World(acl_rules=RULES, metadata_version=level)
    assert create(world, acl(host=""), acl(host="example.org"), acl(host="::1")) == [
        (ErrorCode.INVALID_REQUEST, "Host pattern cannot be null or empty"),
        (0, ""),
        (0, ""),
    ]


@pytest.mark.parametrize(
    ("filter_", "names"),
    [
        (wanted(), ["*", "or", "orders", "orders", "kafka-cluster"]),
        (wanted(resource_type_filter=TOPIC), ["*", "or", "orders", "orders"]),
        (wanted(resource_name_filter="orders"), ["orders", "orders"]),
        (wanted(resource_name_filter="orders", pattern_type_filter=LITERAL), ["orders"]),
        (wanted(resource_name_filter="orders", pattern_type_filter=PREFIXED), ["orders"]),
        (wanted(resource_name_filter="orders", pattern_type_filter=MATCH), ["*", "or", "orders", "orders"]),
        (wanted(resource_name_filter="orders", pattern_type_filter=MATCH, resource_type_filter=GROUP), []),
        (wanted(resource_name_filter="*", pattern_type_filter=MATCH), ["*"]),
        (wanted(pattern_type_filter=PREFIXED), ["or", "orders"]),
        (wanted(host_filter="10.0.0.1"), ["or"]),
        (wanted(permission_type=DENY), ["kafka-cluster"]),
        (wanted(operation=Operation.ALTER), ["kafka-cluster"]),
    ],
)
def test_a_filter_finds_what_kafkas_would(filter_: DeleteAclsRequestFilter, names: list[str]) -> None:
    world = World(acl_rules=RULES)
    create(
        world,
        acl(name="*"),
        acl(name="or", resource_pattern_type=PREFIXED, host="10.0.0.1"),
        acl(name="orders"),
        acl(name="orders", resource_pattern_type=PREFIXED),
        acl(Operation.ALTER, CLUSTER, "kafka-cluster", permission_type=DENY),
    )
    answer = world.ask(
        DescribeAclsRequest(**{name: getattr(filter_, name) for name in DeleteAclsRequestFilter.__struct_fields__})
    )
    assert sorted(resource.resource_name for resource in answer.resources) == sorted(names)
    deleted = world.ask(DeleteAclsRequest(filters=(filter_,)))
    assert sorted(each.resource_name for each in deleted.filter_results[0].matching_acls) == sorted(names)


@pytest.mark.parametrize("bad", [{"resource_type_filter": 0}, {"pattern_type_filter": 5}, {"operation": 99}])
def test_a_filter_that_cannot_be_deletes_nothing(bad: dict[str, int]) -> None:
    world = World(acl_rules=RULES)
    create(world, acl())
    answer = world.ask(DeleteAclsRequest(filters=(wanted(**bad),)))
    assert [result.error_code for result in answer.filter_results] == [ErrorCode.INVALID_REQUEST]
    assert not world.last


def test_no_request_holds_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describing, "COMPARISONS_MAX", 50)
    monkeypatch.setattr(entries, "RECORDS_MAX", 20)
    world = World(acl_rules=RULES)
    creations = [acl(name=f"t{number}") for number in range(21)]
    assert {code for code, _ in create(world, *creations)} == {ErrorCode.POLICY_VIOLATION}
    assert not world.last
    create(world, *creations[:20])
    answer = world.ask(DeleteAclsRequest(filters=(wanted(host_filter="a"), wanted(host_filter="b"), wanted())))
    assert [result.error_code for result in answer.filter_results] == [0, 0, ErrorCode.INVALID_REQUEST]
    named = wanted(resource_name_filter="t3")
    assert len(world.ask(DeleteAclsRequest(filters=(named,) * 50)).filter_results[49].matching_acls) == 1


@pytest.mark.parametrize("seed", seeds())
def test_the_index_is_what_a_replay_makes_of_the_entries(seed: int) -> None:
    world = World(acl_rules=RULES)
    rng = random.Random(seed)
    for _ in range(60):
        pattern = rng.choice((LITERAL, PREFIXED))
        create(
            world, acl(name=rng.choice(("a", "ab", "abc", "*")), resource_pattern_type=pattern, host=rng.choice("xyz"))
        )
        if rng.random() < 0.4:
            world.ask(DeleteAclsRequest(filters=(wanted(resource_name_filter=rng.choice(("a", "ab", "abc"))),)))
        kept, fresh = world.controller.acl_index, world.replayed().acl_index
        for name in ("a", "abcd", "b"):
            assert {entry.id for entry in kept.of(TOPIC, name)} == {entry.id for entry in fresh.of(TOPIC, name)}
        assert len(list(kept.candidates(AclFilter()))) == len(world.controller.image.acls)


def test_without_an_authorizer_there_are_no_entries() -> None:
    world = World()
    disabled = ErrorCode.SECURITY_DISABLED
    assert create(world, acl(), acl()) == [(disabled, "No Authorizer is configured.")] * 2
    deleted = world.ask(DeleteAclsRequest(filters=(wanted(),)))
    assert [result.error_code for result in deleted.filter_results] == [disabled]
    described = world.ask(
        DescribeAclsRequest(resource_type_filter=ANY, pattern_type_filter=ANY, operation=ANY, permission_type=ANY)
    )
    assert described.error_code == disabled


# ---------------------------------------------------------------- the decisions


class Behind:
    """A client with a name, behind a broker."""

    def __init__(self, broker: Connection, principal: str, host: str = "10.0.0.1") -> None:
        self._broker = broker
        self._principal = encode_principal(ForwardedPrincipal.of(principal))
        self._host = encode_host(host)

    async def ask(self, request: RequestBody[Any]) -> Any:
        version = API[request.API_KEY].max_version
        answer = await self._broker.request(
            EnvelopeRequest(
                request_data=encode_request(request, version, 1, None)[4:],
                request_principal=self._principal,
                client_host_address=self._host,
            ),
            timeout_ms=60_000,
        )
        assert answer.error_code == 0
        return decode_response(answer.response_data or b"", request.API_KEY, version).message


@pytest.fixture
def guarded(site: Site, serving: Serving) -> Callable[..., Any]:
    """A controller with an authorizer, a broker on it, and what a client behind it may do."""

    @asynccontextmanager
    async def run(*creations: Any, **config: str) -> AsyncIterator[Behind]:
        site.configure(authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS", **config)
        async with serving(site) as server, await connect(server.port) as broker:
            await join(broker, 1)
            await broker.request(CreateTopicsRequest(topics=(topic("mine"), topic("other"))), timeout_ms=60_000)
            await broker.request(CreateAclsRequest(creations=creations), timeout_ms=60_000)
            yield Behind(broker, ALICE)

    return run


def topic(name: str) -> CreateTopicsRequestTopic:
    return CreateTopicsRequestTopic(name=name, num_partitions=1, replication_factor=1)


NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_each_topic_is_decided_for_itself(guarded: Callable[..., Any]) -> None:
    async with guarded(
        acl(Operation.CREATE, name="new"),
        acl(Operation.ALTER, name="mine"),
        acl(Operation.ALTER_CONFIGS, name="mine"),
        acl(Operation.DELETE, name="mine"),
        acl(Operation.DELETE, name="mine-too"),
    ) as alice:
        created = await alice.ask(CreateTopicsRequest(topics=(topic("new"), topic("other-new"))))
        assert {each.name: each.error_code for each in created.topics} == {"new": 0, "other-new": NO_TOPIC}
        (new,) = (each for each in created.topics if each.name == "new")
        assert (new.topic_config_error_code, new.num_partitions, new.configs) == (NO_TOPIC, -1, ())
        apis: tuple[tuple[Any, Any], ...] = (
            (IncrementalAlterConfigsRequest, IncrementalAlterConfigsRequestResource),
            (AlterConfigsRequest, AlterConfigsRequestResource),
        )
        for request_type, resource_type in apis:
            resources = ((2, "mine"), (2, "other"), (4, "1"), (32, "g"))
            request = request_type(
                resources=tuple(resource_type(resource_type=kind, resource_name=name) for kind, name in resources)
            )
            codes = {each.resource_name: each.error_code for each in (await alice.ask(request)).responses}
            assert codes == {"mine": 0, "other": NO_TOPIC, "1": NO_CLUSTER, "g": ErrorCode.GROUP_AUTHORIZATION_FAILED}
        partitions = tuple(CreatePartitionsRequestTopic(name=name, count=2) for name in ("mine", "other", "unknown"))
        more = await alice.ask(CreatePartitionsRequest(topics=partitions, timeout_ms=1_000))
        assert {each.name: each.error_code for each in more.results} == {
            "mine": 0,
            "other": NO_TOPIC,
            "unknown": NO_TOPIC,
        }
        doomed = tuple(DeleteTopicsRequestTopic(name=name) for name in ("mine", "mine-too", "other", "nothing"))
        deleted = await alice.ask(DeleteTopicsRequest(topics=doomed, timeout_ms=1_000))
        assert {each.name: each.error_code for each in deleted.responses} == {
            "mine": 0,
            "mine-too": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "other": NO_TOPIC,
            "nothing": NO_TOPIC,  # whether it exists is not told
        }


def _codes(answer: Any) -> set[int]:
    """The error codes of an answer, wherever they are."""
    for name in ("results", "entries", "filter_results", "responses"):
        if items := getattr(answer, name, ()):
            return {item.error_code for item in items}
    return {getattr(answer, "error_code", 0)}


CLUSTER_REQUESTS: list[tuple[RequestBody[Any], Operation]] = [
    (UnregisterBrokerRequest(broker_id=7), Operation.ALTER),
    (UpdateFeaturesRequest(), Operation.ALTER),
    (ElectLeadersRequest(topic_partitions=()), Operation.ALTER),
    (
        AlterUserScramCredentialsRequest(
            deletions=(AlterUserScramCredentialsRequestScramCredentialDeletion(name="u", mechanism=1),)
        ),
        Operation.ALTER,
    ),
    (CreateAclsRequest(creations=(acl(name="x"),)), Operation.ALTER),
    (DeleteAclsRequest(filters=(wanted(host_filter="nowhere"),)), Operation.ALTER),
    (AlterClientQuotasRequest(entries=(AlterClientQuotasRequestEntry(),)), Operation.ALTER_CONFIGS),
    (ListPartitionReassignmentsRequest(timeout_ms=1_000, topics=None), Operation.DESCRIBE),
]


async def test_what_concerns_the_cluster_needs_the_operation_on_the_cluster(guarded: Callable[..., Any]) -> None:
    async with guarded() as alice:
        for request, _ in CLUSTER_REQUESTS:
            assert _codes(await alice.ask(request)) == {NO_CLUSTER}, request
    for operation in {needed for _, needed in CLUSTER_REQUESTS}:
        async with guarded(acl(operation, CLUSTER, "kafka-cluster")) as alice:
            for request, needed in CLUSTER_REQUESTS:
                if needed is operation:
                    assert NO_CLUSTER not in _codes(await alice.ask(request)), request


async def test_a_denial_goes_before_and_a_change_of_the_entries_counts_at_once(guarded: Callable[..., Any]) -> None:
    everything = acl(Operation.ALL, CLUSTER, "kafka-cluster")
    denial = acl(Operation.DESCRIBE, CLUSTER, "kafka-cluster", permission_type=DENY, host="10.0.0.1")
    request = ListPartitionReassignmentsRequest(timeout_ms=1_000, topics=None)
    async with guarded(everything) as alice:
        assert (await alice.ask(request)).error_code == 0
        await alice.ask(CreateAclsRequest(creations=(denial,)))
        assert (await alice.ask(request)).error_code == NO_CLUSTER
        elsewhere = Behind(alice._broker, ALICE, "10.0.0.2")
        assert (await elsewhere.ask(request)).error_code == 0
        await elsewhere.ask(DeleteAclsRequest(filters=(wanted(permission_type=DENY),)))
        assert (await alice.ask(request)).error_code == 0


async def test_a_resource_without_entries_may_be_open_to_everybody(guarded: Callable[..., Any]) -> None:
    request = CreateTopicsRequest(topics=(topic("new"), topic("mine-2")))
    async with guarded(
        acl(name="mine", resource_pattern_type=PREFIXED, principal="User:bob"),
        acl(Operation.DESCRIBE, CLUSTER, "kafka-cluster"),
        allow_everyone_if_no_acl_found="true",
    ) as alice:
        answer = await alice.ask(request)
        assert {each.name: each.error_code for each in answer.topics} == {"new": 0, "mine-2": NO_TOPIC}


async def test_who_is_no_broker_cannot_act_as_one(site: Site, serving: Serving) -> None:
    site.configure(authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:admin")
    async with serving(site) as server, await connect(server.port) as anybody:
        answer = await anybody.request(EnvelopeRequest(request_data=b"", client_host_address=b""), timeout_ms=60_000)
        assert answer.error_code == NO_CLUSTER
        described = await anybody.request(DescribeClusterRequest(endpoint_type=2), timeout_ms=60_000)
        assert (described.error_code, described.error_message) == (NO_CLUSTER, "Cluster authorization failed.")


async def test_a_client_may_ask_what_it_may_do(site: Site, serving: Serving) -> None:
    site.configure(authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS")
    request = DescribeClusterRequest(endpoint_type=2, include_cluster_authorized_operations=True)
    async with serving(site) as server, await connect(server.port) as admin:
        answer = await admin.request(request, timeout_ms=60_000)
    operations = {
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    }
    assert answer.cluster_authorized_operations == sum(1 << operation for operation in operations)


# ---------------------------------------------------------------- complete


def test_who_may_use_it_is_said_for_every_api_that_is_served() -> None:
    assert set(SERVED) <= set(REQUIRED)


@pytest.mark.parametrize("key", sorted(key for key in SERVED if REQUIRED[key] is not None), ids=lambda key: key.name)
def test_a_refusal_can_be_said_in_every_version(key: ApiKey) -> None:
    low, high = SERVED[key]
    for version in range(low, high + 1):
        composer = Composer(random.Random(version), [Uuid.of(1, 1)], {key: (version, version)})
        for _ in range(5):
            request = decode_request(composer.frame()).message
            frame = encode_response(refusal(request, NO_CLUSTER, version), version, 1)
            assert _codes(decode_response(frame[4:], key, version).message) <= {NO_CLUSTER, 0}


def test_another_authorizer_is_a_mistake_in_the_configuration(site: Site) -> None:
    site.configure(authorizer_class_name="com.example.A")
    with pytest.raises(ConfigError, match=r"authorizer\.class\.name=com\.example\.A: expected org\.apache\.kafka"):
        require_controller(load_config(site.config_path))


async def test_who_may_not_read_the_metadata_is_told_so_at_once(
    site: Site, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "CATCH_UP_TIMEOUT_S", 600.0)
    site.configure(authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:admin")
    async with serving(site) as server:

        def look() -> None:
            with LiveImage((("127.0.0.1", server.port),), print):
                pass

        with pytest.raises(
            KjbodError, match=r"CLUSTER_AUTHORIZATION_FAILED \(31\): who asks may not read the metadata"
        ):
            await asyncio.to_thread(look)

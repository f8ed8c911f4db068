"""Controller mutation quotas (KIP-599): who may change how much, in virtual time."""

import asyncio
from typing import Any

import pytest

from kjbod.ids import Uuid
from kjbod.metadata.acls import ALLOW, LITERAL, STANDARD_AUTHORIZER, Operation, ResourceType
from kjbod.metadata.acls import Rules as AclRules
from kjbod.metadata.records import AccessControlEntryRecord, ClientQuotaRecord, QuotaEntity, RemoveTopicRecord
from kjbod.wire.admin_messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntity,
    AlterClientQuotasRequestEntry,
    AlterClientQuotasRequestOp,
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import decode_response, encode_request
from kjbod.wire.messages import (
    API,
    ApiKey,
    BrokerHeartbeatRequest,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    EnvelopeRequest,
    RequestBody,
)
from kjbod.wire.principals import ForwardedPrincipal, encode_principal
from kjbod_controller_stub.access.mutation_quotas import BUCKETS_MAX, EXPIRY_MS, MUTATION_RATE, MutationQuotas, Quotas
from kjbod_controller_stub.access.request_screening import screen
from kjbod_controller_stub.context import Context
from kjbod_controller_stub.results import ApiError, Result
from kjbod_controller_stub.rules import KAFKA
from tests.controller.conftest import Serving, Site
from tests.controller.test_server import connect, join
from tests.controller.world import World

EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED
INFINITE = float("inf")


def create(*topics: tuple[str, int], validate_only: bool = False) -> CreateTopicsRequest:
    wanted = (CreateTopicsRequestTopic(name=name, num_partitions=count, replication_factor=1) for name, count in topics)
    return CreateTopicsRequest(topics=tuple(wanted), validate_only=validate_only)


def delete(*names: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=tuple(DeleteTopicsRequestTopic(name=name) for name in names))


def grow(name: str, count: int, *, validate_only: bool = False) -> CreatePartitionsRequest:
    topic = CreatePartitionsRequestTopic(name=name, count=count, assignments=None)
    return CreatePartitionsRequest(topics=(topic,), timeout_ms=30_000, validate_only=validate_only)


def limit(world: World, rate: float | None, *, key: str = MUTATION_RATE, **entity: str | None) -> None:
    """Set or remove a quota; ``user`` and ``client_id``, None is the default."""
    parts = tuple(
        QuotaEntity(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in sorted(entity.items())
    )
    record = ClientQuotaRecord(entity=parts, key=key, value=rate or 0.0, remove=rate is None)
    world.write(Result(records=(record,)))


def ask(
    world: World, request: RequestBody[Any], version: int | None = None, user: str = "alice", client_id: str = "app"
) -> tuple[list[int], int]:
    """The error code of each topic, and for how long the client is told to wait."""
    context = Context(
        API[request.API_KEY].max_version if version is None else version, f"User:{user}", "h", client_id=client_id
    )
    result = world.controller.handle(request, context, world.now_ms)
    world.write(result)
    answer: Any = result.answer
    topics = getattr(answer, "topics", None) or getattr(answer, "results", None) or answer.responses
    return [topic.error_code for topic in topics], answer.throttle_time_ms


@pytest.fixture
def world() -> World:
    made = World()
    made.join(1)
    return made


def test_who_has_no_quota_waits_for_nothing(world: World) -> None:
    limit(world, 5.0, key="producer_byte_rate", user="alice")
    limit(world, 1.0, user="bob")
    for number in range(3):
        assert ask(world, create((f"t{number}", 1_000))) == ([0], 0)


def test_a_full_bucket_allows_a_burst_and_one_change_more_then_the_rate(world: World) -> None:
    limit(world, 2.0, user="alice")  # 11 windows of a second: 22 partitions
    assert ask(world, create(("a", 21))) == ([0], 0)
    assert ask(world, create(("b", 21))) == ([0], 0)  # one token is left, 20 too few afterwards
    assert ask(world, create(("c", 1), ("d", 1))) == ([EXCEEDED, EXCEEDED], 10_000)
    assert not world.last
    world.now_ms += 9_999
    assert ask(world, create(("c", 1))) == ([EXCEEDED], 1)
    world.now_ms += 1
    assert ask(world, create(("c", 1))) == ([0], 0)
    assert ask(world, create(("d", 1))) == ([EXCEEDED], 500)


def test_what_one_request_asks_for_is_done_until_the_bucket_is_overdrawn(world: World) -> None:
    limit(world, 1.0, user="alice")
    assert ask(world, create(("a", 10), ("b", 10), ("c", 1))) == ([0, 0, EXCEEDED], 9_000)
    assert set(world.controller.image.topic_ids) == {"a", "b"}


def test_a_client_that_does_not_know_the_error_is_served_and_told_to_wait(world: World) -> None:
    limit(world, 1.0, user="alice")
    assert ask(world, create(("a", 12)), version=5) == ([0], 1_000)
    assert ask(world, create(("b", 1)), version=5) == ([0], 2_000)
    assert ask(world, grow("b", 3), version=2) == ([0], 4_000)
    old = DeleteTopicsRequest(topic_names=("a",))
    assert ask(world, old, version=4) == ([0], 16_000)
    assert ask(world, create(("c", 1))) == ([EXCEEDED], 16_000)


@pytest.mark.parametrize(
    ("request_", "strict_since"), [(create(("new", 2)), 6), (grow("old", 5), 3), (delete("old"), 5)], ids=type
)
def test_each_api_is_strict_from_the_version_that_has_the_error(
    world: World, request_: RequestBody[Any], strict_since: int
) -> None:
    world.create("old", (1,), (1,))
    limit(world, 1.0, user="alice")
    assert ask(world, create(("much", 100))) == ([0], 0)
    codes, wait_ms = ask(world, request_, version=strict_since)
    assert (codes, wait_ms) == ([EXCEEDED], 89_000)
    assert not world.last
    codes, wait_ms = ask(world, request_, version=strict_since - 1)
    assert codes == [0]
    assert wait_ms > 89_000
    assert world.last


def test_a_deletion_that_is_refused_says_which_topic_and_keeps_it(world: World) -> None:
    topic_id = world.create("old", (1,))
    limit(world, 1.0, user="alice")
    ask(world, create(("much", 100)))
    request = DeleteTopicsRequest(topics=(DeleteTopicsRequestTopic(name=None, topic_id=topic_id),))
    context = Context(6, "User:alice", "h", client_id="app")
    answer: Any = world.controller.handle(request, context, world.now_ms).answer
    refused = answer.responses[0]
    assert (refused.name, refused.topic_id, refused.error_code) == ("old", topic_id, EXCEEDED)
    world.now_ms += 89_000
    assert ask(world, request) == ([0], 0)
    assert world.last == [RemoveTopicRecord(topic_id=topic_id)]


def test_validation_counts_and_what_is_wrong_costs_nothing(world: World) -> None:
    limit(world, 1.0, user="alice")
    world.create("old", (1,))
    for _ in range(3):
        assert ask(world, create(("old", 5), ("bad name", 5), ("none", 0)))[1] == 0
        assert ask(world, grow("old", 1))[0] == [ErrorCode.INVALID_PARTITIONS]
        assert ask(world, delete("absent"))[0] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert ask(world, create(("new", 11), validate_only=True)) == ([0], 0)
    assert ask(world, grow("old", 2, validate_only=True)) == ([0], 0)
    assert ask(world, create(("new", 1), validate_only=True)) == ([EXCEEDED], 1_000)


ENTITIES: tuple[dict[str, str | None], ...] = (
    {"user": "alice", "client_id": "app"},
    {"user": "alice", "client_id": None},
    {"user": "alice"},
    {"user": None, "client_id": "app"},
    {"user": None, "client_id": None},
    {"user": None},
    {"client_id": "app"},
    {"client_id": None},
)


def test_the_most_specific_limit_counts() -> None:
    for number, entity in enumerate(ENTITIES):
        world = World()
        world.join(1)
        for rate, less_specific in enumerate(ENTITIES[number:], start=1):
            limit(world, 1.0 if less_specific is entity else 1_000.0 * rate, key=MUTATION_RATE, **less_specific)
        assert ask(world, create(("a", 12))) == ([0], 0), entity
        assert ask(world, create(("b", 1))) == ([EXCEEDED], 1_000), entity


@pytest.mark.parametrize(
    ("entity", "shared_with", "apart_from"),
    [
        ({"user": "alice"}, ("alice", "other"), ("bob", "app")),
        ({"user": None}, ("alice", "other"), ("bob", "app")),
        ({"client_id": "app"}, ("bob", "app"), ("alice", "other")),
        ({"client_id": None}, ("bob", "app"), ("alice", "other")),
        ({"user": "alice", "client_id": None}, None, ("alice", "other")),
        ({"user": None, "client_id": "app"}, None, ("bob", "app")),
    ],
    ids=str,
)
def test_a_default_is_a_limit_for_each_and_not_for_all_together(
    world: World, entity: dict[str, str | None], shared_with: tuple[str, str] | None, apart_from: tuple[str, str]
) -> None:
    limit(world, 1.0, key=MUTATION_RATE, **entity)
    assert ask(world, create(("a", 12))) == ([0], 0)
    assert ask(world, create(("b", 1))) == ([EXCEEDED], 1_000)
    if shared_with is not None:
        assert ask(world, create(("b", 1)), None, *shared_with) == ([EXCEEDED], 1_000)
    assert ask(world, create(("b", 1)), None, *apart_from) == ([0], 0)


def test_a_changed_limit_counts_from_the_next_request_on(world: World) -> None:
    limit(world, 1.0, user="alice")
    ask(world, create(("a", 31)))
    assert ask(world, create(("b", 1))) == ([EXCEEDED], 20_000)
    limit(world, 10.0, user="alice")
    assert ask(world, create(("b", 1))) == ([EXCEEDED], 2_000)
    limit(world, None, user="alice")
    assert ask(world, create(("b", 1_000))) == ([0], 0)
    limit(world, 1.0, user="alice")
    assert ask(world, create(("c", 1))) == ([EXCEEDED], 20_000)  # what was overdrawn before is still owed


def test_limits_are_there_after_a_restart_with_full_buckets(world: World) -> None:
    limit(world, 1.0, user="alice")
    ask(world, create(("a", 31)))
    world.controller = world.replayed()
    assert ask(world, create(("b", 12))) == ([0], 0)
    assert ask(world, create(("c", 1))) == ([EXCEEDED], 1_000)


def test_what_nobody_took_from_for_an_hour_is_full_again() -> None:
    buckets = MutationQuotas()
    quotas: Quotas = {(QuotaEntity(entity_type="user", entity_name="alice"),): {MUTATION_RATE: 0.001}}

    def take(now_ms: int) -> int:
        charge = buckets.charge(quotas, "User:alice", "app", strict=True, now_ms=now_ms)
        try:
            charge.take(100)
        except ApiError:
            return charge.throttle_time_ms
        return 0

    assert take(0) == 0
    assert take(1_000) == 99_988_000
    assert take(EXPIRY_MS) == 99_989_000 - EXPIRY_MS
    assert take(EXPIRY_MS + 1) == 0


def test_clients_of_very_many_names_take_so_much_memory() -> None:
    buckets = MutationQuotas()
    quotas: Quotas = {(QuotaEntity(entity_type="client-id", entity_name=None),): {MUTATION_RATE: 1.0}}
    for number in range(BUCKETS_MAX + 100):
        charge = buckets.charge(quotas, "User:alice", f"app{number}", strict=True, now_ms=number)
        charge.take(12)
    assert len(buckets) == BUCKETS_MAX
    with pytest.raises(ApiError):
        buckets.charge(quotas, "User:alice", f"app{BUCKETS_MAX + 99}", strict=True, now_ms=BUCKETS_MAX).take(1)
    buckets.charge(quotas, "User:alice", "app0", strict=True, now_ms=BUCKETS_MAX).take(1)


@pytest.mark.parametrize("rate", [5e-324, 1e-9, 1e308])
def test_any_rate_gives_a_wait_that_an_answer_can_say(rate: float) -> None:
    for bounds_throttle_time in (True, False):
        buckets = MutationQuotas(bounds_throttle_time=bounds_throttle_time)
        quotas: Quotas = {(QuotaEntity(entity_type="user", entity_name="alice"),): {MUTATION_RATE: rate}}
        for strict in (True, False, True, False):
            charge = buckets.charge(quotas, "User:alice", "", strict=strict, now_ms=5)
            with_error = None
            try:
                charge.take(10_000)
            except ApiError as error:
                with_error = error.code
            assert 0 <= charge.throttle_time_ms < 2**31
            assert with_error in (None, EXCEEDED)
            if rate == 1e308:
                assert (with_error, charge.throttle_time_ms) == (None, 0)


def test_a_wait_of_months_is_said_as_the_longest_there_is_and_by_kafka_as_what_fits(world: World) -> None:
    def waits(world: World) -> int:
        limit(world, 1e-9, user="alice")
        ask(world, create(("a", 5)))
        return ask(world, create(("b", 5)))[1]

    assert waits(world) == 2**31 - 1
    shipped = World(rules=KAFKA)
    shipped.join(1)
    assert waits(shipped) == 658_056_456  # and a real controller says this


@pytest.mark.parametrize("rate", [INFINITE, float("nan")])
def test_a_limit_that_is_not_a_number_limits_nothing(world: World, rate: float) -> None:
    limit(world, rate, user="alice")
    for number in range(3):
        assert ask(world, create((f"t{number}", 100))) == ([0], 0)


def test_the_wait_is_told_beside_what_is_not_allowed(world: World) -> None:
    """The part of an answer that authorization adds leaves the rest of it as it is."""
    rules = AclRules(class_name=STANDARD_AUTHORIZER)
    guarded = World(acl_rules=rules)
    guarded.join(1)
    for number, operation in enumerate((Operation.CREATE, Operation.ALTER, Operation.DELETE)):
        guarded.write(
            Result(
                records=(
                    AccessControlEntryRecord(
                        id=Uuid.of(8, number + 1),
                        resource_type=ResourceType.TOPIC,
                        resource_name="mine",
                        pattern_type=LITERAL,
                        principal="User:alice",
                        host="*",
                        operation=operation,
                        permission_type=ALLOW,
                    ),
                )
            )
        )
    limit(guarded, 1.0, user="alice")
    permissions = guarded.controller.permissions("User:alice", "h")
    requests: list[tuple[RequestBody[Any], int]] = [
        (create(("mine", 100), ("other", 1)), 5),
        (CreatePartitionsRequest(topics=(grow("mine", 101).topics[0], grow("other", 9).topics[0]), timeout_ms=1), 2),
        (delete("mine", "other"), 4),
    ]
    waits = []
    for request, version in requests:
        screened = screen(request, guarded.controller.image, permissions)
        assert screened.allowed is not None
        context = Context(version, "User:alice", "h", client_id="app")
        result = guarded.controller.handle(screened.allowed, context, guarded.now_ms)
        guarded.write(result)
        answer: Any = screened.merge(result.answer)
        topics = getattr(answer, "topics", None) or getattr(answer, "results", None) or answer.responses
        assert sorted(topic.error_code for topic in topics) == [0, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        waits.append(answer.throttle_time_ms)
    assert waits == [89_000, 90_000, 191_000]


# ---------------------------------------------------------------- over the wire


LOW = AlterClientQuotasRequest(
    entries=tuple(
        AlterClientQuotasRequestEntry(
            entity=(AlterClientQuotasRequestEntity(entity_type="user", entity_name=user),),
            ops=(AlterClientQuotasRequestOp(key=MUTATION_RATE, value=0.001, remove=False),),
        )
        for user in ("ANONYMOUS", "alice")
    )
)


async def test_a_tool_at_the_controller_is_not_heard_while_it_waits_and_a_broker_that_forwards_is(
    site: Site, serving: Serving
) -> None:
    def forwarded(request: RequestBody[Any], user: str) -> EnvelopeRequest:
        return EnvelopeRequest(
            request_data=encode_request(request, API[request.API_KEY].max_version, 5, "app")[4:],
            request_principal=encode_principal(ForwardedPrincipal.of(f"User:{user}")),
            client_host_address=bytes((127, 0, 0, 1)),
        )

    async with serving(site) as server, await connect(server.port) as broker:
        epoch = await join(broker, 1)
        assert not (await broker.request(LOW, timeout_ms=60_000)).entries[0].error_code
        tool = await connect(server.port)
        first = await tool.request(create(("a", 9)), timeout_ms=60_000)
        assert (first.topics[0].error_code, first.throttle_time_ms) == (0, 0)
        refused = await tool.request(create(("b", 1)), timeout_ms=60_000)
        assert refused.topics[0].error_code == EXCEEDED
        assert refused.throttle_time_ms > 1_000_000

        urgent = BrokerHeartbeatRequest(broker_id=1, broker_epoch=epoch, current_metadata_offset=epoch)
        assert (await broker.request(urgent, timeout_ms=60_000)).error_code == 0
        held_back = asyncio.ensure_future(tool.request(urgent, timeout_ms=60_000))
        codes = []
        for name, user in (("b", "alice"), ("c", "alice"), ("d", "alice"), ("e", "bob")):
            answer = await broker.request(forwarded(create((name, 9)), user), timeout_ms=60_000)
            assert answer.response_data is not None
            inner: Any = decode_response(answer.response_data, ApiKey.CREATE_TOPICS, 7).message
            codes.append(inner.topics[0].error_code)
        assert codes == [0, EXCEEDED, EXCEEDED, 0]
        assert not held_back.done()
        await tool.close()
        await asyncio.gather(held_back, return_exceptions=True)


async def test_how_much_may_be_changed_at_once_is_configured_as_in_kafka(site: Site, serving: Serving) -> None:
    site.configure(controller_quota_window_num="100", controller_quota_window_size_seconds="20")  # 2 partitions
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        assert not (await connection.request(LOW, timeout_ms=60_000)).entries[0].error_code
        answer = await connection.request(create(("a", 1), ("b", 1), ("c", 1), ("d", 1)), timeout_ms=60_000)
    assert [topic.error_code for topic in answer.topics] == [0, 0, 0, EXCEEDED]

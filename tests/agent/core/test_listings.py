"""Quotas, credentials and pages of topics, as any broker tells them from the metadata."""

import pytest

from kjbod.ids import Uuid
from kjbod.metadata.acls import Acls, Rules
from kjbod.metadata.image import MetadataImage, image_of
from kjbod.metadata.records import (
    ClientQuotaRecord,
    Endpoint,
    PartitionRecord,
    QuotaEntity,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from kjbod.wire.admin_messages import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasRequestComponent,
    DescribeTopicPartitionsCursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopic,
    DescribeTopicPartitionsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequestUser,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod_agent.admin import listings

EXACT, DEFAULT, ANY = listings.EXACT, listings.DEFAULT, listings.SPECIFIED


def quota(**entity: str | None) -> ClientQuotaRecord:
    parts = tuple(QuotaEntity(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in entity.items())
    return ClientQuotaRecord(entity=parts, key="producer_byte_rate", value=7.0, remove=False)


QUOTAS = image_of(
    [quota(user="a"), quota(user="b"), quota(user=None), quota(user="a", client_id="c"), quota(ip="1.1.1.1")]
)


def found(*components: tuple[str, int, str | None], strict: bool = False) -> list[str]:
    request = DescribeClientQuotasRequest(
        components=tuple(
            DescribeClientQuotasRequestComponent(entity_type=kind, match_type=how, match=match)
            for kind, how, match in components
        ),
        strict=strict,
    )
    answer = listings.describe_client_quotas(QUOTAS, request)
    if answer.error_code:
        return [ErrorCode(answer.error_code).name, answer.error_message or ""]
    assert answer.entries is not None
    return [" ".join(f"{part.entity_type}={part.entity_name}" for part in entry.entity) for entry in answer.entries]


@pytest.mark.parametrize(
    ("components", "strict", "expected"),
    [
        ((), False, ["user=a", "user=b", "user=None", "client-id=c user=a", "ip=1.1.1.1"]),
        ((), True, []),
        ((("user", EXACT, "a"),), False, ["user=a", "client-id=c user=a"]),
        ((("user", EXACT, "a"),), True, ["user=a"]),
        ((("user", DEFAULT, None),), False, ["user=None"]),
        ((("user", ANY, None),), True, ["user=a", "user=b", "user=None"]),
        ((("user", ANY, None), ("client-id", ANY, None)), True, ["client-id=c user=a"]),
        ((("ip", ANY, None),), False, ["ip=1.1.1.1"]),
    ],
)
def test_quotas_are_told_of_the_entities_that_match(
    components: tuple[tuple[str, int, str | None], ...], strict: bool, expected: list[str]
) -> None:
    assert found(*components, strict=strict) == expected


@pytest.mark.parametrize(
    ("components", "code", "words"),
    [
        ([("", EXACT, "a")], "INVALID_REQUEST", "Invalid empty entity type."),
        ([("user", EXACT, "a"), ("user", ANY, None)], "INVALID_REQUEST", "cannot appear more than once"),
        ([("zone", EXACT, "a")], "UNSUPPORTED_VERSION", "Unsupported entity type zone"),
        ([("user", EXACT, None)], "INVALID_REQUEST", "MATCH_TYPE_EXACT, but set match string to null"),
        ([("user", DEFAULT, "a")], "INVALID_REQUEST", "MATCH_TYPE_DEFAULT, but also specified"),
        ([("user", ANY, "a")], "INVALID_REQUEST", "MATCH_TYPE_SPECIFIED, but also specified"),
        ([("user", 9, None)], "INVALID_REQUEST", "Unknown match type 9"),
        ([("ip", ANY, None), ("user", ANY, None)], "INVALID_REQUEST", "IP filter component should not be used"),
    ],
)
def test_a_filter_of_quotas_that_means_nothing_is_refused(
    components: list[tuple[str, int, str | None]], code: str, words: str
) -> None:
    said = found(*components)
    assert said[0] == code and words in said[1]


def credential(user: str, mechanism: int, iterations: int) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        name=user, mechanism=mechanism, salt=b"s", stored_key=b"k", server_key=b"k", iterations=iterations
    )


def test_credentials_are_told_without_what_is_secret() -> None:
    image = image_of([credential("a", 1, 4096), credential("a", 2, 8192), credential("b", 1, 4096)])

    def ask(*users: str) -> list[tuple[str, int, list[tuple[int, int]]]]:
        named = tuple(DescribeUserScramCredentialsRequestUser(name=user) for user in users)
        answer = listings.describe_scram(image, DescribeUserScramCredentialsRequest(users=named or None))
        return [
            (r.user, r.error_code, [(c.mechanism, c.iterations) for c in r.credential_infos]) for r in answer.results
        ]

    assert ask() == [("a", 0, [(1, 4096), (2, 8192)]), ("b", 0, [(1, 4096)])]
    assert ask("b", "x", "a", "b") == [
        ("b", ErrorCode.DUPLICATE_RESOURCE, []),
        ("x", ErrorCode.RESOURCE_NOT_FOUND, []),
        ("a", 0, [(1, 4096), (2, 8192)]),
    ]


def cluster(**topics: int) -> MetadataImage:
    records: list[Record] = [
        RegisterBrokerRecord(
            broker_id=1,
            incarnation_id=Uuid.of(1, 1),
            broker_epoch=1,
            features=(),
            fenced=False,
            end_points=(Endpoint(name="PLAINTEXT", host="h", port=1),),
        )
    ]
    for name, partitions in topics.items():
        topic_id = Uuid.of(9, len(records))
        records.append(TopicRecord(name=name, topic_id=topic_id))
        records += [
            PartitionRecord(
                partition_id=number,
                topic_id=topic_id,
                replicas=(1, 2),
                isr=(1,),
                leader=1,
                eligible_leader_replicas=(2,),
            )
            for number in range(partitions)
        ]
    return image_of(records)


def pages(image: MetadataImage, limit: int, *names: str, acls: Acls | None = None) -> list[list[tuple[str, list[int]]]]:
    """All pages of an answer, as an admin client reads them."""
    everything = Acls(Rules(), (), principal="", host="")
    read, cursor = [], None
    while True:
        answer: DescribeTopicPartitionsResponse = listings.describe_topic_partitions(
            image,
            DescribeTopicPartitionsRequest(
                topics=tuple(DescribeTopicPartitionsRequestTopic(name=name) for name in names),
                response_partition_limit=limit,
                cursor=cursor,
            ),
            listener="PLAINTEXT",
            acls=acls or everything,
        )
        read.append([(t.name or "", [p.partition_index for p in t.partitions]) for t in answer.topics])
        cursor = answer.next_cursor
        if cursor is None:
            return read


def test_topics_are_told_page_by_page_in_the_order_of_their_names() -> None:
    image = cluster(b=3, a=2, c=1)
    assert pages(image, 2000) == [[("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])]]
    assert pages(image, 2) == [[("a", [0, 1])], [("b", [0, 1])], [("b", [2]), ("c", [0])]]
    assert pages(image, 4, "c", "b") == [[("b", [0, 1, 2]), ("c", [0])]]
    assert pages(image, -1, "a") == [[("a", [0])], [("a", [1])]], "at least one, whatever is asked"


def test_a_page_tells_eligible_replicas_rights_and_what_is_not_there() -> None:
    image = cluster(a=1)
    everything = Acls(Rules(), (), principal="", host="")

    def ask(*names: str, cursor: DescribeTopicPartitionsCursor | None = None) -> DescribeTopicPartitionsResponse:
        topics = tuple(DescribeTopicPartitionsRequestTopic(name=name) for name in names)
        request = DescribeTopicPartitionsRequest(topics=topics, cursor=cursor)
        return listings.describe_topic_partitions(image, request, listener="PLAINTEXT", acls=everything)

    known, unknown, invalid = ask("x", "a", "x/y").topics
    (partition,) = known.partitions
    assert (partition.leader_id, partition.isr_nodes, partition.offline_replicas) == (1, (1,), (2,))
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((2,), ())
    assert known.topic_authorized_operations > 0
    assert (unknown.name, unknown.error_code) == ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert (invalid.name, invalid.error_code) == ("x/y", ErrorCode.INVALID_TOPIC_EXCEPTION)
    (odd,) = ask("a", cursor=DescribeTopicPartitionsCursor(topic_name="a", partition_index=-1)).topics
    assert odd.error_code == ErrorCode.INVALID_REQUEST


def test_a_topic_that_may_not_be_seen_is_refused_where_it_was_named_and_else_left_out() -> None:
    image = cluster(a=1)
    nothing = Acls(Rules(class_name="some"), (), principal="User:x", host="h")
    assert pages(image, 9, acls=nothing) == [[]]
    assert pages(image, 9, "a", acls=nothing) == [[("a", [])]]

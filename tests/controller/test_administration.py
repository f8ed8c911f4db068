"""Quotas, credentials, tokens, producer ids: what an administrator may set, and what is written."""

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from kjbod.metadata import versions
from kjbod.metadata.records import (
    ClientQuotaRecord,
    Endpoint,
    ProducerIdsRecord,
    QuotaEntity,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from kjbod.wire.admin_messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntity,
    AlterClientQuotasRequestEntry,
    AlterClientQuotasRequestOp,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestScramCredentialDeletion,
    AlterUserScramCredentialsRequestScramCredentialUpsertion,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import decode_request, decode_response
from kjbod.wire.messages import INT64_MAX, DescribeClusterRequest, DescribeClusterResponse
from kjbod_controller_stub.results import Result
from kjbod_controller_stub.rules import KAFKA, KIP_858
from tests.controller.world import World

NAN = float("nan")
INFINITE = float("inf")

# ---------------------------------------------------------------- producer ids


def test_every_broker_gets_producer_ids_of_its_own_also_after_a_restart() -> None:
    world = World()
    world.join(1)
    world.join(2)
    blocks = []
    for broker in (1, 2, 1):
        request = AllocateProducerIdsRequest(broker_id=broker, broker_epoch=world.broker(broker).epoch)
        answer = world.ask(request)
        assert (answer.error_code, answer.producer_id_len) == (0, 1_000)
        assert world.last == [
            ProducerIdsRecord(
                broker_id=broker,
                broker_epoch=world.broker(broker).epoch,
                next_producer_id=answer.producer_id_start + 1_000,
            )
        ]
        blocks.append(answer.producer_id_start)
    assert blocks == [0, 1_000, 2_000]
    world.controller = world.replayed()
    assert world.ask(request).producer_id_start == 3_000


def test_a_broker_of_the_past_gets_no_producer_ids_and_there_is_an_end_to_them() -> None:
    world = World()
    world.join(1)
    epoch = world.broker(1).epoch
    for broker, its in ((1, epoch - 1), (1, epoch + 1), (2, epoch)):
        answer = world.ask(AllocateProducerIdsRequest(broker_id=broker, broker_epoch=its))
        assert answer == AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        assert not world.last
    used = ProducerIdsRecord(broker_id=1, broker_epoch=epoch, next_producer_id=INT64_MAX - 1_500)
    world.write(Result(records=(used,)))
    request = AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch)
    assert world.ask(request).producer_id_start == INT64_MAX - 1_500
    assert world.ask(request) == AllocateProducerIdsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)


# ---------------------------------------------------------------- quotas


def entry(entity: dict[str, str | None], *ops: tuple[str, float | None]) -> AlterClientQuotasRequestEntry:
    return AlterClientQuotasRequestEntry(
        entity=tuple(
            AlterClientQuotasRequestEntity(entity_type=kind, entity_name=name) for kind, name in entity.items()
        ),
        ops=tuple(
            AlterClientQuotasRequestOp(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in ops
        ),
    )


def alter(world: World, *entries: AlterClientQuotasRequestEntry, **fields: Any) -> list[tuple[int, str | None]]:
    answer = world.ask(AlterClientQuotasRequest(entries=entries, **fields))
    return [(each.error_code, each.error_message) for each in answer.entries]


ALICE: dict[str, str | None] = {"user": "alice"}


def test_quotas_are_set_changed_and_removed_and_what_is_as_it_was_writes_nothing() -> None:
    world = World()
    both: dict[str, str | None] = {"user": "alice", "client-id": None}
    good = [(0, None)]
    assert alter(world, entry(both, ("producer_byte_rate", 1024.0), ("request_percentage", 12.5))) == good
    assert [type(record) for record in world.last] == [ClientQuotaRecord] * 2
    parts = (
        QuotaEntity(entity_type="client-id", entity_name=None),
        QuotaEntity(entity_type="user", entity_name="alice"),
    )
    assert world.last[0] == ClientQuotaRecord(entity=parts, key="producer_byte_rate", value=1024.0, remove=False)
    assert alter(world, entry(both, ("producer_byte_rate", 1024.0), ("consumer_byte_rate", None))) == good
    assert not world.last
    assert alter(world, entry(both, ("producer_byte_rate", None), ("request_percentage", 13.0))) == good
    assert len(world.last) == 2
    assert world.replayed().image.quotas == {parts: {"request_percentage": 13.0}}
    assert alter(world, entry(both, ("request_percentage", None)), validate_only=True) == good
    assert not world.last
    assert alter(world, entry(both, ("request_percentage", None))) == good
    assert not world.controller.image.quotas


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (entry({}, ("producer_byte_rate", 1.0)), "Invalid empty client quota entity"),
        (entry({"group": "g"}, ("producer_byte_rate", 1.0)), "Unhandled client quota entity type: group"),
        (entry({"user": ""}, ("producer_byte_rate", 1.0)), "Empty user not supported"),
        (entry(ALICE, ("connection_creation_rate", 1.0)), "Invalid configuration key connection_creation_rate"),
        (entry({"ip": "10.0.0.1"}, ("producer_byte_rate", 1.0)), "Invalid configuration key producer_byte_rate"),
        (entry({"ip": "not an address"}, ("connection_creation_rate", 1.0)), "not an address is not a valid IP"),
        (entry({"ip": "::1", "user": "u"}, ("connection_creation_rate", 1.0)), "Invalid quota entity combination"),
        (entry(ALICE, ("producer_byte_rate", 0.0)), "Quota producer_byte_rate must be greater than 0"),
        (entry(ALICE, ("request_percentage", -1.0)), "Quota request_percentage must be greater than 0"),
        (entry(ALICE, ("producer_byte_rate", NAN)), "Quota producer_byte_rate must be a finite number"),
        (entry({"ip": None}, ("connection_creation_rate", NAN)), "Quota connection_creation_rate must be a finite"),
        (entry(ALICE, ("request_percentage", INFINITE)), "Quota request_percentage must be a finite number"),
        (entry(ALICE, ("controller_mutation_rate", -INFINITE)), "Quota controller_mutation_rate must be a finite"),
        (entry(ALICE, ("producer_byte_rate", 1.5)), "producer_byte_rate cannot be a fractional value."),
        (entry(ALICE, ("producer_byte_rate", 1e300)), "too large for a LONG"),
        (entry({"ip": None}, ("connection_creation_rate", 2.0**31)), "too large for an INT"),
        (entry(ALICE, ("producer_byte_rate", 1.0), ("producer_byte_rate", 2.0)), "Duplicate quota key"),
    ],
)
def test_a_quota_that_cannot_be_is_refused_and_the_others_are_set(
    asked: AlterClientQuotasRequestEntry, message: str
) -> None:
    world = World()
    answers = alter(world, asked, entry({"user": "bob"}, ("controller_mutation_rate", 0.5)))
    assert [code for code, _ in answers] == [ErrorCode.INVALID_REQUEST, 0]
    assert message in (answers[0][1] or "")
    assert len(world.last) == 1


def test_an_entity_is_altered_once_in_a_request() -> None:
    world = World()
    answers = alter(world, entry(ALICE, ("producer_byte_rate", 1.0)), entry(ALICE, ("producer_byte_rate", 2.0)))
    assert answers == [(ErrorCode.INVALID_REQUEST, "Ignoring duplicate entity user=alice")]
    assert world.controller.image.quotas == {
        (QuotaEntity(entity_type="user", entity_name="alice"),): {"producer_byte_rate": 1.0}
    }


# ---------------------------------------------------------------- SCRAM

SALT = b"salt"
SALTED = hashlib.pbkdf2_hmac("sha256", b"secret", SALT, 4_096)


def upsert(name: str = "alice", mechanism: int = 1, **fields: Any) -> Any:
    given: dict[str, Any] = {"iterations": 4_096, "salt": SALT, "salted_password": SALTED} | fields
    return AlterUserScramCredentialsRequestScramCredentialUpsertion(name=name, mechanism=mechanism, **given)


def delete(name: str = "alice", mechanism: int = 1) -> Any:
    return AlterUserScramCredentialsRequestScramCredentialDeletion(name=name, mechanism=mechanism)


def scram(world: World, *alterations: Any) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        deletions=tuple(
            each for each in alterations if isinstance(each, AlterUserScramCredentialsRequestScramCredentialDeletion)
        ),
        upsertions=tuple(
            each for each in alterations if isinstance(each, AlterUserScramCredentialsRequestScramCredentialUpsertion)
        ),
    )
    return {result.user: result.error_code for result in world.ask(request).results}


def test_a_credential_holds_what_follows_from_the_password_and_can_be_deleted() -> None:
    world = World()
    assert scram(world, upsert()) == {"alice": 0}
    (record,) = world.last
    assert isinstance(record, UserScramCredentialRecord)
    client_key = hmac.digest(SALTED, b"Client Key", "sha256")
    assert record.stored_key == hashlib.sha256(client_key).digest()
    assert record.server_key == hmac.digest(SALTED, b"Server Key", "sha256")
    assert (record.salt, record.iterations, record.mechanism) == (SALT, 4_096, 1)
    assert scram(world, delete("alice", 2)) == {"alice": ErrorCode.RESOURCE_NOT_FOUND}
    assert scram(world, delete()) == {"alice": 0}
    assert world.last == [RemoveUserScramCredentialRecord(name="alice", mechanism=1)]
    assert not world.replayed().image.scram


@pytest.mark.parametrize(
    ("alterations", "code"),
    [
        ((upsert(iterations=4_095),), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ((upsert(iterations=16_385),), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ((upsert(iterations=16_384),), 0),
        ((upsert(mechanism=0),), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ((delete(mechanism=3),), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ((upsert(name=""),), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ((delete(),), ErrorCode.RESOURCE_NOT_FOUND),
        ((upsert(), upsert(mechanism=2)), ErrorCode.DUPLICATE_RESOURCE),
        ((upsert(), upsert(mechanism=2), upsert()), ErrorCode.DUPLICATE_RESOURCE),
        ((upsert(salted_password=b""),), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_credential_that_cannot_be_is_refused_and_the_others_are_written(
    alterations: tuple[Any, ...], code: int
) -> None:
    world = World()
    assert scram(world, *alterations, upsert("bob")) == {alterations[0].name: code, "bob": 0}
    assert len(world.last) == (1 if code else 2)


def test_a_credential_that_exists_may_be_deleted_or_changed_but_not_both_in_one_request() -> None:
    world = World()
    scram(world, upsert())
    assert scram(world, delete(), upsert(iterations=8_192)) == {"alice": ErrorCode.DUPLICATE_RESOURCE}
    assert not world.last
    assert scram(world, upsert(iterations=8_192)) == {"alice": 0}


def test_there_are_no_credentials_before_the_metadata_version_that_has_them() -> None:
    world = World(metadata_version=versions.SCRAM - 1)
    assert scram(world, upsert()) == {"alice": ErrorCode.UNSUPPORTED_VERSION}
    assert not world.last
    assert scram(World(metadata_version=versions.SCRAM), upsert()) == {"alice": 0}


# ---------------------------------------------------------------- DescribeCluster


def test_an_admin_client_at_the_controller_is_told_what_a_real_one_tells() -> None:
    frames = {}
    for line in (Path(__file__).parents[1] / "data" / "frames.jsonl").read_text().splitlines():
        entry_ = json.loads(line)
        if entry_["id"] == 50:
            frames[entry_["direction"]] = bytes.fromhex(entry_["hex"])
    request = decode_request(frames["request"])
    real = decode_response(frames["response"], request.api_key, request.version).message
    assert isinstance(real, DescribeClusterResponse)
    world = World(KAFKA, cluster_id="kjbodRealKafka43AAAAAA")
    world.controller.endpoint = Endpoint(name="CONTROLLER", host=real.brokers[0].host, port=real.brokers[0].port)
    assert world.ask(request.message, request.version) == real


def test_what_a_client_learns_of_the_cluster_follows_the_rules() -> None:
    brokers, controllers = DescribeClusterRequest(), DescribeClusterRequest(endpoint_type=2)
    codes = []
    for rules in (KIP_858, KAFKA):
        old = World(rules, metadata_version=versions.CONTROLLER_REGISTRATION - 1)
        new = World(rules)
        codes.append([world.ask(request).error_code for world in (new, old) for request in (brokers, controllers)])
        codes[-1].append(new.ask(brokers, 0).error_code)
    assert codes == [[0, 0, 0, 0, 0], [ErrorCode.MISMATCHED_ENDPOINT_TYPE, 0, 35, 35, ErrorCode.INVALID_REQUEST]]

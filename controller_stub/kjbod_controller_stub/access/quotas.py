"""Client quotas: the allowed limits of an entity (``ClientQuotaControlManager``, KIP-546, KIP-612). Pure.

An entity is a user, a client id, both, or an IP address; a name of None is the default. One thing is decided without
Kafka's help: an ``ip`` has to be an address. Kafka's controller also takes a host name that it can resolve, but each
broker resolves it again and may come to another address.
"""

import ipaddress
import math
from collections.abc import Mapping
from typing import Final

from kjbod.metadata.image import MetadataImage
from kjbod.metadata.records import ClientQuotaRecord, QuotaEntity
from kjbod.wire.admin_messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntry,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntity,
    AlterClientQuotasResponseEntry,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod_controller_stub.results import ApiError, Draft

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

_INT_MAX: Final = 2.0**31 - 1
_LONG_MAX: Final = 2.0**63
_FRACTION_MAX: Final = 1e-6
"""What a whole number may be off."""
_CLIENT_KEYS: Final[Mapping[str, float | None]] = {
    "producer_byte_rate": _LONG_MAX,
    "consumer_byte_rate": _LONG_MAX,
    "request_percentage": None,
    "controller_mutation_rate": None,
}
_IP_KEYS: Final[Mapping[str, float | None]] = {"connection_creation_rate": _INT_MAX}
"""The largest whole number of each limit; None where it may be a fraction (``QuotaConfig``)."""

_Entity = dict[str, str | None]


def alter_quotas(draft: Draft, image: MetadataImage, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    """Set and remove limits, entity by entity. An unchanged limit writes no record."""
    answers: dict[tuple[tuple[str, str | None], ...], AlterClientQuotasResponseEntry] = {}
    for entry in request.entries:
        entity: _Entity = {part.entity_type: part.entity_name for part in entry.entity}
        key = tuple(sorted(entity.items(), key=lambda part: part[0]))
        code, message = 0, None
        try:
            if key in answers:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {_shown(entity)}")
            records = _records(image, entity, entry)
            if not request.validate_only:
                for record in records:
                    draft.add(record)
        except ApiError as error:
            code, message = error.code, error.message
        answers[key] = AlterClientQuotasResponseEntry(
            error_code=code,
            error_message=message,
            entity=tuple(
                AlterClientQuotasResponseEntity(entity_type=kind, entity_name=name) for kind, name in entity.items()
            ),
        )
    return AlterClientQuotasResponse(entries=tuple(answers.values()))


def _records(image: MetadataImage, entity: _Entity, entry: AlterClientQuotasRequestEntry) -> list[ClientQuotaRecord]:
    ops = {op.key: None if op.remove else op.value for op in entry.ops}
    if len(ops) < len(entry.ops):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate quota key for the entity {_shown(entity)}")
    allowed = _keys_of(entity)
    parts = tuple(QuotaEntity(entity_type=kind, entity_name=entity[kind]) for kind in sorted(entity))
    current = image.quotas.get(parts, {})
    records = []
    for key, value in ops.items():
        if value is None:
            if key in current:
                records.append(ClientQuotaRecord(entity=parts, key=key, value=0.0, remove=True))
            continue
        _check(allowed, key, value)
        before = current.get(key)
        if before != value:
            records.append(ClientQuotaRecord(entity=parts, key=key, value=value, remove=False))
    return records


def _keys_of(entity: _Entity) -> Mapping[str, float | None]:
    """Return the limits that the entity may have."""
    if not entity:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    for kind, name in entity.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Empty {kind} not supported")
    if IP not in entity:
        return _CLIENT_KEYS
    if len(entity) > 1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
        )
    address = entity[IP]
    if address is not None and not _is_address(address):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{address} is not a valid IP or resolvable host.")
    return _IP_KEYS


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _check(allowed: Mapping[str, float | None], key: str, value: float) -> None:
    if key not in allowed:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {key}")
    if not math.isfinite(value):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Quota {key} must be a finite number")
    if value <= 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Quota {key} must be greater than 0")
    most = allowed[key]
    if most is None:
        return
    if value > most:
        kind = "an INT" if most == _INT_MAX else "a LONG"
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Proposed value for {key} is too large for {kind}.")
    if math.fmod(value, 1.0) > _FRACTION_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{key} cannot be a fractional value.")


def _shown(entity: _Entity) -> str:
    return ", ".join(f"{kind}={'<default>' if name is None else name}" for kind, name in entity.items())

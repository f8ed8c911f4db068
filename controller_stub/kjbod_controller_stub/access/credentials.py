"""SCRAM credentials (``ScramControlManager``, KIP-554, KIP-900). Pure.

A password never arrives here: clients send it salted, and the records contain only derived keys.
"""

from collections.abc import Mapping
from typing import Final

from kjbod.metadata import versions
from kjbod.metadata.image import MetadataImage
from kjbod.metadata.records import Record, RemoveUserScramCredentialRecord
from kjbod.scram import ITERATIONS_MAX, MECHANISMS, Mechanism, credential
from kjbod.wire.admin_messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestScramCredentialDeletion,
    AlterUserScramCredentialsRequestScramCredentialUpsertion,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResponseResult,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod_controller_stub.results import ApiError, Draft

_Deletion = AlterUserScramCredentialsRequestScramCredentialDeletion
_Upsertion = AlterUserScramCredentialsRequestScramCredentialUpsertion

_MECHANISMS: Final[Mapping[int, Mechanism]] = {each.id: each for each in MECHANISMS.values()}


def alter_credentials(
    draft: Draft, image: MetadataImage, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Delete and write SCRAM credentials; a request may name each user once."""
    good: dict[str, _Deletion | _Upsertion] = {}
    errors: dict[str, ApiError] = {}
    alterations: list[_Deletion | _Upsertion] = [*request.deletions, *request.upsertions]
    for alteration in alterations:
        name = alteration.name
        if name in errors:
            continue
        try:
            if good.pop(name, None) is not None:
                raise ApiError(
                    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
                )
            _check(image, alteration)
        except ApiError as error:
            errors[name] = error
        else:
            good[name] = alteration
    for alteration in good.values():
        draft.add(_record(alteration))
    results = [AlterUserScramCredentialsResponseResult(user=name) for name in good]
    results += [
        AlterUserScramCredentialsResponseResult(user=name, error_code=error.code, error_message=error.message)
        for name, error in errors.items()
    ]
    return AlterUserScramCredentialsResponse(results=tuple(results))


def _check(image: MetadataImage, alteration: _Deletion | _Upsertion) -> None:
    if image.metadata_version < versions.SCRAM:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "The current metadata.version does not support SCRAM")
    if not alteration.name:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = _MECHANISMS.get(alteration.mechanism)
    if mechanism is None:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(alteration, _Deletion):
        if (alteration.mechanism, alteration.name) not in image.scram:
            raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    elif alteration.iterations < mechanism.iterations_min:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    elif alteration.iterations > ITERATIONS_MAX:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    elif not alteration.salted_password:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "Empty salted password")  # where Java's HMAC gives up


def _record(alteration: _Deletion | _Upsertion) -> Record:
    if isinstance(alteration, _Deletion):
        return RemoveUserScramCredentialRecord(name=alteration.name, mechanism=alteration.mechanism)
    return credential(
        alteration.name,
        _MECHANISMS[alteration.mechanism],
        salt=alteration.salt,
        salted_password=alteration.salted_password,
        iterations=alteration.iterations,
    )

"""Access control entries: create, delete (``AclControlManager``, ``AclApis``). Pure.

Without ``authorizer.class.name`` there are none, and the answer is SECURITY_DISABLED. Who may do what by them is
decided in :mod:`kjbod.metadata.acls`; :mod:`kjbod.metadata.describing` describes them.
"""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import structs

from kjbod.ids import ZERO, Uuid
from kjbod.metadata import describing, versions
from kjbod.metadata.acls import (
    ALLOW,
    ANY,
    CLUSTER_NAME,
    DENY,
    LITERAL,
    MATCH,
    PREFIXED,
    AclIndex,
    Operation,
    ResourceType,
)
from kjbod.metadata.describing import FilterError, acl_filter, matching_acls
from kjbod.metadata.networks import trouble_with_network
from kjbod.metadata.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from kjbod.wire.admin_messages import (
    CreateAclsRequest,
    CreateAclsRequestAclCreation,
    CreateAclsResponse,
    CreateAclsResponseAclCreation,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteAclsResponseFilter,
    DeleteAclsResponseMatchingAcl,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod_controller_stub.results import ApiError, Draft
from kjbod_controller_stub.rules import Rules

RECORDS_MAX: Final = 10_000
"""Records that one request may ask for (``QuorumController.MAX_RECORDS_PER_USER_OP``)."""

_TYPES: Final = frozenset(ResourceType)
_OPERATIONS: Final = frozenset(Operation)
_PERMISSIONS: Final = frozenset({DENY, ALLOW})
_NAMES: Final[Mapping[int, str]] = {ANY: "ANY"}
_PATTERN_NAMES: Final[Mapping[int, str]] = {ANY: "ANY", MATCH: "MATCH"}
NO_AUTHORIZER: Final = "No Authorizer is configured."


# ---------------------------------------------------------------- create


def create_acls(
    draft: Draft, index: AclIndex, request: CreateAclsRequest, draw_id: Callable[[], Uuid], rules: Rules
) -> CreateAclsResponse:
    """Write the new entries; each entry has its own answer."""
    if not rules.refuses_acls_one_by_one and any(map(_is_filter, request.creations)):
        failed = CreateAclsResponseAclCreation(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        return CreateAclsResponse(results=(failed,) * len(request.creations))
    new: dict[AccessControlEntryRecord, None] = {}
    results = []
    for creation in request.creations:
        try:
            entry = _entry(creation, draft.image.metadata_version)
        except ApiError as error:
            results.append(CreateAclsResponseAclCreation(error_code=error.code, error_message=error.message))
            continue
        results.append(CreateAclsResponseAclCreation(error_message=""))
        if entry not in index:
            new[entry] = None
    if len(new) > RECORDS_MAX:
        refused = CreateAclsResponseAclCreation(
            error_code=ErrorCode.POLICY_VIOLATION,
            error_message="Unable to perform excessively large batch operation.",
        )
        return CreateAclsResponse(results=(refused,) * len(request.creations))
    for entry in new:
        draft.add(structs.replace(entry, id=draw_id()))
    return CreateAclsResponse(results=tuple(results))


def _is_filter(creation: CreateAclsRequestAclCreation) -> bool:
    """Return whether the entry contains ANY or MATCH, which only a filter may contain."""
    return creation.resource_pattern_type in (ANY, MATCH) or ANY in (
        creation.resource_type,
        creation.operation,
        creation.permission_type,
    )


def _entry(creation: CreateAclsRequestAclCreation, metadata_version: int) -> AccessControlEntryRecord:
    """Return the entry to write, without an id."""

    def refuse(message: str) -> ApiError:
        return ApiError(ErrorCode.INVALID_REQUEST, message)

    if creation.resource_type == ResourceType.CLUSTER and creation.resource_name != CLUSTER_NAME:
        raise refuse(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not creation.resource_name:
        raise refuse("Invalid empty resource name")
    if creation.resource_type not in _TYPES:
        raise refuse(f"Invalid resourceType {_NAMES.get(creation.resource_type, 'UNKNOWN')}")
    if creation.resource_pattern_type not in (LITERAL, PREFIXED):
        raise refuse(f"Invalid patternType {_PATTERN_NAMES.get(creation.resource_pattern_type, 'UNKNOWN')}")
    if creation.operation not in _OPERATIONS:
        raise refuse(f"Invalid operation {_NAMES.get(creation.operation, 'UNKNOWN')}")
    if creation.permission_type not in _PERMISSIONS:
        raise refuse(f"Invalid permissionType {_NAMES.get(creation.permission_type, 'UNKNOWN')}")
    if ":" not in creation.principal:
        raise refuse(
            f"Could not parse principal from `{creation.principal}` "
            "(no colon is present separating the principal type from the principal name)"
        )
    _check_host(creation.host, metadata_version)
    return AccessControlEntryRecord(
        id=ZERO,
        resource_type=creation.resource_type,
        resource_name=creation.resource_name,
        pattern_type=creation.resource_pattern_type,
        principal=creation.principal,
        host=creation.host,
        operation=creation.operation,
        permission_type=creation.permission_type,
    )


def _check_host(host: str, metadata_version: int) -> None:
    """Require a host that can match a client. A name without a slash is accepted unchanged
    (``AclControlManager.validateHostPattern``).

    Raises:
        ApiError: it is empty, or a network at a metadata.version that has none, or no network.
    """
    if not host:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Host pattern cannot be null or empty")
    if "/" not in host:
        return
    if metadata_version < versions.CIDR_ACLS:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            "CIDR-based ACL host patterns require metadata version "
            f"{versions.release_name(versions.CIDR_ACLS)} or higher.",
        )
    if (trouble := trouble_with_network(host)) is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Invalid CIDR notation '{host}': {trouble}")


# ---------------------------------------------------------------- delete


def delete_acls(draft: Draft, index: AclIndex, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Delete the entries that the filters match. An entry that two filters match is deleted once and reported
    to both."""
    comparisons = [0]
    gone: dict[Uuid, None] = {}
    results = []
    for each in request.filters:
        try:
            matched = [*matching_acls(index, acl_filter(each), comparisons)]
        except FilterError as error:
            results.append(DeleteAclsResponseFilter(error_code=ErrorCode.INVALID_REQUEST, error_message=str(error)))
            continue
        gone |= dict.fromkeys(entry.id for entry in matched)
        results.append(DeleteAclsResponseFilter(matching_acls=tuple(map(_deleted, matched))))
    if len(gone) > RECORDS_MAX:
        refused = DeleteAclsResponseFilter(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"Cannot remove more than {RECORDS_MAX} acls in a single delete operation.",
        )
        return DeleteAclsResponse(filter_results=(refused,) * len(request.filters))
    for acl_id in gone:
        draft.add(RemoveAccessControlEntryRecord(id=acl_id))
    return DeleteAclsResponse(filter_results=tuple(results))


def _deleted(entry: AccessControlEntryRecord) -> DeleteAclsResponseMatchingAcl:
    return DeleteAclsResponseMatchingAcl(
        resource_type=entry.resource_type,
        resource_name=entry.resource_name,
        pattern_type=entry.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission_type,
    )


# ---------------------------------------------------------------- without an authorizer


def without_authorizer(
    request: CreateAclsRequest | DeleteAclsRequest | DescribeAclsRequest,
) -> CreateAclsResponse | DeleteAclsResponse | DescribeAclsResponse:
    """Return SECURITY_DISABLED, for each item if the answer has items."""
    code = ErrorCode.SECURITY_DISABLED
    match request:
        case CreateAclsRequest():
            creation = CreateAclsResponseAclCreation(error_code=code, error_message=NO_AUTHORIZER)
            return CreateAclsResponse(results=(creation,) * len(request.creations))
        case DeleteAclsRequest():
            result = DeleteAclsResponseFilter(error_code=code, error_message=NO_AUTHORIZER)
            return DeleteAclsResponse(filter_results=(result,) * len(request.filters))
    return describing.NO_AUTHORIZER

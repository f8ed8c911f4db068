"""Answers to DescribeAcls and ListConfigResources from the metadata alone (``AclApis``, ``ConfigHelper``). Used by the
controller and by the agent's listener, as every broker answers them. Pure."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from kjbod.metadata.acls import ALLOW, ANY, DENY, PREFIXED, AclFilter, AclIndex, Operation, ResourceType
from kjbod.metadata.image import BROKER, TOPIC, MetadataImage
from kjbod.metadata.records import AccessControlEntryRecord
from kjbod.wire.admin_messages import (
    DeleteAclsRequestFilter,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeAclsResponseAclDescription,
    DescribeAclsResponseResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListConfigResourcesResponseConfigResource,
)
from kjbod.wire.error_codes import ErrorCode

COMPARISONS_MAX: Final = 2_000_000
"""Maximum number of entries that the filters of one request are compared with, about a second of work; Kafka has no
limit."""
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
"""``ConfigResource.Type``."""
RESOURCE_TYPES: Final = frozenset({TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})

NO_AUTHORIZER: Final = DescribeAclsResponse(
    error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
)


class FilterError(Exception):
    """A filter of ACLs is meaningless or too expensive: INVALID_REQUEST, with a message."""


def acl_filter(wanted: DeleteAclsRequestFilter | DescribeAclsRequest) -> AclFilter:
    """Return the filter of a request.

    Raises:
        FilterError: the filter has a value that does not exist.
    """
    if wanted.resource_type_filter not in {ANY, *ResourceType} or wanted.pattern_type_filter not in range(
        ANY, PREFIXED + 1
    ):
        raise FilterError("Unknown patternFilter.")
    if wanted.operation not in {ANY, *Operation} or wanted.permission_type not in {ANY, DENY, ALLOW}:
        raise FilterError("Unknown entryFilter.")
    return AclFilter(
        resource_type=wanted.resource_type_filter,
        resource_name=wanted.resource_name_filter,
        pattern_type=wanted.pattern_type_filter,
        principal=wanted.principal_filter,
        host=wanted.host_filter,
        operation=wanted.operation,
        permission_type=wanted.permission_type,
    )


def matching_acls(index: AclIndex, wanted: AclFilter, comparisons: list[int]) -> Iterator[AccessControlEntryRecord]:
    """Yield the entries that a filter matches. The only element of ``comparisons`` counts the comparisons of the
    request.

    Raises:
        FilterError: more than :data:`COMPARISONS_MAX`.
    """
    for candidate in index.candidates(wanted):
        comparisons[0] += 1
        if comparisons[0] > COMPARISONS_MAX:
            raise FilterError("too many filters over too many ACLs: ask in smaller requests")
        if wanted.matches(candidate):
            yield candidate


def describe_acls(index: AclIndex, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """Return the matching entries, by resource."""
    found: dict[tuple[int, str, int], list[DescribeAclsResponseAclDescription]] = {}
    try:
        for entry in matching_acls(index, acl_filter(request), [0]):
            found.setdefault((entry.resource_type, entry.resource_name, entry.pattern_type), []).append(
                DescribeAclsResponseAclDescription(
                    principal=entry.principal,
                    host=entry.host,
                    operation=entry.operation,
                    permission_type=entry.permission_type,
                )
            )
    except FilterError as error:
        return DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=str(error))
    return DescribeAclsResponse(
        error_message="",
        resources=tuple(
            DescribeAclsResponseResource(
                resource_type=kind, resource_name=name, pattern_type=pattern, acls=tuple(entries)
            )
            for (kind, name, pattern), entries in found.items()
        ),
    )


def list_config_resources(
    image: MetadataImage, request: ListConfigResourcesRequest, *, version: int
) -> ListConfigResourcesResponse:
    """Return the resources of the requested types, or of all types if the request lists none. Version 0 knows client
    metrics only (KIP-1142)."""
    kinds: Collection[int] = {CLIENT_METRICS} if version == 0 else set(request.resource_types) or RESOURCE_TYPES
    if not RESOURCE_TYPES.issuperset(kinds):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=tuple(
            ListConfigResourcesResponseConfigResource(resource_name=name, resource_type=kind)
            for kind in sorted(kinds)
            for name in _names(image, kind)
        )
    )


def _names(image: MetadataImage, kind: int) -> Iterable[str]:
    if kind == TOPIC:
        return image.topic_ids
    if kind in (BROKER, BROKER_LOGGER):
        return [str(broker.id) for broker in image.brokers.values() if not broker.fenced]
    return [name for each, name in image.configs if each == kind]

"""Refusals of whole requests, as Kafka's controllers and brokers send them. For the controller, and for the agent's
listener, which also answers for an unreachable controller. Pure."""

from typing import Any

from kjbod.metadata.topic_screening import TEXTS
from kjbod.wire.admin_messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntity,
    AlterClientQuotasResponseEntry,
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterConfigsResponseResourceResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResponseResult,
    CreateAclsRequest,
    CreateAclsResponse,
    CreateAclsResponseAclCreation,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsResponseTopic,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteAclsResponseFilter,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResponsePartition,
    ElectLeadersResponseReplicaElection,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    API,
    CreateTopicsRequest,
    CreateTopicsResponse,
    CreateTopicsResponseTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DeleteTopicsResponse,
    DeleteTopicsResponseTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
    RequestBody,
    ResponseBody,
)


def refusal(request: RequestBody[Any], code: ErrorCode, version: int, message: str | None = None) -> ResponseBody:
    """Return the answer with ``code`` only: once, or for each item if the answer has no field for it above the items.

    Args:
        request: the refused request.
        code: the error code.
        version: version of the request; answers to older versions may have other fields.
        message: the reason as text; None: Kafka's text for the code, if any.
    """
    message = message or TEXTS.get(code)
    match request:
        case CreateTopicsRequest() | DeleteTopicsRequest() | CreatePartitionsRequest():
            return _topics(request, code, message)
        case IncrementalAlterConfigsRequest() | AlterConfigsRequest():
            return _configs(request, code, message)
        case AlterClientQuotasRequest():
            entries = (
                AlterClientQuotasResponseEntry(
                    error_code=code,
                    error_message=message,
                    entity=tuple(
                        AlterClientQuotasResponseEntity(entity_type=part.entity_type, entity_name=part.entity_name)
                        for part in entry.entity
                    ),
                )
                for entry in request.entries
            )
            return AlterClientQuotasResponse(entries=tuple(entries))
        case AlterUserScramCredentialsRequest():
            names = (*(each.name for each in request.deletions), *(each.name for each in request.upsertions))
            return AlterUserScramCredentialsResponse(
                results=tuple(
                    AlterUserScramCredentialsResponseResult(user=user, error_code=code, error_message=message)
                    for user in dict.fromkeys(names)
                )
            )
        case CreateAclsRequest():
            creation = CreateAclsResponseAclCreation(error_code=code, error_message=message)
            return CreateAclsResponse(results=(creation,) * len(request.creations))
        case DeleteAclsRequest():
            result = DeleteAclsResponseFilter(error_code=code, error_message=message)
            return DeleteAclsResponse(filter_results=(result,) * len(request.filters))
        case ElectLeadersRequest() if version == 0:  # version 0 of this answer has no error code above the partitions
            return ElectLeadersResponse(replica_election_results=_elections(request, code, message))
    response = API[request.API_KEY].response
    fields: dict[str, Any] = {"error_code": code}
    if "error_message" in response.__struct_fields__:
        fields["error_message"] = message
    return response(**fields)


def _topics(
    request: CreateTopicsRequest | DeleteTopicsRequest | CreatePartitionsRequest, code: ErrorCode, message: str | None
) -> ResponseBody:
    if isinstance(request, DeleteTopicsRequest):
        named = (*request.topics, *(DeleteTopicsRequestTopic(name=name) for name in request.topic_names))
        return DeleteTopicsResponse(
            responses=tuple(
                DeleteTopicsResponseTopic(name=t.name, topic_id=t.topic_id, error_code=code, error_message=message)
                for t in named
            )
        )
    names = dict.fromkeys(topic.name for topic in request.topics)
    if isinstance(request, CreateTopicsRequest):
        return CreateTopicsResponse(
            topics=tuple(CreateTopicsResponseTopic(name=n, error_code=code, error_message=message) for n in names)
        )
    return CreatePartitionsResponse(
        results=tuple(CreatePartitionsResponseTopic(name=n, error_code=code, error_message=message) for n in names)
    )


def _configs(
    request: IncrementalAlterConfigsRequest | AlterConfigsRequest, code: ErrorCode, message: str | None
) -> ResponseBody:
    if isinstance(request, IncrementalAlterConfigsRequest):
        return IncrementalAlterConfigsResponse(
            responses=tuple(
                IncrementalAlterConfigsResponseResource(
                    error_code=code,
                    error_message=message,
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                )
                for each in request.resources
            )
        )
    return AlterConfigsResponse(
        responses=tuple(
            AlterConfigsResponseResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
            )
            for each in request.resources
        )
    )


def _elections(
    request: ElectLeadersRequest, code: ErrorCode, message: str | None
) -> tuple[ElectLeadersResponseReplicaElection, ...]:
    return tuple(
        ElectLeadersResponseReplicaElection(
            topic=topic.topic,
            partition_result=tuple(
                ElectLeadersResponsePartition(partition_id=number, error_code=code, error_message=message)
                for number in topic.partitions
            ),
        )
        for topic in request.topic_partitions or ()
    )

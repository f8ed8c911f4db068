"""Dynamic configurations of this broker that a client wants to alter, and that only the broker can judge. Pure.

The controller does not know which directories a broker has, so it takes from a broker what that has checked
(``ConfigAdminManager.preprocess``, ``DynamicBrokerConfig.validate``; errors are INVALID_REQUEST). A value that the
agent could not do is refused here, or the cordon that was there would be lifted for one that never comes.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from msgspec import Struct

from kjbod.metadata.image import BROKER, MetadataImage
from kjbod.metadata.topic_screening import Screened
from kjbod.wire.admin_messages import AlterConfigsRequest, AlterConfigsResponse, AlterConfigsResponseResourceResponse
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
    RequestBody,
    ResponseBody,
)
from kjbod_agent.replicas.hosting import CORDONED_LOG_DIRS, MOVE_RATE, move_rate

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
"""``AlterConfigOp.OpType``."""


class Own(Struct, frozen=True):
    """The broker that judges.

    Attributes:
        node_id: its id.
        log_dirs: entries of ``log.dirs`` as they are now, spelled as they are configured.
    """

    node_id: int
    log_dirs: Collection[str]


def screen_own_configs(request: RequestBody[Any], image: MetadataImage, own: Own) -> Screened:
    """Take out the resources whose new values this broker could not do."""
    if not isinstance(request, (IncrementalAlterConfigsRequest, AlterConfigsRequest)):
        return Screened(request, lambda answer: answer)
    problems = {}
    for resource in request.resources:
        problem = _problem(request, resource, image, own)
        if problem is not None:
            problems[resource] = problem
    if not problems:
        return Screened(request, lambda answer: answer)
    left: tuple[Any, ...] = tuple(each for each in request.resources if each not in problems)

    def merge(answer: Any) -> ResponseBody:
        done = () if answer is None else answer.responses
        if isinstance(request, AlterConfigsRequest):
            refused = (_refused(AlterConfigsResponseResourceResponse, *each) for each in problems.items())
            return AlterConfigsResponse(responses=(*done, *refused))
        refused = (_refused(IncrementalAlterConfigsResponseResource, *each) for each in problems.items())
        return IncrementalAlterConfigsResponse(responses=(*done, *refused))

    if not left:
        return Screened(None, merge)
    if isinstance(request, AlterConfigsRequest):
        return Screened(AlterConfigsRequest(resources=left, validate_only=request.validate_only), merge)
    return Screened(IncrementalAlterConfigsRequest(resources=left, validate_only=request.validate_only), merge)


def _refused(outcome: Any, resource: Any, problem: str) -> Any:
    return outcome(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=problem,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _problem(request: RequestBody[Any], resource: Any, image: MetadataImage, own: Own) -> str | None:
    if resource.resource_type != BROKER:
        return None
    current = image.configs.get((BROKER, resource.resource_name), {})
    for config in resource.configs:
        if config.name not in _JUDGES:
            continue
        value = config.value
        if isinstance(request, IncrementalAlterConfigsRequest):
            value = _after(current.get(config.name, ""), config)
        if value is None:  # unset, or null, which the controller refuses
            continue
        if resource.resource_name not in ("", str(own.node_id)):
            return f"Unexpected broker id, expected {own.node_id}, but received {resource.resource_name}"
        problem = _JUDGES[config.name](value, resource.resource_name, own)
        if problem is not None:
            return f"Invalid value {value} for configuration {config.name}: {problem}"
    return None


def _after(before: str, config: IncrementalAlterConfigsRequestConfig) -> str | None:
    """The value after a change, None: there is none, or the controller has to say what is wrong with the change."""
    given = config.value
    if config.config_operation == _SET:
        return given
    if config.config_operation == _APPEND and given is not None:
        return f"{before},{given}"
    if config.config_operation == _SUBTRACT and given is not None:
        gone = _entries(given)
        return ",".join(each for each in _entries(before) if each not in gone)
    return None


def _entries(value: str) -> list[str]:
    return [entry for entry in map(str.strip, value.split(",")) if entry]


def _judge_cordoned(value: str, name: str, own: Own) -> str | None:
    """``DynamicBrokerConfig.PER_BROKER_CONFIGS``; entries of ``log.dirs``, or ``*`` alone (KIP-1066)."""
    if not name:
        return "it cannot be set for all brokers at once: name one"
    entries = dict.fromkeys(_entries(value))
    unknown = [entry for entry in entries if entry not in own.log_dirs]
    if not unknown or list(entries) == ["*"]:
        return None
    here = ", ".join(own.log_dirs)
    return f"{unknown[0]} is no entry of log.dirs, which are {here}; spell them as they are there, or give * alone"


def _judge_move_rate(value: str, name: str, own: Own) -> str | None:
    return "expected a number of bytes per second from 0 on" if move_rate(value) is None else None


_JUDGES: Final[Mapping[str, Any]] = {CORDONED_LOG_DIRS: _judge_cordoned, MOVE_RATE: _judge_move_rate}

"""What a client alters of this broker is either done or refused: an accepted value is one that the agent acts on."""

from typing import Any

import pytest

from kjbod.metadata.image import BROKER, TOPIC, MetadataImage
from kjbod.wire.admin_messages import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestResource,
    AlterConfigsResponse,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    CreateTopicsRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
)
from kjbod_agent.admin.own_configs import Own, screen_own_configs
from kjbod_agent.replicas.hosting import CORDONED_LOG_DIRS, MOVE_RATE, cordoned_log_dirs, move_rate

OWN = Own(3, ("/mnt/d1", "/mnt/d2/kafka", "relative"))
SET, DELETE, APPEND, SUBTRACT = range(4)


def image(value: str | None = None) -> MetadataImage:
    made = MetadataImage()
    if value is not None:
        made.configs[BROKER, "3"] = {CORDONED_LOG_DIRS: value}
    return made


def alter(value: str | None, operation: int = SET, *, name: str = "3", key: str = CORDONED_LOG_DIRS) -> Any:
    config = IncrementalAlterConfigsRequestConfig(name=key, config_operation=operation, value=value)
    resource = IncrementalAlterConfigsRequestResource(resource_type=BROKER, resource_name=name, configs=(config,))
    return IncrementalAlterConfigsRequest(resources=(resource,))


def is_allowed(request: Any, before: str | None = None) -> bool:
    return screen_own_configs(request, image(before), OWN).allowed is not None


@pytest.mark.parametrize(
    "value",
    [
        "/none", "/mnt/d1/", "/mnt//d1", "/mnt/./d1", "/mnt/d2", "/mnt/d2/kafka/..", "d1", "mnt/d1", "./relative",
        "/mnt/D1", "/mnt/d1,/none", "/none,/mnt/d1", "*,/mnt/d1", "/mnt/d1,*", "**", "/mnt/*", "[/mnt/d1]", '"/mnt/d1"',
        "/mnt/d1;/mnt/d2/kafka", "/mnt/d1 /mnt/d2/kafka", "file:///mnt/d1", "none", "/mnt/d1\0",
    ],
)  # fmt: skip
@pytest.mark.parametrize("operation", [SET, APPEND])
def test_a_path_that_is_no_entry_of_log_dirs_is_refused_and_the_cordon_stays(value: str, operation: int) -> None:
    screened = screen_own_configs(alter(value, operation), image("/mnt/d1"), OWN)
    assert screened.allowed is None
    (answer,) = screened.merge(None).responses  # type: ignore[attr-defined]
    assert (answer.error_code, answer.resource_name) == (ErrorCode.INVALID_REQUEST, "3")
    assert "/mnt/d1, /mnt/d2/kafka, relative" in answer.error_message


@pytest.mark.parametrize(
    ("value", "before", "operation", "cordoned"),
    [
        ("/mnt/d1", None, SET, {"/mnt/d1"}),
        (" /mnt/d1 , relative ", None, SET, {"/mnt/d1", "relative"}),
        ("/mnt/d1,/mnt/d1,", None, SET, {"/mnt/d1"}),
        ("*", "/mnt/d1", SET, set(OWN.log_dirs)),
        ("", "/mnt/d1", SET, set()),
        ("/mnt/d2/kafka", "/mnt/d1", APPEND, {"/mnt/d1", "/mnt/d2/kafka"}),
        ("/mnt/d1", "/mnt/d1,relative", SUBTRACT, {"relative"}),
        ("/gone", "/gone,relative", SUBTRACT, {"relative"}),  # a directory that is no more is taken out
    ],
)
def test_what_is_accepted_is_what_the_agent_cordons(
    value: str, before: str | None, operation: int, cordoned: set[str]
) -> None:
    assert is_allowed(alter(value, operation), before)
    after = {SET: value, APPEND: f"{before},{value}", SUBTRACT: ",".join(sorted(cordoned))}[operation]
    assert cordoned_log_dirs(image(after), 3, (), OWN.log_dirs) == cordoned


def test_unsetting_is_always_possible() -> None:
    assert is_allowed(alter(None, DELETE), "/gone")


def test_a_cordon_is_of_one_broker_and_set_by_itself() -> None:
    assert not is_allowed(alter("/mnt/d1", name=""))
    assert not is_allowed(alter("*", name="4"))
    assert is_allowed(alter(None, DELETE, name="4"))


@pytest.mark.parametrize("value", ["fast", "-1", "1e6", "10MB", "", "1.5", "9223372036854775808", "0x10", "١٢"])
def test_a_rate_of_moves_that_is_none_is_refused(value: str) -> None:
    assert not is_allowed(alter(value, key=MOVE_RATE))
    assert move_rate(value) is None


@pytest.mark.parametrize("value", ["0", "1000", " 7 ", "+5", "9223372036854775807"])
def test_a_rate_of_moves_that_is_accepted_is_one_that_the_agent_reads(value: str) -> None:
    assert is_allowed(alter(value, key=MOVE_RATE))
    assert is_allowed(alter(value, key=MOVE_RATE, name=""))
    assert move_rate(value) == int(value)


def test_the_older_request_is_judged_alike() -> None:
    def replace(value: str) -> AlterConfigsRequest:
        config = AlterConfigsRequestAlterableConfig(name=CORDONED_LOG_DIRS, value=value)
        resource = AlterConfigsRequestResource(resource_type=BROKER, resource_name="3", configs=(config,))
        return AlterConfigsRequest(resources=(resource,), validate_only=False)

    assert is_allowed(replace("/mnt/d1"))
    refused = screen_own_configs(replace("/none"), image(), OWN)
    answer = refused.merge(None)
    assert refused.allowed is None
    assert isinstance(answer, AlterConfigsResponse)
    assert [one.error_code for one in answer.responses] == [ErrorCode.INVALID_REQUEST]


def test_other_resources_are_done_and_other_requests_left_as_they_are() -> None:
    bad, good = alter("/none").resources[0], alter("/mnt/d1", key="log.cleaner.threads").resources[0]
    topic = IncrementalAlterConfigsRequestResource(resource_type=TOPIC, resource_name="t", configs=bad.configs)
    request = IncrementalAlterConfigsRequest(resources=(bad, good, topic), validate_only=True)
    screened = screen_own_configs(request, image(), OWN)
    assert screened.allowed == IncrementalAlterConfigsRequest(resources=(good, topic), validate_only=True)
    done = tuple(
        IncrementalAlterConfigsResponseResource(resource_type=one.resource_type, resource_name=one.resource_name)
        for one in (good, topic)
    )
    answer = screened.merge(IncrementalAlterConfigsResponse(responses=done))
    assert isinstance(answer, IncrementalAlterConfigsResponse)
    assert [one.error_code for one in answer.responses] == [0, 0, ErrorCode.INVALID_REQUEST]
    create = CreateTopicsRequest(topics=())
    assert screen_own_configs(create, image(), OWN).allowed is create

"""kio, generated from Kafka's own schemas, as the judge of our codec, in both directions."""

import io
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from kjbod.wire import schemas
from scripts import wire_messages, wire_schemas
from tests.depth import examples
from tests.wire.strategies import CASES, Case, as_kio, messages

KNOWN_TO_KIO = [case for case in CASES if (int(case.key), case.version, case.side) not in wire_schemas.NEWER]


@pytest.mark.parametrize("case", KNOWN_TO_KIO, ids=str)
@settings(max_examples=examples(6), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_kio_and_kjbod_read_each_other(case: Case, data: st.DataObject) -> None:
    message = data.draw(messages(case))
    theirs = as_kio(message, case.kio_class)
    written = case.codec.encode(message)
    buffer = io.BytesIO()
    entity_writer(case.kio_class)(buffer, theirs)

    read_by_kio, used = entity_reader(case.kio_class)(written, 0)
    assert (read_by_kio, used) == (theirs, len(written))
    assert case.codec.decode_exact(buffer.getvalue()) == message
    assert case.codec.decode_exact(written) == message


@pytest.mark.parametrize("case", KNOWN_TO_KIO, ids=str)
def test_header_versions_are_those_that_kio_names(case: Case) -> None:
    header: Any = case.kio_class.__header_schema__
    ours = {"request": schemas.request_header_version, "response": schemas.response_header_version}[case.side]
    assert ours(case.key, case.version) == header.__version__


@pytest.mark.usefixtures("world")  # ruff formats
def test_the_table_of_schemas_and_the_classes_of_messages_are_what_kio_makes_of_kafkas_own() -> None:
    stale = [path.name for path, text in wire_schemas.sources().items() if path.read_text() != text]
    assert not stale, f"python -m scripts.wire_schemas writes {' and '.join(stale)} anew"
    for key, version, side in wire_schemas.messages():
        ours = {"request": schemas.request_schema, "response": schemas.response_schema}[side]
        assert ours(key, version) == wire_schemas.schema_of(key, version, side)


TOPIC = "DeleteTopicsRequestTopic: A topic.\n"
REQUEST = "DeleteTopicsRequest: Deletes topics.\n    topics timeout_ms=0\n"
TABLE = f"""\
DELETE_TOPICS 1-6
DeleteTopicsResponseTopic (DeletableTopicResult): The outcome for one topic.
    topic_id?
DeleteTopicsResponse: The outcome, topic by topic.
{TOPIC}{REQUEST}"""
NO_LINE = "no API of ApiKey, no class and no fields of one"


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("DELETE_TOPICS 1", "DELETE_TOPIC 1", f"messages.txt:1: {NO_LINE}: DELETE_TOPIC 1-6"),
        ("DeleteTopicsRequest:", "DeleteTopicsRequest", f"messages.txt:6: {NO_LINE}: DeleteTopicsRequest Deletes"),
        ("timeout_ms=0", "timeout_ms = 0", f"messages.txt:7: {NO_LINE}:     topics timeout_ms = 0"),
        ("DeleteTopicsRequest:", "DeleteTopicRequest:", "DeleteTopicsRequest is in no table"),
        (" (DeletableTopicResult)", "", "DeletableTopicResult, the struct in field responses of DeleteTopicsResponse"),
        ("-6\n", "-6\nTopicState: A state.\n", "TopicState is no struct of Kafka's"),
        (
            f"{TOPIC}{REQUEST}",
            f"{REQUEST}{TOPIC}",
            "DeleteTopicsRequestTopic is below DeleteTopicsRequest, which needs it",
        ),
        ("topic_id?", "topic_ids?", "DeleteTopicsResponseTopic has no field topic_ids in Kafka's schemas"),
        ("timeout_ms=0", "timeout_ms?", "DeleteTopicsRequest needs a default of timeout_ms, which is ignorable"),
    ],
)
def test_a_mistake_in_a_table_of_messages_is_one_line(right: str, wrong: str, told: str) -> None:
    assert "class DeleteTopicsRequest(" in classes_of(TABLE)
    with pytest.raises(wire_messages.TableError, match=re.escape(told)):
        classes_of(TABLE.replace(right, wrong))


def classes_of(table: str) -> str:
    apis = wire_messages.read_table(table, "messages.txt")
    classes = wire_messages.Classes(apis, wire_schemas.schema_of)
    return "".join(classes.source(cls, api) for api in apis for cls in api.classes)


@pytest.mark.parametrize(("key", "version"), [(9999, 0), (63, 99), (4, 0)])
def test_a_message_that_kjbod_does_not_speak_is_a_lookup_error(key: int, version: int) -> None:
    with pytest.raises(LookupError, match=f"no request of API {key} in version {version}"):
        schemas.request_schema(key, version)

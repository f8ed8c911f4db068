"""kio, generated from Kafka's own schemas, as the judge of our codec, in both directions."""

import io
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from kjbod.wire import schemas
from scripts import wire_schemas
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


def test_the_table_of_schemas_is_what_kio_makes_of_kafkas_own() -> None:
    assert wire_schemas.TABLE.read_text() == wire_schemas.content(), "python -m scripts.wire_schemas writes it anew"
    for key, version, side in wire_schemas.messages():
        ours = {"request": schemas.request_schema, "response": schemas.response_schema}[side]
        assert ours(key, version) == wire_schemas.schema_of(key, version, side)


@pytest.mark.parametrize(("key", "version"), [(9999, 0), (63, 99), (4, 0)])
def test_a_message_that_kjbod_does_not_speak_is_a_lookup_error(key: int, version: int) -> None:
    with pytest.raises(LookupError, match=f"no request of API {key} in version {version}"):
        schemas.request_schema(key, version)

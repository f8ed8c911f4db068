"""Small files that others may have written: whatever is in them, they are read, or refused in one line."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kjbod.documents import int_of, parse_document, text_of
from kjbod.errors import ConfigError, StorageError
from kjbod.meta_properties import KNOWN_DIRECTORIES_NAME, MetaPropertiesError, parse_meta_properties
from kjbod.metadata.quorum_state import FILE_NAME, QuorumState, read_quorum_state
from kjbod.metadata.snapshot import SnapshotId
from kjbod_agent.replicas.stray_memory import STRAYS_NAME, StrayMemory
from kjbod_host.directories.known_directories import KnownDirectories
from kjbod_host.directories.start_up_rules import Memory

ID = "AAAAAAAAAAcAAAAAAAAAAQ"
TEXTS = st.sampled_from(
    ["1e400", "-1e400", "NaN", "Infinity", "-1", "0", "2147483648", "9223372036854775808", "9" * 5_000, "1.5", "true",
     "null", '""', '"x"', f'"{ID}"', "[]", "{}", "[" * 100_000, '{"a":' * 100_000, '"\\ud800"']
)  # fmt: skip
"""JSON texts of values that do not belong there, and of some that do."""
EACH = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


def with_hostile(**good: str) -> st.SearchStrategy[str]:
    """A document in which some values are others, or missing."""
    pairs = st.fixed_dictionaries({}, optional={key: st.just(text) | TEXTS for key, text in good.items()})
    return pairs.map(lambda found: "{" + ",".join(f'"{key}":{text}' for key, text in found.items()) + "}")


@EACH
@given(text=with_hostile(leaderId="1", leaderEpoch="2", votedId="-1", votedDirectoryId=f'"{ID}"', data_version="1"))
def test_a_quorum_state_is_read_or_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    try:
        state = read_quorum_state(tmp_path)
    except StorageError as error:
        assert str(tmp_path / FILE_NAME) in str(error)
        assert len(str(error).splitlines()) == 1
    else:
        assert isinstance(state, QuorumState)
        assert 0 <= state.leader_epoch < 2**31


@EACH
@given(
    entry=with_hostile(directory_id=f'"{ID}"', device='"sda"', serial="null", seen_ms="5"),
    node=TEXTS | st.just("1"),
    part=TEXTS,
)
def test_the_memory_of_directories_is_read_or_forgotten(tmp_path: Path, entry: str, node: str, part: str) -> None:
    known = KnownDirectories(tmp_path, 1)
    (tmp_path / KNOWN_DIRECTORIES_NAME).write_text(
        f'{{"version":2,"node_id":{node},"directories":{{"/d1":{entry}}},"retired":[],"last_read":{part}}}'
    )
    try:
        memory = known.load()
    except ConfigError as error:  # another node's: nothing is forgotten there
        assert str(tmp_path / KNOWN_DIRECTORIES_NAME) in str(error)
        assert len(str(error).splitlines()) == 1
        return
    assert isinstance(memory, Memory)
    known.path.write_bytes(known.content(memory, known.last_read(known.path.read_bytes())))
    assert known.load() == memory


@EACH
@given(
    entry=with_hostile(directory_id=f'"{ID}"', name='"t-0"', reason='"why"', since_ms="5"), node=TEXTS | st.just("1")
)
def test_the_memory_of_strays_is_read_or_forgotten(tmp_path: Path, entry: str, node: str) -> None:
    memory = StrayMemory(tmp_path, 1)
    (tmp_path / STRAYS_NAME).write_text(f'{{"version":1,"node_id":{node},"strays":[{entry}]}}')
    notes = memory.load()
    memory.save(notes)
    assert memory.load() == notes


@EACH
@given(st.dictionaries(st.sampled_from(["version", "node.id", "broker.id", "cluster.id", "directory.id"]), TEXTS))
def test_meta_properties_are_read_or_refused_in_one_line(values: dict[str, str]) -> None:
    content = "".join(f"{key}={value}\n" for key, value in values.items()).encode()
    try:
        parse_meta_properties(content, "file")
    except MetaPropertiesError as error:
        assert len(str(error).splitlines()) == 1


ARABIC = "\u0660" * 19 + "\u0667"
"""Digits to ``str.isdigit`` and to ``\\d``, seven in all."""


@pytest.mark.parametrize("name", ["9" * 20 + "-0000000001", "0" * 19 + "1-9999999999", f"{ARABIC}-0000000001"])
def test_a_name_that_kafka_cannot_have_given_is_no_snapshots(name: str) -> None:
    assert SnapshotId.parse(f"{name}.checkpoint") is None


def test_numbers_and_texts_are_what_they_are() -> None:
    assert parse_document("[1, 1.5]") == [1, 1.5]
    assert (int_of(7, 7, 7), text_of("x")) == (7, "x")
    bad: list[Callable[[], Any]] = [lambda: int_of(True), lambda: int_of(1.0), lambda: int_of(-1), lambda: text_of(1)]
    bad += [lambda: parse_document("1e400"), lambda: parse_document(json.dumps(math.nan))]
    for each in bad:
        with pytest.raises(ValueError, match="no"):
            each()

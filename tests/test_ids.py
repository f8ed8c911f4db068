"""Ids: rows ID-1 to ID-3 of the scenario list, and the three orders that must not be confused."""

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kjbod.ids import (
    LOST,
    METADATA_TOPIC_ID,
    MIGRATING,
    ONE,
    UNASSIGNED,
    ZERO,
    Uuid,
    is_online,
    is_reserved,
    random_directory_id,
    random_uuid,
)

uuids = st.binary(min_size=16, max_size=16).map(Uuid)


class Scripted(random.Random):
    """A source of randomness that yields given bytes first."""

    def __init__(self, *values: bytes) -> None:
        super().__init__(0)
        self._values = list(values)

    def randbytes(self, n: int) -> bytes:
        return self._values.pop(0) if self._values else super().randbytes(n)


@pytest.mark.parametrize(
    ("directory", "text"),
    [
        pytest.param(MIGRATING, "AAAAAAAAAAAAAAAAAAAAAA", id="migrating"),
        pytest.param(UNASSIGNED, "AAAAAAAAAAAAAAAAAAAAAQ", id="unassigned"),
        pytest.param(LOST, "AAAAAAAAAAAAAAAAAAAAAg", id="lost"),
    ],
)
def test_id_1_the_three_constants_are_reserved_and_have_shipped_kafkas_values(directory: Uuid, text: str) -> None:
    assert is_reserved(directory)
    assert str(directory) == text


def test_the_first_hundred_ids_and_those_with_a_negative_low_half_are_reserved() -> None:
    assert is_reserved(Uuid.of(0, 99))
    assert is_reserved(Uuid.of(0, -1))
    assert not is_reserved(Uuid.of(0, 100))
    assert not is_reserved(Uuid.of(1, 0))


def test_id_3_members_are_online_and_lost_and_foreign_ones_are_not() -> None:
    known = (Uuid.of(1, 1), Uuid.of(2, 2))
    foreign = Uuid.of(3, 3)
    assert [is_online(d, known) for d in (*known, UNASSIGNED, MIGRATING)] == [True] * 4
    assert not is_online(foreign, known)
    assert not is_online(LOST, known)
    assert is_online(foreign, ())  # KAFKA-16162: registered before directories were recorded
    assert not is_online(LOST, ())


@given(uuids)
def test_text_is_22_characters_and_reads_back(value: Uuid) -> None:
    text = str(value)
    assert len(text) == 22
    assert Uuid.parse(text) == value
    assert Uuid.parse(text + "==") == value


def test_unused_bits_of_the_last_character_are_ignored_as_java_does() -> None:
    assert Uuid.parse("AAAAAAAAAAAAAAAAAAAAAR") == ONE


@pytest.mark.parametrize(
    "text",
    ["", "A", "AAAAAAAAAAAAAAAAAAAA+A", "AAAAAAAAAAAAAAAAAAAA/A", "A" * 23, "A" * 25, "not an id at all !!", "é" * 22],
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="UUID"):
        Uuid.parse(text)


def test_only_sixteen_bytes_make_an_id() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        Uuid(b"short")


@given(uuids, uuids)
def test_order_is_javas_signed_pair(a: Uuid, b: Uuid) -> None:
    assert (a < b) == (a.halves < b.halves)
    assert (a <= b) == (a.halves <= b.halves)
    assert (a > b) == (a.halves > b.halves)
    assert (a >= b) == (a.halves >= b.halves)


def test_signed_order_differs_from_pythons_uuid_order() -> None:
    low, high = Uuid.of(-1, 0), Uuid.of(1, 0)
    assert sorted([high, low]) == [low, high]
    assert uuid.UUID(bytes=bytes(low)) > uuid.UUID(bytes=bytes(high))


def test_mp_7_directory_ids_are_drawn_again_while_reserved_used_or_with_a_leading_dash() -> None:
    used = (Uuid.of(5, 5), Uuid.of(6, 6))
    dash = Uuid.parse("-AAAAAAAAAAAAAAAAAAAAA")
    good = Uuid.of(7, 7)
    rng = Scripted(bytes(ZERO), bytes(LOST), bytes(Uuid.of(0, 50)), bytes(dash), *map(bytes, used), bytes(good))
    assert random_directory_id(rng, used) == good


@given(st.integers())
def test_random_ids_are_version_4_and_safe_on_a_command_line(seed: int) -> None:
    drawn = random_uuid(random.Random(seed))
    assert uuid.UUID(bytes=bytes(drawn)).version == 4
    assert not str(drawn).startswith("-")
    assert not is_reserved(drawn)


def test_the_metadata_topic_has_the_bits_of_unassigned() -> None:
    assert METADATA_TOPIC_ID == UNASSIGNED

"""CRCs of record batches, of a segment that comes in pieces."""

import binascii
import itertools
import struct

from hypothesis import given
from hypothesis import strategies as st

from kjbod_host.storage.conformance import batch, sealed
from kjbod_host.storage.segments import BatchCheck

BASE = 100


def legacy(offset: int, magic: int, value: bytes) -> bytes:
    """A message of magic 0 or 1, as brokers before 0.11 wrote it (``LegacyRecord``)."""
    time = b"" if magic == 0 else struct.pack(">q", 1_700_000_000_000)
    covered = struct.pack(">bb", magic, 0) + time + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qi", offset, 4 + len(covered)) + struct.pack(">I", binascii.crc32(covered)) + covered


def log(kinds: list[int]) -> list[bytes]:
    """One batch or message of each magic, in order of offsets."""
    entries, offset = [], BASE
    for number, magic in enumerate(kinds):
        count = 1 + number % 3 if magic == 2 else 1
        entries.append(sealed(batch(offset, count, number * 7)) if magic == 2 else legacy(offset, magic, b"v" * number))
        offset += count
    return entries


def checked(content: bytes, cuts: list[int]) -> BatchCheck:
    """Fed in pieces; what it knows goes as plain values from one to the next, as between two requests."""
    check = BatchCheck(BASE)
    places = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    for start, end in itertools.pairwise(places):
        check.feed(memoryview(content)[start:end])
        check = BatchCheck.of(check.state)
    return check


KINDS = st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=12)
CUTS = st.lists(st.integers(0, 1500), max_size=6)


@given(kinds=KINDS, cuts=CUTS)
def test_a_right_log_of_any_magic_is_right_however_it_is_cut(kinds: list[int], cuts: list[int]) -> None:
    entries = log(kinds)
    content = b"".join(entries)
    check = checked(content, cuts)
    assert check.position == len(content)


@given(kinds=KINDS, cuts=CUTS, data=st.data())
def test_each_wrong_bit_that_a_crc_covers_is_found_at_its_batch(
    kinds: list[int], cuts: list[int], data: st.DataObject
) -> None:
    entries = log(kinds)
    number = data.draw(st.integers(0, len(entries) - 1))
    covered = 21 if kinds[number] == 2 else 16
    at = data.draw(st.integers(covered, len(entries[number]) - 1))
    wrong = bytearray(entries[number])
    wrong[at] ^= 1 << data.draw(st.integers(0, 7))
    content = b"".join([*entries[:number], bytes(wrong), *entries[number + 1 :]])
    check = checked(content, cuts)
    assert check.position == len(b"".join(entries[:number]))


@given(kinds=KINDS, cuts=CUTS, tail=st.sampled_from([b"\0" * 4096, b"\0" * 5, b"\xff" * 100, b"x"]))
def test_what_follows_the_last_batch_is_left_behind_it(kinds: list[int], cuts: list[int], tail: bytes) -> None:
    content = b"".join(log(kinds))
    assert checked(content + tail, cuts).position == len(content)

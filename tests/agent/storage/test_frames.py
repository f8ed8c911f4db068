"""Messages between daemon and workers survive any cut of the stream."""

import pytest

from kjbod_host.storage.worker import Unframer, frame

MESSAGES = [
    {"n": 1, "op": "probe", "expect": [[1, None, "8:1", 2, "ff", None], None], "full": True},
    {"n": 2, "us": 10, "errno": 5, "call": "fsync of .kjbod_probe"},
    {"n": 3, "us": 4, "ok": [["caf\udce9-0", None], ["topic-1", ("topic", 1, "")]]},
]


@pytest.mark.parametrize("size", [1, 3, 7, 64, 100_000])
def test_messages_arrive_whole_however_the_stream_is_cut(size: int) -> None:
    stream = b"".join(map(frame, MESSAGES))
    unframer = Unframer()
    pieces = (stream[start : start + size] for start in range(0, len(stream), size))
    assert [message for piece in pieces for message in unframer.feed(piece)] == MESSAGES

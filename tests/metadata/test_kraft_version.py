"""The level of the quorum, which is in control records: what an observer learns of it."""

from kjbod.metadata.batches import encode_batch, iter_batches
from kjbod.metadata.control_records import KRaftVersion, LeaderChange
from kjbod.metadata.fetching import Committed


def committed(*data: bytes) -> Committed:
    batches = tuple(batch for each in data for batch in iter_batches(each))
    return Committed((), batches[-1].last_offset, 1, batches[-1].next_offset, batches)


def level(version: int, offset: int) -> bytes:
    return encode_batch([KRaftVersion(k_raft_version=version)], offset, 1, 0, control=True)


def test_the_last_record_says_the_level_and_most_batches_say_nothing() -> None:
    leader = encode_batch([LeaderChange(leader_id=1, voters=())], 0, 1, 0, control=True)
    assert committed(leader).kraft_version is None
    assert committed(encode_batch([b"\x01\x00\x00"], 0, 1, 0)).kraft_version is None
    assert committed(leader, level(0, 1), level(1, 2)).kraft_version == 1

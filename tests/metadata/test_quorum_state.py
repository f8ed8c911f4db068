"""The quorum-state file, in both versions of Kafka's."""

import json
from pathlib import Path

from kjbod.ids import Uuid
from kjbod.metadata.quorum_state import FILE_NAME, QuorumState, read_quorum_state, write_quorum_state

STATE = QuorumState(leader_id=3000, leader_epoch=7, voted_id=3000, voted_directory_id=Uuid.of(5, 6))


def test_kraft_version_1_has_the_directory_of_who_was_voted_for(tmp_path: Path) -> None:
    write_quorum_state(tmp_path, STATE)
    assert json.loads((tmp_path / FILE_NAME).read_bytes()) == {
        "leaderId": 3000,
        "leaderEpoch": 7,
        "votedId": 3000,
        "votedDirectoryId": str(Uuid.of(5, 6)),
        "data_version": 1,
    }
    assert read_quorum_state(tmp_path) == STATE


def test_kraft_version_0_has_the_voters_that_are_configured(tmp_path: Path) -> None:
    write_quorum_state(tmp_path, QuorumState(leader_id=3000, leader_epoch=7), kraft_version=0, voter=3000)
    assert json.loads((tmp_path / FILE_NAME).read_bytes()) == {
        "clusterId": "",
        "leaderId": 3000,
        "leaderEpoch": 7,
        "votedId": -1,
        "appliedOffset": 0,
        "currentVoters": [{"voterId": 3000}],
        "data_version": 0,
    }
    assert read_quorum_state(tmp_path) == QuorumState(leader_id=3000, leader_epoch=7)

"""The only voter of a quorum: it votes for nobody, follows nobody, and stays alone."""

from typing import Any

import pytest
from msgspec.structs import replace

from kjbod.ids import METADATA_TOPIC_NAME, ZERO, Uuid
from kjbod.metadata.records import Endpoint
from kjbod.wire.admin_messages import (
    AddRaftVoterRequest,
    AddRaftVoterRequestListener,
    BeginQuorumEpochRequest,
    BeginQuorumEpochRequestPartition,
    BeginQuorumEpochRequestTopic,
    EndQuorumEpochRequest,
    EndQuorumEpochRequestPartition,
    EndQuorumEpochRequestTopic,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
    UpdateRaftVoterRequestKRaftVersionFeature,
    UpdateRaftVoterRequestListener,
    VoteRequest,
    VoteRequestPartition,
    VoteRequestTopic,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod_controller_stub.log.voters import ALONE, Voter
from tests.controller.conftest import Serving, Site
from tests.controller.test_server import connect
from tests.controller.world import CLUSTER_ID, NODE_ID

EPOCH = 5
OWN = Uuid.of(3000, 1)
VOTER = Voter(
    cluster_id=CLUSTER_ID,
    node_id=NODE_ID,
    directory_id=OWN,
    endpoint=Endpoint(name="CONTROLLER", host="here", port=9093),
    epoch=EPOCH,
    kraft_version=1,
)


def vote(epoch: int, **fields: Any) -> VoteRequest:
    partition = VoteRequestPartition(
        partition_index=0, replica_epoch=epoch, replica_id=8, last_offset_epoch=4, last_offset=10**9, **fields
    )
    topic = VoteRequestTopic(topic_name=METADATA_TOPIC_NAME, partitions=(partition,))
    return VoteRequest(cluster_id=CLUSTER_ID, topics=(topic,))


def begin(leader: int, epoch: int) -> BeginQuorumEpochRequest:
    partition = BeginQuorumEpochRequestPartition(partition_index=0, leader_id=leader, leader_epoch=epoch)
    topic = BeginQuorumEpochRequestTopic(topic_name=METADATA_TOPIC_NAME, partitions=(partition,))
    return BeginQuorumEpochRequest(cluster_id=CLUSTER_ID, topics=(topic,))


def end(leader: int, epoch: int) -> EndQuorumEpochRequest:
    partition = EndQuorumEpochRequestPartition(partition_index=0, leader_id=leader, leader_epoch=epoch)
    topic = EndQuorumEpochRequestTopic(topic_name=METADATA_TOPIC_NAME, partitions=(partition,))
    return EndQuorumEpochRequest(cluster_id=CLUSTER_ID, topics=(topic,))


@pytest.mark.parametrize("epoch", [EPOCH, EPOCH + 1, 2**31 - 1])
@pytest.mark.parametrize("pre_vote", [False, True])
def test_nobody_gets_its_vote_however_new_the_epoch_and_long_the_log(epoch: int, pre_vote: bool) -> None:
    answer: Any = VOTER.answer(vote(epoch, pre_vote=pre_vote), 2)
    (partition,) = answer.topics[0].partitions
    assert (partition.error_code, partition.vote_granted) == (0, False)
    assert (partition.leader_id, partition.leader_epoch) == (NODE_ID, EPOCH)
    assert [(node.node_id, node.host, node.port) for node in answer.node_endpoints] == [(NODE_ID, "here", 9093)]


@pytest.mark.parametrize("made", [begin, end])
@pytest.mark.parametrize(
    ("leader", "epoch", "code"),
    [
        (NODE_ID, EPOCH, 0),
        (NODE_ID, EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (8, EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (-1, EPOCH, ErrorCode.INVALID_REQUEST),
        (8, EPOCH, ErrorCode.INCONSISTENT_VOTER_SET),
        (8, EPOCH + 1, ErrorCode.INCONSISTENT_VOTER_SET),
        (NODE_ID, EPOCH + 1, ErrorCode.INCONSISTENT_VOTER_SET),
    ],
)
def test_nobody_else_leads(made: Any, leader: int, epoch: int, code: int) -> None:
    answer: Any = VOTER.answer(made(leader, epoch), 1)
    (partition,) = answer.topics[0].partitions
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (code, NODE_ID, EPOCH)


def add(voter_id: int) -> AddRaftVoterRequest:
    listener = AddRaftVoterRequestListener(name="CONTROLLER", host="there", port=1)
    return AddRaftVoterRequest(
        timeout_ms=1_000, voter_id=voter_id, voter_directory_id=Uuid.of(8, 8), listeners=(listener,)
    )


def test_a_second_voter_is_refused_and_told_where_a_quorum_of_several_is_to_be_had() -> None:
    answer: Any = VOTER.answer(add(8), 1)
    assert (answer.error_code, answer.error_message) == (ErrorCode.POLICY_VIOLATION, ALONE)
    itself: Any = VOTER.answer(add(NODE_ID), 1)
    assert itself.error_code == ErrorCode.DUPLICATE_VOTER
    fixed: Any = replace(VOTER, kraft_version=0).answer(add(8), 1)
    assert fixed.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(("voter_id", "directory"), [(NODE_ID, OWN), (8, Uuid.of(8, 8))])
def test_the_last_voter_stays(voter_id: int, directory: Uuid) -> None:
    answer: Any = VOTER.answer(RemoveRaftVoterRequest(voter_id=voter_id, voter_directory_id=directory), 0)
    assert answer.error_code == ErrorCode.VOTER_NOT_FOUND
    assert answer.error_message.startswith(f"Cannot remove voter ReplicaKey(id={voter_id}, ")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"voter_id": 8}, ErrorCode.VOTER_NOT_FOUND),
        ({"voter_directory_id": Uuid.of(8, 8)}, ErrorCode.VOTER_NOT_FOUND),
        ({"voter_directory_id": ZERO}, ErrorCode.INVALID_REQUEST),
        ({"listeners": ()}, ErrorCode.INVALID_REQUEST),
        ({"current_leader_epoch": EPOCH - 1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": EPOCH + 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
    ],
)
def test_only_it_itself_is_a_voter_to_update(changes: dict[str, Any], code: int) -> None:
    request = UpdateRaftVoterRequest(
        current_leader_epoch=EPOCH,
        voter_id=NODE_ID,
        voter_directory_id=OWN,
        listeners=(UpdateRaftVoterRequestListener(name="CONTROLLER", host="here", port=9093),),
        k_raft_version_feature=UpdateRaftVoterRequestKRaftVersionFeature(max_supported_version=1),
    )
    answer: Any = VOTER.answer(replace(request, **changes), 0)
    assert answer.error_code == code
    assert (answer.current_leader.leader_id, answer.current_leader.host) == (NODE_ID, "here")


async def test_a_candidate_of_a_newer_epoch_changes_nothing_in_a_live_controller(site: Site, serving: Serving) -> None:
    site.configure(metadata_max_idle_interval_ms="60000")
    async with serving(site) as server, await connect(server.port) as stranger:
        end_offset, epoch = server.log.end_offset, server.quorum.epoch
        answer = await stranger.request(vote(1_000), timeout_ms=60_000)
        assert not answer.topics[0].partitions[0].vote_granted
        await stranger.request(begin(8, 1_000), timeout_ms=60_000)
        assert (server.log.end_offset, server.quorum.epoch) == (end_offset, epoch)

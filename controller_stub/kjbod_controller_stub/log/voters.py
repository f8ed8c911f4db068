"""Answers of a quorum's only voter to requests to vote, lead or join (``KafkaRaftClient``). Pure.

Nothing here changes the quorum. A request of the current epoch, or of an older one, gets Kafka's answer. A newer epoch
is where this differs: Kafka's voter takes it over, stands down and is elected again, or follows whoever says that it
leads. In a quorum of one there is no other voter that could have opened that epoch: the request comes from a node that
was configured for another quorum. It gets no vote, and a leader of a newer epoch is told INCONSISTENT_VOTER_SET.

A second voter is refused with one line: a quorum of several means Apache Kafka's own controllers.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from kjbod.ids import METADATA_TOPIC_NAME, ZERO, Uuid
from kjbod.metadata.records import Endpoint
from kjbod.wire.admin_messages import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    BeginQuorumEpochResponseNodeEndpoint,
    BeginQuorumEpochResponsePartition,
    BeginQuorumEpochResponseTopic,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    EndQuorumEpochResponseNodeEndpoint,
    EndQuorumEpochResponsePartition,
    EndQuorumEpochResponseTopic,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
    UpdateRaftVoterResponseCurrentLeader,
    VoteRequest,
    VoteResponse,
    VoteResponseNodeEndpoint,
    VoteResponsePartition,
    VoteResponseTopic,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import ResponseBody
from kjbod_controller_stub.results import ApiError

ALONE: Final = "kjbod controller is a quorum of one: a quorum of several voters needs Apache Kafka's own controllers"
_NODE_ENDPOINTS_SINCE: Final = 1
"""Version of Vote, BeginQuorumEpoch and EndQuorumEpoch from which answers say where the leader is."""


class Voter(Struct, frozen=True, kw_only=True):
    """The voter and leader, this node."""

    cluster_id: str
    node_id: int
    directory_id: Uuid
    endpoint: Endpoint
    epoch: int
    kraft_version: int

    def answer(self, request: Any, version: int) -> ResponseBody:
        """Answer one of the requests in :data:`ANSWERS`."""
        return ANSWERS[type(request)](self, request, version)

    def is_meant(self, voter_id: int, directory_id: Uuid) -> bool:
        """Return whether a request with this voter key is for this node; without a key it is."""
        return voter_id < 0 or (voter_id == self.node_id and directory_id in (ZERO, self.directory_id))

    @property
    def key(self) -> str:
        """Return the voter key as Kafka prints it."""
        return _key(self.node_id, self.directory_id)


def _key(node_id: int, directory_id: Uuid) -> str:
    return f"ReplicaKey(id={node_id}, directoryId={directory_id})"


def _partition(request: Any) -> Any:
    """Return the only partition that a request may be about.

    Raises:
        ApiError: INVALID_REQUEST: it names another one, none, or several.
    """
    topics = request.topics
    if len(topics) != 1 or topics[0].topic_name != METADATA_TOPIC_NAME or len(topics[0].partitions) != 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, "only __cluster_metadata-0 has a quorum")
    partition = topics[0].partitions[0]
    if partition.partition_index != 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, "only __cluster_metadata-0 has a quorum")
    return partition


def _vote(voter: Voter, request: VoteRequest, version: int) -> VoteResponse:
    if request.cluster_id not in (None, voter.cluster_id):
        return VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    try:
        candidate = _partition(request)
    except ApiError as error:
        return VoteResponse(error_code=error.code)
    partition = VoteResponsePartition(
        partition_index=0,
        error_code=_vote_error(voter, request.voter_id, candidate),
        leader_id=voter.node_id,
        leader_epoch=voter.epoch,
        vote_granted=False,
    )
    return VoteResponse(
        topics=(VoteResponseTopic(topic_name=METADATA_TOPIC_NAME, partitions=(partition,)),),
        node_endpoints=_endpoints(voter, version, VoteResponseNodeEndpoint),
    )


def _vote_error(voter: Voter, voter_id: int, candidate: Any) -> int:
    before = candidate.last_offset_epoch <= candidate.replica_epoch
    if not candidate.pre_vote:
        before = candidate.last_offset_epoch < candidate.replica_epoch
    if candidate.last_offset < 0 or candidate.last_offset_epoch < 0 or not before:
        return ErrorCode.INVALID_REQUEST
    if candidate.replica_epoch < voter.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if candidate.replica_id < 0:
        return ErrorCode.INVALID_REQUEST
    return 0 if voter.is_meant(voter_id, candidate.voter_directory_id) else ErrorCode.INVALID_VOTER_KEY


def _begin_epoch(voter: Voter, request: BeginQuorumEpochRequest, version: int) -> BeginQuorumEpochResponse:
    if request.cluster_id not in (None, voter.cluster_id):
        return BeginQuorumEpochResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    try:
        leader = _partition(request)
    except ApiError as error:
        return BeginQuorumEpochResponse(error_code=error.code)
    code = _leader_error(voter, leader)
    if not code and not voter.is_meant(request.voter_id, leader.voter_directory_id):
        code = ErrorCode.INVALID_VOTER_KEY
    partition = BeginQuorumEpochResponsePartition(
        partition_index=0, error_code=code, leader_id=voter.node_id, leader_epoch=voter.epoch
    )
    return BeginQuorumEpochResponse(
        topics=(BeginQuorumEpochResponseTopic(topic_name=METADATA_TOPIC_NAME, partitions=(partition,)),),
        node_endpoints=_endpoints(voter, version, BeginQuorumEpochResponseNodeEndpoint),
    )


def _end_epoch(voter: Voter, request: EndQuorumEpochRequest, version: int) -> EndQuorumEpochResponse:
    if request.cluster_id not in (None, voter.cluster_id):
        return EndQuorumEpochResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    try:
        leader = _partition(request)
    except ApiError as error:
        return EndQuorumEpochResponse(error_code=error.code)
    partition = EndQuorumEpochResponsePartition(
        partition_index=0,
        error_code=_leader_error(voter, leader),
        leader_id=voter.node_id,
        leader_epoch=voter.epoch,
    )
    return EndQuorumEpochResponse(
        topics=(EndQuorumEpochResponseTopic(topic_name=METADATA_TOPIC_NAME, partitions=(partition,)),),
        node_endpoints=_endpoints(voter, version, EndQuorumEpochResponseNodeEndpoint),
    )


def _leader_error(voter: Voter, leader: Any) -> int:
    if leader.leader_epoch < voter.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if leader.leader_id < 0:
        return ErrorCode.INVALID_REQUEST
    itself = leader.leader_id == voter.node_id and leader.leader_epoch == voter.epoch
    return 0 if itself else ErrorCode.INCONSISTENT_VOTER_SET


def _endpoints(voter: Voter, version: int, kind: Callable[..., Any]) -> tuple[Any, ...]:
    if version < _NODE_ENDPOINTS_SINCE:
        return ()
    return (kind(node_id=voter.node_id, host=voter.endpoint.host, port=voter.endpoint.port),)


def _require_voter(voter: Voter, request: Any, verb: str) -> None:
    if request.cluster_id not in (None, voter.cluster_id):
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f'The given id "{request.cluster_id}" doesn\'t match the cluster id "{voter.cluster_id}"',
        )
    if request.voter_id < 0 or request.voter_directory_id == ZERO:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{verb} voter request didn't include a valid voter")


def _add(voter: Voter, request: AddRaftVoterRequest, version: int) -> AddRaftVoterResponse:
    try:
        _require_voter(voter, request, "Add")
        if voter.endpoint.name not in {listener.name for listener in request.listeners}:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Add voter request didn't include the endpoint ({_shown(request)}) for the default listener "
                f"ListenerName({voter.endpoint.name})",
            )
        _require_dynamic(voter, "adding")
        if request.voter_id == voter.node_id:
            raise ApiError(
                ErrorCode.DUPLICATE_VOTER,
                f"The voter id for {_key(request.voter_id, request.voter_directory_id)} is already part of the set of "
                f"voters [{voter.key}].",
            )
        raise ApiError(ErrorCode.POLICY_VIOLATION, ALONE)
    except ApiError as error:
        return AddRaftVoterResponse(error_code=error.code, error_message=error.message)


def _shown(request: AddRaftVoterRequest) -> str:
    """Return the endpoints, as Kafka prints them."""
    endpoints = (f"ListenerName({each.name})={each.host}/<unresolved>:{each.port}" for each in request.listeners)
    return f"Endpoints(endpoints={{{', '.join(endpoints)}}})"


def _remove(voter: Voter, request: RemoveRaftVoterRequest, version: int) -> RemoveRaftVoterResponse:
    """Refuse every removal: the last voter cannot be removed, and there is no other."""
    try:
        _require_voter(voter, request, "Remove")
        _require_dynamic(voter, "removing")
        raise ApiError(
            ErrorCode.VOTER_NOT_FOUND,
            f"Cannot remove voter {_key(request.voter_id, request.voter_directory_id)} from the set of voters "
            f"[{voter.key}]",
        )
    except ApiError as error:
        return RemoveRaftVoterResponse(error_code=error.code, error_message=error.message)


def _require_dynamic(voter: Voter, doing: str) -> None:
    if voter.kraft_version < 1:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Cluster doesn't support {doing} voter because the kraft.version feature is {voter.kraft_version}",
        )


def _update(voter: Voter, request: UpdateRaftVoterRequest, version: int) -> UpdateRaftVoterResponse:
    return UpdateRaftVoterResponse(
        error_code=_update_error(voter, request),
        current_leader=UpdateRaftVoterResponseCurrentLeader(
            leader_id=voter.node_id, leader_epoch=voter.epoch, host=voter.endpoint.host, port=voter.endpoint.port
        ),
    )


def _update_error(voter: Voter, request: UpdateRaftVoterRequest) -> int:
    if request.cluster_id not in (None, voter.cluster_id):
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if request.current_leader_epoch < voter.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if request.current_leader_epoch > voter.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    supported = request.k_raft_version_feature
    known = supported.min_supported_version <= voter.kraft_version <= supported.max_supported_version
    if (
        request.voter_id < 0
        or request.voter_directory_id == ZERO
        or voter.endpoint.name not in {listener.name for listener in request.listeners}
        or supported.min_supported_version < 0
        or not known
    ):
        return ErrorCode.INVALID_REQUEST
    # Its own registration is in the log since it opened the epoch; no other node is a voter.
    if (request.voter_id, request.voter_directory_id) != (voter.node_id, voter.directory_id):
        return ErrorCode.VOTER_NOT_FOUND
    return 0


_Answer = Callable[[Voter, Any, int], ResponseBody]

ANSWERS: Final[Mapping[type[Any], _Answer]] = {
    VoteRequest: _vote,
    BeginQuorumEpochRequest: _begin_epoch,
    EndQuorumEpochRequest: _end_epoch,
    AddRaftVoterRequest: _add,
    RemoveRaftVoterRequest: _remove,
    UpdateRaftVoterRequest: _update,
}

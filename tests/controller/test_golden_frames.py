"""The requests of real 4.3.1 brokers, in the order of their lives, get a real controller's answers (rules=kafka)."""

import json
from pathlib import Path
from typing import Any

from msgspec import structs

from kjbod.ids import Uuid
from kjbod.metadata.records import PartitionRecord, TopicRecord
from kjbod.wire.frames import decode_request, decode_response
from kjbod.wire.messages import (
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kjbod_controller_stub.results import Result
from kjbod_controller_stub.rules import KAFKA
from tests.controller.world import World


def golden() -> dict[int, tuple[Any, Any, int]]:
    """Request, response and version by pair."""
    frames: dict[int, dict[str, Any]] = {}
    for line in (Path(__file__).parents[1] / "data/frames.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["key"] in (62, 63, 73) and entry["peer"] == "to controller":
            frames.setdefault(entry["id"], {})[entry["direction"]] = bytes.fromhex(entry["hex"])
    pairs = {}
    for pair, both in frames.items():
        request = decode_request(both["request"])
        response = decode_response(both["response"], request.api_key, request.version)
        pairs[pair] = (request.message, response.message, request.version)
    return pairs


class Session:
    """A world that real brokers' requests come to; epochs and offsets are moved to where this world's are."""

    def __init__(self) -> None:
        self.world = World(KAFKA, cluster_id="kjbodRealKafka43AAAAAA", metadata_version=30)
        self.pairs = golden()

    def send(self, pair: int) -> None:
        request, real, version = self.pairs[pair]
        if isinstance(request, BrokerHeartbeatRequest):
            epoch = self.world.broker(request.broker_id).epoch
            request = structs.replace(
                request,
                broker_epoch=epoch,
                current_metadata_offset=request.current_metadata_offset - request.broker_epoch + epoch,
            )
        elif isinstance(request, AssignReplicasToDirsRequest):
            request = structs.replace(request, broker_epoch=self.world.broker(request.broker_id).epoch)
        answer = self.world.ask(request, version)
        if isinstance(answer, BrokerRegistrationResponse):
            answer = structs.replace(answer, broker_epoch=real.broker_epoch)
        assert answer == real, f"pair {pair}"

    def silence(self) -> None:
        self.world.now_ms += 9_001
        while self.world.expire():
            pass


def test_the_lives_of_real_brokers() -> None:
    session = Session()
    world = session.world
    for pair in (13, 18, 19, 20, 21):
        session.send(pair)
    first = structs.replace(session.pairs[15][0], incarnation_id=Uuid.of(1, 1))
    assert isinstance(first, BrokerRegistrationRequest)
    assert world.ask(first).error_code == 0
    assert not world.beat(2).is_fenced

    request = session.pairs[28][0]
    topic_id = request.directories[0].topics[0].topic_id
    unknown = (Uuid.of(0, 1),) * 2
    partitions = tuple(
        PartitionRecord(
            partition_id=number,
            topic_id=topic_id,
            replicas=(2, 1),
            isr=(2, 1),
            leader=2,
            leader_epoch=0,
            partition_epoch=0,
            directories=unknown,
        )
        for number in range(12)
    )
    world.write(Result(records=(TopicRecord(name="golden", topic_id=topic_id), *partitions)))
    for pair in (28, 29, 30, 31, 22, 23, 24):
        session.send(pair)

    world.beat(1, offset=0)  # the other broker has not applied what the shutdown will write
    session.send(25)
    session.send(26)
    world.beat(1)
    session.send(27)
    session.send(14)
    session.silence()
    session.send(15)
    assert not world.beat(2).is_fenced
    session.silence()  # killed
    session.send(16)
    session.send(17)


def test_answers_are_compared_field_by_field() -> None:
    _, real, _ = golden()[27]
    assert real == BrokerHeartbeatResponse(is_caught_up=True, is_fenced=True, should_shut_down=True)

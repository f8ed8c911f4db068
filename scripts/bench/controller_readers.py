"""A process full of clients that ask a controller for all that it has: ``python -m scripts.bench.controller_readers``.

Each has a connection of its own and :data:`IN_FLIGHT` requests on their way, asks again as soon as it is answered, and
throws the answers away. At the end of its input it ends; a line ``report`` is answered with what came by then, in JSON.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import sys

from kjbod.ids import METADATA_TOPIC_ID, METADATA_TOPIC_NAME
from kjbod.runtime.loop import run
from kjbod.wire.frames import encode_request
from kjbod.wire.messages import (
    API,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    RequestBody,
)

IN_FLIGHT = 4
_FETCH_BYTES = 1 << 20
_LENGTH_BYTES = 4


def questions(cluster_id: str, epoch: int, metadata: bool) -> list[bytes]:
    """Large reads that the controller serves: the log, all reassignments, and all partitions where it has Metadata."""
    partition = FetchRequestPartition(
        partition=0, current_leader_epoch=epoch, fetch_offset=0, last_fetched_epoch=0, partition_max_bytes=_FETCH_BYTES
    )
    fetch = FetchRequest(
        cluster_id=cluster_id,
        replica_state=FetchRequestReplicaState(replica_id=-1),
        max_wait_ms=0,
        max_bytes=_FETCH_BYTES,
        topics=(FetchRequestTopic(topic=METADATA_TOPIC_NAME, topic_id=METADATA_TOPIC_ID, partitions=(partition,)),),
    )
    asked: list[RequestBody] = [fetch, ListPartitionReassignmentsRequest(topics=None)]  # type: ignore[type-arg]
    if metadata:
        asked = [MetadataRequest(topics=None)]
    return [encode_request(each, API[each.API_KEY].max_version, 1, "kjbod-bench") for each in asked]


class Readers:
    """Clients that read, and a count of what they got."""

    def __init__(self) -> None:
        self.answers = self.bytes = 0

    async def read(self, port: int, asked: list[bytes]) -> None:
        """Until cancelled."""
        stream, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        turns = itertools.cycle(asked)
        for _ in range(IN_FLIGHT):
            writer.write(next(turns))
        while True:
            left = int.from_bytes(await stream.readexactly(_LENGTH_BYTES))
            self.bytes += left
            while left:
                left -= len(await stream.read(min(left, 1 << 20)))
            self.answers += 1
            writer.write(next(turns))


async def _serve(options: argparse.Namespace) -> int:
    readers, asked = Readers(), questions(options.cluster_id, options.epoch, options.metadata)
    reading = [asyncio.ensure_future(readers.read(options.port, asked)) for _ in range(options.clients)]
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        ended = sum(task.done() for task in reading)
        print(json.dumps({"answers": readers.answers, "bytes": readers.bytes, "ended": ended}), flush=True)
    for task in reading:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*reading, return_exceptions=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.controller_readers", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("cluster_id")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--epoch", type=int, required=True, help="of the controller")
    parser.add_argument("--metadata", action="store_true", help="it serves Metadata: nothing else is asked")
    options = parser.parse_args()
    return run(lambda: _serve(options))


if __name__ == "__main__":
    sys.exit(main())

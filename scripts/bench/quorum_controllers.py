"""Controllers of the quorum benchmark: four of Apache Kafka's, three of which vote (KIP-853), and what they commit."""

import contextlib
import signal
from typing import Final

from kjbod.clock import system_random
from kjbod.errors import KjbodError
from kjbod.ids import Uuid, random_uuid
from kjbod.metadata.follower import Committed
from kjbod.wire.messages import DescribeQuorumRequest, DescribeQuorumResponsePartition
from scripts.bench.quorum_network import Network
from scripts.rig.cluster import Cluster, ask, wait_until_serving
from scripts.rig.cluster_watch import ClusterWatch, Seen
from scripts.rig.kafka import QUORUM, SERVER, KafkaKit, render_properties
from scripts.rig.processes import ManagedProcess, wait_until
from scripts.rig.rig_error import RigError

CONTROLLERS: Final = (1, 2, 3, 4)
"""Numbers of their hosts."""
VOTERS: Final = 3
PORT: Final = 9093
WAIT_S: Final = 60.0
HEAP_MIB: Final = 256
_FIRST_ID: Final = 3000
_BEHIND_MAX: Final = 100
"""Records; the active one writes one each half second."""


class AppendWatch(ClusterWatch):
    """Commits by the moment at which the active controller appended them: the observer, too, loses that one."""

    def __init__(self, cluster_id: str, servers: list[tuple[str, int]]) -> None:
        self.epochs: dict[int, float] = {}
        """Moment of the first batch of each leader epoch, in seconds of the wall clock."""
        super().__init__(PORT, cluster_id, servers=servers)

    def _on_committed(self, committed: Committed) -> None:
        for batch in committed.batches:
            self.epochs.setdefault(batch.leader_epoch, batch.base_timestamp_ms / 1000)
        with self._lock:
            for offset, record in committed.records:
                batch = next(one for one in committed.batches if one.base_offset <= offset <= one.last_offset)
                self._replayer.replay(offset, committed.epoch, record)
                self._seen.append(Seen(offset, record, batch.base_timestamp_ms / 1000))

    def led_on(self, broker: int, directory: Uuid) -> list[tuple[Uuid, int]]:
        """Partitions that a broker leads with a replica in a directory: topic id and partition."""
        with self._lock:
            return [
                (topic.id, number)
                for topic in self._image.topics.values()
                for number, partition in topic.partitions.items()
                if partition.leader == broker and partition.directory(broker) == directory
            ]


class Controllers:
    """The four of them. Three are voters at first; which they are changes with the trials."""

    def __init__(self, cluster: Cluster, kit: KafkaKit, network: Network) -> None:
        self._cluster, self._kit, self._network = cluster, kit, network
        self.servers = [(network.address(number), PORT) for number in CONTROLLERS]
        self._configs = {number: cluster.base / f"controller-{number}.properties" for number in CONTROLLERS}
        self._running: dict[int, ManagedProcess] = {}

    def start(self) -> None:
        """Format and start them; returns when one is active."""
        ids = {number: random_uuid(system_random()) for number in CONTROLLERS[:VOTERS]}
        voters = ",".join(
            f"{_FIRST_ID + number}@{self._network.address(number)}:{PORT}:{ids[number]}" for number in ids
        )
        bootstrap = ",".join(f"{host}:{port}" for host, port in self.servers)
        for number, config in self._configs.items():
            keys = {
                "process.roles": "controller",
                "node.id": _FIRST_ID + number,
                "controller.quorum.bootstrap.servers": bootstrap,
                "listeners": f"CONTROLLER://{self._network.address(number)}:{PORT}",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": self._cluster.base / f"controller-{number}",
            }
            config.write_text(render_properties(keys))
            how = ["--initial-controllers", voters] if number in ids else ["-N"]
            self._kit.format(config, self._cluster.cluster_id, *how)
            self.launch(number)
        self.wait_for_active()

    def launch(self, number: int) -> None:
        command = self._kit.command(SERVER, str(self._configs[number]), heap_mib=HEAP_MIB)
        self._running[number] = self._cluster.processes.start(
            [*self._network.enter(number), *command], name=f"controller-{number}"
        )

    def signal(self, number: int, what: signal.Signals) -> None:
        self._running[number].signal(what)

    def quorum(self) -> DescribeQuorumResponsePartition | None:
        """Ask the active one; None: nobody says that he is."""
        for number in CONTROLLERS:
            with contextlib.suppress(KjbodError, OSError):
                answer = ask(PORT, DescribeQuorumRequest(), host=self._network.address(number))
                found = answer.topics[0].partitions[0]
                if not found.error_code and found.leader_id == _FIRST_ID + number:
                    return found
        return None

    def active(self) -> int:
        """Number of the active one; 0: there is none."""
        found = self.quorum()
        return 0 if found is None else found.leader_id - _FIRST_ID

    def wait_for_active(self) -> int:
        """Number of the active one. Raises :class:`~scripts.rig.processes.WaitTimeoutError`."""
        return wait_until(self.active, WAIT_S, "an active controller")

    def add_voter(self) -> None:
        """Add the controller that is none yet. Raises :class:`RigError`."""
        quorum = self._require_quorum()
        number = next(
            n for n in CONTROLLERS if _FIRST_ID + n not in [voter.replica_id for voter in quorum.current_voters]
        )
        self._tool("add-controller", "--command-config", str(self._configs[number]))

    def remove_voter(self, number: int) -> None:
        """Raises :class:`RigError`."""
        voter = next(v for v in self._require_quorum().current_voters if v.replica_id == _FIRST_ID + number)
        self._tool(
            *("remove-controller", "--controller-id", str(_FIRST_ID + number)),
            *("--controller-directory-id", str(voter.replica_directory_id)),
        )

    def _require_quorum(self) -> DescribeQuorumResponsePartition:
        self.wait_for_active()
        found = self.quorum()
        if found is None:
            raise RigError("no controller says that it is active")
        return found

    def _tool(self, *arguments: str) -> None:
        """``kafka-metadata-quorum``; its ``--command-config`` goes before the command."""
        config = list(arguments[1:]) if arguments[1] == "--command-config" else []
        rest = [arguments[0]] if config else list(arguments)
        servers = ",".join(f"{host}:{port}" for host, port in self.servers)
        self._kit.run(QUORUM, "--bootstrap-controller", servers, *config, *rest)

    def restore(self, number: int) -> None:
        """All run, that one as well, of which something has become; and three vote."""
        process = self._running[number]
        if process.running:
            process.signal(signal.SIGCONT)
        else:
            self.launch(number)
        wait_until_serving(self._running[number], WAIT_S)
        wait_until(self._all_follow, WAIT_S, "four controllers that follow")
        quorum = self._require_quorum()
        if len(quorum.current_voters) > VOTERS:
            spare = next(v.replica_id for v in quorum.current_voters if v.replica_id != quorum.leader_id)
            self.remove_voter(spare - _FIRST_ID)

    def _all_follow(self) -> bool:
        quorum = self.quorum()
        if quorum is None:
            return False
        end = max(voter.log_end_offset for voter in quorum.current_voters)
        known = {one.replica_id: one for one in (*quorum.current_voters, *quorum.observers)}
        ids = [_FIRST_ID + number for number in CONTROLLERS]
        return all(id_ in known and end - known[id_].log_end_offset < _BEHIND_MAX for id_ in ids)

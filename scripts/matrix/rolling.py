"""Row *rolling*: controllers and brokers go from release to release, one at a time, with a guard beside each broker."""

import signal
from pathlib import Path
from typing import Final

from kjbod.errors import KjbodError
from kjbod.metadata import versions
from kjbod.wire.messages import DescribeQuorumRequest, DescribeQuorumResponsePartition
from scripts.matrix.stage import Stage, claim
from scripts.rig.cluster import ask, wait_until_serving
from scripts.rig.cluster_watch import ClusterWatch
from scripts.rig.java_clients import now_ms
from scripts.rig.kafka import (
    FEATURES,
    LEADER_ELECTION,
    SERVER,
    SIGTERMED,
    KafkaKit,
    controller_properties,
    render_properties,
)
from scripts.rig.processes import ManagedProcess, Processes, free_port, wait_until
from scripts.rig.rig_error import RigError
from scripts.story.disks import KillableDisk
from scripts.story.guard_cluster import PARTITIONS, VICTIM, GuardedCluster
from scripts.story.guard_stage import stage as disks_of_three
from scripts.story.guard_stage import started
from scripts.story.guard_steps import GuardStory
from scripts.story.layout import BROKERS, Layout
from scripts.story.narrate import Narrator

CONTROLLERS: Final = (3001, 3002, 3003)
_HEAP_MIB: Final = 192
_WAIT_S: Final = 120.0
_BEHIND_MAX: Final = 50
"""Records; the active controller writes one each half second."""


class QuorumCluster(GuardedCluster):
    """Three brokers that may be guarded, and three controllers, a static quorum as releases before 3.9 have it."""

    def __init__(
        self, layout: Layout, disks: dict[tuple[int, int], KillableDisk], processes: Processes, kit: KafkaKit
    ) -> None:
        self._controller_ports = {node: free_port() for node in CONTROLLERS}
        self.controllers: dict[int, ManagedProcess] = {}
        super().__init__(layout, disks, processes, kit, "disk")
        self._first_kit = kit

    def _voters(self) -> dict[str, object]:
        voters = (f"{node}@127.0.0.1:{port}" for node, port in self._controller_ports.items())
        return {"controller.quorum.voters": ",".join(voters)}

    def _config(self, node: int) -> Path:
        return self.layout.config(f"controller{node}")

    def format_controller(self, *, release: str | None = None, by_kafka: bool = False, scram: object = ()) -> None:
        """Format all three of them with Kafka's own tool."""
        for node, port in self._controller_ports.items():
            text = controller_properties(node, port, self.layout.work / f"controller{node}")
            self._config(node).write_text(text + render_properties(self._voters()))
            self._first_kit.format(self._config(node), self.cluster_id)

    def start_controller(self, timeout_s: float = _WAIT_S) -> ManagedProcess:
        """Start all three, and wait until one is active."""
        for node in CONTROLLERS:
            self._launch_controller(node, self._first_kit)
        for process in self.controllers.values():
            wait_until_serving(process, timeout_s)
        self.port = self._controller_ports[self.active()]
        return self.controllers[self.active()]

    def _launch_controller(self, node: int, kit: KafkaKit) -> None:
        command = kit.command(SERVER, str(self._config(node)), heap_mib=_HEAP_MIB)
        self.controllers[node] = self.processes.start(command, name=f"controller{node}")

    def open_watch(self) -> ClusterWatch:
        servers = [("127.0.0.1", port) for port in self._controller_ports.values()]
        return ClusterWatch(self.port, self.cluster_id, servers=servers)

    def stop(self) -> None:
        """Guards, brokers, then the controllers."""
        super().stop()
        for process in self.controllers.values():
            process.signal(signal.SIGTERM)
        for process in self.controllers.values():
            process.wait(_WAIT_S)

    # ---- the quorum

    def _quorum(self) -> DescribeQuorumResponsePartition | None:
        """Ask the active controller; None: nobody says that he is."""
        for node, port in self._controller_ports.items():
            try:
                found = ask(port, DescribeQuorumRequest()).topics[0].partitions[0]
            except (KjbodError, OSError):
                continue
            if not found.error_code and found.leader_id == node:
                return found
        return None

    def active(self) -> int:
        """Node id of the active controller."""
        return wait_until(lambda: (found := self._quorum()) and found.leader_id, _WAIT_S, "an active controller") or 0

    def _all_follow(self) -> bool:
        found = self._quorum()
        if found is None:
            return False
        end = max(voter.log_end_offset for voter in found.current_voters)
        known = {one.replica_id: end - one.log_end_offset for one in found.current_voters}
        return set(known) >= set(CONTROLLERS) and max(known.values()) < _BEHIND_MAX

    # ---- upgrades

    def upgrade_controller(self, node: int, kit: KafkaKit) -> None:
        """Stop a controller, start it as another version, and wait until all three follow."""
        code = self.controllers[node].stop(_WAIT_S)
        claim(code == SIGTERMED, f"the end of controller {node}: exit code {code}")
        self._launch_controller(node, kit)
        wait_until_serving(self.controllers[node], _WAIT_S)
        wait_until(self._all_follow, _WAIT_S, "three controllers that follow")

    def upgrade_broker(self, broker: int, kit: KafkaKit, watch: ClusterWatch) -> None:
        """Stop a broker in a controlled shutdown, start it as another version, and wait until it serves; the guard
        beside it goes on."""
        code = self.brokers[broker].stop(_WAIT_S)
        claim(code == SIGTERMED, f"the end of broker {broker}: exit code {code}")
        known = len(self.guards[broker].events())
        self.kits[broker] = kit
        self.launch(broker)
        self.await_serving(broker, watch)
        self.guards[broker].wait_for_event("guard.broker.found", _WAIT_S, after=known)

    def condition(self, broker: int) -> str:
        """The line of ``kjbod status --check`` of a guard."""
        done = self.processes.kjbod("status", "--check", *self.guard_arguments(broker), name=f"status{broker}")
        done.wait(_WAIT_S)
        return (done.stdout() or done.stderr()).strip()

    def lead_again(self, watch: ClusterWatch) -> None:
        """Have each broker lead what it led before it was restarted, with Kafka's own tool."""
        server = f"127.0.0.1:{self._ports[VICTIM]}"
        asked = ("--election-type", "preferred", "--all-topic-partitions")
        self.kits[VICTIM].run(LEADER_ELECTION, "--bootstrap-server", server, *asked)
        each = PARTITIONS // len(BROKERS)
        wait_until(lambda: all(watch.leaders()[one] == each for one in BROKERS), _WAIT_S, "preferred leaders")

    def finalize(self, kit: KafkaKit) -> None:
        """Raise metadata.version to that of a release, with Kafka's own tool."""
        server = f"127.0.0.1:{self._ports[VICTIM]}"
        release = "{}.{}".format(*kit.release)
        kit.run(FEATURES, "--bootstrap-server", server, "upgrade", "--release-version", release)


def rolling(stage: Stage) -> None:
    """Upgrade all nodes through all versions; a disk hangs and is replaced when brokers of two versions serve."""
    layout = Layout(stage.base / "work", stage.base)
    middle = stage.kits[1:][(len(stage.kits) - 1) // 2]
    with disks_of_three(layout) as (disks, processes):
        cluster = QuorumCluster(layout, disks, processes, stage.kit)
        with started(cluster, Narrator()) as story:
            story.start_guards()
            for kit in stage.kits[1:]:
                _upgrade_all(story, cluster, kit, fault=kit is middle)
            cluster.finalize(stage.kits[-1])
            level = versions.release_level("{}.{}".format(*stage.kits[-1].release))
            wait_until(lambda: story.watch.metadata_version() == level, _WAIT_S, f"metadata.version {level}")
            _await_ok(cluster)
            story.fail()
            story.check_records()
            cluster.release_disks()
            cluster.stop()


def _upgrade_all(story: GuardStory, cluster: QuorumCluster, kit: KafkaKit, *, fault: bool) -> None:
    """Upgrade the controllers, the active one last, and then the brokers. ``fault``: a disk hangs after the first."""
    story.tell.step(f"Upgrade to {kit.version}")
    active = cluster.active()
    for node in sorted(CONTROLLERS, key=lambda node: node == active):
        cluster.upgrade_controller(node, kit)
    for broker in BROKERS:
        cluster.upgrade_broker(broker, kit, story.watch)
        story.await_whole()
        if fault and broker == VICTIM:
            cluster.lead_again(story.watch)
            story.hang_guarded()
            story.replace()
    _await_ok(cluster)
    story.await_writes(now_ms())


def _await_ok(cluster: QuorumCluster) -> None:
    """Wait until each guard says that all is well. Raises :class:`RigError` where one has ended."""
    for broker, guard in cluster.guards.items():
        if not guard.running:
            raise RigError(f"the guard of broker {broker} ended: {guard.tail()}")
        wait_until(
            lambda broker=broker: cluster.condition(broker).startswith("OK: watching"),  # type: ignore[misc]
            _WAIT_S,
            f"the guard of broker {broker} to say OK ({cluster.condition(broker)})",
        )

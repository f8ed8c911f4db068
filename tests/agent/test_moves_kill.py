"""Moves of a real agent that is killed with SIGKILL, at each of its system calls that change a disk; at some of them,
drawn, but in the deep form, and always at those of the swap."""

import contextlib
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from kjbod.runtime.control_socket import ControlClient, ControlError
from scripts.rig.cluster import directory_id
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, wait_until
from tests.agent.daemon_cluster import Cluster, read_image, wait_assigned
from tests.agent.killing import Killer
from tests.agent.real_broker import RealBroker, stop_clean
from tests.depth import Points, sweep

pytestmark = pytest.mark.timeout(600)

REPLICA = "moved-0"
DIRECTORIES = (1, 2)
PARTS = 4
"""The kill points are spread over so many tests."""
SESSION_MS = 2_000
"""How long the controller refuses the next incarnation of an agent that was killed."""
SOURCE_IS_RENAMED = rf"rename {REPLICA} moved-0\.\w+-delete.*"
FUTURE_IS_RENAMED = rf"rename moved-0\.\w+-future {REPLICA}.*"
CHECKPOINT = "replication-offset-checkpoint"
PAIR = re.compile(r"moved-0\.([0-9a-f]{32})-(future|delete)")


class Host:
    """Broker 1 with two directories and one replica with data in it, which moves between them."""

    def __init__(self, base: Path, processes: Processes, kafka: KafkaKit | None = None) -> None:
        self.killer = Killer(base / "killer")
        self.cluster = Cluster(base, processes, kafka)
        self.processes = Processes(
            base / "agent-logs", self.killer.environment(processes.environment), processes.preloaded
        )
        self.cluster.configure_controller({"broker.session.timeout.ms": SESSION_MS})
        self.controller = self.cluster.start_controller()
        self.config = self.cluster.configure(
            1,
            directories=2,
            kjbod_storage_agent="killing",
            kjbod_agent_take_over="true",
            log_segment_delete_delay_ms=0,
            broker_session_timeout_ms=SESSION_MS,
            broker_heartbeat_interval_ms=SESSION_MS // 8,
        )
        self.control = ControlClient(base / "b1" / "state", node_id=1, source=str(self.config))
        self.agent: ManagedProcess
        self.content: dict[str, bytes] = {}

    def fill(self) -> None:
        """Start the agent, and put files into a replica."""
        self.agent = self.start()
        self.cluster.create_topic("moved", partitions=1, replication_factor=1)
        wait_assigned(self.agent, 1)
        wait_until(lambda: self.lies_in() is not None, 30, "the replica")
        replica = self.replica()
        (replica / f"{0:020d}.log").write_bytes(os.urandom(3 << 20))
        (replica / f"{0:020d}.timeindex").write_bytes(os.urandom(120))
        with open(replica / f"{0:020d}.index", "wb") as index:
            index.truncate(1 << 20)  # sparse, as Kafka makes it
        checkpoint = replica.parent / CHECKPOINT
        checkpoint.write_text("0\n2\nmoved 0 4711\nother 3 7\n")
        self.content = self.files(replica)

    def start(self) -> ManagedProcess:
        agent = self.processes.kjbod("agent", "-c", str(self.config), name="agent")
        agent.wait_for_event("agent.unfenced", 90)
        return agent

    # ---- disks

    def directory(self, number: int) -> Path:
        return self.cluster.directory(1, number)

    def lies_in(self) -> int | None:
        """The directory of the current replica; None without one."""
        there = [number for number in DIRECTORIES if (self.directory(number) / REPLICA).is_dir()]
        assert len(there) <= 1, "a real broker would refuse to start: the replica lies in two directories"
        return there[0] if there else None

    def replica(self) -> Path:
        number = self.lies_in()
        assert number is not None
        return self.directory(number) / REPLICA

    def files(self, replica: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in replica.iterdir()}

    def leftovers(self) -> dict[int, list[str]]:
        """Names of what is neither current nor removed, by directory. What holds no data is left out: the future
        replica that was just being made, or the last of a removal, of which nobody can know whose it was."""
        return {
            number: [p.name for p in self.directory(number).glob("moved-*") if p.name != REPLICA and holds_data(p)]
            for number in DIRECTORIES
        }

    # ---- metadata

    def assigned(self) -> int | None:
        """The directory that the controller's log gives to the replica; None: one of no directory here."""
        image = read_image(self.cluster.controller_dir)
        # Of this one alone: a client of a real broker has it make __consumer_offsets, in both directories.
        partition = image.partition(image.topic_ids["moved"], 0)
        assert partition is not None
        by_id = {directory_id(self.directory(number)): number for number in DIRECTORIES}
        return by_id.get(partition.directories[0])

    # ---- moves

    def move(self) -> int:
        """Ask for a move to the other directory; its number."""
        source = self.lies_in()
        (destination,) = set(DIRECTORIES) - {source}
        ((outcome,),) = self.control.stream("move", to=str(self.directory(destination)), partitions=[["moved", 0]])
        assert outcome["error"] is None
        return destination

    def settled(self) -> None:
        """Wait until nothing moves and nothing is left over; then the truth is what the metadata say."""

        def is_settled() -> bool:
            if not self.agent.running:  # its call came in the moment in which the killer was disarmed
                assert self.agent.wait(30) == -signal.SIGKILL
                self.agent = self.start()
            try:
                moves = [move for part in self.control.stream("moves") for move in part["moves"]]
            except ControlError:
                return False
            return not moves and self.lies_in() is not None and not any(self.leftovers().values())

        wait_until(is_settled, 90, f"the end of the move: {self.leftovers()}")
        wait_until(lambda: self.assigned() == self.lies_in(), 30, "the assignment of where it lies")
        replica = self.replica()
        if not self.content:
            return  # a real broker's
        assert self.files(replica) == self.content
        assert "moved 0 4711\n" in (replica.parent / CHECKPOINT).read_text()
        assert "other 3 7\n" in "".join(path.read_text() for path in self.cluster.base.glob(f"b1/d*/{CHECKPOINT}"))

    def killed(self, at: int | str) -> bool:
        """Have a move be killed before its call of this number, or the first that this pattern matches; False: it had
        fewer, and is complete."""
        if isinstance(at, str):
            self.killer.arm_at("agent", at)
        else:
            self.killer.arm("agent", at)
        destination = None
        with contextlib.suppress(ControlError):  # it was killed before it answered: the disk is asked for room first
            destination = self.move()

        def is_over() -> bool:
            return not self.agent.running or (self.lies_in() == destination and not any(self.leftovers().values()))

        wait_until(is_over, 90, f"call {at} of a move")
        came = self.killer.came()
        if came:
            self.agent.wait(30)
        return came

    def check_after_kill(self) -> None:
        """What a real broker finds at its start: at most one current replica; where there is none, the future one in
        the directory that the metadata name, which it promotes."""
        if self.lies_in() is None:
            futures = [n for n, names in self.leftovers().items() for name in names if name.endswith("-future")]
            assert futures == [self.assigned()]
            pairs = {m.groups() for names in self.leftovers().values() for n in names if (m := PAIR.fullmatch(n))}
            assert len({unique for unique, _ in pairs}) == 1
            assert {kind for _, kind in pairs} == {"future", "delete"}

    def calls_of_a_move(self) -> list[str]:
        """All system calls that change a disk in a move, from asking for it to the removal of the source."""
        self.killer.disarm()
        self.move()
        self.settled()
        return self.killer.calls()

    def close(self) -> None:
        self.processes.close()


def holds_data(directory: Path) -> bool:
    try:
        return any(not path.name.startswith("partition.metadata") for path in directory.iterdir())
    except FileNotFoundError:  # it has just been removed
        return False


def expected(calls: list[str]) -> Mapping[str, int]:
    """The number of the call before which the swap is at each of its steps, and of the one after."""

    def first(pattern: str) -> int:
        return next(n for n, call in enumerate(calls, start=1) if re.fullmatch(pattern, call))

    steps = {
        "the source is renamed": first(SOURCE_IS_RENAMED),
        "the future replica is renamed": first(FUTURE_IS_RENAMED),
    }
    assert steps["the source is renamed"] < steps["the future replica is renamed"]
    return steps


def within_the_swap(calls: list[str]) -> list[int]:
    """Numbers of the calls from the first rename of the swap to what follows the second one."""
    return sorted({number + after for number in expected(calls).values() for after in (0, 1, 2)})


def of_each_kind(calls: list[str]) -> list[int]:
    """Numbers of the calls of which none like it comes before: the same function, on a file for the same purpose."""
    kinds: dict[str, int] = {}
    for number, call in enumerate(calls, start=1):
        kinds.setdefault(re.sub(r"[0-9a-f]{32}|\d{20}\.\w+", "*", call), number)
    return list(kinds.values())


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.parametrize("points", sweep(ci=3, quick=1, parts=PARTS))
def test_an_agent_killed_at_any_system_call_of_a_move_loses_nothing(
    base: Path, processes: Processes, points: Points
) -> None:
    host = Host(base, processes)
    try:
        host.fill()
        host.calls_of_a_move()  # the first one also makes checkpoint files
        calls = host.calls_of_a_move()
        assert len(calls) > 20
        numbers = points.of(range(1, len(calls) + 1), within_the_swap(calls))
        killed = 0
        for number in numbers:
            if host.killed(number):
                host.check_after_kill()
                host.agent = host.start()
                killed += 1
            host.settled()
        assert killed >= len(numbers) // 2  # with what was removed late a move has some calls more, at its end
    finally:
        host.close()


@pytest.mark.parametrize("points", sweep(ci=5, quick=2))
def test_a_worker_killed_at_any_kind_of_system_call_of_a_move_delays_it(
    base: Path, processes: Processes, points: Points
) -> None:
    host = Host(base, processes)
    try:
        host.fill()
        host.calls_of_a_move()
        calls = host.calls_of_a_move()
        # A removal that was interrupted is tried again after a minute, which is not what this is about.
        total = next(n for n, call in enumerate(calls) if call.startswith("unlink"))
        for number in points.of(of_each_kind(calls[:total])):
            destination = (set(DIRECTORIES) - {host.lies_in()}).pop()
            host.killer.arm("worker", number)
            host.move()
            wait_until(lambda: not host.killer.armed, 60, f"call {number} of {total}")
            host.settled()
            assert host.lies_in() == destination
            assert host.agent.running
    finally:
        host.close()


@pytest.mark.usefixtures("kafka_kit")
@pytest.mark.parametrize("points", sweep(ci=4, quick=2))
def test_an_agent_killed_within_the_swap_under_a_real_kafka_controller_loses_nothing(
    base: Path, processes: Processes, kafka_kit: KafkaKit, points: Points
) -> None:
    host = Host(base, processes, kafka_kit)
    try:
        host.fill()
        for number in points.of(within_the_swap(host.calls_of_a_move())):
            assert host.killed(number)
            host.check_after_kill()
            host.agent = host.start()
            host.settled()
    finally:
        host.close()


@pytest.mark.usefixtures("kafka_kit")
def test_a_real_broker_starts_on_what_an_agent_left_that_was_killed_within_the_swap(
    base: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    host = Host(base, processes, kafka_kit)
    try:
        real = RealBroker(kafka_kit, processes, host.config)
        broker = real.start()
        host.cluster.create_topic("moved", partitions=1, replication_factor=1)
        real.wait_led("moved", 1)
        real.produce("moved", 0, [os.urandom(1000) for _ in range(100)])
        before = real.consume("moved", 0)
        stop_clean(broker)

        host.agent = host.start()
        source = host.lies_in()
        assert host.killed(FUTURE_IS_RENAMED)
        host.check_after_kill()
        assert host.lies_in() is None

        broker = real.start()
        real.wait_led("moved", 1)
        assert real.consume("moved", 0) == before
        assert host.lies_in() != source
        wait_until(lambda: host.assigned() == host.lies_in(), 60, "the broker's assignment of where it lies")
        stop_clean(broker)
    finally:
        host.close()

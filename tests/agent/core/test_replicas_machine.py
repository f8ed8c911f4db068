"""Replicas of a broker with three directories under any sequence of trouble (Hypothesis): KIP-858's promises hold.

A failure shrinks to a story: each step is one thing that happens to the broker, its disks or its controller. ::

    scripts/test --depth deep tests/agent/core/test_replicas_machine.py

tells many more stories than a plain run does, and longer ones.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kjbod_host.partitions import TopicIdPartition
from tests.agent.core.model_controller import US
from tests.agent.core.replicas_world import PATHS, Agent, World
from tests.depth import examples, steps

TOPICS = st.sampled_from(["a", "b", "c"])
DISKS = st.sampled_from(PATHS)
REPLICAS = st.sampled_from(["a-0", "a-1", "b-0", "c-0"])
ROUNDS = st.integers(0, 9)
"""In each round the controller answers, and each disk carries out one job."""
TROUBLES = st.sampled_from(
    [
        "its source dies",
        "its destination dies",
        "the host restarts without its source",
        "the host restarts without its destination",
        "the agent is killed",
        "the agent is killed between a deed and its answer",
        "it is cancelled",
        "it is cancelled and the controller's answer is lost",
        "its topic is deleted",
        "its replica is reassigned away",
    ]
)


class ReplicasInTrouble(RuleBasedStateMachine):
    """One broker, its disks, its controller."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @initialize()
    def the_broker_is_up_with_two_topics(self) -> None:
        self.world.start()
        self.world.controller.create_topic("a", [[US], [US]])
        self.world.controller.create_topic("b", [[2, US]])
        self.world.calm_down()

    def agent(self) -> Agent:
        assert self.world.agent is not None
        return self.world.agent

    def is_running(self) -> bool:
        return self.world.agent is not None and self.world.agent.refused is None

    def has_topics(self) -> bool:
        return bool(self.world.controller.image.topics)

    def has_replicas(self) -> bool:
        return self.is_running() and bool(self.agent().hosting.partitions)

    # ---- the metadata

    @precondition(lambda self: len(self.world.controller.image.topics) < 3)
    @rule(topic=TOPICS, partitions=st.integers(1, 2), alone=st.booleans(), rounds=ROUNDS)
    def topic_is_created(self, topic: str, partitions: int, alone: bool, rounds: int) -> None:
        if self.world.controller.topic(topic) is None:
            brokers = [[US], [US]] if alone else [[US, 2], [2, US]]
            self.world.controller.create_topic(topic, brokers[:partitions])
        self.all_goes_well(rounds)

    @precondition(has_topics)
    @rule(topic=TOPICS, again=st.sampled_from([True, True, False]))
    def topic_is_deleted(self, topic: str, again: bool) -> None:
        """And created again, perhaps, before anybody knows of it."""
        there = self.world.controller.topic(topic)
        if there is not None:
            for number in there.partitions:
                self.world.give_up(TopicIdPartition(there.id, number))
            self.world.controller.delete_topic(topic)
            if again:
                self.world.controller.create_topic(topic, [[US], [US]] if topic == "a" else [[2, US]])

    def partition(self, replica: str) -> TopicIdPartition | None:
        topic, number = replica[0], int(replica[2])
        there = self.world.controller.topic(topic)
        return None if there is None or number not in there.partitions else TopicIdPartition(there.id, number)

    @precondition(has_topics)
    @rule(replica=REPLICAS)
    def partition_is_reassigned_away(self, replica: str) -> None:
        key = self.partition(replica)
        if key is not None:
            self.world.give_up(key)
            self.world.controller.reassign(key, [2])

    @precondition(has_topics)
    @rule(replica=REPLICAS)
    def partition_is_reassigned_here(self, replica: str) -> None:
        key = self.partition(replica)
        if key is not None and key not in [hosted for _, hosted, _ in self.world.controller.hosted()]:
            self.world.controller.reassign(key, [2, US])

    @precondition(has_topics)
    @rule(replica=REPLICAS)
    def replica_catches_up(self, replica: str) -> None:
        key = self.partition(replica)
        if key is not None and self.world.controller.may_catch_up(key):
            copy = self.world.fetched(key)
            if copy is not None:
                copy.messages |= self.world.acknowledged.get(key, set())
                self.world.controller.caught_up(key)

    @precondition(is_running)
    @rule(records=st.sampled_from([1, 2, 1000]))
    def metadata_arrive(self, records: int) -> None:
        self.agent().learn(records)

    @precondition(is_running)
    @rule(rounds=ROUNDS)
    def all_goes_well(self, rounds: int) -> None:
        for _ in range(rounds):
            if not self.is_running():
                return
            self.world.go_on(self.agent())

    @rule()
    def session_is_lost(self) -> None:
        self.world.controller.fence()

    # ---- moves

    @precondition(has_replicas)
    @rule(replica=REPLICAS, to=DISKS, rounds=ROUNDS)
    def move_is_asked_for(self, replica: str, to: str, rounds: int) -> None:
        directory = next((d for d, path in self.agent().directories.items() if path == to), None)
        if directory is not None:
            self.agent().mover.alter(replica[0], int(replica[2]), directory)
        self.all_goes_well(rounds)

    @precondition(lambda self: self.is_running() and self.agent().mover.moves)
    @rule(replica=REPLICAS)
    def move_is_cancelled(self, replica: str) -> None:
        key = self.partition(replica)
        if key is not None:
            self.agent().mover.cancel(key)

    @precondition(has_replicas)
    @rule(replica=REPLICAS, to=DISKS, rounds=ROUNDS, trouble=TROUBLES)
    def move_has_come_so_far_when(self, replica: str, to: str, rounds: int, trouble: str) -> None:
        self.move_is_asked_for(replica, to, rounds)
        key = self.partition(replica)
        move = self.agent().mover.moves.get(key) if key is not None and self.is_running() else None
        if key is None or move is None or move.source is None:
            return
        paths = self.agent().directories
        disk = paths[move.destination] if "destination" in trouble else paths[move.source]
        if "dies" in trouble and self.may_die():
            self.disk_dies(disk)
            self.agent_finds_out_about(disk)
        elif "host" in trouble:
            self.host_restarts_without(disk, 0)
        elif "deed" in trouble:
            for directory in list(paths):
                self.agent().work(directory, answered=False)
            self.world.kill()
        elif "killed" in trouble:
            self.world.kill()
        elif "cancelled" in trouble:
            self.agent().mover.cancel(key)
            if "lost" in trouble and self.agent().request is not None:
                self.answer_is_lost(taken=True)
        elif "deleted" in trouble:
            self.topic_is_deleted(replica[0], again=False)
        else:
            self.partition_is_reassigned_away(replica)

    # ---- the controller's answers

    @precondition(is_running)
    @rule(answered=st.booleans())
    def heartbeat_arrives(self, answered: bool) -> None:
        if len(self.agent().failures.usable) > 0:
            self.agent().heartbeat(answered=answered)

    @precondition(lambda self: self.is_running() and self.agent().assignments.ready and not self.agent().request)
    @rule()
    def assignments_are_sent(self) -> None:
        self.world.now_ms += 200
        self.agent().send_assignments()

    @precondition(lambda self: self.is_running() and self.agent().assignments.ready)
    @rule(taken=st.booleans())
    def controller_is_silent_for_once(self, taken: bool) -> None:
        self.world.now_ms += 200
        if self.agent().request is None:
            self.agent().send_assignments()
        if self.agent().request is not None:
            self.answer_is_lost(taken)

    def has_sent(self) -> bool:
        return self.is_running() and self.agent().request is not None

    @precondition(has_sent)
    @rule(refused=st.sampled_from(["none", "first partitions", "all"]))
    def controller_answers(self, refused: str) -> None:
        request = self.agent().request
        assert request is not None
        refuses = {"none": lambda _: False, "all": lambda _: True, "first partitions": lambda key: key.partition == 0}
        self.agent().answer(self.world.controller.assign(request, refuses[refused]))

    @precondition(has_sent)
    @rule(taken=st.booleans())
    def answer_is_lost(self, taken: bool) -> None:
        request = self.agent().request
        assert request is not None
        if taken:
            self.world.controller.assign(request)
        self.agent().answer(None)

    # ---- the process

    @precondition(lambda self: self.world.agent is not None)
    @rule(request_arrives=st.booleans())
    def agent_is_killed(self, request_arrives: bool) -> None:
        if request_arrives and self.agent().request is not None:
            self.world.controller.assign(self.agent().request)  # type: ignore[arg-type]
        self.world.kill()

    @precondition(is_running)
    @rule(disk=DISKS)
    def agent_is_killed_before_the_answer_of(self, disk: str) -> None:
        directory = self.world.slots[disk].id
        if directory in self.agent().directories:
            self.agent().work(directory, answered=False)
        self.world.kill()

    @precondition(lambda self: self.world.agent is None)
    @rule(rounds=ROUNDS)
    def agent_is_started(self, rounds: int) -> None:
        self.world.start()
        self.all_goes_well(rounds)

    @precondition(is_running)
    @rule(ms=st.sampled_from([100, 1_000, 20_000]))
    def time_passes(self, ms: int) -> None:
        self.world.now_ms += ms
        if self.agent().wake() is not None:
            self.world.kill()

    # ---- the disks

    @precondition(is_running)
    @rule(disk=DISKS)
    def disk_works(self, disk: str) -> None:
        directory = self.world.slots[disk].id
        if directory in self.agent().directories:
            self.agent().work(directory)

    def may_die(self) -> bool:
        """The last one takes the broker along: there are other tests for that."""
        return sum(disk.well for disk in self.world.slots.values()) > 1

    @precondition(may_die)
    @rule(disk=DISKS)
    def disk_dies(self, disk: str) -> None:
        self.world.slots[disk].well = False

    @precondition(lambda self: self.is_running() and self.may_die())
    @rule(disk=DISKS)
    def disk_dies_before_the_answer(self, disk: str) -> None:
        directory = self.world.slots[disk].id
        if directory in self.agent().directories:
            self.agent().work(directory, answered=False)
        self.world.slots[disk].well = False

    @precondition(lambda self: self.is_running() and self.has_dead_disks())
    @rule(disk=DISKS)
    def agent_finds_out_about(self, disk: str) -> None:
        """Also where it is replaced by now."""
        for directory, path in list(self.agent().directories.items()):
            here = self.world.disk_of(directory)
            dead = here is None or not here.well
            if path == disk and dead and self.agent().find_dead(directory) is not None:
                self.world.kill()
                return

    def is_out_of_use(self, path: str) -> bool:
        """Whether no process uses the disk of a path any more: a failure is for ever."""
        if self.world.agent is None:
            return True
        directories = [d for d, p in self.world.agent.directories.items() if p == path]
        return all(self.world.agent.failures.of(d) is not None for d in directories)

    def has_dead_disks(self) -> bool:
        return not all(disk.well for disk in self.world.slots.values())

    @rule(disk=DISKS, rounds=ROUNDS)
    def host_restarts_without(self, disk: str, rounds: int) -> None:
        """The most usual way to lose a disk."""
        self.world.kill()
        if self.may_die():
            self.world.slots[disk].well = False
        self.world.start()
        self.all_goes_well(rounds)

    @precondition(has_dead_disks)
    @rule()
    def all_disks_are_repaired_and_the_agent_is_restarted(self) -> None:
        self.world.kill()
        for disk in self.world.slots.values():
            disk.well = True
        self.world.calm_down()
        self.world.check_calm()

    @precondition(has_dead_disks)
    @rule(disk=DISKS)
    def disk_comes_back(self, disk: str) -> None:
        if self.is_out_of_use(disk):
            self.world.slots[disk].well = True

    @precondition(has_dead_disks)
    @rule(disk=DISKS)
    def disk_is_replaced_by_a_new_one(self, disk: str) -> None:
        if self.is_out_of_use(disk) and not self.world.slots[disk].well:
            self.world.put_in(disk, None)

    @rule(disk=DISKS)
    def disk_is_replaced_by_the_one_before(self, disk: str) -> None:
        if self.world.agent is None and self.world.shelf[disk]:
            self.world.put_in(disk, self.world.shelf[disk][0])

    @precondition(lambda self: self.has_replicas() and len(self.agent().inventory.online) < len(PATHS))
    @rule(disk=DISKS, rounds=ROUNDS)
    def disk_is_added_while_the_agent_runs(self, disk: str, rounds: int) -> None:
        """``kjbod dirs add``, of a new disk or of the one that is back."""
        self.agent().add_directory(disk, self.world.slots[disk])
        self.all_goes_well(rounds)

    @precondition(lambda self: self.has_replicas() and not self.has_dead_disks())
    @rule(disk=DISKS, new=st.booleans(), before=ROUNDS, rounds=ROUNDS)
    def disk_dies_and_is_replaced_without_a_restart(self, disk: str, new: bool, before: int, rounds: int) -> None:
        """After ``before`` rounds; by a new one, or it is mended."""
        self.disk_dies(disk)
        self.agent_finds_out_about(disk)
        self.all_goes_well(before)
        if self.is_running():
            if new:
                self.disk_is_replaced_by_a_new_one(disk)
            else:
                self.disk_comes_back(disk)
            self.disk_is_added_while_the_agent_runs(disk, rounds)

    # ---- quiet

    @rule()
    def all_is_quiet_for_long(self) -> None:
        self.world.calm_down()
        self.world.check_calm()

    def teardown(self) -> None:
        self.world.calm_down()
        self.world.check_calm()

    @invariant()
    def producers_write(self) -> None:
        """And the newest assignment wins, and nothing that was acknowledged is lost."""
        self.world.write()
        self.world.check_queue()
        self.world.check_data()


TestReplicasInTrouble: Any = ReplicasInTrouble.TestCase
TestReplicasInTrouble.settings = settings(
    max_examples=examples(150), stateful_step_count=steps(40), report_multiple_bugs=False
)

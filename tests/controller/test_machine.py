"""The controller under any sequence of requests, time and restarts (Hypothesis)."""

from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kjbod.ids import LOST, UNASSIGNED, Uuid, is_online
from kjbod.metadata.image import BROKER, RECOVERING, TOPIC, PartitionRegistration, Topic
from kjbod.wire.admin_messages import ElectLeadersRequest
from kjbod.wire.messages import DeleteTopicsRequest, UnregisterBrokerRequest
from kjbod_controller_stub.configs.effective import UNCLEAN_ELECTION
from kjbod_controller_stub.deferred import DeferredAnswers
from kjbod_controller_stub.partitions import eligible
from kjbod_controller_stub.rules import KAFKA, KIP_858
from tests.controller.test_eligible_leaders import configure
from tests.controller.world import World, directory
from tests.depth import examples

BROKERS = st.integers(1, 3)
TOPICS = st.sampled_from(["a", "b"])
DIRS = st.integers(0, 2)


class ControllerMachine(RuleBasedStateMachine):
    """Three brokers with one to three directories each, two topics."""

    ruleset = KIP_858
    with_elr = True

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.ruleset, with_elr=self.with_elr)
        self.complete: dict[tuple[Uuid, int], set[int]] = {}
        self.reported: dict[tuple[int, int], set[Uuid]] = {}
        self.epochs: dict[tuple[Uuid, int], tuple[int, int]] = {}
        self.broker_epochs: dict[int, int] = {}
        self.incarnation = 0

    @initialize(dirs=st.tuples(*[st.integers(1, 3)] * 3))
    def a_cluster_is_up(self, dirs: tuple[int, ...]) -> None:
        for broker, count in enumerate(dirs, start=1):
            self.world.join(broker, count)
            self.broker_epochs[broker] = self.world.broker(broker).epoch
        self.world.create("a", (1, 2), (2, 3), (3, 1))

    def known(self, broker: int) -> bool:
        return broker in self.world.controller.image.brokers

    @rule(broker=BROKERS, dirs=st.integers(1, 3), again=st.booleans(), clean=st.booleans())
    def register(self, broker: int, dirs: int, again: bool, clean: bool) -> None:
        if not again:
            self.incarnation += 1
        number = self.incarnation if not again else 0
        if again and self.ruleset is KAFKA and self.known(broker):
            dirs = 3  # fewer would leave leaders in what is not registered any more
        before = self.world.controller.image.brokers.get(broker)
        previous = before.epoch if before is not None and clean else -1
        answer = self.world.register(broker, dirs, number=number, previous_broker_epoch=previous)
        if answer.error_code == 0:
            now = self.world.broker(broker)
            clean = clean or (before is not None and before.incarnation_id == now.incarnation_id)
            self.lose(broker, lambda place: not clean or not is_online(place, now.log_dirs))
            assert answer.broker_epoch >= self.broker_epochs.get(broker, 0)
            self.broker_epochs[broker] = answer.broker_epoch

    @rule(
        broker=BROKERS,
        failed=st.sets(DIRS),
        fence=st.booleans(),
        shut=st.booleans(),
        behind=st.booleans(),
    )
    def heartbeat(self, broker: int, failed: set[int], fence: bool, shut: bool, behind: bool) -> None:
        if not self.known(broker):
            return
        now = self.world.broker(broker)
        mine = self.reported.setdefault((broker, now.epoch), set())
        offline = mine | {directory(broker, number) for number in failed if directory(broker, number) in now.log_dirs}
        if self.ruleset is KAFKA and now.fenced and offline & set(now.log_dirs):
            fence = True  # a report in the heartbeat that unfences: Kafka elects into the directory that it takes away
        offset = -1 if behind else self.world.controller.next_offset - 1
        answer = self.world.beat(broker, offset=offset, fence=fence, shut=shut, offline=tuple(sorted(offline)))
        assert answer.error_code == 0
        mine |= offline
        self.lose(broker, lambda place: place in offline)
        if self.ruleset is KIP_858:
            assert answer.is_fenced == self.world.broker(broker).fenced

    @rule(broker=BROKERS)
    def live(self, broker: int) -> None:
        """What a healthy broker does: assign everything, then ask to be unfenced."""
        if self.known(broker):
            self.world.assign_all(broker)
            self.heartbeat(broker, set(), False, False, False)

    @rule(broker=BROKERS, topic=TOPICS, number=st.integers(0, 2), where=st.integers(0, 5))
    def assign(self, broker: int, topic: str, number: int, where: int) -> None:
        image = self.world.controller.image
        if self.known(broker) and topic in image.topic_ids:
            place = {3: LOST, 4: UNASSIGNED, 5: Uuid.of(77, 7)}.get(where) or directory(broker, where)
            key = (image.topic_ids[topic], number)
            before = image.partition(*key)
            online = is_online(place, self.world.broker(broker).log_dirs)
            if self.ruleset is KAFKA and before is not None and before.leader == -1 and not online:
                return  # Kafka elects by the directory that the assignment takes the replica from (LeaderAcceptor)
            self.world.assign(broker, (place, *key[:1], (number,)))
            dirs = self.world.broker(broker).log_dirs
            if before is not None and broker in before.replicas:
                old = before.directory(broker)
                if not is_online(place, dirs) or (old != place and not is_online(old, dirs)):
                    self.complete.get(key, set()).discard(broker)

    @rule(topic=TOPICS, replicas=st.lists(st.permutations([1, 2, 3]), min_size=1, max_size=3), factor=st.integers(1, 3))
    def create(self, topic: str, replicas: list[list[int]], factor: int) -> None:
        image = self.world.controller.image
        placed = [tuple(order[:factor]) for order in replicas]
        if topic in image.topic_ids:
            return
        if all(any(self.known(b) and image.brokers[b].active for b in order) for order in placed) and all(
            self.known(b) for order in placed for b in order
        ):
            self.world.create(topic, *placed)

    @rule(topic=TOPICS)
    def delete(self, topic: str) -> None:
        self.world.ask(DeleteTopicsRequest(topic_names=(topic,)), 5)

    @rule(topic=TOPICS, number=st.integers(0, 2), isr=st.sets(BROKERS, min_size=1))
    def alter_isr(self, topic: str, number: int, isr: set[int]) -> None:
        image = self.world.controller.image
        topic_id = image.topic_ids.get(topic)
        partition = None if topic_id is None else image.partition(topic_id, number)
        if partition is not None and partition.leader >= 0:
            self.world.alter_isr(topic, tuple(sorted(isr)), number=number)

    @rule(kind=st.integers(0, 1))
    def elect(self, kind: int) -> None:
        assert self.world.ask(ElectLeadersRequest(election_type=kind)).error_code == 0

    @rule(topic=TOPICS, name=st.sampled_from([eligible.MIN_ISR, UNCLEAN_ELECTION]), number=st.integers(0, 3))
    def configure_topic(self, topic: str, name: str, number: int) -> None:
        if topic in self.world.controller.image.topic_ids:
            value = str(number) if name == eligible.MIN_ISR else ("true" if number == 1 else "false")
            configure(self.world, TOPIC, topic, name, value if number else None)

    @rule(number=st.integers(1, 3))
    def configure_cluster(self, number: int) -> None:
        configure(self.world, BROKER, "", eligible.MIN_ISR, str(number))

    @rule(broker=BROKERS)
    def unregister(self, broker: int) -> None:
        self.world.ask(UnregisterBrokerRequest(broker_id=broker))

    @rule(ms=st.integers(1, 10_000))
    def time_passes(self, ms: int) -> None:
        self.world.tick(ms)

    @precondition(lambda self: len(self.world.log) > 5)
    @rule()
    def restart(self) -> None:
        self.world.controller = self.world.replayed()
        self.world.write(self.world.controller.activate(self.world.now_ms))

    @invariant()
    def an_offline_directory_never_leads_nor_is_in_sync(self) -> None:
        image = self.world.controller.image
        for topic in image.topics.values():
            for partition in topic.partitions.values():
                for replica, where in zip(partition.replicas, partition.directories, strict=True):
                    broker = image.brokers.get(replica)
                    offline = broker is None or broker.fenced or not broker.has_online_dir(where)
                    if offline:
                        assert partition.leader != replica
                    if offline and replica in partition.isr and self.ruleset is KIP_858:
                        # Without eligible leader replicas the last member stays, leaderless.
                        assert not self.with_elr
                        assert (partition.isr, partition.leader) == ((replica,), -1)

    @invariant()
    def leaders_are_in_sync_replicas(self) -> None:
        for topic in self.world.controller.image.topics.values():
            for partition in topic.partitions.values():
                assert partition.isr or (self.with_elr and partition.leader == -1)
                assert set(partition.isr) <= set(partition.replicas)
                assert partition.leader == -1 or partition.leader in partition.isr

    @invariant()
    def who_is_eligible_stands_beside_an_isr_that_is_too_small(self) -> None:
        for topic, number, partition in self.partitions():
            elr = partition.eligible_leader_replicas
            assert not set(elr) & set(partition.isr)
            assert len(set(elr)) == len(elr)
            assert set(elr) <= set(partition.replicas)
            if not self.with_elr or len(partition.isr) >= self.min_isr(topic):
                assert not elr
            if partition.leader != -1:
                assert not partition.last_known_elr
            elif self.with_elr and self.ruleset is KIP_858:
                assert not partition.isr
            for broker in elr:
                assert (topic.id, number) in self.world.controller.index.in_elr(broker)

    @invariant()
    def whoever_leads_or_may_lead_has_all_that_was_acknowledged(self) -> None:
        """With acks=all a record is acknowledged by an ISR that is large enough, so by all that are in it then."""
        if not self.with_elr or self.ruleset is not KIP_858:
            return  # a shipped controller elects replicas that were made anew
        for topic, number, partition in self.partitions():
            complete = self.complete.setdefault((topic.id, number), set(partition.isr))
            recovering = partition.leader_recovery_state == RECOVERING  # what others have may be more, and is given up
            if partition.isr and (recovering or len(partition.isr) >= self.min_isr(topic)):
                complete.clear()
                complete |= set(partition.isr)
            assert partition.leader == -1 or partition.leader in complete
            assert set(partition.eligible_leader_replicas) <= complete
            complete |= set(partition.isr)

    def partitions(self) -> Iterator[tuple[Topic, int, PartitionRegistration]]:
        for topic in self.world.controller.image.topics.values():
            for number, partition in topic.partitions.items():
                yield topic, number, partition

    def min_isr(self, topic: Topic) -> int:
        configs = self.world.controller.image.configs
        values = [configs.get(where, {}).get(eligible.MIN_ISR) for where in ((TOPIC, topic.name), (BROKER, ""))]
        return min(int(next(value for value in values if value)), len(topic.partitions[0].replicas))

    def lose(self, broker: int, lost: Callable[[Uuid], bool]) -> None:
        """The replicas of a broker in these places may not have what they had."""
        for topic, number, partition in self.partitions():
            if broker in partition.replicas and lost(partition.directory(broker)):
                self.complete.get((topic.id, number), set()).discard(broker)

    @invariant()
    def epochs_never_go_back(self) -> None:
        for topic in self.world.controller.image.topics.values():
            for number, partition in topic.partitions.items():
                now = (partition.leader_epoch, partition.partition_epoch)
                before = self.epochs.get((topic.id, number), (0, 0))
                assert now[0] >= before[0]
                assert now[1] >= before[1]
                self.epochs[topic.id, number] = now

    @invariant()
    def replay_from_the_beginning_gives_the_same_state(self) -> None:
        fresh, here = self.world.replayed(), self.world.controller
        assert fresh.image == here.image
        assert fresh.next_offset == here.next_offset
        for broker in here.image.brokers:
            assert set(fresh.index.in_isr(broker)) == set(here.index.in_isr(broker))
            assert fresh.index.leads(broker) == here.index.leads(broker)
            assert fresh.index.undecided(broker) == here.index.undecided(broker)
            assert fresh.cluster.offline_directories(broker) == here.cluster.offline_directories(broker)
            assert set(fresh.index.in_elr(broker)) == set(here.index.in_elr(broker))
        assert set(fresh.index.leaderless()) == set(here.index.leaderless())
        assert set(fresh.index.imbalanced()) == set(here.index.imbalanced())


class ShippedMachine(ControllerMachine):
    """The same under shipped Kafka's rules."""

    ruleset = KAFKA


class WithoutEligibleMachine(ControllerMachine):
    """The same where eligible leader replicas are not finalized."""

    with_elr = False


TestKipController: Any = ControllerMachine.TestCase
TestKipController.settings = settings(max_examples=examples(60))
TestShippedController: Any = ShippedMachine.TestCase
TestShippedController.settings = settings(max_examples=examples(40))
TestControllerWithoutEligible: Any = WithoutEligibleMachine.TestCase
TestControllerWithoutEligible.settings = settings(max_examples=examples(20))


def test_answers_leave_in_order_and_never_before_they_are_durable() -> None:
    deferred: DeferredAnswers[str] = DeferredAnswers()
    for offset, answer in ((3, "a"), (3, "read after a"), (7, "b"), (9, "c")):
        deferred.add(offset, answer)
    assert deferred.complete(2) == []
    assert deferred.complete(3) == ["a", "read after a"]
    assert deferred.complete(8) == ["b"]
    assert len(deferred) == 1
    assert deferred.complete(100) == ["c"]

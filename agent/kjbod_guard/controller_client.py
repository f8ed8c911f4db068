"""Client of the active controller. Only this module sends requests in the broker's name, or changes metadata.

In the broker's name the guard sends only two kinds of heartbeat: a report of offline directories, and a fence. Both
carry the epoch of the registration, CurrentMetadataOffset 0, and no cordons (null: unchanged). With offset 0 a
heartbeat can never unfence the broker or count as caught up. Any heartbeat extends the broker's session by
``broker.session.timeout.ms``. So the client sends at most :data:`REPORTS_MAX` reports of a directory and
:data:`FENCES_MAX` fences for each epoch. A heartbeat with a wrong epoch gets error 77 (STALE_BROKER_EPOCH) and changes
nothing.

In the guard's own name the client sends

* AlterPartitionReassignments and ElectLeaders for replica lists and preferred leaders: ALTER on the cluster;
* IncrementalAlterConfigs for the record of suspected directories (:mod:`.suspects`): ALTER_CONFIGS on the cluster.

:class:`Rights` checks these rights at the start, each ten minutes, and when a disk is in doubt, with requests that
change nothing.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from kjbod.clock import Clock
from kjbod.errors import KjbodError
from kjbod.ids import Uuid
from kjbod.wire.client import ConnectTimedOut, RequestTimedOut
from kjbod.wire.error_codes import ErrorCode, name_of
from kjbod.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    AlterPartitionReassignmentsResponse,
    BrokerHeartbeatRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
)
from kjbod_guard.actions import Done, Outcome
from kjbod_guard.broker_steps import FENCES_MAX
from kjbod_guard.directory_steps import REPORTS_MAX
from kjbod_guard.suspects import CONFIG
from kjbod_host.channel import ControllerChannel

HEARTBEAT_TIMEOUT_MS: Final = 1_000
CONFIG_TIMEOUT_MS: Final = 1_000
REASSIGN_TIMEOUT_MS: Final = 5_000
RIGHTS_EVERY_MS: Final = 600_000
"""Time between two checks of the rights, once they are known."""
RIGHTS_AGAIN_MS: Final = 1_000
"""Time between two checks of the rights, until they are known."""
_NO_EPOCH: Final = -1
_BROKER: Final = 4
_SET, _DELETE = 0, 1
_DENIED: Final = (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_MOVED: Final = (ErrorCode.NOT_CONTROLLER,)


def _late(error: RequestTimedOut) -> Outcome:
    """Return the outcome of a request without an answer. The metadata will show whether the request worked."""
    return Outcome.FAILED if isinstance(error, ConnectTimedOut) else Outcome.PENDING


class ControllerClient:
    """Client of the active controller. No method raises.

    Args:
        broker_id: broker in whose name heartbeats are sent.
        channel: leads to the active controller.
        lists: second channel, for reassignments: a big one must not delay a heartbeat.
        clock: measures the time of answers.
    """

    def __init__(
        self,
        broker_id: int,
        channel: ControllerChannel,
        lists: ControllerChannel,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._channel = channel
        self._lists = lists
        self._clock = clock
        self._epoch = -1
        self._reports: Counter[str] = Counter()
        self._fences = 0

    async def report(self, broker_epoch: int, directory_ids: Sequence[str]) -> Done:
        """Send one heartbeat in the broker's name with these directories in OfflineLogDirs."""
        self._of(broker_epoch)
        spent = next((one for one in directory_ids if self._reports[one] >= REPORTS_MAX), None)
        if spent is not None:
            return Done(outcome=Outcome.REFUSED, reason=f"directory {spent} was reported {REPORTS_MAX} times")
        done = await self._heartbeat(broker_epoch, offline=tuple(Uuid.parse(one) for one in directory_ids))
        if done.happened:
            self._reports.update(directory_ids)
        return done

    async def fence(self, broker_epoch: int) -> Done:
        """Send one heartbeat in the broker's name with WantFence."""
        self._of(broker_epoch)
        if self._fences >= FENCES_MAX:
            return Done(outcome=Outcome.REFUSED, reason=f"epoch {broker_epoch} was fenced {self._fences} times")
        done = await self._heartbeat(broker_epoch, want_fence=True)
        if done.happened:
            self._fences += 1
        return done

    async def suspect(self, value: str | None, *, validate_only: bool = False) -> Done:
        """Write the record of suspected directories of this broker; None: remove the record. With ``validate_only`` the
        controller only checks the request."""
        started_ms = self._clock.monotonic_ms()
        change = IncrementalAlterConfigsRequestConfig(
            name=CONFIG, config_operation=_DELETE if value is None else _SET, value=value
        )
        resource = IncrementalAlterConfigsRequestResource(
            resource_type=_BROKER, resource_name=str(self._broker_id), configs=(change,)
        )
        request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
        try:
            answer = await self._channel.request(lambda _: request, timeout_ms=CONFIG_TIMEOUT_MS)
        except RequestTimedOut as error:
            return Done(outcome=_late(error), reason=str(error), took_ms=self._since(started_ms))
        except (KjbodError, OSError) as error:
            self._channel.forget()
            return Done(outcome=Outcome.FAILED, reason=str(error), took_ms=self._since(started_ms))
        told = answer.responses[0] if answer.responses else None
        if told is None:
            return Done(outcome=Outcome.FAILED, reason="IncrementalAlterConfigs: an answer without the broker")
        return self._answered("IncrementalAlterConfigs", told.error_code, told.error_message, self._since(started_ms))

    async def reassign(
        self, replicas: Mapping[tuple[str, int], Sequence[int] | None]
    ) -> Mapping[tuple[str, int], Done]:
        """Send AlterPartitionReassignments in the guard's own name: replica lists by topic name and partition."""
        started_ms = self._clock.monotonic_ms()
        topics: dict[str, list[AlterPartitionReassignmentsRequestPartition]] = {}
        for (topic, number), brokers in replicas.items():
            asked = None if brokers is None else tuple(brokers)
            topics.setdefault(topic, []).append(
                AlterPartitionReassignmentsRequestPartition(partition_index=number, replicas=asked)
            )
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=REASSIGN_TIMEOUT_MS,
            topics=tuple(
                AlterPartitionReassignmentsRequestTopic(name=name, partitions=tuple(parts))
                for name, parts in topics.items()
            ),
        )
        try:
            answer = await self._lists.request(lambda _: request, timeout_ms=REASSIGN_TIMEOUT_MS)
        except (KjbodError, OSError) as error:
            self._lists.forget()
            done = Done(outcome=Outcome.FAILED, reason=str(error), took_ms=self._since(started_ms))
            return dict.fromkeys(replicas, done)
        return self._reassigned(replicas, answer, self._since(started_ms))

    def _reassigned(
        self,
        replicas: Mapping[tuple[str, int], Sequence[int] | None],
        answer: AlterPartitionReassignmentsResponse,
        took_ms: int,
    ) -> Mapping[tuple[str, int], Done]:
        if answer.error_code:
            done = self._answered("AlterPartitionReassignments", answer.error_code, answer.error_message, took_ms)
            return dict.fromkeys(replicas, done)
        told = {(topic.name, part.partition_index): part for topic in answer.responses for part in topic.partitions}
        found: dict[tuple[str, int], Done] = {}
        for key in replicas:
            part = told.get(key)
            if part is None:
                found[key] = Done(outcome=Outcome.FAILED, reason="the controller left it out of its answer")
            else:
                found[key] = self._answered(f"{key[0]}-{key[1]}", part.error_code, part.error_message, took_ms)
        return found

    async def elect(self, partitions: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], Done]:
        """Send ElectLeaders in the guard's own name, for the preferred leaders of partitions. A preferred leader that
        already leads is no error."""
        from kjbod.wire.admin_messages import ElectLeadersRequest, ElectLeadersRequestTopicPartition

        started_ms = self._clock.monotonic_ms()
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        request = ElectLeadersRequest(
            topic_partitions=tuple(
                ElectLeadersRequestTopicPartition(topic=name, partitions=tuple(numbers))
                for name, numbers in topics.items()
            ),
            timeout_ms=REASSIGN_TIMEOUT_MS,
        )
        try:
            answer = await self._lists.request(lambda _: request, timeout_ms=REASSIGN_TIMEOUT_MS)
        except (KjbodError, OSError) as error:
            self._lists.forget()
            done = Done(outcome=Outcome.FAILED, reason=str(error), took_ms=self._since(started_ms))
            return dict.fromkeys(partitions, done)
        took_ms = self._since(started_ms)
        if answer.error_code:
            return dict.fromkeys(partitions, self._answered("ElectLeaders", answer.error_code, None, took_ms))
        left_out = Done(outcome=Outcome.FAILED, reason="the controller left it out of its answer", took_ms=took_ms)
        found = dict.fromkeys(partitions, left_out)
        for one in answer.replica_election_results:
            for part in one.partition_result:
                code = ErrorCode.NONE if part.error_code == ErrorCode.ELECTION_NOT_NEEDED else part.error_code
                name = f"{one.topic}-{part.partition_id}"
                found[one.topic, part.partition_id] = self._answered(name, code, part.error_message, took_ms)
        return found

    async def stale_heartbeat(self) -> Done:
        """Check the right to send heartbeats, with an epoch that no registration has. Error 77 shows that the right is
        there. Such a heartbeat does not extend the broker's session."""
        done = await self._heartbeat(_NO_EPOCH)
        stale = done.outcome is Outcome.FAILED and name_of(ErrorCode.STALE_BROKER_EPOCH) in done.reason
        return Done(outcome=Outcome.DONE) if stale else done

    async def reassign_nothing(self) -> Done:
        """Check the right to reassign, with a request that has no partitions."""
        started_ms = self._clock.monotonic_ms()
        request = AlterPartitionReassignmentsRequest(timeout_ms=REASSIGN_TIMEOUT_MS, topics=())
        try:
            answer = await self._lists.request(lambda _: request, timeout_ms=REASSIGN_TIMEOUT_MS)
        except (KjbodError, OSError) as error:
            self._lists.forget()
            return Done(outcome=Outcome.FAILED, reason=str(error), took_ms=self._since(started_ms))
        return self._answered("AlterPartitionReassignments", answer.error_code, answer.error_message, 0)

    async def _heartbeat(self, broker_epoch: int, *, offline: tuple[Uuid, ...] = (), want_fence: bool = False) -> Done:
        started_ms = self._clock.monotonic_ms()
        request = BrokerHeartbeatRequest(
            broker_id=self._broker_id,
            broker_epoch=broker_epoch,
            current_metadata_offset=0,
            want_fence=want_fence,
            offline_log_dirs=offline,
        )
        try:
            answer = await self._channel.request(lambda _: request, timeout_ms=HEARTBEAT_TIMEOUT_MS)
        except RequestTimedOut as error:
            return Done(outcome=_late(error), reason=str(error), took_ms=self._since(started_ms))
        except (KjbodError, OSError) as error:
            self._channel.forget()
            return Done(outcome=Outcome.FAILED, reason=str(error), took_ms=self._since(started_ms))
        return self._answered("BrokerHeartbeat", answer.error_code, None, self._since(started_ms))

    def _answered(self, what: str, code: int, message: str | None, took_ms: int) -> Done:
        if code == ErrorCode.NONE:
            return Done(outcome=Outcome.DONE, took_ms=took_ms)
        if code in _MOVED:
            self._channel.forget()
            self._lists.forget()
        outcome = Outcome.REFUSED if code in _DENIED else Outcome.FAILED
        text = f"{what}: {name_of(code)} ({code}){f': {message}' if message else ''}"
        return Done(outcome=outcome, reason=text, took_ms=took_ms)

    def _of(self, broker_epoch: int) -> None:
        if broker_epoch != self._epoch:
            self._epoch, self._fences = broker_epoch, 0
            self._reports.clear()

    def _since(self, started_ms: int) -> int:
        return self._clock.monotonic_ms() - started_ms


class Rights:
    """Rights on the cluster that a guard needs to act, and the missing ones.

    Args:
        controllers: checks each right with a request that changes nothing.

    Attributes:
        missing: a line for each right that is missing; empty also while no controller has answered.
        may_alter: whether ALTER is not missing.
    """

    def __init__(self, controllers: ControllerClient) -> None:
        self._controllers = controllers
        self.missing: tuple[str, ...] = ()
        self.may_alter = True
        self._doubt = asyncio.Event()

    def in_doubt(self) -> None:
        """Check the rights now: a disk may be failing, and a right may be gone since the last check."""
        self._doubt.set()

    async def watch(self, is_ready: Callable[[], bool], changed: Callable[[], None]) -> None:
        """Check the rights again and again.

        Args:
            is_ready: whether the broker is registered.
            changed: called when the missing rights have changed.
        """
        while True:
            self._doubt.clear()
            known = is_ready() and await self._look(changed)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout((RIGHTS_EVERY_MS if known else RIGHTS_AGAIN_MS) / 1000):
                    await self._doubt.wait()

    async def _look(self, changed: Callable[[], None]) -> bool:
        """Check all rights; return whether every check got an answer."""
        controllers, missing, may_alter = self._controllers, [], True
        for name, cost, ask in (
            ("CLUSTER_ACTION", "no directory is reported and no broker fenced", controllers.stale_heartbeat),
            (
                "ALTER",
                "no replica is evicted, restored or demoted, and nothing is cut",
                controllers.reassign_nothing,
            ),
            (
                "ALTER_CONFIGS",
                "nothing that cannot be undone is done",
                partial(controllers.suspect, "", validate_only=True),
            ),
        ):
            done = await ask()
            if done.outcome is Outcome.REFUSED:
                missing.append(f"the guard lacks {name} on the cluster: {cost}")
                may_alter = may_alter and name != "ALTER"
            elif done.outcome is not Outcome.DONE:
                return False
        if tuple(missing) != self.missing:
            self.missing, self.may_alter = tuple(missing), may_alter
            changed()
        return True

"""The shell that follows the metadata as an observer, without being a replica.

It feeds :class:`.observing.Observed`, and gives the reason if the metadata are not followed.
"""

import asyncio
import random
from collections.abc import Callable, Collection
from typing import Final

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.config.needs import CONTROLLERS
from kjbod.errors import ConfigError, KjbodError
from kjbod.metadata.fetching import Committed, Leader, Snapshot
from kjbod.metadata.follower import MetadataFollower
from kjbod.metadata.image import BrokerRegistration
from kjbod.metadata.records import Record
from kjbod.runtime import memory
from kjbod.security.channel import Security
from kjbod.security.opening import security_of
from kjbod.wire.client import opened_with
from kjbod.wire.codec import MalformedMessageError
from kjbod_guard.observing import Key, Observed
from kjbod_host.quorum import connection_setup, quorum, servers, voter_addresses

CLUSTER_EVERY_MS: Final = 1_000
"""Time between two looks for the cluster's id, while no log directory could be read."""
STALE_MS: Final = 10_000
"""Age from which metadata that cannot be followed say nothing about what Kafka has noticed."""
AGAIN_MS: Final = 60_000
"""Time to the next try after metadata that cannot be followed: of another cluster, or of a Kafka that is too new."""
NO_ANSWER: Final = "no answer yet"
BEING_READ: Final = "they are being read"


def security_to_controllers(config: Config) -> Security | str:
    """Return the security of connections to the controllers, or why there can be none. Disks are watched in both
    cases."""
    unread = [line for name, line in config.unread.items() if name in CONTROLLERS]
    if unread and not (config.controller_listener_names and config.controller_protocol and servers(config)):
        return unread[0]
    try:
        return security_of(config)
    except ConfigError as error:
        return error.problems[0]


def observer(
    config: Config,
    clock: Clock,
    rng: random.Random,
    *,
    security: Security,
    client_id: str,
    cluster_id: str | None,
    on_committed: Callable[[Committed], None],
    on_snapshot: Callable[[Snapshot], None],
    wanted: Callable[[Record], bool] | None = None,
    on_leader: Callable[[Leader | None], None] = lambda leader: None,
) -> MetadataFollower:
    """Return a follower of the metadata at the controllers of a configuration, without being a replica."""
    return MetadataFollower(
        servers(config),
        client_id=client_id,
        clock=clock,
        rng=rng,
        on_committed=on_committed,
        on_snapshot=on_snapshot,
        wanted=wanted,
        on_leader=on_leader,
        cluster_id=cluster_id,
        voters=voter_addresses(config),
        quorum=quorum(config),
        setup=connection_setup(config, rng),
        connect=opened_with(security),
    )


class Following:
    """Follower of the metadata, for as long as the guard runs.

    Args:
        config: of the broker.
        clock: the time.
        rng: source of random numbers.
        security: of connections to the controllers, or why there are none.
        cluster_id: of the log directories; None: none could be read.
        evicted: partitions that are followed although the broker is no replica of them.
        on_leader: told the active controller.
        is_close: whether each change may matter: a disk fails, or something is being done.
        review: looks at everything again.

    Attributes:
        observed: what is known of the broker.
        registered_ms: when the broker registered again; 0: not while this guard watched.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        rng: random.Random,
        *,
        security: Security | str,
        cluster_id: Callable[[], str | None],
        evicted: Callable[[], Collection[Key]],
        on_leader: Callable[[Leader | None], None],
        is_close: Callable[[], bool],
        review: Callable[[], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._rng = rng
        self._security = security
        self._cluster_id = cluster_id
        self._evicted = evicted
        self._on_leader = on_leader
        self._is_close = is_close
        self._review = review
        self._follower: MetadataFollower | None = None
        self._missing: str | None = NO_ANSWER
        self._silent_since_ms: int | None = clock.monotonic_ms()
        self.observed = Observed(config.node_id)
        self.registered_ms = 0

    @property
    def leader(self) -> Leader | None:
        """The active controller, as far as it is known."""
        return None if self._follower is None else self._follower.leader

    @property
    def blind(self) -> str | None:
        """Reason why the metadata are not followed; None: they are followed."""
        follower = self._follower
        if follower is None:
            return self._missing
        if follower.problem is None:
            self._silent_since_ms = None
            return None if self.observed.complete else BEING_READ
        now_ms = self._clock.monotonic_ms()
        self._silent_since_ms = now_ms if self._silent_since_ms is None else self._silent_since_ms
        if not self.observed.complete or now_ms - self._silent_since_ms >= STALE_MS:
            return follower.problem
        return None

    @property
    def is_followed(self) -> bool:
        """Whether the metadata are followed."""
        return self.blind is None

    @property
    def answered_ms(self) -> int | None:
        """Time of the last request to the active controller whose answer is applied. All records committed by then are
        known. None: no answer yet.
        """
        return None if self._follower is None or not self.observed.complete else self._follower.current_ms

    async def run(self) -> None:
        """Follow the metadata for as long as the guard runs."""
        if isinstance(self._security, str):
            self._missing = self._security
            return
        while True:
            while self._cluster_id() is None:
                self._missing = "no log directory could be read, so the cluster is not known"
                await asyncio.sleep(CLUSTER_EVERY_MS / 1000)
            self._forget()
            self._missing = NO_ANSWER
            follower = self._follower = observer(
                self._config,
                self._clock,
                self._rng,
                security=self._security,
                client_id=f"kjbod-guard-{self._config.node_id}",
                cluster_id=self._cluster_id(),
                on_committed=self._on_committed,
                on_snapshot=self._on_snapshot,
                wanted=lambda record: self.observed.wants(record),
                on_leader=self._on_leader,
            )
            try:
                await follower.run()
            except (KjbodError, MalformedMessageError) as error:
                self._follower, self._missing = None, str(error)
                self._forget()
            await asyncio.sleep(AGAIN_MS / 1000)

    def note_complete(self) -> None:
        """Note when all committed records are applied, also if there is only a snapshot."""
        follower = self._follower
        if follower is not None and 0 <= follower.high_watermark <= follower.applied_offset:
            self.observed.note_complete(self._clock.monotonic_ms())

    def _forget(self) -> None:
        self.observed = Observed(self._config.node_id, evicted=frozenset(self._evicted()))

    def _on_committed(self, committed: Committed) -> None:
        before, was_complete = self.observed.registration, self.observed.complete
        self.observed.committed(committed, self._clock.monotonic_ms())
        self._compare_epochs(before)
        news = self.observed.registration is not before or self.observed.complete != was_complete
        if news or (committed.records and self._is_close()):
            self._review()

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        before = self.observed.registration
        self.observed = self.observed.snapshot(snapshot, self._clock.monotonic_ms())
        self._compare_epochs(before)
        asyncio.get_running_loop().call_soon(memory.settle)  # after the snapshot is freed
        self._review()

    def _compare_epochs(self, before: BrokerRegistration | None) -> None:
        """Note a new start of the broker: a directory that it uses again may be healthy."""
        now = self.observed.registration
        if before is not None and now is not None and now.epoch != before.epoch:
            self.registered_ms = self._clock.monotonic_ms()

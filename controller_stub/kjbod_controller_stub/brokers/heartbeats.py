"""Soft state about brokers: sessions, offsets, and the next state after a heartbeat (``BrokerHeartbeatManager``,
``BrokerHeartbeatTracker``).

None of this is in the log. A controller that starts gives every unfenced broker one full session
(:meth:`Heartbeats.activate`), and the brokers' next heartbeats bring the rest back: each repeats its offset and all its
offline directories.

A session belongs to a broker *and its epoch*, is good for ``broker.session.timeout.ms`` after the last heartbeat, and
is what keeps another process from taking the id.

Sessions are renewed on the event loop while a large change may be made in another thread
(:meth:`~kjbod_controller_stub.brokers.sessions.BrokerSessions.steady_heartbeat`), so that every method here holds the
lock that its caller gave it for its few steps. With one thread none is needed.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from enum import Enum, auto

from msgspec import Struct, field

from kjbod.ids import Uuid
from kjbod.metadata.image import BrokerRegistration
from kjbod.patience import Patience


class BrokerState(Enum):
    """State of a broker in the controller's view (``BrokerControlState``)."""

    FENCED = auto()
    UNFENCED = auto()
    CONTROLLED_SHUTDOWN = auto()
    SHUTDOWN_NOW = auto()
    """Fenced, and told to go. In the log, and so at its next heartbeat, it is FENCED."""

    @property
    def fenced(self) -> bool:
        return self in (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW)


class Situation(Struct, frozen=True, kw_only=True):
    """Facts that decide on a broker's next state."""

    want_fence: bool
    want_shut_down: bool
    caught_up: bool
    """It has applied its own registration."""
    leads: bool
    may_go: bool
    """All active brokers have applied the records that took its leaderships away."""
    held: bool = False
    """It has to stay fenced (``Rules.fenced_until_placed``, ``Rules.shutdown_is_final``)."""
    no_directory: bool = False
    """Its last directory is offline (``Rules.fences_without_directories``)."""


_Row = tuple[BrokerState, Callable[[Situation], bool], BrokerState]

# The first row that fits counts. The order within a state is Kafka's; the rows with `no_directory` and `held` are ours
# and never fit under Kafka's rules.
_TRANSITIONS: tuple[_Row, ...] = (
    (BrokerState.FENCED, lambda s: s.want_shut_down, BrokerState.SHUTDOWN_NOW),
    (BrokerState.FENCED, lambda s: s.no_directory or s.held, BrokerState.FENCED),
    (BrokerState.FENCED, lambda s: not s.want_fence and s.caught_up, BrokerState.UNFENCED),
    (BrokerState.FENCED, lambda s: True, BrokerState.FENCED),
    (BrokerState.UNFENCED, lambda s: s.want_fence and s.want_shut_down, BrokerState.SHUTDOWN_NOW),
    (BrokerState.UNFENCED, lambda s: s.no_directory and s.want_shut_down, BrokerState.SHUTDOWN_NOW),
    (BrokerState.UNFENCED, lambda s: s.want_fence or s.no_directory, BrokerState.FENCED),
    (BrokerState.UNFENCED, lambda s: s.want_shut_down and s.leads, BrokerState.CONTROLLED_SHUTDOWN),
    (BrokerState.UNFENCED, lambda s: s.want_shut_down, BrokerState.SHUTDOWN_NOW),
    (BrokerState.UNFENCED, lambda s: True, BrokerState.UNFENCED),
    (BrokerState.CONTROLLED_SHUTDOWN, lambda s: s.no_directory, BrokerState.SHUTDOWN_NOW),
    (BrokerState.CONTROLLED_SHUTDOWN, lambda s: s.leads, BrokerState.CONTROLLED_SHUTDOWN),
    (BrokerState.CONTROLLED_SHUTDOWN, lambda s: s.may_go, BrokerState.SHUTDOWN_NOW),
    (BrokerState.CONTROLLED_SHUTDOWN, lambda s: True, BrokerState.CONTROLLED_SHUTDOWN),
)


def next_state(current: BrokerState, situation: Situation) -> BrokerState:
    """Return the state after a heartbeat (``BrokerHeartbeatManager.calculateNextBrokerState``)."""
    for state, fits, following in _TRANSITIONS:
        if state is current and fits(situation):
            return following
    return current  # SHUTDOWN_NOW is final


ACCEPTED_MAX = 4_096
"""Directory ids that are remembered of one incarnation, besides those of the heartbeat that goes beyond it. One that
reports more, which no broker has, is read and judged anew each time."""


class Contact(Struct):
    """The soft state of one incarnation of a broker, since its first heartbeat."""

    epoch: int
    last_contact_ms: int
    metadata_offset: int = -1
    """Last offset that it says it has applied."""
    controlled_shutdown_offset: int | None = None
    """Last record of the step that took it into controlled shutdown; set once."""
    offline: set[Uuid] = field(default_factory=set)
    """Every directory that it has reported. The last one has no record, so that this alone remembers it."""
    accepted: set[Uuid] = field(default_factory=set)
    """Ids that it has reported and was not refused for, those included that were no directory of it any more; up to
    :data:`ACCEPTED_MAX`."""
    patience: Patience | None = None
    """With a broker that is fenced until its replicas are placed; begins when it has caught up."""
    held_logged: bool = False
    """Whether a log line with the reason of the wait was written."""

    def accept(self, directories: Iterable[Uuid]) -> None:
        """Remember directories that were reported and accepted."""
        if len(self.accepted) < ACCEPTED_MAX:
            self.accepted.update(directories)


class Heartbeats:
    """Contacts of all brokers; the broker with the oldest heartbeat is first.

    Args:
        session_timeout_ms: ``broker.session.timeout.ms``.
        lock: held by each method that changes the order of the contacts or walks over it.
    """

    def __init__(self, session_timeout_ms: int, lock: AbstractContextManager[object] | None = None) -> None:
        self.session_timeout_ms = session_timeout_ms
        self._contacts: OrderedDict[int, Contact] = OrderedDict()
        self._lock = nullcontext() if lock is None else lock

    def contact(self, broker_id: int, epoch: int) -> Contact | None:
        """Return the contact of this incarnation; None before its first heartbeat."""
        contact = self._contacts.get(broker_id)
        return contact if contact is not None and contact.epoch == epoch else None

    def touch(self, broker_id: int, epoch: int, now_ms: int, metadata_offset: int | None = None) -> Contact:
        """Note a heartbeat; another epoch starts a new contact."""
        with self._lock:
            contact = self.contact(broker_id, epoch)
            if contact is None:
                contact = self._contacts[broker_id] = Contact(epoch, now_ms)
            self._renew(broker_id, contact, now_ms, metadata_offset)
            return contact

    def renew(self, broker_id: int, contact: Contact, now_ms: int, metadata_offset: int) -> bool:
        """Renew the session of this contact after a heartbeat. Return whether the session still existed."""
        with self._lock:
            if self._contacts.get(broker_id) is not contact:
                return False
            self._renew(broker_id, contact, now_ms, metadata_offset)
            return True

    def _renew(self, broker_id: int, contact: Contact, now_ms: int, metadata_offset: int | None) -> None:
        contact.last_contact_ms = now_ms
        if metadata_offset is not None:
            contact.metadata_offset = metadata_offset
        self._contacts.move_to_end(broker_id)

    def forget_offset(self, broker_id: int, *, registered: bool) -> None:
        """Treat the broker as one that has applied nothing until its next heartbeat (``Rules.keeps_offsets``).
        ``registered``: it registered again, which ends a controlled shutdown."""
        with self._lock:
            if contact := self._contacts.get(broker_id):
                contact.metadata_offset = -1
                if registered:
                    contact.controlled_shutdown_offset = None

    def drop(self, broker_id: int) -> None:
        """Forget the broker after the end of its session."""
        with self._lock:
            self._contacts.pop(broker_id, None)

    def activate(self, brokers: Iterable[BrokerRegistration], now_ms: int, *, ended: int | None = None) -> None:
        """Start a session for every unfenced broker, because a new controller has had no heartbeats yet. The session of
        the broker ``ended`` is over: it ran in the process of the previous controller."""
        for broker in sorted(brokers, key=lambda one: one.id != ended):  # oldest heartbeat first
            if not broker.fenced:
                heard_ms = now_ms - self.session_timeout_ms - 1 if broker.id == ended else now_ms
                self.touch(broker.id, broker.epoch, heard_ms)

    def has_valid_session(self, broker_id: int, epoch: int, now_ms: int) -> bool:
        """Return whether this incarnation sent a heartbeat within the session timeout."""
        contact = self.contact(broker_id, epoch)
        return contact is not None and contact.last_contact_ms + self.session_timeout_ms >= now_ms

    def find_one_stale(self, now_ms: int) -> int | None:
        """Return the broker with the oldest heartbeat if its session has expired."""
        with self._lock:
            for broker_id, contact in self._contacts.items():
                return broker_id if contact.last_contact_ms + self.session_timeout_ms < now_ms else None
        return None

    def next_check_ms(self) -> int | None:
        """Return the earliest time at which a session can expire; None without sessions."""
        with self._lock:
            for contact in self._contacts.values():
                return contact.last_contact_ms + self.session_timeout_ms + 1
        return None

    def enter_controlled_shutdown(self, broker_id: int, epoch: int, offset: int) -> None:
        """Note that the records that begin the broker's controlled shutdown end at ``offset``. Only the first call
        counts."""
        contact = self.contact(broker_id, epoch)
        if contact is not None and contact.controlled_shutdown_offset is None:
            contact.controlled_shutdown_offset = offset

    def is_leaving(self, broker_id: int, epoch: int) -> bool:
        """Return whether this incarnation is known to be in controlled shutdown."""
        contact = self.contact(broker_id, epoch)
        return contact is not None and contact.controlled_shutdown_offset is not None

    def may_go(self, broker_id: int, epoch: int, active: Iterable[BrokerRegistration]) -> bool:
        """Return whether all active brokers have applied the records that moved the broker's leaderships.

        A controller that started in between does not know where they ended: then nothing may be concluded from the
        offsets, and the records are durable and old; the broker may go.
        """
        contact = self.contact(broker_id, epoch)
        if contact is None or contact.controlled_shutdown_offset is None:
            return True
        wanted = contact.controlled_shutdown_offset
        for broker in active:
            other = self.contact(broker.id, broker.epoch)
            if other is None or other.metadata_offset < wanted:
                return False
        return True

"""The life of a broker towards its controller: registration, heartbeats, fencing, controlled shutdown.

Theory
------
Kafka's ``BrokerLifecycleManager`` without its queue and its threads: :func:`step` takes what is, what happened and the
time, and returns what is now and what to do. The shell owns the connection and the timer; it calls :func:`step` with
:class:`TimePassed` no later than :func:`wakeup_ms` says.

States are Kafka's ``BrokerState``, and :data:`TRANSITIONS` is all there is to them. Being fenced again later does not
leave RUNNING (nor does it in Kafka): the controller's view is ``fenced``, the state is how far this process came.

One request is in flight at most. Each carries a serial number, so that an answer that was given up for lost (the
controller moved, the timeout passed) changes nothing when it comes after all. The shell asks :func:`is_in_flight`
before it sends one: a request that still waits for a controller or a connection when another takes its place never goes
out.

What is sent: a registration as long as ``registered`` is false, a heartbeat otherwise. A heartbeat always carries
*every* directory that failed in this process (KIP-858: accumulated until the broker restarts), and WantFence until
:class:`ReadyToUnfence`. When it is sent:

* after a good answer, as :data:`PACE_MS` says: 10 ms while STARTING, so that catching up is noticed at once; 50 ms
  after the first answer that does not let go during a controlled shutdown; one heartbeat interval otherwise;
* at once when there is news: registered, ready, a directory failed, shutdown asked for, another controller. News that
  comes while a request is in flight goes out the moment that request is answered;
* a heartbeat that carries a directory which the controller has not acknowledged waits for its answer longer than one
  interval, as long as the controller answers the Fetches of the metadata meanwhile, at most
  ``log.dir.failure.timeout.ms``: a controller that has much to do answers in order, and a second heartbeat over another
  connection would stand at the end of its queue. A controller that is frozen answers no Fetch: then the heartbeat is
  given up at the latest two intervals after the last answer, as any other after one. After one is given up, too, what
  the host of the controller has not acknowledged: it was lost on the way;
* after a failure (error code, timeout, disconnect, no controller) one heartbeat interval later (KAFKA-19294, 4.1). This
  is kind to a controller in trouble, but 2 s is long for a partition whose leader has lost its disk, and two seconds of
  every stop. So as long as a failed directory is not recorded, or a controlled shutdown waits, the retries come after
  100, 200, 400 ... ms, never more than the interval: a handful of extra requests, bounded, from the few brokers that
  have something to say. And a newly found controller is told at once, whatever the retry timer says: Kafka's channel
  does the same, it re-sends the request it holds.

Acknowledged means: an answer without error to a request that carried the directory. Kafka marks everything that is
failed *by the time of the answer*, also what the request did not carry.

STALE_BROKER_EPOCH means that the controller does not know this registration (unregistered, restored from a backup).
Kafka's broker fails heartbeats for ever; here it registers again. The same for LOG_DIR_NOT_FOUND, KIP-858's answer to
a directory that is not in the registration. A registration carries the *original* directories, also those that failed
since (so do Kafka's): leaving them out would leave partitions led on them as they are, because a registration moves no
leader. It revives them for a moment, hence what was acknowledged no longer is (:class:`OfflineForgotten`), and the
heartbeat that follows at once puts them offline again.

Directories that are added while the broker runs (a disk was replaced, or ``log.dirs`` grew) go the same way: Kafka has
no request for them, but a registration of the same incarnation replaces the list and leaves epoch and fencing as they
are. :class:`RegisterAgain` brings the new list. What is no longer in it is not reported offline any more (KIP-858 would
answer LOG_DIR_NOT_FOUND), and must have been recorded as offline before, because the registration moves no leader. What
is called ``revived`` was offline and is well again. A list that changes while a registration is on its way is sent once
more.

Stopping: from RUNNING a controlled shutdown, WantShutDown until ShouldShutDown. Two bounds: the whole takes at most
``controlled_shutdown_timeout_ms``; and a controller that has been silent for a session timeout has fenced this broker
already, or is gone: nothing is left to wait for. (Kafka waits five minutes for a dead controller.) :class:`Halt`, the
end after a disk failure, waits for nothing: it sends one farewell, WantFence and WantShutDown together, which a
controller that is alive answers by fencing at once, instead of finding out by the session timeout 9 s later. The
farewell carries only directories that are acknowledged already: fencing moves every leader, and the same heartbeat
reporting a directory as well would move them twice (leader epoch + 2, seen on 4.3.1).
"""

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct, field, structs

from kjbod.ids import NO_CLUSTER_ID, Uuid
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
)

STARTING_PACE_MS: Final = 10
GRANT_PACE_MS: Final = 50
CATCH_UP_PACE_MS: Final = 100
"""Between heartbeats of a broker past STARTING that the controller calls not caught up: registered again."""
RETRY_BACKOFF_MS: Final = 100
NO_EPOCH: Final = -1


class BrokerState(enum.IntEnum):
    """``metadata.BrokerState``: the value of Kafka's gauge of that name."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class Trigger(enum.Enum):
    """Cause of a broker's step from one state to the next."""

    START = "started"
    CAUGHT_UP = "the controller says that the metadata are caught up"
    UNFENCED = "the controller no longer fences the broker"
    STOP = "asked to stop"
    GRANTED = "the controller lets the broker go"
    END = "no more to wait for: refused, timed out, halted"


_S = BrokerState
TRANSITIONS: Final[Mapping[tuple[BrokerState, Trigger], BrokerState]] = {
    (_S.NOT_RUNNING, Trigger.START): _S.STARTING,
    (_S.NOT_RUNNING, Trigger.STOP): _S.SHUTTING_DOWN,
    (_S.NOT_RUNNING, Trigger.END): _S.SHUTTING_DOWN,
    (_S.STARTING, Trigger.CAUGHT_UP): _S.RECOVERY,
    (_S.STARTING, Trigger.STOP): _S.SHUTTING_DOWN,
    (_S.STARTING, Trigger.END): _S.SHUTTING_DOWN,
    (_S.RECOVERY, Trigger.UNFENCED): _S.RUNNING,
    (_S.RECOVERY, Trigger.STOP): _S.SHUTTING_DOWN,
    (_S.RECOVERY, Trigger.END): _S.SHUTTING_DOWN,
    (_S.RUNNING, Trigger.STOP): _S.PENDING_CONTROLLED_SHUTDOWN,
    (_S.RUNNING, Trigger.END): _S.SHUTTING_DOWN,
    (_S.PENDING_CONTROLLED_SHUTDOWN, Trigger.GRANTED): _S.SHUTTING_DOWN,
    (_S.PENDING_CONTROLLED_SHUTDOWN, Trigger.END): _S.SHUTTING_DOWN,
}
"""Every move there is; a trigger that a state does not list changes nothing."""

PACE_MS: Final[Mapping[BrokerState, int | None]] = {
    _S.STARTING: STARTING_PACE_MS,
    _S.RECOVERY: None,
    _S.RUNNING: None,
    _S.PENDING_CONTROLLED_SHUTDOWN: None,
}
"""From a good answer to the next heartbeat, by the state in which the answer came; None is the heartbeat interval."""


class Remedy(enum.Enum):
    """Reaction to an error code, beside trying again later."""

    RETRY = enum.auto()
    REDISCOVER = enum.auto()
    REGISTER = enum.auto()
    GIVE_UP = enum.auto()


HEARTBEAT_REMEDIES: Final[Mapping[int, Remedy]] = {
    ErrorCode.NOT_CONTROLLER: Remedy.REDISCOVER,
    ErrorCode.STALE_BROKER_EPOCH: Remedy.REGISTER,
    ErrorCode.BROKER_ID_NOT_REGISTERED: Remedy.REGISTER,
    ErrorCode.LOG_DIR_NOT_FOUND: Remedy.REGISTER,
}
REGISTRATION_REMEDIES: Final[Mapping[int, Remedy]] = {
    ErrorCode.NOT_CONTROLLER: Remedy.REDISCOVER,
    # Another incarnation is alive, or was until its session times out: up to 9 s after a crash *or a clean stop*.
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: Remedy.RETRY,
    # The disks belong to another cluster. No retry can make them ours.
    ErrorCode.INCONSISTENT_CLUSTER_ID: Remedy.GIVE_UP,
}
"""Codes that are not listed are tried again, until the initial registration timeout where that still runs."""


# ---------------------------------------------------------------------------------------------------------- what it is


class Identity(Struct, frozen=True, kw_only=True):
    """The broker's registration. All of it but ``log_dirs``, which are sorted on the way out, stays for the life of the
    process."""

    broker_id: int
    cluster_id: str
    incarnation_id: Uuid
    listeners: tuple[BrokerRegistrationRequestListener, ...]
    log_dirs: tuple[Uuid, ...]
    rack: str | None = None
    previous_broker_epoch: int = NO_EPOCH
    """Epoch that *all* directories' clean-shutdown files agree on, else -1 (KAFKA-18635)."""


class Timing(Struct, frozen=True, kw_only=True):
    """The timeouts that matter here, with Kafka's keys and defaults."""

    heartbeat_interval_ms: int = 2000
    session_timeout_ms: int = 9000
    registration_timeout_ms: int = 60_000
    """``initial.broker.registration.timeout.ms``"""
    controlled_shutdown_timeout_ms: int = 60_000
    """For the whole controlled shutdown; less than systemd's 90 s before it kills."""


class InFlight(Struct, frozen=True, kw_only=True):
    """The one request that waits for its answer."""

    serial: int
    heartbeat: bool
    offline: tuple[Uuid, ...] = ()
    log_dirs: tuple[Uuid, ...] = ()
    """Of a registration."""


class Lifecycle(Struct, frozen=True, kw_only=True):
    """All that :func:`step` knows. Times are monotonic milliseconds."""

    identity: Identity
    timing: Timing = field(default_factory=Timing)
    state: BrokerState = BrokerState.NOT_RUNNING
    features: tuple[BrokerRegistrationRequestFeature, ...] = ()
    registered: bool = False
    broker_epoch: int = NO_EPOCH
    fenced: bool = True
    caught_up: bool = False
    ready_to_unfence: bool = False
    metadata_offset: int = -1
    """Last offset applied to the metadata image."""
    offline: tuple[Uuid, ...] = ()
    """Every directory that failed in this process, in order."""
    recorded: frozenset[Uuid] = frozenset()
    """Those of them that the controller acknowledged."""
    cordoned: tuple[Uuid, ...] | None = None
    """Directories that take no new replicas (KIP-1066); None: the cluster does not know of cordons."""
    in_flight: InFlight | None = None
    serial: int = 0
    news: bool = False
    """Something happened that the request in flight does not carry."""
    failures: int = 0
    """Requests without a good heartbeat answer since the last one."""
    next_send_ms: int | None = None
    deadline_ms: int | None = None
    """End of the initial registration, or of the controlled shutdown."""
    answered_ms: int | None = None
    """When the controller last answered anything without error."""
    refusals: int = 0
    """Answers that did not let go during the controlled shutdown."""
    trouble: str = ""
    """The last failure, for the line that explains a stop; empty after a good heartbeat."""
    refused: bool = False
    """Whether the last failure was an answer: there is a controller, and it does not accept what was sent."""

    @property
    def unrecorded(self) -> tuple[Uuid, ...]:
        """Failed directories that no acknowledged request carried."""
        return tuple(d for d in self.offline if d not in self.recorded)

    @property
    def active(self) -> bool:
        """Whether the broker sends requests to its controller."""
        return self.state in PACE_MS


# ------------------------------------------------------------------------------------------------------- what happened


class Start(Struct, frozen=True):
    """Begin: register."""


class TimePassed(Struct, frozen=True):
    """The time of :func:`wakeup_ms` has come, or any other."""


class Paused(Struct, frozen=True):
    """A time in which this process did not run: a stop signal, or a machine that stood still."""

    lost_ms: int


class RegistrationAnswered(Struct, frozen=True):
    """The controller's answer to a registration."""

    serial: int
    error_code: int
    broker_epoch: int = NO_EPOCH
    reason: str | None = None
    """Why this agent cannot be registered, as far as the metadata tell; None: they do not."""


class HeartbeatAnswered(Struct, frozen=True):
    """The controller's answer to a heartbeat."""

    serial: int
    error_code: int
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False


class RequestFailed(Struct, frozen=True):
    """No answer: timeout, disconnect, no controller known, no common version."""

    serial: int
    reason: str


class ControllerFound(Struct, frozen=True):
    """Another controller than the one so far is the leader of the quorum; its supported features decide what the
    registration lists."""


class FeaturesKnown(Struct, frozen=True):
    """Features to list in registrations from now on."""

    features: tuple[BrokerRegistrationRequestFeature, ...]


class MetadataApplied(Struct, frozen=True):
    """The metadata image has been brought to this offset."""

    offset: int


class DirectoryFailed(Struct, frozen=True):
    """A log directory is offline, until it is added again (:class:`RegisterAgain`)."""

    directory_id: Uuid


class Cordoned(Struct, frozen=True):
    """The directories that take no new replicas; None: the cluster does not know of cordons."""

    directory_ids: tuple[Uuid, ...] | None


class ReadyToUnfence(Struct, frozen=True):
    """The replicas are where the metadata say they are: no more reason to be fenced."""


class RegisterAgain(Struct, frozen=True):
    """The controller has a registration without what it should hold: directories before they were supported
    (``BrokerRegistrationTracker``), or those that were added since."""

    log_dirs: tuple[Uuid, ...] | None = None
    """The directories from now on; None: as before."""
    revived: frozenset[Uuid] = frozenset()
    """Those of them that had failed and are well again."""


class BeginShutdown(Struct, frozen=True):
    """Stop; give the leaders away first if ``controlled`` and running."""

    controlled: bool = True


class Halt(Struct, frozen=True):
    """Stop now, whatever is in flight."""

    reason: str


Event = (
    Start
    | TimePassed
    | Paused
    | RegistrationAnswered
    | HeartbeatAnswered
    | RequestFailed
    | ControllerFound
    | FeaturesKnown
    | MetadataApplied
    | DirectoryFailed
    | Cordoned
    | ReadyToUnfence
    | RegisterAgain
    | BeginShutdown
    | Halt
)


# ---------------------------------------------------------------------------------------------------------- what to do


class SendRegistration(Struct, frozen=True):
    """Send it; come back with :class:`RegistrationAnswered` or :class:`RequestFailed`."""

    serial: int
    request: BrokerRegistrationRequest
    timeout_ms: int


class SendHeartbeat(Struct, frozen=True):
    """Send it; come back with :class:`HeartbeatAnswered` or :class:`RequestFailed`. ``news`` are the directories in it
    that the controller has not acknowledged."""

    serial: int
    request: BrokerHeartbeatRequest
    timeout_ms: int
    news: tuple[Uuid, ...] = ()


class SendFarewell(Struct, frozen=True):
    """Send it if that can be done at once; nobody waits long for the answer."""

    request: BrokerHeartbeatRequest


class ForgetController(Struct, frozen=True):
    """The connection or the controller behind it is of no use: look for the leader again."""


class Registered(Struct, frozen=True):
    """The controller knows this incarnation under this epoch, with these directories."""

    broker_epoch: int
    log_dirs: tuple[Uuid, ...] = ()


class CaughtUp(Struct, frozen=True):
    """For the first time the controller calls the metadata caught up."""


class Unfenced(Struct, frozen=True):
    """The broker may lead."""


class Fenced(Struct, frozen=True):
    """The broker may not lead any more."""


class OfflineAcknowledged(Struct, frozen=True):
    """The controller acknowledged these failed directories, for the first time since the registration."""

    directory_ids: tuple[Uuid, ...]


class OfflineForgotten(Struct, frozen=True):
    """A new registration has revived these failed directories at the controller."""

    directory_ids: tuple[Uuid, ...]


class Rejected(Struct, frozen=True):
    """A request was answered with an error, or not at all. For the log."""

    heartbeat: bool
    reason: str
    retry_ms: int


class Ending(enum.Enum):
    """Reason for which the conversation ended."""

    GRANTED = "controlled shutdown granted"
    UNCONTROLLED = "stopped without a controlled shutdown"
    TIMED_OUT = "controlled shutdown timed out"
    REGISTRATION_TIMED_OUT = "never registered"
    REFUSED = "registration refused"
    HALTED = "halted"


class Stopped(Struct, frozen=True):
    """Nothing more will be sent. ``reason`` is one line for a person."""

    ending: Ending
    reason: str


Effect = (
    SendRegistration
    | SendHeartbeat
    | SendFarewell
    | ForgetController
    | Registered
    | CaughtUp
    | Unfenced
    | Fenced
    | OfflineAcknowledged
    | OfflineForgotten
    | Rejected
    | Stopped
)
Effects = tuple[Effect, ...]
Step = tuple[Lifecycle, Effects]


# ----------------------------------------------------------------------------------------------------------- the rules


def step(life: Lifecycle, event: Event, now_ms: int) -> Step:
    """Return the state after ``event``, and the effects to carry out, in order. ``now_ms`` is monotonic."""
    return _HANDLERS[type(event)](life, event, now_ms)


def wakeup_ms(life: Lifecycle) -> int | None:
    """The latest moment at which :class:`TimePassed` is due; None while only an event can change anything."""
    times = [life.next_send_ms, life.deadline_ms]
    if life.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN and life.answered_ms is not None:
        times.append(life.answered_ms + life.timing.session_timeout_ms)
    known = [t for t in times if t is not None]
    return min(known) if known and life.active else None


def _move(life: Lifecycle, trigger: Trigger) -> Lifecycle:
    state = TRANSITIONS.get((life.state, trigger), life.state)
    return life if state is life.state else structs.replace(life, state=state)


def _end(life: Lifecycle, ending: Ending, reason: str, trigger: Trigger = Trigger.END) -> Step:
    moved = _move(life, trigger)
    if moved.state is life.state:
        return life, ()
    ended = structs.replace(moved, in_flight=None, next_send_ms=None, deadline_ms=None, news=False)
    return ended, (Stopped(ending, reason),)


def _retry_ms(life: Lifecycle) -> int:
    """Return the time from a failure to the next attempt; ``failures`` includes this failure."""
    interval = life.timing.heartbeat_interval_ms
    if life.unrecorded or life.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
        return int(min(interval, RETRY_BACKOFF_MS * 2 ** min(life.failures - 1, 16)))
    return interval


def _send(life: Lifecycle) -> Step:
    """Send the request that is due. No other request is in flight."""
    serial = life.serial + 1
    in_flight = InFlight(
        serial=serial,
        heartbeat=life.registered,
        offline=life.offline if life.registered else (),
        log_dirs=() if life.registered else life.identity.log_dirs,
    )
    sent = structs.replace(life, serial=serial, in_flight=in_flight, next_send_ms=None, news=False)
    timeout_ms = life.timing.heartbeat_interval_ms
    if life.registered:
        return sent, (SendHeartbeat(serial, _heartbeat(life), timeout_ms, life.unrecorded),)
    return sent, (SendRegistration(serial, _registration(life), timeout_ms),)


def _registration(life: Lifecycle) -> BrokerRegistrationRequest:
    identity = life.identity
    return BrokerRegistrationRequest(
        broker_id=identity.broker_id,
        cluster_id=identity.cluster_id,
        incarnation_id=identity.incarnation_id,
        listeners=identity.listeners,
        features=life.features,
        rack=identity.rack,
        is_migrating_zk_broker=False,
        log_dirs=tuple(sorted(identity.log_dirs)),
        previous_broker_epoch=identity.previous_broker_epoch,
    )


def _heartbeat(life: Lifecycle) -> BrokerHeartbeatRequest:
    # Kafka leaves cordons out (null) until it wants to be unfenced; the controller takes null for "unchanged".
    return BrokerHeartbeatRequest(
        broker_id=life.identity.broker_id,
        broker_epoch=life.broker_epoch,
        current_metadata_offset=life.metadata_offset,
        want_fence=not life.ready_to_unfence,
        want_shut_down=life.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
        offline_log_dirs=life.offline,
        cordoned_log_dirs=life.cordoned if life.ready_to_unfence else None,
    )


def _soon(life: Lifecycle) -> Step:
    """Send news at once, or as soon as the request in flight is answered."""
    if not life.active:
        return life, ()
    if life.in_flight is not None:
        return structs.replace(life, news=True), ()
    return _send(life)


def _failed(life: Lifecycle, reason: str, now_ms: int, *, forget: bool, refused: bool = True) -> Step:
    heartbeat = life.in_flight is not None and life.in_flight.heartbeat
    failed = structs.replace(
        life, in_flight=None, news=False, failures=life.failures + 1, trouble=reason, refused=refused
    )
    retry_ms = _retry_ms(failed)
    effects: Effects = (Rejected(heartbeat, reason, retry_ms),)
    if forget:
        effects = (*effects, ForgetController())
    return structs.replace(failed, next_send_ms=now_ms + retry_ms), effects


def is_in_flight(life: Lifecycle, serial: int) -> bool:
    """Whether this request is the one that waits for its answer; any other is void, sent or not."""
    return life.active and life.in_flight is not None and life.in_flight.serial == serial


def _on_start(life: Lifecycle, _event: Start, now_ms: int) -> Step:
    started = _move(life, Trigger.START)
    if started.state is life.state:
        return life, ()
    return _send(structs.replace(started, deadline_ms=now_ms + life.timing.registration_timeout_ms))


def _on_time(life: Lifecycle, _event: TimePassed, now_ms: int) -> Step:
    if not life.active:
        return life, ()
    if life.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
        silent_ms = now_ms - (life.answered_ms if life.answered_ms is not None else now_ms)
        if silent_ms >= life.timing.session_timeout_ms:
            return _end(life, Ending.TIMED_OUT, f"the controller has been silent for {silent_ms} ms: {life.trouble}")
        if life.deadline_ms is not None and now_ms >= life.deadline_ms:
            limit = life.timing.controlled_shutdown_timeout_ms
            return _end(life, Ending.TIMED_OUT, f"the controller did not grant the shutdown within {limit} ms")
    elif life.deadline_ms is not None and now_ms >= life.deadline_ms:
        limit = life.timing.registration_timeout_ms
        why = life.trouble or "no answer from any of controller.quorum.bootstrap.servers"
        text = f"not registered within {limit} ms (initial.broker.registration.timeout.ms): {why}"
        return _end(life, Ending.REGISTRATION_TIMED_OUT, text)
    if life.next_send_ms is not None and now_ms >= life.next_send_ms:
        return _send(life)
    return life, ()


def _on_pause(life: Lifecycle, event: Paused, _now_ms: int) -> Step:
    """The time for a registration is of what was observed: nobody else counts it. That of a stop was promised to the
    service manager."""
    if life.deadline_ms is None or life.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
        return life, ()
    return structs.replace(life, deadline_ms=life.deadline_ms + event.lost_ms), ()


def _on_registration(life: Lifecycle, event: RegistrationAnswered, now_ms: int) -> Step:
    if not is_in_flight(life, event.serial):
        return life, ()
    if event.error_code == ErrorCode.NONE:
        assert life.in_flight is not None
        current = life.in_flight.log_dirs == life.identity.log_dirs
        deadline_ms = life.deadline_ms if life.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN else None
        revived = tuple(d for d in life.offline if d in life.recorded)
        registered, effects = _send(
            structs.replace(
                life,
                registered=current,  # else it is sent once more, with what was added meanwhile
                broker_epoch=event.broker_epoch,
                caught_up=False,
                recorded=frozenset(),
                in_flight=None,
                deadline_ms=deadline_ms,
                answered_ms=now_ms,
            )
        )
        forgotten: Effects = (OfflineForgotten(revived),) if revived else ()
        return registered, (Registered(event.broker_epoch, life.in_flight.log_dirs), *forgotten, *effects)
    reason = f"registration answered {error_name(event.error_code)}"
    if event.error_code == ErrorCode.UNSUPPORTED_VERSION and event.reason is not None:
        reason = f"{reason}: {event.reason}"
    remedy = REGISTRATION_REMEDIES.get(event.error_code, Remedy.RETRY)
    if remedy is Remedy.GIVE_UP and life.broker_epoch == NO_EPOCH:
        cluster_id = life.identity.cluster_id or NO_CLUSTER_ID
        return _end(life, Ending.REFUSED, f"{reason}: cluster.id {cluster_id} is not the controller's")
    return _failed(life, reason, now_ms, forget=remedy is Remedy.REDISCOVER)


def _on_heartbeat(life: Lifecycle, event: HeartbeatAnswered, now_ms: int) -> Step:
    if not is_in_flight(life, event.serial):
        return life, ()
    if event.error_code == ErrorCode.NONE:
        return _on_good_heartbeat(life, event, now_ms)
    remedy = HEARTBEAT_REMEDIES.get(event.error_code, Remedy.RETRY)
    reason = f"heartbeat answered {error_name(event.error_code)}"
    failed, effects = _failed(life, reason, now_ms, forget=remedy is Remedy.REDISCOVER)
    if remedy is Remedy.REGISTER:
        failed = structs.replace(failed, registered=False)
        if failed.failures == 1:
            # At once the first time only: a registration that is accepted and a heartbeat that is not must not spin.
            again, more = _send(failed)
            return again, (*effects, *more)
    return failed, effects


def _on_good_heartbeat(life: Lifecycle, event: HeartbeatAnswered, now_ms: int) -> Step:
    assert life.in_flight is not None
    news = tuple(d for d in life.in_flight.offline if d in life.unrecorded)
    after = structs.replace(
        life,
        in_flight=None,
        failures=0,
        trouble="",
        answered_ms=now_ms,
        recorded=life.recorded.union(news),
        fenced=event.is_fenced,
        caught_up=event.is_caught_up,
    )
    effects: list[Effect] = [OfflineAcknowledged(news)] if news else []
    if event.is_caught_up:
        after = _move(after, Trigger.CAUGHT_UP)
        if after.state is not life.state:
            effects.append(CaughtUp())
    if not event.is_fenced and life.state is BrokerState.RECOVERY:
        after = _move(after, Trigger.UNFENCED)
    if event.is_fenced != life.fenced:
        effects.append(Fenced() if event.is_fenced else Unfenced())
    if life.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
        if event.should_shut_down:
            ended, stop = _end(after, Ending.GRANTED, "the controller granted the shutdown", Trigger.GRANTED)
            return ended, (*effects, *stop)
        after = structs.replace(after, refusals=life.refusals + 1)
    if after.news:
        sent, more = _send(after)
        return sent, (*effects, *more)
    return structs.replace(after, next_send_ms=now_ms + _pace_ms(life, after)), tuple(effects)


def _pace_ms(before: Lifecycle, after: Lifecycle) -> int:
    """Return the time from a good answer to the next heartbeat."""
    interval = after.timing.heartbeat_interval_ms
    if before.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
        # Sent before the shutdown was asked for, an answer cannot grant it; then once more soon; then in patience.
        return GRANT_PACE_MS if after.refusals <= 1 else interval
    pace = PACE_MS[before.state]
    if pace is None:
        pace = interval if after.caught_up else CATCH_UP_PACE_MS
    return min(interval, pace)


def _on_failure(life: Lifecycle, event: RequestFailed, now_ms: int) -> Step:
    if not is_in_flight(life, event.serial):
        return life, ()
    return _failed(life, event.reason, now_ms, forget=True, refused=False)


def _on_controller(life: Lifecycle, _event: ControllerFound, _now_ms: int) -> Step:
    if not life.active or (life.in_flight is None and life.failures == 0):
        return life, ()
    # What was asked of the old controller may never be answered; its serial number is void from here on.
    return _send(structs.replace(life, in_flight=None))


def _on_features(life: Lifecycle, event: FeaturesKnown, _now_ms: int) -> Step:
    return structs.replace(life, features=event.features), ()


def _on_metadata(life: Lifecycle, event: MetadataApplied, _now_ms: int) -> Step:
    return structs.replace(life, metadata_offset=event.offset), ()


def _on_directory(life: Lifecycle, event: DirectoryFailed, _now_ms: int) -> Step:
    if event.directory_id in life.offline:
        return life, ()
    failed = structs.replace(life, offline=(*life.offline, event.directory_id))
    # Before the registration is through there is nobody to tell; the heartbeat that follows it carries the directory.
    return _soon(failed) if life.registered else (failed, ())


def _on_cordon(life: Lifecycle, event: Cordoned, _now_ms: int) -> Step:
    if event.directory_ids == life.cordoned:
        return life, ()
    changed = structs.replace(life, cordoned=event.directory_ids)
    return _soon(changed) if life.registered and life.ready_to_unfence else (changed, ())


def _on_ready(life: Lifecycle, _event: ReadyToUnfence, _now_ms: int) -> Step:
    if life.ready_to_unfence:
        return life, ()
    ready = structs.replace(life, ready_to_unfence=True)
    return _soon(ready) if life.registered else (ready, ())


def _on_register_again(life: Lifecycle, event: RegisterAgain, _now_ms: int) -> Step:
    if event.log_dirs is not None:
        kept = frozenset(event.log_dirs) - event.revived
        life = structs.replace(
            life,
            identity=structs.replace(life.identity, log_dirs=event.log_dirs),
            offline=tuple(d for d in life.offline if d in kept),
            recorded=life.recorded & kept,
        )
    if not life.registered:
        return life, ()
    return _soon(structs.replace(life, registered=False))


def _on_shutdown(life: Lifecycle, event: BeginShutdown, now_ms: int) -> Step:
    if life.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
        return life, ()
    silent = life.answered_ms is None or now_ms - life.answered_ms >= life.timing.session_timeout_ms
    if life.state is not BrokerState.RUNNING or not event.controlled or silent:
        return _end(life, Ending.UNCONTROLLED, "asked to stop", Trigger.END)
    stopping = structs.replace(
        _move(life, Trigger.STOP), deadline_ms=now_ms + life.timing.controlled_shutdown_timeout_ms, refusals=0
    )
    return _soon(stopping)


def _on_halt(life: Lifecycle, event: Halt, _now_ms: int) -> Step:
    ended, effects = _end(life, Ending.HALTED, event.reason)
    if not effects or not life.registered:
        return ended, effects
    farewell = structs.replace(
        _heartbeat(life),
        want_fence=True,
        want_shut_down=True,
        offline_log_dirs=tuple(d for d in life.offline if d in life.recorded),
    )
    return ended, (SendFarewell(farewell), *effects)


_HANDLERS: Final[Mapping[type[Event], Callable[[Lifecycle, Any, int], Step]]] = {
    Start: _on_start,
    TimePassed: _on_time,
    Paused: _on_pause,
    RegistrationAnswered: _on_registration,
    HeartbeatAnswered: _on_heartbeat,
    RequestFailed: _on_failure,
    ControllerFound: _on_controller,
    FeaturesKnown: _on_features,
    MetadataApplied: _on_metadata,
    DirectoryFailed: _on_directory,
    Cordoned: _on_cordon,
    ReadyToUnfence: _on_ready,
    RegisterAgain: _on_register_again,
    BeginShutdown: _on_shutdown,
    Halt: _on_halt,
}


def error_name(code: int) -> str:
    """Kafka's name of an error code, or the number of one we do not know."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"

"""The condition of the agent in one line: how ``kjbod status`` begins, what ``kjbod status --check`` exits with, and
what ``systemctl status`` shows. Pure.

The line is ``OK: ...``, ``DEGRADED: ...`` or ``CRITICAL: ...`` with every reason, the worst first:

=========  ============================================================================================================
CRITICAL   the broker serves nothing: fenced by its controller after it has run, or for :data:`START_MS` since its
           start; no directory is online
DEGRADED   it serves, and somebody should look: no controller answers, or it refuses; the metadata could not be
           fetched for :data:`UNFOLLOWED_MS`; a directory is not online (failed, unreadable, loading, slow, full, held,
           suspect); assignments are stuck; a replica cannot be made or used; a certificate of ours ends within a week,
           or its file cannot be used; metadata.version, or records of the metadata, are newer than kjbod knows; it
           starts or stops
OK         none of these
=========  ============================================================================================================

Without a controller nobody here can tell whether the broker is fenced: a controller that lives and does not hear of it
fences it after the session timeout, one that is dead fences nobody, and its partitions are served on. So that is
DEGRADED however long it lasts, and :func:`fenced` is unknown from then on.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from kjbod.units import duration, moment
from kjbod_agent.lifecycle import BrokerState, Lifecycle
from kjbod_host.condition import ONLINE, Condition, Level

START_MS: Final = 120_000
"""A start that takes longer is no start any more. The default of ``kjbod.assignment.timeout.ms``, which is the longest
that a start waits for one thing."""
UNFOLLOWED_MS: Final = 10_000
"""A change of the active controller, in which no fetch brings anything, is over by then."""
_STARTING: Final = frozenset({BrokerState.NOT_RUNNING, BrokerState.STARTING, BrokerState.RECOVERY})
_STOPPING: Final = frozenset({BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerState.SHUTTING_DOWN})
_DEAD: Final = frozenset({"failed", "unreadable"})
_WORDS: Final = ("failed", "unreadable", "held", "suspect", "slow", "full", "loading")
"""States of a directory in the order in which they are told."""


class Contact(Struct, frozen=True, kw_only=True):
    """Contact with the controller.

    Attributes:
        address: ``host:port`` of the last one that was known; None: there never was one.
        answers: whether the last request was answered without error.
        refused: whether it was answered with an error.
        silent_ms: since the last answer without error, since the start where there was none.
        last_answer_ms: when that was, wall clock, milliseconds since the epoch; None: never.
        trouble: why the last request failed; empty when it did not.
    """

    address: str | None
    answers: bool
    refused: bool
    silent_ms: int
    last_answer_ms: int | None
    trouble: str

    def reason(self, *, ago: bool) -> str:
        """Words for what is wrong with the controller. ``ago``: with the time that passed, which is another one each
        second."""
        at = "the start" if self.last_answer_ms is None else moment(self.last_answer_ms)
        time = f"for {duration(self.silent_ms / 1000)}" if ago else f"since {at}"
        known = [] if self.address is None else [self.address]
        last = "never answered" if self.last_answer_ms is None else f"last answer {at}"
        where = ", ".join([*known, last])
        what = "the controller accepts nothing" if self.refused else "no controller"
        return f"{what} {time} ({where}{f': {self.trouble}' if self.trouble else ''})"


class Unfollowed(Struct, frozen=True):
    """Metadata that are not followed: what the cluster decides meanwhile is not done here.

    Attributes:
        for_ms: since when no fetch has brought anything.
        trouble: why the last one did not.
    """

    for_ms: int
    trouble: str


class DirectoryStates(Struct, frozen=True):
    """The state of each directory, a word of ``kjbod status``.

    Attributes:
        log_dirs: by path.
        metadata: of a metadata directory of its own, ``online`` where there is none.
    """

    log_dirs: Mapping[str, str] = field(default_factory=dict)
    metadata: str = ONLINE


def contact(life: Lifecycle, now_ms: int, wall_ms: int, started_ms: int, address: str | None) -> Contact:
    """Return the contact with the controller. ``now_ms`` and ``started_ms`` are monotonic, ``wall_ms`` is the same
    moment as
    ``now_ms``."""
    silent_ms = now_ms - (started_ms if life.answered_ms is None else life.answered_ms)
    return Contact(
        address=address,
        answers=life.answered_ms is not None and life.failures == 0,
        refused=life.refused,
        silent_ms=silent_ms,
        last_answer_ms=None if life.answered_ms is None else wall_ms - silent_ms,
        trouble=life.trouble,
    )


def fenced(life: Lifecycle, silent_ms: int) -> bool | None:
    """Whether the controller fences the broker; None: nobody here can know it. ``silent_ms`` as in :class:`Contact`."""
    if life.failures and not life.fenced and silent_ms > life.timing.session_timeout_ms:
        return None
    return life.fenced


def unready(life: Lifecycle, heard: Contact) -> str | None:
    """Return the reason why this broker may be fenced, or is not registered; None: the controllers have it unfenced."""
    if life.state in _STOPPING:
        return "it stops"
    if life.state in _STARTING:
        return "it starts, and is not registered and unfenced yet"
    found = fenced(life, heard.silent_ms)
    return heard.reason(ago=True) if found is None else "the controller has fenced it" if found else None


def condition(
    life: Lifecycle,
    heard: Contact,
    directories: DirectoryStates,
    *,
    running_ms: int,
    unrecorded: int = 0,
    stuck: int = 0,
    unfollowed: Unfollowed | None = None,
    certificates: Sequence[str] = (),
    lost: bool = False,
    unknown: Sequence[str] = (),
    replicas: Sequence[str] = (),
    ago: bool = True,
) -> Condition:
    """Return the condition of an agent.

    Args:
        life: registration and fencing.
        heard: of the controller.
        directories: the state of each.
        running_ms: since the start.
        unrecorded: how many failed directories the controller has not acknowledged.
        stuck: assignments that the controller refuses or does not answer.
        unfollowed: the metadata, where no fetch of them brings anything.
        certificates: what is wrong with ours.
        lost: the history of the metadata was lost or set back, and this process has found that.
        unknown: what kjbod does not know of the metadata, a line each.
        replicas: why replicas that the metadata place here cannot be relied on.
        ago: see :meth:`Contact.reason`.
    """
    words = list(directories.log_dirs.values())
    found: list[tuple[Level, str]] = []
    if life.failures:
        found.append((Level.DEGRADED, heard.reason(ago=ago)))
    elif unfollowed is not None and unfollowed.for_ms >= UNFOLLOWED_MS:
        time = f" for {duration(unfollowed.for_ms / 1000)}" if ago else ""
        found.append((Level.DEGRADED, f"the metadata cannot be fetched{time} ({unfollowed.trouble})"))
    if life.state in _STOPPING:
        found.append((Level.DEGRADED, "it stops"))
    elif life.fenced and life.state in _STARTING:
        found.append((Level.CRITICAL if running_ms >= START_MS else Level.DEGRADED, "it starts, and is fenced"))
    elif life.fenced:
        found.append((Level.CRITICAL, "the controller has fenced it"))
    if words and _DEAD.issuperset(words):
        found.append((Level.CRITICAL, "no directory is online"))
    if counted := _counted(words):
        unheard = ", not yet known to the controller" if unrecorded else ""
        found.append((Level.DEGRADED, f"{counted}{unheard}"))
    if directories.metadata != ONLINE:
        found.append((Level.DEGRADED, f"the directory of the metadata (metadata.log.dir) is {directories.metadata}"))
    if stuck:
        found.append((Level.DEGRADED, f"{stuck:,} assignment{'' if stuck == 1 else 's'} not recorded"))
    if lost:
        found.append((Level.DEGRADED, "the history of the metadata was lost or set back (see kjbod strays)"))
    found += [(Level.DEGRADED, reason) for reason in (*replicas, *unknown, *certificates)]
    found.sort(key=lambda one: -one[0])
    count = len(words)
    well = f"{life.state.name.lower()}, unfenced, {count} director{'y' if count == 1 else 'ies'} online"
    return Condition(max((level for level, _ in found), default=Level.OK), tuple(text for _, text in found), well)


def _counted(words: Sequence[str]) -> str:
    """``2 of 12 directories failed, 1 slow``; empty when all are online."""
    counts = Counter(words)
    told = [word for word in (*_WORDS, *sorted(counts)) if counts[word] and word != ONLINE]
    if not told:
        return ""
    first, *others = dict.fromkeys(told)
    head = f"{counts[first]} of {len(words)} director{'y' if len(words) == 1 else 'ies'} {first}"
    return ", ".join([head, *(f"{counts[word]} {word}" for word in others)])

"""Steps about one log directory, one after the other. Pure.

What is to be done first is decided elsewhere (:func:`.ladder.would`), for a guard that observes and for one that acts
alike. Here is what follows. A state, what is known now, and the time give the next state and at most one effect; while
an effect is under way there is no other for that directory.

==========  ====================================================  =====================================================
state       when                                                  then
==========  ====================================================  =====================================================
well        would cut, mask or report                             *cut* → cutting, *mask* → masking,
..                                                                *report* → reporting
well        a means was tried and did not work                    the next one: cut, mask; then left
cutting     the hand has done it, or left it behind               cut
masking     likewise                                              masked
cut         the metadata show the directory gone                  offline: Kafka's own report, some 100 ms later
cut         not within 500 ms                                     *report* → reporting
masked      not within a checkpoint interval and 500 ms           *report* → reporting: earlier costs 30 s
reporting   not within 500 ms after the last one                  *report*, at most three; then left
well, left  the metadata show the directory gone                  offline: Kafka found out by itself
offline     partitions wait for this broker, and may be left      *evict* → evicting
evicting    the controllers have answered                         evicted; again for those that may be left later
any         registered again, the directory with it               well: from the start
evicted     likewise, and the disk is well                        *restore* → restoring, at most three times; then well
any         ``kjbod guard release``                               *unmask* where it was masked; left until it is well
any         a broker is about to start (:func:`before_start`)     *cut* → cutting, *mask* → masking, where it hangs
==========  ====================================================  =====================================================

Nothing else begins while the broker is being given up, or is not there.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Final

from kjbod.quick_dataclass import dataclass
from kjbod_agent.guard import slow_steps
from kjbod_agent.guard.budget import EVICT_WITHIN_MS
from kjbod_agent.guard.effects import Cut, Effect, Evict, Mask, Move, Report, Restore, Unmask
from kjbod_agent.guard.ladder import NOTHING, KafkaView, Step, Would
from kjbod_agent.guard.means import Done, Outcome
from kjbod_agent.guard.observing import Key

REPORT_AFTER_MS: Final = 500
"""Kafka's own report comes some 100 ms after a cut."""
CHECKPOINT_MS: Final = 5_000
"""``replica.high.watermark.checkpoint.interval.ms``: Kafka's next call by a path, which meets a mask."""
REPORTS_MAX: Final = 3
AGAIN_MS: Final = 1_000
"""Before something that failed is tried again."""
ATTEMPTS_MAX: Final = 30
"""Reports that reached no controller, evictions that were refused."""
RESTORES_MAX: Final = 3
RESTORE_AGAIN_MS: Final = 10_000


class State(StrEnum):
    """State of a directory on the ladder."""

    WELL = "well"
    CUTTING = "cutting"
    CUT = "cut"
    MASKING = "masking"
    MASKED = "masked"
    REPORTING = "reporting"
    OFFLINE = "offline"
    EVICTING = "evicting"
    EVICTED = "evicted"
    RESTORING = "restoring"
    LEFT = "left"
    RELEASING = "releasing"


_UNRECORDED: Final = (State.CUT, State.MASKED, State.REPORTING)
GONE: Final = (State.OFFLINE, State.EVICTING, State.EVICTED, State.RESTORING)
"""States of a directory that the metadata show, or have shown, offline."""
RELEASED: Final = "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A directory on the ladder.

    Attributes:
        state: see the table.
        since_ms: when it entered that.
        reason: in words, why it is left there, or why the last means did not work.
        means: what was done to its disk, and stands: cut or mask.
        tried: what did not work since it failed.
        epoch: of the broker when that began.
        reports: how many the controllers were given.
        attempts: how often the same was tried in vain.
        offline_ms: when the metadata were first seen to have it offline; None: they were when we came, or have it.
        seen_online: whether the metadata were seen to have it online, in this epoch.
        under_way: what is being done now.
    """

    state: State = State.WELL
    since_ms: int = 0
    reason: str = ""
    means: Step | None = None
    tried: frozenset[Step] = frozenset()
    epoch: int | None = None
    reports: int = 0
    attempts: int = 0
    offline_ms: int | None = None
    seen_online: bool = False
    under_way: Effect | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Knowledge of a directory at one moment.

    Attributes:
        path: as configured.
        directory_id: as text; None where nobody could read it.
        decided: what the ladder says.
        gate: what it says for a broker that is about to start; nothing while one runs.
        view: what the metadata say of it.
        epoch: of the broker's registration; None while it has none.
        well: whether its disk is well.
        present: whether the broker's process is there, is ours, and is not being given up.
        others_online: whether the broker's registration has another directory online.
        evict: replica lists that this broker may leave, as they are.
        restore: replica lists that it was taken out of, as they were, which nobody has changed since.
        turn_ms: how long an eviction waits for those of other brokers.
        slow: what is known of its leadership; None: nobody looks after that.
    """

    path: str
    directory_id: str | None
    decided: Would = NOTHING
    gate: Would = NOTHING
    view: KafkaView = KafkaView.ONLINE
    epoch: int | None = None
    well: bool = True
    present: bool = True
    others_online: bool = True
    evict: Mapping[Key, tuple[int, ...]] = field(default_factory=dict)
    restore: Mapping[Key, tuple[int, ...]] = field(default_factory=dict)
    turn_ms: int = 0
    slow: slow_steps.Facts | None = None


def advance(standing: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    """The next step about a directory."""
    if standing.under_way is not None:
        return Move(standing)
    if is_released(standing) and not facts.well:  # also while Kafka notices, and when the broker has been restarted
        return Move(standing)
    standing = _noted(standing, facts, now_ms)
    if facts.view is KafkaView.OFFLINE:
        return _offline(standing, facts, now_ms)
    if _is_back(standing, facts):
        return _back(standing, facts, now_ms)
    if not facts.present or facts.epoch is None:
        return Move(standing)
    if standing.state in (State.WELL, State.CUTTING, State.MASKING):
        return _begin(standing, facts, now_ms)
    if standing.state in _UNRECORDED:
        return _unrecorded(standing, facts, now_ms)
    if standing.state is State.LEFT and standing.means is None and facts.well:
        return Move(_at(standing, State.WELL, now_ms, tried=frozenset(), reports=0, attempts=0))
    return Move(standing)


def came_of(standing: Standing, done: Done, now_ms: int) -> Standing:
    """The state after what was under way, which is over."""
    effect, standing = standing.under_way, replace(standing, under_way=None)
    happened = done.happened
    reason = "" if happened else done.reason
    match effect:
        case Cut() if happened:
            return _at(standing, State.CUT, now_ms, means=Step.CUT)
        case Mask() if happened:
            return _at(standing, State.MASKED, now_ms, means=Step.MASK)
        case Cut():
            return _at(standing, State.WELL, now_ms, reason, tried=standing.tried | {Step.CUT})
        case Mask():
            return _at(standing, State.WELL, now_ms, reason, tried=standing.tried | {Step.MASK})
        case Report():
            if done.outcome is Outcome.REFUSED:
                return _at(standing, State.LEFT, now_ms, reason)
            given, vain = standing.reports + happened, standing.attempts + (not happened)
            return _at(standing, State.REPORTING, now_ms, reason, reports=given, attempts=vain)
        case Evict():
            vain = standing.attempts + (not happened)
            if done.outcome is Outcome.REFUSED:
                vain = ATTEMPTS_MAX
            return _at(standing, State.EVICTED if happened else State.OFFLINE, now_ms, reason, attempts=vain)
        case Restore():
            return _at(standing, State.RESTORING, now_ms, reason, attempts=standing.attempts + 1)
        case Unmask():
            means = None if happened else standing.means
            return _at(standing, State.LEFT, now_ms, reason or RELEASED, means=means)
    return standing


def release(standing: Standing, path: str, now_ms: int) -> Move[Standing] | None:
    """Outcome of a request to release the directory; None: something is under way, so not now."""
    if standing.under_way is not None:
        return None
    if standing.means is Step.MASK:
        return _do(standing, State.RELEASING, Unmask(path), now_ms)
    return Move(_at(standing, State.LEFT, now_ms, RELEASED))


def before_start(standing: Standing, facts: Facts, now_ms: int, *, masks: bool) -> Move[Standing]:
    """The step about a directory because a broker is about to start; ``masks``: whether it would see a mask."""
    idle = standing.under_way is None and standing.means is None and not is_released(standing)
    if not idle or facts.gate.step not in (Step.CUT, Step.MASK):
        return Move(standing)
    if facts.gate.step is Step.CUT and Step.CUT not in standing.tried:
        return _do(standing, State.CUTTING, Cut(facts.path), now_ms)
    if masks and Step.MASK not in standing.tried:
        return _do(standing, State.MASKING, Mask(facts.path), now_ms)
    return Move(standing)


def is_released(standing: Standing) -> bool:
    """Whether somebody has asked to leave the directory alone until it is well."""
    return standing.state is State.LEFT and standing.reason == RELEASED


def is_over(standing: Standing) -> bool:
    """Whether nothing is left to be done to its disk: it was released, or was cut and Kafka has it offline."""
    return is_released(standing) or (standing.means is Step.CUT and standing.state in GONE)


def is_unrecorded(standing: Standing) -> bool:
    """Whether something was done about the directory, or nothing could be, and the metadata do not show it offline."""
    return standing.state in _UNRECORDED or (standing.state is State.LEFT and not is_released(standing))


# ------------------------------------------------------------------------------------------------------------- the rows


def _noted(standing: Standing, facts: Facts, now_ms: int) -> Standing:
    """With what the metadata show."""
    if facts.view is KafkaView.OFFLINE and None is not standing.epoch != facts.epoch is not None:
        # It started without the directory: nobody waits for what lies there.
        standing = replace(standing, epoch=facts.epoch, seen_online=False, offline_ms=None)
    if facts.view is KafkaView.ONLINE and (not standing.seen_online or standing.offline_ms is not None):
        standing = replace(standing, seen_online=True, offline_ms=None)
    if facts.view is KafkaView.OFFLINE and standing.seen_online and standing.offline_ms is None:
        standing = replace(standing, offline_ms=now_ms)
    if standing.epoch is None and facts.epoch is not None:
        standing = replace(standing, epoch=facts.epoch)
    return standing


def _is_back(standing: Standing, facts: Facts) -> bool:
    """Whether the broker has registered again, the directory with it, or took it up while nobody looked."""
    if facts.view is not KafkaView.ONLINE or facts.epoch is None:
        return False
    if facts.epoch != standing.epoch or standing.state in GONE:
        return True
    wanted = facts.well and bool(facts.restore) and standing.attempts < RESTORES_MAX
    return standing.state is State.WELL and wanted and facts.present


def _back(standing: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    if facts.well and facts.restore and facts.present:
        wait_ms = 0 if standing.state is not State.RESTORING else standing.since_ms + RESTORE_AGAIN_MS - now_ms
        if wait_ms > 0:
            return Move(standing, again_ms=wait_ms)
        begun = standing.attempts if standing.state in (State.RESTORING, State.WELL) else 0
        if begun < RESTORES_MAX and facts.directory_id is not None:
            effect = Restore(facts.path, facts.directory_id, facts.restore)
            return _do(replace(standing, attempts=begun), State.RESTORING, effect, now_ms)
    fresh = Standing(since_ms=now_ms, epoch=facts.epoch, seen_online=True)
    if facts.well and facts.restore and facts.present:
        reason = f"not restored: {standing.reason or 'the metadata do not show it'}"
        fresh = replace(fresh, reason=reason, attempts=RESTORES_MAX)
    return Move(fresh)


def _offline(standing: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    if standing.state not in (State.OFFLINE, State.EVICTED, State.EVICTING, State.RELEASING):
        standing = _at(standing, State.OFFLINE, now_ms, attempts=0)
    if not facts.evict or facts.directory_id is None or not facts.present or not may_evict(standing, now_ms):
        return Move(standing)
    assert standing.offline_ms is not None  # may_evict
    wait_ms = standing.offline_ms + facts.turn_ms - now_ms
    if standing.attempts or standing.state is State.EVICTED:
        wait_ms = max(wait_ms, standing.since_ms + AGAIN_MS - now_ms)
    if wait_ms > 0:
        return Move(standing, again_ms=wait_ms)
    return _do(standing, State.EVICTING, Evict(facts.path, facts.directory_id, facts.evict), now_ms)


def may_evict(standing: Standing, now_ms: int) -> bool:
    """Whether partitions of a directory may be left: its files are out of the broker's reach, so that it deletes none,
    and leaders still wait for it."""
    if standing.reports and standing.means is None:
        return False  # the controllers have it from us, and not from a broker that has closed its files
    if standing.offline_ms is None or standing.attempts >= ATTEMPTS_MAX:
        return False
    return now_ms - standing.offline_ms < EVICT_WITHIN_MS


def _begin(standing: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    step = facts.decided.step
    # A guard before us was about to; where the directory can be judged by now, that counts.
    if standing.state is not State.WELL and not facts.well and facts.decided == NOTHING:
        step = Step.CUT if standing.state is State.CUTTING else Step.MASK
    if step not in (Step.CUT, Step.MASK, Step.REPORT):
        if facts.well and standing.tried:
            standing = replace(standing, tried=frozenset(), reason="")
        if standing.state is not State.WELL:
            standing = _at(standing, State.WELL, now_ms)
        return Move(standing)
    if step is Step.REPORT:
        return _report(standing, facts, now_ms)
    if step is Step.CUT and Step.CUT not in standing.tried:
        return _do(standing, State.CUTTING, Cut(facts.path), now_ms)
    if Step.MASK not in standing.tried:
        return _do(standing, State.MASKING, Mask(facts.path), now_ms)
    # A broker that has not seen the disk fail must not be reported: it would follow there, and stall with it.
    return Move(_at(standing, State.LEFT, now_ms, standing.reason))


def _unrecorded(standing: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    """The disk was dealt with, and the metadata do not show it yet."""
    patience_ms = REPORT_AFTER_MS
    if standing.state is State.MASKED:
        patience_ms += CHECKPOINT_MS
    if standing.state is State.REPORTING and standing.reason:
        patience_ms = AGAIN_MS
    wait_ms = standing.since_ms + patience_ms - now_ms
    if wait_ms > 0:
        return Move(standing, again_ms=wait_ms)
    if standing.reports >= REPORTS_MAX or standing.attempts >= ATTEMPTS_MAX:
        said = f"the controllers were told {standing.reports} times, and the metadata do not show it"
        return Move(_at(standing, State.LEFT, now_ms, standing.reason or said))
    return _report(standing, facts, now_ms)


def _report(standing: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    if facts.directory_id is None or facts.epoch is None:
        return Move(_at(standing, State.LEFT, now_ms, "its id is not known, so it cannot be reported"))
    if not facts.others_online:
        return Move(_at(standing, State.LEFT, now_ms, "the last directory of a broker is not reported"))
    return _do(standing, State.REPORTING, Report(facts.path, facts.directory_id, facts.epoch), now_ms)


def _at(standing: Standing, state: State, now_ms: int, reason: str = "", **changes: object) -> Standing:
    return replace(standing, state=state, since_ms=now_ms, reason=reason, **changes)  # type: ignore[arg-type]


def _do(standing: Standing, state: State, effect: Effect, now_ms: int) -> Move[Standing]:
    if standing.state is not state:
        standing = replace(standing, state=state, since_ms=now_ms)
    return Move(replace(standing, under_way=effect), effect)

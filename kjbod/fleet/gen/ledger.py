"""The ledger: what really happened in a generated fleet, as one JSON document beside its reports.

Times are true wall ms since 1970 UTC, whatever the clock of a host said. Lists are sorted by time and place."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
FILE_NAME = "ledger.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A disk at a place."""

    fleet: str
    rack: str
    host: str
    broker_id: int
    path: str
    dir_id: str
    serial: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A verdict on a disk."""

    spot: Spot
    ts: int
    how: str
    """``io error``, ``hang``, ``read-only`` or ``vanished``: the cause that the agent saw."""
    story: str
    """``worn`` (one of those that the model's failure rate makes), ``timeout``, ``ramp``, ``rack burst``,
    ``host burst``, ``false`` or ``resurrected``."""
    acknowledged_ts: int | None
    """The controller recorded it; None: the agent gave up."""
    moved_ts: int | None
    timeout_ts: int | None
    """The agent gave up, and ended. To the next one the disk is unreadable."""
    replaced_ts: int | None
    """A new disk is at its place from then on."""
    new_dir_id: str | None
    new_serial: str | None
    well_again_ts: int | None
    """Nobody replaced it, and after a restart it was online."""
    leaders: int
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Something about a disk that goes on from a moment."""

    spot: Spot
    what: str
    """``ramp``: its SMART counters and its latency grow until it fails; ``growing``: they grow and it lives; ``slow``:
    its latency is many times that of its peers; ``flapping``; ``filling``: full soon; ``emptied``: its use dropped."""
    since_ts: int
    until_ts: int | None = None
    """``ramp``: it fails; ``filling``: it is full (may be after the end)."""
    factor: float | None = None
    """``slow``: of the latency; ``emptied``: the part that is left."""
    count: int | None = None
    """``flapping``: how often it left the state online."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Partitions of a broker that lack replicas for a time, as its guard sees them."""

    fleet: str
    host: str
    broker_id: int
    since_ts: int
    until_ts: int | None
    """None: until the end of the fleet's time."""
    below_replication_factor: int = 0
    """Partitions that the guard evicted the broker from."""
    below_min_isr: int = 0
    without_leader: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """An agent or guard that is not like most."""

    fleet: str
    host: str
    broker_id: int
    what: str
    """``silent``, ``stopped``, ``rebooted``, ``clock``, ``version``, ``guard`` or ``uneven``."""
    ts: int | None = None
    detail: str | None = None
    """Of ``clock`` the offset in ms, of ``version`` the version, of ``guard`` the mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Failure rate of a model, as it was drawn from."""

    model: str
    afr_pct: float
    """Annualised, before acceleration."""
    drives: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All of it."""

    seed: int
    hosts: int
    days: int
    disks: int
    every_ms: int
    start_ts: int
    end_ts: int
    acceleration: float
    """By how much drives fail more often than their model's rate, so that a small fleet has failures to show."""
    version: str
    """What most agents run."""
    rates: tuple[Rate, ...]
    failures: tuple[Failure, ...]
    trends: tuple[Trend, ...]
    lacks: tuple[Lack, ...] = ()
    agents: tuple[Agent, ...]
    copies: tuple[str, ...]
    """Names of files that are there twice."""


def to_json(ledger: Ledger) -> str:
    """The ledger as a JSON document."""
    return json.dumps(dataclasses.asdict(ledger), indent=1, sort_keys=True) + "\n"


def from_json(text: str) -> Ledger:
    """The ledger of a JSON document that :func:`to_json` made."""
    return _made(Ledger, json.loads(text))


def _made(kind: type[T], plain: Mapping[str, Any]) -> T:
    hints = typing.get_type_hints(kind)
    return kind(**{name: _value(hints[name], value) for name, value in plain.items()})


def _value(hint: Any, plain: Any) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return plain if plain is None else _value(next(h for h in typing.get_args(hint) if h is not type(None)), plain)
    if typing.get_origin(hint) is tuple:
        return tuple(_value(typing.get_args(hint)[0], item) for item in plain)
    return _made(hint, plain) if dataclasses.is_dataclass(hint) and isinstance(hint, type) else plain

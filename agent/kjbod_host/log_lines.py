"""Lines of the log as values: a decision returns them, and a shell writes them (:func:`kjbod_host.reporter.write`)."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct


class LogLine(Struct, frozen=True):
    """A line of the log: its level, its stable dotted name and its fields."""

    level: Literal["info", "warning", "error"]
    event: str
    fields: Mapping[str, Any]


def info(event: str, **fields: Any) -> LogLine:
    """Return a line about normal operation."""
    return LogLine("info", event, fields)


def warning(event: str, **fields: Any) -> LogLine:
    """Return a line about something that may need a person."""
    return LogLine("warning", event, fields)


def error(event: str, **fields: Any) -> LogLine:
    """Return a line about something that needs a person."""
    return LogLine("error", event, fields)

"""The audit as ``kjbod guard history`` shows it. Blocks while it reads."""

import contextlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from kjbod.config.load import broker_problems, load_guard_config
from kjbod.config.needs import HISTORY
from kjbod.errors import KjbodError
from kjbod_guard.account import AUDIT_NAME

Entry = Mapping[str, Any]
_HIDDEN: Final = frozenset({"at_ms", "event", "mode", "node", "text", "before", "evidence"})


class HistoryError(KjbodError):
    """The audit cannot be read."""


def read(config_path: Path, own_path: Path | None, count: int) -> Iterable[Entry]:
    """Return the newest lines of the audit, oldest first.

    Raises:
        KjbodError: a file cannot be used.
    """
    config = load_guard_config(config_path, own_path, broker_problems, needs=HISTORY)
    path = Path(config.kjbod_state_dir) / AUDIT_NAME
    found: deque[Entry] = deque(maxlen=count)
    for file in (path.with_name(f"{AUDIT_NAME}.1"), path):
        try:
            text = file.read_text(errors="replace")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise HistoryError(f"{file}: {error.strerror}: expected the audit of a guard") from error
        found.extend(_entries(text))
    return found


def _entries(text: str) -> Iterator[Entry]:
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # the last line of a host that lost power
            entry = json.loads(line)
            if isinstance(entry, dict) and isinstance(entry.get("at_ms"), int):
                yield entry


def raw(entry: Entry) -> str:
    """Return a line as it is in the audit."""
    return json.dumps(entry)


def line(entry: Entry) -> str:
    """Return a line for people: time, event, text or fields."""
    at = datetime.fromtimestamp(entry["at_ms"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    event = str(entry.get("event"))
    if entry.get("text"):
        return f"{at}Z  {event:<6} {entry['text']}"
    rest = [f"{key}={value}" for key, value in entry.items() if key not in _HIDDEN and value not in (None, "")]
    count = f" ({len(entry['before'])} partitions)" if isinstance(entry.get("before"), dict) else ""
    return f"{at}Z  {event:<6} {' '.join(rest)}{count}"

"""A page of Markdown on what came of scripts/deep: ``python -m scripts.deep_result SESSIONS EXIT_CODE [ARGUMENT...]``.

SESSIONS is the file that ``pytest --depth-result`` has written, a JSON line for each session.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_COUNTS = ("passed", "failed", "errors", "skipped")


def _together(sessions: Iterable[dict[str, Any]], name: str) -> list[Any]:
    return [entry for session in sessions for entry in session[name]]


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{seconds / 60:.1f} min"


def _words(sessions: Iterable[dict[str, Any]], name: str) -> str:
    return ", ".join(sorted({str(session[name]) for session in sessions})) or "none"


def _is_part(arguments: Sequence[str]) -> bool:
    """Whether these ask for less than everything: a seed does not."""
    return [*arguments[:1], *arguments[2:]] not in ([], ["--seed"])


def describe(sessions: Sequence[dict[str, Any]], code: int, arguments: Sequence[str], now: datetime) -> str:
    """The page. ``arguments``: what was asked for."""
    failed = sorted({*_together(sessions, "failed"), *_together(sessions, "errors")})
    counts = ", ".join(f"{sum(len(session[name]) for session in sessions)} {name}" for name in _COUNTS)
    reasons = sorted(set(_together(sessions, "reasons")))
    seconds = sum(session["seconds"] for session in sessions)
    lines = [
        "# The last run of scripts/deep",
        "",
        "Written by it; `scripts/deep` again replaces it.",
        "",
        "| | |",
        "|---|---|",
        f"| what | {'a part: `' + ' '.join(arguments) + '`' if _is_part(arguments) else 'all tests'} |",
        f"| result | {'green' if code == 0 else f'NOT GREEN (exit code {code})'}: {counts} |",
        f"| took | {_duration(seconds)} |",
        f"| ended | {now:%Y-%m-%d %H:%M} UTC |",
        f"| tree | `{_words(sessions, 'tree')}` |",
        f"| seed | {_words(sessions, 'seed')} |",
    ]
    for title, entries in (("Failed", failed), ("Skipped, and why", reasons)):
        if entries:
            lines += ["", f"## {title}", *(f"- `{entry}`" for entry in entries)]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    path, code, *asked = arguments
    sessions = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    print(describe(sessions, int(code), asked, datetime.now(UTC)))


if __name__ == "__main__":
    main(sys.argv[1:])

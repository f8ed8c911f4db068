"""Words and tables of the guard's demonstration: what stands now, what the guard has said, both hangs side by side.
Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scripts.rig.pauses import FOLLOWED_BAD, FOLLOWED_HEALTHY, LED_BAD, LED_HEALTHY, Pause
from scripts.rig.stuck_threads import Stuck

STANDS_AFTER_MS: Final = 1000.0
"""Without an acknowledgement for so long a partition is said to stand; in good times the longest pause is a tenth."""
SHOWN: Final = {
    LED_BAD: "led, bad disk",
    FOLLOWED_BAD: "followed there",
    LED_HEALTHY: "led, other disks",
    FOLLOWED_HEALTHY: "followed there",
}
"""Heads of the live table, by the class of partitions, as the broker with the bad disk has them."""
_ROWS: Final = {
    LED_BAD: "led on the bad disk",
    FOLLOWED_BAD: "followed on the bad disk",
    LED_HEALTHY: "led on its other disks",
    FOLLOWED_HEALTHY: "followed on its other disks",
}
_SEGMENT: Final = re.compile(r"/\d{20}\.\w+$")
_WIDTH: Final = max(map(len, SHOWN.values()))


@dataclass(slots=True)
class Part:
    """Measurements of one hang; times in milliseconds after it.

    Attributes:
        pauses: the longest one by class of partitions.
        recorded_ms: when the metadata showed the directory as offline; None: never.
        kept: whether the broker ran, unfenced, when the hang ended.
        watched_ms: how long the disk hung.
    """

    pauses: Mapping[str, Pause] = field(default_factory=dict)
    recorded_ms: float | None = None
    kept: bool = False
    watched_ms: float = 0


def live_head() -> str:
    """The head of the live table; its rows are :func:`live_row`."""
    return "  ".join([" " * 6, *(name.ljust(_WIDTH) for name in SHOWN.values())]).rstrip()


def live_row(second: int, silent_ms: Mapping[str, float]) -> str:
    """A second of the live table: how long the worst partition of each class has not been acknowledged."""
    cells = [standing(silent_ms[name]).ljust(_WIDTH) for name in SHOWN]
    return "  ".join([f"{f'+{second} s':>6}", *cells]).rstrip()


def standing(silent_ms: float) -> str:
    """``written``, or for how long not."""
    return "written" if silent_ms < STANDS_AFTER_MS else f"STANDS {silent_ms / 1000:.0f} s"


def silences(
    acks: Mapping[int, Sequence[float]], classes: Mapping[int, str], since_ms: float, now_ms: float
) -> dict[str, float]:
    """For how long the worst partition of each class has not been acknowledged, in milliseconds.

    Args:
        acks: moments of the acknowledgements by partition, rising.
        classes: the class of each partition.
        since_ms: the begin, for a partition without any.
        now_ms: on the same clock.
    """
    worst: dict[str, float] = {}
    for partition, name in classes.items():
        last_ms = acks[partition][-1] if acks[partition] else since_ms
        worst[name] = max(worst.get(name, 0.0), now_ms - last_ms)
    return worst


def told(line: Mapping[str, Any], bad: str) -> str | None:
    """Words for a line of the guard's log, for a reader of the story; None: nothing. ``bad``: the directory told of."""
    if line.get("path") not in (bad, None):
        return None
    match line.get("event"):
        case "directory.verdict" if line.get("state") == "failed":
            return f"verdict: {str(line['evidence']['text']).removeprefix(f'{bad} ')}"
        case "guard.would" if line["would"] != "nothing":
            return str(line["text"])
        case "guard.done":
            return f"{line['means']}: {line['outcome']} in {line['took_ms']} ms{_because(line)}"
        case "guard.kafka.view":
            return f"Kafka's metadata have the directory {line['view']}"
        case "guard.broker" if line["state"] != "serving":
            return f"broker: {line['state']}{_because(line)}"
    return None


def _because(line: Mapping[str, Any]) -> str:
    return f": {line['reason']}" if line.get("reason") else ""


def stuck_line(stuck: Sequence[Stuck]) -> str:
    """Sentence with the threads of a broker that are stuck in the kernel, each name and file, or partition, once."""
    names = sorted({f"{one.thread} ({_SEGMENT.sub('', one.file)})" if one.file else one.thread for one in stuck})
    return f"its threads that are stuck in the kernel: {', '.join(names) or 'none'}"


def longest(part: Part) -> str:
    """Sentence with the longest pause of each class."""
    led, followed, led_well, followed_well = (_pause(part.pauses.get(name)) for name in _ROWS)
    return (
        f"longest pauses: led on the bad disk {led}, followed there {followed}; "
        f"led on the other disks {led_well}, followed there {followed_well}"
    )


def side_by_side(alone: Part, guarded: Part) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table that the story ends with."""
    parts = (alone, guarded)
    rows = [[text, *(_pause(part.pauses.get(name)) for part in parts)] for name, text in _ROWS.items()]
    rows.append(["the broker", *("kept, unfenced" if part.kept else "lost" for part in parts)])
    rows.append(["Kafka knows of the disk", *(_recorded(part) for part in parts)])
    return ["longest pause of writes", "Kafka alone", "with the guard"], rows


def _pause(pause: Pause | None) -> str:
    if pause is None:
        return "-"
    return f"{pause.ms:.0f} ms" if pause.ended else f"no end in {pause.ms / 1000:.1f} s"


def _recorded(part: Part) -> str:
    if part.recorded_ms is None:
        return f"not in {part.watched_ms / 1000:.0f} s"
    return f"after {part.recorded_ms / 1000:.1f} s"

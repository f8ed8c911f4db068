"""Names of report files, for those who write them."""

import re
from datetime import UTC, datetime
from pathlib import Path

from kjbod.fleet.schema import SAMPLES


def safe_name(text: str) -> str:
    """``text`` as a part of a file name: no separators, and no leading character that hides a file from Spark."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text).lstrip("._") or "unnamed"


def partition_path(stream: str, wall_ms: int) -> Path:
    """Folder of a file that is opened at ``wall_ms``, relative to the reports directory. UTC."""
    at = datetime.fromtimestamp(wall_ms / 1000, UTC)
    day = Path(stream) / f"date={at:%Y-%m-%d}"
    return day / f"hour={at:%H}" if stream == SAMPLES else day


def base_name(host: str, boot_id: str, wall_ms: int, number: int) -> str:
    """Name of a file without its ending: unique in the fleet, so that a file that is copied twice is known again."""
    at = datetime.fromtimestamp(wall_ms / 1000, UTC)
    return f"{safe_name(host)}.{safe_name(boot_id)[:8]}.{at:%Y%m%d%H}.{number}"

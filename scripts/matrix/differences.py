"""Listed differences between the lines of kjbod and those of Kafka's tools, and how they are compared. Pure."""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

DUMP_LOG: Final = "kafka-dump-log"
SHELL: Final = "kafka-metadata-shell"
STORAGE: Final = "kafka-storage"
FEATURES: Final = "kafka-features"
LOG_DIRS: Final = "kafka-log-dirs"
_OURS: Final = "kjbod"
_THEIRS: Final = "kafka"
_NEWEST: Final = (99, 0)


class Listed(Struct, frozen=True):
    """A difference that is known: text of one side that is rewritten before both are compared.

    Attributes:
        tool: of Kafka.
        side: whose text it is.
        pattern: of the text; it may span lines.
        text: that takes its place.
        until: the last release of Kafka that has the difference.
        reason: for a reader of the table.
    """

    tool: str
    side: str
    pattern: str
    text: str
    until: tuple[int, int]
    reason: str


_LEADER_CHANGE: Final = "kafka-dump-log before 4.1 does not show the content of a LeaderChange record; kjbod does"
_PAYLOAD: Final = (
    "kafka-dump-log --skip-record-metadata before 4.3 begins a payload with a blank; later ones and kjbod with a bar"
)
_OPTIONAL: Final = (
    "kafka-metadata-shell before 4.0 shows the metadata.version plain, later ones and kjbod as Optional[...]"
)
_ZK: Final = "kafka-metadata-shell before 4.2 has a directory zkMigrationState; kjbod has none"
_CORDONED: Final = "kafka-metadata-shell before 4.3 shows a broker without its cordoned directories; kjbod with them"
_ACLS: Final = "kafka-metadata-shell before 3.9 leaves out /image/acls/byId where there are no ACLs; kjbod shows it"
_PROVENANCE: Final = (
    "kafka-metadata-shell shows in /image/provenance of a snapshot an offset within that file; kjbod shows the last "
    "offset of the log that the snapshot contains"
)
LISTED: Final[tuple[Listed, ...]] = (
    Listed(DUMP_LOG, _OURS, r"LeaderChange: \{.*\}$", "controlType: LEADER_CHANGE(2)", (4, 0), _LEADER_CHANGE),
    Listed(DUMP_LOG, _OURS, r"^\| payload: ", " payload: ", (4, 2), _PAYLOAD),
    Listed(SHELL, _OURS, r"^( *)Optional\[([\w.-]+)\]$", r"\1\2", (3, 9), _OPTIONAL),
    Listed(SHELL, _THEIRS, r"^ *zkMigrationState:?\n( *NONE\n)?", "", (4, 1), _ZK),
    Listed(SHELL, _OURS, r", cordonedDirectories=null\)$", ")", (4, 2), _CORDONED),
    Listed(SHELL, _OURS, r"^acls:\n  byId:\n", "acls:\n", (3, 8), _ACLS),
    *(
        Listed(SHELL, side, r"^ *offset \d+, epoch (\d+), time .*$", r"offset, epoch \1", _NEWEST, _PROVENANCE)
        for side in (_OURS, _THEIRS)
    ),
)


def compared(tool: str, release: tuple[int, int], ours: str, theirs: str) -> tuple[list[str], list[str]]:
    """Return the lines that differ and are not listed, and the reasons of listed differences that were met.

    Args:
        tool: of Kafka.
        release: of Kafka.
        ours: text of kjbod.
        theirs: text of the tool.
    """
    if ours == theirs:
        return [], []
    texts, met = {_OURS: ours, _THEIRS: theirs}, []
    for one in LISTED:
        if one.tool == tool and release <= one.until:
            again = re.sub(one.pattern, one.text, texts[one.side], flags=re.MULTILINE)
            if again != texts[one.side]:
                met.append(one.reason)
            texts[one.side] = again
    left = list(differing(texts[_OURS].splitlines(), texts[_THEIRS].splitlines()))
    return left, list(dict.fromkeys(met))


def differing(ours: Sequence[str], theirs: Sequence[str]) -> Iterator[str]:
    """Yield the lines that only one side has: kjbod's after ``+``, Kafka's after ``-``."""
    for line in difflib.ndiff(theirs, ours):
        if line[0] in "+-":
            yield f"{line[0]} {line[2:]}"

"""Differences between the words of kjbod's controller and of Kafka's that are there on purpose."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Allowed:
    """A difference that is meant.

    Attributes:
        step: a pattern for the names of steps, from the start.
        line: a pattern that is found in each differing line of either side.
        reason: for a reader.
    """

    step: str
    line: str
    reason: str


ALLOWED: Final[tuple[Allowed, ...]] = (
    Allowed(
        r"features downgrade --metadata 3\.7-IV4",
        r"Refusing to perform the requested downgrade because it might delete metadata information\.",
        "kjbod also says what of it is in use, and so would be lost",
    ),
    Allowed(
        r"configs --describe --all --entity-type brokers --entity-name 3000",
        r"^kjbod\.",
        "a key of kjbod's own in its configuration file; Kafka shows every key that it does not know like this",
    ),
    Allowed(
        r"(dump-log --cluster-metadata-decoder --files|metadata-shell --snapshot) \{snapshot\}",
        r"\.checkpoint$|^Snapshot end offset: |SNAPSHOT_FOOTER at offset |^less$",
        "each makes its snapshot at a record of its own, so that the topic of that moment is in one of them only",
    ),
)

"""Names of topics (``common.internals.Topic``)."""

import re
from typing import Final

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics that Kafka makes for itself."""
NAME_LENGTH_MAX: Final = 249
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_problem(name: str) -> str:
    """Reason why no topic may be called this, in Kafka's words; empty when one may (``Topic.validate``)."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    if not _LEGAL_NAME.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    return ""

"""What in the metadata is nobody's business: keys and salts of SCRAM credentials, tokens, values of configurations that
are passwords (``ConfigDef.Type.PASSWORD``; ``MetadataNodeRedactionCriteria``, which hides all configurations of a type
that it does not know)."""

import re
from collections.abc import Mapping
from typing import Any, Final

from kjbod.metadata.records import ConfigRecord, Record, UserScramCredentialRecord

REDACTED: Final = "[redacted]"
_PASSWORDS: Final = re.compile(
    r"(?:.*[.])?(?:password|secret|secret[.]key|jaas[.]config|keystore[.]key|keystore[.]certificate[.]chain"
    r"|truststore[.]certificates)",
    re.IGNORECASE,
)
_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "USER_SCRAM_CREDENTIAL_RECORD": frozenset({"salt", "storedKey", "serverKey"}),
    "DELEGATION_TOKEN_RECORD": frozenset({"tokenId"}),
    "REMOVE_DELEGATION_TOKEN_RECORD": frozenset({"tokenId"}),
}
"""By the type of a record, as a dump has them."""


def is_password(config: str) -> bool:
    """Whether the value of a configuration is a secret, by its name: as Kafka's are named, with any prefix."""
    return _PASSWORDS.fullmatch(config) is not None


def has_secrets(record: Record) -> bool:
    """Whether who reads this record could pretend to be somebody."""
    return isinstance(record, UserScramCredentialRecord) or (
        isinstance(record, ConfigRecord) and is_password(record.name)
    )


def without_secrets(dumped: Mapping[str, Any]) -> dict[str, Any]:
    """A record as :mod:`kjbod.metadata.dump` gives it, with what is secret hidden."""
    kind, data = dumped.get("type"), dumped.get("data")
    if not isinstance(data, Mapping):
        return dict(dumped)
    hidden = _FIELDS.get(str(kind), frozenset())
    if kind == "CONFIG_RECORD" and data.get("value") is not None and is_password(str(data.get("name"))):
        hidden = frozenset({"value"})
    if not hidden:
        return dict(dumped)
    return {**dumped, "data": {key: REDACTED if key in hidden else value for key, value in data.items()}}

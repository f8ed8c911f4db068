"""Types, ranges and texts of configuration values (``ConfigDef``).

A value is text in the log and on the wire. What it means, and whether it may be set, is decided here in the words that
Kafka's tools show.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, TypeAlias

from msgspec import Struct

from kjbod.wire.error_codes import ErrorCode
from kjbod_controller_stub.configs.java_order import hash_map_order
from kjbod_controller_stub.results import ApiError

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None
"""A parsed value; lists are tuples, None is no value."""
Check: TypeAlias = Callable[[str, Value], None]
"""Refuses a parsed value of the key with an :class:`ApiError`."""


class ConfigType(IntEnum):
    """``DescribeConfigsResponse.ConfigType``."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_BITS: Final[Mapping[ConfigType, int]] = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)", re.ASCII)
_COMMA: Final = re.compile(r"\s*,\s*")


class ConfigKey(Struct, frozen=True):
    """A configuration key: its type, its default and further checks of a value."""

    name: str
    type: ConfigType
    default: str | None = None
    check: Check | None = None
    dynamic: bool = True
    """Whether it can be changed while a node runs."""
    internal: bool = False
    """Taken, and never shown."""

    @property
    def sensitive(self) -> bool:
        """Whether the value is hidden; an unknown key may be a secret."""
        return self.type in (ConfigType.PASSWORD, ConfigType.UNKNOWN)

    def parse(self, text: str) -> Value:
        """Parse and check a value.

        Raises:
            ApiError: INVALID_CONFIG.
        """
        value = parse_value(self.name, self.type, text)
        if self.check is not None:
            self.check(self.name, value)
        return value


def invalid(name: str, value: object, why: str) -> ApiError:
    """Return the error about a value, with the text of ``ConfigException``."""
    return ApiError(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {name}: {why}")


def parse_value(name: str, kind: ConfigType, text: str) -> Value:
    """Parse a text as a value of its type (``ConfigDef.parseType``).

    Raises:
        ApiError: INVALID_CONFIG.
    """
    trimmed = text.strip()
    if kind is ConfigType.BOOLEAN:
        if trimmed.lower() not in ("true", "false"):
            raise invalid(name, text, "Expected value to be either true or false")
        return trimmed.lower() == "true"
    if kind in _BITS:
        limit = 1 << (_BITS[kind] - 1)
        if not _WHOLE.fullmatch(trimmed) or not -limit <= int(trimmed) < limit:
            raise invalid(name, text, f"Not a number of type {kind.name}")
        return int(trimmed)
    if kind is ConfigType.DOUBLE:
        if not _DECIMAL.fullmatch(trimmed):
            raise invalid(name, text, f"Not a number of type {kind.name}")
        return float(trimmed.rstrip("fFdD") if trimmed[-1] in "fFdD" else trimmed)
    if kind is ConfigType.LIST:
        return tuple(dict.fromkeys(_COMMA.split(trimmed))) if trimmed else ()
    return trimmed


def show_value(value: Value) -> str | None:
    """Return a value as text (``ConfigDef.convertToString``)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return str(value).replace("e+", "E").replace("e", "E")  # as Java writes it
    return None if value is None else str(value)


def split_list(text: str | None) -> list[str]:
    """Split a list as the controller does: blanks are kept, empty entries are not."""
    return [entry for entry in (text or "").split(",") if entry]


# ---------------------------------------------------------------- checks


def in_range(low: float | None = None, high: float | None = None) -> Check:
    """Check that a number is from ``low`` to ``high``."""

    def check(name: str, value: Value) -> None:
        assert isinstance(value, int | float)
        if low is not None and value < low:
            raise invalid(name, value, f"Value must be at least {low}")
        if high is not None and value > high:
            raise invalid(name, value, f"Value must be no more than {high}")

    return check


def one_of(*choices: str) -> Check:
    """Return a check that a value is one of these words."""

    def check(name: str, value: Value) -> None:
        if value not in choices:
            raise invalid(name, value, f"String must be one of: {', '.join(choices)}")

    return check


def each_of(*choices: str) -> Check:
    """Return a check of a list of these words; the list may be empty. No choices: any words."""
    word = one_of(*choices) if choices else None

    def check(name: str, value: Value) -> None:
        assert isinstance(value, tuple)
        if "" in value:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Configuration '{name}' values must not be empty.")
        for each in value if word is not None else ():
            assert word is not None
            word(name, each)

    return check


def gzip_level(name: str, value: Value) -> None:
    """Check a gzip level: 1 to 9, or -1 for zlib's default."""
    if value != -1 and not (isinstance(value, int) and 1 <= value <= 9):
        raise invalid(name, value, "Value must be between 1 and 9 or equal to -1")


_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+", re.ASCII)


def throttled_replicas(name: str, value: Value) -> None:
    """Check throttled replicas: ``*`` or partition:broker pairs (``ThrottledReplicaListValidator``)."""
    assert isinstance(value, tuple)
    if value not in ((), ("*",)) and not all(_REPLICA.fullmatch(each) for each in value):
        raise invalid(
            name,
            f"[{', '.join(value)}]",
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        )


_DURATION: Final = re.compile(
    r"P(?=.)([+-]?[0-9]+D)?(T(?=.)([+-]?[0-9]+H)?([+-]?[0-9]+M)?([+-]?[0-9]+([.,][0-9]{0,9})?S)?)?", re.IGNORECASE
)


def share_offset_reset(name: str, value: Value) -> None:
    """Check an offset reset: earliest, latest, or by_duration with an ISO 8601 duration
    (``ShareGroupAutoOffsetResetStrategy``)."""
    text = str(value)
    duration = text.removeprefix("by_duration:")
    if text in ("earliest", "latest") or (
        duration != text and _DURATION.fullmatch(duration) and not duration.startswith("-") and "-" not in duration
    ):
        return
    raise invalid(
        name,
        text,
        f"Invalid value `{text}` for configuration {name}. The value must be either 'earliest', 'latest' or of the "
        "format 'by_duration:<PnDTnHnMn.nS>'.",
    )


def keys(*all_keys: ConfigKey) -> Mapping[str, ConfigKey]:
    """Return a table of keys by name."""
    return {key.name: key for key in all_keys}


def parse_all(table: Mapping[str, ConfigKey], given: Mapping[str, str]) -> dict[str, Value]:
    """Return the values of all keys of a table, with defaults for missing ones.

    Raises:
        ApiError: INVALID_CONFIG: the first value in the table's order that cannot be.
    """
    return {
        key.name: key.parse(given[key.name])
        if key.name in given
        else None
        if key.default is None
        else parse_value(key.name, key.type, key.default)
        for key in table.values()
    }


def first_unknown(table: Mapping[str, ConfigKey], given: Sequence[str]) -> str | None:
    """Return the first name that the table does not have, in Kafka's order."""
    if all(name in table for name in given):
        return None
    return next(name for name in hash_map_order(given) if name not in table)

"""Parse untrusted JSON: the whole text, or one kind of error."""

import json
import math
from typing import Any, NoReturn

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def parse_document(content: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is not JSON, has an invalid number (NaN, 1e400), or nests deeper than Python allows.
    """
    try:
        return json.loads(content, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deep") from None


def int_of(value: object, least: int = 0, most: int = INT64_MAX) -> int:
    """Return ``value``, which must be an integer in this range.

    Raises:
        ValueError: the value is not.
    """
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"not an integer from {least} to {most}")
    return value


def text_of(value: object) -> str:
    """Return ``value``, which must be a string.

    Raises:
        ValueError: the value is not.
    """
    if not isinstance(value, str):
        raise ValueError("not a string")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _no_number(text)
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")

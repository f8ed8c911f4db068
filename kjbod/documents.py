"""JSON that others may have written: read whole, or refused with one kind of error."""

import json
import math
from typing import Any, NoReturn

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def parse_document(content: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is none, or has a number that is none (NaN, 1e400), or nests deeper than Python goes.
    """
    try:
        return json.loads(content, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deep") from None


def int_of(value: object, least: int = 0, most: int = INT64_MAX) -> int:
    """``value``, which has to be an integer between these.

    Raises:
        ValueError: it is not.
    """
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"not an integer from {least} to {most}")
    return value


def text_of(value: object) -> str:
    """``value``, which has to be a string.

    Raises:
        ValueError: it is not.
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

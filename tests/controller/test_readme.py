"""The README's table of APIs is what the controller offers and asks for."""

import re
from pathlib import Path

from msgspec import structs

from kjbod_controller_stub.access.authorizer import REQUIRED
from kjbod_controller_stub.limits import SERVED
from kjbod_controller_stub.rules import Rules

README = Path(__file__).parents[2] / "controller_stub" / "README.md"
_ROW = re.compile(r"^\| ([A-Za-z]+) \| (\d+) \| (\d+)(?:-(\d+))? \| ([A-Za-z_ ]+) \|", re.MULTILINE)


def test_the_table_of_apis_is_what_is_served() -> None:
    rows = _ROW.findall(README.read_text())
    told = {int(key): (int(low), int(high or low)) for _, key, low, high, _ in rows}
    assert told == {int(key): versions for key, versions in SERVED.items()}
    names = {int(key): name for name, key, *_ in rows}
    assert names == {int(key): key.name.replace("_", " ").title().replace(" ", "") for key in SERVED}


def test_the_table_of_rules_has_every_question() -> None:
    text = README.read_text()
    missing = [field.name for field in structs.fields(Rules) if f"| `{field.name}` |" not in text]
    assert missing == ["name"]


def test_the_table_says_who_may() -> None:
    told = {int(key): needs for _, key, _, _, needs in _ROW.findall(README.read_text())}
    for key in SERVED:
        operation = REQUIRED[key]
        if operation is None:
            assert told[key] in ("nothing", "oneself", "per topic", "per resource"), key.name
        else:
            assert told[key] == operation.name, key.name

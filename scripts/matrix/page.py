"""The matrix as a page of Markdown. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from scripts.matrix.plan import ROLLING, ROWS, Cell, numbers
from scripts.matrix.record import OK, Outcome

_HEAD = """# kjbod and the releases of Apache Kafka

Measured by `scripts/compatibility`, which writes this page: real brokers and controllers of each version, real disks
(loop devices that fail). [What each row does](README.md#compatibility)."""
_TAIL = """Cordoned directories (KIP-1066, Kafka 4.3 and later) have no row. Tests show them:

| test | cordons of |
|---|---|
| `tests/guard/test_cordons.py` | brokers beside a guard, where the controllers of Kafka 4.4 refuse cordoned brokers |
| `tests/controller/test_differential.py` | brokers on kjbod's controller, compared with the controller of Kafka 4.4.0 |
| `tests/agent/test_placement_kafka.py` | an agent beside a broker of Kafka 4.3.1, on both controllers |"""


def page(outcomes: Mapping[Cell, Outcome]) -> str:
    """Return the page of all outcomes."""
    versions = sorted({cell.version for cell in outcomes if cell.row != ROLLING}, key=numbers)
    notes: list[str] = []
    lines = [_HEAD, "", *_measured(outcomes.values()), ""]
    if versions:
        lines += [f"| | {' | '.join(versions)} |", f"|---|{'---|' * len(versions)}"]
        for row in ROWS:
            found = [outcomes.get(Cell(row, version)) for version in versions]
            if row != ROLLING and any(found):
                lines.append(f"| {ROWS[row]} | {' | '.join(_shown(one, notes) for one in found)} |")
    rolling = [outcome for cell, outcome in outcomes.items() if cell.row == ROLLING]
    if rolling:
        lines += ["", "| | versions | |", "|---|---|---|"]
        lines += [f"| {ROWS[ROLLING]} | {one.version} | {_shown(one, notes)} |" for one in rolling]
    if notes:
        lines += ["", *(f"{number}. {note}" for number, note in enumerate(notes, 1))]
    lines += ["", _TAIL]
    return "\n".join(lines) + "\n"


def _measured(outcomes: Iterable[Outcome]) -> Sequence[str]:
    """Return the line with the dates and kjbod's versions."""
    found = sorted(outcomes, key=lambda one: one.at)
    if not found:
        return ["Nothing is measured yet."]
    dates = list(dict.fromkeys(one.at[:10] for one in (found[0], found[-1])))
    ours = ", ".join(dict.fromkeys(one.kjbod for one in found))
    return [f"{' to '.join(dates)} (UTC), kjbod {ours}."]


def _shown(outcome: Outcome | None, notes: list[str]) -> str:
    """Return the text of a cell; a note is added where there is more to say, once for all cells that need it."""
    if outcome is None:
        return "not measured"
    text = "ok" if outcome.state == OK else f"**failed**: {_escaped(outcome.reason)}"
    said = [f"not there: {_escaped(one)}" for one in outcome.absent]
    said += [f"different: {_escaped(one)}" for one in outcome.differences]
    for note in said:
        if note not in notes:
            notes.append(note)
    marks = ",".join(str(notes.index(note) + 1) for note in dict.fromkeys(said))
    return f"{text} <sup>{marks}</sup>" if marks else text


def _escaped(text: str) -> str:
    """Return text that breaks no table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")

"""The first lines of ``kjbod status`` for a guard: each problem with its code, and the next commands. Pure.

A text is wrapped at 80 columns. A path or a command is never cut or wrapped: an operator copies it.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from kjbod.output import cells, safe
from kjbod.problems import Code

COLUMNS_MAX: Final = 80
STEPS_MAX: Final = 12
_CODE_COLUMNS: Final = max(map(len, Code)) + 2
_INDENT: Final = "  "
_RESET: Final = "\x1b[0m"
_BOLD: Final = "\x1b[1m"
_COLOURS: Final = {"CRITICAL": "\x1b[1;31m", "DEGRADED": "\x1b[1;33m", "OK": "\x1b[1;32m"}

Row = Mapping[str, Any]


class Step(Struct, frozen=True):
    """A command, and the reason to type it."""

    command: str
    why: str


class Host(Struct, frozen=True):
    """Facts of this host for the suggested commands.

    Attributes:
        options: file options as the operator typed them; empty: commands find the files.
        acts: whether the guard acts.
        pid: process id of the broker; None: not running, or unknown.
        node: id of the broker.
    """

    options: str
    acts: bool
    pid: int | None
    node: int

    def kjbod(self, command: str, *arguments: str) -> str:
        """Return a command line of kjbod."""
        return " ".join((f"kjbod {command}{self.options}", *map(shlex.quote, arguments)))


# ------------------------------------------------------------------------------------------------------------ the steps


def _history(host: Host, _row: Row) -> Iterator[Step]:
    yield Step(host.kjbod("guard history"), "what the guard did, or why it waits")


def _check(host: Host, _row: Row) -> Iterator[Step]:
    yield Step(host.kjbod("guard check"), "what is missing, with the commands that add it")


def _again(host: Host, _row: Row) -> Iterator[Step]:
    yield Step(host.kjbod("status"), "again in a minute")


def _space(host: Host, _row: Row) -> Iterator[Step]:
    yield Step(host.kjbod("log-dirs", "--replicas"), "used space, and the replicas of each directory")


def _smart(host: Host, row: Row) -> Iterator[Step]:
    if device := _device(row):
        yield Step(f"smartctl -a {shlex.quote(device)}", f"health of {_disk(row)}")
    yield from _history(host, row)


def _unit(host: Host) -> Iterator[Step]:
    if host.pid is not None:
        yield Step(f"systemctl status {host.pid}", "the first line has UNIT, the name of the broker's unit")


def _failed(host: Host, row: Row) -> Iterator[Step]:
    """Yield the steps if Kafka still uses the disk, or has not noticed its failure yet."""
    replace = f"then replace {_disk(row)}"
    yield from _history(host, row)
    if row.get("kafka") == "offline" or host.pid is None:
        yield Step(host.kjbod("guard replace", str(row["path"])), f"step by step, with {_disk(row)}")
        return
    yield from _unit(host)
    yield Step("systemctl stop --no-block UNIT", "if other replicas are in sync: Kafka moves the leaders")
    yield Step("systemctl kill -s KILL UNIT", f"only if the broker does not stop; {replace}")


def _unreadable(host: Host, row: Row) -> Iterator[Step]:
    yield Step(host.kjbod("guard check"), f"why the guard cannot read {safe(row.get('path', 'the directory'))}")
    if row.get("kafka") != "offline":
        yield from _unit(host)
        yield Step("systemctl stop --no-block UNIT", f"if {_disk(row)} hangs and other replicas are in sync")
        yield Step("systemctl kill -s KILL UNIT", "only if the broker does not stop")


def _restart(host: Host, row: Row) -> Iterator[Step]:
    yield from _unit(host)
    yield Step("systemctl restart UNIT", f"Kafka then uses {safe(row.get('path', 'the directory'))} again")


def _stuck(host: Host, row: Row) -> Iterator[Step]:
    yield Step(host.kjbod("guard history"), "why the guard may not fence the broker yet")
    yield from _unit(host)
    yield Step("systemctl kill -s KILL UNIT", "only if other replicas are in sync: ends the broker now")


def _lost(host: Host, row: Row) -> Iterator[Step]:
    yield from _history(host, row)
    yield from _unit(host)
    yield Step("systemctl start UNIT", "start the broker, without a disk that has failed")


def _topics(option: str, why: str) -> Callable[[Host, Row], Iterator[Step]]:
    def steps(_host: Host, _row: Row) -> Iterator[Step]:
        yield Step(f"kafka-topics.sh --bootstrap-server HOST:PORT --describe {option}", why)

    return steps


def _in_sync_offline(host: Host, _row: Row) -> Iterator[Step]:
    yield Step(
        "kafka-reassign-partitions.sh --bootstrap-server HOST:PORT --execute --reassignment-json-file FILE",
        f"take broker {host.node} out of the lists of these partitions before it restarts",
    )


def _evicted(host: Host, _row: Row) -> Iterator[Step]:
    yield Step(host.kjbod("guard restore"), "when the disk is replaced and the broker runs; the guard also does it")


def _upgrade(_host: Host, _row: Row) -> Iterator[Step]:
    yield Step("kjbod --version", "upgrade kjbod to a release that knows this Kafka")


def _certificates(host: Host, _row: Row) -> Iterator[Step]:
    yield Step(host.kjbod("status", "--json"), "certificates: path and end of each; renew the file")


NEXT: Final[Mapping[Code, Callable[[Host, Row], Iterable[Step]]]] = {
    Code.DISK_HUNG: _failed,
    Code.DISK_FAILED: _failed,
    Code.DISK_UNREADABLE: _unreadable,
    Code.DISK_UNWATCHED: _check,
    Code.DISK_OFFLINE: _restart,
    Code.DISK_RECOVERING: _again,
    Code.DISK_SUSPECT: _again,
    Code.DISK_SLOW: _smart,
    Code.DISK_HELD: _smart,
    Code.DISK_FULL: _space,
    Code.NO_DISK_WATCHED: _check,
    Code.BROKER_STUCK: _stuck,
    Code.BROKER_LOST: _lost,
    Code.BROKER_NOT_FOUND: _check,
    Code.NO_LEADER: _topics("--unavailable-partitions", "bring back a broker of the ISR of these partitions"),
    Code.BELOW_MIN_ISR: _topics("--under-min-isr-partitions", "bring back a replica of these partitions"),
    Code.IN_SYNC_OFFLINE: _in_sync_offline,
    Code.REPLICAS_EVICTED: _evicted,
    Code.METADATA_NOT_FOLLOWED: _check,
    Code.KAFKA_NEWER: _upgrade,
    Code.RIGHTS_MISSING: _check,
    Code.NOT_UNDONE: _history,
    Code.JOURNAL_NOT_WRITTEN: _check,
    Code.CERTIFICATE: _certificates,
}
"""Next steps by code, those of the worst problem first."""


def _device(row: Row) -> str | None:
    """Return the first block device, ``/dev/sdb``, of ``"sdb 8:16"``."""
    name = str(row.get("device") or "").split(" ", 1)[0]
    return f"/dev/{name}" if name and ":" not in name else None


def _disk(row: Row) -> str:
    """Return ``disk /dev/sdb, serial S1``."""
    found = [f"disk {_device(row) or row.get('device') or 'of ' + str(row.get('path') or 'the directory')}"]
    if row.get("serial"):
        found.append(f"serial {row['serial']}")
    return safe(", ".join(found))


def steps(answer: Mapping[str, Any], options: str) -> list[Step]:
    """Return the next steps of a guard's answer, each command once."""
    host = Host(options, answer["mode"] == "act", answer["broker"]["pid"], answer["node"])
    rows = {row["path"]: row for row in answer["directories"]}
    found: dict[str, Step] = {}
    for problem in answer["problems"]:
        if problem["code"] not in NEXT:  # from a guard that is newer than this command
            continue
        for step in NEXT[Code(problem["code"])](host, rows.get(problem["path"], {})):
            found.setdefault(step.command, step)
    return list(found.values())


# ------------------------------------------------------------------------------------------------------------ the lines


def lead(answer: Mapping[str, Any], options: str, columns: int | None, *, colour: bool = False) -> list[str]:
    """Return the lines between the verdict and the rest; empty if the guard reports no problem.

    Args:
        answer: answer of the guard.
        options: file options as typed, with a leading space; empty: the commands find the files.
        columns: width of the terminal; None: no terminal.
        colour: whether the terminal shows colours.
    """
    wide = min(columns or COLUMNS_MAX, COLUMNS_MAX)
    lines: list[str] = []
    for problem in answer.get("problems") or ():
        first, *others = wrapped(safe(problem["text"]), wide - len(_INDENT) - _CODE_COLUMNS)
        code = f"{safe(problem['code']):<{_CODE_COLUMNS}}"
        lines.append(f"{_INDENT}{_BOLD + code + _RESET if colour else code}{first}")
        lines += [f"{_INDENT}{' ' * _CODE_COLUMNS}{line}" for line in others]
    found = steps(answer, options) if lines else []
    if found:
        lines.append(f"{_BOLD}NEXT:{_RESET}" if colour else "NEXT:")
    for number, step in enumerate(found[:STEPS_MAX], 1):
        lines += _numbered(number, step, wide)
    if more := len(found) - STEPS_MAX:
        lines += [f"{_INDENT}    {more} more commands, for the problems further down"] if more > 0 else []
    return lines


def _numbered(number: int, step: Step, wide: int) -> Sequence[str]:
    """Return a command with its comment after it, or below it if the line is too short."""
    head, why = f"{_INDENT}{number:>2}. {safe(step.command)}", f"# {step.why}"
    if cells(head) + len(_INDENT) + cells(why) <= wide:
        return (f"{head}{_INDENT}{why}",)
    first, *others = wrapped(step.why, wide - len(_INDENT) - len("12. # "))
    return (head, *(f"{_INDENT}    # {line}" for line in (first, *others)))


def wrapped(text: str, wide: int) -> list[str]:
    """Wrap a text to this many cells; a longer word gets its own line."""
    lines = [""]
    for word in text.split(" "):
        line = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and cells(line) > wide:
            lines.append(word)
        else:
            lines[-1] = line
    return lines


def coloured(verdict: str) -> str:
    """Return the verdict with its level in colour."""
    level, colon, rest = verdict.partition(":")
    return f"{_COLOURS[level]}{level}{_RESET}{colon}{rest}" if level in _COLOURS else verdict

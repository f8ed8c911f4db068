"""``kjbod faults``: break a disk on purpose, see what is broken, mend it. See ``--help``."""

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.faults import catalog, scratch
from kjbod.faults.catalog import FAULTS
from kjbod.faults.disks import FILE_SYSTEMS
from kjbod.faults.faults_error import EXIT_USAGE, FaultsError, UsageError
from kjbod.faults.foreign import find_target
from kjbod.faults.model import DEFAULT_STATE_DIR, Fault, Injection, Options, Target, read_whole_records
from kjbod.faults.program import PROGRAM, typed
from kjbod.faults.state import State, state_of
from kjbod.faults.watchdog import watch

EXIT_TROUBLE = 3
EXIT_INTERRUPTED = 130
DEFAULT_REMOTE_COMMAND = f"/opt/kjbod/bin/{PROGRAM}"
_MAX_FOR_S = 7 * 24 * 3600
_MAX_SLOW_MS = 600_000
_MIN_SIZE_BYTES = 8 << 20
_WIDE = 180
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_UNITS_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

_EPILOG = f"""\
examples:
  {PROGRAM} list
  {PROGRAM} disk create /mnt/scratch --log-dir kafka      then let an agent or a broker use /mnt/scratch/kafka
  {PROGRAM} inject hang /mnt/scratch --for 30s            mends itself, also when this terminal dies
  {PROGRAM} inject slow /mnt/scratch --ms 500
  {PROGRAM} status
  {PROGRAM} undo /mnt/scratch
  {PROGRAM} undo --all
  {PROGRAM} disk remove /mnt/scratch
  {PROGRAM} --host root@broker7 inject freeze /data/d3 --yes-this-disk /data/d3 --for 20s

Something is broken and you only want it to end: {PROGRAM} undo --all
What is injected is on record before the deed, so undo works after the injector was killed at any moment.
Only scratch disks are touched, unless --yes-this-disk repeats the path. The file systems of /, /boot, /usr, /var,
swap and the like are never touched.
Exit code: 0 done, 1 not done, 2 the command line makes no sense, 130 interrupted: what was begun is undone, or named.
Of status also 3: a fault will not end by itself as it was to. It is overdue, could not be undone, or its timer or its
disk is gone; status says which.
"""


class _Parser(argparse.ArgumentParser):
    """Argument parser that reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {message} (see {self.prog} --help)\n")
        sys.exit(EXIT_USAGE)


def _duration_s(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0 < seconds <= _MAX_FOR_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: say 30s, 500ms, 5m or 1h, at most a week")
    return seconds


def _size_bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)(?:iB)?", text)
    size = int(found[1]) * _UNITS_BYTES[found[2]] if found else 0
    if not _MIN_SIZE_BYTES <= size <= scratch.MAX_SIZE_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size from 8M to {scratch.MAX_SIZE_BYTES >> 30}G")
    return size // 4096 * 4096


def _slow_ms(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= _MAX_SLOW_MS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of milliseconds from 1 to {_MAX_SLOW_MS}")
    return int(text)


def _parser() -> _Parser:
    everywhere = _Parser(add_help=False)
    everywhere.add_argument(
        "--state-dir",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="DIR",
        help=f"where records are kept ({DEFAULT_STATE_DIR}); the same for inject and undo",
    )
    everywhere.add_argument(
        "--host", default=argparse.SUPPRESS, metavar="[USER@]HOST", help="run this command there, over ssh"
    )
    everywhere.add_argument(
        "--remote-command",
        default=argparse.SUPPRESS,
        metavar="COMMAND",
        help=f"what to run there ({DEFAULT_REMOTE_COMMAND}); may have a sudo in front",
    )
    parser = _Parser(
        prog=PROGRAM,
        description="Break a disk in any way that Linux offers, see what is broken, mend it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[everywhere],
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(within: Any, name: str, run: Callable[[argparse.Namespace], int], text: str) -> _Parser:
        made: _Parser = within.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", parents=[everywhere], allow_abbrev=False
        )
        made.set_defaults(run=run)
        return made

    listing = command(commands, "list", _list, "all faults: what each does, what it needs, what the agent should say")
    listing.add_argument("faults", nargs="*", metavar="FAULT", help="only these")
    listing.add_argument("--json", action="store_true", help="for programs")
    injecting = command(commands, "inject", _inject, "break a disk")
    injecting.add_argument("fault", metavar="FAULT", help="see list")
    injecting.add_argument("path", metavar="PATH", help="of a scratch disk, or of a log directory")
    injecting.add_argument(
        "--for", dest="for_s", type=_duration_s, metavar="TIME", help="undo it after so long: 30s, 5m"
    )
    injecting.add_argument("--ms", type=_slow_ms, help="slow: milliseconds for each request (200)")
    injecting.add_argument(
        "--yes-this-disk", metavar="PATH", help="break a disk that is not a scratch disk: repeat its path"
    )
    status = command(commands, "status", _status, "what is broken now, since when, and how to undo it")
    status.add_argument("--json", action="store_true", help="for programs")
    undoing = command(commands, "undo", _undo, "mend what was broken; may be repeated")
    undoing.add_argument("what", nargs="*", metavar="PATH|ID", help="a disk, or an id that status shows")
    undoing.add_argument("--all", action="store_true", help="everything on record; scratch disks stay")
    undoing.add_argument(
        "--forget", action="store_true", help="mend nothing, only drop the record: of a disk that is no more"
    )
    _disk_parser(command, commands)
    return parser


def _disk_parser(command: Callable[..., _Parser], commands: Any) -> None:
    disk = commands.add_parser("disk", help="scratch disks to break: create, remove, list", allow_abbrev=False)
    of_disk = disk.add_subparsers(dest="disk_command", metavar="COMMAND", required=True)
    creating = command(of_disk, "create", _disk_create, "make a scratch disk in memory and mount it")
    creating.add_argument("path", metavar="PATH", help="where to mount; made if it does not exist")
    creating.add_argument("--fstype", choices=sorted(FILE_SYSTEMS), default="ext4", help="file system (ext4)")
    creating.add_argument("--size", type=_size_bytes, metavar="SIZE", help="as 64M; default: as small as it gets")
    creating.add_argument(
        "--log-dir", default="", metavar="NAME", help="make this directory on it the log directory (its root)"
    )
    removing = command(of_disk, "remove", _disk_remove, "unmount scratch disks and take them away, content and all")
    removing.add_argument("paths", nargs="*", metavar="PATH")
    removing.add_argument("--all", action="store_true", help="all of them")
    removing.add_argument(
        "--even-in-use", action="store_true", help="also while a process has files open there, which then fail"
    )
    listing = command(of_disk, "list", _disk_list, "scratch disks")
    listing.add_argument("--json", action="store_true", help="for programs")


# output -------------------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], wrap: int = 0) -> str:
    """Return columns as wide as their content. The last ``wrap`` columns share the rest of the line and are wrapped."""
    body = [list(head), *map(list, rows)]
    widths = [max(len(row[i]) for row in body) for i in range(len(head))]
    if wrap:
        line = shutil.get_terminal_size((_WIDE, 24)).columns
        left = (line - sum(width + 2 for width in widths[:-wrap])) // wrap - 2
        widths[-wrap:] = [min(width, max(left, 20)) for width in widths[-wrap:]]
    lines = []
    for row in body:
        cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        for i in range(max(map(len, cells))):
            parts = (cell[i] if i < len(cell) else "" for cell in cells)
            lines.append("  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip())
    return "\n".join(lines)


def _clock(ms: float | None) -> str:
    return "-" if ms is None else datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S")  # noqa: DTZ006  local, for people


def _print(text: str) -> None:
    # A path may contain bytes that are not text.
    sys.stdout.write(text.encode(errors="backslashreplace").decode() + "\n")


def _print_json(value: object) -> int:
    _print(json.dumps(value, indent=1))
    return 0


# commands -----------------------------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    faults = [catalog.find_fault(name) for name in arguments.faults] or list(FAULTS.values())
    if arguments.json:
        return _print_json([_fault_as_json(fault) for fault in faults])
    _print(
        _table(
            ("FAULT", "FILE SYSTEMS", "DOES", "NEEDS", "THE AGENT SHOULD SAY"),
            [(f.name, " ".join(_file_systems(f)), f.does, f.needs, f.says) for f in faults],
            wrap=3,
        )
    )
    return 0


def _file_systems(fault: Fault) -> list[str]:
    return [fstype for fstype in FILE_SYSTEMS if fstype in fault.file_systems]


def _fault_as_json(fault: Fault) -> dict[str, Any]:
    return {
        "name": fault.name,
        "title": fault.title,
        "does": fault.does,
        "needs": fault.needs,
        "says": fault.says,
        "layer": fault.layer,
        "scratch_only": fault.scratch_only,
        "while_busy": fault.while_busy,
        "options": dict(fault.options),
        "not_on": dict(fault.not_on),
        "expected": {
            fstype: {"states": list(e.states), "within_ms": e.within_ms, "why": e.why}
            for fstype in _file_systems(fault)
            for e in [fault.expect(fstype)]
        },
    }


def _inject(arguments: argparse.Namespace) -> int:
    fault = catalog.find_fault(arguments.fault)
    options = catalog.options_of(fault, {} if arguments.ms is None else {"ms": arguments.ms})
    _require_root("inject")
    target = find_target(fault, arguments.path, confirmed=arguments.yes_this_disk, state_dir=arguments.state_dir)
    injection = _inject_or_undo(fault, target, options, arguments)
    _print(f"injected {fault.name} on {target.mount_point} at {_clock(injection.began_ms)}: {fault.title}")
    _print(f"the agent should say: {fault.says}")
    if injection.until_ms is not None:
        _print(f"undone by itself at {_clock(injection.until_ms)}; or: {injection.undo_command}")
    else:
        _print(f"undo: {injection.undo_command}")
    return 0


def _inject_or_undo(fault: Fault, target: Target, options: Options, arguments: argparse.Namespace) -> Injection:
    """Return the injection. Interrupts are ignored from then on, so that exit code and disk state agree."""
    begun: list[Injection] = []

    def recorded(injection: Injection) -> None:
        begun.append(injection)
        if arguments.for_s:
            watch(injection)

    try:
        injection = catalog.inject(
            fault.name,
            target,
            state_dir=arguments.state_dir,
            options=options,
            for_s=arguments.for_s,
            recorded=recorded,
        )
        _pass_over_interrupts()
    except KeyboardInterrupt:
        for injection in begun:
            catalog.undo(injection)  # the interrupt may have come after the injection was complete
        raise
    return injection


def _status(arguments: argparse.Namespace) -> int:
    injections, torn = read_whole_records(arguments.state_dir)
    for text in torn:
        _complain(text)
    states = [(injection, state_of(injection)) for injection in injections]
    states = [(injection, state) for injection, state in states if injection.record.exists()]  # not undone since
    trouble = [f"{i.id} ({i.fault} on {i.target.mount_point}): {s.name}: {s.trouble}" for i, s in states if s.trouble]
    if arguments.json:
        _print_json([_injection_as_json(injection, state) for injection, state in states])
    elif not states:
        _print("nothing is injected" if not torn else "nothing else is injected")
    else:
        rows = [
            (i.id, i.fault, str(i.target.mount_point), _clock(i.since_ms), _clock(i.until_ms), s.name, i.undo_command)
            for i, s in states
        ]
        _print("\n".join([_table(("ID", "FAULT", "DISK", "SINCE", "UNTIL", "STATE", "UNDO"), rows), *trouble]))
    if torn:
        return EXIT_FAILURE
    return EXIT_TROUBLE if trouble else 0


def _injection_as_json(injection: Injection, state: State) -> dict[str, Any]:
    return {
        "id": injection.id,
        "fault": injection.fault,
        **injection.target.to_json(),
        "options": injection.options,
        "state": state.name,
        "trouble": state.trouble,
        "since_ms": injection.since_ms,
        "began_ms": injection.began_ms or None,
        "ended_ms": injection.ended_ms or None,
        "until_ms": injection.until_ms,
        "undo": injection.undo_command,
    }


def _undo(arguments: argparse.Namespace) -> int:
    if bool(arguments.what) == arguments.all:
        raise UsageError("undo: say what: an id, a path, or --all")
    _require_root("undo")
    # An unreadable record must not keep other disks broken.
    injections, torn = read_whole_records(arguments.state_dir)
    for text in torn:
        _complain(text)
    chosen = injections if arguments.all else [_find(what, injections) for what in arguments.what]
    if not chosen:
        _print("nothing is injected" if not torn else "nothing else is injected")
        return EXIT_FAILURE if torn else 0
    if arguments.forget:
        for injection in chosen:
            catalog.forget(injection)
            _print(f"forgotten, not undone: {injection.fault} on {injection.target.mount_point}")
        return 0
    code = _undo_all(chosen) or (EXIT_FAILURE if torn and arguments.all else 0)
    if arguments.all and scratch.list_disks(arguments.state_dir):
        program = _program(arguments)
        _print(f"scratch disks stay: {program} disk list; {program} disk remove --all")
    return code


def _find(what: str, injections: Sequence[Injection]) -> Injection:
    for path in _paths(what):
        for injection in reversed(injections):
            place = injection.target.mount_point
            if what == injection.id or path == place or place in path.parents:
                return injection
    raise FaultsError(f"{what}: nothing is injected there: see {PROGRAM} status")


def _undo_all(injections: Sequence[Injection]) -> int:
    """Undo the newest injection first, then retry those that another injection blocked."""
    waiting, errors = list(reversed(injections)), list[str]()
    for _ in range(2):
        failed, errors = [], []
        for injection in waiting:
            try:
                gone = catalog.disk_is_gone(injection.target)
                catalog.undo(injection)
                what = f"{injection.fault} on {injection.target.mount_point}"
                _print(f"over, and its disk is gone: {what}" if gone else f"undone: {what}")
            except (FaultsError, OSError) as error:
                failed.append(injection)
                errors.append(str(error))
        waiting = failed
    for text in errors:
        _complain(text)
    return EXIT_FAILURE if errors else 0


def _program(arguments: argparse.Namespace) -> str:
    """Return the command that an operator types, with the directory of these records."""
    where = arguments.state_dir
    return typed() if where == DEFAULT_STATE_DIR else f"{typed()} --state-dir {shlex.quote(str(where))}"


def _disk_create(arguments: argparse.Namespace) -> int:
    scratch.require_name(arguments.log_dir)
    _require_root("disk create")
    disk = scratch.create_disk(
        Path(os.path.abspath(arguments.path)),
        fstype=arguments.fstype,
        size_bytes=arguments.size,
        log_dir=arguments.log_dir,
        state_dir=arguments.state_dir,
    )
    _print(f"made {disk.fstype} of {disk.size_bytes >> 20} MiB in memory on {disk.path}; log directory {disk.log_dir}")
    _print(f"remove: {_program(arguments)} disk remove {shlex.quote(str(disk.path))}")
    return 0


def _disk_remove(arguments: argparse.Namespace) -> int:
    if bool(arguments.paths) == arguments.all:
        raise UsageError("disk remove: say which: a path, or --all")
    _require_root("disk remove")
    disks = scratch.list_disks(arguments.state_dir)
    chosen = disks if arguments.all else [_find_disk(path, disks) for path in arguments.paths]
    if not chosen:
        _print("no scratch disk")
    errors, unused = [], []
    for disk in chosen:
        used_by = [] if arguments.even_in_use else scratch.users_of(disk, _injections_into(disk, arguments.state_dir))
        if used_by:
            errors.append(f"{disk.path}: in use by {', '.join(used_by)}: stop that first, or say --even-in-use")
        else:
            unused.append(disk)
    for disk in unused:  # before any removal: a removal may have to write to the disk that it is mounted on
        _mend(disk, arguments.state_dir)
    for disk in sorted(unused, key=lambda disk: len(disk.path.parts), reverse=True):
        try:
            _remove_with_faults(disk, arguments.state_dir)
        except (FaultsError, OSError) as error:
            errors.append(str(error))
    for text in errors:
        _complain(text)
    return EXIT_FAILURE if errors else 0


def _injections_into(disk: scratch.ScratchDisk, state_dir: Path) -> list[Injection]:
    return [
        injection
        for injection in read_whole_records(state_dir)[0]
        if injection.target.disk is not None and injection.target.disk.directory == disk.directory
    ]


def _mend(disk: scratch.ScratchDisk, state_dir: Path) -> None:
    """Undo what can be undone: a fault that cannot be undone must not prevent the removal of the disk."""
    if not disk.is_alive():
        return
    for injection in _injections_into(disk, state_dir):
        with contextlib.suppress(FaultsError):
            catalog.undo(injection)
            _print(f"undone: {injection.fault} on {disk.path}")


def _remove_with_faults(disk: scratch.ScratchDisk, state_dir: Path) -> None:
    scratch.remove_disk(disk, state_dir)
    for injection in _injections_into(disk, state_dir):
        catalog.undo(injection)
        _print(f"gone with its disk: {injection.fault} on {disk.path}")
    _print(f"removed {disk.path}")


def _paths(text: str) -> Iterator[Path]:
    """Yield the path as typed and then, if nothing has that path, without symbolic links, because resolving them may
    need a disk."""
    yield Path(os.path.abspath(text))
    yield Path(os.path.realpath(text))


def _find_disk(path: str, disks: Sequence[scratch.ScratchDisk]) -> scratch.ScratchDisk:
    for absolute in _paths(path):
        for disk in disks:
            if disk.path == absolute:
                return disk
    raise FaultsError(f"{path}: not a scratch disk: see {PROGRAM} disk list")


def _disk_state(disk: scratch.ScratchDisk, fault: str | None) -> str:
    if not disk.is_alive():
        return "gone"
    return fault or ("well" if disk.target().device is not None else "not mounted")


def _disk_list(arguments: argparse.Namespace) -> int:
    disks = scratch.list_disks(arguments.state_dir)
    if arguments.json:
        return _print_json([{**disk.to_json(), "alive": disk.is_alive()} for disk in disks])
    if not disks:
        _print("no scratch disk")
        return 0
    broken = {str(i.target.mount_point): i.fault for i in read_whole_records(arguments.state_dir)[0]}
    rows = [
        (
            str(disk.path),
            disk.fstype,
            f"{disk.size_bytes >> 20} MiB",
            str(disk.log_dir),
            _clock(disk.since_ms),
            _disk_state(disk, broken.get(str(disk.path))),
        )
        for disk in disks
    ]
    _print(_table(("PATH", "TYPE", "SIZE", "LOG DIRECTORY", "SINCE", "STATE"), rows))
    return 0


# the program --------------------------------------------------------------------------------------------------------


def _require_root(command: str) -> None:
    if os.geteuid() != 0:
        raise FaultsError(f"{PROGRAM} {command} needs root and this is uid {os.geteuid()}: run it with sudo")


def _complain(text: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {' '.join(text.split())}\n")


def remote_command_line(host: str, remote_command: str, arguments: Sequence[str], *, terminal: bool) -> list[str]:
    """Return the ssh command that runs ``arguments`` on ``host`` exactly as given.

    Raises:
        KjbodError: ssh would read the host as an option.
    """
    if not host or host.startswith("-") or any(character.isspace() for character in host):
        raise UsageError(f"--host {host!r} is not a host")
    return ["ssh", *(["-t"] if terminal else []), "--", host, f"{remote_command} {shlex.join(arguments)}"]


def without_options(arguments: Sequence[str], *names: str) -> list[str]:
    """Return the command line without these options and their values, in either form."""
    left, given = [], iter(arguments)
    for argument in given:
        if argument in names:
            next(given, None)
        elif not argument.startswith(tuple(f"{name}=" for name in names)):
            left.append(argument)
    return left


def _run_elsewhere(arguments: argparse.Namespace, given: Sequence[str]) -> NoReturn:
    passed_on = without_options(given, "--host", "--remote-command")
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    command = remote_command_line(arguments.host, arguments.remote_command, passed_on, terminal=terminal)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise FaultsError(f"ssh: {error.strerror} (apt-get install openssh-client)") from None


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _pass_over_interrupts() -> None:
    """Ignore interrupts from here on: the exit code is final, even while the interpreter ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def main(given: Sequence[str]) -> int:
    """Run the command line ``given``, and return its exit code."""
    try:
        arguments = _parser().parse_args(given)
    except SystemExit as told:  # raised for help, or for a mistake that was reported
        return EXIT_USAGE if told.code else 0
    defaults = {"state_dir": DEFAULT_STATE_DIR, "host": None, "remote_command": DEFAULT_REMOTE_COMMAND}
    for name, value in defaults.items():
        if not hasattr(arguments, name):
            setattr(arguments, name, value)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        if arguments.host is not None:
            _run_elsewhere(arguments, given)
        arguments.state_dir = Path(os.path.abspath(arguments.state_dir))
        code: int = arguments.run(arguments)
        if arguments.command != "list" and arguments.state_dir == DEFAULT_STATE_DIR:
            with contextlib.suppress(OSError):  # not empty, or missing
                arguments.state_dir.rmdir()
        sys.stdout.flush()
        _pass_over_interrupts()
    except KjbodError as error:
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _complain(f"interrupted; {_what_is_left(arguments.state_dir)}")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader of our output has closed the pipe
        return EXIT_FAILURE
    except OSError as error:
        _complain(f"{error.filename or arguments.command}: {error.strerror}")
        return EXIT_FAILURE
    return code


def _what_is_left(state_dir: Path) -> str:
    left = read_whole_records(state_dir)[0]
    return f"still injected: see {PROGRAM} status" if left else "nothing is injected"

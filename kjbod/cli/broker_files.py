"""Find the files of the broker and the guard of this host, for commands without ``-c``.

The first row that fits gives the broker's file:

=======================================================  =============================================================
where                                                    when the file cannot be used
=======================================================  =============================================================
``-c FILE``                                              the line of the configuration
``KJBOD_CONFIG``, a path                                 likewise
the command line of the Kafka broker that runs here      one line for each reason: :data:`LINES`; exit code 78
no broker runs: the command line of the guard            one line where no guard runs either, or guards of two brokers
=======================================================  =============================================================

kjbod's own keys are in ``--guard-config FILE``. Without that option, and without ``-c``, they are in :data:`OWN_FILE`
if that file exists. With ``-c`` alone no other file is read, as for a guard with only ``-c``. A command without ``-c``
prints the files that it uses to stderr.
"""

import contextlib
import functools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from msgspec import Struct

from kjbod.cli import broker_scan
from kjbod.errors import ConfigError
from kjbod.output import complain, safe

VARIABLE: Final = "KJBOD_CONFIG"
OWN_FILE: Final = Path("/etc/kjbod/guard.properties")
PROC: Final = Path("/proc")
SCAN_TIMEOUT_S: Final = 3.0
_REAP_S: Final = 0.2
_CHILD: Final = "import sys; sys.path.insert(0, {source!r}); from kjbod.cli.broker_scan import main; main()"

F = TypeVar("F", bound=Callable[..., Any])

REMEDY: Final = f"give -c FILE, or set {VARIABLE}"
LINES: Final = {
    broker_scan.NO_FILE: f"the Kafka broker (process {{pid}}) has no file on its command line: {REMEDY}",
    broker_scan.DENIED: (
        f"the Kafka broker (process {{pid}}) runs with {{file}}, and this user may not see in which directory tree: "
        f"run the command as the user of the broker or as root; or {REMEDY}"
    ),
    broker_scan.GONE: (
        f"the Kafka broker (process {{pid}}) was started with {{file}}, and no such file is there now: {REMEDY}"
    ),
    broker_scan.ELSEWHERE: (
        f"the Kafka broker (process {{pid}}) runs with {{file}} in a container or another mount namespace, and that is "
        f"not the same file on this host: mount the file at one path in the container and on the host; or {REMEDY}"
    ),
}
"""Error lines for a broker whose file is not known here, by result of the scan."""


class Files(Struct, frozen=True):
    """The files of a command.

    Attributes:
        broker: the broker's ``server.properties``.
        own: the file with kjbod's own keys; None: they are in the broker's file.
        note: line that says which files were found; empty when ``-c`` was given.
    """

    broker: Path
    own: Path | None
    note: str = ""


def options(command: F) -> F:
    """Add the options ``-c FILE`` and ``--guard-config FILE``, both optional. The command gets two paths as its first
    arguments."""

    @functools.wraps(command)
    def found(*, config_path: Path | None, own_path: Path | None, **others: Any) -> Any:
        files = find(config_path, own_path, os.environ)
        if files.note:
            complain(files.note)
        return command(files.broker, files.own, **others)

    config = click.option(
        "-c",
        "--config",
        "config_path",
        type=click.Path(path_type=Path, readable=False),
        help=f"The broker's server.properties.  [default: {VARIABLE}, or the file of the Kafka broker that runs here]",
    )
    own = click.option(
        "--guard-config",
        "own_path",
        type=click.Path(path_type=Path, readable=False),
        help="On a host with Kafka: the file with kjbod's own keys that the guard beside the broker runs with.  "
        f"[default without -c: {OWN_FILE}, if that file exists]",
    )
    return config(own(found))  # type: ignore[return-value]  # click takes a function of any signature


def typed() -> str:
    """Return the file options as typed, with a leading space, so that suggested commands contain them too."""
    given = click.get_current_context().params
    named = {"-c": given["config_path"], "--guard-config": given["own_path"]}
    return "".join(f" {option} {shlex.quote(str(path))}" for option, path in named.items() if path is not None)


def find(config: Path | None, own: Path | None, environment: Mapping[str, str]) -> Files:
    """Return the files of a command for these two options.

    Raises:
        ConfigError: the broker's file is unknown; one line with the reason and the remedy.
    """
    if config is not None:
        return Files(config, own)
    if named := environment.get(VARIABLE):
        broker, whence = Path(named), VARIABLE
    else:
        scanned = _scan()
        if (beside := guard_in(scanned)) is not None:
            broker, whence = Path(beside["file"]), f"of the guard, process {beside['pid']}; no broker runs"
            if own is None and beside["own"] is not None:
                own = Path(beside["own"])
            return Files(broker, own, _note(broker, whence, own))
        pid, path = decide(scanned)
        broker, whence = Path(path), f"of the Kafka broker, process {pid}"
    if own is None and OWN_FILE.exists():
        own = OWN_FILE
    return Files(broker, own, _note(broker, whence, own))


def _note(broker: Path, whence: str, own: Path | None) -> str:
    return safe(f"using {broker} ({whence}){'' if own is None else f' and {own}'}")


def guard_in(scanned: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the guard that belongs to the stopped broker of this host; None: see :func:`decide`."""
    guards: Sequence[Mapping[str, Any]] = scanned["guards"]
    if scanned["brokers"] or len({(one["file"], one["own"]) for one in guards}) != 1:
        return None
    return guards[0]


def decide(scanned: Mapping[str, Any]) -> tuple[int, str]:
    """Return pid and file of the only Kafka broker, from the result of :func:`.broker_scan.scan`.

    A killed broker that cannot exit because its disk hangs may run beside its successor with the same file. Then the
    file is known.

    Raises:
        ConfigError: no broker, several files, or a file that this process cannot find.
    """
    brokers = scanned["brokers"]
    if not brokers:
        if scanned["hidden"] is not None:
            raise ConfigError(
                f"no Kafka broker is visible: {scanned['hidden']}: run the command as the user of the broker or as "
                f"root; or {REMEDY}"
            )
        raise ConfigError(f"no Kafka broker runs on this host: {REMEDY}")
    if len({(one["result"], one["file"]) for one in brokers}) > 1:
        raise ConfigError(f"{len(brokers)} Kafka brokers run on this host ({_listed(brokers)}): {REMEDY}")
    one = brokers[0]
    if one["result"] != broker_scan.FOUND:
        raise ConfigError(LINES[one["result"]].format(pid=one["pid"], file=one["file"]))
    return one["pid"], one["file"]


def _listed(brokers: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"process {one['pid']}: {one['file'] or 'no file'}" for one in brokers)


def _scan() -> Mapping[str, Any]:
    """Ask a separate process for the brokers: see :mod:`.broker_scan`.

    Raises:
        ConfigError: no answer in time.
    """
    source = str(Path(__file__).parents[2])
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CHILD.format(source=source), str(PROC)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        output, _ = child.communicate(timeout=SCAN_TIMEOUT_S)
        found: Mapping[str, Any] = json.loads(output)
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_REAP_S)
        assert child.stdout is not None  # PIPE
        child.stdout.close()
        raise ConfigError(
            f"the command lines of this host's processes cannot be read within {SCAN_TIMEOUT_S:.0f} s: {REMEDY}"
        ) from None
    except ValueError:
        raise ConfigError(f"the Kafka broker of this host cannot be looked for in {PROC}: {REMEDY}") from None
    return found

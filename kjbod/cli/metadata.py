"""The commands ``kjbod metadata``: read KRaft metadata of a log, a snapshot, a directory, or a running cluster. Nothing
is written.

``shell`` has the tree and the commands of ``kafka-metadata-shell``. ``dump`` prints the records of ``kafka-dump-log
--cluster-metadata-decoder`` as JSON lines. Both read files of Apache Kafka's controllers and of kjbod's.
"""

import contextlib
import difflib
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import structlog
from msgspec import Struct

from kjbod.cli.addresses import controllers
from kjbod.cli.command_config import command_config
from kjbod.config import load_config
from kjbod.config.load import security_problems
from kjbod.config.needs import METADATA
from kjbod.metadata.dump import type_names
from kjbod.metadata.dump_text import text_lines
from kjbod.metadata.fetching import Address
from kjbod.metadata.live import LiveImage, dump_live
from kjbod.metadata.newer import PARTLY, lines_of
from kjbod.metadata.reading import Loaded, dump_source, load
from kjbod.metadata.secrets import without_secrets
from kjbod.metadata.shell import PROMPT, Line, Shell
from kjbod.metadata.tree import tree_of
from kjbod.output import Printer, complain, safe, width
from kjbod.security.channel import Security
from kjbod.security.opening import client_security, security_of

BANNER = "[ kjbod metadata shell: help lists the commands ]"


def _sources(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--snapshot PATH``, ``--bootstrap-controller HOST:PORT``, ``--config FILE`` and ``--command-config
    FILE``."""
    path = click.option(
        "-s",
        "--snapshot",
        "--path",
        "path",
        type=click.Path(path_type=Path, readable=False),
        help="A .checkpoint or .log file, a __cluster_metadata-0, or the log directory that has one.",
    )
    servers = click.option(
        "--bootstrap-controller",
        "-C",
        "--controllers",
        "servers",
        metavar="[ID@]HOST:PORT[,...]",
        callback=controllers,
        help="Controllers of a running cluster, as in controller.quorum.bootstrap.servers or controller.quorum.voters.",
    )
    config = click.option(
        "-c",
        "--config",
        "config_path",
        type=click.Path(path_type=Path, readable=False),
        help="A server.properties that names the controllers of a running cluster.",
    )
    return path(servers(config(command_config(command))))


class _Cluster(Struct, frozen=True):
    """A running cluster to read."""

    servers: Sequence[Address]
    security: Security


def _one_of(
    path: Path | None, servers: Sequence[Address] | None, config_path: Path | None, client_path: Path | None
) -> Path | _Cluster:
    """Return the source to read: files, or controllers.

    Raises:
        click.UsageError: no source was given, or several.
        ConfigError: the file has no controllers to ask, or one of both files cannot be used.
    """
    if (path is None) + (servers is None) + (config_path is None) != 2:
        raise click.UsageError("give one of --snapshot PATH, --bootstrap-controller HOST:PORT and --config FILE")
    if path is not None:
        return path
    if servers is not None:
        return _Cluster(servers, client_security(client_path))
    assert config_path is not None
    own = [] if client_path else [security_problems]
    config = load_config(config_path, *own, needs=METADATA)
    named = config.controller_quorum_bootstrap_servers or config.controller_quorum_voters
    security = client_security(client_path) if client_path else security_of(config)
    return _Cluster(tuple((one.host, one.port) for one in named), security)


@contextlib.contextmanager
def no_log_lines() -> Iterator[None]:
    """Suppress log lines of services; errors still reach the user."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


@click.group()
def metadata() -> None:
    """Look at KRaft metadata: a log, a snapshot, a directory, or a running cluster."""


# ---------------------------------------------------------------- shell


@metadata.command()
@_sources
@click.option("--secrets", is_flag=True, help="Show salts and keys of SCRAM credentials, tokens, and passwords.")
@click.argument("command", nargs=-1)
def shell(
    path: Path | None,
    servers: Sequence[Address] | None,
    config_path: Path | None,
    client_path: Path | None,
    secrets: bool,
    command: tuple[str, ...],
) -> int:
    """Walk through the metadata as through a file system.

    With a COMMAND (`ls /image/topics/byName`) that is run and the exit code is 1 where something was not found; without
    one, commands are read: from a terminal with completion and history, else line by line.
    """
    source = _one_of(path, servers, config_path, client_path)
    with contextlib.ExitStack() as stack:
        if isinstance(source, _Cluster):
            stack.enter_context(no_log_lines())
            live = stack.enter_context(LiveImage(source.servers, complain, source.security))

            def using(use: Callable[[Loaded], int]) -> int:
                done: int = live.read(use)
                return done
        else:
            loaded = load(source)
            for line in lines_of(loaded.image.metadata_version, loaded.image.newer.missing, PARTLY):
                complain(line)

            def using(use: Callable[[Loaded], int]) -> int:
                return use(loaded)

        session = _Session(using, secrets)
        return session.one_shot(command) if command else session.interactive()


class _Session:
    """A shell and its image. Each command sees one image from its beginning to its end."""

    def __init__(self, using: Callable[[Callable[[Loaded], int]], int], secrets: bool) -> None:
        self._using = using
        self._secrets = secrets
        self._loaded: Loaded | None = None
        self._out = Printer()
        self.shell = Shell(self._root)

    def _root(self) -> Any:
        assert self._loaded is not None
        return tree_of(self._loaded.image, self._loaded.provenance, secrets=self._secrets)

    def _print(self, make: Callable[[], Iterator[Line]]) -> int:
        """Print the lines of a command. Return 1 if one of them is an error."""

        def use(loaded: Loaded) -> int:
            self._loaded, failed = loaded, 0
            for line in make():
                if line.error:
                    failed = 1
                    complain(safe(line.text))
                else:
                    self._out(*map(_printable, line.text.split("\n")))
            return failed

        return self._using(use)

    def one_shot(self, command: Sequence[str]) -> int:
        return self._print(lambda: self.shell.run(command))

    def interactive(self) -> int:
        terminal = sys.stdin.isatty()
        if terminal:
            self.shell.width = width
            self._with_readline()
            self._out(BANNER)
        status = 0
        while not self.shell.done:
            try:
                text = input(PROMPT if terminal else "")
            except EOFError:
                break
            except KeyboardInterrupt:
                self._out("^C")
                continue
            status = self._print(lambda text=text: self.shell.enter(text)) or status  # type: ignore[misc]
        return 0 if terminal else status

    def _with_readline(self) -> None:
        """Enable completion and line editing, if Python supports them."""
        try:
            import readline
        except ImportError:
            return
        readline.set_completer_delims(" \t")
        readline.parse_and_bind("tab: complete")

        def complete(_: str, number: int) -> str | None:
            found: list[str] = []

            def use(loaded: Loaded) -> int:
                self._loaded = loaded
                found.extend(self.shell.complete(readline.get_line_buffer()[: readline.get_endidx()].lstrip()))
                return 0

            self._using(use)
            return found[number] if number < len(found) else None

        readline.set_completer(complete)


def _printable(text: str) -> str:
    """Return text with control characters as escapes. Backslashes, which occur in names of quotas, are unchanged."""
    return "".join(char if char.isprintable() or char == "\t" else safe(char) for char in text)


# ---------------------------------------------------------------- dump


def _known_types(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> frozenset[str]:
    """Return the names in upper case.

    Raises:
        click.BadParameter: no record has that name.
    """
    known = {name.upper(): name for name in type_names()}
    for name in names:
        if name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1)
            hint = f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(known.values())}"
            raise click.BadParameter(f"no record is a {safe(name)}: {hint}")
    return frozenset(name.upper() for name in names)


@metadata.command()
@_sources
@click.option(
    "--type",
    "types",
    multiple=True,
    callback=_known_types,
    help="Only records of this type, as PARTITION_RECORD; may be repeated.",
)
@click.option("--from-offset", type=click.IntRange(0), default=0, help="Only records at or above this offset.")
@click.option("--to-offset", type=click.IntRange(0), default=None, help="Only records below this offset.")
@click.option("--skip-record-metadata", is_flag=True, help="Payloads alone, without control records.")
@click.option("--text", is_flag=True, help="Lines as kafka-dump-log prints them, batches too; of files.")
@click.option("--secrets", is_flag=True, help="Show salts and keys of SCRAM credentials, tokens, and passwords.")
def dump(
    path: Path | None,
    servers: Sequence[Address] | None,
    config_path: Path | None,
    client_path: Path | None,
    types: frozenset[str],
    from_offset: int,
    to_offset: int | None,
    skip_record_metadata: bool,
    text: bool,
    secrets: bool,
) -> int:
    """Print the records as JSON, one a line.

    Of a directory or a running cluster: the newest snapshot and the log behind it; of a file: the file. Offsets of a
    snapshot's records are places in its file. The exit code is 1 where a record could not be decoded; it is there with
    its `error`.
    """
    source = _one_of(path, servers, config_path, client_path)
    if not isinstance(source, _Cluster):
        found = dump_source(source, layout=text)
    elif text:
        raise click.UsageError("--text needs --snapshot PATH: what controllers send of a snapshot has no batches")
    else:
        found = dump_live(source.servers, complain, source.security)
    shown = found if secrets else map(without_secrets, found)
    out, failed = Printer(), 0

    def wanted(record: Mapping[str, Any]) -> bool:
        nonlocal failed
        chosen = _is_wanted(record, types, from_offset, to_offset)
        failed |= chosen and "error" in record
        return chosen

    with no_log_lines():
        if text:
            sparse = bool(types or from_offset or to_offset is not None)
            for line in text_lines(shown, wanted, record_metadata=not skip_record_metadata, sparse=sparse):
                out(_printable(line))
            return int(failed)
        for record in shown:
            if wanted(record) and not (skip_record_metadata and "control" in record):
                out(json.dumps(_shown(record, skip_record_metadata), ensure_ascii=False, separators=(",", ":")))
    return int(failed)


def _shown(record: Mapping[str, Any], skip_record_metadata: bool) -> Mapping[str, Any]:
    if not skip_record_metadata:
        return record
    return {key: record[key] for key in ("type", "version", "data", "error") if key in record}


def _is_wanted(record: Mapping[str, Any], types: Collection[str], from_offset: int, to_offset: int | None) -> bool:
    """Return whether a record has one of ``types``, if any are given, and is in the range. Records of a snapshot from a
    controller have no offset, and are in every range."""
    if types and str(record.get("type", record.get("control"))).upper() not in types:
        return False
    offset = record.get("offset")
    return offset is None or (from_offset <= offset and (to_offset is None or offset < to_offset))

"""``kjbod metadata``: look at KRaft metadata: a log, a snapshot, a directory, or a running cluster. Nothing is written.

``shell`` has the tree and the commands of ``kafka-metadata-shell``, ``dump`` the records of ``kafka-dump-log
--cluster-metadata-decoder`` as JSON lines. Both read what Apache Kafka's controllers write as well as kjbod's.
"""

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import structlog

from kjbod.cli.addresses import addresses
from kjbod.cli.output import Printer, complain, safe, width
from kjbod.metadata.fetching import Address
from kjbod.metadata.live import LiveImage, dump_live
from kjbod.metadata.reading import Loaded, dump_source, load
from kjbod.metadata.shell import PROMPT, Line, Shell
from kjbod.metadata.tree import tree_of

BANNER = "[ kjbod metadata shell: help lists the commands ]"


def _sources(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--snapshot PATH`` or ``--bootstrap-controller HOST:PORT``."""
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
        "servers",
        metavar="HOST:PORT[,...]",
        callback=addresses,
        help="Controllers of a running cluster.",
    )
    return path(servers(command))


def _one_of(path: Path | None, servers: Sequence[Address] | None) -> None:
    if (path is None) == (servers is None):
        raise click.UsageError("give either --snapshot PATH or --bootstrap-controller HOST:PORT")


@contextlib.contextmanager
def no_log_lines() -> Iterator[None]:
    """What reads from controllers logs for a service; here a person reads, and is told of errors anyway."""
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


@metadata.command(context_settings={"ignore_unknown_options": True})
@_sources
@click.option("--secrets", is_flag=True, help="Show salts and keys of SCRAM credentials, and tokens.")
@click.argument("command", nargs=-1)
def shell(path: Path | None, servers: Sequence[Address] | None, secrets: bool, command: tuple[str, ...]) -> int:
    """Walk through the metadata as through a file system.

    With a COMMAND (`ls /image/topics/byName`) that is run and the exit code is 1 where something was not found; without
    one, commands are read: from a terminal with completion and history, else line by line.
    """
    _one_of(path, servers)
    with contextlib.ExitStack() as stack:
        if servers is not None:
            stack.enter_context(no_log_lines())
            live = stack.enter_context(LiveImage(servers))

            def using(use: Callable[[Loaded], int]) -> int:
                done: int = live.read(use)
                return done
        else:
            assert path is not None
            loaded = load(path)

            def using(use: Callable[[Loaded], int]) -> int:
                return use(loaded)

        session = _Session(using, secrets)
        return session.one_shot(command) if command else session.interactive()


class _Session:
    """A shell, and the image that it looks at: each command sees one image from its begin to its end."""

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
        """Print what a command says; 1 where it says that something could not be done."""

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
        """Completion and line editing, where Python has them."""
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
    """What a terminal would obey as an escape; backslashes, which names of quotas have, stay as they are."""
    return "".join(char if char.isprintable() or char == "\t" else safe(char) for char in text)


# ---------------------------------------------------------------- dump


@metadata.command()
@_sources
@click.option("--type", "types", multiple=True, help="Only records of this type, as PARTITION_RECORD; may be repeated.")
@click.option("--from-offset", type=click.IntRange(0), default=0, help="Only records at or above this offset.")
@click.option("--to-offset", type=click.IntRange(0), default=None, help="Only records below this offset.")
def dump(
    path: Path | None,
    servers: Sequence[Address] | None,
    types: tuple[str, ...],
    from_offset: int,
    to_offset: int | None,
) -> int:
    """Print the records as JSON, one a line.

    Of a directory or a running cluster: the newest snapshot and the log behind it; of a file: the file. Offsets of a
    snapshot's records are places in its file. The exit code is 1 where a record could not be decoded; it is there with
    its `error`.
    """
    _one_of(path, servers)
    found = dump_live(servers) if servers is not None else dump_source(path or Path())
    wanted = {name.upper() for name in types}
    out, failed = Printer(), 0
    with no_log_lines():
        for record in found:
            if _is_wanted(record, wanted, from_offset, to_offset):
                failed |= "error" in record
                out(json.dumps(record, ensure_ascii=False, separators=(",", ":")))
    return int(failed)


def _is_wanted(record: Mapping[str, Any], types: Collection[str], from_offset: int, to_offset: int | None) -> bool:
    """Whether a record is of one of ``types``, where there are some, and in the range; those of a snapshot that a
    controller sent have no offset, and are in every range."""
    if types and str(record.get("type", record.get("control"))).upper() not in types:
        return False
    offset = record.get("offset")
    return offset is None or (from_offset <= offset and (to_offset is None or offset < to_offset))

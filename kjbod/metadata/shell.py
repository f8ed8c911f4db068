"""Shell over a tree of metadata, with the commands and texts of ``kafka-metadata-shell``. Pure: lines in, lines out.

The commands are in a table (:data:`COMMANDS`). Paths may be globs: ``*``, ``?``, ``{a,b}``; a backslash escapes the
next character (``org.apache.kafka.shell``).
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from kjbod.metadata.tree import Directory, Leaf, Node

PROMPT = ">> "
_INDENT = "  "


class Line(Struct, frozen=True):
    """A line that a command prints; ``error``: the line is an error."""

    text: str
    error: bool = False


class Found(Struct, frozen=True):
    """A node, and its path of names from the root."""

    path: tuple[str, ...]
    node: Node

    @property
    def name(self) -> str:
        """Return the last name, ``/`` for the root."""
        return self.path[-1] if self.path else "/"


class Command(Struct, frozen=True):
    """A command: its usage and its function."""

    usage: str
    what: str
    run: "Callable[[Shell, Sequence[str]], Iterator[Line]]"
    arguments: tuple[int, int | None]
    """Minimum and maximum number of arguments; None: no maximum."""
    paths: bool = False
    """Whether the arguments are paths, with completion of paths."""


class Shell(Struct):
    """State of a shell: its working directory in a tree, and whether it is done.

    Args:
        root: returns the tree when a command begins.
        width: columns of the terminal; None: one name per line.
    """

    root: Callable[[], Directory]
    width: Callable[[], int | None] = lambda: None
    working_directory: tuple[str, ...] = ()
    entered: list[str] = field(default_factory=list)
    done: bool = False
    """Whether ``exit`` was entered."""

    def enter(self, text: str) -> Iterator[Line]:
        """Run one line as entered by a user."""
        if text.strip():
            self.entered.append(text.strip())
        try:
            words = shlex.split(text)
        except ValueError as error:
            yield Line(f"cannot read the line: {str(error).lower()}", error=True)
            return
        if words:
            yield from self.run(words)

    def run(self, words: Sequence[str]) -> Iterator[Line]:
        """Run one command with its arguments."""
        name, *arguments = words
        command = COMMANDS.get(name)
        if command is None:
            yield Line(f"invalid choice: '{name}' (choose from {_choices()})", error=True)
            return
        least, most = command.arguments
        if len(arguments) < least or (most is not None and len(arguments) > most):
            few = len(arguments) < least
            yield Line(f"{name}: too {'few' if few else 'many'} arguments; usage: {command.usage}", error=True)
            return
        yield from command.run(self, arguments)

    def complete(self, text: str) -> list[str]:
        """Completions of the last word of an unfinished line; directories end with a slash."""
        words = text.split(" ")
        if len(words) == 1:
            return [name for name in COMMANDS if name.startswith(words[0])]
        command = COMMANDS.get(words[0])
        if command is None:
            return []
        if words[0] == "man":
            return [name for name in COMMANDS if name.startswith(words[-1])]
        return self._complete_path(words[-1]) if command.paths else []

    def _complete_path(self, prefix: str) -> list[str]:
        parent, slash, last = prefix.rpartition("/")
        found = _literal(self.root(), self._absolute(parent + slash))
        if not isinstance(found, Directory):
            return []
        completed = []
        for name in found.sorted_names():
            if name.startswith(last):
                ending = "/" if isinstance(found.child(name), Directory) else ""
                completed.append(f"{parent}{slash}{name}{ending}")
        return completed

    def _absolute(self, path: str) -> tuple[str, ...]:
        """Return the names of a path, without ``.`` and ``..``."""
        names = [] if path.startswith("/") else list(self.working_directory)
        for name in path.split("/"):
            if name == "..":
                del names[-1:]
            elif name not in ("", "."):
                names.append(name)
        return tuple(names)

    def find(self, path: str) -> list[Found]:
        """Return the nodes of a path or glob; empty if there are none."""
        return list(_matches(self.root(), self._absolute(path), ()))


def _literal(root: Directory, names: Sequence[str]) -> Node | None:
    node: Node | None = root
    for name in names:
        if not isinstance(node, Directory):
            return None
        node = node.child(name)
    return node


def _matches(node: Node, names: Sequence[str], path: tuple[str, ...]) -> Iterator[Found]:
    if not names:
        yield Found(path, node)
        return
    if not isinstance(node, Directory):
        return
    pattern = _pattern(names[0])
    for name in [names[0]] if pattern is None else node.sorted_names():
        if pattern is None or pattern.fullmatch(name):
            child = node.child(name)
            if child is not None:
                yield from _matches(child, names[1:], (*path, name))


def _pattern(glob: str) -> re.Pattern[str] | None:
    """Return a glob as a pattern, None if it is a plain name. A glob with an unclosed group is a plain name
    (``GlobComponent``)."""
    out, literal, in_group, characters = "", True, False, iter(glob)
    for char in characters:
        if char == "\\":
            escaped = next(characters, None)
            if escaped is None:
                return None
            out += re.escape(escaped)
            literal = False
        elif char in "*?":
            out += ".*" if char == "*" else "."
            literal = False
        elif char == "{" and not in_group:
            out, in_group, literal = out + "(?:", True, False
        elif char == "," and in_group:
            out += "|"
        elif char == "}" and in_group:
            out, in_group = out + ")", False
        else:
            out += re.escape(char)
    return None if literal or in_group else re.compile(out, re.DOTALL)


# ---------------------------------------------------------------- the commands


def _cat(shell: Shell, targets: Sequence[str]) -> Iterator[Line]:
    for target in targets:
        found = shell.find(target)
        if not found:
            yield Line(f"cat: {target}: No such file or directory.", error=True)
        for each in found:
            if isinstance(each.node, Leaf):
                yield Line(each.node.text)
            else:
                yield Line(f"cat: {target}: Is a directory", error=True)


def _cd(shell: Shell, targets: Sequence[str]) -> Iterator[Line]:
    target = targets[0] if targets else "/"
    found = shell.find(target)
    if not found:
        yield Line(f"cd: {target}: no such directory.", error=True)
    elif isinstance(found[0].node, Leaf):
        yield Line(f"cd: {target}: not a directory.", error=True)
    else:
        shell.working_directory = found[0].path


def _exit(shell: Shell, targets: Sequence[str]) -> Iterator[Line]:
    shell.done = True
    return iter(())


def _find(shell: Shell, targets: Sequence[str]) -> Iterator[Line]:
    for target in targets or (".",):
        found = shell.find(target)
        if not found:
            yield Line(f"find: {target}: no such file or directory.", error=True)
        for each in found:
            # A glob may match several nodes; each is shown with its own path.
            top = target if len(found) == 1 else "/" + "/".join(each.path)
            yield from _walk(top, each.node)


def _walk(path: str, node: Node) -> Iterator[Line]:
    yield Line(path)
    if isinstance(node, Directory):
        for name in node.sorted_names():
            child = node.child(name)
            if child is not None:
                yield from _walk(f"{path.rstrip('/')}/{name}", child)


def _help(shell: Shell, targets: Sequence[str]) -> Iterator[Line]:
    yield Line("The commands; paths may be globs, as /image/topics/byName/*/0:")
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        yield Line(f"  {command.usage.ljust(width)}  {command.what}")


def _history(shell: Shell, targets: Sequence[str]) -> Iterator[Line]:
    count = len(shell.entered)
    if targets:
        if not targets[0].isdigit():
            yield Line(f"history: {targets[0]}: not a number.", error=True)
            return
        count = min(count, int(targets[0]))
    first = len(shell.entered) - count
    for number, text in enumerate(shell.entered[first:], start=first):
        yield Line(f"{number:5d}  {text}")


def _ls(shell: Shell, targets: Sequence[str]) -> Iterator[Line]:
    files: list[str] = []
    directories: list[tuple[str, list[str]]] = []
    for target in targets or (".",):
        found = shell.find(target)
        if not found:
            yield Line(f"ls: {target}: no such file or directory.", error=True)
        for each in found:
            if isinstance(each.node, Leaf):
                files.append(each.name)
            else:
                directories.append((each.name, each.node.sorted_names()))
    yield from _in_columns(files, shell.width())
    for number, (name, children) in enumerate(directories):
        if files or len(directories) > 1:
            if files or number:
                yield Line("")
            yield Line(f"{name}:")
        yield from _in_columns(children, shell.width())


def _in_columns(names: Sequence[str], width: int | None) -> Iterator[Line]:
    """Print names below each other, in as many columns as fit."""
    rows = len(names)
    if width is not None:
        for columns in range(1, len(names) + 1):
            height = -(-len(names) // columns)
            if sum(_widths(names, height)) <= width:
                rows = height
    widths = _widths(names, rows)
    for row in range(rows):
        cells = names[row::rows]
        padded = (name.ljust(wide) for name, wide in zip(cells, widths, strict=False))
        yield Line("".join(padded).rstrip())


def _widths(names: Sequence[str], height: int) -> list[int]:
    return [max(map(len, names[at : at + height])) + 2 for at in range(0, len(names), height)] if height else []


def _man(shell: Shell, targets: Sequence[str]) -> Iterator[Line]:
    name = targets[0]
    if name not in COMMANDS:
        yield Line(f"man: unknown command {name}. Type help to get a list of commands.", error=True)
        return
    command = COMMANDS[name]
    yield Line(f"{name}: {command.what}")
    yield Line("")
    yield Line(f"usage: {command.usage}")


def _pwd(shell: Shell, targets: Sequence[str]) -> Iterator[Line]:
    yield Line("/" + "/".join(shell.working_directory))


def _tree(shell: Shell, targets: Sequence[str]) -> Iterator[Line]:
    for target in targets or (".",):
        found = shell.find(target)
        if not found:
            yield Line(f"tree: {target}: No such file or directory.", error=True)
        for each in found:
            yield from _branch(each.node, "")


def _branch(node: Node, indent: str) -> Iterator[Line]:
    if isinstance(node, Leaf):
        yield Line(indent + node.text)
        return
    for name in node.sorted_names():
        child = node.child(name)
        if child is not None:
            yield Line(f"{indent}{name}:")
            yield from _branch(child, indent + _INDENT)


COMMANDS: Mapping[str, Command] = {
    "cat": Command("cat FILE...", "Show the contents of metadata files.", _cat, (1, None), paths=True),
    "cd": Command("cd [DIRECTORY]", "Set the working directory.", _cd, (0, 1), paths=True),
    "exit": Command("exit", "Exit the metadata shell.", _exit, (0, 0)),
    "find": Command("find [PATH...]", "Search for nodes in the directory hierarchy.", _find, (0, None), paths=True),
    "help": Command("help", "Display this help.", _help, (0, 0)),
    "history": Command("history [COUNT]", "Print the command history.", _history, (0, 1)),
    "ls": Command("ls [PATH...]", "List metadata nodes.", _ls, (0, None), paths=True),
    "man": Command("man COMMAND", "Show the help text of one command.", _man, (1, 1)),
    "pwd": Command("pwd", "Print the working directory.", _pwd, (0, 0)),
    "tree": Command("tree [PATH...]", "Show the contents of metadata nodes as a tree.", _tree, (0, None), paths=True),
}
"""Commands by name, in the order of ``help``."""


def _choices() -> str:
    return ", ".join(f"'{name}'" for name in COMMANDS)

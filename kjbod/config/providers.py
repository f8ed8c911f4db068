"""Resolve variables in a ``server.properties`` with ``config.providers``, from files and the environment (KIP-297,
KIP-421, KIP-887, KIP-993).

A variable is ``${provider:path:key}`` or ``${provider:key}``. Sources: ``ConfigTransformer``, ``AbstractConfig``,
``FileConfigProvider``, ``DirectoryConfigProvider``, ``EnvVarConfigProvider`` and ``AllowedPaths`` of 4.3.1. Where a
provider is not listed, or does not have the key, Kafka leaves the variable as text, and a login fails later. Here that
is an error at once.
"""

import functools
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from kjbod.config.properties import parse_properties
from kjbod.files import read_file

FILE_BYTES_MAX = 1024 * 1024
_PACKAGE = "org.apache.kafka.common.config.provider."
_FILE = f"{_PACKAGE}FileConfigProvider"
_DIRECTORY = f"{_PACKAGE}DirectoryConfigProvider"
_ENVIRONMENT = f"{_PACKAGE}EnvVarConfigProvider"
_VARIABLE = re.compile(r"\$\{(?P<alias>[^}]*?):(?:(?P<path>[^}]*?):)?(?P<key>[^}]*?)\}")
_ESCAPED_OR_WIDE = re.compile(r"\\(.)|[^\x00-\x7f]", re.DOTALL)
_DOUBTFUL = re.compile("[\"'=;$]")


class NoValueError(ValueError):
    """A variable has no value here.

    Attributes:
        variable: the variable as text; parts that may belong to a secret are hidden.
        reason: the reason, without the variable.
    """

    def __init__(self, variable: str, reason: str) -> None:
        super().__init__(f"{variable}: {reason}")
        self.variable = variable
        self.reason = reason


class Variables:
    """Variables of a configuration. Each file is read once, when a variable needs it.

    Args:
        properties: the configuration with ``config.providers`` and the providers' keys.
        environment: environment of the process, for ``EnvVarConfigProvider``.
    """

    def __init__(self, properties: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._properties = properties
        self._environment = environment
        self._properties_of = functools.cache(_read_properties)
        self._text_of = functools.cache(_read_text)

    def resolve(self, text: str) -> str:
        """Return ``text`` with its variables replaced. Values are not searched for variables. Without configured
        providers nothing is a variable.

        Raises:
            NoValueError: a variable has no value; with the reason.
        """
        if "config.providers" not in self._properties:
            return text
        return _VARIABLE.sub(self._value, text)

    def _value(self, match: re.Match[str]) -> str:
        alias, path, key = match["alias"], match["path"] or "", match["key"]
        variable = f"${{{_shown(alias)}:...}}"  # of an unknown provider: it may be a password that looks like this
        try:
            provider = self._provider(alias)
            variable = f"${{{':'.join(_shown(part) for part in match.groups() if part is not None)}}}"
            if provider == _ENVIRONMENT:
                return self._of_environment(alias, path, key)
            if not path:
                raise ValueError(f"expected a path: ${{{alias}:path:key}}")
            path = self._allowed(alias, path)
            return self._of_file(path, key) if provider == _FILE else self._of_directory(path, key)
        except ValueError as error:
            raise NoValueError(variable, str(error)) from None

    def _provider(self, alias: str) -> str:
        names = _split(self._properties.get("config.providers", ""))
        if alias not in names:
            hint = "; Kafka takes no spaces between its names" if alias in map(str.strip, names) else ""
            raise ValueError(f"config.providers does not list {_shown(alias)}{hint}")
        name = f"config.providers.{alias}.class"
        provider = self._properties.get(name)
        if provider not in (_FILE, _DIRECTORY, _ENVIRONMENT):
            found = f"{name} is missing" if provider is None else f"{name}={provider}"
            expected = "FileConfigProvider, DirectoryConfigProvider or EnvVarConfigProvider"
            raise ValueError(f"{found}: expected {expected} of {_PACKAGE[:-1]}")
        return provider

    def _allowed(self, alias: str, path: str) -> str:
        """Return ``path`` as it will be opened: normalized if allowed paths are configured."""
        name = f"config.providers.{alias}.param.allowed.paths"
        listed = self._properties.get(name)
        if not listed:
            return path
        roots = [_normal(root) for root in _split(listed)]
        for root in roots:
            if not root.is_absolute() or not os.access(root, os.F_OK):
                raise ValueError(f"{name}: expected absolute paths that exist, not {root}")
        normal = _normal(path)
        if not any(normal.is_relative_to(root) for root in roots):
            raise ValueError(f"{name} does not allow this path")
        return str(normal)

    def _of_file(self, path: str, key: str) -> str:
        value = self._properties_of(path).get(key)
        if value is None:
            raise ValueError("the file has no such key")
        return value

    def _of_directory(self, path: str, key: str) -> str:
        if "/" in key or key in ("", ".", ".."):
            raise ValueError("expected the name of a file in the directory as the key")
        return self._text_of(f"{path}/{key}")

    def _of_environment(self, alias: str, path: str, key: str) -> str:
        if path:
            raise ValueError(f"expected no path: ${{{alias}:key}}")
        name = f"config.providers.{alias}.param.allowlist.pattern"
        pattern = self._properties.get(name)
        if pattern is not None and not _compiled(name, pattern).fullmatch(key):
            raise ValueError(f"{name} does not allow this variable")
        if key not in self._environment:
            raise ValueError("the environment has no such variable")
        return self._environment[key]


def _split(text: str) -> list[str]:
    """Return entries like Java's ``split``: not stripped, and without empty ones at the end."""
    kept = text.rstrip(",")
    return kept.split(",") if kept else []


def _shown(part: str) -> str:
    """Return a part of a variable for messages; hidden if a brace is missing, because it may belong to a secret."""
    return part if part.isprintable() and not _DOUBTFUL.search(part) else "..."


def _normal(path: str) -> PurePosixPath:
    """Return ``path`` without ``.`` and ``..``, by its text alone (``Path.normalize``)."""
    return PurePosixPath(os.path.normpath(re.sub("/+", "/", path)))


def _compiled(name: str, pattern: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # for a set in a set, which Java reads and Python does not
            return re.compile(pattern, re.ASCII)
    except (re.error, FutureWarning):
        raise ValueError(f"{name}: expected a regular expression that Java and Python both know") from None


def _read(path: str) -> bytes:
    try:
        return read_file(Path(path), bytes_max=FILE_BYTES_MAX)
    except OSError as error:
        raise ValueError(f"cannot read the file: {error.strerror}") from None
    except ValueError:
        raise ValueError("cannot read the file: no file can have this name") from None


def _read_text(path: str) -> str:
    try:
        return _read(path).decode()
    except UnicodeDecodeError:
        raise ValueError("cannot read the file: expected UTF-8") from None


def _read_properties(path: str) -> Mapping[str, str]:
    """Return keys and values of a file for ``FileConfigProvider``, in UTF-8, unlike ``server.properties``."""
    text = _ESCAPED_OR_WIDE.sub(_as_ascii, _read_text(path))
    try:
        return parse_properties(text.encode("ascii"))
    except ValueError:  # the error's text has a part of the value
        raise ValueError("cannot read the file: expected four hexadecimal digits after \\u") from None


def _as_ascii(match: re.Match[str]) -> str:
    """Return an escape, or a non-ASCII character, in ASCII. A backslash before such a character has no meaning."""
    character = match[1] or match[0]
    if character.isascii():
        return match[0]
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))

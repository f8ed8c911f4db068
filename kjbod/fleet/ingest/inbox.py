"""An inbox: report files below a URI, each known by the URI that Spark has for it."""

import re
import string
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from kjbod.fleet.lake.arrow_files import ArrowFiles
from kjbod.fleet.lake.files import HadoopFiles, _refused, java_reason
from kjbod.fleet.publishing import no_scheme
from kjbod.fleet.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Inbox(HadoopFiles):
    """The files of an inbox, by Hadoop's classes."""

    def is_directory(self) -> bool:
        """Whether the root is a directory."""
        with _refused(self.root):
            return bool(self._fs.exists(self._root) and self._fs.getFileStatus(self._root).isDirectory())

    def probe(self, uri: str) -> tuple[int | None, str | None]:
        """Size of a file, by its whole URI in the form that Spark has for it, and why it cannot be opened."""
        from py4j.protocol import Py4JError

        size = None
        try:
            path = self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI.create(uri))
            size = int(self._fs.getFileStatus(path).getLen())
            self._fs.open(path).close()
        except Py4JError as error:
            return size, java_reason(error)
        return size, None

    def delete_uri(self, uri: str) -> bool:
        """Delete one file below the root, by its URI as Spark has it; False when it was refused."""
        from py4j.protocol import Py4JError

        if not uri.startswith(f"{self.uri()}/"):
            return False
        try:
            return bool(self._fs.delete(self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI.create(uri)), False))
        except Py4JError:
            return False

    def is_by_link(self, uri: str) -> bool:
        """Whether a file below the root, by its URI, is a symbolic link or below one."""
        path = str(self._jvm.java.net.URI.create(uri).getPath())
        inner = path.removeprefix(str(self._root.toUri().getPath())).strip("/").split("/")
        return any(self.is_link("/".join(inner[:count])) for count in range(1, len(inner) + 1))

    def paths_of(self, uris: Iterable[str]) -> Sequence[str]:
        """Paths of such URIs, for Spark's readers, which take them for patterns."""
        jvm = self._jvm
        return [
            _no_pattern(str(jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI.create(uri)).toString())) for uri in uris
        ]

    def uri(self) -> str:
        """The root as a URI, percent-encoded as Spark does it, ``file:/x`` for ``file:///x``."""
        return re.sub("^file:/+", "file:/", str(self._root.toUri().toString())).rstrip("/")


def _no_pattern(path: str) -> str:
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)


class ConnectInbox(ArrowFiles):
    """An inbox where there is no Java, through Spark Connect: its URI has to mean the same here as on the server."""

    def is_directory(self) -> bool:
        """Whether the root is a directory."""
        return self.kind("") == "Directory"

    def probe(self, uri: str) -> tuple[int | None, str | None]:
        """As :meth:`Inbox.probe`."""
        return self.opened(self._below(uri))

    def paths_of(self, uris: Iterable[str]) -> Sequence[str]:
        """As :meth:`Inbox.paths_of`."""
        return [_no_pattern(f"{self.root}/{self._below(uri)}") for uri in uris]

    def _below(self, uri: str) -> str:
        """Path below the root of a file, of its whole URI."""
        return unquote(uri.removeprefix(f"{self.uri()}/"))

    def uri(self) -> str:
        """As :meth:`Inbox.uri`."""
        return "".join(c if c in _AS_THEY_ARE or ord(c) > 127 else f"%{ord(c):02X}" for c in self.root)


_AS_THEY_ARE = frozenset(string.ascii_letters + string.digits + "-_.!~*'(),;:$&+=@/")
"""What Java's URI leaves in a path as it is, with all that is not ASCII."""


def open_inbox(spark: "SparkSession", uri: str) -> Inbox | ConnectInbox:
    """The inbox at ``uri``.

    Raises:
        FleetError: no such file system.
    """
    where = no_scheme(uri)
    return ConnectInbox(where) if is_connect(spark) else Inbox(spark, where)

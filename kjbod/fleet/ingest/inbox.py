"""An inbox: report files below a URI, each known by the URI that Spark has for it."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake.files import HadoopFiles, _refused, java_reason
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

    def paths_of(self, uris: Iterable[str]) -> Sequence[str]:
        """Paths of such URIs, for Spark's readers, which take them for patterns."""
        jvm = self._jvm
        plain = (str(jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI.create(uri)).toString()) for uri in uris)
        return [re.sub(r"([{}\[\]*?\\])", r"\\\1", path) for path in plain]

    def uri(self) -> str:
        """The root as a URI, percent-encoded as Spark does it, ``file:/x`` for ``file:///x``."""
        return re.sub("^file:/+", "file:/", str(self._root.toUri().toString())).rstrip("/")


def open_inbox(spark: "SparkSession", uri: str) -> Inbox:
    """The inbox at ``uri``.

    Raises:
        FleetError: a session of Spark Connect, which has no way to a file but by reading it; or no such file system.
    """
    if is_connect(spark):
        raise FleetError(f"{uri}: reports are not taken in through Spark Connect: use --master, or spark-submit")
    return Inbox(spark, uri)

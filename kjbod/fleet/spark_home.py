"""The Spark that will be started: its jars and its version, without starting it or importing PySpark.

Java opens every jar of a class path for the first class that is not there, and asks each of them for every other one.
The compiler of Spark's generated code asks for thousands: with a third of Spark's 280 jars left out, a session is there
a second earlier, and a report of a month takes 58 s of processor time for 62 s. Left out is what belongs to cluster
managers, MLlib and Hive's servers, which the fleet's jobs never use on this machine; nothing where anybody has
configured Spark. For each class Java asks the jars in their order until one has it; by name, a hundred and sixty come
before Spark's own, which have most of the classes: they are the first here.
"""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_LEFT_OUT = re.compile(
    r"(kubernetes|volcano|vertx|jjwt|zjsonpatch|spark-kubernetes_|spark-yarn_"
    r"|spark-mllib|spark-graphx|breeze|spire|algebra_|cats-|lapack|arpack|blas|JTransforms|JLargeArrays"
    r"|spark-hive-thriftserver_|hive-beeline|hive-cli|hive-jdbc|datanucleus|derby|jdo-api|javax\.jdo|HikariCP|jline"
    r"|javolution"
    r"|netty-tcnative-boringssl|netty-transport-native-kqueue)"
)
"""Names of jars, from their beginning."""
_FIRST = re.compile(r"(scala-library|spark-(catalyst|sql|core|common-utils|unsafe)|hadoop-client|parquet-)")
"""The same, of those that have most of the classes that are loaded."""


def needed_jars(jars: Sequence[Path], environ: Mapping[str, str]) -> list[Path]:
    """Jars for a driver that is started here and needs no cluster manager's, in the order of its class path; all where
    Spark is configured."""
    if not jars or environ.get("SPARK_CONF_DIR") or (jars[0].parents[1] / "conf/spark-defaults.conf").exists():
        return list(jars)
    needed = [jar for jar in jars if not _LEFT_OUT.match(jar.name)]
    return sorted(needed, key=lambda jar: not _FIRST.match(jar.name))


def spark_jars(environ: Mapping[str, str]) -> list[Path]:
    """Jars of the Spark at SPARK_HOME, or of PySpark's own, by name; none where there is no Spark."""
    home = environ.get("SPARK_HOME")
    if not home:
        try:
            found = importlib.util.find_spec("pyspark")
        except (ImportError, ValueError):
            found = None
        if found is None or found.origin is None:
            return []
        home = str(Path(found.origin).parent)
    try:
        return sorted(Path(home).absolute().joinpath("jars").glob("*.jar"))
    except OSError:
        return []


def spark_version(jars: Sequence[Path]) -> str | None:
    """Version of Spark that jars are of, by the name of its core: ``4.3.0``."""
    for jar in jars:
        if found := re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", jar.name):
            return found[1]
    return None

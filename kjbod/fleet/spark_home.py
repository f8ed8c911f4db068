"""The Spark that will be started: its jars and its version, without starting it or importing PySpark."""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path


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

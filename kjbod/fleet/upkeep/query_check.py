"""Queries that may be run: those that look at the tables of the lake, and at nothing else.

Spark's SQL can do more than ask. It runs scripts (``TRANSFORM``), calls any method of Java (``reflect``), and reads any
file that the process may read (by ``text`` and a path between backquotes). All of that is in the plan that Spark's own
parser makes, before anything is looked up or run; words alone would not tell a script from a text that mentions one.
"""

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Any

from kjbod.fleet.fleet_error import FleetError
from kjbod.output import safe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CALLS_JAVA = frozenset({"reflect", "java_method", "try_reflect"})
TABLE_FUNCTIONS = frozenset({"range", "inline", "stack", "json_tuple", "explode", "posexplode", "variant_explode"})
"""Those that make rows of their arguments alone; also with ``_outer`` at their end."""


def check_plan(spark: "SparkSession", plan: Any, tables: Container[str]) -> None:
    """Refuse a parsed query that looks at something else than ``tables`` and what it makes of them.

    Raises:
        FleetError: it does.
    """
    nodes = list(_nodes(spark, plan))
    ctes = {
        str(relation.productElement(0)).lower()
        for kind, node in nodes
        if kind == "UnresolvedWith"
        for relation in _elements(node.productElement(1))
    }
    for kind, node in nodes:
        if kind == "UnresolvedRelation":
            _check_relation([str(part) for part in _elements(node.productElement(0))], tables, ctes)
        elif reason := _refused(kind, node):
            raise FleetError(f"only queries over the tables of the lake: not with {safe(reason)}")


def _check_relation(name: list[str], tables: Container[str], ctes: Container[str]) -> None:
    if len(name) > 1 or (name[0].lower() not in ctes and name[0].lower() not in tables):
        said = ".".join(f"`{part}`" for part in name)
        raise FleetError(f"{safe(said)} is no table of the lake: kjbod fleet query --tables lists them")


def _refused(kind: str, node: Any) -> str | None:
    """Part of a query that may not be; None for all others."""
    if kind.endswith("ScriptTransformation"):
        return "TRANSFORM, MAP or REDUCE, which run a program"
    if kind.endswith("WithUnresolvedIdentifier"):  # what it names is known when it runs, and not before
        return "IDENTIFIER(...) of anything but a text"
    if kind in ("UnresolvedFunction", "UnresolvedTableValuedFunction"):
        name = str(node.productElement(0).last()).lower()
    elif kind == "FunctionIdentifier":  # of a LATERAL VIEW
        name = str(node.productElement(0)).lower()
    else:
        return None
    if name in CALLS_JAVA:
        return f"{name}(...), which calls Java"
    if kind == "UnresolvedTableValuedFunction" and name.removesuffix("_outer") not in TABLE_FUNCTIONS:
        return f"{name}(...) as a table"
    return None


def _nodes(spark: "SparkSession", plan: Any) -> Iterator[tuple[str, Any]]:
    """All objects that a plan is made of, wherever they are in it, with the names of their classes. Spark's own walks
    pass over some, such as the queries in a WINDOW clause."""
    from py4j.java_gateway import JavaObject, is_instance_of

    gateway: Any = spark.sparkContext._gateway
    left = [plan]
    while left:
        node = left.pop()
        if not isinstance(node, JavaObject):
            continue
        kind = str(node.getClass().getName()).rpartition(".")[2]
        if kind == "Literal":
            continue
        yield kind, node
        if is_instance_of(gateway, node, "scala.collection.Iterable"):
            left += _elements(node)
        elif is_instance_of(gateway, node, "scala.Product"):
            left += _taken(node.productIterator())


def _elements(sequence: Any) -> list[Any]:
    return _taken(sequence.iterator())


def _taken(iterator: Any) -> list[Any]:
    found = []
    while iterator.hasNext():
        found.append(iterator.next())
    return found

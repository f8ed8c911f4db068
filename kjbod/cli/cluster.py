"""The commands ``kjbod cluster``: any Kafka cluster, seen through its brokers and controllers. No agent is needed.

``log-dirs`` shows more than ``kafka-log-dirs``: ids, leaders, and the effect of a failure of each directory.
``unregister`` and ``cluster-id`` are those of ``kafka-cluster`` 4.3.1, but ``unregister`` checks the broker first.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

import click

from kjbod.cli.addresses import addresses
from kjbod.cli.cluster_text import as_document, notes, summary, table_of
from kjbod.cli.command_config import command_config
from kjbod.cli.metadata import no_log_lines
from kjbod.cli.storage import StorageCommand
from kjbod.cluster import asking
from kjbod.cluster.asking import CONTROLLERS, Members
from kjbod.cluster.log_dirs import BrokerDirs, Known, as_far_as_seen, is_another_cluster, withdraw_ids
from kjbod.cluster.partitions import Share, partitions_of, shares_of, trouble_of, unplaced_in
from kjbod.cluster.unregistering import Standing, objections, refusal
from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.metadata.fetching import Address
from kjbod.metadata.image import MetadataImage
from kjbod.metadata.live import LiveImage
from kjbod.output import Printer, complain, once, plural, safe
from kjbod.printable import printable
from kjbod.security.channel import Security
from kjbod.security.opening import client_security
from kjbod.wire.client import Connection
from kjbod.wire.messages import UnregisterBrokerResponse

PROBLEM_CHARS_MAX: Final = 1_000
"""Maximum characters of a message about controllers."""


@click.group()
def cluster() -> None:
    """Any Kafka cluster: its log directories, its id, its brokers that are gone."""


def _servers(required: bool, *, may_be_controllers: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``--bootstrap-server``, optionally ``required``, and ``--bootstrap-controller`` unless excluded."""

    def options(command: Callable[..., Any]) -> Callable[..., Any]:
        server = click.option(
            "--bootstrap-server",
            "brokers",
            metavar="HOST:PORT[,...]",
            callback=addresses,
            required=required,
            help="Brokers of the cluster.",
        )
        controller = click.option(
            "--bootstrap-controller",
            "controllers",
            metavar="HOST:PORT[,...]",
            callback=addresses,
            help="Controllers of the cluster.",
        )
        configured = command_config(command)
        return server(controller(configured) if may_be_controllers else configured)

    return options


def _either(brokers: Sequence[Address] | None, controllers: Sequence[Address] | None) -> None:
    if (brokers is None) == (controllers is None):
        raise click.UsageError("give either --bootstrap-server or --bootstrap-controller")


# ---------------------------------------------------------------- log-dirs


def _ids(ctx: click.Context, param: click.Parameter, text: str | None) -> frozenset[int] | None:
    """Parse ids of brokers.

    Raises:
        click.BadParameter: an id is no number.
    """
    try:
        return None if text is None else frozenset(map(int, text.split(",")))
    except ValueError:
        raise click.BadParameter(f"not ids of brokers, as 1,2: {safe(text)}") from None


def _names(ctx: click.Context, param: click.Parameter, text: str | None) -> frozenset[str] | None:
    """Parse names of topics.

    Raises:
        click.BadParameter: a name is empty.
    """
    found = None if text is None else frozenset(name.strip() for name in text.split(","))
    if found is not None and "" in found:
        raise click.BadParameter(f"not names of topics, as a,b: {safe(text)}")
    return found


@cluster.command("log-dirs")
@_servers(required=True)
@click.option("--broker-list", "wanted", metavar="ID[,...]", callback=_ids, help="Only these brokers.")
@click.option("--topic-list", "topics", metavar="TOPIC[,...]", callback=_names, help="Count these topics alone.")
@click.option("--json", "as_json", is_flag=True, help="JSON, for machines.")
def log_dirs(
    brokers: Sequence[Address],
    controllers: Sequence[Address] | None,
    client_path: Path | None,
    wanted: frozenset[int] | None,
    topics: frozenset[str] | None,
    as_json: bool,
) -> int:
    """Show every log directory of the cluster, and what a failure of it would move.

    Offline ones come first, then the fullest. MOVES: partitions that would get another leader. LEADERLESS: those that
    would have none, for the only copy in sync is there. UNDER MIN ISR: those that would fall under
    min.insync.replicas. With --bootstrap-controller it has the directory.id too. The exit code is 1 where a broker did
    not answer.
    """
    security, say = client_security(client_path), once(complain)  # the metadata is read twice, before and after
    image, problem = _image(controllers, security, say)
    with no_log_lines():
        members, known, found = asyncio.run(_survey(brokers, security, image, wanted, topics))
    if image is not None and known.image is None:
        problem = (
            "the metadata are those of another cluster: none of these brokers is registered there with its address"
        )
    elif image is not None:
        again, problem = _image(controllers, security, say)
        withdraw_ids(found, image, again)
    if problem is not None:
        complain(printable(problem, PROBLEM_CHARS_MAX))
    out = Printer()
    known = as_far_as_seen(found, known)
    if as_json:
        out.json(as_document(members.cluster_id, known, found))
    else:
        out(*table_of(found, ids=known.image is not None), "", summary(found, known))
        for note in notes(found, known, asked=controllers is not None):
            complain(note)
    return EXIT_FAILURE if problem or any(broker.error for broker in found) else 0


def _image(
    controllers: Sequence[Address] | None, security: Security, say: Callable[[str], None]
) -> tuple[MetadataImage | None, str | None]:
    """Return the metadata if controllers were given; else, or on failure, the reason why there is none."""
    if controllers is None:
        return None, None
    try:
        asyncio.run(asking.require_controller(controllers, security))
        with no_log_lines(), LiveImage(controllers, say, security) as live:
            image: MetadataImage = live.read(lambda loaded: loaded.image)
            return image, None
    except KjbodError as error:
        return None, "; ".join(str(error).splitlines())


async def _survey(
    servers: Sequence[Address],
    security: Security,
    image: MetadataImage | None,
    wanted: Collection[int] | None,
    topics: Collection[str] | None,
) -> tuple[Members, Known, list[BrokerDirs]]:
    async with asking.first(servers, security) as (connection, members):
        missing = sorted(set(wanted or ()) - {node.id for node in members.nodes})
        if missing:
            there = ", ".join(str(node.id) for node in members.nodes) or "none"
            raise KjbodError(f"no broker {', '.join(map(str, missing))} in this cluster: there are {there}")
        if image is not None and is_another_cluster(image, members.nodes):
            image = None
        known = await _known(connection, members, image, topics)
    nodes = [node for node in members.nodes if wanted is None or node.id in wanted]
    return members, known, await asking.log_dirs(nodes, security, known)


async def _known(
    connection: Connection, members: Members, image: MetadataImage | None, topics: Collection[str] | None
) -> Known:
    """Return partitions and related facts from the cluster.

    Raises:
        KjbodError: no answer, or an unknown topic.
    """
    if image is None:
        partitions = await asking.partitions(connection, topics)
    else:
        partitions = partitions_of(image, topics)
        unknown = sorted(set(topics or ()) - partitions.keys())
        if unknown:
            raise KjbodError(f"no topic {', '.join(map(safe, unknown))} in this cluster: see --topic-list")
    min_isrs, deleted = await asking.min_isrs(connection, partitions)
    partitions = {topic: numbered for topic, numbered in partitions.items() if topic not in deleted}
    shares = shares_of(partitions)
    registered = {node.id for node in members.nodes} if image is None else image.brokers.keys()
    return Known(
        partitions=partitions,
        min_isrs=min_isrs,
        shares=shares,
        trouble=trouble_of(partitions, min_isrs),
        strangers={broker: share for broker, share in shares.items() if broker not in registered},
        whole=image is not None or topics is not None or await asking.leaves_nothing_out(connection),
        image=image,
        unplaced={} if image is None else unplaced_in(image, topics),
        partial=topics is not None,
    )


# ---------------------------------------------------------------- health


@cluster.command()
@_servers(required=True, may_be_controllers=False)
@click.option(
    "--guards",
    "port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    help="Ask the guard on the host of each broker too: port of kjbod.metrics.listener.",
)
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option(
    "--interval", "interval_s", default=10.0, show_default=True, type=click.FloatRange(1), help="Seconds, with --watch."
)
@click.option("--json", "as_json", is_flag=True, help="JSON, for machines.")
def health(
    brokers: Sequence[Address],
    client_path: Path | None,
    port: int | None,
    watch: bool,
    interval_s: float,
    as_json: bool,
) -> int:
    """Show one verdict for the whole cluster, and what is wrong.

    A line for each problem, with a stable code: partitions without a leader, below min.insync.replicas, with one
    replica in sync; directories that are offline; brokers that are fenced or do not answer. With --guards also disks
    that have failed or are in trouble, hosts without a guard, and versions. Exit codes: 0 OK, 1 DEGRADED, 2 CRITICAL,
    3 UNKNOWN.
    """
    from kjbod.cli import cluster_health

    security = client_security(client_path)
    survey = cluster_health.survey_of(brokers, security, lambda at, members: _known(at, members, None, None))
    with no_log_lines():
        return cluster_health.show(survey, port, as_json=as_json, interval_s=interval_s if watch else None)


# ---------------------------------------------------------------- unregister


@cluster.command(cls=StorageCommand)
@_servers(required=False)
@click.option("--id", "-i", "broker_id", type=click.IntRange(0), required=True, help="The broker.")
@click.option("--force", is_flag=True, help="Even while it is alive.")
@click.option("--yes", is_flag=True, help="Even where its replicas are left without a broker.")
def unregister(
    brokers: Sequence[Address] | None,
    controllers: Sequence[Address] | None,
    client_path: Path | None,
    broker_id: int,
    force: bool,
    yes: bool,
) -> int:
    """Unregister a broker that is gone for good.

    One that is alive, or has replicas, is refused: see --force and --yes.
    """
    _either(brokers, controllers)
    security = client_security(client_path)
    kind = asking.BROKERS if controllers is None else CONTROLLERS

    async def look_and_leap() -> tuple[Standing, UnregisterBrokerResponse]:
        # Ask and tell the same server: another server of the list may belong to another cluster.
        async with asking.first(brokers or controllers or (), security, kind) as (connection, members):
            if kind == CONTROLLERS:
                standing = await _registered_at(connection, security, broker_id)
            else:
                standing = await _told_of(connection, members, broker_id)
            found = objections(broker_id, standing, force=force, stranded=yes)
            if found:
                raise KjbodError("\n".join(found))
            return standing, await asking.unregister(connection, broker_id, security)

    standing, answer = asyncio.run(look_and_leap())
    if answer.error_code:
        raise KjbodError(refusal(broker_id, answer.error_code, answer.error_message))
    Printer()(f"Broker {broker_id} is no longer registered.")
    if standing.share.replicas:
        least = "" if standing.whole else "at least "
        complain(f"{least}{plural(standing.share.replicas, 'replica')} of it stay in the metadata, without a broker")
    elif not standing.whole:
        complain("it is not known whether replicas of it stay in the metadata, without a broker")
    return 0


async def _registered_at(connection: Connection, security: Security, broker_id: int) -> Standing:
    """Return the standing of a broker according to this controller's metadata.

    Raises:
        KjbodError: the metadata cannot be read.
    """
    image, problem = await asyncio.to_thread(_image, [asking.address_of(connection)], security, complain)
    if image is None:
        why = printable(problem or "", PROBLEM_CHARS_MAX)
        raise KjbodError(f"what broker {broker_id} has is not known, so it is left as it is: {why}")
    registration = image.brokers.get(broker_id)
    return Standing(
        registered=registration is not None,
        fenced=registration is None or registration.fenced,
        share=shares_of(partitions_of(image)).get(broker_id, Share()),
        others=image.brokers.keys(),
        whole=True,
    )


async def _told_of(connection: Connection, members: Members, broker_id: int) -> Standing:
    """Return the standing of a broker according to another broker.

    Raises:
        KjbodError: no answer.
    """
    node = members.node(broker_id)
    # Old brokers do not show fenced brokers; the controller knows them.
    tells_fenced = all(each.fenced is not None for each in members.nodes)
    partitions = await asking.partitions(connection)
    return Standing(
        registered=node is not None or not tells_fenced,
        fenced=node is None or bool(node.fenced),
        share=shares_of(partitions).get(broker_id, Share()),
        others=[each.id for each in members.nodes],
        whole=await asking.leaves_nothing_out(connection),
    )


# ---------------------------------------------------------------- cluster-id


@cluster.command("cluster-id", cls=StorageCommand)
@_servers(required=False)
def cluster_id(
    brokers: Sequence[Address] | None, controllers: Sequence[Address] | None, client_path: Path | None
) -> int:
    """Print the id of the cluster."""
    _either(brokers, controllers)
    kind = asking.BROKERS if controllers is None else CONTROLLERS

    async def ask() -> str:
        async with asking.first(brokers or controllers or (), client_security(client_path), kind) as (_, members):
            return members.cluster_id

    Printer()(f"Cluster ID: {safe(asyncio.run(ask()))}")
    return 0

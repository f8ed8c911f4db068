"""``kjbod features``: show and change the finalized features of a running cluster, as ``kafka-features`` 4.4.0 does.

Sub-commands, flags, lines and exit codes are the original's. One addition: with ``--bootstrap-controller``, a downgrade
or disabling first lists the metadata that would be lost, also with ``--dry-run``. Kafka itself refuses every downgrade
of metadata.version that may lose metadata, with or without ``--unsafe``.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from kjbod.cli.addresses import addresses
from kjbod.cli.command_config import command_config
from kjbod.cli.metadata import no_log_lines
from kjbod.cli.storage import StorageCommand
from kjbod.clock import SystemClock
from kjbod.error_lines import report_usage
from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.metadata import versions
from kjbod.metadata.fetching import Address
from kjbod.metadata.live import LiveImage
from kjbod.metadata.losses import eligible_replicas, losses
from kjbod.metadata.reading import Loaded
from kjbod.output import Printer, complain, safe
from kjbod.security.channel import Security
from kjbod.security.opening import client_security
from kjbod.storage_tool import (
    StorageToolError,
    parse_feature_levels,
    parse_release,
    print_feature_dependencies,
    print_version_mapping,
)
from kjbod.wire.admin_messages import (
    UpdateFeaturesRequest,
    UpdateFeaturesRequestFeatureUpdateKey,
    UpdateFeaturesResponse,
)
from kjbod.wire.client import Connection
from kjbod.wire.connection import Features
from kjbod.wire.error_codes import name_of

REQUEST_TIMEOUT_MS = 60_000
"""``default.api.timeout.ms`` of Kafka's admin client."""
CLIENT_ID = "kjbod-features"
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
_PAST = {"upgrade": "upgraded", "downgrade": "downgraded"}


def _where(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--bootstrap-server`` and ``--bootstrap-controller``."""
    server = click.option(
        "--bootstrap-server", "brokers", metavar="HOST:PORT[,...]", callback=addresses, help="Brokers of the cluster."
    )
    controller = click.option(
        "--bootstrap-controller",
        "controllers",
        metavar="HOST:PORT[,...]",
        callback=addresses,
        help="Controllers of the cluster.",
    )
    return server(controller(command_config(command)))


def _servers(brokers: Sequence[Address] | None, controllers: Sequence[Address] | None) -> Sequence[Address]:
    if (brokers is None) == (controllers is None):
        raise click.UsageError("give either --bootstrap-server or --bootstrap-controller")
    return brokers or controllers or ()


def _on_one(servers: Sequence[Address], security: Security, ask: Callable[[Connection], Any]) -> Any:
    """Return the result of ``ask`` on the first reachable server.

    Raises:
        KjbodError: no server is reachable, with a line for each, or the server does not answer.
    """

    async def run() -> Any:
        troubles: list[str] = []
        for host, port in servers:
            try:
                connection = await Connection.open(
                    host, port, client_id=CLIENT_ID, clock=SystemClock(), security=security
                )
            except KjbodError as error:
                troubles.append(str(error))
                continue
            async with connection:
                return await ask(connection)
        raise KjbodError("\n".join(troubles) or "no server was named")

    with no_log_lines():
        return asyncio.run(run())


class _Features(click.Group):
    """Command group with the conventions of ``kafka-features``: server options may come before the sub-command, and
    wrong arguments have exit code 1."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = next((index for index, argument in enumerate(args) if argument in self.commands), None)
        if at is not None:
            args = [args[at], *args[:at], *args[at + 1 :]]
        try:
            asks_for_help = not set(ctx.help_option_names).isdisjoint(args)
            if at is None and not asks_for_help and (not args or args[0].startswith("-")):
                raise click.UsageError(f"give one of {', '.join(self.commands)}", ctx)
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            report_usage(error)
            ctx.exit(EXIT_FAILURE)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            report_usage(error)
            return EXIT_FAILURE


@click.group(cls=_Features)
def features() -> None:
    """The finalized features of a running cluster: show, upgrade, downgrade."""


@features.command(cls=StorageCommand)
@_where
def describe(brokers: Sequence[Address] | None, controllers: Sequence[Address] | None, client_path: Path | None) -> int:
    """Show what is supported and what is finalized."""

    async def ask(connection: Connection) -> Features:
        return connection.features

    told: Features = _on_one(_servers(brokers, controllers), client_security(client_path), ask)
    epoch = str(told.finalized_epoch) if told.finalized_epoch >= 0 else "-"
    out = Printer()
    for name, (low, high) in sorted(told.supported.items()):
        level = told.finalized.get(name, 0)
        out(
            f"Feature: {safe(name):<40}  SupportedMinVersion: {_level_name(name, low):<15}  "
            f"SupportedMaxVersion: {_level_name(name, high):<15}  "
            f"FinalizedVersionLevel: {_level_name(name, level):<15}  Epoch: {epoch}"
        )
    return 0


@features.command(cls=StorageCommand)
@_where
@click.option("--metadata", help="Deprecated: the release whose metadata.version to finalize, as 3.9-IV0.")
@click.option("--release-version", help="The release to whose features all are set, as 3.9-IV0.")
@click.option("--feature", "wanted", multiple=True, metavar="NAME=LEVEL", help="A feature and its level.")
@click.option("--dry-run", is_flag=True, help="Have it checked, change nothing.")
def upgrade(
    brokers: Sequence[Address] | None,
    controllers: Sequence[Address] | None,
    client_path: Path | None,
    metadata: str | None,
    release_version: str | None,
    wanted: Sequence[str],
    dry_run: bool,
) -> int:
    """Finalize higher levels."""
    servers, security = _servers(brokers, controllers), client_security(client_path)
    levels = _levels(metadata, release_version, wanted)
    if release_version is not None:
        levels = {name: level for name, level in levels.items() if level}
    return _update("upgrade", servers, security, levels, _UPGRADE, dry_run)


@features.command(cls=StorageCommand)
@_where
@click.option("--metadata", help="Deprecated: the release whose metadata.version to finalize, as 3.7-IV2.")
@click.option("--release-version", help="The release to whose features all are set, as 3.7-IV2.")
@click.option("--feature", "wanted", multiple=True, metavar="NAME=LEVEL", help="A feature and its level.")
@click.option("--unsafe", is_flag=True, help="Even if it destroys metadata. No Kafka to date does that.")
@click.option("--dry-run", is_flag=True, help="Have it checked, change nothing.")
def downgrade(
    brokers: Sequence[Address] | None,
    controllers: Sequence[Address] | None,
    client_path: Path | None,
    metadata: str | None,
    release_version: str | None,
    wanted: Sequence[str],
    unsafe: bool,
    dry_run: bool,
) -> int:
    """Finalize lower levels. What they cannot hold is named first."""
    servers, security = _servers(brokers, controllers), client_security(client_path)
    levels = _levels(metadata, release_version, wanted)
    _say_losses(controllers, security, levels)
    return _update("downgrade", servers, security, levels, _UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE, dry_run)


@features.command(cls=StorageCommand)
@_where
@click.option("--feature", "wanted", multiple=True, metavar="NAME", help="A feature.")
@click.option("--unsafe", is_flag=True, help="Even if it destroys metadata.")
@click.option("--dry-run", is_flag=True, help="Have it checked, change nothing.")
def disable(
    brokers: Sequence[Address] | None,
    controllers: Sequence[Address] | None,
    client_path: Path | None,
    wanted: Sequence[str],
    unsafe: bool,
    dry_run: bool,
) -> int:
    """Set features to level 0. What goes with them is named first."""
    servers, security = _servers(brokers, controllers), client_security(client_path)
    levels: dict[str, int] = {}
    for name in wanted:
        _put_once(levels, name, 0)
    _say_losses(controllers, security, levels)
    return _update("disable", servers, security, levels, _UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE, dry_run)


@features.command("version-mapping", cls=StorageCommand)
@_where
@click.option("--release-version", help="The release; default: the newest.")
def version_mapping(release_version: str | None, **_: object) -> int:
    """Show the features that a release stands for. No server is asked."""
    print_version_mapping(release_version, Printer())
    return 0


@features.command("feature-dependencies", cls=StorageCommand)
@_where
@click.option("--feature", "wanted", multiple=True, required=True, metavar="NAME=LEVEL", help="A feature.")
def feature_dependencies(wanted: Sequence[str], **_: object) -> int:
    """Show what a feature needs. No server is asked."""
    print_feature_dependencies(wanted, Printer())
    return 0


# ---------------------------------------------------------------- levels


def _level_name(feature: str, level: int) -> str:
    if feature != versions.METADATA_VERSION:
        return str(level)
    return versions.RELEASES.get(level, f"UNKNOWN {level}")


def _levels(metadata: str | None, release: str | None, wanted: Sequence[str]) -> dict[str, int]:
    if release is not None:
        if metadata is not None or wanted:
            raise StorageToolError("Can not specify `release-version` with other feature flags.")
        return versions.version_mapping(parse_release(release))
    levels: dict[str, int] = {}
    if metadata is not None:
        Printer()(" `metadata` flag is deprecated and may be removed in a future release.")
        levels[versions.METADATA_VERSION] = parse_release(metadata)
    for text in wanted:
        for name, level in parse_feature_levels([text]).items():
            _put_once(levels, name, level)
    return levels


def _put_once(levels: dict[str, int], name: str, level: int) -> None:
    if name in levels:
        raise StorageToolError(f"Feature {name} was specified more than once.")
    levels[name] = level


# ---------------------------------------------------------------- losses


def _say_losses(controllers: Sequence[Address] | None, security: Security, levels: Mapping[str, int]) -> None:
    """Print the cluster's metadata that the lower levels cannot hold. Brokers do not show the metadata; there the
    controller's refusal has the reason."""
    if controllers is None:
        return

    def lost(loaded: Loaded) -> list[str]:
        image = loaded.image
        found = losses(image, levels.get(versions.METADATA_VERSION, image.metadata_version))
        if levels.get(versions.ELIGIBLE_LEADER_REPLICAS_VERSION) == 0 and (count := eligible_replicas(image)):
            text = f"the eligible leader replicas of {count:,} partition{'' if count == 1 else 's'}"
            found = [text, *(each for each in found if each != text)]
        return found

    with no_log_lines(), LiveImage(controllers, complain, security) as live:
        Printer()(*(f"would be lost: {text}" for text in live.read(lost)))


# ---------------------------------------------------------------- the update


def _update(
    op: str, servers: Sequence[Address], security: Security, levels: Mapping[str, int], upgrade_type: int, dry_run: bool
) -> int:
    if not levels:
        raise StorageToolError(f"You must specify at least one feature to {op}")
    request = UpdateFeaturesRequest(
        timeout_ms=REQUEST_TIMEOUT_MS,
        feature_updates=tuple(
            UpdateFeaturesRequestFeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type)
            for name, level in levels.items()
        ),
        validate_only=dry_run,
    )

    async def ask(connection: Connection) -> UpdateFeaturesResponse:
        return await connection.request(request, timeout_ms=REQUEST_TIMEOUT_MS)

    answer: UpdateFeaturesResponse = _on_one(servers, security, ask)
    refused = refusals(answer, levels)
    Printer()(*(safe(_outcome(op, name, level, refused.get(name), dry_run)) for name, level in sorted(levels.items())))
    if refused:
        complain(f"{len(refused)} out of {len(levels)} operation(s) failed.")
        return EXIT_FAILURE
    return 0


def refusals(answer: UpdateFeaturesResponse, wanted: Collection[str]) -> dict[str, str]:
    """Return the reason for each feature that the server refused.

    Kafka from 4.0 on refuses all features with one error. Kafka before 4.0 answers for each feature, and finalizes
    those that it accepts (``UpdateFeaturesResponse`` 0 and 1). There a feature without an answer counts as refused, as
    in Kafka's admin client.
    """
    if answer.error_code:
        return dict.fromkeys(wanted, answer.error_message or name_of(answer.error_code))
    refused = {
        each.feature: each.error_message or name_of(each.error_code) for each in answer.results if each.error_code
    }
    if answer.results:
        answered = {each.feature for each in answer.results}
        refused |= {name: "The server did not answer for this feature." for name in wanted if name not in answered}
    return {name: reason for name, reason in refused.items() if name in wanted}


def _outcome(op: str, name: str, level: int, reason: str | None, dry_run: bool) -> str:
    """Return the outcome of a change; ``reason`` is that of a refusal."""
    if reason is not None:
        what = f"disable {name}" if op == "disable" else f"{op} {name} to {level}"
        return f"{'Can not' if dry_run else 'Could not'} {what}. {reason}"
    done = "disabled" if op == "disable" else f"{_PAST[op]} to {level}"
    return f"{name} {'can be' if dry_run else 'was'} {done}."

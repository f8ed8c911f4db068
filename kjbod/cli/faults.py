"""``kjbod faults``: break a disk on purpose, see what is broken, mend it."""

import click


class _PassedOn(click.Command):
    """A command that leaves its arguments, ``--help`` included, to a parser of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return ctx.args


@click.command(cls=_PassedOn, add_help_option=False)
@click.pass_context
def faults(ctx: click.Context) -> int:
    """Break a disk on purpose, see what is broken, mend it."""
    from kjbod.faults import cli

    return cli.main(ctx.args)

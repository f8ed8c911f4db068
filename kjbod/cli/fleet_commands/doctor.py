"""``kjbod fleet doctor``: list missing requirements of this machine."""

import click


@click.command("doctor")
@click.option("--fix", is_flag=True, help="Make the archive of classes with which Spark starts in half the time.")
@click.option("--lake", metavar="URI", help="Also look whether this lake can be written.")
@click.option("--master", default="local[2]", show_default=True, help="Where Spark runs to look at the lake.")
def command(fix: bool, lake: str | None, master: str) -> int:
    """Say what this machine has for the fleet's commands, and what to do where something is missing."""
    from kjbod.fleet.command import Place, run_command
    from kjbod.fleet.doctor import doctor

    return run_command("doctor", lambda running: doctor(running, fix=fix, lake=lake), Place(master))

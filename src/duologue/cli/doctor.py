import click


@click.command()
def doctor() -> None:
    """Check this machine."""

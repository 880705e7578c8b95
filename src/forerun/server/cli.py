"""`forerun serve`.

Does not: hold a default of its own.
"""

import logging
from dataclasses import fields
from functools import partial
from typing import Any

import click

from forerun.cli import config_options, field_options, open_llm, split
from forerun.server.settings import Settings


@click.command("serve")
@click.argument("model", required=False)
@partial(field_options, kind=Settings)
@partial(config_options, without=("model",))
def command(model: str | None, **values: Any) -> None:  # noqa: ANN401
    """Serve MODEL (the bundled one without it) in the shapes of OpenAI's interface."""
    own = {f.name: values.pop(f.name) for f in fields(Settings)}
    settings = Settings(**{name: value for name, value in own.items() if value not in (None, ())})
    config, _ = split({**values, "model": model})  # None: what a file says, or the bundled one
    from forerun.server.run import serve

    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("forerun").setLevel(logging.INFO)
    llm = open_llm(config)
    if llm.engine.caveat:
        click.echo(f"forerun: {llm.engine.caveat}", err=True)
    serve(llm, settings, lambda url: click.echo(f"forerun: serving {llm.config.model} at {url}", err=True))

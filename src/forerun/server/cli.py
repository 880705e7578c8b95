"""`forerun serve`.

Does not: hold a default of its own.
"""

import logging
from dataclasses import fields
from functools import partial
from typing import Any

import click

from forerun.cli import config_options, field_options, open_llm, split
from forerun.config import Config
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
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("forerun").setLevel(logging.INFO)
    named = config.get("model", Config.model)

    def say(url: str) -> None:
        click.echo(f"forerun: serving {named} at {url}", err=True)

    if settings.replicas:
        from forerun.ray.serve import serve as serve_replicas

        serve_replicas(config, settings, say)
        return
    from forerun.server.app import create_app
    from forerun.server.run import serve

    llm = open_llm(config)
    if llm.engine.caveat:
        click.echo(f"forerun: {llm.engine.caveat}", err=True)
    serve(create_app(llm, settings), settings, say)

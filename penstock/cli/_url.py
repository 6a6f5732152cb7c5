"""Options for the URL of a server: the URL, or a reference to it that keeps a password off the command line."""

import os
from typing import Any, Final

import typer

from penstock.base.secrets import FILE_SUFFIX, NoSecret, resolve_reference, secret_in_file

URL_FORMS: Final = "A URL, @FILE that holds it, or env:NAME of a variable that does."


def resolve_url(ctx: typer.Context, param: typer.CallbackParam, value: str | None) -> str | None:
    """Return the URL that ``value`` is or refers to; for an option that reads REDIS, REDIS_FILE stands in for it."""
    variable = param.envvar if isinstance(param.envvar, str) else None
    source = ctx.get_parameter_source(str(param.name))
    by_option = source and source.name == "COMMANDLINE" and param.opts[0].startswith("--")
    given_by = param.opts[0] if by_option else None
    try:
        by_file = os.environ.get(f"{variable}{FILE_SUFFIX}") if variable else None
        if by_file and source and source.name in ("ENVIRONMENT", "DEFAULT"):
            if source.name == "ENVIRONMENT":
                raise typer.BadParameter(f"{variable} and {variable}{FILE_SUFFIX} are both set: unset one of them")
            given_by = f"{variable}{FILE_SUFFIX}"
            return secret_in_file(by_file)
        return None if value is None else resolve_reference(value, os.environ)
    except NoSecret as error:
        raise typer.BadParameter(str(error), param_hint=given_by) from None


def redis_option(help: str) -> Any:
    """Return an option ``--redis URL`` that reads REDIS, too."""
    return typer.Option("--redis", envvar="REDIS", metavar="URL", callback=resolve_url, help=help)

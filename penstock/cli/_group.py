"""The group of all commands, which rewords errors of options."""

from typing import Any

import typer
from typer.core import TyperGroup

from penstock.cli._text import shown
from penstock.validation import describe_error


class Group(TyperGroup):
    """Commands whose errors of options say what was expected and what was found."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            details: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
            if details:
                found = f", found {shown(str(details[0]['input']))[:60]!r}"
                error.message = f"{describe_error(details[0])}{found}"
            raise

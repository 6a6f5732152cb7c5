"""The group of all commands, which rewords errors of options."""

import re
from typing import Any, Final

import typer
from typer.core import TyperGroup

from penstock.base.validation import describe_error
from penstock.cli._text import shown

CHOICES: Final = re.compile(r".* is not one of (.*)\.", re.DOTALL)


class Group(TyperGroup):
    """Commands whose errors of options say what was expected and what was found."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            details: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
            if details:
                found = f", found {shown(str(details[0]['input']))[:60]!r}"
                expected = CHOICES.sub(r"expected \1", describe_error(details[0]))
                error.message = f"{expected}{found}"
            raise

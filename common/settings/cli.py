"""The command line of a service: ``python -m services.mpush [--props FILE] [--check [--json]]``."""

import json
import os
import signal
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from common.settings.base import ServiceSettings
from common.settings.fields import kind_of
from common.settings.formats import Unreadable
from common.settings.props import place_of
from penstock import __version__
from penstock.base.errors import SettingsError

if TYPE_CHECKING:
    from common.settings.redis_hash import Hash

RETRY_SECONDS: Final = 1.0
"""Seconds between two attempts to reach a server that is away."""
S = TypeVar("S", bound=ServiceSettings)


def parse(settings_class: type[S], argv: Sequence[str], environ: Mapping[str, str], *, waits: bool = False) -> S:
    """Return the settings of a service, or exit: with 0 after ``--check`` and ``--help``, with 2 after problems.

    All problems go to standard error. With ``waits``, wait for the server of a hash of settings while it is away.
    """
    with _output():
        arguments = _parser(settings_class).parse_args(argv)
    chosen = arguments.props or arguments.file or environ.get("PROPS_FILE") or environ.get("propsFile")
    try:
        place = place_of(chosen, environ) if chosen else None
        if waits and not arguments.check and not isinstance(place, Path | None):
            _wait_for(place)
        settings = settings_class.load(place, environ)
        settings.require_files()
    except SettingsError as error:
        _refuse(error, as_json=arguments.check and arguments.json)
    if arguments.check:
        with _output():
            print(_as_json(settings) if arguments.json else _as_table(settings))
        sys.exit(0)
    return settings


def _wait_for(place: "Hash") -> None:
    """Wait until the server answers; exit with 0 on an order to stop, which ``penstock.base.signals`` has held back."""
    from common.settings.redis_hash import Away

    reported = False
    while True:
        try:
            place.read()
        except Away as error:
            if not reported:
                print(f"{place}: {error}; waiting", file=sys.stderr)
            reported = True
        except Unreadable:
            return  # reported with all other problems
        else:
            return
        if signal.sigtimedwait((signal.SIGTERM, signal.SIGINT), RETRY_SECONDS):
            sys.exit(0)


@contextmanager
def _output() -> Iterator[None]:
    """Exit with 141, as after SIGPIPE, if the reader of standard output, such as ``head``, has gone."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _parser(settings_class: type[ServiceSettings]) -> ArgumentParser:
    parser = ArgumentParser(
        settings_class.service,
        description="Settings: environment over props file over default. Names are camelCase in the file. "
        "X_FILE in place of a variable X names a file that holds its value.",
        epilog=_help(settings_class),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--props",
        metavar="FILE",
        help="the props file: .json .json5 .yaml .toml .env or .js; or a hash, redis://host/db/key; "
        "or @FILE or env:NAME where its place is written; else PROPS_FILE names it",
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="the same without --props, which wins")
    parser.add_argument("--check", action="store_true", help="validate the settings, print them and exit")
    parser.add_argument("--json", action="store_true", help="print as JSON what --check prints")
    parser.add_argument("--version", action="version", version=f"{settings_class.service} {__version__}")
    return parser


def _help(settings_class: type[ServiceSettings]) -> str:
    names = settings_class.names()
    rows = ["settings:"]
    for name, field in settings_class.model_fields.items():
        default = "required" if field.is_required() else f"default {_text(field.default)}"
        properties, variables = " or ".join(names.properties_of(name)), " or ".join(names.variables_of(name))
        rows += [f"  {properties} ({variables}): {kind_of(field)}, {default}", f"      {field.description}"]
    return "\n".join(rows)


def _refuse(error: SettingsError, *, as_json: bool) -> NoReturn:
    if as_json:
        print(json.dumps({"problems": [asdict(problem) for problem in error.problems]}, indent=2))
    print(error, file=sys.stderr)
    sys.exit(2)


def _as_json(settings: ServiceSettings) -> str:
    origins = settings.origins()
    rows = {name: {"value": value, "from": origins[name]} for name, value in settings.shown().items()}
    return json.dumps({"settings": rows, "warnings": settings.warnings()}, indent=2, default=str)


def _as_table(settings: ServiceSettings) -> str:
    origins = settings.origins()
    rows = [(name, _text(value), origins[name]) for name, value in settings.shown().items()]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"{name:{first}}  {value:{min(second, 60)}}  {origin}" for name, value, origin in rows]
    return "\n".join(lines + [f"warning: {warning}" for warning in settings.warnings()])


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value if value.isprintable() and value == value.strip() else json.dumps(value)
    return json.dumps(value, ensure_ascii=False, default=str)

"""docs/settings.md is generated from the code: ``python -m tests.unit.test_settings_page`` writes it."""

from argparse import ArgumentParser
from collections.abc import Iterator
from importlib import import_module
from typing import Final

from pydantic.fields import FieldInfo

from common.settings.base import ServiceSettings
from common.settings.cli import _text
from common.settings.fields import kind_of
from common.settings.sources import Names
from tests.support.harness import ROOT

PAGE: Final = ROOT / "docs" / "settings.md"
HEAD: Final = """# Settings

Every setting of every service. A test compares this page with the code, and
`python -m tests.unit.test_settings_page` writes it.

The environment overrides the props file, and the props file overrides the default. `X_FILE` in
place of a variable `X` names a file that holds its value. What Kubernetes adds for a Service, such
as `MPUSH_SERVICE_HOST` or `MONITOR_METRICS_PORT=tcp://...`, is ignored. `--check` validates the
settings of a service, prints them and exits. [Operating](operating.md#secrets) explains secrets,
[a hash in Redis](operating.md#settings-in-redis) in place of a file, and
[changing settings while a service runs](operating.md#changing-settings-while-it-runs).
"""
TABLE: Final = """
## {title}

{words}

| property | environment | type, unit and bounds | default | meaning |
| --- | --- | --- | --- | --- |
"""


def test_the_page_equals_the_generated_one() -> None:
    assert PAGE.read_text() == page(), "python -m tests.unit.test_settings_page writes it anew"


def page() -> str:
    shared = dict(rows("service", ServiceSettings))
    every = "`<SERVICE>` is the service's name in upper case, as in `MPUSH_REDIS`."
    parts = [HEAD, TABLE.format(title="Every service", words=every)]
    parts += [row.replace("`SERVICE_", "`<SERVICE>_") for row in shared.values()]
    for file in sorted(ROOT.glob("services/*/settings.py")):
        name = file.parent.name
        settings = import_module(f"services.{name}.settings").Settings
        words = f"Settings that only [{name}](../services/{name}/README.md) has, or that differ here."
        parts.append(TABLE.format(title=name, words=words))
        as_shared = {field: row.replace("`SERVICE_", f"`{name.upper()}_") for field, row in shared.items()}
        parts += [row for field, row in rows(name, settings) if row != as_shared.get(field)]
    return "".join(parts)


def rows(service: str, settings: type[ServiceSettings]) -> Iterator[tuple[str, str]]:
    """Yield each field with its row of the table."""
    names = Names(service, settings.model_fields, settings.aliases)
    for name, field in settings.model_fields.items():
        written = [*map(" or ".join, (code(names.properties_of(name)), code(names.variables_of(name))))]
        yield (
            name,
            f"| {' | '.join([*written, escaped(kind_of(field)), default(field), escaped(field.description)])} |\n",
        )


def code(words: list[str]) -> list[str]:
    return [f"`{word}`" for word in words]


def escaped(text: str | None) -> str:
    return str(text).replace("|", "\\|").replace("<", "\\<")


def default(field: FieldInfo) -> str:
    return "required" if field.is_required() else escaped(_text(field.default))


if __name__ == "__main__":
    ArgumentParser(prog="python -m tests.unit.test_settings_page", description=__doc__).parse_args()
    PAGE.write_text(page())

"""Penstock: small Redis services that move messages without losing any, and the parts that applications use."""

TYPE_CHECKING = False  # importing typing would take longer than all the rest
if TYPE_CHECKING:
    from penstock.accounting.audit import audit
    from penstock.base.errors import (
        Fenced,
        PenstockError,
        Stale,
        TooMany,
        Unavailable,
        Unconfirmed,
        Unsuitable,
        WrongCall,
        WrongType,
    )
    from penstock.base.keys import Keys
    from penstock.core.connection import connect
    from penstock.core.script import Script
    from penstock.lists import Lists
    from penstock.testing.server import EmbeddedServer

__all__ = [
    "EmbeddedServer",
    "Fenced",
    "Keys",
    "Lists",
    "PenstockError",
    "Script",
    "Stale",
    "TooMany",
    "Unavailable",
    "Unconfirmed",
    "Unsuitable",
    "WrongCall",
    "WrongType",
    "audit",
    "connect",
]
__version__ = "0.2.0"

_MODULES = {
    "EmbeddedServer": "testing.server",
    "Keys": "base.keys",
    "Lists": "lists",
    "Script": "core.script",
    "audit": "accounting.audit",
    "connect": "core.connection",
}

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a public name when it is first used (PEP 562), so that ``import penstock`` alone stays light."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(f"penstock.{_MODULES.get(name, 'base.errors')}"), name)
        return found

    def __dir__():
        return sorted({*globals(), *__all__})

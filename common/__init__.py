"""What a service is written with; docs/writing-a-service.md says how. All else of this package is for our own services.

A name is imported when it is first asked for, so that the settings of a service can be read without its loop.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.app import main
    from common.context import Context
    from common.settings.base import ServiceSettings
    from common.settings.fields import Name, PopTimeout, Seconds, Url, Whole, setting
    from common.settings.roles import (
        Answers,
        Done,
        In,
        Out,
        Outs,
        Pending,
        ReplyList,
        ReplyLists,
        Subscribers,
        Target,
    )
    from common.settings.validation import Rule
    from common.settle import Batch, Event
    from common.tracking.reply_lists import ReplyRules

_MODULES = {
    "app": ("main",),
    "context": ("Context",),
    "settings.base": ("ServiceSettings",),
    "settings.fields": ("Name", "PopTimeout", "Seconds", "Url", "Whole", "setting"),
    "settings.roles": (
        *("Answers", "Done", "In", "Out", "Outs", "Pending", "ReplyList", "ReplyLists", "Subscribers", "Target"),
    ),
    "settings.validation": ("Rule",),
    "settle": ("Batch", "Event"),
    "tracking.reply_lists": ("ReplyRules",),
}
_FOUND_IN = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Answers",
    "Batch",
    "Context",
    "Done",
    "Event",
    "In",
    "Name",
    "Out",
    "Outs",
    "Pending",
    "PopTimeout",
    "ReplyList",
    "ReplyLists",
    "ReplyRules",
    "Rule",
    "Seconds",
    "ServiceSettings",
    "Subscribers",
    "Target",
    "Url",
    "Whole",
    "main",
    "setting",
]

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a public name (PEP 562); with ``main``, have orders by signal wait until it can obey them."""
        if name not in _FOUND_IN:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        if name == "main":
            import_module("penstock.base.signals")
        found = globals()[name] = getattr(import_module(f"common.{_FOUND_IN[name]}"), name)
        return found

"""Lint rules on reply lists: patterns that match lists or keys of services."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from penstock.composition.findings import Finding, at_property
from penstock.composition.model import Composition, Part
from penstock.inspect.ownership import Ownership


def replies(composition: Composition) -> Iterator[Finding]:
    """Find patterns of ``replyLists`` that match lists or keys of other parts, to which no answer is sent."""
    for part in composition.parts:
        if part.setting("reply_lists") is not None:
            ownership = Ownership(
                {
                    str(other.namespace or other.name): other.settings.lists()
                    for other in composition.parts
                    if other.settings is not None and other.server == part.server
                }
            )
            yield from unfit(part, ownership)


def unfit(part: Part, ownership: Ownership) -> Iterator[Finding]:
    """Each name and pattern for answers of ``part`` that ``ownership`` forbids, with one list that it matches."""
    named = {end.key: end.setting for end in part.shape.ends if end.role == "replies"}
    for name, property in named.items():
        if whose := ownership.owner_of(name, part.namespace, kept=True):
            yield at_property("replies", part, property, f"{name!r} is {whose}; expected another list")
    for pattern in part.setting("replies"):
        for name, _ in ownership.names(part.namespace) if pattern not in named else ():
            if name not in named and fnmatchcase(name, pattern) and (whose := ownership.owner_of(name, part.namespace)):
                wide = f"{pattern!r} matches {name!r}, {whose}: requests that name it are refused"
                yield at_property(
                    "replies", part, "replyLists", f"{wide}; expected a pattern of lists of clients alone"
                )
                break

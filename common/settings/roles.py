"""What the lists that a field names are for, said once in the field's type.

From these types ``ServiceSettings`` derives which lists a service has, which are adopted after a crash, its place in a
composition, its rights, and the rule that no list is used twice.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args, get_origin

from annotated_types import MinLen
from pydantic import BeforeValidator, Field, Strict
from pydantic.fields import FieldInfo

from common.settings.collisions import collision, pending_collision
from common.settings.fields import Name, OneName, PopTimeout
from common.settings.redaction import quoted
from penstock.base.errors import WrongCall
from penstock.base.keys import Keys
from penstock.base.shape import Use, property_of
from penstock.base.urls import is_url, same_server

__all__ = [
    "Answers",
    "Done",
    "In",
    "Out",
    "Outs",
    "Pending",
    "PopTimeout",
    "ReplyList",
    "ReplyLists",
    "Role",
    "Subscribers",
    "Target",
]
METRICS_TOTAL: Final = "count"
PATTERN: Final = frozenset("*?[")
"""A name with one of these is a pattern."""


@dataclass(frozen=True)
class Role:
    """The role of the lists that a field names, as `penstock status` and `penstock map` show it."""

    name: str
    use: Use
    server: str = "redis"
    """The field with the URL of their server."""
    copies: bool = False
    """Whether each of several lists gets every message, instead of one of them."""
    holds: str | None = None
    """For a list that is read beside ``in``: what to append to the name of the pending list for its own one."""
    watched: bool = False
    """Whether those that watch the namespace use the list, and not the service itself."""
    patterns: bool = False
    """Whether a name with one of ``* ? [`` stands for the lists that match it."""

    def names(self, value: object) -> list[str]:
        """Return the names in the value of a field, without patterns: none, one or several."""
        names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        return [name for name in names if not (self.patterns and is_pattern(name))]


def _on_this_server(name: object) -> object:
    if isinstance(name, str) and is_url(name):
        raise ValueError(
            "expected the name of a list on the same server, found a URL: use vpush to deliver to another one"
        )
    return name


def _described(kind: str, description: str) -> Any:
    return Field(description=description, json_schema_extra={"kind": kind})


Names = Annotated[list[Annotated[Name, BeforeValidator(_on_this_server)]], Strict()]
In = Annotated[Name, Role("in", "reads"), _described("name", "The list that publishers push to.")]
"""The list that the service takes its messages from."""
Pending = Annotated[
    Name,
    Role("pending", "keeps"),
    _described("name", "The list of messages taken and not settled; each instance adds its id."),
]
"""The list of what an instance has in hand. What a dead instance leaves in it, another one adopts."""
Out = Annotated[OneName, Role("out", "writes"), _described("name", "The list that messages go to.")]
Outs = Annotated[
    Names,
    MinLen(1),
    Role("out", "writes"),
    _described("list of names", "The lists that messages go to; each message goes to one of them."),
]
Subscribers = Annotated[
    Names,
    MinLen(1),
    Role("out", "writes", copies=True),
    _described("list of names", "The subscribers' lists; each gets every message."),
]
Target = Annotated[
    OneName, Role("out", "writes", server="out_redis"), _described("name", "The list of the other server.")
]
"""A list of the server that the field ``out_redis`` names."""
Answers = Annotated[Name, Role("answers", "reads", holds=":answers")]
"""A list that the service reads beside ``in``; what it takes there waits in ``<pending>:answers``."""
Done = Annotated[Name, Role("done", "reads", watched=True)]
"""The list that workers push finished ids to; a monitor that watches the namespace reads it."""
ReplyList = Annotated[Name, Role("replies", "writes")]
ReplyLists = Annotated[list[Name], Strict(), Role("replies", "writes", patterns=True)]
"""The lists that a message may name for its answer; patterns among them are names only once a message names one."""


def is_pattern(name: str) -> bool:
    return not PATTERN.isdisjoint(name)


def roles_of(fields: Mapping[str, FieldInfo]) -> dict[str, Role]:
    """Return the role of each field that has one, in the order of the class.

    Raise ``WrongCall`` for a field whose lists could not be found, or whose server has no field.
    """
    found = {name: next(_roles_in(field.metadata, field.annotation), None) for name, field in fields.items()}
    for name, role in found.items():
        if role and get_origin(fields[name].annotation) in (dict, tuple, set, frozenset):
            raise WrongCall(f"{name}: expected a type such as Out or Outs itself, not within another one")
        if role and role.server not in fields:
            raise WrongCall(f"{name}: its server is that of a field {role.server}, which the class does not have")
    return {name: role for name, role in found.items() if role}


def _roles_in(metadata: list[Any], annotation: object) -> Iterator[Role]:
    """Yield the roles of a type and, for one such as ``Done | None``, of its parts."""
    yield from (each for each in metadata if isinstance(each, Role))
    for part in get_args(annotation):
        yield from _roles_in([*getattr(part, "__metadata__", ())], None)


def conflicts(roles: Mapping[str, Role], values: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the fields to blame, the first one first, and what is wrong: a list is used twice, or is the kernel's.

    ``values`` are those that are known, by field; those of other fields are not compared. Under ``given`` they have the
    names of the fields that were set: these are blamed rather than a default.
    """
    given = values.get("given", roles.keys())
    order = ("replies", "writes", "keeps", "reads")
    rank = {name: order.index("replies" if role.name == "replies" else role.use) for name, role in roles.items()}
    fields = sorted(roles.keys() & values.keys(), key=lambda name: (rank[name], -[*roles].index(name)))
    for place, field in enumerate(fields):
        for other in fields[place + 1 :]:
            blamed, peer = (other, field) if other in given and field not in given else (field, other)
            if reason := _shared(blamed, peer, roles, values):
                yield (blamed,), reason
                break
        else:
            if reason := _taken(field, roles, values):
                yield (field, "pending"), reason


def _shared(field: str, other: str, roles: Mapping[str, Role], values: Mapping[str, Any]) -> str | None:
    role, another = roles[field], roles[other]
    if role.name == another.name == "replies" or not same_server(values.get(role.server), values.get(another.server)):
        return None
    others = frozenset(another.names(values[other]))
    both = [name for name in role.names(values[field]) if name in others]
    if not both:
        return None
    loops = (role.name, another.name) == ("out", "in")
    remedy = "its messages would go round for ever" if loops else "expected another list"
    where = "" if role.server == another.server else " on the same server"
    return f"{quoted(both[0])}{where} is `{property_of(other)}` as well: {remedy}"


def _taken(field: str, roles: Mapping[str, Role], values: Mapping[str, Any]) -> str | None:
    """Return why a name of ``field`` belongs to the kernel, or would make names that do."""
    role, namespace = roles[field], values.get("redis_namespace")
    if not same_server(values.get(role.server), values.get("redis")):
        return None
    if role.use == "keeps":
        return pending_collision(values[field], namespace) if values[field] else None
    names = role.names(values[field])
    if namespace and METRICS_TOTAL in names:
        return f"`{METRICS_TOTAL}` is the field of the total in the metrics, where each list has its own"
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated and role.name == "out":
        what = "each message would come more than once" if role.copies else "name it once"
        return f"{', '.join(map(quoted, sorted(repeated)))} more than once: {what}"
    pending = pending_lists(roles, values, unused=True)
    for name in names:
        if role.watched and namespace and name == Keys(namespace).done:
            continue
        if pending.get(name, "in_") != "in_":
            return f"{quoted(name)} is the pending list of `{property_of(pending[name])}`: expected another name"
        for base in pending or (None,):
            if reason := collision(name, base, namespace):
                return reason
    return None


def pending_lists(roles: Mapping[str, Role], values: Mapping[str, Any], *, unused: bool = False) -> dict[str, str]:
    """Return the names from which instances make those of their pending lists, each with the field it is for.

    With ``unused`` also those of lists that are not set.
    """
    base = next((values[name] for name, role in roles.items() if role.use == "keeps" and values.get(name)), None)
    if base is None:
        return {}
    reads = {f"{base}{role.holds}": name for name, role in roles.items() if role.holds and (unused or values.get(name))}
    return {base: "in_", **reads}

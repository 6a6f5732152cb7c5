"""The settings of every service, and how they are read: environment over props file over default."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import PrivateAttr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from common.acl import BATCHES, least
from common.settings.fields import LONGEST_WAIT, Whole, is_secret, setting
from common.settings.kernel import KernelSettings, order_needs_a_namespace, renewal_is_in_time
from common.settings.props import place_of, read_props
from common.settings.roles import Role, conflicts, pending_lists, roles_of
from common.settings.sources import Found, Given, Names
from common.settings.validation import Rule, checked
from penstock.base.errors import Problem, SettingsError, WrongCall
from penstock.base.keys import Keys
from penstock.base.shape import End, Shape, Use, property_of
from penstock.base.urls import missing_file, same_server, unverified
from penstock.core.acl import Rights
from penstock.core.connection import mask_password

if TYPE_CHECKING:
    from common.settings.redis_hash import Hash


class ServiceSettings(KernelSettings):
    """The base of every service's settings. A service's class names its ``service`` and adds fields and rules.

    ``load`` reads props file and environment. The constructor takes Python names and reads no environment. Both raise
    ``SettingsError`` with all problems at once.
    """

    service: ClassVar[str]
    """The name of the service, of its entry point and props files, and the prefix of its variables."""
    aliases: ClassVar[dict[str, str]] = {"service_namespace": "redis_namespace"}
    changes_login: ClassVar[bool] = True
    """Whether user and password of a URL may change while the service runs, e.g. to rotate a secret."""
    runs_anew: ClassVar[bool] = False
    """Whether an order to reload ends the run, for a new one, even if no setting has changed."""
    ignored: ClassVar[frozenset[str]] = frozenset()
    """Fields without effect, accepted for old props files."""
    buries: ClassVar[bool] = False
    """Whether the service writes dead letters, if it has a namespace."""
    rules: ClassVar[tuple[Rule, ...]] = (renewal_is_in_time, order_needs_a_namespace)
    """Rules over several fields. The types of the fields imply that no list is used twice, or is the kernel's."""
    sends: ClassVar[frozenset[str]] = frozenset()
    """Commands of the service's Python code to the server of its lists, besides the kernel's."""
    scripts: ClassVar[tuple[Path, ...]] = BATCHES
    """Scripts that the service calls there, besides the kernel's and those in ``lua`` beside its settings."""

    _given: dict[str, Given] = PrivateAttr(default_factory=dict)
    _in_file: dict[str, Given] = PrivateAttr(default_factory=dict)
    _read_from: "tuple[Path | Hash | None, Mapping[str, str]]" = PrivateAttr(default=(None, {}))

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Raise ``WrongCall`` for a class that does not name its service, or has a rule over unknown fields."""
        if not hasattr(cls, "service"):
            raise WrongCall(f"{cls.__module__}.{cls.__qualname__}: set `service`, the name of the service")
        pending = [role.holds or "" for role in cls.roles().values() if role.use == "keeps" or role.holds]
        if len(set(pending)) < len(pending):
            raise WrongCall(f"{cls.__qualname__}: two fields would share a pending list: give them types of their own")
        for rule in cls.rules:
            if unknown := signature(rule).parameters.keys() - {*cls.model_fields, "given"}:
                raise WrongCall(
                    f"{cls.__qualname__}: {rule.__name__} has a parameter {min(unknown)}, which is no field"
                )

    def __init__(self, **values: object) -> None:
        found = Found({name: Given(value, property_of(name), source="call") for name, value in values.items()})
        super().__init__(**checked(type(self), self.rules, self.names(), found, self._conflicts))
        self._given = found.given

    @classmethod
    def load(cls, props_file: "Path | Hash | str | None", environ: Mapping[str, str]) -> Self:
        """Return the settings that ``environ`` and ``props_file`` give. Raise ``SettingsError`` with every problem.

        A text is read as ``--props`` reads it: the name of a file, the URL of a hash, or a reference to either.
        """
        if isinstance(props_file, str):
            props_file = place_of(props_file, environ)
        names = cls.names()
        found = names.read(props_file, environ)
        settings = cls(**checked(cls, cls.rules, names, found, cls._conflicts))
        settings._given, settings._in_file, settings._read_from = found.given, found.in_file, (props_file, environ)
        return settings

    @classmethod
    def service_in(cls, props_file: Path) -> str | None:
        """Return the service that the property ``service`` of ``props_file`` names."""
        try:
            name = read_props(props_file).values.get("service")
        except SettingsError:
            return None
        return name if isinstance(name, str) else None

    @classmethod
    def roles(cls) -> dict[str, Role]:
        """Return the role of every field that names lists."""
        return roles_of(cls.model_fields)

    @classmethod
    def _conflicts(cls, values: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
        return conflicts(cls.roles(), values)

    def again(self) -> Self:
        """Return what the same file and environment give now. Raise as ``load`` does."""
        settings = type(self).load(*self._read_from)
        settings.require_files()
        return settings

    def require_files(self) -> None:
        """Raise ``SettingsError`` if a URL names a file that this machine cannot use; ``load`` may run on another."""
        fields = [(name, getattr(self, name)) for name in type(self).model_fields]
        found = [(name, missing_file(url)) for name, one in fields for url in (one if isinstance(one, list) else [one])]
        problems = [
            (self._given.get(name) or Given(None, property_of(name))).problem(words) for name, words in found if words
        ]
        if problems:
            raise SettingsError(problems)

    def fixed(self) -> frozenset[str]:
        """Return the fields that cannot change while the process runs."""
        kernel = frozenset({"redis", "service_redis", "redis_namespace", "ordered"})
        if self.redis_namespace:
            return kernel
        return kernel | {name for name, role in self.roles().items() if role.use == "keeps"}  # nobody would adopt them

    def changes_from(self, before: Self) -> dict[str, str]:
        """Return what differs, by property, as ``old -> new``. Raise ``SettingsError`` if it needs a restart."""
        fields = type(self).model_fields
        changed = [name for name in fields if getattr(self, name) != getattr(before, name)]
        frozen = [name for name in changed if name in before.fixed() and not self._is_login(name, before)]
        if frozen:
            raise SettingsError([self._restart_for(name) for name in frozen])
        old, new = before.shown(), self.shown()
        changes = {name: f"{old[name]} -> {new[name]}" for name in map(property_of, changed)}
        return changes | {property_of(name): "another login" for name in changed if self._is_login(name, before)}

    def _is_login(self, name: str, before: Self) -> bool:
        """Return True if only the way to a server has changed: user, password, or options of TLS."""
        old, new = getattr(before, name), getattr(self, name)
        return self.changes_login and old != new and bool(old and new) and same_server(old, new)

    def _restart_for(self, name: str) -> Problem:
        given = self._given.get(name) or Given(None, property_of(name))
        return given.problem("cannot change while the service runs: restart it")

    @classmethod
    def names(cls) -> Names:
        return Names(cls.service, cls.model_fields, cls.aliases)

    @classmethod
    def secret_variables(cls) -> dict[str, str]:
        """Return by property the environment variable of each secret."""
        fields = cls.model_fields.items()
        return {property_of(name): cls.names().variable_of(name) for name, one in fields if is_secret(one)}

    @property
    def has_server(self) -> bool:
        """Return whether the service uses a server at all; without one it has only what its lifespan does."""
        return True

    @property
    def message_wait(self) -> float:
        """Return how many seconds one command may wait for a message: the ``PopTimeout``, or 0 without one."""
        fields = type(self).model_fields.items()
        return max([0.0, *(float(getattr(self, name)) for name, field in fields if LONGEST_WAIT in field.metadata)])

    @property
    def longest_wait(self) -> float:
        """Return how many seconds one command may wait on the server: for a message, or for its disk."""
        return max(0 if self.durability == "memory" else self.durability_timeout, self.message_wait)

    @property
    def pending_lists(self) -> tuple[str, ...]:
        """Return the names from which instances make those of their pending lists."""
        return tuple(pending_lists(self.roles(), self.__dict__))

    @property
    def taken_lists(self) -> tuple[str, ...]:
        """Return those of ``pending_lists`` whose messages the metric ``taken`` counts."""
        return self.pending_lists

    def adopts(self, former: Sequence[str]) -> dict[str, str]:
        """Return which of ``pending_lists`` adopts each of ``former``, the pending lists of other settings."""
        return dict(zip(former, self.pending_lists, strict=False))

    def pending_for(self, field: str) -> str:
        """Return the one of ``pending_lists`` for what is taken from the list that ``field`` names."""
        return {field: name for name, field in pending_lists(self.roles(), self.__dict__).items()}[field]

    def named(self, field: str) -> list[str]:
        """Return the lists that ``field`` names, or stands for if it is not set."""
        return self.roles()[field].names(getattr(self, field))

    @property
    def dead_letters(self) -> str | None:
        """Return the field that makes the service write dead letters; None if it writes none."""
        return "redis_namespace" if self.buries and self.redis_namespace else None

    def lists(self) -> dict[str, str]:
        """Return the lists that the service works on at ``redis``, with the role of each, such as ``in``."""
        found: dict[str, str] = {}
        for field, role in self.roles().items():
            if same_server(getattr(self, role.server), self.redis):
                found |= {name: role.name for name in self.named(field) if found.get(name, "replies") == "replies"}
        return found | ({Keys(str(self.redis_namespace)).dead: "dead"} if self.dead_letters else {})

    def shape(self) -> Shape:
        """Return the service's place in a composition: what it reads and writes, and which setting says so."""
        shape, pending = Shape(), {field: name for name, field in pending_lists(self.roles(), self.__dict__).items()}
        for field, role in self.roles().items():
            names, url = self.named(field), getattr(self, role.server)
            copies = role.copies and len(names) > 1
            ends = [self.end(name, role.name, role.use, field, url=url, copies=copies) for name in names]
            if role.holds and field in pending:
                ends.append(self.end(pending[field], "pending", "keeps", field))
            (shape.watched if role.watched else shape.ends).extend(ends)
        if self.dead_letters:
            shape.ends.append(self.end(Keys(str(self.redis_namespace)).dead, "dead", "writes", self.dead_letters))
        return shape

    def end(self, key: str, role: str, use: Use, field: str, *, url: str | None = None, **more: Any) -> End:
        """Return one end of ``shape``; blame ``field`` for it, or the namespace if that field is not set.

        ``url`` is its server; None for the server of the lists.
        """
        given = self._given.get(field) or self._given.get("redis_namespace")
        origin = given.origin if given and given.file else None
        return End(key, role, use, property_of(field), url or self.redis, origin=origin, **more)

    def apart(self, directory: Path) -> dict[str, object]:
        """Return what to set, by field, so that two instances of the service on one machine do not conflict."""
        return {}

    def rights(self) -> dict[str, Rights]:
        """Return the least rights that the service needs, by the URL of the server."""
        return least(self)

    def patterns(self) -> dict[str, tuple[str, ...]]:
        """Return glob-style patterns of keys that the service uses and ``shape`` does not name, by URL."""
        return {}

    def reads(self) -> dict[str, tuple[str, ...]]:
        """Return patterns of keys that the service only reads, and never names as keys of a script, by URL."""
        return {}

    def sends_elsewhere(self) -> frozenset[str]:
        """Return the commands that the service sends to another server that its ``shape`` names."""
        return frozenset()

    def metrics(self) -> tuple[str, ...]:
        """Return the names of the metrics that the service keeps besides those of every service, such as ``start``.

        By default those of ``Context.settle``.
        """
        return ("taken", "settled", "delivered", "dead", "dropped")

    def shown(self) -> dict[str, Any]:
        """Return the effective settings by property, in the order of the class, with passwords and secrets masked."""
        values = {name: (getattr(self, name), is_secret(field)) for name, field in type(self).model_fields.items()}
        return {
            property_of(name): "***" if secret and value is not None else _masked(value)
            for name, (value, secret) in values.items()
        }

    def origins(self) -> dict[str, str]:
        """Return where each of ``shown`` comes from: ``environment MPUSH_REDIS``, ``mpush.yaml:3``, ``default``."""
        given = {name: one.origin for name, one in self._given.items()}
        return {property_of(name): given.get(name, "default") for name in type(self).model_fields}

    def warnings(self, environ: Mapping[str, str] | None = None) -> list[str]:
        """Return what may be a mistake; ``environ`` is the environment, by default the one that was read."""
        names, given = self.names(), self._given
        found = [
            f"{given[name].origin}: {given[name].name} has no effect in {self.service}"
            for name in given
            if name in self.ignored
        ]
        for other, one in names.overriding(self._in_file, self._read_from[1] if environ is None else environ):
            values = " in place of ".join(str(_masked(each.value)) for each in (other, one))
            found.append(f"{other.origin} overrides {one.origin}: {one.name}: {values}")
        for name in type(self).model_fields:
            origin = given[name].origin if name in given else "default"
            found += [f"{origin}: {property_of(name)}: {words}" for words in unverified(getattr(self, name))]
        return found

    def __repr_args__(self) -> Iterable[tuple[str, Any]]:
        """Mask passwords in ``repr`` and ``str``, too."""
        return self.shown().items()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Switch off pydantic's own sources: they know neither the line of a value nor an unknown variable."""
        return (init_settings,)


def _masked(value: object) -> object:
    if isinstance(value, list):
        return [*map(_masked, value)]
    return mask_password(value) if isinstance(value, str) and "://" in value else value


class PromptSettings(ServiceSettings):
    """Of a service on the way of requests: what it had in hand is found before who waits for the answer gives up.

    That is 30 s for himporter by default; 20 s after a death the registration is gone, and 5 s later others look.
    """

    service: ClassVar[str] = "prompt"
    service_expire: Whole = setting(
        "seconds", "Seconds after which the registration of a dead instance is gone.", 20, least=10, most=86_400
    )
    service_renew: Whole = setting(
        "seconds", "Seconds between two renewals, at most serviceExpire - 5.", 5, least=5, most=86_395
    )

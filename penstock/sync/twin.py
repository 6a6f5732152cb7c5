"""Blocking twins: classes with the public names of an asynchronous class, whose calls wait for their results."""

import builtins
import inspect
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import cached_property, partial, reduce
from operator import or_
from pkgutil import resolve_name
from types import UnionType
from typing import Any, ClassVar, Final, Union, get_args, get_origin

from penstock.base.errors import WrongCall
from penstock.sync.calls import entered, feed, iterate
from penstock.sync.portal import Portal

BLOCKING: Final[dict[Any, Any]] = {AsyncIterator: Iterator, AsyncGenerator: Generator, Callable: Callable}
"""What blocks in place of it, in annotations."""
FUTURE: Final = re.compile(r"asyncio\.Future\[(.*)\]")
OUTBOX: Final = re.compile(r"\bOutbox \| ")
"""An ``Outbox`` belongs to an event loop of the caller: blocking forms take its data directory."""
_twins: Final = dict[str, type["Twin"]]()


class Host:
    """What the twins of one program's object share: where coroutines run, as long as it is entered."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.portal: Portal | None = None

    @property
    def run(self) -> Portal:
        """Return what runs coroutines. Raise ``WrongCall`` if nothing does."""
        if self.portal is None:
            raise WrongCall(f"expected `with {self._name}(...) as {self._name.lower()}:` around this call")
        return self.portal


class Twin:
    """Stands for an object of the class ``of``, a place such as ``penstock.bus.queue:Queue``, and offers its ``names``.

    A subclass lists methods and properties in ``names``, declares attributes with their types, and inherits those of
    its bases. A method of these names that it defines itself, without docstring, is called with the signature of the
    asynchronous one, defaults filled in. What else is public has a docstring. The class ``of`` is imported when the
    first of the names is used.
    """

    _of: ClassVar[str]
    _names: ClassVar[tuple[str, ...]] = ()
    _written: ClassVar[dict[str, Any]] = {}
    """What classes define themselves."""

    def __init_subclass__(cls, of: str = "", names: str = "") -> None:
        bases = [base for base in cls.__bases__ if issubclass(base, Twin)]
        inherited = [name for base in bases for name in base._names]
        attributes = [each for each in inspect.get_annotations(cls) if each[0] != "_"]
        cls._names = tuple(dict.fromkeys([*inherited, *attributes, *names.split()]))
        cls._written = {name: each for base in reversed(bases) for name, each in base._written.items()} | vars(cls)
        if of:
            cls._of = of
            _twins[of] = cls
            for name in cls._names:
                setattr(cls, name, _Member(cls, name))

    def __init__(self, inner: Any, host: Host) -> None:
        self._inner, self._host = inner, host

    def __repr__(self) -> str:
        return repr(self._inner)

    def _call(self, name: str, values: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a method of what this stands for."""
        run, method = self._host.run, getattr(self._inner, name)
        plain = {key: _unwrapped(value) for key, value in options.items()}
        return self._wrap(self._result(partial(method, *map(_unwrapped, values), **plain), run))

    def _result(self, call: Callable[[], Any], run: Portal) -> Any:
        found = call()
        return run(found) if inspect.iscoroutine(found) else found

    def _wrap(self, value: Any) -> Any:
        return self if value is self._inner else wrap(value, self._host)

    def _feed(self, name: str, values: Iterable[Any] | AsyncIterable[Any], **options: Any) -> Any:
        """Call a method that takes many values; they are iterated in the thread of the caller, and may take long."""
        return feed(partial(getattr(self._inner, name), **options), values, self._host.run)


def wrap(value: Any, host: Host) -> Any:
    """Return ``value`` so that it blocks: the twin of an object, or a loop or a context manager without async."""
    kind = type(value)
    if twin := _twins.get(f"{kind.__module__}:{kind.__qualname__}"):
        return twin(value, host)
    if isinstance(value, AsyncIterator):
        return iterate(value, host.run, partial(wrap, host=host))
    if isinstance(value, AbstractAsyncContextManager):
        return entered(value, host.run)
    return value


def _unwrapped(value: Any) -> Any:
    return value._inner if isinstance(value, Twin) else value


class _Member:
    """A public name of a twin until its first use, which makes a method or a property of it."""

    def __init__(self, twin: type[Twin], name: str) -> None:
        self._twin, self._name = twin, name

    def __get__(self, instance: Twin | None, kind: type[Twin]) -> Any:
        return self._make().__get__(instance, kind)

    def __set__(self, instance: Twin, value: Any) -> None:
        self._make()
        setattr(instance, self._name, value)

    def _make(self) -> Any:
        kind = resolve_name(self._twin._of)
        original = inspect.getattr_static(kind, self._name, None)
        if inspect.isfunction(original):
            made = self._method(original, inspect.getdoc(getattr(kind, self._name)) or "")
        else:
            made = self._property(original)
        setattr(self._twin, self._name, made)
        return made

    def _method(self, original: Callable[..., Any], words: str) -> Any:
        name, written = self._name, self._twin._written.get(self._name)
        made: Any = _written(written, original) if written else _calling(name)
        made.__name__, made.__qualname__ = name, f"{self._twin.__qualname__}.{name}"
        made.__module__, made.__doc__ = self._twin.__module__, words.replace("``async ", "``") or None
        made.__signature__ = blocking(inspect.signature(original))
        return made

    def _property(self, original: Any) -> property:
        name = self._name

        def read(twin: Twin) -> Any:
            return twin._wrap(getattr(twin._inner, name))

        if isinstance(original, property | cached_property):
            return property(read, doc=inspect.getdoc(original))
        return property(read, lambda twin, value: setattr(twin._inner, name, value))  # an attribute


def _calling(name: str) -> Any:
    def call(self: Twin, /, *values: Any, **options: Any) -> Any:
        return self._call(name, values, options)

    return call


def _written(method: Callable[..., Any], original: Callable[..., Any]) -> Any:
    """Return ``method`` so that it gets what ``original`` would."""
    signature = inspect.signature(original)

    def call(self: Twin, /, *values: Any, **options: Any) -> Any:
        bound = signature.bind(self, *values, **options)
        bound.apply_defaults()
        return method(*bound.args, **bound.kwargs)

    return call


def blocking(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature of the blocking form of a method."""
    parameters = [each.replace(annotation=_blocked(each.annotation)) for each in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=_blocked(signature.return_annotation))


def _blocked(hint: Any) -> Any:
    """Return an annotation as it is without async."""
    if isinstance(hint, str):
        plain = OUTBOX.sub("", FUTURE.sub(r"\1", hint))
        return vars(builtins).get(plain, plain)
    if isinstance(hint, list):  # of a Callable
        return [*map(_blocked, hint)]
    origin, parts = get_origin(hint), [*map(_blocked, get_args(hint))]
    if origin in BLOCKING:
        return BLOCKING[origin][*parts]
    if origin in (Union, UnionType):
        return reduce(or_, parts)
    is_class = isinstance(hint, type) and origin is None
    return _twins.get(f"{hint.__module__}:{hint.__qualname__}", hint) if is_class else hint

"""The types of ``penstock.sync.bus``, made from the asynchronous classes: what is awaited there returns here."""

import ast
import builtins
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from textwrap import dedent, indent
from typing import Any, Final, get_overloads

from penstock import bus
from penstock.bus import federation
from tests.support.harness import ROOT

QUEUE: Final = """name pushed consumed is_attached is_consuming on once off attach detach push push_many consume
 stop ack close flush count exists peek ttl maxsize find metadata
 get_metadata set_metadata"""
CONSUMPTION: Final = "start stop __aiter__"
CHANNEL: Final = """name local remote is_attached is_remote_connected on once off connect listen send send_to
 messages ack disconnect end"""
PERSISTABLE: Final = "name value fields dirty save load persist unpersist"
PUBSUB: Final = "name is_subscribed on once off subscribe unsubscribe publish"
SERVICE: Final = "name is_serving is_connected on once off serve connect request stream notify disconnect"
NAMES: Final[dict[type, str]] = {
    bus.Bus: "__init__ is_online waiting patience buffer on once off queue channel persistable pubsub service federate",
    bus.Queue: QUEUE,
    bus.Consumption: CONSUMPTION,
    bus.Message: "body id __bytes__ __str__ json ack",
    bus.Channel: CHANNEL,
    bus.Persistable: PERSISTABLE,
    bus.PubSub: PUBSUB,
    bus.Service: SERVICE,
    bus.Request: "data id reply_to expires partial answer end fail",
    federation.FederatedQueue: QUEUE + " is_ready",
    federation.FederatedConsumption: CONSUMPTION,
    federation.FederatedChannel: CHANNEL + " is_ready",
    federation.FederatedPersistable: PERSISTABLE,
    federation.FederatedPubSub: PUBSUB + " is_ready",
    federation.FederatedService: SERVICE,
}
"""What users may use of each class."""
HEAD: Final = '''"""Generated from ``penstock.bus``: ``python -m tests.unit.test_sync_stubs`` writes it anew."""

{imports}

{aliases}

'''
WITH: Final = """
    @property
    def run(self) -> Portal: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ..."""
BLOCKING: Final = {"AsyncIterator": "Iterator", "AsyncGenerator": "Generator", "__aiter__": "__iter__"}
"""The names of what blocks."""
CLASSES: Final = {each.__name__ for each in NAMES}


class Stubs:
    """Collects the classes, what they import, and aliases that name them."""

    def __init__(self) -> None:
        self._imports = {
            ("types", "TracebackType"),
            ("typing", "Self"),
            ("penstock.sync.portal", "Portal"),
        }
        self._modules = set[str]()
        self._aliases: dict[str, str] = {}

    def text(self) -> str:
        """Return the whole file."""
        classes = "\n\n".join(map(self._class, NAMES))
        modules = "".join(f"import {each}\n" for each in sorted(self._modules))
        lines = [f"from {module} import {name}" for module, name in sorted(self._imports)]
        aliases = "\n".join(self._aliases.values())
        return HEAD.format(imports=modules + "\n".join(lines), aliases=aliases) + classes + "\n"

    def _class(self, kind: type) -> str:
        lines = [f'class {kind.__name__}:\n    """As ``{kind.__module__}.{kind.__name__}``."""\n']
        for name in NAMES[kind].split():
            lines += [indent(each, "    ") for each in self._member(kind, name)]
        return "\n".join(lines) + (WITH if kind is bus.Bus else "")

    def _member(self, kind: type, name: str) -> Iterator[str]:
        found = inspect.getattr_static(kind, name, None)
        if isinstance(found, property | cached_property):
            yield "@property"
            found = found.fget if isinstance(found, property) else found.func
        if not inspect.isfunction(found):
            yield self._attribute(kind, name)
            return
        overloads = get_overloads(found)
        for each in overloads or [found]:
            if overloads:
                self._imports.add(("typing", "overload"))
                yield "@overload"
            yield self._function(each)

    def _function(self, function: Callable[..., Any]) -> str:
        (node,) = ast.parse(dedent(inspect.getsource(function))).body
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        arguments, returns = self._blocking(node.args, function), self._blocking(node.returns, function)
        return f"def {BLOCKING.get(node.name, node.name)}({ast.unparse(arguments)}) -> {ast.unparse(returns)}: ..."

    def _attribute(self, kind: type, name: str) -> str:
        """Return an attribute that ``__init__`` sets, with the type that it declares, or that its value shows."""
        for each in kind.__mro__:
            init = vars(each).get("__init__")
            if not inspect.isfunction(init):
                continue
            tree = ast.parse(dedent(inspect.getsource(init)))
            for node in ast.walk(tree):
                if found := _declared(node, name, tree):
                    return f"{name}: {ast.unparse(self._blocking(found, init))}"
        raise LookupError(f"{kind.__name__}.{name}: expected an attribute whose type __init__ shows")

    def _blocking(self, node: Any, where: Callable[..., Any]) -> ast.AST:
        """Return annotations or arguments as they are without async; note what they import."""
        node = Blocked().visit(node)
        for each in ast.walk(node):
            if isinstance(each, ast.Name):
                self._note(each.id, sys.modules[where.__module__])
        changed: ast.AST = node
        return changed

    def _note(self, name: str, module: Any) -> None:
        """Note where ``name`` comes from, as the source of ``module`` says."""
        if name in CLASSES or hasattr(builtins, name):
            return None
        if name in BLOCKING.values():
            self._imports.add(("collections.abc", name))
            return None
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.ImportFrom) and any(each.name == name for each in node.names):
                assert node.module
                if node.module.startswith("penstock."):
                    return self._note(name, import_module(node.module))
                self._imports.add((node.module, name))
                return None
            if isinstance(node, ast.Import) and any(each.name == name for each in node.names):
                self._modules.add(name)
                return None
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
                named = {each.id for each in ast.walk(Blocked().visit(node.value)) if isinstance(each, ast.Name)}
                if named & CLASSES:
                    self._aliases[name] = f"{name} = {ast.unparse(node.value)}"
                    for each in named:
                        self._note(each, module)
                    return None
        self._imports.add((module.__name__, name))


class Blocked(ast.NodeTransformer):
    """Annotations without quotes, futures and outboxes, and with what is iterated without async."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str):
            return node
        changed: ast.AST = self.visit(ast.parse(node.value, mode="eval").body)
        return changed

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if ast.unparse(node.value) == "asyncio.Future":
            changed: ast.AST = self.visit(node.slice)
            return changed
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        is_outbox = isinstance(node.left, ast.Name) and node.left.id == "Outbox"  # belongs to an event loop
        changed: ast.AST = self.visit(node.right) if is_outbox else self.generic_visit(node)
        return changed

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(BLOCKING.get(node.id, node.id))

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        for each in (*node.posonlyargs, *node.args, *node.kwonlyargs, node.vararg, node.kwarg):
            if each and each.annotation:
                each.annotation = self.visit(each.annotation)
        node.defaults = [_default(each) for each in node.defaults]
        node.kw_defaults = [each and _default(each) for each in node.kw_defaults]
        return node


def _default(node: ast.expr) -> ast.expr:
    """Return a default as it is if it is a literal, else ``...``."""
    return node if isinstance(node, ast.Constant) else ast.Constant(...)


def _declared(node: ast.AST, name: str, tree: ast.Module) -> ast.expr | None:
    """Return the type of ``self.<name>`` if ``node`` assigns it: declared, of an argument, or of a literal."""
    target = f"self.{name}"
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == target:
        return node.annotation
    if not isinstance(node, ast.Assign):
        return None
    for each in node.targets:
        if ast.unparse(each) == target:
            return _type_of(node.value, tree)
        if isinstance(each, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for one, value in zip(each.elts, node.value.elts, strict=True):
                if ast.unparse(one) == target:
                    return _type_of(value, tree)
    return None


def _type_of(value: ast.expr, tree: ast.Module) -> ast.expr | None:
    if isinstance(value, ast.Constant):
        return ast.Name(type(value.value).__name__)
    for each in ast.walk(tree):
        if isinstance(each, ast.arg) and isinstance(value, ast.Name) and each.arg == value.id:
            return each.annotation
    return None


def stubs() -> str:
    """Return the generated file, formatted."""
    text = Stubs().text()
    for words in (("check", "--quiet", "--select", "I", "--fix"), ("format", "--quiet")):
        command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", "penstock/sync/bus.pyi", "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text

"""The types of ``penstock.sync``, made from the asynchronous classes: ``python -m tests.support.stubs`` writes them.

What is awaited there returns here. What a blocking class describes itself, with a docstring, is as it says.
"""

import ast
import builtins
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from textwrap import dedent, indent
from typing import Any, Final, get_overloads

from penstock.sync.twin import Twin
from tests.support.harness import ROOT

MODULES: Final = ("bus", "hqueue", "jobs", "lists")
"""Those of ``penstock.sync`` that have twins."""
HEAD: Final = '''"""Generated from ``penstock.{module}``: ``python -m tests.support.stubs`` writes it anew."""

{imports}

{aliases}

'''
BLOCKING: Final = {"AsyncIterator": "Iterator", "AsyncGenerator": "Generator", "asynccontextmanager": "contextmanager"}
"""The names of what blocks."""
AWAITED: Final = ("asyncio.Future", "Awaitable")


def file_of(module: str) -> Path:
    """Return the file with the types of a module of ``penstock.sync``."""
    return ROOT / "penstock" / "sync" / f"{module}.pyi"


def classes_of(module: str) -> dict[str, Any]:
    """Return what users import of a module of ``penstock.sync``, in order."""
    found = vars(import_module(f"penstock.sync.blocking_{module}"))
    return {name: each for name, each in found.items() if name in found["__all__"]}


class Stubs:
    """Collects the classes of a module, what they import, and aliases that name them."""

    def __init__(self, module: str) -> None:
        self._module, public = module, classes_of(module)
        self._own = {name: each for name, each in public.items() if each.__module__.startswith("penstock.sync.")}
        self._others = {name: each for name, each in public.items() if name not in self._own}
        self._imports = set[tuple[str, str]]()
        self._modules = set[str]()
        self._aliases: dict[str, str] = {}

    def text(self) -> str:
        """Return the whole file."""
        classes = "\n\n".join(map(self._class, self._own.values()))
        modules = "".join(f"import {each}\n" for each in sorted(self._modules))
        lines = [f"from {module} import {name}" for module, name in sorted(self._imports) if name not in self._others]
        lines += [f"from {each.__module__} import {name} as {name}" for name, each in self._others.items()]
        aliases = "\n".join(self._aliases.values())
        return HEAD.format(module=self._module, imports=modules + "\n".join(lines), aliases=aliases) + classes + "\n"

    def _class(self, kind: type) -> str:
        bases = [each for each in kind.__bases__ if each not in (Twin, object)]
        bases = [each for each in bases if not _is_blocking(each) or _is_inherited(kind, each)]
        self._imports |= {(each.__module__, each.__name__) for each in bases if not _is_blocking(each)}
        named = f"({', '.join(each.__name__ for each in bases)})" if bases else ""
        lines = [f'class {kind.__name__}{named}:\n    """{(kind.__doc__ or "").splitlines()[0]}"""\n']
        inherited = {each for base in bases for each in base.__mro__}
        own = [each for each in reversed(kind.__mro__) if _is_blocking(each) and each not in inherited]
        names = getattr(kind, "_names", ())
        described = {name: each for one in own for name, each in vars(one).items() if _is_described(name, each)}
        for name in names:
            if not _is_same(kind, bases, name):
                lines += [indent(each, "    ") for each in self._member(kind, name)]
        for each in (described[name] for name in described if name not in names):
            lines += [indent(line, "    ") for line in self._described(each)]
        return "\n".join(lines)

    def _member(self, kind: Any, name: str) -> Iterator[str]:
        found = inspect.getattr_static(resolve_name(kind._of), name, None)
        if inspect.isfunction(found) or isinstance(found, property | cached_property):
            yield from self._described(found)
        else:
            yield self._attribute(kind, name)

    def _described(self, found: Any) -> Iterator[str]:
        if isinstance(found, property | cached_property):
            yield "@property"
            found = found.fget if isinstance(found, property) else found.func
        overloads = get_overloads(found)
        for each in overloads or [found]:
            if overloads:
                self._imports.add(("typing", "overload"))
                yield "@overload"
            yield from self._function(each)

    def _function(self, function: Callable[..., Any]) -> Iterator[str]:
        (node,) = ast.parse(dedent(inspect.getsource(function))).body
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if any(BLOCKING.get(name, name) == "contextmanager" for name in map(ast.unparse, node.decorator_list)):
            self._imports.add(("contextlib", "contextmanager"))
            yield "@contextmanager"
        arguments, returns = self._blocking(node.args, function), self._blocking(node.returns, function)
        yield f"def {node.name}({ast.unparse(arguments)}) -> {ast.unparse(returns)}: ..."

    def _attribute(self, kind: type, name: str) -> str:
        """Return an attribute with the type that its twin declares."""
        for each in filter(_is_blocking, kind.__mro__):
            if name in inspect.get_annotations(each):
                (node,) = ast.parse(dedent(inspect.getsource(each))).body
                assert isinstance(node, ast.ClassDef)
                (found,) = (
                    line for line in node.body if isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == name
                )
                return f"{name}: {ast.unparse(self._blocking(found.annotation, each))}"
        raise LookupError(f"{kind.__name__}.{name}: expected a method, a property, or an attribute with its type")

    def _blocking(self, node: Any, where: Any) -> ast.AST:
        """Return annotations or arguments as they are without async; note what they import."""
        node = Blocked().visit(node)
        for each in ast.walk(node):
            if isinstance(each, ast.Name):
                self._note(each.id, sys.modules[where.__module__])
        changed: ast.AST = node
        return changed

    def _note(self, name: str, module: Any) -> None:
        """Note where ``name`` comes from, as the source of ``module`` says."""
        if name in self._own or name in self._aliases or hasattr(builtins, name):
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
        if self._names_own(name, module):
            value = _value_of(name, module)
            for each in _names_in(value):
                self._note(each, module)
            self._aliases[name] = f"{name} = {ast.unparse(value)}"
        else:
            self._imports.add((module.__name__, name))

    def _names_own(self, name: str, module: Any) -> bool:
        """Return whether ``name`` is one of the classes, or an alias in ``module`` that names one."""
        value = _value_of(name, module)
        return name in self._own or (
            value is not None and any(self._names_own(each, module) for each in _names_in(value))
        )


class Blocked(ast.NodeTransformer):
    """Annotations without quotes, futures and outboxes, and with what is iterated without async."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str):
            return node
        changed: ast.AST = self.visit(ast.parse(node.value, mode="eval").body)
        return changed

    def visit_Call(self, node: ast.Call) -> ast.AST:  # of a TypeVar, whose name is in quotes
        for each in node.keywords:
            each.value = self.visit(each.value)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if ast.unparse(node.value) in AWAITED:
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


def _is_blocking(kind: type) -> bool:
    """Return whether a class is one of ``penstock.sync``."""
    return kind.__module__.startswith("penstock.sync.") and kind is not Twin


def _is_described(name: str, found: Any) -> bool:
    """Return whether a class describes a public method or property itself."""
    is_public = name[0] != "_" or name[:2] == "__"
    return is_public and (inspect.isfunction(found) or isinstance(found, property)) and bool(found.__doc__)


def _is_inherited(kind: Any, base: Any) -> bool:
    """Return whether the asynchronous class of a twin inherits that of its base, so that its types do, too."""
    return "_of" in vars(base) and issubclass(resolve_name(kind._of), resolve_name(base._of))


def _is_same(kind: Any, bases: list[Any], name: str) -> bool:
    """Return whether one of ``bases`` has the same member ``name``."""
    found = [
        inspect.getattr_static(resolve_name(each._of), name, None)
        for each in (kind, *bases)
        if name in getattr(each, "_names", ())
    ]
    return found[0] in found[1:]


def _value_of(name: str, module: Any) -> Any:
    """Return what the source of ``module`` assigns to ``name``, without async; None if it does not."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.Assign) and [ast.unparse(each) for each in node.targets] == [name]:
            return Blocked().visit(node.value)
    return None


def _names_in(value: Any) -> list[str]:
    return [each.id for each in ast.walk(value) if isinstance(each, ast.Name)]


def stubs(module: str) -> str:
    """Return the generated file, formatted."""
    text = Stubs(module).text()
    for words in (("check", "--quiet", "--select", "I", "--fix"), ("format", "--quiet")):
        command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", str(file_of(module)), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


if __name__ == "__main__":
    for each in MODULES:
        file_of(each).write_text(stubs(each))

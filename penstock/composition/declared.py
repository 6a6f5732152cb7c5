"""``composition.yaml``: the lists of the user's own programs and of external clients, and options of chaos."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from penstock.base import yaml_documents
from penstock.base.errors import Problem
from penstock.base.shape import Promise
from penstock.base.validation import describe_error
from penstock.composition.model import ID_HERE, Chaos

DECLARED: Final = "composition.yaml"


Names = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _External(_Strict):
    reads: Names = []
    writes: Names = []


class _Program(_Strict):
    reads: Names = []
    writes: Names = []
    keeps: Names = []
    ordered: bool = False
    redis: str | None = None


def _with_id(message: str) -> str:
    if ID_HERE not in message:
        raise ValueError(f"expected {ID_HERE} in it, as the place of each message's id")
    return message


class _Chaos(_Strict):
    message: Annotated[str, AfterValidator(_with_id)] = Chaos.message
    into: Names = []
    out: Names = []
    promise: Promise = "once"
    without: Names = []


class _File(_Strict):
    external: _External = _External()
    programs: dict[str, _Program] = {}
    chaos: _Chaos = _Chaos()


@dataclass(frozen=True)
class Program:
    """A process that is not a service of Penstock."""

    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    keeps: list[str] = field(default_factory=list)
    """Its pending lists: messages that it has taken and not settled."""
    ordered: bool = False
    """True if it guarantees to keep the order of its messages."""
    redis: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Declared:
    """The content of the file; empty if there is none."""

    file: str | None = None
    external_reads: list[str] = field(default_factory=list)
    external_writes: list[str] = field(default_factory=list)
    programs: dict[str, Program] = field(default_factory=dict)
    chaos: Chaos = field(default_factory=Chaos)


def read_declared(file: Path, problems: list[Problem]) -> Declared:
    """Read ``file`` and append its problems to ``problems``; invalid content is left out."""
    if not file.is_file():
        return Declared()
    try:
        node = yaml.compose(file.read_text(), Loader=yaml_documents.BoundedLoader)
        content = yaml_documents.load_yaml(file.read_text()) or {}
    except yaml.YAMLError as error:
        words, line = yaml_documents.describe_yaml_error(error)
        problems.append(Problem(f"not YAML: {words}", str(file), line))
        return Declared(str(file))
    try:
        read = _File.model_validate(content)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            line = line_of(node, detail["loc"])
            problems.append(Problem(describe_error(detail), str(file), line, ".".join(map(str, detail["loc"])) or None))
        return Declared(str(file))
    asked = read.chaos
    chaos = Chaos(asked.message, tuple(asked.into), tuple(asked.out), asked.promise, tuple(asked.without))
    programs = {
        name: Program(line=line_of(node, ("programs", name)), **program.model_dump())
        for name, program in read.programs.items()
    }
    return Declared(str(file), read.external.reads, read.external.writes, programs, chaos)


def line_of(node: Any, path: tuple[int | str, ...]) -> int | None:
    """Return the line, from 1, of the node at ``path``, or of its last ancestor that exists."""
    line = node.start_mark.line + 1 if node else None
    for step in path:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == str(step)]
            if not found:
                return line
            key, node = found[0]
            line = key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
    return line

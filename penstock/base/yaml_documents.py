"""Load YAML with limits on size, and describe its errors by what to do about them."""

from typing import Any, Final

import yaml

MAX_VALUES: Final = 20_000
"""Maximum number of values, and pairs merged by ``<<``, in a document: loading more takes longer than a second."""

MESSAGES: Final = (
    ("' or ']'", "a [ is not closed, or a comma is missing"),
    ("' or '}'", "a { is not closed, or a comma is missing"),
    ("unexpected end of stream", "a quote is not closed"),
    ("mapping values are not allowed", "a second `: ` in a line, or a wrong indent; put a value with `: ` in quotes"),
    ("cannot start any token", "a value begins with a character that YAML reserves, or with a tab: put it in quotes"),
    ("undefined alias", "a value begins with *: put it in quotes"),
    ("could not determine a constructor", "a value begins with !: put it in quotes"),
    ("unhashable key", "a name is a list or an object: expected a text"),
    ("unknown escape", "an unknown \\ escape within double quotes: use single quotes"),
    ("another document", "a second document (---): expected a single document"),
    ("could not find expected ':'", "a line without `: `"),
    ("<block end>", "a wrong indent, or a line without `: `"),
    ("sequence entries are not allowed", "a - in the middle of a line: begin a new line with it"),
    ("node content", "a value is missing"),
    ("chomping", "a value begins with | or >: put it in quotes"),
    ("for merging", "what << names has no properties to merge"),
    ("duplicate anchor", "an &name is given twice"),
    ("too many values", f"more than {MAX_VALUES:,} values: not a file of ours"),
    ("too many pairs", "merges (<<) of merges multiply its properties: write them out"),
)
"""Parts of PyYAML's messages, and ours instead: PyYAML quotes parts of the text, which may be a password."""


class BoundedLoader(yaml.SafeLoader):
    """A loader that raises ``yaml.MarkedYAMLError`` if a document exceeds ``MAX_VALUES``."""

    _values = _merged = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise yaml.composer.ComposerError(None, None, "too many values", self.get_mark())
        return super().compose_node(parent, index)

    def flatten_mapping(self, node: Any) -> None:
        """Count the merged pairs at each level, since the next level may multiply them."""
        super().flatten_mapping(node)
        self._merged += len(node.value)
        if self._merged > MAX_VALUES:
            raise yaml.constructor.ConstructorError(None, None, "too many pairs", node.start_mark)


def load_yaml(text: str) -> Any:
    """Return the value of ``text``. Raise ``yaml.YAMLError``."""
    return yaml.load(text, Loader=BoundedLoader)


def describe_yaml_error(error: yaml.YAMLError | UnicodeDecodeError) -> tuple[str, int | None]:
    """Return the problem, without quoting the text, and its line (from 1)."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return "a control character, or an encoding other than UTF-8", None
    said = " ".join(filter(None, (error.context, error.problem)))
    words = next((words for part, words in MESSAGES if part in said), "the text breaks off, or is of another format")
    begins_there = "not closed" in words or words.startswith("a line")
    mark = (error.context_mark if begins_there else None) or error.problem_mark
    return words, mark.line + 1 if mark else None

"""Describe pydantic's validation errors in the words of our other messages."""

from collections.abc import Mapping
from typing import Any, Final

MESSAGES: Final = {
    "missing": "is missing",
    "extra_forbidden": "unknown property",
    "string_pattern_mismatch": "expected a text that matches {pattern}",
    "string_too_long": "expected at most {max_length} characters",
    "too_short": "is empty: expected one at least",
    "string_too_short": "is empty: expected a text",
    "dict_type": "expected keys with values",
    "model_type": "expected keys with values",
    "list_type": "expected a list",
    "string_type": "expected a text",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_parsing_size": "expected a smaller number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "finite_number": "expected a number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "greater_than_equal": "expected {ge} or more",
    "greater_than": "expected more than {gt}",
    "less_than_equal": "expected {le} or less",
    "less_than": "expected less than {lt}",
}


def describe_error(detail: Mapping[str, Any]) -> str:
    """Describe one error of ``ValidationError.errors()``."""
    words = MESSAGES.get(detail["type"])
    if words:
        return words.format(**detail.get("ctx", {}))
    return str(detail["msg"]).removeprefix("Value error, ").replace("Input should be", "expected")

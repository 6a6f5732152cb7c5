"""Write a dict as a props file in every format."""

import json
from collections.abc import Callable
from typing import Any, Final

import yaml
from hypothesis import assume


def as_toml(props: dict[str, Any]) -> str:
    lines = (f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in props.items())
    return "".join(lines).replace("\x7f", "\\u007f")


def as_env(props: dict[str, Any]) -> str:
    """Use single quotes; python-dotenv cannot read a backslash before the closing one, so skip such examples."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in props.items()}
    assume(not any(text.endswith("\\") or "\\'" in text for text in texts.values()))
    quoted = {name: text.replace("\\", "\\\\").replace("'", "\\'") for name, text in texts.items()}
    return "".join(f"{name}='{text}'\n" for name, text in quoted.items())


def as_yaml(props: dict[str, Any]) -> str:
    """Escape all of Unicode if there is a NEL, which YAML reads as a line end: PyYAML cannot escape it alone."""
    return str(yaml.safe_dump(props, allow_unicode="\\u0085" not in json.dumps(props)))


def as_javascript(props: dict[str, Any]) -> str:
    return f"// names\nmodule.exports = {json.dumps(props, ensure_ascii=False)};\n"


FORMATS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    ".json": json.dumps,
    ".json5": lambda props: json.dumps(props, ensure_ascii=False)[:-1] + ",}",
    ".js": as_javascript,
    ".yaml": as_yaml,
    ".toml": as_toml,
    ".env": as_env,
}

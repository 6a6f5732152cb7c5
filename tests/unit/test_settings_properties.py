"""Settings under hypothesis: valid ones survive every format, invalid ones are refused."""

import json
from contextlib import suppress
from typing import Any, Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from common.settings.fields import bounds_of, expected_of
from penstock.base.errors import SettingsError
from penstock.base.installed import services
from penstock.base.shape import property_of
from penstock.composition.service import settings_of
from services.mpush.settings import Settings
from tests.support.given import problems_of
from tests.unit.writers import FORMATS

NAMES: Final = st.text(
    st.sampled_from(" \"'`[]{}*?,:;=#$&!|>%@\\é日😀\n\t\u2028\x7f-_/") | st.characters(codec="utf-8"), min_size=1
)
quick: Final = settings(deadline=None, max_examples=40)
OPTIONAL: Final[dict[str, st.SearchStrategy[object]]] = {"redisNamespace": NAMES, "popTimeout": st.integers(5, 30)}


@st.composite
def properties(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the content of a valid props file."""
    names = draw(st.lists(NAMES, min_size=3, max_size=6, unique=True))
    props: dict[str, Any] = {"redis": "redis://h/1", "in": names[0], "pending": names[1], "out": names[2:]}
    props |= draw(st.fixed_dictionaries({}, optional=OPTIONAL))
    props |= draw(st.sampled_from([{}, {"maxLength": 9, "overflow": "drop-oldest"}, {"durability": "replicas:2"}]))
    with suppress(SettingsError):
        Settings(**{{"in": "in_"}.get(name, snake(name)): value for name, value in props.items()})
        return props
    assume(False)
    raise AssertionError


def snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


@pytest.mark.parametrize("suffix", FORMATS)
@quick
@given(props=properties())
def test_valid_settings_come_back_from_every_format(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, props: dict[str, Any]
) -> None:
    file = tmp_path_factory.getbasetemp() / f"props{suffix}"
    file.write_bytes(FORMATS[suffix](props).encode())
    shown = Settings.load(file, {}).shown()
    assert {name: shown[name] for name in props} == props


@quick
@given(props=properties())
def test_valid_settings_come_back_from_the_environment(props: dict[str, Any]) -> None:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in props.items()}
    loaded = Settings.load(None, {f"MPUSH_{snake(name).upper()}": text for name, text in texts.items()})
    assert {name: loaded.shown()[name] for name in props} == props


@pytest.mark.parametrize("service", services())
def test_each_number_is_of_its_type_and_in_its_bounds(service: str) -> None:
    """That these are the bounds that were meant, docs/settings.md says."""
    settings: Any = settings_of(service)
    for name, field in settings.model_fields.items():
        least, most = bounds_of(field)
        if least is not None and most is not None:
            refusal = f"{property_of(name)}: expected {expected_of(field)}, found "
            whole = [least + 0.5] if "whole" in refusal else []
            for value in (least, most, str(least)):
                assert not [problem for problem in problems_of(settings, {name: value}) if refusal in problem]
            for wrong in (least - 1, most + 1, str(most + 1), True, "ten", float("nan"), [least], *whole):
                assert [problem for problem in problems_of(settings, {name: wrong}) if problem.startswith(refusal)]


@pytest.mark.parametrize("service", services())
def test_all_missing_settings_are_reported_at_once(service: str) -> None:
    settings: Any = settings_of(service)
    missing = {f"{property_of(name)}: missing" for name, field in settings.model_fields.items() if field.is_required()}
    said = problems_of(settings, {})
    assert missing <= {problem.rpartition(": expected ")[0] for problem in said}


@quick
@given(renew=st.integers(0, 100), expire=st.integers(25, 100))
def test_renewal_is_accepted_exactly_when_it_comes_5_seconds_before_the_expiry(renew: int, expire: int) -> None:
    good = expire >= 30 and 5 <= renew <= expire - 5
    try:
        Settings(redis="redis://h", in_="a", pending="b", out=["c"], service_renew=renew, service_expire=expire)
    except SettingsError:
        assert not good
    else:
        assert good


@quick
@given(
    values=st.dictionaries(
        st.sampled_from(["in", "out", "redis", "batch", "ordered", "overflow"]) | st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=5,
        ),
    )
)
def test_no_value_of_any_type_raises_anything_but_settings_error(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    file = tmp_path_factory.getbasetemp() / "values.json"
    file.write_text(json.dumps(values))
    with suppress(SettingsError):
        Settings.load(file, {"MPUSH_PENDING": "pending"})

"""penstock lint and map of a composition with mdedupe and mlimit."""

from pathlib import Path

import pytest

from tests.support.commandline import penstock

ONCE = """\
redis: redis://localhost:6379/0
redisNamespace: shop:once
in: shop:raw
pending: shop:raw:pending
out: shop:in
duplicates: shop:again
"""
RATE = """\
redis: redis://localhost:6379/0
redisNamespace: shop:rate
in: shop:in
pending: shop:in:pending
out: shop:mails
rate: 5
by: field
field: meta.user
"""


@pytest.fixture
def composition(tmp_path: Path) -> Path:
    (tmp_path / "mdedupe.yaml").write_text(ONCE)
    (tmp_path / "mlimit.yaml").write_text(RATE)
    (tmp_path / "Procfile").write_text("once: penstock run mdedupe.yaml\nrate: penstock run mlimit.yaml\n")
    external = "external:\n  writes: [shop:raw]\n  reads: [shop:mails, shop:again]\n"
    (tmp_path / "composition.yaml").write_text(external)
    return tmp_path


async def test_a_composition_of_both_is_fine(composition: Path) -> None:
    result = await penstock("lint", composition, redis=None)
    assert (result.status, result.text.startswith(f"{composition}: OK")) == (0, True), result.text


async def test_what_goes_nowhere_is_found_with_file_and_line(composition: Path) -> None:
    (composition / "mlimit.yaml").write_text(RATE + "over: list\noverList: shop:surplus\n")
    result = await penstock("lint", composition, redis=None)
    assert result.status == 1
    assert "mlimit.yaml:10: overList: 'shop:surplus' is written and never read" in result.text


async def test_the_way_of_messages_is_drawn(composition: Path) -> None:
    drawn = (await penstock("map", composition, redis=None)).text
    for name in ("shop:raw", "shop:again", "shop:mails", "shop:rate:dead"):
        assert name in drawn
    assert drawn.index("shop:raw") < drawn.index("once (mdedupe)") < drawn.index("rate (mlimit)")

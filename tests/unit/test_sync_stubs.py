"""penstock/sync/bus.pyi is generated from the code: ``python -m tests.unit.test_sync_stubs`` writes it."""

from typing import Final

from tests.support.harness import ROOT
from tests.support.stubs import stubs

FILE: Final = ROOT / "penstock" / "sync" / "bus.pyi"


def test_the_types_of_the_blocking_bus_equal_the_generated_ones() -> None:
    assert FILE.read_text() == stubs(), "python -m tests.unit.test_sync_stubs writes them anew"


if __name__ == "__main__":
    FILE.write_text(stubs())

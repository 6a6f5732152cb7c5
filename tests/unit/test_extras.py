"""What a program hears that uses a part of Penstock whose extra is not installed."""

import subprocess
import sys

import pytest

USES = {
    "msgpack": ("outbox", "import penstock.outbox"),
    "httpx": ("hqueue", "import penstock.hqueue"),
    "croniter": ("jobs", "from penstock.jobs.schedule import Schedule; Schedule('* * * * *', 'UTC')"),
    "cryptography": ("seal", "import penstock.sealing.master"),
    "duckdb": ("sql", "from penstock.spark.sql import connect; connect('/none')"),
    "pyarrow": ("delta", "import penstock.spark.delta"),
    "deltalake": ("delta", "import penstock.spark.delta"),
    "pyspark": ("spark", "from penstock.spark import register; register(None)"),
    "jsonpath_ng": ("test", "import penstock.testing.spec.files"),
    "junitparser": ("test", "import penstock.testing.spec.junit"),
}
IN_OTHERS = (
    "from asyncio import run; from penstock.lists import Lists; run(Lists('redis://a:1', outbox='.').__aenter__())",
    "from asyncio import run; from penstock.bus import Bus; run(Bus('redis://a:1', outbox='.').__aenter__())",
    "from penstock.sync import Lists; Lists('redis://a:1', outbox='.').__enter__()",
    "from penstock.sync import Queues; Queues('http://localhost:1')",
)


def last_line(missing: str, statement: str) -> str:
    code = f"import sys; sys.modules[{missing!r}] = None; {statement}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 1
    assert "another exception occurred" not in ran.stderr
    return ran.stderr.splitlines()[-1].removeprefix("penstock.base.extras.MissingExtra: ")


@pytest.mark.parametrize("missing", USES)
def test_what_is_missing_is_one_line_with_its_extra(missing: str) -> None:
    extra, statement = USES[missing]
    assert last_line(missing, statement) == f"{missing} is not installed: pip install 'penstock[{extra}]'"


@pytest.mark.parametrize("statement", IN_OTHERS)
def test_what_another_library_misses_is_one_line_with_its_extra(statement: str) -> None:
    missing, extra = ("httpx", "hqueue") if "Queues" in statement else ("msgpack", "outbox")
    assert last_line(missing, statement) == f"{missing} is not installed: pip install 'penstock[{extra}]'"

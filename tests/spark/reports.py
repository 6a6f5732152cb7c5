"""Reports made by hand, so that pages of them need no Spark."""

from dataclasses import replace

from penstock.spark import tables
from penstock.spark.lifecycles import Lifecycle
from penstock.spark.report import Backlog, Report, Section, Times
from penstock.spark.rollups import PERCENTILES
from penstock.spark.time_axis import TimeAxis
from tests.spark.generated_events import NOON

EVIL = '<script>alert("1")</script>&$x_1$'
AXIS = TimeAxis(NOON, 60, 4)
TIMES = Times(
    3, 1.5, 3.0, {"p50": 1.0, "p95": 3.0, "p99": 3.0}, {name: [1.0, None, 2.0, 3.0] for name in ("p50", "p95", "p99")}
)
SECTION = Section(
    namespace=EVIL,
    totals={"registered": 5, "done": 3, "timeout": 1, "dead": 1},
    counts={"registered": [5, 0, 0, 0], "done": [1, 0, 1, 1], "timeout": [0, 1, 0, 0], "dead": [0, 1, 0, 0]},
    times={"done": TIMES},
    histogram={"done": [3] + [0] * 10, "timeout": [0] * 10 + [1]},
    unmeasured=0,
    dead={"timeout": [0, 1, 0, 0], "failed": [0, 0, 0, 0], "unknown": [0, 0, 0, 0]},
    backlog=Backlog(2, True, [6, 5, 4, 3]),
    slowest=[Lifecycle("7", EVIL, EVIL, "1", 2, 12.5, NOON + 20.0, "done")],
)
REPORT = Report("/archive", None, NOON + 300.0, NOON + 1.0, NOON + 200.0, AXIS, [SECTION])
BUSY = replace(
    SECTION,
    namespace="tracked:alert",
    totals=dict.fromkeys(tables.KINDS, 1_751_800),
    counts={kind: [(37 * place) % 101 * 1_000 for place in range(100)] for kind in tables.KINDS},
    times={
        "done": replace(
            TIMES,
            over_time={
                name: [None if place % 7 == 3 else (place + 1) / 25 for place in range(100)] for name in PERCENTILES
            },
        ),
        "late": replace(TIMES, over_time={name: [0.001, 2_000.0] * 50 for name in PERCENTILES}),
    },
    histogram={"done": [1_234_567 // (place + 1) for place in range(11)], "timeout": [0] * 10 + [1_751_800]},
    dead={reason: [place % 3 for place in range(100)] for reason in SECTION.dead},
    backlog=Backlog(2, False, [1_751_800 * place for place in range(100)]),
    slowest=[
        Lifecycle(str(number), f"alert-{'0123456789abcdef' * 4}", "out", "1", None, 1_200 / number, NOON + 20.0, "done")
        for number in range(1, 21)
    ],
)
WIDE = replace(REPORT, axis=TimeAxis(NOON - 50, 1, 100), sections=[BUSY, replace(BUSY, namespace="tracked:archive")])
"""Large numbers, long names and labels, two namespaces."""

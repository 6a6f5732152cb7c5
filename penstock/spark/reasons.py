"""One-line reasons for errors of Spark: what happened, where, and what to do."""

import re
import signal
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.archive import TAKEN_OVER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRITTEN: Final = re.compile(
    r"writing rows to (.+?)(?:\. SQLSTATE|$)|mkdir of (.+?) failed|Mkdirs failed to create (.+?)(?: \(exists|$)",
    re.MULTILINE,
)
ASIDE: Final = re.compile(r"/(?:\.spark-staging|_temporary|\.hive-staging|_merging|_writing).*")
"""Suffix that Spark or the pipeline appends to the directory that the operator knows."""
FULL: Final = re.compile("No space left on device|[Dd]isk quota exceeded|DSQuotaExceeded")
CLOSED: Final = re.compile(
    "Read-only file system|Permission denied|AccessControlException|mkdir of .* failed|Mkdirs failed"
)
TWICE: Final = re.compile("CONCURRENT_STREAM_LOG_UPDATE|streaming queries are concurrently using")
"""What Spark says if another process goes on from the same checkpoint."""
MEMORY: Final = re.compile(r"java\.lang\.OutOfMemoryError|Java heap space")
SHORT_OF_MEMORY: Final = "Spark's Java ran out of memory: give it more (memory), or less to do at a time"
MEMORY_STATUS: Final = 52
"""Exit status of Spark's Java after an ``OutOfMemoryError``."""
SLOW: Final = re.compile("Python worker (?:failed )?to connect back")
SLOW_PYTHON: Final = "Spark's Python did not start within 10 s: the machine is overloaded, or its Python is broken"
"""The reason when Spark gave up on a process that it had started; no setting changes those 10 s."""
CAUSE: Final = re.compile(r"^(?:Caused by: |: )?(?:\w+\.)+\w*(?:Error|Exception)\w*: (?P<what>\S.*)")
RAISED: Final = re.compile(
    r"An exception was thrown from the Python worker:\s+Traceback.*\n(?:[ \t].*\n)*(?P<what>\w[\w.]*(?:: .*)?)"
)
"""What a worker has raised, after its traceback."""
WRAPPER: Final = re.compile(
    "An exception was raised by the Python Proxy|An error occurred while calling|Job aborted due to|Traceback"
)
"""Start of a line without information; the last cause in the text says more."""
JAVA_EXIT_SECONDS: Final = 2.0
"""Longest time that a killed Java takes to end."""
BUSY_EXIT_SECONDS: Final = 20.0
"""The same on a busy machine, where the connection to it is known to be lost."""


def reason_of_error(error: Exception, where: str = "") -> str:
    """Return the reason for ``error``, of Spark or of the connection to its Java; ``where`` is the directory in use."""
    from py4j.protocol import Py4JJavaError, Py4JNetworkError
    from pyspark.errors import PySparkException

    patience = BUSY_EXIT_SECONDS if isinstance(error, Py4JNetworkError) else JAVA_EXIT_SECONDS
    if not isinstance(error, Py4JJavaError | PySparkException) and (ended := java_ended(patience)):
        return ended
    return reason(str(error), where)


def reason(text: str, where: str = "") -> str:
    """Return the informative line of ``text``, an error of Spark."""
    found = WRITTEN.search(text)
    place = ASIDE.sub("", found[found.lastindex or 0]) if found else where or "a directory of Spark's"
    place = place.removeprefix("file:")
    if FULL.search(text):
        return f"{place}: the disk is full: make room and start again; nothing that was written is lost"
    if CLOSED.search(text):
        return f"{place} cannot be written: make it writable for this user, or name another directory"
    if TWICE.search(text):
        return f"{place}: {TAKEN_OVER}"
    if MEMORY.search(text):
        return SHORT_OF_MEMORY
    if SLOW.search(text):
        return SLOW_PYTHON
    lines = [line.strip() for line in text.strip().splitlines()] or [""]
    causes = [cause["what"] for line in lines if (cause := CAUSE.match(line)) and not WRAPPER.search(cause["what"])]
    if causes and WRAPPER.search(lines[0]):
        return causes[-1]
    raised = RAISED.match(text.strip())
    return raised["what"] if raised else lines[0]


def java_ended(patience: float = JAVA_EXIT_SECONDS) -> str | None:
    """Return how the Java process of this process has ended; None if it lives or was started by spark-submit."""
    from pyspark import SparkContext

    process: Any = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    try:
        status = process.wait(patience)
    except subprocess.TimeoutExpired:
        return None
    if status == MEMORY_STATUS:
        return SHORT_OF_MEMORY
    how = f"was killed ({signal.Signals(-status).name})" if status < 0 else f"has ended with status {status}"
    return f"Spark's Java process {how}: see the system's log, perhaps memory was short; then start again"


def stop(spark: "SparkSession") -> None:
    """Stop ``spark``, unless its Java has ended."""
    from py4j.protocol import Py4JNetworkError

    if java_ended(0) is None:
        try:
            spark.stop()
        except Py4JNetworkError:
            if java_ended(BUSY_EXIT_SECONDS) is None:
                raise


def without_noise(spark: "SparkSession") -> None:
    """Keep the accumulator server from printing a traceback when Java has ended."""
    server: Any = spark.sparkContext._accumulatorServer
    usual: Callable[[Any, Any], None] = server.handle_error

    def handle(request: Any, address: Any) -> None:
        if java_ended() is None:
            usual(request, address)

    server.handle_error = handle

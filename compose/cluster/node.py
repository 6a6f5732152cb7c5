"""Node of a standalone Spark cluster: ``python -m compose.cluster.node master``, or ``worker``.

SPARK_MASTER is the URL of the master. Spark's own variables, such as SPARK_WORKER_CORES, apply as well.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Final, NoReturn

from penstock.base.launch import search_path
from penstock.errors import PenstockError, Unsuitable
from penstock.spark.session import LOOPBACK, masters, wait_for_master, what_is_missing

MASTER: Final = "spark://127.0.0.1:7077"
ROLES: Final = {"master": "org.apache.spark.deploy.master.Master", "worker": "org.apache.spark.deploy.worker.Worker"}
DEFAULTS: Final = {
    "SPARK_DAEMON_MEMORY": "128m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "SPARK_WORKER_CORES": "1",
    "SPARK_WORKER_MEMORY": "1g",
    "SPARK_WORKER_DIR": str(Path(tempfile.gettempdir()) / "penstock-cluster-work"),
}
"""Defaults for small nodes that share a machine."""


def main(words: list[str]) -> NoReturn:
    """Replace this process by Spark's."""
    if len(words) != 1 or words[0] not in ROLES:
        print("usage: python -m compose.cluster.node master|worker", file=sys.stderr)
        sys.exit(2)
    (role,) = words
    try:
        command, environment = node(role, os.environ.get("SPARK_MASTER", MASTER))
    except PenstockError as error:
        sys.exit(f"{role}: {error}")
    os.execve(command[0], command, environment)


def node(role: str, master: str) -> tuple[list[str], dict[str, str]]:
    """Return the node's command and environment; a worker waits for the master first. Raise ``Unsuitable``."""
    if problem := what_is_missing():
        raise Unsuitable(problem)
    import pyspark

    if not (addresses := masters(master)):
        raise Unsuitable(f"SPARK_MASTER={master}: expected spark://host:port")
    (host, port), *_ = addresses
    environment = DEFAULTS | dict(os.environ)
    environment["PATH"] = search_path(environment)
    if host in LOOPBACK:  # the node runs any code sent to it, so no other machine may reach it
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), ROLES[role]]
    if role == "master":
        return [*command, "--host", host, "--port", str(port)], environment
    wait_for_master(master)
    return [*command, master], environment


if __name__ == "__main__":
    main(sys.argv[1:])

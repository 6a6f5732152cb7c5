"""Executor of Spark on Kubernetes: ``python -m compose.cluster.kubernetes.executor executor``.

Spark appends the word ``executor`` to the command of the pod, and says the rest by variables, as to its own image.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

CLASS: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
OPTIONS: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""Options of the class, each with the variable that Spark sets in the pod."""
JAVA_OPTION: Final = re.compile(r"SPARK_JAVA_OPT_(\d+)")


def command(environment: Mapping[str, str], jars: str) -> list[str]:
    """Return the command of the executor. Raise ``KeyError`` if a variable is missing."""
    numbered = {int(found[1]): name for name in environment if (found := JAVA_OPTION.fullmatch(name))}
    java = [environment[numbered[number]] for number in sorted(numbered)]
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    paths = (environment.get("SPARK_CONF_DIR"), environment.get("SPARK_CLASSPATH"), jars)
    heap = [f"-Xms{memory}", f"-Xmx{memory}", "-cp", ":".join(filter(None, paths))]
    options = [word for option, name in OPTIONS.items() for word in (option, environment[name])]
    return ["java", *java, *heap, CLASS, *options]


def main() -> None:
    """Replace this process by Spark's."""
    import pyspark

    try:
        words = command(os.environ, str(Path(pyspark.__file__).parent / "jars" / "*"))
    except KeyError as error:
        sys.exit(f"executor: {error.args[0]} is missing: Spark sets it in the pods that it makes")
    os.execvp(words[0], words)


if __name__ == "__main__":
    main()

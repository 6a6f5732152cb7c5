"""Runner of a compose.yaml with buildah, for machines without a container engine: one container per process.

Each shares the host's network and reaches the caller's servers on loopback. It uses these parts of compose.yaml:
command, environment, mounts of folders, replicas, grace period, and if there is a health check. In place of a volume
a container has its own file system.
"""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

import psutil
import yaml

BUILDAH: Final = ("buildah", "--storage-driver", "vfs")
RUN: Final = ("run", "--isolation", "chroot", "--network", "host")


def buildah(*words: str) -> str:
    """Run buildah and return its output. Raise ``CalledProcessError``, whose ``stderr`` says why."""
    return subprocess.run([*BUILDAH, *words], check=True, capture_output=True, text=True).stdout.strip()


@dataclass(frozen=True)
class Image:
    """Entry point and health check of an image."""

    name: str
    entrypoint: list[str]
    probe: list[str]

    @classmethod
    def inspect(cls, name: str) -> Self:
        config = json.loads(buildah("inspect", "--type", "image", name))["Docker"]["config"]
        return cls(name, config["Entrypoint"], config["Healthcheck"]["Test"][1:])


@dataclass(frozen=True)
class Service:
    """One entry under ``services`` that runs from the image of this project."""

    name: str
    command: list[str]
    environment: dict[str, str]
    mounts: list[str]
    replicas: int
    grace: float
    """Maximum time from SIGTERM to the exit (s)."""
    probed: bool

    @classmethod
    def read(cls, file: Path, replaced: Mapping[str, str], variables: Mapping[str, str]) -> Iterator[Self]:
        """Yield the services of ``file``, with addresses ``replaced`` by others, and ``variables`` for all."""

        def here(value: str) -> str:
            for address, other in replaced.items():
                value = value.replace(address, other)
            return value

        for name, entry in yaml.safe_load(file.read_text())["services"].items():
            if "build" in entry:
                yield cls(
                    name,
                    entry["command"],
                    # Containers without an engine share the host's /dev/shm.
                    {key: here(value) for key, value in entry["environment"].items()}
                    | {"PENSTOCK_HEALTH": "/tmp/penstock-health", **variables},
                    [str(file.parent.resolve() / mount) for mount in entry.get("volumes", []) if mount[0] in "./"],
                    entry.get("deploy", {}).get("replicas", 1),
                    float(entry["stop_grace_period"].removesuffix("s")),
                    not entry.get("healthcheck", {}).get("disable", False),
                )


class Container:
    """One running service process in its own root file system."""

    def __init__(self, image: Image, service: Service, name: str, logs: Path) -> None:
        self.name, self.service = name, service
        self._image = image
        self._id = buildah("from", "--name", f"penstock-check-{os.getpid()}-{name}", image.name)
        self._log = logs / name
        self.start()

    def start(self) -> None:
        """Start the process; again, once it has ended, with the files that it has left."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._run(*self._image.entrypoint, *self.service.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _run(self, *words: str) -> list[str]:
        options = [word for mount in self.service.mounts for word in ("--volume", mount)]
        options += [word for key, value in self.service.environment.items() for word in ("--env", f"{key}={value}")]
        return [*BUILDAH, *RUN, "--hostname", self.name, *options, self._id, "--", *words]

    def healthy(self) -> bool:
        """Return True if the image's health check passes; if it is disabled, if the process runs."""
        if not self.service.probed:
            return self.runs
        return subprocess.run(self._run(*self._image.probe), capture_output=True, check=False).returncode == 0

    def terminate(self) -> None:
        """Send SIGTERM to the service itself: buildah would end at once and kill it."""
        inside = psutil.Process(self._process.pid).children(recursive=True)
        next(each for each in inside if "buildah" not in each.cmdline()[0]).terminate()  # others are its children
        self._terminated = time.monotonic()

    @property
    def runs(self) -> bool:
        """Return whether it has not ended."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Return the exit status, or -9 after killing a process that outlives the grace period, as an engine does."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(max(self._terminated + self.service.grace - time.monotonic(), 0))
        self._process.kill()
        return self._process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def remove(self) -> None:
        self._process.kill()
        self._process.wait()
        buildah("rm", self._id)


MAX_SECONDS: Final = 120.0
"""Maximum wait until containers are healthy, and until messages are through (s)."""


async def becomes_true(condition: Callable[[], Awaitable[bool]]) -> bool:
    """Return whether ``condition`` becomes true within ``MAX_SECONDS``."""
    until = time.monotonic() + MAX_SECONDS
    while not await condition():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.1)
    return True


async def unhealthy(running: Sequence[Container]) -> list[str]:
    """Wait until all of ``running`` are healthy; return a line for each that is not."""

    async def healthy() -> bool:
        return all(container.healthy() for container in running)

    if await becomes_true(healthy):
        return []
    return [f"{container.name}: not healthy" for container in running if not container.healthy()]


def conclude(
    running: Sequence[Container],
    found: Sequence[str],
    good: str = "Nothing lost, nothing doubled, every SIGTERM obeyed",
) -> int:
    """Print the faults ``found`` below the logs of all that are ``running``, or ``good``; return the exit status."""
    for container in running if found else ():
        print(f"--- {container.name}\n{container.log()}")
    print("\n".join(found) or good)
    return 1 if found else 0


@contextmanager
def containers(file: Path, image: str, here: str | Mapping[str, str], **variables: str) -> Iterator[list[Container]]:
    """Start all services of the compose.yaml ``file``; at the end kill and remove the containers.

    ``here`` is the URL of the server, or has what stands for each address in ``file``.
    """
    replaced = {"redis://redis:6379/0": here} if isinstance(here, str) else here
    with ExitStack() as stack:
        logs = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-logs-")))
        inspected, started = Image.inspect(image), list[Container]()
        for service in Service.read(file, replaced, variables):
            for number in range(1, service.replicas + 1):
                started.append(Container(inspected, service, f"{service.name}-{number}", logs))
                stack.callback(started[-1].remove)
        yield started

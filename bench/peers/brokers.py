"""The servers of the peers, on free ports, with everything in memory; RabbitMQ and NATS are Debian's packages."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.peers.scene import Scene
from penstock.testing.server import EmbeddedServer, free_port

RABBITMQ: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
NATS: Final = Path("/usr/sbin/nats-server")
Serve = Callable[[Scene], str]
"""Starts the server of a run; returns its URL."""


def redis(scene: Scene) -> str:
    """The URL of a server as ours runs on."""
    return scene.ends.enter_context(EmbeddedServer()).url


def nats(scene: Scene) -> str:
    """The URL of a NATS with JetStream."""
    port = free_port()
    scene.start(str(NATS), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(scene.directory / "nats"))
    scene.until(lambda: _listens(port))
    return f"nats://127.0.0.1:{port}"


def rabbitmq(scene: Scene) -> str:
    """The URL of a RabbitMQ without plugins; the port mapper that it needs is one of its own, too."""
    port, mapper, home = free_port(), free_port(), scene.directory / "rabbitmq"
    home.mkdir()
    (home / "plugins").write_text("[].")
    environment = {
        "HOME": str(home),
        "ERL_EPMD_PORT": str(mapper),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"bench{os.getpid()}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(home),
        "RABBITMQ_LOG_BASE": str(home),
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(home / "none"),
    }
    scene.start("epmd", "-port", str(mapper), environment=environment)
    scene.until(lambda: _listens(mapper))
    scene.start(str(RABBITMQ), environment=environment)
    scene.until(lambda: _listens(port))
    return f"amqp://guest:guest@127.0.0.1:{port}/%2F"


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False

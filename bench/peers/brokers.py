"""Servers of the peers, on free ports and with all data in memory; RabbitMQ and NATS are Debian's packages."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.peers.peer_run import PeerRun
from penstock.base.ports import free_port
from penstock.testing.server import EmbeddedServer

RABBITMQ: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
NATS: Final = Path("/usr/sbin/nats-server")
StartServer = Callable[[PeerRun], str]
"""A function that starts the server of a run and returns its URL."""


def redis(run: PeerRun) -> str:
    """Start the Redis server that Penstock uses, too; return its URL."""
    return run.exit_stack.enter_context(EmbeddedServer()).url


def nats(run: PeerRun) -> str:
    """Start NATS with JetStream; return its URL."""
    port = free_port()
    run.start(str(NATS), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(run.directory / "nats"))
    run.until(lambda: _listens(port))
    return f"nats://127.0.0.1:{port}"


def rabbitmq(run: PeerRun) -> str:
    """Start RabbitMQ without plugins, with a port mapper (epmd) of its own; return its URL."""
    port, mapper, home = free_port(), free_port(), run.directory / "rabbitmq"
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
    run.start("epmd", "-port", str(mapper), environment=environment)
    run.until(lambda: _listens(mapper))
    run.start(str(RABBITMQ), environment=environment)
    run.until(lambda: _listens(port))
    return f"amqp://guest:guest@127.0.0.1:{port}/%2F"


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False

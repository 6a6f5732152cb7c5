"""Compositions for penstock lint: a correct one, mistakes with their findings, and apparent mistakes without."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from penstock.composition.files import read
from penstock.composition.lint.rules import lint

SHOP = {
    "Procfile": """\
fan: python -m services.mpush --props mpush.yaml
track: python -m services.mdispatch --props mdispatch.yaml
watch: python -m services.monitor --props monitor.yaml
send: python -m services.vpush --props vpush.yaml
keep: python -m services.pipeline --props pipeline.yaml
worker: python worker.py
""",
    "mpush.yaml": """\
redisNamespace: shop:fan
in: shop:in
pending: shop:fan:pending
out:
  - shop:orders
  - shop:copies
""",
    "mdispatch.yaml": """\
redisNamespace: shop:track
in: shop:orders
pending: shop:track:pending
out: shop:work
""",
    "monitor.yaml": "redisNamespace: shop:watch\nwatch: [shop:track]\nmetricsPort: 0\n",
    "vpush.yaml": """\
redisNamespace: shop:send
in: shop:copies
pending: shop:send:pending
outRedis: redis://elsewhere:6379/0
out: archive:in
""",
    "pipeline.yaml": "redisNamespace: shop:keep\nwatch:\n  - shop:track\narchive: /tmp/archive\n",
    "composition.yaml": """\
external:
  writes: shop:in
  reads: archive:in
programs:
  worker:
    reads: shop:work
    writes: [shop:track:done]
""",
}
"""Files of a correct composition."""
Breaks = Mapping[str, tuple[str, str]]
"""Replaced and replacing text, by file; a missing file is created with the latter."""

SECOND = "fan2: python -m services.mpush --props mpush-2.yaml\n"
"""A line of the Procfile."""
FAN2 = "redisNamespace: shop:fan2\nin: shop:copies\npending: shop:fan2:pending\nout: [archive:in]\n"
TRACK2 = "redisNamespace: shop:track\nin: shop:orders\npending: shop:track:pending\nout: shop:work\nmessageTimeout: 9\n"

BREAKS: dict[str, tuple[Breaks, list[str]]] = {
    "a list written by a misspelt name": (
        {"mpush.yaml": ("shop:copies", "shop:copis")},
        [
            "mpush.yaml:6: out: 'shop:copis' is written and never read: did you mean 'shop:copies'? [orphan]",
            "vpush.yaml:2: in: 'shop:copies' is read and never written: did you mean 'shop:copis'? [unfed]",
        ],
    ),
    "a list that nobody takes from": (
        {"composition.yaml": ("  reads: archive:in\n", "")},
        ["vpush.yaml:5: out: 'archive:in' is written and never read [orphan]"],
    ),
    "a list that nobody fills": (
        {"composition.yaml": ("  writes: shop:in\n", "")},
        ["mpush.yaml:2: in: 'shop:in' is read and never written [unfed]"],
    ),
    "a list that its worker takes from and nobody fills, by a name like that of another": (
        {"composition.yaml": ("reads: shop:work\n", "reads: [shop:work, shop:inn]\n")},
        ["composition.yaml:6: reads: 'shop:inn' is read and never written; expected a part [unfed]"],
    ),
    "a list that two take from and nobody fills, by a name like that of one that one of them fills": (
        {
            "composition.yaml": (
                "shop:in\n  reads: archive:in\nprograms:\n  worker:\n    reads: shop:work\n    writes: [",
                "shop:others\n  reads: archive:in\nprograms:\n  worker:\n    reads: [shop:work, shop:in]\n"
                "    writes: [shop:inn, ",
            )
        },
        [
            "mpush.yaml:2: in: 'shop:in' is read and never written; expected a part [unfed]",
            "composition.yaml:7: writes: 'shop:inn' is written and never read; expected a part [orphan]",
        ],
    ),
    "a list that its worker alone writes, by a name like that of what it takes": (
        {"composition.yaml": ("shop:work\n    writes: [", "[shop:work, shop:in]\n    writes: [shop:ink, ")},
        ["composition.yaml:7: writes: 'shop:ink' is written and never read; expected a part [orphan]"],
    ),
    "a list of done messages that no worker fills": (
        {"composition.yaml": ("    writes: [shop:track:done]\n", "")},
        ["mdispatch.yaml:1: done: 'shop:track:done' is read and never written [unfed]"],
    ),
    "a list that is read on another server": (
        {"vpush.yaml": ("outRedis", "redis: redis://third:6379/0\noutRedis")},
        [
            "mpush.yaml:6: out: 'shop:copies' is written and never read on localhost:6379/0: it is read on "
            "third:6379/0 [orphan]",
            "vpush.yaml:2: in: 'shop:copies' is read and never written on third:6379/0: it is written on "
            "localhost:6379/0 [unfed]",
        ],
    ),
    "events that nobody tells": (
        {"pipeline.yaml": ("- shop:track", "- shop:trakc")},
        ["pipeline.yaml:3: watch: 'shop:trakc:events' is read and never written: did you mean "
         "'shop:track:events'? [unfed]"],
    ),
    "events that are switched off": (
        {"mdispatch.yaml": ("out: ", "eventCapacity: 0\nout: ")},
        ["pipeline.yaml:3: watch: 'shop:track:events' is read and never written [unfed]"],
    ),
    "a monitor of a misspelt namespace": (
        {"monitor.yaml": ("shop:track", "shop:trak"), "composition.yaml": ("    writes: [shop:track:done]\n", "")},
        [
            "monitor.yaml:2: watch: no part has the namespace 'shop:trak': did you mean 'shop:track'? [watch]",
            "mdispatch.yaml:1: redisNamespace: no monitor on its server watches 'shop:track' [watch]",
        ],
    ),
    "a tracker whose monitor looks elsewhere": (
        {"monitor.yaml": ("metricsPort", "redis: redis://third:6379/0\nmetricsPort")},
        ["mdispatch.yaml:1: redisNamespace: no monitor on its server watches 'shop:track' [watch]"],
    ),
    "a loop over another server that comes back": (
        {"vpush.yaml": ("redis://elsewhere:6379/0\nout: archive:in", "redis://localhost:6379/0\nout: shop:in")},
        ["vpush.yaml:5: out: messages loop for ever: 'shop:in' -> 'shop:copies' -> 'shop:in' [loop]"],
    ),
    "a loop of services that copy": (
        {
            "Procfile": ("worker:", SECOND + "worker:"),
            "mpush-2.yaml": ("", FAN2.replace("shop:copies", "shop:again").replace("archive:in", "shop:in")),
            "mpush.yaml": ("  - shop:copies\n", "  - shop:copies\n  - shop:again\n"),
        },
        ["mpush-2.yaml:4: out: messages loop for ever: 'shop:in' -> 'shop:again' -> 'shop:in' [loop]"],
    ),
    "two that both want all messages of a leg": (
        {"Procfile": ("worker:", SECOND + "worker:"), "mpush-2.yaml": ("", FAN2)},
        ["mpush-2.yaml:2: in: send (vpush) reads this leg of a fan-out, too: each gets only some of its "
         "messages [rivals]"],
    ),
    "a program that takes from a service's leg": (
        {"composition.yaml": ("    reads: shop:work", "    reads: [shop:work, shop:copies]")},
        ["composition.yaml:6: reads: send (vpush) reads this leg of a fan-out, too: each gets only some of its "
         "messages [rivals]"],
    ),
    "two services under one namespace": (
        {"vpush.yaml": ("redisNamespace: shop:send", "redisNamespace: shop:fan")},
        ["vpush.yaml:1: redisNamespace: 'shop:fan' is the namespace of fan (mpush), too, which has other "
         "lists [namespace]"],
    ),
    "replicas that do not agree": (
        {
            "Procfile": ("worker:", "track2: python -m services.mdispatch --props mdispatch-2.yaml\nworker:"),
            "mdispatch-2.yaml": ("", TRACK2),
        },
        ["mdispatch-2.yaml:5: messageTimeout: 9 here and 10 in mdispatch.yaml, another replica of "
         "'shop:track' [replicas]"],
    ),
    "a list that is a key of a service": (
        {"composition.yaml": (
            "shop:in\n  reads: archive:in\nprograms:\n  worker:\n    reads: shop:work",
            "[shop:in, shop:fan:owners]\n  reads: archive:in\nprograms:\n  worker:\n    reads: [shop:work, "
            "shop:fan:owners]",
        )},
        ["composition.yaml:6: reads: 'shop:fan:owners' is a key of fan (mpush) itself, in its namespace 'shop:fan' "
         "[collision]"],
    ),
    "a list that is a stream": (
        {"mpush.yaml": ("  - shop:copies\n", "  - shop:copies\n  - shop:track:events\n")},
        ["mpush.yaml:7: out: 'shop:track:events' is a stream, the events of track (mdispatch) [collision]"],
    ),
    "one pending list for two services": (
        {"vpush.yaml": ("shop:send:pending", "shop:fan:pending")},
        ["vpush.yaml:3: pending: 'shop:fan:pending' is a pending list of fan (mpush) [pending]"],
    ),
    "a list that is what an instance has in hand": (
        {"composition.yaml": (
            "shop:in\n  reads: archive:in\nprograms:\n  worker:\n    reads: shop:work",
            "[shop:in, shop:fan:pending:7]\n  reads: archive:in\nprograms:\n  worker:\n"
            "    reads: [shop:work, shop:fan:pending:7]",
        )},
        ["composition.yaml:6: reads: 'shop:fan:pending:7' is a pending list of fan (mpush) [pending]"],
    ),
    "metrics that do not last from renewal to renewal": (
        {"mpush.yaml": ("out:", "metricsExpire: 15\nout:")},
        ["mpush.yaml:4: metricsExpire: 15 s: the metrics of a live instance would expire before it "
         "renews them [times]"],
    ),
    "answers that are gone too early": (
        {
            "mdispatch.yaml": ("out: ", "res: shop:answers\nreplyExpire: 9\nout: "),
            "composition.yaml": ("[shop:track:done]", "[shop:track:done, shop:answers]"),
        },
        ["mdispatch.yaml:5: replyExpire: 9 s: an answer could expire while its client still waits for it [times]"],
    ),
    "a pattern of lists for answers that matches a list of another part": (
        {"mdispatch.yaml": ("out: ", "replyLists: ['shop:*', 'shop:track:reply:*']\nout: ")},
        ["mdispatch.yaml:4: replyLists: 'shop:*' matches 'shop:in', the list `in` of the service that registered as "
         "'shop:fan': requests that name it are refused; expected a pattern of lists of clients alone [replies]"],
    ),
    "a pattern of lists for answers that matches keys of another part": (
        {"mdispatch.yaml": ("out: ", "replyLists: ['*:owners']\nout: ")},
        ["mdispatch.yaml:4: replyLists: '*:owners' matches 'shop:fan:owners', a key of the service that registered as "
         "'shop:fan': requests that name it are refused; expected a pattern of lists of clients alone [replies]"],
    ),
    "answers for what a monitor has in hand": (
        {"mdispatch.yaml": ("out: ", "replyLists: ['shop:watch:pending:shop:track:1']\nout: ")},
        ["mdispatch.yaml:4: replyLists: 'shop:watch:pending:shop:track:1' is written and never read; expected a part "
         "that reads it, or external.reads in composition.yaml [orphan]",
         "mdispatch.yaml:4: replyLists: 'shop:watch:pending:shop:track:1' is a pending list of watch "
         "(monitor); expected another list [pending]",
         "mdispatch.yaml:4: replyLists: 'shop:watch:pending:shop:track:1' is what the service that registered as "
         "'shop:watch' has in hand; expected another list [replies]"],
    ),
    "a time-out while another tracker still tries": (
        {
            "Procfile": ("worker:", "inner: python -m services.mdispatch --props mdispatch-inner.yaml\nworker:"),
            "mdispatch-inner.yaml": ("", "redisNamespace: shop:inner\nin: shop:work\npending: "
            "shop:inner:p\nout: shop:inner\n"
                                         "messageTimeout: 5\nbackoff: [1]\n"),
            "monitor.yaml": ("[shop:track]", "[shop:track, shop:inner]"),
            "composition.yaml": ("reads: shop:work\n    writes: [", "reads: shop:inner\n    writes: "
            "[shop:inner:done, "),
        },
        ["mdispatch.yaml: messageTimeout: 10 s, while inner (mdispatch) behind it tries for up to 18 s: "
         "messages would be delivered "
         "twice; expected at least 18 s [times]"],
    ),
    "a file that is wrong by itself, of which the rest would follow": (
        {"mdispatch.yaml": ("out: shop:work", "oud: shop:work")},
        ["mdispatch.yaml:4: oud: unknown property [file]", "mdispatch.yaml: out: missing [file]"],
    ),
    "records that do not outlive all attempts": (
        {"mdispatch.yaml": ("out: ", "messageExpire: 30\nout: ")},
        ["mdispatch.yaml:4: messageExpire: messageExpire (30 s) must be longer than attempts x [file]"],
    ),
    "a program that nobody starts": (
        {"composition.yaml": ("  worker:", "  werker:")},
        ["composition.yaml:5: no process is called 'werker' [file]"],
    ),
}  # fmt: skip


HOPS = "outRedis: redis://localhost:6379/0\nout: shop:in\n"
MONITOR2 = "redisNamespace: shop:watch2\nwatch: [shop:track]\nmetricsPort: 0\n"
FINE: dict[str, Breaks] = {
    "a loop that counts its hops": {
        "vpush.yaml": ("outRedis: redis://elsewhere:6379/0\nout: archive:in\n", HOPS + "maxHops: 3\n")
    },
    "a loop over a program, which may end it": {
        "composition.yaml": ("[shop:track:done]", "[shop:track:done, shop:in]"),
    },
    "replicas of a service": {"Procfile": ("worker:", "fan2: python -m services.mpush --props mpush.yaml\nworker:")},
    "replicas of a program": {
        "Procfile": ("worker:", "worker2: python worker.py 2\nworker:"),
        "composition.yaml": (
            "programs:",
            "programs:\n  worker2:\n    reads: shop:work\n    writes: [shop:track:done]",
        ),
    },
    "a list that its worker keeps": {
        "composition.yaml": ("    reads: shop:work\n", "    reads: shop:work\n    keeps: shop:inn\n"),
    },
    "two monitors of one namespace": {
        "Procfile": ("worker:", "watch2: python -m services.monitor --props monitor-2.yaml\nworker:"),
        "monitor-2.yaml": ("", MONITOR2),
    },
    "a monitor that also exports the metrics of another service": {
        "monitor.yaml": ("[shop:track]", "[shop:track, shop:fan]")
    },
    "programs that share the work of a list that is no leg": {
        "Procfile": ("worker:", "other: python other.py\nworker:"),
        "composition.yaml": ("programs:", "programs:\n  other:\n    reads: shop:work"),
    },
    "a program that reads dead letters and events": {
        "composition.yaml": ("reads: shop:work", "reads: [shop:work, shop:track:dead, shop:track:events]")
    },
    "a pipeline that names its namespaces by a pattern": {"pipeline.yaml": ("- shop:track", '- "shop:*"')},
    "a namespace of another composition": {
        "monitor.yaml": ("[shop:track]", "[shop:track, billing:track]"),
        "composition.yaml": ("writes: shop:in", 'writes: [shop:in, "billing:track:*"]'),
    },
}


def compose(directory: Path, breaks: Breaks = MappingProxyType({})) -> Path:
    for name in SHOP.keys() | breaks.keys():
        before, after = breaks.get(name, ("", ""))
        text = SHOP.get(name, "")
        assert before in text, name
        (directory / name).write_text(text.replace(before, after, 1) if before else text + after)
    return directory


def found(directory: Path, *, notes: bool = False) -> list[str]:
    """Return the findings as lines, without the folder."""
    findings = [each for each in lint(read(directory)) if notes or not each.note]
    return [f"{each.problem} [{each.rule}]".replace(f"{directory}/", "") for each in findings]

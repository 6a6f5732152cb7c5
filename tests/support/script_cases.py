"""Cases for the scripts whose arguments depend on their keys: see ``tests/support/scripted.py``."""

import json
import struct
from hashlib import sha1
from math import inf
from typing import Any

from common.settle import digest
from common.tracking.completion import AMBIGUOUS, parse_answer
from services.mdispatch.poison import POISON
from services.mdispatch.request import BadRequest, parse_request, rejection
from services.mlimit.request import reader
from services.monitor.done import parse_done
from tests.support.scripted import CASES as CASES
from tests.support.scripted import GARBAGE, HUGE, MANY, Draw, Same, Stream, Zset, case

Given = dict[str, Any]
UNTAKEN = 10**12


def hexed(word: bytes) -> str:
    return sha1(word).hexdigest()


def in_hand(draw: Draw, messages: list[bytes], count: int) -> Given:
    """Return the arguments of the part ``in_hand`` for the ``count`` oldest of ``messages``, the newest first."""
    oldest = messages[::-1][:count]
    return {"pending": messages, "held": len(messages), "digest": digest(oldest)}


@case("core/lease")
def _lease(draw: Draw) -> Given:
    expires = (draw.now + draw.choice([-5, 5])) * 1000
    return {
        "lease": draw.choice([None, {"owner": draw.choice(["me", "other"]), "token": "3", "expires": expires}]),
        "life": draw.choice([0, HUGE]),
    }


@case("tracking/identify")
def _identify(draw: Draw) -> Given:
    ways: list[str] = [draw.choice(["done", "failed", "touch"]) for _ in range(draw.randint(0, MANY))]
    names = [draw.choice([draw.tracked(), draw.chain(1, 2)]) for _ in range(3 * len(ways))]
    return {"names": names, "prefix": 2, "ways": ways}


@case("tracking/finish")
def _finish(draw: Draw) -> Given:
    entries: list[Any] = []
    subjects: list[Any] = []
    pending: list[bytes] = []
    for id in range(1, draw.randint(0, MANY) + 1):
        entry = draw.entry()
        said = parse_done(entry) if draw.random() < 0.5 else parse_answer(entry)
        verdict, words = said.verdict, said.words
        if verdict == "answer":
            verdict = draw.choice(["answer", "answer", "refused"])
            if draw.random() < 0.3:
                verdict, words = "recalled", draw.choice(["", "k:answer"])
        elif verdict == "touch":
            verdict = draw.choice(["touched", "late"])
        elif verdict == "done":
            verdict = draw.choice(["done", "done", AMBIGUOUS, "unknown"])
        pending.insert(0, entry)
        work = "" if said.work is None else f"/{said.work:.6f}"
        entries += (id, verdict, f"{said.attempt}{work}", words)
        answer = draw.choice([Same("k:pending"), ("k:answer", draw.choice([None, draw.messages()]))])
        subjects += (draw.tracked(), draw.chain(id, 7), answer)
    more = draw.messages()
    ids = [str(id) for id in range(1, 4)]
    where = {"deadlines": draw.scores(*ids)} if draw.random() < 0.8 else {"delayed": draw.scores(*ids)}
    return {
        **where,
        "whole": True,
        "pending": more + pending,
        "held": len(more + pending),
        "subjects": subjects,
        "entries": entries,
        "done": draw.choice([None, {"count": "1", "sum": "1.5", "max": "2"}]),
    }


@case("common/settle_batch")
def _settle_batch(draw: Draw) -> Given:
    messages = [*draw.messages(5), draw.message()]
    count = draw.randint(1, len(messages))
    made = draw.messages()
    places = [*range(1, count + 1), *range(-len(made), 0)]
    lists = draw.randint(1, MANY)
    answers = draw.randint(0, lists)
    chosen = [[place for place in places if draw.random() < 0.5] for _ in range(lists)]
    outs: list[Any] = [
        draw.messages() if number < lists - answers or draw.random() < 0.7 else b"no list" for number in range(lists)
    ]
    plan = {
        "count": count,
        "outs": chosen,
        "answers": answers,
        "broken": {"k:outs:0": 1} if draw.random() < 0.3 else {},
        "dead": [[place, draw.text()] for place in places if draw.random() < 0.3],
        "events": [["done", "1", draw.text(), draw.text()] for _ in range(draw.randint(0, 2))],
        "dropped": draw.randint(0, 1),
    }
    # an answer list of another type is no fault of the service's
    return {
        **in_hand(draw, messages, count),
        "outs": outs,
        "plan": json.dumps(plan),
        "made": made,
        "letters": draw.messages(),
    }


@case("http/count")
def _count(draw: Draw) -> Given:
    return {"slowest": draw.choice([0, 1.5]), "counted": ["count", 1, draw.text() or "x", 2]}


@case("core/arrive")
def _arrive(draw: Draw) -> Given:
    messages = draw.messages()
    ledger = draw.choice([{"token": "1", "sequence": "4", "first": "4", "digest": "d"}, {"token": "1"}, None])
    first = 5 if ledger and "sequence" in ledger else 1
    return {"ledger": ledger, "door": None, "first": first, "last": first + 2, "digest": "d", "messages": messages}


def letters_of(draw: Draw, revived: bool) -> Given:
    dead = draw.messages(5)
    letters = list[Any]()
    for letter in dead[: draw.randint(0, len(dead))]:
        where = [draw.message(), draw.randint(1, 2)] if revived else []
        letters += [letter, *where, draw.choice(["", "1", "a\nb"]), draw.text(), draw.choice(["1", draw.text()])]
    destinations = [draw.choice([draw.messages(), b"no list"]) for _ in range(2)]
    return {"dead": dead, "letters": letters, "destinations": destinations, "mark": "no letter"}


@case("tracking/bury")
def _bury(draw: Draw) -> Given:
    return letters_of(draw, revived=False)


@case("tracking/revive")
def _revive(draw: Draw) -> Given:
    return letters_of(draw, revived=True)


@case("rollout/discard")
def _discard(draw: Draw) -> Given:
    counters = [{"k:list": draw.value("n"), "count": draw.value("n")} for _ in range(2 * draw.randint(0, 2))]
    return {"counters": counters}


@case("rollout/rehome")
def _rehome(draw: Draw) -> Given:
    counters = [
        {"k:former": draw.value("n"), "k:present": draw.value("n"), "count": "9"} for _ in range(4 * draw.randint(0, 2))
    ]
    return {
        "counters": counters,
        "notes": {"k:former": "moved"},
        "noted": "moved",
        "settled": "word",
        "older": draw.randint(0, 1),
    }


@case("core/settle")
def _settle(draw: Draw) -> Given:
    pending = draw.messages(5)
    count = draw.randint(0, len(pending))
    buried = [
        word
        for number in range(1, count + 1)
        if draw.random() < 0.4
        for word in (4 + number, "refused", draw.choice(["", draw.text()]))
    ]
    return {
        "pending": pending,
        "state": {"source": "me", "sequence": "4"},
        "who": "me",
        "sequence": 4 + count,
        "buried": buried,
        "out": "k:out",
        "letters": draw.messages(),
        "dead": {"count": "1"},
        "dropped": {"count": "1"},
        **counted(draw),
    }


def counted(draw: Draw) -> Given:
    """Return counters of a pending list: all, or none."""
    some = {
        "holds": {"k:pending": "1"},
        "missing": {},
        "taken": {"count": "5", "k:out": "1"},
        "settled": {"count": "4"},
        "delivered": {"count": "4"},
    }
    return some if draw.random() < 0.8 else dict.fromkeys(some)


@case("core/snapshot")
def _snapshot(draw: Draw) -> Given:
    return {"keys": [{"a": "1"}, ["b"]], "words": ["HGETALL", 1, 0, "LRANGE", 1, 2, "0", "-1", "TIME", 0, 0]}


@case("core/writes")
def _writes(draw: Draw) -> Given:
    return {
        "keys": [{"a": "1"}, ["b"]],
        "words": ["HINCRBY", 1, 2, "a", "1", "LPUSH", 1, 1, draw.message(), "PUBLISH", 0, 2, "c", "d"],
    }


@case("core/observe")
def _observe(draw: Draw) -> Given:
    return {
        "value": draw.choice([0, 0.03, 1e9]),
        "budget": draw.choice([0.1, 60]),
        "metric": draw.choice([None, {"sum": "1.5", "max": "1", "count": "2"}]),
    }


@case("core/next")
def _next(draw: Draw) -> Given:
    sequence = draw.randint(0, 2)
    return {
        "state": {"source": "me", "sequence": sequence},
        "next": sequence + draw.randint(0, 3),
        "settled": draw.choice(["", str(sequence)]),
        "batch": draw.choice([1, 3, 500]),
        "holds": draw.choice([None, {"k:pending": "1"}]),
        "missing": {},
        "taken": {"count": "1"},
    }


@case("transfer/put_back")
def _put_back(draw: Draw) -> Given:
    return {"state": draw.choice([None, {"source": "me"}]), "settled": draw.randint(0, 1), "kept": draw.randint(0, 2)}


@case("rollout/requeue")
def _requeue(draw: Draw) -> Given:
    return {"records": [draw.tracked() for _ in range(MANY)], "former": "k:out", "present": "k:new"}


@case("transfer/read")
def _read(draw: Draw) -> Given:
    return {"known": draw.randint(0, 2)}


@case("tracking/touch")
def _touch(draw: Draw) -> Given:
    return {
        "record": draw.tracked(),
        "seconds": draw.choice(["", 1, 86_400, 0.5, HUGE / 1000]),
        "attempt": draw.choice(["", 1, 9]),
        "deadlines": draw.choice([draw.scores("1"), Zset({"1": UNTAKEN + 5.0})]),
        "id": "1",
        "commands": [("PEXPIRE", "k:record", 1000)],
    }


def tracked_ids(draw: Draw) -> list[str]:
    return [str(id) for id in range(1, draw.randint(1, 4))]


@case("monitor/clock")
def _clock(draw: Draw) -> Given:
    ids = tracked_ids(draw)
    subjects = [
        draw.choice([draw.tracked(), draw.chain(int(id))]) if odd else draw.tracked() for id in ids for odd in (0, 1)
    ]
    taken = Zset({id: draw.choice([UNTAKEN + int(id), draw.now - 5.0, draw.now + 5.0]) for id in ids})
    return {
        "ids": ids,
        "subjects": subjects,
        "deadlines": taken,
        "pushed": {"k:queue": draw.choice(["0", "2", "5"])},
        "looks": draw.choice([None, {"k:queue": f"1:{draw.now - 5}.5 3:{draw.now}"}]),
    }


@case("monitor/due")
def _due(draw: Draw) -> Given:
    return {"oldest": 1, "looks": draw.choice([None, {"k:queue": "1:5.5"}])}


@case("monitor/end_answers")
def _end_answers(draw: Draw) -> Given:
    return {
        "lists": [draw.messages() for _ in range(2)],
        "answers": draw.scores("k:lists:0", "k:lists:1"),
        "answers_more": draw.choice([None, {"k:lists:0": "2"}]),
        "commands": [("EXPIRE", "k:lists:0", 60)],
    }


@case("monitor/sweep")
def _sweep(draw: Draw) -> Given:
    ids, subjects, messages = tracked_ids(draw), list[Any](), list[Any]()
    for id in ids:
        record = draw.tracked()
        known = record or {}
        if known and draw.random() < 0.3:  # before the fingerprint: the monitor has read it so
            known[draw.choice([*known])] = draw.choice(GARBAGE)
        fingerprint = str(known.get("attempt", "")) + "e" * ("error" in known) + "f" * ("final" in known)
        answer = draw.choice([Same(f"k:subjects:{len(subjects)}"), ("k:answer", draw.messages())])
        subjects += (
            record,
            draw.chain(int(id)),
            ("k:out", draw.messages()) if draw.random() < 0.7 else draw.messages(),
            answer,
        )
        verb = draw.choice(["deliver", "retry", "retry", "timeout", "failed", "queueTimeout", "expired"])
        messages += (id, fingerprint, verb, draw.choice(["0.000", "1.500"]))
    where = draw.scores(*ids) if draw.random() < 0.7 else Zset({id: UNTAKEN + float(id) for id in ids})
    return {
        "subjects": subjects,
        "messages": messages,
        "deadlines": where,
        "delayed": draw.scores(*ids),
        "out": Same("k:out"),
        "pushed": draw.choice([None, {"k:out": "3"}]),
        "budget": draw.choice([None, {"left": "1.5", "registered": "2"}]),
        "timeout": {"count": "1", "sum": "1", "max": "2"},
    }


@case("mdispatch/dispatch")
def _dispatch(draw: Draw) -> Given:
    messages, requests, subjects, rejects = draw.messages(9), list[str](), list[Any](), False
    count = draw.choice([draw.randint(0, len(messages)), *[len(messages)] * 4])
    names = dict[bytes, bytes | None]()
    for place, message in enumerate(messages[::-1][:count]):
        try:
            request = POISON if draw.random() < 0.05 else parse_request(message, lambda _: None)
        except BadRequest as error:
            request = rejection("badRequest", str(error))
        rejects |= not request.xid
        key = b"k:xid:" + request.xid
        subjects += (
            (f"k:message:{place}", draw.choice([None, None, b"a string"])),
            (key, names.setdefault(key, draw.choice([None, b"s"]))),
        )
        requests.append(request.spec)
    first = 10
    return {
        "whole": True,
        "pending": messages,
        "held": len(messages),
        "first": first,
        "subjects": subjects,
        "prefix": len(b"k:xid:"),
        "requests": requests[:1] if len(set(requests)) == 1 else requests,
        "letters": draw.messages() if rejects else None,
        "capacity": draw.choice([1, 3, 500]),
        "deaths": draw.choice([None, {"1": "1 me"}]),
        "looks": draw.choice([None, {"k:out": "1:5.5"}]),
        "pushed": draw.choice([None, {"k:out": "3"}]),
        "counter": draw.choice([None, b"9"]),
    }


@case("mpush/move")
def _move(draw: Draw) -> Given:
    given = counted(draw)
    if given["holds"] is None:
        return {**given, "overflow": draw.choice(["block", "drop-oldest"]), "limit": 0, "lost": None, "letters": None}
    return {
        **given,
        "overflow": draw.choice(["block", "drop-oldest", "dead"]),
        "lost": {"count": "1"},
        "letters": draw.messages(),
    }


@case("mbalance/move", "mbalance/stranded")
def _balance(draw: Draw) -> Given:
    outs = draw.randint(1, MANY)
    hands, registrations = [draw.randint(0, 1) for _ in range(outs)], [draw.randint(0, 2) for _ in range(outs)]
    lists: list[Any] = [draw.messages() for _ in range(outs)]
    rates = {f"k:lists:{place}": draw.choice(["0.5 3 1.0 1.0 2 4 0.5", "x"]) for place in range(outs)}
    return {
        "outs": outs,
        "lists": lists,
        "rates": draw.choice([None, rates]),
        "forget": 60,
        "groups": [
            word
            for place in range(outs)
            for word in (
                *(draw.choice([1, 2.5]), hands[place], registrations[place]),
                *["k:hand"] * hands[place],
                *draw.choice([("k:alive", "k:steps"), ("k:nobody", "k:hand")]) * registrations[place],
            )
        ],
        "commands": [
            ("RPUSH", "k:hand", "a"),
            draw.choice([("SET", "k:alive", "w"), ("ZADD", "k:alive", (draw.now + 50) * 1e6, "w")]),
            ("HSET", "k:steps", "w", draw.choice(["7", "gone:1"])),
        ],
        "policy": draw.choice(["expectedWait", "length", "roundRobin", "weighted", "hash"]),
        "field": draw.choice(["", "meta.id", "meta"]),
    }


@case("mdedupe/dedupe_batch")
def _dedupe(draw: Draw) -> Given:
    messages = [*draw.messages(5), draw.message()]
    count = draw.randint(1, len(messages))
    return {**in_hand(draw, messages, count), "known": [draw.text() or "k" for _ in range(count)]}


@case("sregister/mark")
def _mark(draw: Draw) -> Given:
    return {"address": draw.text(), "child": draw.randint(1, 9), "unready": draw.text()}


@case("mlimit/admit")
def _admit(draw: Draw) -> Given:
    buckets = draw.randint(1, MANY)
    return {
        "buckets": [draw.bucket() for _ in range(buckets)],
        "places": [draw.randint(1, buckets) for _ in range(4)],
        "interval": 1000,
    }


@case("mlimit/delay_batch")
def _delay(draw: Draw) -> Given:
    messages = [*draw.messages(5), draw.message()]
    count, places = draw.randint(1, len(messages)), list[str]()
    for message in messages[::-1][:count]:
        deadline = reader("all", None)(message).deadline
        places.append(f"1 {deadline:.6f}" if deadline < inf else "1")
    return {
        **in_hand(draw, messages, count),
        "places": places,
        "buckets": [draw.bucket()],
        "interval": draw.choice([1000, 10**9]),
        "waiting": draw.waiting(),
        "capacity": draw.choice([1, 500]),
    }


@case("mlimit/pass", "mlimit/release")
def _pass(draw: Draw) -> Given:
    return {"bucket": draw.bucket(), "interval": draw.choice([1, 1000]), "waiting": draw.waiting()}


@case("himporter/accept", "himporter/cancel")
def _accept(draw: Draw) -> Given:
    return {
        "message": draw.message(),
        "note": draw.message(),
        "replies": draw.choice([None, Zset({"k:list": draw.now + 50.0})]),
    }


@case("himporter/keep")
def _keep(draw: Draw) -> Given:
    return {
        "mark": "1.5",
        "page": draw.choice([None, b"1.5\n", b"2.5\n"]),
        "asked": draw.choice([1.5, draw.now]),
        "varies": draw.choice(["", "1.5\nx"]),
        "content": draw.message(),
        "tags": draw.choice([[], [None], [b"1.5", b"2"]]),
        "most": draw.choice([0, 1, 500]),
    }


@case("himporter/news")
def _news(draw: Draw) -> Given:
    return {
        "lists": [draw.messages() for _ in range(2)],
        "seen": [0, 1],
        "replies": draw.scores("k:lists:0", "k:lists:1"),
    }


@case("himporter/push")
def _push(draw: Draw) -> Given:
    return {"large": 0, "messages": draw.messages()}


@case("outbox/receive")
def _receive(draw: Draw) -> Given:
    return {"messages": [word for _ in range(draw.randint(0, MANY)) for word in (draw.text(), draw.message())]}


@case("outbox/stored")
def _stored(draw: Draw) -> Given:
    messages = [*draw.messages(5), draw.message()]
    count = draw.randint(1, len(messages))
    buried = [word for place in range(1, count + 1) if draw.random() < 0.4 for word in (place, draw.text())]
    lost = draw.randint(0, count - len(buried) // 2)
    return {
        **in_hand(draw, messages, count),
        "state": {"source": "me", "sequence": "4"},
        "count": count,
        "lost": lost,
        "buried": buried,
    }


@case("pipeline/archived")
def _archived(draw: Draw) -> Given:
    return {
        "metric": {"query": "q", "batch": "1", "count": "2"},
        "query": "q",
        "batch": draw.randint(0, 3),
        "events": 5,
        "malformed": 0,
        "late": 1,
        "seconds": draw.choice([0, 1.5]),
    }


@case("pipeline/rollup")
def _rollup(draw: Draw) -> Given:
    row = {
        "name": f"done:{draw.text()}",
        "count": 2,
        "attempts": 1,
        "timeouts": 0,
        "dead": 1,
        "timed": draw.randint(0, 2),
        "micros": 1_500_000,
        "max": 1.5,
        "histogram": [0, 1, 2],
        "buckets": {"-10": 1, "5": 1},
    }
    window = {
        f"{row['name']}:sum": "1.5",
        f"{row['name']}:max": "1",
        f"{row['name']}:buckets": "5=1 -10=2",
        f"{row['name']}:count": "1",
        "count": "1",
    }
    return {
        "window": draw.choice([None, {"query": "q", "batch": "1"} | window]),
        "query": "q",
        "batch": draw.randint(0, 3),
        "gone": draw.now + HUGE,
        "base": 1.05,
        "least": -100,
        "rows": json.dumps([row]),
    }


@case("vpush/link")
def _link(draw: Draw) -> Given:
    return {
        "lease": {"token": "1"},
        "now": draw.choice(["up", "down"]),
        "count": 1,
        "sum": 1.5,
        "last": draw.choice(["", "0.5"]),
        "most": 0.5,
        "link": draw.choice([None, {"state": "up", "known": "3", "since_known": f"{draw.now - 5}.5", "source": "me"}]),
        "state": {"source": "me", "sequence": "2"},
    }


@case("core/begin")
def _begin_line(draw: Draw) -> Given:
    return {"past": draw.randint(-1, 3), "new": "me"}


@case("sealing/add", "sealing/read")
def _add_key(draw: Draw) -> Given:
    return {
        "epoch": draw.randint(1, 2),
        "key": "wrapped",
        "sealed": draw.randint(0, 1),
        "wrapped": draw.choice([None, {"epoch": "1", "1": "w", "sealed": "0"}]),
    }


@case("sealing/rewrap")
def _rewrap(draw: Draw) -> Given:
    return {"wrapped": {"epoch": "1", "1": "w"}, "changes": ["1", "w", "new", "2", "x", "new"]}


def _failures(draw: Draw, messages: list[bytes]) -> dict[str, str] | None:
    counts = ["1", "2", "inf", "nan", "x", ""]
    return {hexed(each): draw.choice(counts) for each in messages if draw.random() < 0.5} or None


@case("lists/adopt")
def _adopt_list(draw: Draw) -> Given:
    orphans = [draw.messages() for _ in range(2)]
    return {
        "working": None,
        "orphans": orphans,
        "dead": ["d0", "d1"],
        "again": 100,
        "who": "me",
        "consumers": Zset(d0=1.0, d1=1.0, me=draw.now * 1e6),
        "steps": {"me": "1", "d0": draw.choice(["1", "1 each", "gone:5"]), "d1": "1"},
        "failures": _failures(draw, orphans[0]),
    }


@case("lists/consume")
def _consume(draw: Draw) -> Given:
    working = draw.messages()
    settled = draw.randint(0, len(working))
    results = [draw.message() for _ in range(draw.randint(2, 4))]
    several = draw.randint(1, len(results) - 1)
    back = [place for place in range(1, settled + 1) if draw.random() < 0.4]
    return {
        "working": working,
        "outs": [draw.messages() for _ in range(2)],
        "steps": draw.choice([None, {"me": "1"}, {"me": "1 idle"}]),
        "each": draw.randint(0, 1),
        "id": "me",
        "step": draw.choice([1, 2]),
        "settled": settled,
        "back": ",".join(map(str, back)),
        "ends": json.dumps([draw.choice([0, 1, "", "LookupError: tea"]) for _ in back]),
        "kept": draw.randint(0, settled),
        "again": ",".join(str(place) for place in range(1, settled + 1) if place not in back and draw.random() < 0.4),
        "limit": draw.choice([0, 1, 3]),
        "failures": _failures(draw, working),
        "lease": 10**7,
        "batch": draw.choice([0, 2]),
        "counts": f"{several},{len(results) - several}",
        "results": results,
    }


@case("spark/add")
def _add(draw: Draw) -> Given:
    rows = draw.randint(0, 2)
    words = [word for _ in range(rows) for word in (2, "a", draw.choice(["1", "-3"]), "b", draw.choice(["1.5", "2e3"]))]
    return {
        "staged": [b"row"] * 3,
        "left": draw.choice([3, 2]),
        "hashes": [draw.choice([None, {"a": "1", "b": "2.5"}]) for _ in range(rows)],
        "words": words,
    }


@case("spark/append")
def _append(draw: Draw) -> Given:
    def row() -> bytes:
        return b"".join(struct.pack("<I", len(word)) + word for word in (b"field", draw.message()))

    return {"staged": [row() for _ in range(draw.randint(0, 3))], "keep": draw.choice([0, 1])}


@case("spark/decide", "spark/publish")
def _decide(draw: Draw) -> Given:
    parts = [draw.messages() for _ in range(2)]
    return {
        "parts": parts,
        "counts": [len(part) for part in parts],
        "batch": draw.randint(0, 2),
        "writer": "w",
        "life": draw.choice([0, 60, HUGE]),
        "ledger": draw.choice([None, {"batch": "1", "staged": "k:parts:0\nk:parts:1", "w": "1"}]),
    }


@case("spark/fix", "spark/finish")
def _fix(draw: Draw) -> Given:
    return {
        "segment": draw.choice([None, None, draw.messages()]),
        "state": draw.choice([None, {"taken": "1", "done": "1"}]),
        "number": draw.choice([1, 2]),
        "batch": draw.choice(["", 1, 3]),
        "bytes": draw.choice(["", 100]),
    }


def metadata(draw: Draw, **more: Any) -> dict[str, Any] | None:
    return draw.choice(
        [
            {
                "ttl": "60",
                "source": "local",
                "maxsize": draw.choice(["0", "3"]),
                "last_consumer": "me",
                "restored": "2",
                **more,
            }
        ]
        * 5
        + [None]
    )


@case("bus/ack", "bus/pop", "bus/restore", "bus/read", "bus/carry", "bus/gather")
def _take(draw: Draw) -> Given:
    return {
        "last": draw.choice([0, 1, 2, 3]),
        "handed": 3,
        "first": 1,
        "digest": draw.choice(["", hexed(b"x")]),
        "place": 0,
        "arrived": draw.choice(["", "1"]),
        "metadata": metadata(draw),
        "ttl": draw.choice([60, HUGE]),
    }


@case("bus/adopt", "bus/push", "bus/push_noted")
def _append_bus(draw: Draw) -> Given:
    return {
        "metadata": metadata(draw),
        "bodies": [draw.message() for _ in range(draw.randint(1, 3))],
        "batch": "b",
        "former": "",
        "first": draw.choice([3, 4]),
        "arrival": None,
        "direct": draw.choice(["", "word"]),
        "ledger": draw.choice([None, {"me": "1 2 5"}]),
        "source": "me",
    }


@case("bus/attach")
def _attach(draw: Draw) -> Given:
    return {"metadata": metadata(draw), "discover": "true", "maxsize": draw.choice([0, HUGE])}


@case("bus/describe", "bus/save")
def _describe(draw: Draw) -> Given:
    return {"metadata": metadata(draw), "fields": ["a", draw.message()]}


@case("bus/hand_over", "bus/retire", "bus/seal", "bus/unseal", "bus/prepare", "bus/forget", "bus/sweep", "bus/meet")
def _hand_over(draw: Draw) -> Given:
    moving = draw.choice(["carried 1 there", "handed 1 there"])
    empty = draw.random() < 0.6
    return {
        "metadata": metadata(draw, **({"moving": moving} if draw.random() < 0.6 else {})),
        "ticket": "carried 1 there",
        "handed": "handed 1 there",
        "held_messages": [1, b"x"],
        "held_toack": None,
        "arrived": 1,
        "arrived_toack": 0,
        "start": 0,
        "ledger": draw.choice([None, {"me": "1 2 5", "other": "1 2 5"}]),
        **({"messages": None, "toack": None} if empty else {}),
    }


@case("bus/put_back")
def _put_back_bus(draw: Draw) -> Given:
    return {"metadata": metadata(draw), "taken": draw.pairs()}


@case("bus/receive")
def _receive_bus(draw: Draw) -> Given:
    held = draw.choice([None, [1, b"x"]])
    return {"held": held, "place": 1 if held else 0, "words": draw.pairs(), "arrival": {"token": "1"}}


@case("bus/renew")
def _renew(draw: Draw) -> Given:
    return {"leases": [b"me", None, b"other"], "owners": ["me", "me", "me"]}


@case("bus/take_over")
def _take_over(draw: Draw) -> Given:
    return {
        "metadata": None,
        "messages": None,
        "toack": None,
        "arrival": {"token": "1"},
        "last": draw.choice(["0", "7"]),
        "left": draw.choice([-1, 1000, HUGE]),
        "holder": draw.choice(["", "me"]),
        "holds": draw.choice([1, HUGE]),
        "adopted": 2,
        "noted": 2,
        "noted_left": draw.choice([1000, HUGE]),
        "fields": ["there", "b", "me", "1 2 5", "ttl", "60"],
        "held_messages": draw.pairs(),
    }


@case("bus/touch")
def _touch_bus(draw: Draw) -> Given:
    return {"keys": [metadata(draw), [1, b"x"], b"1", None], "ttls": [draw.choice([60, HUGE])]}


ENTRIES = ("1-1", "2-1")


@case("jobs/acquire", "jobs/release")
def _acquire(draw: Draw) -> Given:
    words = [word for _ in range(2) for word in (draw.choice(["key", "other"]), draw.choice(ENTRIES))]
    return {
        "words": words,
        "lease": 60,
        "burst": 1,
        "most": draw.choice([0, 1, 3]),
        "verb": draw.choice(["free", "keep"]),
        "interval": draw.choice([0, 1]),
        "busy": draw.scores("key 1-1", "other 2-1"),
        "parked": Zset({"key 00000000000000000002-00000000000000000001": 0.0}),
        "limit": {"key:count": "1", "key:at": f"{draw.now}.5", "other:until": f"{draw.now}"},
        "wait": draw.scores(*ENTRIES),
        "tries": draw.choice([None, {"1-1": "[1]"}]),
        "stream": jobs_of(draw),
    }


def jobs_of(draw: Draw) -> Stream:
    return Stream(
        [
            (f"{place}-1", {"job": draw.text(), "prd": "p", "x": draw.message()})
            for place in range(1, draw.randint(2, 4))
        ]
    )


@case("jobs/begin")
def _begin(draw: Draw) -> Given:
    return {"stream": "s", "words": ["1-1", draw.randint(1, 2), draw.text(), "2-1", 1, draw.text()]}


@case("jobs/cancel")
def _cancel(draw: Draw) -> Given:
    member = "token " + json.dumps(["job", draw.text(), "prd", "p"])
    waits = draw.random() < 0.5
    return {
        "entry": "1-1",
        "member": member if waits else "",
        "later": draw.scores(member),
        "err": '"cancelled"',
        "stream": jobs_of(draw),
    }


@case("jobs/complete")
def _complete(draw: Draw) -> Given:
    return {
        "words": ["5-1", draw.text(), "c", draw.message(), "6-1", draw.text(), "c", draw.message()],
        "forwarded": draw.choice([None, {"me": "5-1"}]),
    }


@case("jobs/gone")
def _gone(draw: Draw) -> Given:
    return {"stream": "s", "words": ["1-1"], "under_way": draw.scores("s:1-1")}


@case("jobs/keep", "jobs/values")
def _keep_job(draw: Draw) -> Given:
    return {"keys": [draw.message() or b"x", None]}


@case("jobs/pause")
def _pause(draw: Draw) -> Given:
    return {}


@case("jobs/payload")
def _payload(draw: Draw) -> Given:
    words = ["get", "", 0, "set", draw.message(), draw.choice([0, 1, HUGE]), "del", "", 0]
    return {"keys": [draw.message() or b"x", None, b"y"], "words": words}


@case("jobs/record")
def _record(draw: Draw) -> Given:
    return {"words": [draw.text(), draw.message(), draw.text(), draw.message()], "window": draw.choice([60, HUGE])}


@case("jobs/renew")
def _renew_job(draw: Draw) -> Given:
    return {"words": ["1-1", 1, "2-1", 2], "stream": jobs_of(draw)}


def values(draw: Draw) -> list[Any]:
    return [draw.message(), draw.choice([0, 1, HUGE])]


@case("jobs/plan")
def _plan(draw: Draw) -> Given:
    due, plan = float(draw.now), draw.choice(["", "{}"])
    return {
        "name": "r",
        "repeats": draw.choice([None, Zset(r=due)]),
        "repeated": {"r": plan} if plan else None,
        "known": draw.choice([plan, "{}"]),
        "score": draw.choice(["", due]),
        "plan": draw.text(),
        "due": draw.choice(["", due, due + 5]),
    }


@case("jobs/repeat")
def _repeat(draw: Draw) -> Given:
    due = float(draw.now)
    return {
        "name": "r",
        "repeats": Zset(r=due),
        "repeated": {"r": "{}"},
        "due": draw.choice([due, 1.0]),
        "known": draw.choice(["{}", "[]"]),
        "noted": draw.text(),
        "fields": json.dumps(["job", draw.text()]),
        "keys": [None],
        "words": values(draw),
        "stream": jobs_of(draw),
    }


@case("jobs/retry")
def _retry(draw: Draw) -> Given:
    return {
        "dead": Stream([("1-1", {"job": "j"})]),
        "letter": "1-1",
        "fields": json.dumps(["job", draw.text()]),
        "keys": [None, b"v"],
        "words": [b"a", b"b"],
        "stream": jobs_of(draw),
        "ttl": draw.choice([60, HUGE]),
    }


@case("jobs/send")
def _send(draw: Draw) -> Given:
    later = draw.choice([None, draw.scores("t [1]")])
    delay = draw.choice([0, "1.500"]) if later is not None else 0
    words = [
        1,
        draw.choice(["", 1]),
        delay,
        "token",
        json.dumps(["job", draw.text()]),
        *values(draw),
        draw.choice(["", "$x"]),
    ]
    return {"later": later, "keys": [None], "words": words, "stream": draw.choice([None, jobs_of(draw)])}


@case("jobs/settle")
def _settle_jobs(draw: Draw) -> Given:
    words, results = list[Any](), list[Any]()
    for entry in ENTRIES[: draw.randint(1, 2)]:
        if draw.random() < 0.2:
            words += (entry, "", draw.text(), "p")
            continue
        ttl = draw.choice(["", 1, HUGE])
        words += (
            entry,
            1,
            draw.choice(["done", "again", "back", "dead"]),
            draw.text(),
            "p",
            "c",
            draw.message(),
            json.dumps(draw.text()),
            1.5,
            "{}",
            0.5,
            ttl,
            draw.message(),
        )
        results += [None] if ttl else []
    return {
        "words": words,
        "results": results,
        "stream": jobs_of(draw),
        "tries": draw.choice([None, {"1-1": '[{"attempt":1}]'}, {"1-1:suspect": draw.choice(["2", "2 out"])}]),
        "name": "s",
        "head": '{"job":"',
        "channels": "c",
        "gone": "{}",
    }


@case("jobs/tend")
def _tend(draw: Draw) -> Given:
    later = draw.choice([None, draw.scores(*(f"{token} " + json.dumps(["job", draw.text()]) for token in "abcde"))])
    return {
        "stream": jobs_of(draw),
        "later": later,
        "wait": draw.scores(*ENTRIES),
        "lost": '"lost"',
        "from": "-",
        "idle": 0,
        "tries": draw.choice([None, {"1-1": "[1]", "1-1:free": "1"}, {"1-1:suspect": "1 out", "1-2:suspect": "3"}]),
        "attempts": 3,
        "paused": draw.choice([None, b"1"]),
    }


@case("jobs/watch", "jobs/trim", "jobs/leave")
def _watch(draw: Draw) -> Given:
    return {"stream": jobs_of(draw), "lease": 60}


def task(draw: Draw, id: int) -> dict[str, Any]:
    state = draw.choice(["waiting", "delayed", "blocked", "held", "done", "dead"])
    found: dict[str, Any] = {
        "state": state,
        "index": id,
        "added": draw.now - 9,
        "attempt": 1,
        "used": 0,
        "attempts": draw.choice([0, 1, 3]),
        "ends": draw.now + draw.choice([-1, 50]),
        "backoff": {"initial": 1, "factor": 2, "cap": 60},
    }
    if state == "held":
        found |= {"worker": "me", "lease": draw.now + draw.choice([-1, 50]), "span": 60, "taken": draw.now - 5}
    if state == "blocked":
        found["key"] = "d"
    elif draw.random() < 0.3:
        found["key"] = "e"
    if state in ("done", "dead"):
        found |= {"ended": draw.now - 1, "delivery": "waiting", "hook": True}
    if state == "delayed":
        found["due"] = draw.now + draw.choice([-1, 50])
    if draw.random() < 0.4:
        found |= {
            "name": draw.text() or "n",
            "xid": draw.text() or "n",
            "replyTo": "k:replies",
            "nonRetryable": ["kind"],
        }
    return found


@case(
    *(
        f"hqueue/{verb}"
        for verb in (
            "ack",
            "add",
            "again",
            "cancel",
            "fetch",
            "heartbeat",
            "sweep",
            "reply",
            "sent",
            "info",
            "page",
            "show",
            "claim",
            "due",
        )
    )
)
def _hqueue(draw: Draw) -> Given:
    found = {str(id): task(draw, id) for id in range(1, draw.randint(2, 4))}

    def ids(state: str) -> list[str]:
        return [id for id, each in found.items() if each["state"] == state]

    def scored(state: str, field: str, suffix: str = "") -> Zset | None:
        return Zset({id + suffix: float(found[id][field]) for id in ids(state)}) or None

    new = {"ends": 60, "attempts": 3, "backoff": {"initial": 1, "factor": 2, "cap": 60}}
    new |= draw.choice([{}, {"name": draw.text(), "xid": draw.text(), "key": draw.choice(["d", "e"]), "startBy": 5}])
    acks = [
        word
        for id in found
        for word in (
            "",
            id,
            1,
            draw.choice(["result", "error"]),
            draw.message(),
            draw.text(),
            draw.choice(["0", "", "+1.5"]),
        )
    ]
    return {
        "tasks": {id: json.dumps(each) for id, each in found.items()},
        "values": dict.fromkeys(found, "v"),
        "ready": scored("waiting", "index"),
        "held": scored("held", "lease"),
        "later": scored("delayed", "due"),
        "behind": Zset({f"d:{int(id):016d}:{id}": 0.0 for id in ids("blocked")}) or None,
        "order": Zset({id: float(id) for id in found}),
        "workers": {"me": " ".join(ids("held"))} if ids("held") else None,
        "busy": draw.choice([None, {"e": "1", "d": "2"}]),
        "named": None,
        "deadlines": Zset({f"{id} q": float(each["ends"]) for id, each in found.items()}),
        "delayed": scored("delayed", "due", " q"),
        "kept": Zset({f"{id} q": draw.now + draw.choice([-1.0, 50.0]) for id in [*ids("done"), *ids("dead")]}) or None,
        "outbox": Zset({f"{id} q": draw.now - 1.0 for id in [*ids("done"), *ids("dead")]}) or None,
        "acks": acks,
        "new": ["7", json.dumps(new), draw.message(), draw.choice(["", "more"]), draw.choice([0, 1.5])],
        "ids": list(found),
        "due": list(found),
        "span": draw.choice([1, 60]),
        "id": draw.choice(["1", "2", "9"]),
        "progress": draw.choice(["", "p"]),
        "message": draw.message(),
        "outcome": draw.choice(["sent", "failed", "deferred", "refused"]),
        "after": 0,
        "round": 0,
        "replies": draw.messages(),
    }

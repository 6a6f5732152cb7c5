"""A state machine: two groups with two consumers each do the jobs of a stream, and a model says what must be stored.

It calls the scripts themselves, which read the time from a key. What a consumer had in hand that crashes is idle for
long; the other ones renew in time, since a test is quicker than ``IDLE_MS``.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.base.encoding import decoded
from penstock.core.script import Script
from penstock.jobs.cancelling import _cancel
from penstock.jobs.in_hand import _renew
from penstock.jobs.keys import JobKeys
from penstock.jobs.outgoing import _send
from penstock.jobs.scheduler import _tend
from penstock.jobs.settlement import _settle, _trim

KEYS: Final = JobKeys("p")
GROUPS: Final = ("g", "h")
CONSUMERS: Final = ("A", "B")
ATTEMPTS: Final = 3
IDLE_MS: Final = 600_000
LOST: Final = {"name": "Lost"}
CANCELLED: Final = {"name": "Cancelled"}
TIME: Final = re.compile(r"call\('TIME'\)")
STREAM: Final = KEYS.stream("s")
PICK: Final = st.integers(0, 1_000)
STEPS: Final[dict[str, dict[str, st.SearchStrategy[Any]]]] = {
    "send": {"delay": st.sampled_from([0, 0, 0, 2, 20])},
    "read": {"of": st.integers(0, 1), "who": st.sampled_from(CONSUMERS), "most": st.integers(1, 3)},
    "settle": {
        "pick": PICK,
        "outcome": st.sampled_from(["done", "done", "fail", "fail", "back", "unread", "unread", "final"]),
        "wait": st.sampled_from([0, 1, 5]),
        "many": st.integers(1, 3),
    },
    "tend": {"of": st.integers(0, 1), "who": st.sampled_from(CONSUMERS), "most": st.integers(0, 3)},
    "crash": {"of": st.integers(0, 1), "who": st.sampled_from(CONSUMERS)},
    "renew": {"of": st.integers(0, 1), "who": st.sampled_from(CONSUMERS)},
    "cancel": {"pick": PICK},
    "pass_time": {"seconds": st.sampled_from([0.5, 1, 2, 5])},
    "trim": {},
}
OFTEN: Final = ("send", "read", "read", "settle", "settle", "settle", "tend", "tend", "renew", "trim")


@dataclass
class Known:
    """A job of a group, from when it is delivered until it ends."""

    who: str
    number: int = 1
    due: float | None = None
    """When it is to be tried again."""
    is_free: bool = False
    """Whether its last attempt does not count."""
    is_idle: bool = False
    suspect: tuple[int, bool] | None = None
    """How many such may be in one hand, and whether it is in one."""
    errors: list[tuple[int, str]] = field(default_factory=list)


class Group:
    """What the model knows of a group."""

    def __init__(self, name: str) -> None:
        self.name, self.key = name, KEYS.group(name)
        self.position = 0
        """How many entries of the model were delivered."""
        self.open = dict[str, Known]()
        self.stale = dict[str, float]()
        """Jobs that were cancelled while they waited, by when that is noticed."""
        self.died = dict[str, int]()
        """How many a consumer had in hand that has died."""
        self.ends = dict[str, str]()
        """How each job has ended, by entry."""
        self.letters = dict[str, list[tuple[int, str]]]()


class Machine(RuleBasedStateMachine):
    """Two groups, four consumers."""

    redis: Any
    done: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        self.now, self.sent = 1_790_000_000.0, 0
        self.entries = list[str]()
        self.jobs = dict[str, str]()
        self.later = dict[str, float]()
        """Jobs that wait for their time."""
        self.groups = [Group(name) for name in GROUPS]
        self.attempts = list[tuple[Group, str, str, int]]()
        """Group, entry, consumer and number of every attempt that was made."""
        for group in self.groups:
            self.redis.xgroup_create(STREAM, group.key, "0", mkstream=True)
        self.set_clock()
        for _ in range(8):
            self.send(0)
        for of, who in ((0, "A"), (1, "A"), (0, "B"), (1, "B")):
            self.read(of, who, 3)
        for pick in (1, 5, 9, 13, 17, 21):
            self.settle(pick, "done", 0, 1)

    @rule(what=st.sampled_from([*STEPS, *OFTEN]), data=st.data())
    def step(self, what: str, data: st.DataObject) -> None:
        """Do one thing: in one rule, since hypothesis leaves out some rules of several in most of its runs."""
        given = {name: data.draw(values) for name, values in STEPS[what].items()}
        getattr(self, what)(**given)
        Machine.done[what] += 1

    def run(self, script: Script, **named: Any) -> Any:
        command, source, *words = script.by_source(**named)
        text = TIME.sub("call('LRANGE', 'clock', 0, 1)", str(source)).replace("redis.call('TIME')", "")
        return self.redis.execute_command(command, text, *words)

    def set_clock(self) -> None:
        with self.redis.pipeline() as step:
            step.delete("clock")
            step.rpush("clock", int(self.now), int(self.now % 1 * 1e6))
            step.execute()

    # What producers and consumers do

    def send(self, delay: int) -> None:
        self.sent += 1
        job = f"J{self.sent}"
        fields = json.dumps(["prd", "P", "job", job])
        words = [1, "", delay, f"t{self.sent:06d}" if delay else "", fields, b"5", 60_000, ""]
        keys = {"stream": STREAM, "later": KEYS.later("s"), "keys": [KEYS.payload(job, "in")]}
        [found] = self.run(_send, **keys, control="c", words=words)
        if delay:
            self.later[f"t{self.sent:06d} {job}"] = self.now + delay
        else:
            self.entries.append(decoded(found))
            self.jobs[decoded(found)] = job

    def read(self, of: int, who: str, most: int) -> None:
        group = self.groups[of]
        found = self.redis.xreadgroup(group.key, who, {STREAM: ">"}, count=most)
        wanted = [entry for entry in self.entries[group.position :] if entry not in group.ends][:most]
        assert [decoded(entry) for _, entries in found for entry, _ in entries] == wanted
        for entry in wanted:
            group.open[entry] = Known(who)
            self.attempts.append((group, entry, who, 1))
            group.position = self.entries.index(entry) + 1

    def is_live(self, group: Group, entry: str, who: str, number: int) -> bool:
        known = group.open.get(entry)
        return known is not None and (known.who, known.number, known.due) == (who, number, None)

    def settle(self, pick: int, outcome: str, wait: int, many: int) -> None:
        """End some attempts of one consumer, in one case of four such that are over."""
        some = [each for each in self.attempts if self.is_live(*each) == (pick % 4 > 0)]
        some = [each for each in some if each[1] in each[0].open] or some[-8:]
        if not some:
            return
        group, _, who, _ = some[pick % len(some)]
        mine = [each for each in some if each[0] is group and each[2] == who]
        chosen = [mine[(pick + place) % len(mine)] for place in range(min(many, len(mine)))]
        words, expected, unread = list[Any](), list[int](), list[str]()
        for _, entry, _, number in chosen:
            suspect = group.open[entry].suspect if entry in group.open else None
            verb = self.verb(outcome, number, suspect)
            live = self.is_live(group, entry, who, number)
            if live and verb == "back" and suspect:
                live = suspect[1]  # else it was handed back before
            error = f"no {entry} {number}"
            words += self.words(group, entry, number, verb, error, wait)
            expected.append(int(live))
            if live:
                unread += [entry] if verb == "unread" else []
                self.end(group, entry, verb, error, wait)
            Machine.done[verb if live else "late"] += 1
        self.undeliver(group, unread)
        for each in (expected, [0] * len(expected)):  # the second time, the reply was lost
            assert self.run(_settle, **self.settling(group, who), words=words) == each

    def undeliver(self, group: Group, entries: list[str]) -> None:
        """Let what was handed back after its first attempt be read once more, if nothing behind it was read."""
        for entry in sorted(entries, key=self.entries.index, reverse=True):
            if self.entries.index(entry) == group.position - 1:
                del group.open[entry]
                before = self.redis.xrevrange(STREAM, max=f"({entry}", count=1)
                group.position = self.entries.index(decoded(before[0][0])) + 1 if before else 0
                Machine.done["undelivered"] += 1

    def verb(self, outcome: str, number: int, suspect: tuple[int, bool] | None) -> str:
        if outcome == "fail":
            return "again" if number < ATTEMPTS else "dead"
        if outcome == "unread" and (number > 1 or suspect):
            return "back"
        return {"final": "dead"}.get(outcome, outcome)

    def end(self, group: Group, entry: str, verb: str, error: str, wait: int) -> None:
        known = group.open[entry]
        if verb == "back" and known.suspect:
            known.suspect, known.is_idle = (known.suspect[0], False), True
            return
        known.suspect = None
        if verb in ("again", "dead"):
            known.errors.append((known.number, error))
        if verb in ("again", "back", "unread"):
            known.due, known.is_free = self.now + wait * (verb == "again"), verb != "again"
            return
        del group.open[entry]
        group.ends[entry] = verb
        if verb == "dead":
            group.letters[entry] = known.errors

    def words(self, group: Group, entry: str, number: int, verb: str, error: str, wait: int) -> list[Any]:
        job = self.jobs[entry]
        err = json.dumps({"message": error}) if verb in ("again", "dead") else ""
        message = json.dumps({"str": "s", "grp": group.name, "job": job, "end": verb})
        if verb == "done" and number == 1 and self.entries.index(entry) % 2:
            return [entry, "", job, "P"]
        result = (60_000, f"{group.name} {entry}") if verb == "done" else ("", "")
        return [entry, number, verb, job, "P", "c", message, err, wait if verb == "again" else 0, "{}", 0, *result]

    def settling(self, group: Group, who: str) -> dict[str, Any]:
        more = {"name": "s", "control": "c", "service": "", "history": 0, "capacity": 100_000, "dead": KEYS.dead("s")}
        more |= {"gone": "{}", "channels": "c", "head": f'{{"str":"s","grp":"{group.name}","job":"'}
        more |= {"group": group.key, "consumer": who, "done": KEYS.done("s"), **KEYS.of_group("s", group.name)}
        return more | {"results": [f"result:{group.name}:{place}" for place in range(3)]}

    def tend(self, of: int, who: str, most: int) -> None:
        group = self.groups[of]
        of_group = KEYS.of_group("s", group.name)
        after, claimed, missing, *_ = self.run(
            _tend, stream=STREAM, wait=of_group["wait"], tries=of_group["tries"], later=KEYS.later("s"),
            repeats=KEYS.repeats("s"), paused=KEYS.paused("s"), group=group.key, consumer=who, most=most, idle=IDLE_MS,
            lost=json.dumps({"message": "lost"}), attempts=ATTEMPTS, is_limited=1, **{"from": "-"},
        )  # fmt: skip
        self.begin_what_waits()
        assert missing == []
        due = [(known.due, entry) for entry, known in group.open.items() if known.due is not None]
        due += [(at, entry) for entry, at in group.stale.items()]
        wanted = [entry for at, entry in sorted(due) if at <= self.now][:most]
        for entry in group.stale.keys() & set(wanted):
            wanted.remove(entry)
            del group.stale[entry]
        for entry in wanted:
            known = group.open[entry]
            known.number += not known.is_free
            known.who, known.due, known.is_free, known.is_idle = who, None, False, False
        came = dict.fromkeys(wanted, "again") | self.adopted(group, who, most - len(wanted))
        self.attempts += [(group, entry, who, group.open[entry].number) for entry in came]
        assert [(decoded(entry), number, decoded(how)) for entry, number, _, how in claimed] == [
            (entry, group.open[entry].number, how) for entry, how in came.items()
        ]
        Machine.done["claimed"] += len(came)
        times = [known.due for known in group.open.values() if known.due is not None]
        next_at = min([*times, *group.stale.values(), *self.later.values()], default=None)
        left = None if next_at is None else round(max(0.0, next_at - self.now), 3)
        assert (float(after) if after else None) == left
        for entry, how in came.items():  # whose consumers have died too often are dead jobs, as the worker buries them
            if how == "dead" or group.open[entry].number > ATTEMPTS:
                words = self.words(group, entry, group.open[entry].number, "dead", "all have died", 0)
                self.end(group, entry, "dead", "all have died", 0)
                assert self.run(_settle, **self.settling(group, who), words=words) == [1]

    def adopted(self, group: Group, who: str, most: int) -> dict[str, str]:
        """Take over at most ``most`` of what dead consumers had; return how each came."""
        came, together, suspects = dict[str, str](), 0, 0
        for entry, known in sorted(group.open.items(), key=self.place):
            is_full = suspects and suspects >= together
            if len(came) < most and not is_full and known.is_idle and known.due is None:
                owner = known.who
                many, is_out = known.suspect or self.suspicion(group, owner, who)
                is_guilty = is_out and many == 1
                many = 1 if is_out else many
                if is_guilty and known.number >= ATTEMPTS:
                    came[entry] = "dead"
                elif not suspects or many == together:
                    suspects += 1
                    if is_guilty:
                        known.errors.append((known.number, "lost"))
                        known.number += 1
                    came[entry], together, known.suspect = "suspect", many, (many, True)
                if entry in came:
                    known.who, known.is_idle = who, False
                if not any(each.who == owner and each.due is None for each in group.open.values()):
                    group.died.pop(owner, None)
        return came

    def suspicion(self, group: Group, owner: str, who: str) -> tuple[int, bool]:
        """Half of what ``owner`` had in hand may be in one hand next; of one alone it has died."""
        counted = sum(each.who == owner and each.due is None for each in group.open.values())
        held = max(group.died.get(owner, 0), counted)
        if owner != who:
            group.died[owner] = held
        return (1, True) if held == 1 else (-(-held // 2), False)

    def begin_what_waits(self) -> None:
        """Take over the entries of jobs whose time has come: the last ones of the stream."""
        due = sorted((at, member) for member, at in self.later.items() if at <= self.now)
        if due:
            entries = [decoded(entry) for entry, _ in self.redis.xrevrange(STREAM, count=len(due))][::-1]
            for entry, (_, member) in zip(entries, due, strict=True):
                self.entries.append(entry)
                self.jobs[entry] = member.partition(" ")[2]
                del self.later[member]

    def place(self, pair: tuple[str, Known]) -> int:
        return self.entries.index(pair[0])

    def crash(self, of: int, who: str) -> None:
        group = self.groups[of]
        for entry, known in group.open.items():
            if known.who == who:
                known.is_idle = True
                more = {"idle": 2 * IDLE_MS, "retrycount": known.number, "justid": True}
                self.redis.xclaim(STREAM, group.key, who, 0, [entry], **more)

    def renew(self, of: int, who: str) -> None:
        """Renew all attempts that a consumer has made, as one does that does not know what it has lost."""
        group = self.groups[of]
        mine = [(entry, number) for each, entry, whose, number in self.attempts if each is group and whose == who]
        if not mine:
            return
        words = [word for pair in mine for word in pair]
        lost, gone = self.run(_renew, stream=STREAM, group=group.key, consumer=who, words=words)
        expected = []
        for entry, number in mine:
            known = group.open.get(entry)
            if known and (known.who, known.number) == (who, number):
                known.is_idle = False
            else:
                expected.append(entry)
        assert ([*map(decoded, lost)], gone) == (expected, [])

    def cancel(self, pick: int) -> None:
        if not self.entries:
            return
        entry = self.entries[pick % len(self.entries)]
        found = self.run(
            _cancel, stream=STREAM, later=KEYS.later("s"), done=KEYS.done("s"), forward="f", entry=entry, member="",
            name="s", prefix=KEYS.group(""), channel="c:", control="c", capacity=100_000, err=json.dumps(CANCELLED),
        )  # fmt: skip
        open_ = [group for group in self.groups if entry not in group.ends]
        if found is None:  # cancelled before, or trimmed
            assert not open_
            return
        assert sorted(map(decoded, found)) == [group.name for group in open_]
        for group in open_:
            known = group.open.pop(entry, None)
            if known and known.due is not None:
                group.stale[entry] = known.due
            group.ends[entry] = "cancelled"
        Machine.done["cancelled"] += len(open_)

    def trim(self) -> None:
        never = {"group": "", "prefix": "", "consumer": "", "silent": 0}
        Machine.done["trimmed"] += self.run(_trim, stream=STREAM, **never)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.set_clock()

    # What must be stored

    @invariant()
    def all_is_as_the_model_has_it(self) -> None:
        for group in self.groups:
            pending = self.redis.xpending_range(STREAM, group.key, "-", "+", 10_000)
            words = ("message_id", "consumer", "times_delivered")
            assert [tuple(decoded(each[word]) for word in words) for each in pending] == [
                (entry, known.who, str(known.number)) for entry, known in sorted(group.open.items(), key=self.place)
            ]
            found = self.redis.zrange(f"p:wait:s:{group.name}", 0, -1, withscores=True)
            known = {entry: known.due for entry, known in group.open.items() if known.due is not None}
            assert {decoded(entry): at for entry, at in found} == known | group.stale
        ends = Counter((each["grp"], each["job"]) for each in self.kept())
        assert ends == Counter((group.name, self.jobs[entry]) for group in self.groups for entry in group.ends)
        letters = [
            {decoded(name): decoded(word) for name, word in each.items()}
            for _, each in self.redis.xrange(KEYS.dead("s"))
        ]
        found = {(each["grp"], each["entry"]): json.loads(each["errors"]) for each in letters}
        assert len(found) == len(letters)
        assert {
            key: [(each["attempt"], each["error"]["message"]) for each in errors] for key, errors in found.items()
        } == {(group.key, entry): errors for group in self.groups for entry, errors in group.letters.items()}
        self.nothing_is_removed_that_a_group_has_to_do()

    def kept(self) -> list[dict[str, Any]]:
        return [json.loads(fields[b"msg"]) for _, fields in self.redis.xrange(KEYS.done("s"))]

    def nothing_is_removed_that_a_group_has_to_do(self) -> None:
        left = {decoded(entry) for entry, _ in self.redis.xrange(STREAM)}
        for group in self.groups:
            assert {entry for entry in self.entries if entry not in group.ends} <= left

    def teardown(self) -> None:
        """Whatever has happened, every job ends once in each group."""
        self.pass_time(100)
        for _ in range(ATTEMPTS + 2):
            for of, group in enumerate(self.groups):
                for who in CONSUMERS:
                    self.crash(of, who)
                while group.open.keys() - self.live_of(group, "A"):
                    self.tend(of, "A", 100)
                self.tend(of, "A", 100)
                self.read(of, "A", 1_000)
                for entry, known in tuple(group.open.items()):
                    self.end(group, entry, "done", "", 0)
                    words = self.words(group, entry, known.number, "done", "", 0)
                    assert self.run(_settle, **self.settling(group, "A"), words=words) == [1]
        assert not self.later
        for group in self.groups:
            assert set(group.ends) == set(self.entries)
            assert not group.open
        self.all_is_as_the_model_has_it()

    def live_of(self, group: Group, who: str) -> set[str]:
        return {
            entry for entry, known in group.open.items() if known.who == who and known.due is None and not known.is_idle
        }

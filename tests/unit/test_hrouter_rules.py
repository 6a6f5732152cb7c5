"""Rules of hrouter: the first that matches wins, and what is wrong with one has its file and line."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from common.settings.base import ServiceSettings
from penstock.base.errors import SettingsError
from services import hrouter
from services.hrouter.coverage import unreachable
from services.hrouter.request import Request
from services.hrouter.rule import Rule
from services.hrouter.settings import Settings
from services.hrouter.table import Table

HEAD = """\
redis: redis://localhost:6379/0
redisNamespace: web:hrouter
in: web:req
pending: web:req:pending
replyLists: [web:res:*]
"""
FIRST = HEAD.count("\n") + 2
"""The line of the first rule."""


def request(path: str = "/", method: str = "GET", **headers: str) -> Request:
    pairs = [[name.replace("_", "-"), value] for name, value in headers.items()]
    return Request(method, path.encode("latin-1"), 0, pairs, "1", "res")


def found(rules: list[dict[str, Any]], asked: Request) -> str | None:
    rule = Table([Rule.parse(rule) for rule in rules]).find(asked)
    return rule.to if rule else None


@pytest.mark.parametrize(
    ("conditions", "admitted", "refused"),
    [
        ({"match": "all"}, [request("/"), request("/x", "PUT"), request("")], []),
        ({"prefix": "/a.b"}, [request("/a.b"), request("/a.b/c")], [request("/aXb"), request("/x/a.b")]),
        ({"path": "^/v[0-9]+/"}, [request("/v12/x")], [request("/vx/"), request("/a/v1/")]),
        ({"path": "report$"}, [request("/a/report")], [request("/report/a"), request("/report\n")]),
        ({"path": "^/\xff"}, [request("/\xff")], [request("/y")]),
        ({"match": "all", "method": ["get", "PUT"]}, [request(), request("/", "PUT")], [request("/", "POST")]),
        ({"match": "all", "host": "Example.org"}, [request(host="example.ORG:80")], [request(host="a.example.org")]),
        ({"match": "all", "host": "*.b.org"}, [request(host="a.b.org"), request(host="x.a.b.org.")], [request()]),
        ({"match": "all", "host": "*.b.org"}, [], [request(host="b.org"), request(host="." * 10_000)]),
        ({"match": "all", "header": {"X-Kind": "^a"}}, [request(x_kind="ab")], [request(x_kind="ba"), request()]),
        ({"match": "all", "disabled": True}, [], [request()]),
    ],
)
def test_a_rule_admits_by_path_method_host_and_header(
    conditions: dict[str, Any], admitted: list[Request], refused: list[Request]
) -> None:
    rules = [{**conditions, "to": "out"}]
    assert [found(rules, asked) for asked in admitted] == ["out"] * len(admitted)
    assert [found(rules, asked) for asked in refused] == [None] * len(refused)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({}, "web:api"),
        ({"retry": True}, "web:api:retry"),
        ({"retry": False}, "web:api:once"),
    ],
)
def test_what_later_hops_must_know_is_in_the_name_of_the_list(said: dict[str, bool], name: str) -> None:
    assert Rule.parse({"match": "all", "to": "web:api", **said}).to == name


PATHS = some.sampled_from(["/", "/a", "/a/", "/a/b", "/ab", "/b/a", "/a/b/c", "/c"])
CONDITIONS = some.one_of(
    some.fixed_dictionaries({"prefix": PATHS}),
    some.fixed_dictionaries(
        {
            "path": some.sampled_from(
                ["^/a", "^/a/.*", "^/a|^/c", "b$", "^/[ab]", "^/ab?", "^/a/b*", "^", ".*", "^/a\\/b"]
            )
        }
    ),
    some.just({"match": "all"}),
)
MORE = some.fixed_dictionaries(
    {},
    optional={
        "method": some.sampled_from(["GET", "PUT", ["GET", "PUT"]]),
        "host": some.sampled_from(["x.org", "*.org", "y.x.org", ["x.org", "*.x.org"]]),
        "header": some.sampled_from([{"kind": "^a"}, {"kind": "b"}, {"kind": "^a", "mode": "1"}]),
        "disabled": some.booleans(),
    },
)
RULES = some.lists(some.builds(lambda first, more: {**first, **more}, CONDITIONS, MORE), max_size=8).map(
    lambda rules: [{**rule, "to": f"list{place}"} for place, rule in enumerate(rules)]
)
REQUESTS = some.builds(
    request,
    PATHS,
    some.sampled_from(["GET", "PUT", "POST"]),
    host=some.sampled_from(["x.org", "y.x.org", "y.org", "other"]),
    kind=some.sampled_from(["a", "ab", "b", "c"]),
    mode=some.sampled_from(["0", "1"]),
)


def naive(rules: list[dict[str, Any]], asked: Request) -> str | None:
    """Return the list of the first rule that matches, one by one with Python's own expressions."""
    fields = dict(asked.headers)
    path = asked.path.decode()
    for rule in rules:
        methods, hosts = rule.get("method", asked.method), rule.get("host", fields["host"])
        names = [hosts] if isinstance(hosts, str) else hosts
        if (
            not rule.get("disabled")
            and path.startswith(rule.get("prefix", ""))
            and re.search(rule.get("path", ""), path)
            and asked.method in ([methods] if isinstance(methods, str) else methods)
            and any(
                fields["host"] == name or (name[:2] == "*." and fields["host"].endswith(name[1:])) for name in names
            )
            and all(re.search(words, fields[name]) for name, words in rule.get("header", {}).items())
        ):
            return str(rule["to"])
    return None


@given(RULES, some.lists(REQUESTS, min_size=1, max_size=8))
def test_the_first_rule_in_order_wins_as_in_a_naive_model(rules: list[dict[str, Any]], asked: list[Request]) -> None:
    table = Table([Rule.parse(rule) for rule in rules])
    for each in asked:
        rule = table.find(each)
        assert (rule.to if rule else None) == naive(rules, each), each
        if not table.reads_requests:
            assert table.by_path(each.path) == rule


@given(RULES, some.lists(REQUESTS, min_size=1, max_size=8))
def test_no_request_reaches_a_rule_that_counts_as_unreachable(
    rules: list[dict[str, Any]], asked: list[Request]
) -> None:
    hidden = [*unreachable([Rule.parse(rule) for rule in rules])]
    reached = {naive(rules, each) for each in asked}
    assert not {rules[place]["to"] for place, _ in hidden} & reached
    assert all(first < place for place, first in hidden)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ({"match": "all"}, {"prefix": "/a"}),
        ({"path": ".*"}, {"match": "all", "host": "x.org"}),
        ({"path": "^/[a-z]+$"}, {"path": "^/[a-z]+$", "method": "GET"}),
        ({"prefix": "/a"}, {"prefix": "/a/b"}),
        ({"prefix": "/a"}, {"path": "^/a/[0-9]+$"}),
        ({"path": "^/a/.*"}, {"path": r"^/a/b\.html"}),
        ({"prefix": "/a", "method": ["GET", "PUT"]}, {"prefix": "/ab", "method": "PUT"}),
        ({"match": "all", "host": "*.x.org"}, {"match": "all", "host": "y.x.org"}),
        ({"match": "all", "header": {"a": "1"}}, {"match": "all", "header": {"b": "2", "A": "1"}}),
    ],
)
def test_an_unreachable_rule_is_found(earlier: dict[str, Any], later: dict[str, Any]) -> None:
    def hidden(*rules: dict[str, Any]) -> list[tuple[int, int]]:
        return [*unreachable([Rule.parse({**rule, "to": "out"}) for rule in rules])]

    assert hidden(earlier, later) == [(1, 0)]
    assert hidden(later, earlier) == []
    assert hidden({**earlier, "disabled": True}, later) == []


def test_what_is_remembered_of_paths_is_bounded_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.hrouter.table.MAX_KNOWN", 3)
    table = Table([Rule.parse({"path": f"^/{number}$", "to": str(number)}) for number in range(8)])
    for _ in range(2):
        for number in (*range(9), 0, 5, 5):
            rule = table.by_path(b"/%d" % number)
            assert (rule.to if rule else None) == (str(number) if number < 8 else None)
            assert len(table._known) <= 3
    table.by_path(b"/" + b"x" * 10_000)
    assert max(map(len, table._known)) <= 2


def test_an_expression_that_explodes_elsewhere_takes_no_time_here() -> None:
    """Python's own ``re`` needs seconds for 26 letters, and for ever for these."""
    rules = [{"path": "^/(a+)+$", "to": "bad"}, {"path": r"^/(.*a){12}$", "to": "worse"}]
    assert found(rules, request("/" + "a" * 100_000 + "!")) is None


def test_a_thousand_rules_that_all_match_keep_their_order() -> None:
    rules = [{"prefix": "/", "header": {"n": f"^{place}$"}, "to": f"list{place}"} for place in range(1_000)]
    assert [found(rules, request("/x", n=n)) for n in ("0", "999", "1000")] == ["list0", "list999", None]


def problems(file: Path, rules: str) -> list[str]:
    file.write_text(HEAD + "rules:\n" + rules)
    with pytest.raises(SettingsError) as raised:
        Settings.load(file, {})
    return str(raised.value).replace(f"{file}:", "").splitlines()


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("{path: '^/(?=x)', to: a}", "path: invalid perl operator: (?= (RE2 has no look-around and no atomic groups)"),
        (r"{path: '(a)\1', to: a}", r"path: invalid escape sequence: \1 (RE2 has no back-references)"),
        ("{path: 'a++', to: a}", "path: bad repetition operator: ++"),
        ("{path: '(a', to: a}", "path: missing ): (a"),
        ("{path: 'a{1001}', to: a}", "path: invalid repetition size: {1001}"),
        ("{path: '^/✓', to: a}", "path: a character outside of latin-1: write it percent-encoded, as clients send it"),
        ("{match: all, header: {a: '['}, to: a}", "header a: missing ]: ["),
        ("{match: some, to: a}", "match: expected all; write an expression as path, a literal as prefix"),
        ("{prefix: a, to: a}", "prefix: expected a text that begins with /"),
        ("{to: a}", "expected one of match, prefix, path, found none"),
        ("{match: all, path: a, to: a}", "expected one of match, prefix, path, found match and path"),
        ("{match: all}", "expected one of to, respond, redirect, found none"),
        ("{match: all, to: ''}", "to: expected a text"),
        ("{match: all, to: a, retry: 1}", "retry: expected true | false"),
        ("{match: all, to: a, hosts: x}", "unknown property hosts: did you mean host?"),
        (
            "{match: all, to: a, host: 'x:80'}",
            "host: expected a name without a port, such as example.org, or *.example.org",
        ),
        ("{match: all, to: a, method: [GET, 7]}", "method: expected a text, or a list of texts"),
        ("{match: all, respond: {status: 999}}", "status: expected 200 to 599"),
        ("{match: all, respond: {code: 403}}", "respond: unknown property code"),
        (
            '{match: all, respond: {headers: {a: "b\\r\\nc: d"}}}',
            "headers: expected names and texts of HTTP, without line ends",
        ),
        ("{match: all, redirect: {to: /a, status: 200}}", "status: expected 301, 302, 303, 307, 308"),
        (r"{path: '^/(a)', redirect: '/\2'}", r"redirect: \2 is none of the 1 groups of path"),
        ("{match: all, to: a, breaker: open}", "breaker: expected refuse | cached | accept"),
        ("{match: all, to: a, breaker: ''}", "breaker: expected refuse | cached | accept"),
        ("{match: all, respond: {}, breaker: cached}", "breaker: has no effect with respond: expected it beside to"),
        ("{match: all, respond: {}, retry: true}", "retry: has no effect with respond: expected it beside to"),
        ("{match: all, redirect: /a, retry: false}", "retry: has no effect with redirect: expected it beside to"),
        ("{match: all, respond: true}", "respond: expected an object, such as {status: 403, body: 'not here'}"),
        ("{match: all, to: a, waits: [b]}", "waits: has no effect without breaker"),
        ("{match: all, to: a, breaker: refuse, waits: []}", "waits: expected a text, or a list of texts"),
        (
            "{match: all, to: a, breaker: refuse, waits: 'redis://h/0'}",
            "waits: expected the name of a list on the same server, found a URL: hrouter reads the length of no other",
        ),
        ("just text", "expected an object, such as {prefix: /api/, to: web:api}"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named_with_its_line(tmp_path: Path, rule: str, words: str) -> None:
    said = problems(tmp_path / "hrouter.yaml", f"  - {{prefix: /first, to: b}}\n  # a comment\n  - {rule}\n")
    assert said == [f"{FIRST + 2}: rules: item 2: {words}"]


def test_the_example_of_the_readme_can_be_used(tmp_path: Path) -> None:
    file, readme = tmp_path / "hrouter.yaml", Path(hrouter.__path__[0]) / "README.md"
    file.write_text(readme.read_text().split("```yaml\n")[1].split("```")[0])
    assert Settings.load(file, {}).named("rules_") == ["web:days", "web:pages"]


def test_every_wrong_rule_is_named_and_an_unreachable_one_with_what_hides_it(tmp_path: Path) -> None:
    file = tmp_path / "hrouter.yaml"
    both = problems(file, "  - path: (\n    to: a\n  - {prefix: /, to: b}\n  - {prefix: x, to: c}\n")
    assert [line.partition(":")[0] for line in both] == [str(FIRST), str(FIRST + 3)]
    hidden = problems(file, "  - name: site\n    prefix: /\n    to: a\n  - prefix: /api/\n    to: b\n")
    words = "item 2: no request reaches this rule: item 1 (site) matches all of them before"
    assert hidden == [f"{FIRST + 3}: rules: {words}"]


def test_rules_may_be_in_a_file_of_their_own_beside_the_props_file(tmp_path: Path) -> None:
    (tmp_path / "hrouter.yaml").write_text(HEAD + "rules: routes.yaml\n")
    (tmp_path / "routes.yaml").write_text("# ours\nrules:\n- {prefix: /a, to: a}\n- {prefix: /b, to: b}\n")
    settings = Settings.load(tmp_path / "hrouter.yaml", {})
    assert settings.named("rules_") == ["a", "b"]
    origins = {end.key: end.origin for end in settings.shape().ends if end.setting == "rules"}
    assert origins == {"a": f"{tmp_path}/routes.yaml:3", "b": f"{tmp_path}/routes.yaml:4"}
    (tmp_path / "routes.yaml").write_text("rules:\n- {prefix: /a, to: a}\n- {prefix: /a, to: b}\n")
    with pytest.raises(SettingsError, match=r"routes\.yaml:3: rules: item 2: no request reaches"):
        settings.again()
    (tmp_path / "routes.yaml").write_text("rules:\n- {prefix: /a, to: c}\n")
    assert settings.again().changes_from(settings).keys() == {"rules"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "routes.yaml: cannot be read: No such file or directory"),
        ("in: web:req\nrules: []\n", "routes.yaml:1: in: expected rules and nothing else in this file"),
        ("{}\n", "routes.yaml: rules: missing: FILE:6 expects it in this file"),
        ("rules: [\n", "routes.yaml:2: not YAML: a value is missing"),
        ("rules: all\n", "routes.yaml:1: rules: expected a list of rules, or the name of a YAML file with one"),
    ],
)
def test_a_file_of_rules_that_cannot_be_used_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "routes.yaml").write_text(text)
    file = tmp_path / "hrouter.yaml"
    file.write_text(HEAD + "rules: routes.yaml\n")
    with pytest.raises(SettingsError) as raised:
        Settings.load(file, {})
    assert str(raised.value).replace(f"{file}", "FILE").replace(f"{tmp_path}/", "") == words


def test_a_leading_wildcard_is_a_warning_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "hrouter.yaml"
    file.write_text(HEAD + "rules:\n- {path: '^.*/report', to: a}\n- {path: '.*', to: b}\n")
    (warning,) = Settings.load(file, {}).warnings({})
    assert warning.startswith(f"{file}:{FIRST}: rules: item 1: path: begins with .*")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"redis_namespace": None}, "redisNamespace: missing: expected a name"),
        (
            {"rules_": [{"match": "all", "respond": {"status": 403}}]},
            "rules: a rule answers requests: expected in replyLists",
        ),
        (
            {"rules_": [{"match": "all", "to": "web:api", "breaker": "refuse"}]},
            "rules: a rule answers requests: expected in replyLists",
        ),
        (
            {
                "rules_": [{"match": "all", "to": "a", "breaker": "refuse", "waits": [*map(str, range(1_000))]}],
                "reply_lists": ["b"],
            },
            "rules: breakers count 1,001 lists: expected at most 1,000",
        ),
        ({"rules_": []}, "rules: expected a list of rules"),
        ({"rules_": [{"match": "all", "to": "web:req"}]}, 'rules: "web:req" is `in` as well'),
        ({"rules_": [{"match": "all", "to": "redis://h/0"}]}, "rules: item 1: to: expected the name of a list"),
    ],
)
def test_settings_that_cannot_work_are_refused(change: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {
        "redis": "redis://localhost/0",
        "redis_namespace": "web:hrouter",
        "in_": "web:req",
        "pending": "web:req:pending",
        "rules_": [{"match": "all", "to": "web:api"}],
    }
    assert isinstance(Settings(**good), ServiceSettings)
    with pytest.raises(SettingsError) as raised:
        Settings(**{**good, **change})
    assert words in str(raised.value)

"""Find rules that no request reaches, since an earlier rule matches everything that they match."""

from collections.abc import Iterator, Sequence

from services.hrouter.rule import Rule


def unreachable(rules: Sequence[Rule]) -> Iterator[tuple[int, int]]:
    """Yield the place of each unreachable rule, with that of the first rule that hides it.

    Compare conditions, equal expressions and the literal text that paths begin with: what is found is unreachable, and
    an unreachable rule for other reasons may be missed.
    """
    equal: dict[str, list[int]] = {}
    literal: dict[str, list[int]] = {}
    for place, rule in enumerate(rules):
        if rule.disabled:
            continue
        begins, is_literal = rule.beginning
        earlier = equal.get(rule.expression, [])
        for end in range(len(begins) + 1):
            earlier = earlier + literal.get(begins[:end], [])
        if (hiding := min((each for each in earlier if _admits_all_of(rules[each], rule)), default=None)) is not None:
            yield place, hiding
        equal.setdefault(rule.expression, []).append(place)
        if is_literal:
            literal.setdefault(begins, []).append(place)


def _admits_all_of(rule: Rule, other: Rule) -> bool:
    """Return True if the conditions of ``rule`` besides the path admit all that those of ``other`` admit."""
    methods = not rule.methods or (bool(other.methods) and other.methods <= rule.methods)
    hosts = not rule.hosts or (bool(other.hosts) and all(_is_among(host, rule.hosts) for host in other.hosts))
    return methods and hosts and set(rule.headers) <= set(other.headers)


def _is_among(host: str, hosts: Sequence[str]) -> bool:
    return host in hosts or any(each.startswith("*.") and host.endswith(each[1:]) for each in hosts)

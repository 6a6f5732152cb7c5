"""Rounds of measurements: each peer at each work, in turns, so that a slow moment of the machine affects all."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.peers.install import HOME, Installed, NotInstalled
from bench.peers.peer_run import PeerFailed, PeerRun
from bench.peers.results import Member, Row
from bench.peers.works import Entry, Peer, Work

Installations = dict[str, Installed | str | None]
"""By peer: how to start it, None if it needs nothing, or why it could not be installed."""
Notify = Callable[[str, bool], None]
"""A function of a progress text and of whether it ends one of the steps that ``steps`` counted."""
WARM_UP = 0.1
"""Share of a run's messages that are sent before the clock starts."""


def steps(peers: Sequence[Peer], works: Sequence[Work], rounds: int) -> int:
    """Return the maximum number of steps."""
    return len(peers) + rounds * sum(work in peer.works for peer in peers for work in works)


def installed(peers: Sequence[Peer], notify: Notify) -> Installations:
    """Install the peers."""
    found: Installations = {}
    for peer in peers:
        try:
            found[peer.name] = peer.origin.into(HOME / peer.name.lower()) if peer.origin else None
        except NotInstalled as reason:
            found[peer.name] = str(reason)
        trouble = found[peer.name] if isinstance(found[peer.name], str) else "ready"
        notify(f"{peer.name}: {trouble}", True)
    return found


def members(peers: Sequence[Peer], found: Installations) -> tuple[Member, ...]:
    """Return name and version of each peer that does something that Penstock does not."""
    return tuple(Member(peer.name, _version(peer, found[peer.name]), peer.more) for peer in peers if peer.more)


def measured(
    peers: Sequence[Peer], works: Sequence[Work], found: Installations, rounds: int, notify: Notify
) -> tuple[Row, ...]:
    """Measure all; return the rows. A peer that fails once is not tried again, and its row says why."""
    rows = {
        (work, peer.name): _row(peer, work, found[peer.name]) for work in works for peer in peers if work in peer.works
    }
    for turn in range(1, rounds + 1):
        for work in works:
            for peer in peers:
                row = rows.get((work, peer.name))
                if row and not row.missing:
                    how = found[peer.name]
                    assert not isinstance(how, str)
                    rows[work, peer.name] = _once_more(row, peer.works[work], how, turn)
                if row:
                    notify(f"round {turn} of {rounds}, {work}, {_last(rows[work, peer.name])}", True)
    return tuple(rows.values())


def _row(peer: Peer, work: Work, how: Installed | str | None) -> Row:
    entry = peer.works[work]
    return Row(peer.name, work, entry.how, entry.messages, missing=how if isinstance(how, str) else "")


def _once_more(row: Row, entry: Entry, how: Installed | None, turn: int) -> Row:
    try:
        with PeerRun.opened(how) as run, entry.start(run) as measure:
            measure(max(1, int(WARM_UP * entry.messages)))
            return replace(row, samples=(*row.samples, measure(entry.messages)))
    except PeerFailed as trouble:
        return replace(row, samples=(), missing=f"round {turn}: {trouble}")


def _last(row: Row) -> str:
    return f"{row.peer}: {row.missing or f'{row.samples[-1]:,.4g} {row.work.unit}'}"


def _version(peer: Peer, how: Installed | str | None) -> str:
    if isinstance(how, Installed):
        return how.version
    return "the server's" if peer.origin is None else "not installed"

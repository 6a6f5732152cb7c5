"""Outcome of a demo: what it shows, and a line for everything that is not as promised."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.text import Text

from compose.comparison import Comparison
from compose.ending import Ending
from penstock.accounting.audit import Audit
from penstock.accounting.tracked import TrackedAudit


@dataclass(frozen=True)
class Outcome:
    """Result of a run; ``differences`` has a line for each fault that one of the fields shows."""

    ending: Ending
    shown: Sequence[RenderableType]
    """Tables and lines, in the order in which they are printed."""
    success: str
    """The last line if nothing differs."""
    data: Mapping[str, object]
    """What is printed as JSON, but for differences and exit statuses."""
    comparisons: Sequence[Comparison] = ()
    audits: Mapping[str, Audit | TrackedAudit | None] = field(default_factory=dict)
    """By namespace; None if no service has counted anything."""
    owed: Mapping[str, int] = field(default_factory=dict)
    """How many messages must have been counted as delivered to a list."""
    problems: Sequence[str] = ()
    """What the demo itself has found."""
    killed: Sequence[str] = ()
    """Processes that have ended by SIGKILL."""

    @property
    def differences(self) -> list[str]:
        found = [line for each in self.comparisons for line in each.differences()] + [*self.problems]
        for namespace, each in self.audits.items():
            if each is None:
                found.append(f"{namespace}: nothing to audit, no service has counted anything")
            else:
                found += [f"{namespace}: {problem}" for problem in each.problems]
        outputs = [output for each in self.audits.values() if isinstance(each, Audit) for output in each.legs]
        delivered = {output.name: output.delivered for output in outputs}
        for name, owed in self.owed.items():
            is_excused = name not in delivered and None in self.audits.values()  # there is a line for that
            if not is_excused and (many := delivered.get(name, 0)) != owed:
                found.append(f"{name}: {many:,} of {owed:,} counted as delivered")
        return found + self.ending.differences(*self.killed)

    def figures(self) -> dict[str, object]:
        """Return what is printed as JSON."""
        found = self.differences
        return {"holds": not found, "differences": found, **self.data, "exitStatus": self.ending.statuses}

    def show(self, console: Console) -> None:
        """Print the tables and, last, each difference, or the success."""
        for each in self.shown:
            console.print(Text(each) if isinstance(each, str) else each, soft_wrap=isinstance(each, str | Text))
        for difference in self.differences:
            console.print(Text(f"differs: {difference}", style="bold red"), soft_wrap=True)
        if not self.differences:
            console.print(Text(self.success, style="green"), soft_wrap=True)

"""Run the command line: ``penstock``, or ``python -m penstock``."""

import signal
import sys


def main() -> None:
    """Run the command line. ``penstock run`` blocks signals until the service that it becomes can handle them.

    Any other command ends silently if it is interrupted while it is imported.
    """
    before = signal.getsignal(signal.SIGINT)
    if sys.argv[1:2] == ["run"]:
        import penstock.base.signals  # noqa: F401
    elif before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.cli import app

    signal.signal(signal.SIGINT, before)
    app(prog_name="penstock")


if __name__ == "__main__":
    main()

"""``penstock``, also as ``python -m penstock``."""

import signal
import sys


def main() -> None:
    """Run the command line; ``penstock run`` keeps orders by signal for the service that it becomes.

    Any other command ends without a word if it is interrupted before it has begun.
    """
    before = signal.getsignal(signal.SIGINT)
    if sys.argv[1:2] == ["run"]:
        import penstock.signals  # noqa: F401
    elif before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.cli import app

    signal.signal(signal.SIGINT, before)
    app(prog_name="penstock")


if __name__ == "__main__":
    main()

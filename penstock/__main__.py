"""``penstock``, also as ``python -m penstock``."""

import sys


def main() -> None:
    """Run the command line; ``penstock run`` keeps orders by signal for the service that it becomes."""
    if sys.argv[1:2] == ["run"]:
        import penstock.held  # noqa: F401
    from penstock.cli import app

    app(prog_name="penstock")


if __name__ == "__main__":
    main()

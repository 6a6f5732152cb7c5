"""``python -m penstock`` is the same as ``penstock``."""

from penstock.cli import app

if __name__ == "__main__":
    app(prog_name="penstock")

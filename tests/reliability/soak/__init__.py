"""Soak test: a chain of all services under all faults at once, by seed, with every message counted by content.

The accounting uses no code of Penstock: it reads lists with a plain client. Run it with `make soak` or
``python -m tests.reliability.soak``.
"""

"""A chain of all services under every fault at once, by seed; what came of each message is counted by its content.

Nothing of Penstock takes part in the accounting: it reads lists with a plain client. Run it with `make soak`.
``python -m tests.reliability.soak``.
"""

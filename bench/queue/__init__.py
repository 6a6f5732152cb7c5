"""Figures of hqueue: ``python -m bench hqueue``."""

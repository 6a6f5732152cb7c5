"""Figures of the web services: ``python -m bench web``."""

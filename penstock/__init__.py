"""Penstock: small Redis services that move messages without losing any; this package is for those who use them."""

__version__ = "0.1.0"

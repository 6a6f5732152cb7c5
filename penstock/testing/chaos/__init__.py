"""Breaks a composition on purpose, and says what was lost, doubled or put out of order."""

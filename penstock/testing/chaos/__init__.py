"""Fault injection: break a composition on purpose and report what was lost, doubled or reordered."""

"""What everything connects, waits, settles and proves with."""

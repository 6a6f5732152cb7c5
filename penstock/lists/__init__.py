"""Reliable lists: push messages, take them, and settle each when its handling ends."""

from penstock.lists.lists import List, Lists
from penstock.lists.message import Message
from penstock.lists.work import Request, Work

__all__ = ["List", "Lists", "Message", "Request", "Work"]

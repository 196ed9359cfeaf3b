"""Slots of random binning that many passes look at: made once from rows, then kept."""

from streamrf.slots.cache import DISK, MEMORY, NOWHERE, SlotCache
from streamrf.slots.maker import SlotMaker, let_go, slot_maker
from streamrf.slots.source import SlotSource

__all__ = ["DISK", "MEMORY", "NOWHERE", "SlotCache", "SlotMaker", "SlotSource", "let_go", "slot_maker"]

"""Lets tasks of asyncio or uvloop wait for locks."""

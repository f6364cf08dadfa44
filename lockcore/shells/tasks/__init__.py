"""Waiting by tasks of asyncio, or of uvloop."""

"""Runs put together from the parts below: *a scenario → a judged result*. Knows every part, is known by cli and report only."""

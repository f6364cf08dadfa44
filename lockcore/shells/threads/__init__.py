"""Lets threads wait for locks."""

"""Lets greenlets of gevent wait for locks."""

"""Waiting by greenlets of gevent."""

"""This package judges each recipe in simulated schedules, and tests claims about Redlock."""

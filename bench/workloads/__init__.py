"""The Locust side: *a plan → locks taken and given back, one record each*.

See the README beside this file.
"""

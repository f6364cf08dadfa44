"""The fault shim: *a C library preloaded into a server → its disk and its wall clock, decided from Python*."""

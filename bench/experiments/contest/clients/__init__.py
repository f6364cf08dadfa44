"""Other people's locks, and ours, under the same load: each driver alone in its process, in its own
environment."""

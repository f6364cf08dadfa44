"""Contains the commands `fsync`, `crash` and `planner`. `fsync` measures the price of each AOF
fsync policy, `crash` measures the locks that each policy loses in a crash, and `planner` recommends
a policy."""

"""Contains the commands `fsync`, `crash` and `planner`. They measure the price of each AOF fsync
policy and the locks that each policy loses in a crash, and they recommend a policy."""

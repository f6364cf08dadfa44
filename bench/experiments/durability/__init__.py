"""The price of each AOF fsync policy, and the locks that each policy loses in a crash: *matrix of
cells → visits → judged prices*. The crashes and the planner are in this folder, too."""

"""What does an AOF fsync policy cost, and what does it lose in a crash? *matrix of cells → visits →
judged prices*. The crashes and the planner are in this folder, too."""

"""What does an AOF fsync policy cost? *matrix of cells → visits → judged prices; the planner beside
it*."""

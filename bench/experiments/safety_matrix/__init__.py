"""The safety matrix: *recipes in simulated schedules, and claims → a judged row for each*."""

"""The safety matrix: *recipes in simulated schedules, and claims → one judged row per recipe and
claim*."""

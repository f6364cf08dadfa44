"""Which way of locking holds? *recipes × schedules, claims → each row judged*."""

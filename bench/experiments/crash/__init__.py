"""Which acknowledged locks does a crash lose? *plan of cuts → judged losses, by AOF policy*."""

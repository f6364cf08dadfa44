"""One run, which every question stands on: *scenario → servers, Locust, record → a judged, written
result*."""

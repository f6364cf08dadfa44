"""One run of a scenario: *scenario → servers, Locust, record → a judged result on disk*."""

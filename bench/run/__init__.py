"""One run. Every question is answered with runs: *scenario → servers, Locust, record → a judged
result on disk*."""

"""One run, which every question uses: *scenario → servers, Locust, record → a judged result on
disk*."""

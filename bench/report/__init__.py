"""Results as people read them: *a result → terminal, Markdown, progress line*.

No arithmetic here.
"""

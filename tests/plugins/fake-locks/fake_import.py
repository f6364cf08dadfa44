"""A recipe whose module starts a thread while it is imported, and waits for it, as some libraries
do."""

import threading

from fake_locks import AlwaysYes

ready = threading.Event()
threading.Thread(target=ready.set, daemon=True).start()
ready.wait()


class StartsAThreadOnImport(AlwaysYes):
    """Says yes whatever the server says."""

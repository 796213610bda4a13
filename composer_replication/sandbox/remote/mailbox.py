"""The folder through which client and agent exchange requests and answers, and the program that starts the agent."""

from __future__ import annotations

INBOX, OUTBOX, LEASE = "inbox", "outbox", "lease"
"""Names in the agent's folder: of requests, of answers, and of the file that keeps the agent alive."""

BOOTSTRAP = """
import base64, os, sys
if sys.platform != "linux" or sys.version_info < (3, 11):
    sys.exit("%s is Python %s on %s" % (sys.executable, sys.version.split()[0], sys.platform))
archive = os.memfd_create("modules")
with open(archive, "wb", closefd=False) as file:
    file.write(base64.b64decode("".join(sys.argv[2:])))
path = "/proc/self/fd/%d" % archive
sys.path.insert(0, path)
from composer_replication.sandbox.remote.agent import begin
print(begin(path, float(sys.argv[1])))
"""
"""The program the server starts: seconds of the lease and the archive of modules, in pieces, are its arguments."""

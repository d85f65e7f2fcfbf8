r"""A client of the socket for steps that says what it likes: `step_client.py SOCKET TEXT`; prints what it is answered.

Runs in a step, as the job's user, and needs nothing but Python. `\n` in TEXT is a newline.
"""

import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
    line.connect(sys.argv[1])
    line.sendall(sys.argv[2].replace("\\n", "\n").encode())
    line.settimeout(60)
    said = line.recv(8192)
    if said == b"\n":  # it is heard, and the answer comes
        said = line.recv(8192)
    sys.stdout.write(said.strip(b"\n").decode())

"""Logs, exec and port-forward with the official client: WebSockets with v4 channels."""

import socket
import threading

from kubernetes import client, config
from kubernetes.stream import portforward, stream

config.load_kube_config()
v1 = client.CoreV1Api()

assert v1.read_namespaced_pod_log("web", "default") == "hello from the log\n"

both = stream(
    v1.connect_get_namespaced_pod_exec, "web", "default",
    command=["sh", "-c", "echo out; echo err >&2"], stderr=True, stdin=False, stdout=True, tty=False,
)
assert "out\n" in both and "err\n" in both, both

talk = stream(
    v1.connect_get_namespaced_pod_exec, "web", "default", command=["sh", "-c", "read x; echo got $x; exit 7"],
    stderr=True, stdin=True, stdout=True, tty=False, _preload_content=False,
)
talk.write_stdin("it\n")
talk.run_forever(timeout=30)
assert talk.read_stdout() == "got it\n"
assert talk.returncode == 7, talk.returncode

server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]


def answer():
    connection, _ = server.accept()
    connection.sendall(connection.recv(100).upper())
    connection.close()


threading.Thread(target=answer, daemon=True).start()
forward = portforward(v1.connect_get_namespaced_pod_portforward, "web", "default", ports=str(port))
pipe = forward.socket(port)
pipe.settimeout(30)
pipe.sendall(b"hello")
assert pipe.recv(100) == b"HELLO"
assert forward.error(port) is None, forward.error(port)
print("ok")

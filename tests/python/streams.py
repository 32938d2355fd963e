"""Logs, exec and port-forward with the official client: WebSockets with v4 channels; logs and watches over WebSocket."""

import json
import socket
import threading

from kubernetes import client, config
from kubernetes.stream import portforward, stream
from websocket import ABNF, create_connection

config.load_kube_config()
v1 = client.CoreV1Api()

assert v1.read_namespaced_pod_log("web", "default") == "hello from the log\n"

settings = client.Configuration.get_default_copy()


def connect(path, protocols=None):
    tls = {"ca_certs": settings.ssl_ca_cert, "certfile": settings.cert_file, "keyfile": settings.key_file}
    url = settings.host.replace("https://", "wss://") + path
    return create_connection(url, sslopt=tls, subprotocols=protocols, timeout=30)


log, received, opcode = connect("/api/v1/namespaces/default/pods/web/log", ["binary.k8s.io"]), b"", None
while opcode != ABNF.OPCODE_CLOSE:
    opcode, data = log.recv_data()
    received += data if opcode == ABNF.OPCODE_BINARY else b""
assert received == b"hello from the log\n", received
watch = connect("/api/v1/namespaces/default/pods?watch=1")
event = json.loads(watch.recv())
assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "web"), event
watch.close()

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

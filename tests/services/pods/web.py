"""A web server: tells who it is and who asks. Asked to stop, it serves whoever has come by then and ends.

web.py PORT [DIRECTORY]: notes in DIRECTORY/<name>, if given, when it was asked to stop.
"""
import os, signal, socket, sys, threading, time

name, port = os.environ["NAME"], int(sys.argv[1])
directory = sys.argv[2] if len(sys.argv) > 2 else None
stopping = threading.Event()
listener = socket.create_server(("0.0.0.0", port), backlog=1024)


def stop(*_):
    stopping.set()
    if directory:
        with open(f"{directory}/{name}", "w") as note:
            note.write(f"{time.time()}")
    listener.setblocking(False)
    # The loop below may be waiting for a connection: this is one.
    socket.create_connection(("127.0.0.1", port), timeout=1).close()


def serve(connection, client):
    connection.settimeout(10)
    request = b""
    while b"\r\n\r\n" not in request:
        part = connection.recv(4096)
        if not part:
            return
        request += part
    body = f"{name} {client[0]}\n".encode()
    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


signal.signal(signal.SIGTERM, stop)
while True:
    try:
        connection, client = listener.accept()
    except BlockingIOError:
        if stopping.is_set():
            sys.exit(0)
        continue
    with connection:
        try:
            serve(connection, client)
        except OSError:
            pass

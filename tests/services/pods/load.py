"""Asks again and again, each time over a connection of its own, and notes what came of it.

load.py FILE THREADS TIMEOUT URL...: appends lines to FILE: when a request began, how many seconds it took, its URL's number,
"ok" or "failed", and the answer or the error. Each thread asks all URLs in turn.
"""
import os, signal, socket, sys, threading, time
from urllib.parse import urlsplit

file, threads, timeout, urls = open(sys.argv[1], "a"), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


def ask(host, port):
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := connection.recv(4096):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200") or not body:
        raise OSError(f"not an answer: {answer!r}")
    return body.decode().strip()


def work():
    while True:
        for number, url in enumerate(urls):
            parts = urlsplit(url)
            began = time.time()
            try:
                outcome, said = "ok", ask(parts.hostname, parts.port or 80)
            except OSError as error:
                outcome, said = "failed", f"{type(error).__name__}: {error}"
            file.write(f"{began:.3f} {time.time() - began:.3f} {number} {outcome} {said}\n")
            file.flush()
            time.sleep(0.005)


for _ in range(threads):
    threading.Thread(target=work, daemon=True).start()
while True:
    time.sleep(60)

"""Sends datagrams from one and the same port, and notes who answers. caller.py FILE HOST PORT"""
import os, signal, socket, sys, time

file, to = open(sys.argv[1], "a"), (sys.argv[2], int(sys.argv[3]))
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
caller = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
caller.bind(("0.0.0.0", 40000))
caller.settimeout(0.2)
while True:
    try:
        caller.sendto(b"who?", to)
        said = "ok " + caller.recv(2048).decode()
    except OSError as error:
        said = f"failed {error}"
    file.write(f"{time.time():.3f} 0 0 {said}\n")
    file.flush()
    time.sleep(0.05)

"""Answers every datagram with who it is. echo.py PORT"""
import os, signal, socket, sys

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", int(sys.argv[1])))
while True:
    _, client = server.recvfrom(2048)
    server.sendto(os.environ["NAME"].encode(), client)

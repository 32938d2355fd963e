"""Passes the frames of two interfaces on to each other, each of them this many seconds later.

usage: slow_wire.py INTERFACE INTERFACE SECONDS

Kernels without the scheduler `netem` have nothing else that makes a link slow. Headers of segmentation offload go along
(PACKET_VNET_HDR), so that packets whose checksum is not computed yet arrive as they were sent.
"""

import collections
import select
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_OUTGOING, ETH_P_ALL = 263, 15, 4, 3


def open_interface(name):
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    link.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    link.bind((name, ETH_P_ALL))
    link.setblocking(False)
    return link


def main():
    links = [open_interface(name) for name in sys.argv[1:3]]
    delay = float(sys.argv[3])
    other = dict(zip(links, reversed(links)))
    waiting = collections.deque()
    print("passes frames on", flush=True)
    while True:
        timeout = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        for link in select.select(links, [], [], timeout)[0]:
            frame, address = link.recvfrom(1 << 17)
            if address[2] != PACKET_OUTGOING:
                waiting.append((time.monotonic() + delay, other[link], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, link, frame = waiting.popleft()
            try:
                link.send(frame)
            except OSError:
                pass  # The interface is down or its queue is full: a frame is lost, as on any wire.


main()

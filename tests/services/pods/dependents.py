"""Dependents of one NATS: each has a connection of its own, listens, and counts.

dependents.py FILE COUNT URL: FILE has, as JSON, for every dependent how often it lost and found NATS again, the addresses it
found it at, and how many messages it has received.
"""
import asyncio, json, os, signal, sys
import nats

file, count, url = sys.argv[1], int(sys.argv[2]), sys.argv[3]
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
state = [{"received": 0, "reconnects": 0, "addresses": []} for _ in range(count)]


async def depend(own):
    def found():
        address = connection._transport._io_writer.get_extra_info("peername")[0]
        if address not in own["addresses"]:
            own["addresses"].append(address)

    async def again():
        own["reconnects"] += 1
        found()

    async def hear(_):
        own["received"] += 1

    async def ignore(_):
        pass

    connection = await nats.connect(
        url, allow_reconnect=True, max_reconnect_attempts=-1, reconnect_time_wait=0.2, reconnected_cb=again, error_cb=ignore
    )
    found()
    await connection.subscribe("news", cb=hear)
    return connection


async def main():
    connections = [await depend(own) for own in state]
    while True:
        try:
            await connections[0].publish("news", b"")
            await connections[0].flush(timeout=1)
        except Exception:
            pass
        with open(file + ".new", "w") as new:
            json.dump(state, new)
        os.rename(file + ".new", file)
        await asyncio.sleep(0.2)


asyncio.run(main())

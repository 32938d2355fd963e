"""A small API server of the group shop.example.com/v1: what an APIService registers. Nothing but the standard library.

Takes connections with a certificate of the front proxy alone, and believes the X-Remote-* headers of those.
usage: extension_server.py CERTIFICATE KEY FRONT_PROXY_CA
"""

import http.server
import json
import ssl
import sys
import threading

GROUP, VERSION = "shop.example.com", "v1"
BASE = f"/apis/{GROUP}/{VERSION}"
GVK = [{"group": GROUP, "version": VERSION, "kind": "Order"}]
ORDER = {
    "type": "object",
    "description": "Order is what somebody wants to buy.",
    "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "description": "What is ordered.",
            "properties": {"amount": {"type": "integer", "description": "How many of them.", "format": "int32"}},
        },
    },
    "x-kubernetes-group-version-kind": GVK,
}
LOCK = threading.Condition()
ORDERS, EVENTS = {}, []


def discovery():
    verbs = ["create", "delete", "get", "list", "watch"]
    resource = {"name": "orders", "singularName": "order", "namespaced": True, "kind": "Order", "verbs": verbs,
                "shortNames": ["ord"]}
    shell = {"name": "orders/shell", "singularName": "", "namespaced": True, "kind": "Order", "verbs": ["get"]}
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}",
            "resources": [resource, shell]}


def openapi_path():
    operation = {"operationId": "readOrder", "responses": {"200": {"description": "OK"}},
                 "x-kubernetes-action": "get", "x-kubernetes-group-version-kind": GVK[0]}
    return {f"{BASE}/namespaces/{{namespace}}/orders/{{name}}": {"get": operation}}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, code, value):
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def missing(self, name=""):
        self.send(404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                        "message": f'orders.{GROUP} "{name}" not found'})

    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path == BASE:
            return self.send(200, discovery())
        if path == "/openapi/v3":
            url = f"/openapi/v3{BASE}?hash=1"
            return self.send(200, {"paths": {BASE[1:]: {"serverRelativeURL": url}}})
        if path == f"/openapi/v3{BASE}":
            return self.send(200, {"openapi": "3.0.0", "info": {"title": "shop", "version": "1"}, "paths": openapi_path(),
                                   "components": {"schemas": {"com.example.shop.v1.Order": ORDER}}})
        if path == "/openapi/v2":
            return self.send(200, {"swagger": "2.0", "info": {"title": "shop", "version": "1"}, "paths": openapi_path(),
                                   "definitions": {"com.example.shop.v1.Order": ORDER}})
        if path.endswith("/shell"):
            return self.shell()
        parts = path[len(BASE):].strip("/").split("/")
        if parts[-1] == "orders":
            return self.watch() if "watch=true" in query or "watch=1" in query else self.list()
        with LOCK:
            order = ORDERS.get(parts[-1])
        return self.send(200, order) if order else self.missing(parts[-1])

    def list(self):
        with LOCK:
            items = list(ORDERS.values())
            version = str(len(EVENTS))
        self.send(200, {"kind": "OrderList", "apiVersion": f"{GROUP}/{VERSION}", "items": items,
                        "metadata": {"resourceVersion": version}})

    def watch(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = 0
        while True:
            with LOCK:
                LOCK.wait_for(lambda: len(EVENTS) > sent)
                events = EVENTS[sent:]
                sent = len(EVENTS)
            for event in events:
                line = (json.dumps(event) + "\n").encode()
                try:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()
                except OSError:
                    return

    def shell(self):
        """Leaves HTTP and echoes in capitals, for who asks for it."""
        if self.headers.get("Upgrade") != "shout":
            return self.send(400, {})
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "shout")
        self.end_headers()
        self.wfile.flush()
        for line in self.rfile:
            self.wfile.write(line.upper())
            self.wfile.flush()
        self.close_connection = True

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        order["metadata"].update({"uid": order["metadata"]["name"], "resourceVersion": str(len(EVENTS) + 1),
                                  "annotations": {"ordered-by": self.headers["X-Remote-User"]}})
        self.change("ADDED", order)
        self.send(201, order)

    def do_DELETE(self):
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        name = self.path.partition("?")[0].rsplit("/", 1)[-1]
        with LOCK:
            order = ORDERS.pop(name, None)
        if not order:
            return self.missing(name)
        self.change("DELETED", order)
        self.send(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    @staticmethod
    def change(kind, order):
        with LOCK:
            if kind == "ADDED":
                ORDERS[order["metadata"]["name"]] = order
            EVENTS.append({"type": kind, "object": order})
            LOCK.notify_all()


def main():
    certificate, key, ca = sys.argv[1:]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(ca)
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print(server.server_address[1], flush=True)
    server.serve_forever()


main()

# SPDX-License-Identifier: Apache-2.0
"""A local server that behaves like the Hugging Face hub and its storage, with faults on demand.

Two ports: the hub (127.0.0.1) lists repositories and answers /resolve with a redirect to the storage
(localhost: another host name), which serves the bytes with ETag and ranges. Small files come from the
hub itself, as there. Everything asked for is kept in `log`.
"""
import hashlib
import http.server
import json
import re
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Object:
    """One stored file and how its next answers go wrong."""

    def __init__(self, data, large=True):
        self.data = data
        self.large = large
        self.sha = hashlib.sha256(data).hexdigest()
        self.etag = self.sha if large else hashlib.sha1(data).hexdigest()
        self.cuts = []        # body bytes of the next answers, after which the connection dies
        self.ranges = True    # False: a range is ignored (200)
        self.no_etag = False
        self.lie = None       # other bytes are sent than the tag says
        self.status = []      # statuses of the next answers
        self.no_length = False
        self.hold = 0         # after that many bytes of an answer, wait for `go`; 0: no wait
        self.go = threading.Event()
        self.size = None      # claimed X-Linked-Size


class Hub:
    def __init__(self):
        self.repos = {}    # "owner/name": {"files": {name: Object}, "license":, "gated": token}
        self.plain = {}    # path: Object
        self.extra_names = {}
        self.log = []
        self.lock = threading.Lock()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(self)

            def log_message(self, *args):
                pass

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, request, address):
                pass  # a client that is killed

        self.servers = [Server(("127.0.0.1", 0), Handler) for _ in range(2)]
        for s in self.servers:
            s.daemon_threads = True
            threading.Thread(target=s.serve_forever, daemon=True).start()
        self.hub_port, self.store_port = (s.server_address[1] for s in self.servers)
        self.endpoint = f"http://127.0.0.1:{self.hub_port}"

    def close(self):
        for s in self.servers:
            s.shutdown()
            s.server_close()

    def asked(self, part):
        with self.lock:
            return [e for e in self.log if part in e["path"]]

    def answer(self, h):
        at_hub = h.server.server_address[1] == self.hub_port
        path = urllib.parse.unquote(urllib.parse.urlparse(h.path).path)
        with self.lock:
            self.log.append({"hub": at_hub, "path": path, "range": h.headers.get("Range"),
                             "auth": h.headers.get("Authorization"), "host": h.headers.get("Host")})
        if path.startswith("/plain/") and path[7:] in self.plain:
            return self.send(h, self.plain[path[7:]])
        if not at_hub:
            owner, name, file = path.lstrip("/").split("/", 2)
            return self.send(h, self.repos[f"{owner}/{name}"]["files"][file])
        m = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", path)
        if m:
            return self.listing(h, *m.groups())
        m = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if m:
            return self.resolve(h, *m.groups())
        return self.error(h, 404)

    def error(self, h, status):
        body = json.dumps({"error": "fault"}).encode()
        h.send_response(status)
        h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        h.wfile.write(body)

    def repo(self, h, name, revision):
        r = self.repos.get(name)
        if r is None or revision not in ("main", COMMIT, "v1.0"):
            self.error(h, 404)
            return None
        if r.get("gated") and h.headers.get("Authorization") != "Bearer " + r["gated"]:
            self.error(h, 401)
            return None
        return r

    def listing(self, h, name, revision):
        r = self.repo(h, name, revision)
        if r is None:
            return
        names = list(r["files"]) + r.get("extra_names", [])
        body = json.dumps({"id": name, "sha": COMMIT, "cardData": {"license": r.get("license", "mit")},
                           "siblings": [{"rfilename": n} for n in names]}).encode()
        h.send_response(200)
        h.send_header("Content-Type", "application/json")
        h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        h.wfile.write(body)

    def resolve(self, h, name, revision, file):
        r = self.repo(h, name, revision)
        if r is None:
            return
        o = r["files"].get(file)
        if o is None:
            return self.error(h, 404)
        if not o.large:
            return self.send(h, o)
        h.send_response(302)
        h.send_header("Location", f"http://localhost:{self.store_port}/{name}/{urllib.parse.quote(file)}?sig=x")
        h.send_header("X-Repo-Commit", COMMIT)
        h.send_header("X-Linked-Etag", f'"{o.etag}"')
        h.send_header("X-Linked-Size", str(o.size if o.size is not None else len(o.data)))
        h.send_header("Content-Length", "0")
        h.end_headers()

    def send(self, h, o):
        if o.status:
            return self.error(h, o.status.pop(0))
        data = o.lie if o.lie is not None else o.data
        start, m = 0, re.fullmatch(r"bytes=(\d+)-", h.headers.get("Range") or "")
        if m and o.ranges:
            start = int(m.group(1))
            if start >= len(data):
                h.send_response(416)
                h.send_header("Content-Range", f"bytes */{len(data)}")
                h.send_header("Content-Length", "0")
                h.end_headers()
                return
        h.send_response(206 if m and o.ranges else 200)
        if not o.no_etag:
            h.send_header("ETag", f'"{o.etag}"')
        if m and o.ranges:
            h.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        if o.no_length:
            h.send_header("Connection", "close")
            h.close_connection = True
        else:
            h.send_header("Content-Length", str(len(data) - start))
        h.end_headers()
        body = data[start:]
        if o.cuts:
            body = body[:o.cuts.pop(0)]
            h.close_connection = True
        try:
            if o.hold:
                h.wfile.write(body[:o.hold])
                o.go.wait(60)
            h.wfile.write(body[o.hold:])
        except OSError:
            h.close_connection = True

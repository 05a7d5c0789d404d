"""A package index (PEP 503) on loopback with one package, `belljar_demo`. Prints its port when it listens.

    python3 package_index.py ADDRESS
"""

import base64
import hashlib
import http.server
import io
import sys
import zipfile

NAME, VERSION = "belljar_demo", "1.0"
INFO = f"{NAME}-{VERSION}.dist-info"
WHEEL = f"{NAME}-{VERSION}-py3-none-any.whl"


def wheel() -> bytes:
    files = {
        f"{NAME}.py": "VALUE = 42\n",
        f"{INFO}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n",
        f"{INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: belljar\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }

    def digest(text: str) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()

    lines = [f"{name},sha256={digest(text)},{len(text)}" for name, text in files.items()]
    files[f"{INFO}/RECORD"] = "\n".join([*lines, f"{INFO}/RECORD,,", ""])
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return made.getvalue()


CONTENT = wheel()
PAGES = {
    "/simple/belljar-demo/": (
        "text/html",
        f'<a href="/{WHEEL}#sha256={hashlib.sha256(CONTENT).hexdigest()}">{WHEEL}</a>'.encode(),
    ),
    f"/{WHEEL}": ("application/zip", CONTENT),
}


class Index(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        kind, content = PAGES.get(self.path, ("text/plain", b""))
        self.send_response(200 if content else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *said: object) -> None:
        pass


with http.server.ThreadingHTTPServer((sys.argv[1], 0), Index) as server:
    print(server.server_port, flush=True)
    server.serve_forever()

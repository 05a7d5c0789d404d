import http.server
import threading
import time

PAGES = {
    "/": """<title>Fruit shop</title><h1>Fruit</h1>
<form action="/find"><label>Search <input name="q" value="apples"></label>
<select name="by"><option value="name">by name<option value="price">by price</select><button>Find</button></form>
<a href="/prices">Prices</a> <a href="/find?q=x" target="_blank">In a window</a> <a href="/login">Log in</a>
<button onclick="alert('hello')">Greet</button> <button disabled>Sold out</button>
<div style="position: relative; width: 100px; height: 30px"><button id="below">Below</button>
<div id="above" style="position: absolute; inset: 0; background: red"></div></div>
<div style="height: 3000px"></div>""",
    "/late": """<body style="margin: 0"><script>setTimeout(() => {
document.body.innerHTML = '<div id=late style="width: 120px; height: 30px">late</div>'; }, 200)</script>""",
}


class Shop(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path, _, query = self.path.partition("?")
        headers = {"content-type": "text/html; charset=utf-8"}
        body = PAGES.get(path)
        if path == "/find":
            body = f"<title>Found</title><p>You look for {query.partition('q=')[2].partition('&')[0]}.</p>"
        elif path == "/prices":
            body = "fruit,price\npears,3\nplums,4\n"
            headers = {"content-type": "text/csv", "content-disposition": 'attachment; filename="prices of today.csv"'}
        elif path == "/login":
            body = "You are ada." if "user=ada" in self.headers.get("cookie", "") else "Nobody."
            headers["set-cookie"] = "user=ada"
        elif path == "/slow":
            time.sleep(5)
            body = "slow"
        self.send_response(200 if body is not None else 404)
        said = (body or "There is nothing.").encode()
        for name, value in {**headers, "content-length": str(len(said))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *said):
        pass


site = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Shop)
threading.Thread(target=site.serve_forever, daemon=True).start()
print("open")

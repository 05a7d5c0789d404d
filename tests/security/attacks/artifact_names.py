"""Leaves artifacts with hostile names: newlines, broken UTF-8, dashes, markup, separators, great length.

They break logs, shells, JSON, HTML and file systems of others. Stopped by treating names as bytes, by
escaping them on the way out and by never using them as host paths.
"""
# expect: artifacts
import os

ROOT = b"/work/artifacts/"
NAMES = [
    b"line\nbreak.txt", b"carriage\rreturn", b"tab\there", b"bell\x07", b"\x1b[2Jclear", b"\xff\xfe-not-utf8",
    b"-rf", b"--help", b"-", b"~", b"...", b".hidden", b" leading", b"trailing ", b"trailing.", b"*", b"?",
    b"$(touch pwned)", b"`id`", b"a;b", b"a|b", b"a&b", b'"quoted"', b"'single'", b"back\\slash",
    b"..\\..\\windows.txt", b"%2e%2e%2fetc%2fpasswd", b"..%00.txt", b"C:evil", b"CON", b"nul.txt",
    b"<img src=x onerror=alert(1)>.svg", b"a?token=x", b"a#b", b"a%b", "\u202egpj.exe".encode(),
    "e\u0301.txt".encode(), "\u00e9.txt".encode(), b"x" * 255, b"y" * 251 + b".txt", b"Same.txt", b"same.txt",
    b"index.json", b"manifest.json", b".git", b"lost+found", b"__proto__",
]
for name in NAMES:
    with open(ROOT + name, "wb") as file:
        file.write(name)
assert len(os.listdir(ROOT)) >= len(NAMES)
print(f"CONTAINED: {len(NAMES)} names were left")

"""Lists the kernel keys that are visible here: /proc/keys and /proc/key-users.

They name host users and their credentials. Stopped by masks.
"""
holes, refused = [], set()
for path in ("/proc/keys", "/proc/key-users"):
    try:
        text = open(path).read()
    except OSError as error:
        refused.add(error.strerror)
    else:
        if text.strip():
            holes.append(f"{path}: {text.splitlines()[0]}")
        refused.add("masked, empty")
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted(refused)}")

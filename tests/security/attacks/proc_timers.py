"""Reads tables that show what the rest of the machine is doing: timers, scheduler, latencies.

They list other processes by name. Stopped by masks and ownership.
"""
NAMES = "timer_list timer_stats sched_debug latency_stats".split()

holes, seen = [], {}
for name in NAMES:
    try:
        text = open(f"/proc/{name}").read(1 << 16)
    except OSError as error:
        seen[name] = error.strerror
        continue
    seen[name] = f"{len(text)} characters"
    if text.strip():
        holes.append(name)
print(f"ESCAPED: readable: {holes}" if holes else f"CONTAINED: {seen}")

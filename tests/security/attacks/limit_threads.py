"""Starts threads until it may not. Threads count as much as processes, and are easily forgotten.

Stopped by the pids cgroup.
"""
# belljar: --pids 64 --timeout 60
import threading

LIMIT, GOAL = 64 + 8, 300  # A few more for the sandbox's own processes.
release, threads, reason = threading.Event(), [], None
while len(threads) < GOAL:
    thread = threading.Thread(target=release.wait, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        reason = error
        break
    threads.append(thread)
release.set()
for thread in threads:
    thread.join(10)

if len(threads) > LIMIT or reason is None:
    print(f"ESCAPED: {len(threads)} threads under a limit of {LIMIT}")
else:
    threading.Thread(target=release.wait).start()  # Raises, and fails the test, if it did not recover.
    print(f"CONTAINED: {reason} after {len(threads)} threads, and it recovered")

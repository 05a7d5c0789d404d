"""A fork bomb of orphans: each forks, leaves its session, ignores signals, and tries for ever.

Nobody inside can stop it, and the main program simply ends: the run must end with it, and nothing may live
on. Stopped by the pids cgroup, and by killing the whole cgroup at the end.
"""
# belljar: --pids 64 --cpus 1 --timeout 60
import os
import signal
import time

LIMIT = 64 + 8  # A few more for the sandbox's own processes.
if os.fork() == 0:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    end = time.monotonic() + 120  # The last resort, should nothing else stop it.
    while time.monotonic() < end:
        try:
            if os.fork() == 0:
                os.setsid()
        except OSError:
            time.sleep(0.05)
    os._exit(0)

time.sleep(3)
# A list is not made in one moment, so only those count that are still there after it.
alive = sum(os.path.exists(f"/proc/{name}") for name in os.listdir("/proc") if name.isdigit())
verdict = "ESCAPED" if alive > LIMIT else "CONTAINED"
print(f"{verdict}: {alive} processes alive under a limit of 64")

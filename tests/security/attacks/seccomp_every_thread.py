"""Looks for a thread that was started before the filter and therefore runs without it.

One such thread, left by a preloaded library, could be made to do what the others may not.
Stopped by entering the sandbox single-threaded and installing the filter before any code runs.
"""
import os
import threading

release = threading.Event()
threading.Thread(target=release.wait, daemon=True).start()  # One that we know of, to see that we see any.
holes, threads = [], os.listdir("/proc/self/task")
for thread in threads:
    fields = dict(line.split(":\t", 1) for line in open(f"/proc/self/task/{thread}/status") if ":\t" in line)
    confined = fields["Seccomp"].strip() == "2" and fields["NoNewPrivs"].strip() == "1"
    if not confined or int(fields["CapEff"], 16) or int(fields["CapBnd"], 16):
        holes.append(f"{thread} ({fields['Name'].strip()})")
release.set()

assert len(threads) >= 2, "our own second thread is not visible"
print(f"ESCAPED: unconfined threads {holes}" if holes else f"CONTAINED: {len(threads)} threads, all filtered")

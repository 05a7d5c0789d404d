"""Looks for processes other than the sandbox's own in /proc.

Their command lines hold secrets, and seeing them is the first step to touching them.
Stopped by the PID namespace and a /proc mounted inside it.
"""
import os

levels = [line.split()[1:] for line in open("/proc/self/status") if line.startswith("NSpid:")][0]


def uid_of(pid):
    return [int(line.split()[1]) for line in open(f"/proc/{pid}/status") if line.startswith("Uid:")][0]


processes = {pid: open(f"/proc/{pid}/comm").read().strip() for pid in os.listdir("/proc") if pid.isdigit()}
foreign = [pid for pid in processes if pid != "1" and uid_of(pid) != os.getuid()]

holes = []
if levels != [str(os.getpid())]:
    holes.append(f"/proc belongs to an outer PID namespace: {levels}")
if foreign:
    holes.append(f"processes of other users: {[processes[pid] for pid in foreign][:5]}")
if len(processes) > 16:
    holes.append(f"{len(processes)} processes are visible")
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: only {processes}")

"""Checks for supplementary groups inherited from the process that started the sandbox.

Membership of docker, disk or adm survives a change of uid and opens host files. Stopped by clearing the
list before the ids are dropped.
"""
import os

extra = [group for group in os.getgroups() if group != os.getgid()]
ids = set(os.getresuid()) | set(os.getresgid())
if extra or ids & {0, 65534} or len(ids) > 2:
    print(f"ESCAPED: groups {extra}, uids {os.getresuid()}, gids {os.getresgid()}")
else:
    print(f"CONTAINED: uids {os.getresuid()}, gids {os.getresgid()}, no further group")

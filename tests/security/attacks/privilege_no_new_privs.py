"""Clears no_new_privs, which alone keeps setuid programs from working here.

Stopped by the kernel: it can only be set; here we prove that it was.
"""
import ctypes

PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS = 38, 39
libc = ctypes.CDLL(None, use_errno=True)
answer = libc.prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0)
present = libc.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
if answer == 0 or present != 1:
    print(f"ESCAPED: no_new_privs is {present}")
else:
    print("CONTAINED: no_new_privs is set and stays")

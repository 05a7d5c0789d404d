"""Talks to the hypervisor's host over AF_VSOCK, which no network namespace holds back.

In a virtual machine this reaches agents of the cloud. Stopped by seccomp.
"""
import errno
import socket

try:
    probe = socket.socket(40, socket.SOCK_STREAM)  # AF_VSOCK
except OSError as error:
    print(f"CONTAINED: {errno.errorcode[error.errno]}")
else:
    print("ESCAPED: the family is open")

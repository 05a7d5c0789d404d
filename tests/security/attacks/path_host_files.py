"""Looks for the places where a host keeps its secrets: shadow, keys, logs, sockets of daemons.

Stopped by an /etc, /var, /run and /home of the sandbox's own.
"""
import glob
import os

FILES = """/etc/shadow /etc/gshadow /etc/sudoers /etc/machine-id /etc/krb5.keytab /etc/ssh/ssh_host_*_key
/root/.ssh/* /home/*/.ssh/* /root/.bash_history /home/*/.bash_history /root/.aws/* /home/*/.aws/*
/root/.config/* /home/*/.config/* /var/log/syslog /var/log/auth.log /var/log/journal/* /var/lib/docker
/var/lib/kubelet /run/secrets/* /var/run/secrets/*""".split()
SOCKETS = """/run/docker.sock /var/run/docker.sock /run/containerd/containerd.sock /run/podman/podman.sock
/run/dbus/system_bus_socket /run/systemd/private /run/systemd/notify /run/user/* /tmp/.X11-unix/*
/tmp/ssh-*/agent.* /run/snapd.socket /run/crio/crio.sock""".split()

holes = []
for pattern in FILES + SOCKETS:
    for path in glob.glob(pattern):
        if not os.access(path, os.R_OK):
            continue
        if os.listdir(path) if os.path.isdir(path) else os.path.getsize(path) or not os.path.isfile(path):
            holes.append(path)
print(f"ESCAPED: {holes[:8]}" if holes else f"CONTAINED: none of {len(FILES) + len(SOCKETS)} patterns")

# Connects to the host's loopback with bash's own /dev/tcp and /dev/udp, which need no program at all.
# Stopped by a network namespace.

escaped=0
for address in 127.0.0.1 0.0.0.0 ::1; do
    if (exec 3<>"/dev/tcp/$address/${HOST_PORT:?not set}") 2>/dev/null; then
        echo "ESCAPED: connected to $address"
        escaped=1
    fi
done
if (exec 3<>/dev/udp/1.1.1.1/53) 2>/dev/null; then
    echo "ESCAPED: there is a route to 1.1.1.1"
    escaped=1
fi
[ "$escaped" = 1 ] || echo "CONTAINED: nothing could be reached"

# Looks for the server's secret in the shell's own environment and in all that is readable in /proc.
# The name is written in two halves, so that this script does not find itself. Stopped by an empty start.

name="BELLJAR_TEST""_SECRET"
escaped=0
for file in /proc/[0-9]*/environ /proc/[0-9]*/task/*/environ; do
    if grep -qa "$name" "$file" 2>/dev/null; then
        echo "ESCAPED: the secret is in $file"
        escaped=1
    fi
done
[ -z "${!name}" ] || { echo "ESCAPED: the secret is in our own environment"; escaped=1; }
[ "$escaped" = 1 ] || echo "CONTAINED: no environment holds it"

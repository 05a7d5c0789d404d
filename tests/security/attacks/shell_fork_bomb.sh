# The classic fork bomb of the shell. Stopped by the pids cgroup; the run must end, and nothing live on.
# The main shell only counts: it may not need another process while the bomb holds them all.
# belljar: --pids 64 --cpus 1 --timeout 60

bomb() { bomb | bomb & }
(bomb) 2>/dev/null
most=0
while ((SECONDS < 4)); do
    processes=(/proc/[0-9]*)
    # A list is not made in one moment: processes that ended meanwhile never lived beside those that began later.
    alive=0
    for process in "${processes[@]}"; do
        [[ -e $process ]] && ((++alive))
    done
    ((alive > most)) && most=$alive
done
if ((most > 72)); then # A few more for the sandbox's own processes.
    echo "ESCAPED: $most processes under a limit of 64"
else
    echo "CONTAINED: never more than $most processes"
fi

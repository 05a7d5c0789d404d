# Prints all variables and functions, without forking: one record for each variable, with its length,
# its number of elements and its declaration. The guest sends this for every request.
__belljar_state() {
    \builtin local - IFS=' ' __belljar_name __belljar_names
    \builtin set +efuvx
    __belljar_names=()
    for __belljar_name in {a..z} {A..Z} _; do
        \builtin eval "__belljar_names+=(\"\${!$__belljar_name@}\")"
    done
    for __belljar_name in "${__belljar_names[@]}"; do
        case $__belljar_name in __belljar*) continue ;; esac
        \builtin eval "\\builtin printf 'V%d %d ' \"\${#$__belljar_name}\" \"\${#$__belljar_name[@]}\""
        \builtin declare -p "$__belljar_name"
        \builtin printf '\0'
    done
    \builtin printf F
    \builtin compgen -A function
    \builtin printf '\0S%s\0' "$PWD"
}
__belljar_state >&0 || :
\builtin unset -f __belljar_state

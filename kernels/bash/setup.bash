# The first input of a new shell, which reads it from the control socket, its standard input. It
# ends with the hello of the kernel. See `crates/belljar-guest/src/dialect/shell.rs`.

# No prompts, history, mail or job control, which are for terminals.
PS1= PS2= PS0=
unset -v HISTFILE MAILCHECK
set +mH +o history
history -c

# Cells are sourced. Without this, an `exec` that fails would end the shell.
shopt -s execfail

# Only cells use the real output; other messages of an interactive shell are discarded.
exec 56>&1 57>&2 >/dev/null 2>&1

# Sets `$?` at the start of a cell to that of the cell before.
__belljar_status() { return "$1"; }

# The shell's own variables.
{ builtin printf N; builtin compgen -v; builtin printf '\0'; } >&0
builtin printf 'H%s\0' "$BASH_VERSION" >&0

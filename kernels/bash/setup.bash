# The first thing the guest says to a fresh shell, which reads it from the control socket, its
# standard input. It ends with the hello of the kernel. See `crates/belljar-guest/src/dialect/shell.rs`.

# No prompts, history, mail or job control: those are for people at a terminal.
PS1= PS2= PS0=
unset -v HISTFILE MAILCHECK
set +mH +o history
history -c

# Cells are sourced, and what is sourced would otherwise end the shell when an `exec` fails.
shopt -s execfail

# The real output is for cells only: whatever else an interactive shell has to say is noise.
exec 56>&1 57>&2 >/dev/null 2>&1

# `$?` of one cell is there at the start of the next.
__belljar_status() { return "$1"; }

# The variables that are nobody's but the shell's own.
{ builtin printf N; builtin compgen -v; builtin printf '\0'; } >&0
builtin printf 'H%s\0' "$BASH_VERSION" >&0

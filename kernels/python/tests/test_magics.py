"""IPython's syntax, with IPython and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from conftest import KernelProcess, needs_ipython


def test_plain_python_never_imports_ipython(kernel: KernelProcess) -> None:
    kernel.run("x = [1, 2]\nx")
    kernel.run("1/0")
    kernel.run("x = = 1")
    assert kernel.run("import sys; [m for m in sys.modules if m.startswith(('IPython', 'traitlets'))]").text == "[]"


def test_without_ipython_magics_say_so(kernel: KernelProcess) -> None:
    kernel.run("import sys; sys.modules['IPython'] = None")
    error = kernel.run("x = 1\n%time x").error
    assert error["name"] == "SyntaxError"
    assert '"<cell 2>", line 2' in error["traceback"]
    assert "%time x" in error["traceback"]
    assert "IPython is not installed" in error["value"]
    assert kernel.run("get_ipython()").error["name"] == "NameError"


@needs_ipython
class TestWithIPython:
    def test_commands_stream_to_the_pipes(self, kernel: KernelProcess) -> None:
        kernel.start("!echo out; echo err >&2; sleep 60")
        kernel.wait_for_stdout("out\n")
        kernel.interrupt()
        result = kernel.finish()
        assert (result.status, result.stderr) == ("interrupted", "err\n")
        assert kernel.run("!exit 3\n_exit_code").text == "3"

    def test_variables_are_expanded_in_commands(self, kernel: KernelProcess) -> None:
        assert kernel.run("name = 'world'\n!echo hello {name}").stdout == "hello world\n"

    def test_output_of_commands_can_be_assigned(self, kernel: KernelProcess) -> None:
        assert kernel.run("x = !echo a; echo b >&2\nlist(x)").text == "['a', 'b']"

    def test_time_shows_time_and_value(self, kernel: KernelProcess) -> None:
        result = kernel.run("%time 6 * 7")
        assert result.text == "42"
        assert "Wall time" in result.stdout
        assert "per loop" in kernel.run("%timeit -n 2 -r 1 pass").stdout

    def test_cell_magics(self, kernel: KernelProcess) -> None:
        assert kernel.run("%%bash\necho one\necho two").stdout == "one\ntwo\n"
        result = kernel.run("%%bash\nexit 3")
        assert (result.error["name"], result.exit_code) == ("CalledProcessError", 1)
        assert kernel.run("%%bash --no-raise-error\nexit 3").status == "ok"
        kernel.run("%%bash --out captured\necho hi")
        assert kernel.run("captured").text == "'hi\\n'"
        assert kernel.run("%%time\ny = 5\ny + 1").text == "6"

    def test_capture_takes_everything(self, kernel: KernelProcess) -> None:
        assert kernel.run("%%capture got\nprint('printed')\ndisplay('shown')\n5").messages == []
        assert kernel.run("got.stdout, len(got.outputs)").text == "('printed\\n', 2)"

    def test_pip_is_that_of_the_interpreter(self, kernel: KernelProcess) -> None:
        assert kernel.run("%pip --version").stdout.startswith("pip ")

    def test_matplotlib_inline_is_accepted(self, kernel: KernelProcess) -> None:
        result = kernel.run("%matplotlib inline\n%config InlineBackend.figure_format = 'retina'")
        assert (result.status, result.stdout, result.stderr) == ("ok", "", "")

    def test_help_is_printed_without_escape_codes(self, kernel: KernelProcess) -> None:
        kernel.run("def documented():\n    '''What it does.'''")
        result = kernel.run("documented?")
        assert "What it does." in result.stdout
        assert "\x1b" not in result.stdout
        assert "def documented" in kernel.run("documented??").stdout

    def test_ipython_display_uses_our_channel(self, kernel: KernelProcess) -> None:
        result = kernel.run("from IPython.display import display, HTML, Image\ndisplay(HTML('<i>a</i>'))\nHTML('<i>b</i>')")
        assert [d["text/html"] for d in result.displays] == ["<i>a</i>"]
        assert [d["text/html"] for d in result.results] == ["<i>b</i>"]
        assert result.stdout == ""

    def test_formatters_of_libraries_are_respected(self, kernel: KernelProcess) -> None:
        kernel.run("class T: pass\nget_ipython().display_formatter.formatters['text/html'].for_type(T, lambda t: 'custom');")
        assert kernel.run("T()").results[0]["text/html"] == "custom"

    def test_get_ipython_exists_when_a_cell_mentions_it(self, kernel: KernelProcess) -> None:
        assert kernel.run("get_ipython().run_line_magic('time', '1')").status == "ok"

    def test_errors_in_magics_show_the_cell_only(self, kernel: KernelProcess) -> None:
        result = kernel.run("%time 1/0")
        # IPython 8 prints errors of timed code, IPython 9 raises them.
        traceback = result.error["traceback"] if result.error else result.stderr
        assert "ZeroDivisionError" in traceback
        assert "interactiveshell" not in traceback
        assert "belljar" not in traceback
        assert kernel.run("%nonsense").error["name"] == "UsageError"

    def test_the_namespace_stays_the_users(self, kernel: KernelProcess) -> None:
        kernel.run("_ = 'mine'; open = 'also mine'")
        kernel.run("!true")
        assert kernel.run("_, open").text == "('mine', 'also mine')"
        names = kernel.run("[n for n in dir() if not n.startswith('__')]").text
        assert names == "['_', '_dh', '_exit_code', 'open']"

    def test_changing_directory(self, kernel: KernelProcess, tmp_path: Path) -> None:
        kernel.run(f"%cd {tmp_path}")
        assert kernel.run("import os; os.getcwd()").text == repr(str(tmp_path))

    def test_no_threads_and_no_files(self, kernel: KernelProcess, tmp_path: Path) -> None:
        kernel.run("!true\n")
        kernel.run("%%bash\ntrue")
        assert kernel.run("import os; len(os.listdir('/proc/self/task'))").text == "1"
        assert list(tmp_path.iterdir()) == []

    def test_a_new_module_is_found_after_a_command_installed_it(self, start_kernel: Callable[..., KernelProcess], tmp_path: Path) -> None:
        kernel = start_kernel(env={"PYTHONPATH": str(tmp_path / "site"), "HOME": str(tmp_path)})
        kernel.run("try:\n    import fresh\nexcept ImportError: pass")
        kernel.run(f"!mkdir {tmp_path}/site; echo 'value = 1' > {tmp_path}/site/fresh.py")
        assert kernel.run("import fresh; fresh.value").text == "1"

    def test_atexit_handlers_still_see_the_namespace(self, kernel: KernelProcess) -> None:
        kernel.run("import atexit\nkept = 'here'\natexit.register(lambda: print(kept))")
        kernel.run("!true")
        assert kernel.shutdown()[:2] == (0, "here\n")

"""Runs Python in a sandbox that remembers, and shows what it leaves: python example.py"""

from belljar import Config, SessionManager

config = Config.from_env()
session_manager = SessionManager.from_config(config)


def get_session_key() -> str:
    return "my_unique_session_id"  # one sandbox for each: use the id of a conversation or a user


result = session_manager.exec(get_session_key(), "x = 41\nprint('hello from a sandbox')")
print(result.stdout, end="")

# Variables are kept, and files in /session/artifacts are taken.
result = session_manager.exec(get_session_key(), "open('/session/artifacts/x.txt', 'w').write(str(x + 1)); x + 1")
print(result.text)
for inside, here in result.artifact_map.items():
    print(f"{inside} is at {here}")

# A tool for an agent, with langchain (pip install 'belljar[langgraph]'):
#   from belljar import make_code_sandbox_tool
#   code_tool = make_code_sandbox_tool(session_manager=session_manager, session_key_fn=get_session_key)

session_manager.stop(get_session_key())

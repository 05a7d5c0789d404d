"""An agent that loads datasets on demand and returns a new one (TMPFS_API).

    pip install 'belljar[langgraph]'
    python examples/api_datasets.py

Datasets come from your own API, through your own client: the sandbox has no network and never sees the API key. Every
user has their own conversation, and so their own sandbox. You need neither a running server nor a model's API key: see
agents.py.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from agents import call, converse, model
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from belljar import (
    SessionManager,
    make_code_sandbox_tool,
    make_export_datasets_tool,
    make_list_datasets_tool,
    make_select_dataset_tool,
)

QUESTION = "Which houses in `houses.csv` are a bargain? Give me a file with them."

SCRIPT = [
    call("select_dataset", dataset_id="houses.csv"),
    call("list_datasets"),
    call(
        "code_sandbox",
        code=(
            "import pandas as pd\n"
            "from sklearn.linear_model import LinearRegression\n"
            "houses = pd.read_csv('/session/data/houses.csv')\n"
            "features = ['area_m2', 'rooms', 'age_years']\n"
            "fit = LinearRegression().fit(houses[features], houses.price_keur)\n"
            "houses['saved_keur'] = (fit.predict(houses[features]) - houses.price_keur).round(1)\n"
            "houses.saved_keur.describe().round(1)"
        ),
    ),
    call(
        "code_sandbox",
        code=(
            "bargains = houses.nlargest(10, 'saved_keur')\n"
            "bargains.to_csv('/session/data/bargains.csv', index=False)\n"
            "bargains.head(3)"
        ),
    ),
    call("export_datasets", names=["bargains.csv"]),
    "Ten houses cost far less than their size and age suggest. Here they are: {link}",
]


class DataApi:
    """Takes the place of the client of your API, with its key and its connections."""

    def __init__(self, directory: Path) -> None:
        # A lookup, not a path that is joined: a model chooses the name.
        self._files = {path.name: path for path in directory.iterdir()}

    def download(self, name: str) -> bytes:
        if name not in self._files:
            raise LookupError(f"there is no {name!r}; there are {', '.join(self._files)}")
        return self._files[name].read_bytes()


def fetch(client: DataApi, dataset_id: str) -> bytes:
    """`select_dataset` calls this. The model gets the text of an error."""
    return client.download(dataset_id)


def main() -> None:
    manager = SessionManager(session_storage="TMPFS", dataset_access="API")
    api = DataApi(Path(__file__).parent / "data")
    agent = create_agent(
        model(*SCRIPT),
        tools=[
            make_code_sandbox_tool(manager),
            make_select_dataset_tool(manager, fetch_fn=fetch, client=api),
            make_list_datasets_tool(manager),
            make_export_datasets_tool(manager),
        ],
        system_prompt="You analyse data by computing. Select a dataset before you read it.",
        checkpointer=InMemorySaver(),
    )
    thread = f"api-{secrets.token_hex(4)}"
    try:
        converse(agent, QUESTION, thread)
    finally:
        manager.stop(thread)


if __name__ == "__main__":
    main()

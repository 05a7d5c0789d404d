"""An agent that reads files of a local directory and keeps its own files on disk (BIND_LOCAL).

    pip install 'belljar[langgraph]'
    python examples/local_datasets.py

The directory is mounted read-only at /data. The agent's files are in `sessions/`, with a log of all executions. You
need neither a running server nor a model's API key: see agents.py.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from agents import call, converse, model
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from belljar import Config, SessionManager, make_code_sandbox_tool, make_list_datasets_tool

QUESTION = "What makes the houses in our data expensive? Make a picture of it."

SCRIPT = [
    call("list_datasets"),
    call(
        "code_sandbox",
        code=(
            "import pandas as pd\n"
            "houses = pd.read_csv('/data/houses.csv')\n"
            "houses.describe().round(1)"
        ),
    ),
    call(
        "code_sandbox",
        code=(
            "from sklearn.linear_model import LinearRegression\n"
            "features = ['area_m2', 'rooms', 'age_years']\n"
            "fit = LinearRegression().fit(houses[features], houses.price_keur)\n"
            "dict(zip(features, fit.coef_.round(2)))"
        ),
    ),
    call(
        "code_sandbox",
        code=(
            "import matplotlib.pyplot as plt\n"
            "plt.scatter(houses.area_m2, houses.price_keur, c=houses.age_years)\n"
            "plt.colorbar(label='age in years')\n"
            "plt.xlabel('area in square metres')\n"
            "plt.ylabel('price in thousand euro')\n"
            "plt.savefig('/session/artifacts/prices.png')\n"
            "plt.close()"
        ),
    ),
    "The area has the largest effect; age lowers the price. Here is the picture: {link}",
]


def main() -> None:
    here = Path(__file__).parent
    os.environ.setdefault("SESSION_STORAGE", "BIND")
    os.environ.setdefault("DATASET_ACCESS", "LOCAL_RO")
    os.environ.setdefault("DATASETS_HOST_RO", str(here / "data"))
    config = Config.from_env()
    manager = SessionManager(
        image=config.sandbox_image,
        session_storage=config.session_storage,
        dataset_access=config.dataset_access,
        datasets_path=config.datasets_host_ro,
        session_root=config.sessions_root,
        tmpfs_size=config.tmpfs_size_mb,
    )
    agent = create_agent(
        model(*SCRIPT),
        tools=[make_code_sandbox_tool(manager), make_list_datasets_tool(manager)],
        system_prompt="You analyse data by computing. Give the user links to the pictures that you make.",
        checkpointer=InMemorySaver(),
    )
    thread = f"local-{secrets.token_hex(4)}"
    try:
        converse(agent, QUESTION, thread)
        directory = manager.start(thread).info.directory
        if directory is not None:
            print(f"\nIts files are in {directory}")
    finally:
        manager.stop(thread)


if __name__ == "__main__":
    main()

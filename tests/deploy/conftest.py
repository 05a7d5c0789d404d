"""The chart's tests use what renders the manifests of deploy/kubernetes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

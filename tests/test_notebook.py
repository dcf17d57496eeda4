"""The notebook of examples, run as Jupyter runs it: what it shows are tables and a frame, and never much text."""

import json
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
NOTEBOOK = Path(__file__).parent.parent / "examples" / "notebook.ipynb"
MOST_BYTES = 200_000


def test_it_runs_and_its_outputs_are_small(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert max(len(json.dumps(output)) for output in outputs) < MOST_BYTES
    shown = [output.data for output in outputs if output.output_type == "execute_result"]
    checked, explained, reported, _ = (data.get("text/html", "") for data in shown)
    assert "all equal eager, bit for bit" in checked and "<table>" in explained and '<iframe src="report.html"' in reported
    assert all(len(data["text/plain"]) < 300 for data in shown) and (tmp_path / "report.html").exists()

"""Show the demo's runs: a table as text, and a plot.

render_table: runs -> str            save_plot: (runs, path) -> a PNG at path
"""

from __future__ import annotations

from pathlib import Path

from gradc.demo.train import Run
from gradc.text_table import table

HEADERS = ["run", "final loss", "test accuracy", "largest param diff", "bitwise eager", "ms/step", "eager = 1", "compile s"]


def render_table(runs: list[Run]) -> str:
    """The first of ``runs`` is eager's: ``eager = 1`` is what a step takes beside it."""
    return table(HEADERS, [_row(run, runs[0]) for run in runs])


def _row(run: Run, eager: Run) -> list[str]:
    return [
        run.name,
        f"{run.losses[-1]:.6f}",
        f"{100 * run.accuracy:.1f} %",
        "0" if run.parameter_difference == 0 else f"{run.parameter_difference:.1e}",
        _verdict(run),
        f"{run.step_ms:.1f}",
        f"{run.step_ms / eager.step_ms:.2f}",
        f"{run.compile_seconds:.1f}" if run.is_compiled else "-",
    ]


def _verdict(run: Run) -> str:
    """Equality counts only where something was compiled: a run that fell back to eager shows nothing."""
    if run.name != "eager" and not run.is_compiled:
        return "not compiled"
    return "yes" if run.bitwise else "no"


def save_plot(runs: list[Run], path: Path) -> None:
    """Loss curves on the left; on the right each run's largest gradient difference from eager, step by step."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    losses, differences = figure.subplots(1, 2)
    styles = ["-", (0, (6, 3)), (0, (2, 2)), (0, (1, 4))]
    for number, (run, style) in enumerate(zip(runs, styles)):
        losses.plot(run.losses, label=run.name, color=f"C{number}", linestyle=style, linewidth=2)
        if run.name != "eager":
            differences.plot(run.differences, label=run.name, color=f"C{number}", linewidth=1.5)
    losses.set(title="Training loss", xlabel="step", ylabel="cross entropy")
    differences.set(title="Gradients: largest difference from eager", xlabel="step", ylabel="absolute (0: bit for bit)")
    differences.set_yscale("symlog", linthresh=1e-6)
    differences.set_ylim(bottom=-2e-7)
    for axes in (losses, differences):
        axes.grid(alpha=0.3)
        if axes.has_data():
            axes.legend()
    figure.savefig(path, dpi=130)

// The charts: plotly draws them. Its own text is in the page as plain text, and becomes a script after the page has been shown.
const MOST_POINTS = 1200;  // of a curve: of the calls that share a point, the one with most memory is drawn
const MOST_BARS = 14;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function layout(extra) {
  const axis = {gridcolor: colour("--line"), zerolinecolor: colour("--line"), automargin: true};
  const base = {paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: colour("--text"), family: "system-ui, sans-serif", size: 12},
    margin: {l: 60, r: 15, t: 10, b: 45}, legend: {orientation: "h", y: 1.02, yanchor: "bottom", x: 0}, hoverlabel: {namelength: -1},
    modebar: {bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--accent")}};
  return {...base, ...extra, xaxis: {...axis, ...extra.xaxis}, yaxis: {...axis, ...extra.yaxis}};
}

const OPTIONS = {displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"]};
const ROLE_COLOURS = ["--float32", "--int", "--bool", "--float16", "--bfloat16", "--float64"];

function totals(curve) {
  const series = Object.values(curve.num_bytes);
  return curve.seconds.map((_, i) => series.reduce((sum, each) => sum + each[i], 0));
}

// The positions of the calls to draw.
function positions(sums) {
  const step = Math.ceil(sums.length / MOST_POINTS);
  const found = [];
  for (let start = 0; start < sums.length; start += step) {
    let best = start;
    for (let i = start; i < Math.min(start + step, sums.length); i++) if (sums[i] > sums[best]) best = i;
    found.push(best);
  }
  return found;
}

function drawMemory() {
  const sums = totals(MEMORY), eager = totals(EAGER_MEMORY);
  const drawn = positions(sums), drawnEager = positions(eager);
  const label = i => MEMORY.ops[i] === null ? MEMORY.phases[i] : `${MEMORY.phases[i]}: ${OPS[MEMORY.ops[i]].short}`;
  const traces = Object.entries(MEMORY.num_bytes).map(([role, series], number) => ({
    name: role, x: drawn.map(i => MEMORY.places[i]), y: drawn.map(i => series[i] / 1e6), text: drawn.map(label), stackgroup: "all", mode: "lines",
    line: {width: 0.5, shape: "hv", color: colour(ROLE_COLOURS[number])}, hovertemplate: "%{text}<br>%{y:.3g} MB",
  })).filter(trace => trace.y.some(Boolean));
  traces.push({name: "all, in eager", x: drawnEager.map(i => EAGER_MEMORY.places[i]), y: drawnEager.map(i => eager[i] / 1e6), mode: "lines",
    line: {dash: "dot", width: 1.5, color: colour("--text"), shape: "hv"}, hovertemplate: "%{y:.3g} MB"});
  const peak = MEMORY.places[MEMORY.peak] ?? 0;
  const mark = {type: "line", x0: peak, x1: peak, yref: "paper", y0: 0, y1: 1, line: {color: colour("--bad"), width: 1.5}};
  const text = {x: peak, y: 1, yref: "paper", yanchor: "bottom", xanchor: peak > 0.8 * MEMORY.places.length ? "right" : "left", showarrow: false, text: `peak: ${size(MEMORY.peak_bytes)}`, font: {color: colour("--bad")}};
  return Plotly.react("memory-chart", traces, layout({xaxis: {title: {text: "call by call"}}, yaxis: {title: {text: "MB"}, rangemode: "tozero"},
    shapes: MEMORY.seconds.length ? [mark] : [], annotations: MEMORY.seconds.length ? [text] : [], margin: {l: 60, r: 15, t: 40, b: 90}, legend: {orientation: "h", y: -0.3, x: 0}}), OPTIONS);
}

// The nested bars: the step, its parts, modules, and the ops of each module by name.
function flames() {
  const nodes = new Map([["step", {label: "graphs", parent: "", ours: 0, eager: 0}]]);
  const add = (id, label, parent, op) => {
    const node = nodes.get(id) ?? {label, parent, ours: 0, eager: 0};
    node.ours += op.seconds * 1e3;
    node.eager += (op.eager ?? 0) * 1e3;
    nodes.set(id, node);
  };
  for (const op of OPS) {
    if (!op.calls) continue;
    add("step", "graphs", "", op);
    let id = op.phase;
    add(id, op.phase, "step", op);
    for (const part of op.module ? op.module.split(".") : []) {
      add(`${id}.${part}`, part, id, op);
      id = `${id}.${part}`;
    }
    add(`${id}/${op.short}`, op.short, id, op);
  }
  return nodes;
}

function drawFlames() {
  const nodes = [...flames()];
  const slower = nodes.map(([, node]) => node.eager ? Math.max(-1, Math.min(1, Math.log2(node.ours / node.eager))) : 0);
  const trace = {type: "icicle", ids: nodes.map(([id]) => id), labels: nodes.map(([, node]) => node.label), parents: nodes.map(([, node]) => node.parent),
    values: nodes.map(([, node]) => node.ours), customdata: nodes.map(([, node]) => node.eager), branchvalues: "total", maxdepth: 6, tiling: {orientation: "v"}, sort: false,
    marker: {colors: slower, cmin: -1, cmid: 0, cmax: 1, colorscale: [[0, colour("--good")], [0.5, colour("--float32")], [1, colour("--bad")]], line: {width: 1, color: colour("--card")}},
    hovertemplate: "%{id}<br>%{value:.3g} ms; the same calls in eager %{customdata:.3g} ms<extra></extra>"};
  return Plotly.react("flame-chart", [trace], layout({margin: {l: 5, r: 5, t: 25, b: 5}, uniformtext: {minsize: 10, mode: "hide"}}), OPTIONS);
}

function drawOps() {
  const rows = TIMES.by_op.filter(row => row.num_compiled).slice(0, MOST_BARS).reverse();
  const labels = rows.map(row => `${shortName(row.name).slice(0, 34)} (${row.phase})`);
  const bars = (name, key, color) => ({type: "bar", orientation: "h", name, y: labels, x: rows.map(row => row[key] * 1e3), marker: {color: colour(color)}, hovertemplate: "%{x:.3g} ms"});
  return Plotly.react("op-chart", [bars("eager", "eager_seconds", "--bool"), bars("in graphs", "compiled_seconds", "--float32")],
    layout({barmode: "group", xaxis: {title: {text: "ms, call by call"}}, yaxis: {tickfont: {size: 10}}, legend: {orientation: "h", traceorder: "reversed", y: 1.02, yanchor: "bottom", x: 0}}), OPTIONS);
}

function drawAll() {
  return Promise.all([drawMemory(), drawFlames(), drawOps()]).then(() => { document.documentElement.dataset.drawn = "true"; });
}

function startCharts() {
  const library = make("script");
  library.textContent = document.getElementById("plotly").textContent;
  document.head.append(library);
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}

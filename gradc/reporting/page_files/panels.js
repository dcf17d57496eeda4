// Everything that is neither tree nor chart: summary, tables, captures, parity.
const MEMORY = DATA.memory, EAGER_MEMORY = DATA.eager_memory, TIMES = DATA.times, TOLD = DATA.explanation;

function fill(id, ...children) {
  document.getElementById(id).replaceChildren(...children.filter(Boolean));
}

function linkTo(id, text) {
  return make("a", {href: `#${id}`}, text);
}

function card(title, figure, ...rest) {
  return make("div", {className: "card"}, make("h3", {}, title), make("div", {className: typeof figure === "string" && figure.length > 20 ? "figure long" : "figure"}, figure), ...rest.map(each => make("p", {}, each)));
}

function percent(ours, theirs) {
  if (theirs > 2 * ours) return `${(theirs / ours).toPrecision(2)} times as fast as eager`;
  if (ours > 2 * theirs) return `takes ${(ours / theirs).toPrecision(2)} times as long`;
  const change = Math.round((theirs / ours - 1) * 100);
  return change === 0 ? "as fast as eager" : change > 0 ? `${change}% faster than eager` : `${-change}% slower than eager`;
}

function showSummary() {
  const run = DATA.graphs.filter(graph => graph.num_runs);
  const ops = OPS.filter(op => op.calls);
  const numFallbacks = TOLD.fallbacks.reduce((sum, found) => sum + found.times, 0);
  const partsLeft = TOLD.graph_breaks.length + TOLD.fallbacks.length;
  const longest = TIMES.by_op.find(row => row.num_compiled);
  const cards = [
    card("Whole step", `${time(TIMES.compiled)}`, `eager ${time(TIMES.eager)}: ${percent(TIMES.compiled, TIMES.eager)}; medians of ${TIMES.num_runs}, in turns`),
    card("Most memory at once", size(MEMORY.peak_bytes), make("span", {}, `eager ${size(EAGER_MEMORY.peak_bytes)}; `, linkTo("memory", "what is alive then"))),
    card("In graphs", count(ops.length, "op"), `${count(run.length, "graph")} ran; ${count(DATA.graphs.length, "graph")} made in ${count(DATA.num_steps, "step")}`),
    card("Not compiled", partsLeft ? make("span", {className: "warn"}, count(partsLeft, "place")) : make("span", {className: "good"}, "nothing"),
      make("span", {}, `${count(TOLD.graph_breaks.length, "graph break")}, ${count(numFallbacks, "fallback")}: `, linkTo("captures", "where and why"))),
    card("Captured again", TOLD.recaptures.length ? make("span", {className: "warn"}, count(alike(TOLD.recaptures).length, "reason")) : make("span", {className: "good"}, "nothing"),
      make("span", {}, linkTo("captures", "what had changed"))),
    parityCard(),
    longest ? card("Takes longest", shortName(longest.name), `in ${longest.phase}: ${time(longest.compiled_seconds)} in ${count(longest.num_compiled, "call")}`) : null,
  ];
  fill("cards", ...cards, dtypeCard(ops), ...DATA.notes.map(note => card("Note", "", note)));
}

function parityCard() {
  const parity = DATA.parity;
  if (!parity) return card("Parity with eager", "not checked");
  const verdict = !parity.ok ? make("span", {className: "bad"}, count(parity.differences.length, "difference"))
    : parity.is_conclusive ? make("span", {className: "good"}, "bit for bit") : make("span", {className: "warn"}, "proves nothing");
  return card("Parity with eager", verdict, make("span", {}, `${count(parity.num_compared, "value")} compared in ${count(parity.num_steps, "step")}: `, linkTo("parity", "table")));
}

function dtypeCard(ops) {
  const rows = [];
  for (const phase of ["forward", "backward"]) {
    const numbers = new Map();
    for (const op of ops) if (op.phase === phase) numbers.set(op.dtype, (numbers.get(op.dtype) ?? 0) + 1);
    const buttons = [...numbers].sort((a, b) => b[1] - a[1]).map(([dtype, number]) => {
      const button = make("button", {type: "button", className: "dtype", style: `--dtype: ${colourOf(dtype)}`, title: `Show the ops of ${phase} in ${dtype}`}, `${dtype} ${number}`);
      button.addEventListener("click", () => find(phase, dtype));
      return button;
    });
    rows.push(make("h4", {}, phase), make("fieldset", {}, make("legend", {className: "hidden"}, phase), ...buttons));
  }
  return make("div", {className: "card wide", id: "dtype-card"}, make("h3", {}, "Dtypes of the ops: choose one to list them"), ...rows);
}

function showMemory() {
  const peak = MEMORY.ops[MEMORY.peak];
  const at = peak === undefined || peak === null ? "" : make("span", {}, "The peak is at ", opLink(OPS[peak], OPS[peak].short), `, in ${MEMORY.phases[MEMORY.peak]}`,
    OPS[peak].line ? `, ${fileOf(OPS[peak].line)}` : "", ". ");
  fill("memory-text", make("p", {className: "hint"}, at, "Counted are the tensors that the calls of the graphs are given and make, and parameters, gradients and optimizer state. ",
    "What a kernel needs only while it runs is not seen, nor what eager makes between the graphs."));
  const byRole = Object.entries(MEMORY.num_bytes).map(([role, series]) => [role, series[MEMORY.peak] ?? 0]).filter(([, bytes]) => bytes);
  const kept = DATA.graphs.flatMap(graph => graph.num_runs ? graph.saved.map(saved => [graph, saved]) : []).sort((a, b) => b[1].value.num_bytes - a[1].value.num_bytes);
  const columns = [{title: "what"}, {title: "kind"}, {title: "size", right: true}, {title: "module"}, {title: "line"}];
  const alive = ([name, role, bytes, op, line]) => [op === null ? name : opLink(OPS[op], name.replace(/^result of aten\./, "result of ").replace(/\.default$/, "")), role, size(bytes), op === null ? "" : OPS[op].module,
    line ? make("span", {title: line[3]}, fileOf(line)) : ""];
  const savedColumns = [{title: "tensor"}, {title: "size", right: true}, {title: "needed by"}, {title: "graph"}];
  const saved = ([graph, each]) => [make("span", {}, dtypeChip(each.value.dtype), make("code", {}, ` ${each.value.name} ${shapeOf(each.value)}`)),
    size(each.value.num_bytes), each.needed_by.join(", "), partName(graph)];
  fill("alive", make("div", {className: "pair stack"},
    make("div", {className: "card"}, make("h3", {}, "Alive at the peak"),
      table("By kind", [{title: "kind"}, {title: "size", right: true}], byRole.map(([role, bytes]) => [role, size(bytes)])),
      longTable(`${count(MEMORY.alive.length, "piece")} of memory, the largest first`, columns, MEMORY.alive, 12, alive)),
    make("div", {className: "card"}, make("h3", {}, "Saved for backward"),
      longTable(`${count(kept.length, "tensor")} that forward keeps, the largest first`, savedColumns, kept, 14, saved))));
}

function spread(seconds) {
  return seconds.length ? seconds.map(time).join(" to ") : "unknown";
}

function asMarkdown() {
  const rows = [["", "eager", "compiled"], ["---", "---:", "---:"], ["whole step", time(TIMES.eager), time(TIMES.compiled)],
    ["quartiles", spread(TIMES.eager_spread), spread(TIMES.compiled_spread)], ["most memory at once", size(EAGER_MEMORY.peak_bytes), size(MEMORY.peak_bytes)]];
  const left = [...TOLD.graph_breaks.map(found => ["graph break", found.reason, found.where]), ...TOLD.fallbacks.map(found => ["ran eagerly", found.kind, found.where])]
    .map(([how, why, where]) => `- ${how}: ${why}${where ? ` (${where})` : ""}`);
  const head = `**${DATA.title}**, ${DATA.made}, ${DATA.versions}; ${count(TIMES.num_threads, "thread")}, medians of ${TIMES.num_runs}, first step ${time(TIMES.first)}`;
  return [head, "", ...rows.map(row => `| ${row.join(" | ")} |`), "", ...left, ...DATA.notes.map(note => `- ${note}`)].join("\n");
}

function startCopying() {
  const button = document.getElementById("copy"), shown = document.getElementById("markdown");
  button.addEventListener("click", () => {
    shown.hidden = false;
    shown.value = asMarkdown();
    shown.select();
    document.execCommand("copy");  // the newer way does not work in a file from the disk
    button.textContent = "Copied";
  });
}

function showTime() {
  fill("time-text", make("p", {className: "hint"}, `The whole step takes ${time(TIMES.eager)} in eager and ${time(TIMES.compiled)} compiled (medians of ${TIMES.num_runs}, made in turns, nothing else around; quartiles ${spread(TIMES.eager_spread)} and ${spread(TIMES.compiled_spread)}; ${count(TIMES.num_threads, "thread")}); `,
    `the first one took ${time(TIMES.first)}, compiling included${phases()}. Single calls are timed one by one, each called from Python, in eager and in graphs alike, the least of three times: some microseconds of each figure are that. `,
    "gradc runs a graph's calls without Python between them: that figure stands under graphs."));
  const graphs = DATA.graphs.map((graph, index) => [graph, OPS.filter(op => op.graph === index)]).filter(([graph]) => graph.num_runs);
  const graphColumns = [{title: "graph"}, {title: "ops", right: true}, {title: "runs", right: true}, {title: "gradc, as a whole", right: true},
    {title: "its calls one by one", right: true}, {title: "the same calls in eager", right: true}];
  const graphRow = ([graph, ops]) => [programLink(graph, graph.name), String(ops.length), String(graph.num_runs), time(graph.seconds), time(secondsOf(ops)),
    time(ops.reduce((sum, op) => sum + (op.eager ?? 0), 0))];
  const opColumns = [{title: "op"}, {title: "part"}, {title: "calls in eager", right: true}, {title: "eager", right: true}, {title: "calls in graphs", right: true}, {title: "in graphs", right: true}];
  const opRow = row => [row.name, row.phase, String(row.num_eager), time(row.eager_seconds), String(row.num_compiled), row.num_compiled ? time(row.compiled_seconds) : "–"];
  const slowest = OPS.filter(op => op.calls).sort((a, b) => b.seconds - a.seconds);
  const singleColumns = [{title: "op"}, {title: "part"}, {title: "module"}, {title: "shape"}, {title: "time", right: true}, {title: "line"}];
  const single = op => [opLink(op, op.short), op.phase, op.module, op.made[0] ? tensor(op.made[0]) : "", time(op.seconds), fileOf(op.line)];
  fill("time-tables", make("div", {className: "stack"},
    make("div", {className: "card"}, table("By graph", graphColumns, graphs.map(graphRow))),
    make("div", {className: "pair"},
      make("div", {className: "card"}, longTable("By op", opColumns, TIMES.by_op, 15, opRow)),
      make("div", {className: "card"}, longTable("Single ops, the slowest first", singleColumns, slowest.slice(0, 500), 15, single)))));
}

// Of the compile time, where that was told.
function phases() {
  const told = TOLD.compile_time;
  return told ? `: Dynamo ${time(told.dynamo)}, forwards ${time(told.forward)}, backwards and all else ${time(told.rest)}` : "";
}

// To the program of a graph, which opens.
function programLink(graph, text) {
  const link = linkTo(`program-${DATA.graphs.indexOf(graph)}`, text);
  link.addEventListener("click", () => openProgram(link.hash.slice(1)));
  return link;
}

function openProgram(id) {
  const element = document.getElementById(id);
  if (element?.matches("details.program")) element.open = true;
}

// The text of a program is put onto the page when it is opened.
function showPrograms() {
  const one = (graph, index) => {
    const number = OPS.filter(op => op.graph === index).length;
    const element = make("details", {id: `program-${index}`, className: "program"}, make("summary", {}, `${graph.name}, ${count(number, "call")}`));
    element.addEventListener("toggle", () => element.open && element.childElementCount === 1 && element.append(make("pre", {tabIndex: 0}, graph.program)));
    return element;
  };
  fill("programs-body", make("div", {className: "card"}, ...(DATA.graphs.length ? DATA.graphs.map(one) : [make("p", {}, "None: nothing was compiled.")])));
  openProgram(location.hash.slice(1));
}

// Texts that differ in numbers only are one: [the first, all of them].
function alike(texts) {
  const groups = new Map();
  for (const text of texts) {
    const key = text.replace(/\d+/g, "#").slice(0, 160);
    groups.set(key, [...(groups.get(key) ?? []), text]);
  }
  return [...groups.values()].map(group => [group[0], group]);
}

function showCaptures() {
  const breaks = alike(TOLD.graph_breaks.map(found => JSON.stringify(found))).map(([first, all]) => [JSON.parse(first), all.length]);
  const isTimed = TOLD.graph_breaks.some(found => typeof found.share === "number");
  const breakColumns = [{title: "why"}, {title: "where"}, {title: "what to do"}, isTimed ? {title: "part of the step", right: true} : null, {title: "times", right: true}].filter(Boolean);
  const breakRow = ([found, times]) => [found.reason, make("code", {}, found.where), found.advice,
    ...(isTimed ? [found.share === null ? "–" : found.share < 0.005 ? "under 1%" : `${Math.round(100 * found.share)}%`] : []), String(times)];
  const fallbackColumns = [{title: "why"}, {title: "what was met"}, {title: "where"}, {title: "what to do"}, {title: "times", right: true}];
  const again = alike(TOLD.recaptures);
  fill("captures-body", make("div", {className: "stack"},
    make("div", {className: "card"}, make("h3", {}, "Captured again"),
      ...(again.length ? again.map(([first, all]) => recapture(first, all)) : [make("p", {}, `Nothing, in ${count(DATA.num_steps, "step")}.`)])),
    make("div", {className: "card"}, make("h3", {}, "Graph breaks"), breaks.length
      ? table("Where a graph ends; Python runs in between", breakColumns, breaks.map(breakRow))
      : make("p", {}, "None.")),
    make("div", {className: "card"}, make("h3", {}, "Fallbacks"), TOLD.fallbacks.length
      ? table("What ran eagerly", fallbackColumns, TOLD.fallbacks.map(found => [found.kind, found.detail, make("code", {}, found.where), found.advice, String(found.times)]))
      : make("p", {}, "None.")),
    make("div", {className: "card"}, table("Graphs, in the order in which they were made",
      [{title: "graph"}, {title: "made in step", right: true}, {title: "runs in the measured step", right: true}, {title: "why again"}],
      DATA.graphs.map(graph => [programLink(graph, graph.name), String(graph.made_in_step), String(graph.num_runs), graph.reason])))));
}

function recapture(first, all) {
  const short = first.length > 260 ? `${first.slice(0, 260)} …` : first;
  if (all.length === 1 && short === first) return make("p", {}, make("code", {}, first));
  const head = make("summary", {}, make("code", {}, short), all.length > 1 ? ` and ${all.length - 1} like it` : "");
  return make("details", {}, head, make("pre", {}, all.join("\n")));
}

function showParity() {
  const parity = DATA.parity;
  if (!parity) return fill("parity-body", make("p", {className: "card"}, "It was not asked for."));
  const columns = [{title: "value"}, {title: "step", right: true}, {title: "eager"}, {title: "compiled"}, {title: "largest difference", right: true}, {title: "kind"}, {title: "why"}];
  const row = found => [found.name, String(found.step), found.eager, found.compiled, found.largest === null ? "–" : found.largest.toExponential(1), found.kind, found.why];
  const verdict = parity.ok ? `${count(parity.num_compared, "value")} compared in ${count(parity.num_steps, "step")}: all equal eager, bit for bit.`
    : `${parity.differences.length} of ${count(parity.num_compared, "value")} differ from eager.`;
  const place = parity.location ? make("pre", {}, Object.entries(parity.location).filter(([, text]) => text).map(([key, text]) => `${key}: ${text}`).join("\n")) : null;
  fill("parity-body", make("div", {className: "card"}, make("p", {className: parity.ok ? "good" : "bad"}, verdict),
    parity.is_conclusive ? null : make("p", {className: "warn"}, parity.num_compiled === 0 ? "Nothing was compiled: this proves nothing." : "Eager itself is not reproducible: this proves nothing."),
    parity.differences.length ? longTable("What differs from eager", columns, parity.differences, 40, row) : null, place,
    parity.irreproducible.length ? longTable("Not reproducible in eager itself", columns, parity.irreproducible, 40, row) : null));
}

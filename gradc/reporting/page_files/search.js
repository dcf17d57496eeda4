// Search, and the filters beside it. What is found stands in a table above the trees; choosing a row shows it in its tree.
const MOST_FOUND = 200;
const searched = OPS.map(op => [op.name, op.module, op.node, op.autocast, fileOf(op.line), op.line ? op.line[3] : "",
  ...op.made.flatMap(value => [value.name, value.label, shapeOf(value)])].join(" ").toLowerCase());
const wantedDtypes = new Set();

function startSearch() {
  const form = document.getElementById("filters");
  const numbers = new Map();
  for (const op of OPS) if (op.calls) numbers.set(op.dtype, (numbers.get(op.dtype) ?? 0) + 1);
  for (const [dtype] of [...numbers].sort((a, b) => b[1] - a[1])) {
    const button = make("button", {type: "button", className: "dtype", style: `--dtype: ${colourOf(dtype)}`, "aria-pressed": "false"}, dtype);
    button.addEventListener("click", () => setDtype(dtype, !wantedDtypes.has(dtype)));
    document.getElementById("dtypes").append(button);
  }
  let waiting = 0;
  document.getElementById("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(showFound, 80);
  });
  document.getElementById("phase").addEventListener("change", showFound);
  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(clearFilters));
  document.addEventListener("keydown", event => {
    const isTyping = event.target.closest("input, select");
    if (event.key === "/" && !isTyping) {
      event.preventDefault();
      document.getElementById("search").focus();
    } else if (event.key === "Escape" && event.target.id === "search") form.reset();
  });
}

function setDtype(dtype, isWanted) {
  if (isWanted) wantedDtypes.add(dtype);
  else wantedDtypes.delete(dtype);
  showPressed();
  showFound();
}

function showPressed() {
  for (const button of document.querySelectorAll("#dtypes button")) button.setAttribute("aria-pressed", String(wantedDtypes.has(button.textContent)));
}

function clearFilters() {
  wantedDtypes.clear();
  showPressed();
  showFound();
}

// Asked for from elsewhere on the page: all ops of a dtype in one part of the step.
function find(phase, dtype) {
  document.getElementById("search").value = "";
  document.getElementById("phase").value = phase;
  wantedDtypes.clear();
  setDtype(dtype, true);
  document.getElementById("filters").scrollIntoView();
  document.querySelector("#results tbody button")?.focus({preventScroll: true});
}

function found() {
  const words = document.getElementById("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const phase = document.getElementById("phase").value;
  if (!words.length && !phase && !wantedDtypes.size) return null;
  const isRunAtAll = OPS.some(op => op.calls);
  return OPS.filter(op => (op.calls || !isRunAtAll) && (!phase || op.phase === phase) && (!wantedDtypes.size || wantedDtypes.has(op.dtype))
    && words.every(word => searched[op.index].includes(word)));
}

function showFound() {
  const ops = found();
  const results = document.getElementById("results");
  results.hidden = ops === null;
  document.getElementById("found").textContent = ops === null ? "" : `${count(ops.length, "op")}, ${time(secondsOf(ops))}`;
  if (ops === null) return results.replaceChildren();
  const columns = [{title: "op"}, {title: "part"}, {title: "module"}, {title: "dtype"}, {title: "shape"}, {title: "time", right: true}, {title: "line"}];
  const row = op => [opLink(op, op.short), op.phase, op.module, dtypeChip(op.dtype), op.made[0] ? shapeOf(op.made[0]) : "",
    op.seconds === null ? "" : time(op.seconds), op.line ? make("span", {title: op.line[3]}, fileOf(op.line)) : ""];
  const caption = ops.length ? "Ops of the measured step, in order" : "Nothing found";
  results.replaceChildren(make("div", {className: "card"}, longTable(caption, columns, ops, MOST_FOUND, row)));
}

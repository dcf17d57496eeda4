// The report's data, and small things to make elements of it. Everything the user wrote gets onto the page as text.
const DATA = JSON.parse(document.getElementById("data").textContent);
const NAMES = DATA.names;

const VALUES = DATA.values.map(([name, dtype, shape, bytes, label]) => ({name, dtype: NAMES[dtype], shape, bytes, label, maker: null, users: []}));
const OPS = DATA.ops.map(([graph, name, module, node, autocast, line, made, read, seconds, eager, calls, partners], index) => ({
  index, graph, name: NAMES[name], module: NAMES[module], node: NAMES[node], autocast: NAMES[autocast],
  line: line < 0 ? null : DATA.lines[line], made: made.map(i => VALUES[i]), read: read.map(i => VALUES[i]),
  seconds, eager, calls, partners, phase: DATA.graphs[graph].phase,
}));
for (const op of OPS) {
  for (const value of op.made) value.maker ??= op;
  for (const value of new Set(op.read)) value.users.push(op);
  op.dtype = (op.made[0] ?? op.read[0] ?? {dtype: "none"}).dtype;
  op.bytes = op.made.reduce((sum, value) => sum + value.bytes, 0);
  op.short = shortName(op.name);
}

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key in element && !key.startsWith("aria")) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined && child !== ""));
  return element;
}

function size(bytes) {
  if (!bytes) return "0 B";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (bytes < 1000) return `${bytes < 10 && unit !== "B" ? bytes.toFixed(1) : Math.round(bytes)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} TB`;
}

function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(seconds < 1e-5 ? 1 : 0)} µs`;
  return seconds < 1 ? `${(seconds * 1e3).toPrecision(3)} ms` : `${seconds.toPrecision(3)} s`;
}

function count(number, name) {
  return `${number.toLocaleString("en")} ${name}${number === 1 ? "" : "s"}`;
}

function colourOf(dtype) {
  const known = ["float32", "bfloat16", "float16", "float64", "bool"];
  return `var(--${known.includes(dtype) ? dtype : /int/.test(dtype) ? "int" : "other"})`;
}

function dtypeChip(dtype) {
  return make("span", {className: "dtype", style: `--dtype: ${colourOf(dtype)}`}, dtype);
}

function shapeOf(value) {
  return `[${value.shape.join(", ")}]`;
}

function shortName(name) {
  return name.replace(/^aten\./, "").replace(/\.default$/, "");
}

function fileOf(line) {
  return line === null ? "" : `${line[0].split("/").pop()}:${line[1]}`;
}

// rows: arrays of texts or elements. columns: {title, right}
function table(caption, columns, rows) {
  const cell = (tag, column, content) => {
    const element = make(tag, column.right ? {className: "right"} : {}, content ?? "");
    if (tag === "th") element.scope = "col";
    return element;
  };
  const head = make("thead", {}, make("tr", {}, ...columns.map(column => cell("th", column, column.title))));
  const body = make("tbody", {}, ...rows.map(row => make("tr", {}, ...row.map((each, i) => cell("td", columns[i], each)))));
  return make("div", {className: "scroll"}, make("table", {}, make("caption", {}, caption), head, body));
}

// A table of items, of which those beyond the first `limit` are behind a button. row: item -> cells
function longTable(caption, columns, items, limit, row) {
  const holder = make("div", {}, table(caption, columns, items.slice(0, limit).map(row)));
  if (items.length > limit) {
    const more = make("button", {type: "button"}, `Show all ${items.length.toLocaleString("en")}`);
    more.addEventListener("click", () => {
      holder.replaceChildren(table(caption, columns, items.map(row)));
      holder.querySelector("tbody button")?.focus({preventScroll: true});
    });
    holder.append(more);
  }
  return holder;
}

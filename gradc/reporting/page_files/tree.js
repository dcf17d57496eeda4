// The graphs as trees: graph, module by module, op. A group's children are made when it is first opened, so that ten thousand ops
// cost nothing before they are looked at.
const CHUNK = 100;  // the most children of a group; of more, each hundred gets a group of its own

const treeElements = new Map();  // index of an op -> its button, once it has been made
const opened = new Map();  // index of an op -> the groups around it, outermost first

// Within its tree: "region 4", "segment 0 of region 4".
function partName(graph) {
  return graph.region ? graph.name.replace(/^forward of |^backward of /, "") : graph.name;
}

function newGroup(name, kind) {
  return {name, kind, children: [], ops: [], element: null};
}

// Ops in their order: those in a row that share a module stand in a group, which again has groups for the parts of the module.
function treeOf(graph, indices) {
  const root = newGroup(partName(graph), "graph");
  const stack = [root];
  let path = [];
  for (const index of indices) {
    const op = OPS[index];
    const parts = op.module ? op.module.split(".") : [];
    let shared = 0;
    while (shared < path.length && shared < parts.length && path[shared] === parts[shared]) shared++;
    stack.length = shared + 1;
    for (const part of parts.slice(shared)) {
      const group = newGroup(part, "module");
      stack[stack.length - 1].children.push(group);
      stack.push(group);
    }
    path = parts;
    stack[stack.length - 1].children.push(op);
    for (const group of stack) group.ops.push(op);
  }
  return chunked(joined(root));
}

// A module with a single part and nothing else is one line: "blocks.0".
function joined(group) {
  group.children = group.children.map(child => child.children ? joined(child) : child);
  while (group.kind === "module" && group.children.length === 1 && group.children[0].kind === "module") {
    group.name += `.${group.children[0].name}`;
    group.children = group.children[0].children;
  }
  return group;
}

function chunked(group) {
  group.children.forEach(child => child.children && chunked(child));
  while (group.children.length > CHUNK) {
    const parts = [];
    for (let start = 0; start < group.children.length; start += CHUNK) {
      const children = group.children.slice(start, start + CHUNK);
      const part = newGroup("", "part");
      part.children = children;
      part.ops = children.flatMap(child => child.ops ?? [child]);
      part.name = `ops ${group.ops.indexOf(part.ops[0]) + 1} to ${group.ops.indexOf(part.ops[part.ops.length - 1]) + 1}`;
      parts.push(part);
    }
    group.children = parts;
  }
  return group;
}

function mixOf(ops) {
  const numbers = new Map();
  for (const op of ops) numbers.set(op.dtype, (numbers.get(op.dtype) ?? 0) + 1);
  const sorted = [...numbers].sort((a, b) => b[1] - a[1]);
  const text = sorted.map(([dtype, number]) => `${number} ${dtype}`).join(", ");
  const bar = make("span", {className: "mix", title: text, role: "img", "aria-label": text});
  for (const [dtype, number] of sorted) bar.append(make("span", {style: `flex: ${number}; background: ${colourOf(dtype)}`}));
  return bar;
}

function secondsOf(ops) {
  return ops.reduce((sum, op) => sum + (op.seconds ?? 0), 0);
}

function groupElement(group) {
  const title = make(group.kind === "graph" ? "strong" : "span", {className: "name"}, group.name);
  if (group.note) title.append(make("span", {className: "note"}, ` ${group.note}`));
  const seconds = secondsOf(group.ops);
  const summary = make("summary", {}, title, make("span", {className: "number"}, count(group.ops.length, "op")), mixOf(group.ops),
    make("span", {className: "number time"}, seconds ? time(seconds) : ""));
  const children = make("div", {className: "children"});
  const element = make("details", {}, summary, children);
  group.element = element;
  group.fill = () => {
    if (!children.hasChildNodes()) children.append(...group.children.map(child => child.children ? groupElement(child) : opElement(child)));
  };
  summary.addEventListener("click", group.fill);
  summary.fill = group.fill;
  element.addEventListener("toggle", () => element.open && group.fill());  // the browser's own search opens it, too
  return element;
}

function opElement(op) {
  const made = op.made[0];
  const button = make("button", {type: "button", className: "op", title: op.line ? `${fileOf(op.line)}  ${op.line[3]}` : op.name},
    make("span", {className: "name"}, op.short), made ? make("span", {className: "number shape mono"}, shapeOf(made)) : null,
    dtypeChip(op.dtype), make("span", {className: "number time"}, op.seconds === null ? "" : time(op.seconds)));
  button.addEventListener("click", () => choose(op.index));
  treeElements.set(op.index, button);
  return button;
}

function fillTree(element, phase) {
  const byGraph = DATA.graphs.map(() => []);
  OPS.forEach(op => byGraph[op.graph].push(op.index));
  const isRun = index => byGraph[index].some(each => OPS[each].calls);
  const indices = DATA.graphs.map((graph, index) => index).filter(index => DATA.graphs[index].phase === phase && byGraph[index].length);
  const order = [...indices.filter(isRun), ...indices.filter(index => !isRun(index))];
  const groups = [];
  for (const index of order) {
    const group = treeOf(DATA.graphs[index], byGraph[index]);
    groups.push(group);
    if (!isRun(index)) group.note = "not in the measured step";
    const remember = (inner, path) => inner.children.forEach(child =>
      child.children ? remember(child, [...path, child]) : opened.set(child.index, path));
    remember(group, [group]);
    element.append(groupElement(group));
  }
  if (!order.length) element.append(make("p", {className: "hint"}, `gradc made no graph of ${phase}. See Captures for the reason.`));
  openLargest(groups);
  element.addEventListener("keydown", event => walk(element, event));
}

// What there is to see at first: the largest graph, and its parts down to where there are several.
function openLargest(groups) {
  let group = groups.reduce((best, each) => !best || each.ops.length > best.ops.length ? each : best, null);
  while (group) {
    group.fill();
    group.element.open = true;
    group = group.children.length === 1 && group.children[0].children ? group.children[0] : null;
  }
}

// Opens what is around an op.
function reveal(index) {
  for (const group of opened.get(index)) {
    group.fill();
    group.element.open = true;
  }
  return treeElements.get(index);
}

let chosen = null;

function choose(index, isRevealed = false) {
  const op = OPS[index];
  const button = isRevealed ? reveal(index) : treeElements.get(index);
  for (const marked of document.querySelectorAll(".op[aria-current], .op.partner")) {
    marked.removeAttribute("aria-current");
    marked.classList.remove("partner");
  }
  chosen = index;
  button.setAttribute("aria-current", "true");
  if (isRevealed) {
    button.scrollIntoView({block: "center"});
    button.focus({preventScroll: true});
  }
  for (const partner of op.partners) reveal(partner).classList.add("partner");
  if (op.partners.length) scrollInside(treeElements.get(op.partners[0]));
  showDetail(op);
}

// Scrolls the tree that holds the element, and not the page.
function scrollInside(element) {
  const frame = element.closest(".tree-card");
  const top = element.getBoundingClientRect().top - frame.getBoundingClientRect().top;
  if (top < 0 || top > frame.clientHeight - 40) frame.scrollTop += top - frame.clientHeight / 2;
}

// Not inside of a group that is closed. (What is in one still has a box in Chromium, so that it can be found by the browser.)
function isShown(element) {
  const inside = element.tagName === "SUMMARY" ? element.parentElement.parentElement : element;
  return inside.closest("details:not([open])") === null;
}

function walk(tree, event) {
  const current = event.target.closest("summary, .op");
  if (!current || event.ctrlKey || event.metaKey || event.altKey) return;
  const rows = [...tree.querySelectorAll("summary, .op")].filter(isShown);
  const at = rows.indexOf(current);
  const group = current.tagName === "SUMMARY" ? current.parentElement : null;
  const parent = (group ? group.parentElement : current).closest("details");
  let next = null;
  if (event.key === "ArrowDown") next = rows[at + 1];
  else if (event.key === "ArrowUp") next = rows[at - 1];
  else if (event.key === "Home") next = rows[0];
  else if (event.key === "End") next = rows[rows.length - 1];
  else if (event.key === "ArrowRight") {
    if (group && group.open) next = rows[at + 1];
    else if (group) {
      current.fill();
      group.open = true;
    }
  } else if (event.key === "ArrowLeft") {
    if (group && group.open) group.open = false;
    else if (parent) next = parent.querySelector("summary");
  } else return;
  event.preventDefault();
  if (next) next.focus();
}

function opLink(op, text) {
  const button = make("button", {type: "button", className: "link"}, text);
  button.addEventListener("click", () => choose(op.index, true));
  return button;
}

function showDetail(op) {
  const pairs = [
    ["result", op.made.length ? make("span", {}, ...op.made.flatMap(value => [tensor(value), make("br")])) : "nothing"],
    ["bytes", size(op.bytes)],
    ["module", op.module || "–"],
    ["graph", programLink(DATA.graphs[op.graph], DATA.graphs[op.graph].name)],
    op.node ? ["autograd node", make("code", {}, op.node)] : null,
    op.autocast ? ["autocast", op.autocast] : null,
    ["time", op.seconds === null ? "not run in the measured step" : `${time(op.seconds)}${op.calls > 1 ? ` in ${op.calls} calls` : ""}`],
    ["in eager", op.eager === null ? "no such call found" : time(op.eager)],
  ].filter(Boolean);
  const list = make("dl", {}, ...pairs.flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, value)]));
  const parts = [make("h3", {}, op.name), list];
  if (op.line) parts.push(make("h4", {}, `${op.line[0]}:${op.line[1]} in ${op.line[2]}`), make("pre", {}, op.line[3]));
  parts.push(...linked(op.phase === "backward" ? "The gradient of" : "Its gradient", op.partners.map(index => OPS[index])));
  parts.push(make("h4", {}, "Reads"), make("ul", {}, ...op.read.map(value => make("li", {}, tensor(value), " ",
    value.maker && value.maker !== op ? opLink(value.maker, `from ${value.maker.short}`) : value.label || "an input"))));
  parts.push(...linked("Read by", [...new Set(op.made.flatMap(value => value.users))].filter(user => user !== op)));
  document.getElementById("detail").replaceChildren(...parts);
}

function tensor(value) {
  return make("span", {className: "mono"}, dtypeChip(value.dtype), ` ${shapeOf(value)}`);
}

function linked(title, ops) {
  if (!ops.length) return [];
  const items = ops.slice(0, 20).map(op => make("li", {}, opLink(op, op.short), ` ${op.module}`));
  const more = ops.length > 20 ? [make("li", {}, `and ${ops.length - 20} more`)] : [];
  return [make("h4", {}, title), make("ul", {}, ...items, ...more)];
}

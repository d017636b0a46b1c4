/* The dashboard's own code. Names of pools, functions and works are anybody's texts: they only ever go into textContent. */

const EVERY_MS = 2_000;
const SLOWEST_MS = 60_000;
const ANSWER_MS = 25_000;
const HEIGHT = 180;
/* What has only begun says little: of a step, a quarter must be over before its rate is drawn. */
const LEAST_SPAN = 0.25;

const root = document.getElementById("workpool");
const filters = document.getElementById("wp-filters");
const lang = document.documentElement.lang || "en";

/* Texts ------------------------------------------------------------------------------------------------------------ */

const whole = new Intl.NumberFormat(lang, { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat(lang, { notation: "compact", maximumSignificantDigits: 3 });
const few = new Intl.NumberFormat(lang, { maximumSignificantDigits: 2 });
const fine = new Intl.NumberFormat(lang, { maximumSignificantDigits: 3 });
const clock = new Intl.DateTimeFormat(lang, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const minute = new Intl.DateTimeFormat(lang, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(lang, { weekday: "short", day: "numeric" });

const number = (value) => (value === null ? "–" : value >= 1e6 ? short.format(value) : whole.format(value));
const rate = (value) => (value === null ? "–" : value >= 10_000 ? short.format(value) : value >= 100 ? whole.format(value) : few.format(value));
const atMost = (value, most) => number(value) + (value >= most ? "+" : "");

function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 1) return `${whole.format(seconds * 1000)} ms`;
  if (seconds < 60) return `${fine.format(seconds < 10 ? seconds : Math.round(seconds))} s`;
  const units = [[86_400, "d", 3_600, "h"], [3_600, "h", 60, "min"], [60, "min", 1, "s"]];
  const [size, name, small, rest] = units.find(([one]) => seconds >= one);
  const left = Math.floor((seconds % size) / small);
  return `${whole.format(Math.floor(seconds / size))} ${name}${left && seconds < 10 * size ? ` ${left} ${rest}` : ""}`;
}

const time = (at, withDay) => (withDay ? `${day.format(at * 1000)}, ` : "") + minute.format(at * 1000);

/* Elements --------------------------------------------------------------------------------------------------------- */

/** Make an element: of its attributes `text` is its text, `data` its data attributes, `on` its listeners. */
function element(tag, { text, data = {}, on = {}, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name === "className" ? "class" : name, value);
  Object.assign(made.dataset, data);
  for (const [name, listener] of Object.entries(on)) made.addEventListener(name, listener);
  made.append(...children);
  return made;
}

function say(node, text) {
  if (node && node.textContent !== text) node.textContent = text;
}

const field = (name) => root.querySelector(`[data-field="${name}"]`);

function show(node, shown) {
  if (node) node.hidden = !shown;
}

/** Keep a table's rows as `rows` say, in place: whoever reads or has the focus in a cell that stays as it is is not disturbed.
 *  A row is { key, data, cells }; a cell { field, className, text } or { field, className, sign, make }, made anew if its sign changes. */
function keepRows(body, rows) {
  const old = new Map([...body.children].map((row) => [row.wpKey, row]));
  rows.forEach(({ key, data, cells }, place) => {
    let row = old.get(key);
    if (!row) {
      row = element("tr", { data });
      row.wpKey = key;
      cells.forEach((cell, at) => {
        const attributes = { className: cell.className || "", data: { field: cell.field } };
        row.append(at ? element("td", attributes) : element("th", { ...attributes, scope: "row" }));
      });
    }
    old.delete(key);
    cells.forEach((cell, at) => {
      const sign = cell.make ? `made ${cell.sign}` : `text ${cell.text}`;
      const node = row.children[at];
      if (node.wpSign === sign) return;
      node.wpSign = sign;
      if (cell.make) node.replaceChildren(...[cell.make()].flat());
      else node.textContent = cell.text;
    });
    if (body.children[place] !== row) body.insertBefore(row, body.children[place] || null);
  });
  for (const row of old.values()) row.remove();
}

/* Charts ----------------------------------------------------------------------------------------------------------- */

const perMinute = (values, history) => values.map((value, at) => (history.spans[at] < LEAST_SPAN * history.step ? null : value / history.spans[at]));
const inSeconds = (values) => values.map((value) => (value === null ? null : value / 1000));
const line = (color, label, values, more = {}) => ({ color, label, values, dash: [], ...more });

const WHOLE = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat();
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3], [12, 4], [4, 2]];

/** What each chart shows of the answer: `lines` is what is drawn, and told in the legend and the table. */
const CHARTS = [
  {
    id: "throughput",
    title: "Throughput",
    unit: "works per minute",
    empty: "Nothing has ended in this time.",
    told: rate,
    lines: ({ history: h }) => [
      line(1, "Succeeded", perMinute(h.succeeded, h), { fill: true }),
      line(2, "Failed", perMinute(h.failed, h), { dash: [6, 3] }),
      line(3, "Canceled", perMinute(h.canceled, h), { dash: [2, 3] }),
      line(4, "Retried", perMinute(h.retried, h), { dash: [8, 3, 2, 3] }),
    ],
  },
  {
    id: "failures",
    title: "Failures",
    unit: "per minute",
    empty: "Nothing has failed in this time.",
    told: rate,
    lines: ({ history: h }) => [
      line(2, "Failed for good", perMinute(h.failed, h), { fill: true }),
      line(3, "Failed attempts", perMinute(h.failed_attempts, h), { dash: [6, 3] }),
    ],
  },
  {
    id: "lag",
    title: "Start lag",
    unit: "from due to start",
    empty: "Nothing has started in this time.",
    told: duration,
    steps: [...[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30], ...[1, 2, 5, 10, 20, 30].map((one) => one * 60), ...[1, 2, 4, 12, 24].map((one) => one * 3_600)],
    /* What has started at once has been counted, too. */
    something: (value) => value !== null,
    lines: ({ history: h }) => [
      line(1, "p50", inSeconds(h.lag_p50_ms)),
      line(2, "p95", inSeconds(h.lag_p95_ms), { dash: [6, 3] }),
    ],
  },
  {
    id: "waiting",
    title: "Backlog by pool",
    unit: "works that wait, due or not",
    empty: "Nothing was seen waiting in this time.",
    told: number,
    steps: WHOLE,
    lines: ({ history: h }) =>
      h.waiting.map(({ pool, pools, values }, at) =>
        line(at + 1, pool === null ? `${pools} others` : pool, values, { dash: DASHES[at], pool })),
  },
  {
    id: "running",
    title: "Running against the limit",
    unit: "works at once, callbacks included",
    empty: "Nothing was seen running in this time.",
    told: number,
    steps: WHOLE,
    something: (value, one) => !one.limit && value > 0,
    lines: ({ history: h, summary }) => [
      line(1, "Running", h.running, { fill: true }),
      line(2, "Limit now", h.minutes.map(() => summary.limit), { dash: [6, 3], limit: true }),
    ],
  },
];

/** A figure with a chart, its legend, which tells the values under the pointer or the last ones, and its numbers as a table. */
class Chart {
  constructor(kind) {
    this.kind = kind;
    this.at = null;
    this.legend = element("ul", { className: "wp-legend" });
    this.when = element("span", { className: "wp-when" });
    this.plot = element("div", { className: "wp-plot", role: "img" });
    this.empty = element("p", { className: "wp-nothing", text: kind.empty });
    this.table = element("table");
    this.details = element("details", { on: { toggle: () => this.tabulate() } },
      element("summary", { text: "Numbers" }), element("div", { className: "wp-scroll wp-numbers", tabindex: "0", role: "region", "aria-label": kind.title }, this.table));
    const title = element("h2", { text: kind.title }, this.when, element("span", { className: "wp-unit", text: kind.unit }));
    this.figure = element("figure", { className: "module wp-chart", data: { chart: kind.id } },
      title, element("div", { className: "wp-canvas" }, this.plot, this.empty), this.legend, this.details);
    new ResizeObserver(() => this.fit()).observe(this.plot);
  }

  update(answer) {
    const { history } = answer;
    this.withDay = history.step > 60;
    this.times = history.minutes.map((one) => one * 60);
    const lines = this.kind.lines(answer);
    const columns = [this.times, ...lines.map((one) => one.values)];
    const same = this.lines && this.lines.length === lines.length && lines.every((one, at) => one.label === this.lines[at].label);
    this.lines = lines;
    const something = this.kind.something || ((value) => value > 0);
    show(this.empty, !lines.some((one) => one.values.some((value) => something(value, one))));
    if (this.drawn && same) this.drawn.setData(columns);
    else this.draw(columns);
    this.tell();
    if (this.details.open) this.tabulate();
  }

  draw(columns) {
    this.drawn?.destroy();
    this.at = null;
    const font = `11px ${css("--font-family-primary") || "sans-serif"}`;
    const axis = { stroke: () => css("--body-quiet-color"), font, grid: { stroke: () => css("--hairline-color"), width: 1 }, ticks: { show: false } };
    const steps = this.kind.steps ? { incrs: this.kind.steps } : {};
    this.drawn = new uPlot({
      width: Math.max(200, this.plot.clientWidth),
      height: HEIGHT,
      legend: { show: false },
      cursor: { sync: { key: "workpool" }, drag: { x: false, y: false }, y: false },
      scales: { y: { range: (_, least, most) => [0, most > 0 ? most * 1.08 : 1] } },
      axes: [
        { ...axis, size: 26, space: 60, values: (_, splits) => splits.map((one) => this.tick(one)) },
        { ...axis, ...steps, size: 56, space: 22, values: (_, splits) => splits.map((one) => (one === 0 ? "0" : this.kind.told(one))) },
      ],
      series: [{}, ...this.lines.map((one) => ({
        stroke: () => css(`--wp-${one.color}`),
        fill: one.fill ? () => css(`--wp-${one.color}-fill`) : undefined,
        width: 2,
        dash: one.dash,
        points: { show: true, size: 5, filter: (drawn, at) => alone(drawn.data[at]) },
      }))],
      hooks: { setCursor: [(drawn) => { this.at = drawn.cursor.idx ?? null; this.tell(); }] },
    }, columns, this.plot);
    this.legend.replaceChildren(...this.lines.map((one) => element("li", { data: one.pool === undefined ? {} : { pool: one.pool ?? "" } },
      swatch(one), element("span", { text: one.label }), element("b", { data: { field: "value" } }))));
  }

  /** A label of the time axis: the day where one begins. */
  tick(at) {
    const date = new Date(at * 1000);
    return date.getHours() === 0 && date.getMinutes() === 0 ? day.format(date) : minute.format(date);
  }

  tell() {
    const pointed = this.at !== null && this.at < this.times.length;
    const value = (values) => (pointed ? values[this.at] : values.findLast((one) => one !== null) ?? null);
    const told = this.lines.map((one) => this.kind.told(value(one.values)));
    told.forEach((text, at) => say(this.legend.children[at].lastChild, text));
    say(this.when, pointed ? time(this.times[this.at], this.withDay) : "");
    if (!pointed) this.plot.setAttribute("aria-label", `${this.kind.title}, ${this.kind.unit}. Last: ${this.lines.map((one, at) => `${one.label} ${told[at]}`).join(", ")}.`);
  }

  tabulate() {
    if (!this.details.open || !this.lines) return;
    const head = element("tr", {}, element("th", { scope: "col", text: "From" }), ...this.lines.map((one) => element("th", { scope: "col", className: "wp-number", text: one.label })));
    const rows = this.times.map((at, place) => element("tr", {}, element("th", { scope: "row", text: time(at, this.withDay) }),
      ...this.lines.map((one) => element("td", { className: "wp-number", text: this.kind.told(one.values[place]) })))).reverse();
    this.table.replaceChildren(element("caption", { className: "visually-hidden", text: `${this.kind.title}, ${this.kind.unit}, the latest first` }), element("thead", {}, head), element("tbody", {}, ...rows));
  }

  fit() {
    if (this.drawn && this.plot.clientWidth) this.drawn.setSize({ width: this.plot.clientWidth, height: HEIGHT });
  }
}

/** The places of values that have no neighbour to draw a line to. */
function alone(values) {
  const known = (at) => values[at] !== null && values[at] !== undefined;
  return values.flatMap((_, at) => (known(at) && !known(at - 1) && !known(at + 1) ? [at] : []));
}

function css(name) {
  return getComputedStyle(root).getPropertyValue(name).trim();
}

/** A short piece of a line as it is drawn. */
function swatch({ color, dash }) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const drawn = document.createElementNS(space, "line");
  for (const [name, value] of Object.entries({ width: 22, height: 8, "aria-hidden": "true", class: `wp-color-${color}` })) svg.setAttribute(name, value);
  for (const [name, value] of Object.entries({ x1: 0, x2: 22, y1: 4, y2: 4, "stroke-dasharray": dash.join(" ") })) drawn.setAttribute(name, value);
  svg.append(drawn);
  return svg;
}

/* The parts of the page -------------------------------------------------------------------------------------------- */

const STATES = {
  ok: "OK", paused: "Paused", full: "Full", no_room: "No room", held: "Held",
  stalled: "Stalled", no_leader: "No leader", no_worker: "No worker",
};

function chip(state, text, grave = false) {
  return element("span", { className: "wp-chip", text, data: { state, grave: grave ? "yes" : "" } });
}

function showProblems({ problems, sure }) {
  const box = document.getElementById("wp-problems");
  const sign = JSON.stringify([problems, sure]);
  show(box, problems.length > 0);
  if (box.wpSign === sign) return;
  box.wpSign = sign;
  box.dataset.sure = sure ? "yes" : "no";
  const head = sure ? "Not well" : "Something seems wrong; looking again…";
  box.replaceChildren(element("h2", { text: head }), element("ul", {}, ...problems.map((text) => element("li", { text }))));
}

function showTiles({ summary, leader, history, pools_left: left, count_max: most, names }) {
  const sum = (values) => values.reduce((one, other) => one + other, 0);
  const last = (values) => perMinute(values, history).findLast((value) => value !== null) ?? null;
  say(field("waiting"), atMost(summary.waiting, most));
  say(field("waiting-note"), `${atMost(summary.due, most)} due now`);
  say(field("running"), number(summary.running));
  say(field("running-note"), `of ${number(summary.limit)} allowed` + (summary.callbacks ? `, and ${number(summary.callbacks)} callbacks` : ""));
  for (const name of ["succeeded", "failed"]) {
    say(field(name), rate(last(history[name])));
    say(field(`${name}-note`), `${number(sum(history[name]))} in the last ${chosen().window}`);
  }
  say(field("workers"), summary.workers === summary.alive ? number(summary.alive) : `${number(summary.alive)} of ${number(summary.workers)}`);
  say(field("workers-note"), summary.workers ? `alive, with room for ${number(summary.capacity)}` : "none has come yet");
  say(field("leader"), leader.present ? (leader.host ? `${leader.host}:${leader.pid}` : "yes") : "nobody");
  say(field("leader-note"), leader.present ? `leads, term ${leader.term}` : leader.absent_s === null ? "leads" : `leads for ${duration(leader.absent_s)}`);
  say(field("window"), chosen().window);
  say(field("pools-left"), `and ${number(left)} of ${number(names.length)} pools more, with less to tell: choose one above.`);
  show(field("pools-left"), left > 0);
}

function stateOf(one) {
  const made = [chip(one.reason, STATES[one.reason] || one.reason, one.is_fault)];
  if (one.waiting && document.getElementById("wp-why")) {
    made.push(element("button", { type: "button", className: "wp-link", text: "Why?", "aria-label": `Why do works of ${one.pool} wait?`, data: { act: "why" }, on: { click: () => choosePool(one.pool, true) } }));
  }
  if (one.advice) made.push(element("span", { className: "wp-advice", text: one.advice }));
  if (one.held) made.push(element("span", { className: "wp-advice", text: `${number(one.held.works)} held: ${one.held.paths.join(", ")}, until ${clock.format(new Date(one.held.until))}` }));
  return made;
}

function showPools({ pools, count_max: most }) {
  keepRows(document.querySelector("#wp-pools tbody"), pools.map((one) => {
    const count = (name, text, group = "") => ({ field: name, className: `wp-number ${group}`, text });
    return {
      key: one.pool,
      data: { pool: one.pool },
      cells: [
        { field: "pool", sign: one.pool, make: () => element("button", { type: "button", className: "wp-link", text: one.pool, data: { act: "choose" }, on: { click: () => choosePool(one.pool) } }) },
        { field: "state", className: "wp-state", sign: JSON.stringify([one.reason, one.advice, one.held, one.waiting > 0]), make: () => stateOf(one) },
        count("waiting", atMost(one.waiting, most), "wp-group"),
        count("due", atMost(one.due, most)),
        count("late", one.lag_s ? duration(one.lag_s) : "–"),
        count("running", `${number(one.running)} of ${number(one.max_parallelism)}` + (one.callbacks ? ` + ${number(one.callbacks)}` : "")),
        count("window-succeeded", number(one.window.succeeded), "wp-group"),
        count("window-failed", number(one.window.failed)),
        count("window-canceled", number(one.window.canceled)),
        count("window-retried", number(one.window.retried)),
        count("lag-p50", duration(one.lag_p50_ms === null ? null : one.lag_p50_ms / 1000)),
        count("lag-p95", duration(one.lag_p95_ms === null ? null : one.lag_p95_ms / 1000)),
        count("total-succeeded", number(one.total.succeeded), "wp-group"),
        count("total-failed", number(one.total.failed)),
        count("total-canceled", number(one.total.canceled)),
      ],
    };
  }));
}

function runsOf({ runs }) {
  if (!runs.length) return [element("span", { className: "wp-quiet", text: "nothing" })];
  return runs.map((one) => {
    if (one.function === null) return element("div", { className: "wp-quiet", text: `and ${number(one.number)} more` });
    const longest = one.longest_s === null ? "" : `, ${one.number > 1 ? "longest " : "for "}${duration(one.longest_s)}`;
    return element("div", {}, element("code", { text: one.function || "a work that has ended" }), element("span", { className: "wp-quiet", text: ` × ${number(one.number)} in ${one.pool}${longest}` }));
  });
}

function showWorkers({ workers, workers_left: left, leader }) {
  show(field("workers-empty"), !workers.length);
  show(document.getElementById("wp-workers").parentElement, workers.length > 0);
  say(field("workers-left"), `and ${number(left)} more, with less to tell.`);
  show(field("workers-left"), left > 0);
  keepRows(document.querySelector("#wp-workers tbody"), workers.map((one) => {
    const state = !one.alive ? (one.left ? "left" : "dead") : one.accepting ? "alive" : "stopping";
    const leads = leader.present && leader.worker === one.id;
    const runs = runsOf(one);
    return {
      key: one.id,
      data: { worker: one.id },
      cells: [
        { field: "worker", text: `${one.host}:${one.pid}` },
        { field: "state", className: "wp-state", sign: `${state} ${leads}`, make: () => [chip(state, { alive: "Alive", stopping: "Stopping", left: "Has ended", dead: "Dead" }[state], state === "dead"), ...(leads ? [chip("leads", "Leads")] : [])] },
        { field: "running", className: "wp-number", sign: `${one.running} ${one.capacity}`, make: () => [`${number(one.running)} of ${number(one.capacity)} `, element("progress", { className: "wp-meter", max: Math.max(1, one.capacity), value: Math.min(one.running, one.capacity), "aria-hidden": "true" })] },
        { field: "runs", className: "wp-runs", sign: runs.map((node) => node.textContent).join("\n"), make: () => runs },
        { field: "serves", text: one.pools === null ? "all pools" : one.pools.join(", ") },
        { field: "beat", className: "wp-number", text: one.beat_age_s < 1 ? "just now" : `${duration(one.beat_age_s)} ago` },
      ],
    };
  }));
}

function showWaiting(works) {
  const note = field("why-note");
  show(note, !works || !works.length);
  show(document.getElementById("wp-waiting").parentElement, Boolean(works && works.length));
  if (!works) return say(note, "Choose a pool to see its oldest waiting works, each with what it waits for.");
  say(note, "Nothing waits in this pool.");
  keepRows(document.querySelector("#wp-waiting tbody"), works.map((one) => ({
    key: one.id,
    data: { work: one.id },
    cells: [
      { field: "work", sign: JSON.stringify([one.name, one.url, one.attempts]), make: () => [one.url ? element("a", { href: one.url, text: one.name }) : element("span", { text: one.name }), element("span", { className: "wp-advice", text: (one.name === one.function ? "" : `${one.function} · `) + (one.attempts ? `${number(one.attempts)} attempts so far` : "not tried yet") })] },
      { field: "due", text: one.due_for_s >= 0 ? `for ${duration(one.due_for_s)}` : `in ${duration(-one.due_for_s)}` },
      { field: "why", sign: one.code + one.why, make: () => element("span", { text: one.why, data: { code: one.code } }) },
    ],
  })));
}

/* What is chosen --------------------------------------------------------------------------------------------------- */

function chosen() {
  const values = new FormData(filters);
  return { window: values.get("window"), pool: values.get("pool") || "", database: values.get("database") || "" };
}

function query(values) {
  return new URLSearchParams(Object.entries(values).filter(([, value]) => value)).toString();
}

function keepNames(names) {
  const select = document.getElementById("wp-pool");
  const sign = JSON.stringify(names);
  if (select.wpSign === sign) return;
  select.wpSign = sign;
  const value = select.value;
  select.replaceChildren(element("option", { value: "", text: "All pools" }), ...names.map((name) => element("option", { value: name, text: name })));
  select.value = names.includes(value) ? value : "";
}

function choosePool(pool, goThere = false) {
  document.getElementById("wp-pool").value = pool;
  choose();
  if (goThere) document.getElementById("wp-why").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

function choose() {
  history.replaceState(null, "", `?${query(chosen())}`);
  setState("loading", "Loading…");
  poll.again();
}

/** Take over what the address says. */
function restore() {
  const said = new URLSearchParams(location.search);
  const pool = said.get("pool");
  if (pool) document.getElementById("wp-pool").append(element("option", { value: pool, text: pool, selected: "" }));
  for (const input of filters.elements.window) input.checked = input.value === (said.get("window") ?? "hour");
  if (!chosen().window) filters.elements.window[0].checked = true;
}

/* Asking again and again ------------------------------------------------------------------------------------------- */

/** The state is read out when it changes; when the server was seen last, which changes all the time, is not. */
function setState(state, text, seen = null) {
  root.dataset.state = state;
  say(field("state"), text);
  say(field("seen"), seen ? clock.format(seen) : "");
}

/** Raised with a text for people. */
class Refused extends Error {}

async function ask(url, values, signal) {
  const answer = await fetch(`${url}?${query(values)}`, { signal, redirect: "manual", headers: { Accept: "application/json" }, credentials: "same-origin" });
  if (answer.type === "opaqueredirect") throw new Refused("you are not logged in any more: reload the page");
  if (answer.status === 403) throw new Refused("you may not see this any more");
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(told.error || `the server has answered ${answer.status}`);
  return told;
}

/** Asks every two seconds, never twice at once, more seldom after each failure, and not at all while nobody can see the page. */
class Poll {
  constructor() {
    this.failures = 0;
    this.seen = null;
    this.run = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.again()));
  }

  again() {
    this.stop();
    this.failures = 0;
    if (!document.hidden) this.turn();
  }

  pause() {
    this.stop();
    setState("paused", "Paused");
  }

  stop() {
    clearTimeout(this.timer);
    this.run?.abort();
    this.run = null;
  }

  async turn() {
    const run = (this.run = new AbortController());
    const late = setTimeout(() => run.abort(), ANSWER_MS);
    const values = chosen();
    try {
      const asksWhy = values.pool && root.dataset.waitingUrl;
      const [answer, waits] = await Promise.all([ask(root.dataset.url, values, run.signal), asksWhy ? ask(root.dataset.waitingUrl, values, run.signal) : null]);
      if (this.run !== run) return;
      this.failures = 0;
      this.seen = new Date();
      render(answer, waits && waits.works);
      setState(answer.well ? "live" : "unwell", "Live", this.seen);
    } catch (error) {
      if (this.run !== run) return;
      this.failures += 1;
      const why = error instanceof Refused ? error.message : error.name === "TypeError" || error.name === "AbortError" ? "the server does not answer" : String(error);
      setState("stale", this.seen ? `Stale since ${clock.format(this.seen)}: ${why}` : `Nothing to show: ${why}`);
    } finally {
      clearTimeout(late);
    }
    const wait = Math.min(SLOWEST_MS, EVERY_MS * 2 ** this.failures) * (this.failures ? 0.75 + Math.random() / 2 : 1);
    this.timer = setTimeout(() => this.turn(), wait);
  }
}

function render(answer, works) {
  keepNames(answer.names);
  showProblems(answer);
  showTiles(answer);
  for (const chart of charts) chart.update(answer);
  showPools(answer);
  showWorkers(answer);
  if (document.getElementById("wp-why")) showWaiting(works);
}

const charts = CHARTS.map((kind) => new Chart(kind));
document.getElementById("wp-charts").append(...charts.map((chart) => chart.figure));
filters.addEventListener("change", (event) => {
  // Pools are in one database each.
  if (event.target.name === "database") document.getElementById("wp-pool").value = "";
  choose();
});
filters.addEventListener("submit", (event) => event.preventDefault());

/* The theme is the admin's: its switch writes data-theme, and "auto" follows the system. */
const redraw = () => charts.forEach((chart) => chart.drawn?.redraw(false));
new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

restore();
const poll = new Poll();
poll.again();

// Live figures, the theme, the keyboard and curves. All else works without this file.
// The server sends parts of the page that changed; idiomorph puts them in place and keeps focus and selection.

const SILENT_MS = 3_000; // a stream that has not opened by then: polls instead (a browser's seventh tab)
const POLL_MS = 2_000;
const POLL_SLOW_MS = 5_000;
const FAULTS_MAX = 3;
const STREAM_AGAIN_MS = 60_000;
const OLD_MS = 10_000;
const DEAD_MS = 20_000; // a stream beats every 10 s: after a sleep of the host its connection is dead and never ends
const CHARTS_MS = 5_000;
const CHART_HEIGHT = 164;
const CHART_STEPS_MIN = 12;

const byId = (id) => document.getElementById(id);
const root = document.documentElement;
const body = document.body;

// ---- theme

const isDark = () => getComputedStyle(root).colorScheme === "dark"
  || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);

byId("theme")?.addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  root.dataset.theme = theme;
  document.cookie = `theme=${theme}; Path=/; Max-Age=31536000; SameSite=Strict`;
  drawCharts(true);
});

// ---- keyboard

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "Escape" && typing) {
    typing.blur();
  } else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && byId("find")) {
    event.preventDefault();
    byId("find").focus();
    byId("find").select();
  }
});

// ---- live parts

const of = body.dataset.of;
let version = body.dataset.version;
let heardAt = Date.now();
let mode = "live";
let source = null;
let timer = 0;
let faults = 0;
let skewMs = null;

const morphing = {
  callbacks: {
    // A changed figure is tinted for a second; an element that somebody types in stays as it is.
    beforeNodeMorphed(old, fresh) {
      if (old === document.activeElement && old.tagName === "INPUT") return false;
      if (old.nodeType === 1 && old.matches("td, .v") && old.textContent !== fresh.textContent) {
        old.classList.remove("changed");
        requestAnimationFrame(() => old.classList.add("changed"));
      }
      return true;
    },
    // The tint is ours: the server's class attribute does not know of it.
    beforeAttributeUpdated: () => true,
  },
};

function fragment(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

function apply(text) {
  const told = JSON.parse(text);
  heardAt = Date.now();
  skewMs = Math.min(skewMs ?? Infinity, heardAt - told.now); // what came late says less
  version = told.version;
  const fresh = new Map();
  for (const [id, html] of told.parts) {
    const now = byId(id);
    if (now) Idiomorph.morph(now, html, morphing);
    else fresh.set(id, html);
  }
  for (const [id, order] of told.orders) arrange(byId(id), order, fresh);
  show();
}

function arrange(place, order, fresh) {
  if (!place) return;
  const wanted = new Set(order);
  for (const row of [...place.children]) if (!wanted.has(row.id)) row.remove();
  let at = place.firstElementChild;
  for (const id of order) {
    if (at?.id === id) {
      at = at.nextElementSibling;
      continue;
    }
    const row = byId(id) ?? (fresh.has(id) ? fragment(fresh.get(id)) : null);
    if (row) place.insertBefore(row, at);
  }
}

const query = () => `of=${encodeURIComponent(of)}&since=${encodeURIComponent(version)}`;

function listen() {
  stop();
  mode = "live";
  source = new EventSource(`/stream?${query()}`);
  const late = setTimeout(() => poll(), SILENT_MS);
  source.addEventListener("open", () => clearTimeout(late));
  source.addEventListener("part", (event) => {
    clearTimeout(late);
    apply(event.data);
  });
  source.addEventListener("beat", () => { heardAt = Date.now(); });
  source.addEventListener("error", () => {
    clearTimeout(late);
    poll();
  });
  timer = late;
}

async function poll() {
  stop();
  mode = "poll";
  const begun = Date.now();
  const again = async () => {
    try {
      const answer = await fetch(`/parts?${query()}`, { signal: AbortSignal.timeout(POLL_SLOW_MS) });
      if (answer.status === 401) return location.reload();
      if (!answer.ok) throw new Error(answer.status);
      apply(await answer.text());
      faults = 0;
    } catch {
      faults += 1;
    }
    show();
    if (mode !== "poll" || document.hidden) return;
    if (!faults && Date.now() - begun > STREAM_AGAIN_MS) return listen();
    timer = setTimeout(again, faults >= FAULTS_MAX ? POLL_SLOW_MS : POLL_MS);
  };
  await again();
}

function stop() {
  source?.close();
  source = null;
  skewMs = null;
  clearTimeout(timer);
}

function watch() {
  if (source && Date.now() - heardAt > DEAD_MS) poll();
  show();
}

function show() {
  const pulse = byId("pulse")?.firstElementChild;
  const pill = byId("live");
  if (!pulse || !pill) return;
  const fault = pulse.dataset.fault;
  const ageMs = Math.max(0, Date.now() - (skewMs ?? 0) - Number(pulse.dataset.at));
  const silentMs = Date.now() - heardAt;
  const off = Boolean(fault) || silentMs > OLD_MS || faults >= FAULTS_MAX;
  const since = new Date(silentMs > OLD_MS || !Number(pulse.dataset.at) ? heardAt : Date.now() - ageMs);
  const age = ageMs < 10_000 ? `${(ageMs / 1000).toFixed(1)} s` : `${Math.round(ageMs / 1000)} s`;
  let text = `${mode === "live" ? "live" : "every 2 s"}, ${age} ago`;
  if (off) text = `stopped since ${since.toTimeString().slice(0, 8)}${fault ? `: ${fault}` : ""}`;
  if (pill.textContent !== text) pill.textContent = text;
  pill.setAttribute("aria-live", off ? "polite" : "off");
  pill.title = pulse.dataset.list;
  pill.classList.toggle("poll", mode === "poll" && !off);
  pill.classList.toggle("off", off);
  body.classList.toggle("old", off);
}

if (of) {
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : listen()));
  addEventListener("pagehide", stop);
  setInterval(watch, 500);
  if (!document.hidden) listen();
}

// ---- curves

const charts = [];

function colour(name) {
  // A custom property is not resolved where it is read; a colour is.
  const probe = document.createElement("i");
  probe.hidden = true;
  probe.style.color = `var(${name})`;
  body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const faint = (rgb) => rgb.replace(/^rgb\((.*)\)$/, "rgba($1, .1)");
const ages = (_, values) => values.map((s) => (s >= 3600 ? `${s / 3600} h` : s >= 60 ? `${s / 60} min` : `${s} s`));
const clock = (s, digits) => new Date(s * 1000).toTimeString().slice(0, digits);
const clocks = (_, values, _axis, _space, step) => values.map((s) => clock(s, step < 60 ? 8 : 5));

function chart(place, series, data, axis) {
  const line = { stroke: colour("--ink3"), font: "11px Inter", ticks: { show: false }, gap: 6, grid: { stroke: colour("--line"), width: 1 } };
  return new uPlot({
    width: place.clientWidth - 16,
    height: CHART_HEIGHT,
    legend: { show: false },
    cursor: { sync: { key: "time" }, points: { size: 6 } },
    padding: [8, 28, 0, 8],
    axes: [{ ...line, values: clocks, size: 30 }, { ...line, size: 62, ...axis }],
    scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
    series: [{}, ...series],
  }, data, place);
}

function known(told) {
  // Of a time before the first figure nothing is drawn: what the axis begins with is said above it.
  const first = told.at.findIndex((_, i) => told.waiting[i] !== null);
  const from = Math.max(0, Math.min(first, told.at.length - CHART_STEPS_MIN));
  byId("since").textContent = first > 0 ? `known since ${clock(told.at[first], 8)}` : "";
  return Object.fromEntries(Object.entries(told).map(([key, values]) => [key, values.slice(from)]));
}

async function drawCharts(anew = false) {
  const place = byId("chart-age");
  if (!place || document.hidden) return;
  const answer = await fetch(place.dataset.series);
  if (!answer.ok) return;
  const told = known(await answer.json());
  const lines = [[told.at, told.oldest_s], [told.at, told.in_per_s, told.out_per_s]];
  if (anew) charts.splice(0).forEach((each) => each.destroy());
  if (charts.length) return charts.forEach((each, i) => each.setData(lines[i]));
  const [bad, quiet, accent] = ["--bad", "--ink3", "--accent"].map(colour);
  const steps = { incrs: [1, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200], values: ages };
  charts.push(chart(place, [{ stroke: bad, width: 2, fill: faint(bad) }], lines[0], steps));
  charts.push(chart(byId("chart-flow"), [{ stroke: quiet, width: 1.5 }, { stroke: accent, width: 2, fill: faint(accent) }], lines[1], {}));
}

if (byId("chart-age")) {
  drawCharts();
  setInterval(drawCharts, CHARTS_MS);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCharts(true));
  addEventListener("resize", () => charts.forEach((each) => each.setSize({ width: byId("chart-age").clientWidth - 16, height: CHART_HEIGHT })));
}
